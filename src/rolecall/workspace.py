"""Composition: opens what the configuration names. The verbs every front door calls start here."""

from __future__ import annotations

from rolecall import config
from rolecall.errors import UsageError
from rolecall.store.backend import Backend, Durability
from rolecall.store.store import Store


def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """The store at `url`, or the configured one. `create=False` never leaves a trace."""
    settings = config.store_settings()
    return Store(open_backend(url or settings.url, create=create, durability=settings.durability))


def open_backend(url: str, *, create: bool = True, durability: Durability = "heads") -> Backend:
    """A backend by its address. Each driver is imported only when it is the one asked for."""
    kind, colon, rest = url.partition(":")
    if kind in ("postgresql", "postgres") and colon:
        from rolecall.store.postgres import PostgresBackend

        return PostgresBackend(url, create=create)
    if kind == "files" and rest:
        from rolecall.store.files import FilesBackend

        return FilesBackend(rest, create=create)
    if colon and rest.startswith("//") and kind != "sqlite":
        raise UsageError(
            f"{url!r} is not a store this program knows",
            hint="Use a path of a SQLite file, files:FOLDER, or postgresql://USER@HOST/DATABASE.",
        )
    from rolecall.store.sqlite import SqliteBackend

    path = rest.removeprefix("//") if kind == "sqlite" and colon else url
    return SqliteBackend(path, create=create, durability=durability)
