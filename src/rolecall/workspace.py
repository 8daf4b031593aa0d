"""Composition: opens what the configuration names. The verbs every front door calls start here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rolecall import config
from rolecall.errors import UsageError
from rolecall.store.backend import Backend, Durability
from rolecall.store.store import Store

if TYPE_CHECKING:
    from rolecall.engine import Cast, Engine
    from rolecall.mask import Mask
    from rolecall.playbook import Playbook


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


def mask() -> Mask:
    """Hides every secret of the environment, of `.env` and of the configuration."""
    from rolecall.mask import SHORTEST, Mask, secrets_in
    from rolecall.settings import secrets_of

    known = secrets_in(config.environment(), always=config.env_file())
    written = [secret for secret in secrets_of(config.load()) if len(secret) >= SHORTEST]
    return Mask(sorted({*known, *written}, key=len, reverse=True))


def engine(
    store: Store,
    *,
    agent: str | None = None,
    watch: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _body: None,
) -> Engine:
    """An engine on `store` with the configured agents; `agent` plays every role when given."""
    import os

    from rolecall import registry
    from rolecall.engine import Engine

    settings, environment = config.load(), _for_children(config.environment())
    loaded: dict[str, Playbook] = {}

    def playbook(node: str) -> Playbook:
        if node not in loaded:
            loaded[node] = registry.load_node(store, node)
        return loaded[node]

    return Engine(
        store=store,
        playbook=playbook,
        cast=lambda book, role: cast(settings, book, role, override=agent),
        extract=_extractor(settings, environment),
        token=lambda: os.urandom(8).hex(),
        environment=environment,
        mask=mask(),
        watch=watch,
    )


def _for_children(environment: dict[str, str]) -> dict[str, str]:
    """The environment of agents, who work in other folders: the same home and store by absolute paths."""
    import os

    kind, colon, rest = environment.get("ROLECALL_STORE", "").rpartition(":")
    if rest and not rest.startswith("//") and kind in ("", "files", "sqlite"):
        environment["ROLECALL_STORE"] = f"{kind}{colon}{os.path.abspath(rest)}"
    if environment.get("ROLECALL_HOME"):
        environment["ROLECALL_HOME"] = config.home(environment)
    return environment


def cast(settings: Mapping[str, Any], book: Playbook, role: str, *, override: str | None = None) -> Cast:
    """The agent that plays a role; an unknown one is an error before anything runs."""
    from rolecall import agents
    from rolecall.engine import HUMAN, Cast
    from rolecall.settings import agent_for, external_command, unknown_agent

    if override is None and role in book.agents:
        agent = book.agents[role]
        return Cast(getattr(agent, "name", getattr(agent, "__name__", "python")), agent)
    name = agent_for(
        settings,
        workflow=book.workflow.name,
        role=role,
        named=book.workflow.roles[role].agent,
        override=override,
    )
    command = external_command(settings, name)
    if command is not None:
        from rolecall.agents.external import external

        return Cast(name, external(command))
    kind = name.partition(":")[0]
    if kind not in agents.ADAPTERS and kind != HUMAN:
        raise unknown_agent(settings, name, (*agents.ADAPTERS, HUMAN))
    return Cast(name, _nobody if kind == HUMAN else agents.resolve(name))


async def _nobody(_prompt: str, _context: Any) -> str:
    raise UsageError("a role played by a person is not asked by the engine")


def _extractor(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    from rolecall.settings import extract_endpoint

    async def ask(raw: str, schema: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> Any:
        from rolecall.errors import ExtractError
        from rolecall.extract import Endpoint, extract

        endpoint = extract_endpoint(settings, environment, overrides)
        if endpoint is None:
            raise ExtractError(
                "the answer carries no output and no model is configured to find it",
                raw=raw,
                hint="Nothing is lost. Configure `extract` to let a model read it, or resume with a word to the agent.",
            )
        found = await extract(raw, schema, endpoint=Endpoint(**endpoint))
        return found.output, found.usage

    return ask
