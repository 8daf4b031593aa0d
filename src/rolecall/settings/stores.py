"""Open the store that an address or the configuration names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rolecall.errors import NotFound, UsageError
from rolecall.settings import config
from rolecall.store.backend import Backend, Durability
from rolecall.store.lazy import Module
from rolecall.store.store import TEMPORARY as TEMPORARY
from rolecall.store.store import Store

if TYPE_CHECKING:
    from rolecall.settings import mask
    from rolecall.store import files, postgres, sqlite
else:
    files = Module("rolecall.store.files")
    mask = Module("rolecall.settings.mask")
    postgres = Module("rolecall.store.postgres")
    sqlite = Module("rolecall.store.sqlite")


def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """Open the store at `url`, or the configured store. With `create=False`, nothing is ever created."""
    settings = config.store_settings()
    address = settings.url if url is None else url
    return Store(open_backend(address, create=create, durability=settings.durability))


def store_if_any(url: str | None = None) -> Store | None:
    """Open the store if it exists, and return None if it does not. If `url` is given, the store must exist."""
    try:
        return open_store(url, create=False)
    except NotFound:
        if url is not None:
            raise
        return None


def open_backend(url: str, *, create: bool = True, durability: Durability = "heads") -> Backend:
    """Open a backend by its address, and import only the driver that the backend needs."""
    kind, path = config.store_address(url)
    if kind in ("postgresql", "postgres"):
        return postgres.PostgresBackend(url, create=create)
    # Without a path, or in memory, everything would be lost when the process ended.
    if kind not in ("files", "sqlite") or path in ("", ":memory:"):
        raise UsageError(
            f"{mask.hide_secrets(url, '***')!r} is not a store this program knows",
            hint="Use a path of a SQLite file (./NAME where it holds a colon), files:FOLDER, or "
            "postgresql://USER@HOST/DATABASE.",
        )
    if kind == "files":
        return files.FilesBackend(path, create=create)
    if os.path.isdir(path):
        raise UsageError(
            f"{os.path.abspath(path)} is a folder, not a SQLite file",
            hint=f"Name a file in it, such as {os.path.join(path, 'store.db')}, or say files:{path}.",
        )
    return sqlite.SqliteBackend(path, create=create, durability=durability)
