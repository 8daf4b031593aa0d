"""Composition: opens what the configuration names. The verbs every front door calls start here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.settings import config
from rolecall.settings.config import mask as mask
from rolecall.store.backend import Backend, Durability
from rolecall.store.store import Store

if TYPE_CHECKING:
    from rolecall.nexus.memory import Thresholds
    from rolecall.settings.yaml12 import Problem
    from rolecall.threads.engine import Cast, Engine
    from rolecall.threads.setup import Recalled
    from rolecall.threads.state import ThreadRef
    from rolecall.workflow.model import Recall
    from rolecall.workflow.playbook import Playbook


def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """The store at `url`, or the configured one. `create=False` never leaves a trace."""
    settings = config.store_settings()
    address = settings.url if url is None else url
    return Store(open_backend(address, create=create, durability=settings.durability))


def store_if_any(url: str | None = None) -> Store | None:
    """The store; None when none has been made yet, unless it was asked for by name."""
    try:
        return open_store(url, create=False)
    except NotFound:
        if url is not None:
            raise
        return None


def open_backend(url: str, *, create: bool = True, durability: Durability = "heads") -> Backend:
    """A backend by its address. Each driver is imported only when it is the one asked for."""
    kind, path = config.store_address(url)
    if kind in ("postgresql", "postgres"):
        from rolecall.store.postgres import PostgresBackend

        return PostgresBackend(url, create=create)
    # Without a path, or in memory, what is put would be gone with the process.
    if kind not in ("files", "sqlite") or path in ("", ":memory:"):
        from rolecall.settings.mask import masked

        raise UsageError(
            f"{masked(url, '***')!r} is not a store this program knows",
            hint="Use a path of a SQLite file (./NAME where it holds a colon), files:FOLDER, or "
            "postgresql://USER@HOST/DATABASE.",
        )
    if kind == "files":
        from rolecall.store.files import FilesBackend

        return FilesBackend(path, create=create)
    from rolecall.store.sqlite import SqliteBackend

    return SqliteBackend(path, create=create, durability=durability)


def memory_thresholds() -> Thresholds:
    """The thresholds for merging and forgetting memory notes."""
    from rolecall.nexus.memory import Thresholds
    from rolecall.settings.settings import memory_thresholds

    return Thresholds(**memory_thresholds(config.load()))


def tell_service(ref: ThreadRef) -> None:
    """Let the service look at a thread of its own now; it would notice by itself a little later."""
    if ref.state.service is not None:
        from rolecall.service import control

        control.poke(config.home(), ref.id)


def settings_for(folder: str | None) -> dict[str, Any]:
    """The configuration, and before it what the file of the project around a folder says."""
    from rolecall.settings.repository import nearest

    settings = config.load()
    if folder is None or nearest("rolecall.yaml", folder) is None:
        return settings
    from rolecall.service import project_file

    said = project_file.load(folder).checked().extract
    return settings if said is None else {**settings, "extract": said}


def engine(
    store: Store,
    *,
    agent: str | None = None,
    folder: str | None = None,
    watch: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _body: None,
    tiers: Mapping[str, str] | None = None,
) -> Engine:
    """An engine on `store` with the configured agents; `agent`, if given, plays every role. `folder` is where its
    threads were started, whose project file applies; `tiers` are the model tiers of roles that have one."""
    import os

    from rolecall.agents.presence import check_present
    from rolecall.settings.settings import extract_endpoint
    from rolecall.threads.engine import Engine
    from rolecall.workflow import registry

    settings, environment = config.load(), _for_children(config.environment())
    loaded: dict[str, Playbook] = {}
    hired: dict[tuple[str, str, str], Cast] = {}

    def playbook(node: str) -> Playbook:
        if node not in loaded:
            loaded[node] = registry.load_node(store, node)
        return loaded[node]

    def hire(book: Playbook, role: str) -> Cast:
        """Agents are made once, because some keep a connection from step to step."""
        key = (book.workflow.name, role, repr(book.bound.get(role)))
        if key not in hired:
            made = cast(settings, book, role, override=agent, environment=environment, tiers=tiers)
            check_present(made.agent, env=environment)
            same = (other for other in hired.values() if other == made)
            hired[key] = next(same, made)  # roles with the same agent and options share its connection
        return hired[key]

    async def close() -> None:
        for each in hired.values():
            if hasattr(each.agent, "aclose"):
                await each.agent.aclose()

    return Engine(
        store=store,
        playbook=playbook,
        cast=hire,
        extract=_extractor(folder, environment),
        can_extract=lambda role: (
            extract_endpoint(settings_for(folder), environment, role.extract) is not None
        ),
        token=lambda: os.urandom(8).hex(),
        environment=environment,
        mask=mask(),
        bind=binder(agent),
        find_workflow=lambda name, folder: _stored_workflow(store, name, folder),
        work=config.work_folder(),
        recall=recall,
        close=close,
        watch=watch,
    )


def load_workflow(
    path: str, *, store: str | None, warn: Callable[[Problem], object] = lambda _: None
) -> Playbook:
    """A workflow file as a thread of a store (its address, None: the configured one) that runs for long uses it: one
    in Python from a copy that stays as it is."""
    from rolecall.workflow import registry

    playbook = registry.load_file(path, warn=warn)
    if not path.endswith(".py"):
        return playbook
    from rolecall.workflow import versions

    return registry.load_file(versions.keep(path, config.versions_folder(store)))


async def recall(wanted: Recall, question: str, folder: str) -> Recalled:
    """What the repository around a folder says about a question, indexed as it is now."""
    import asyncio

    from rolecall.knowledge import queries
    from rolecall.nexus.project_paths import now
    from rolecall.threads.setup import Recalled

    try:
        text, notes = await asyncio.to_thread(
            queries.brief, question, folder, now=now(), tokens=wanted.tokens, path=wanted.path
        )
        return Recalled(text, notes)
    except RolecallError as error:
        raise UsageError(
            f"the repository's knowledge is not to be had: {error.message}", hint=error.hint
        ) from error


def _stored_workflow(store: Store, name: str, folder: str) -> str:
    """The id of a workflow by its name; one of the project's files is stored first."""
    from rolecall.workflow import registry

    found = registry.find(store, name, folder=folder)
    return registry.register(store, registry.load_file(found.path)) if found.path else found.node or ""


def _for_children(environment: dict[str, str]) -> dict[str, str]:
    """The environment of agents, who work in other folders: the same home and store by absolute paths."""
    import os

    kind, colon, rest = environment.get("ROLECALL_STORE", "").rpartition(":")
    if rest and not rest.startswith("//") and kind in ("", "files", "sqlite"):
        environment["ROLECALL_STORE"] = f"{kind}{colon}{os.path.abspath(rest)}"
    if environment.get("ROLECALL_HOME"):
        environment["ROLECALL_HOME"] = config.home(environment)
    return environment


def cast(
    settings: Mapping[str, Any],
    book: Playbook,
    role: str,
    *,
    override: str | None = None,
    environment: Mapping[str, str] | None = None,
    tiers: Mapping[str, str] | None = None,
) -> Cast:
    """The agent that plays a role. An unknown agent, or one that cannot enforce the role's restrictions, is an error
    before anything runs. `tiers` are the model tiers of roles that have one."""
    from rolecall.settings import capabilities
    from rolecall.threads.engine import HUMAN

    tier = (tiers or {}).get(role, "")
    made = _cast(settings, book, role, override=override, environment=environment, tier=tier)
    deniable = getattr(made.agent, "deniable", None)
    if (
        deniable is not None and made.name != HUMAN
    ):  # a plain function is told, and is its author's to answer for
        capabilities.check_supported(made.name, book.workflow.roles[role].capabilities, deniable)
    return made


def miscast(book: Playbook, override: str | None) -> list[tuple[str, RolecallError]]:
    """The roles whose agent is unknown or missing, with the reason."""
    from rolecall.agents.presence import check_present

    settings, found = config.load(), []
    for role in book.workflow.roles:
        if role in book.functions:
            continue
        try:
            check_present(cast(settings, book, role, override=override).agent, env=config.environment())
        except RolecallError as error:
            found.append((role, error))
    return found


def refuse_miscast(book: Playbook, override: str | None) -> None:
    """Refuse a role that no agent can play before any other role costs money."""
    for _, error in miscast(book, override):
        raise error


def agent_from(folder: str, agent: str) -> str:
    """An agent as it is named in a folder, also when the thread runs from another one: a script by its whole path."""
    import os

    kind, _, file = agent.partition(":")
    return f"scripted:{os.path.abspath(os.path.join(folder, file))}" if kind == "scripted" and file else agent


def _cast(
    settings: Mapping[str, Any],
    book: Playbook,
    role: str,
    *,
    override: str | None,
    environment: Mapping[str, str] | None,
    tier: str,
) -> Cast:
    from rolecall import agents
    from rolecall.settings.settings import agent_for, configured_agent, tier_model, unknown_agent
    from rolecall.threads.engine import HUMAN, Cast

    named, bound = book.workflow.roles[role].agent, book.bound.get(role)
    if named == HUMAN:  # a person was asked for, and nobody else may answer instead
        return Cast(HUMAN, _nobody)
    if override is None and bound is None and role in book.agents:
        agent = book.agents[role]
        return Cast(getattr(agent, "name", getattr(agent, "__name__", "python")), agent)
    if bound is None:
        name = agent_for(settings, workflow=book.workflow.name, role=role, named=named, override=override)
        spec, options = configured_agent(settings, name)
    elif "spec" not in bound:
        name = bound["name"]
        spec, options = configured_agent(settings, name)
    else:
        name, spec = bound["name"], bound["spec"]
        options = {**_unbound_options(settings, name), **bound.get("options", {})}
    kind, _, argument = spec.partition(":")
    if kind == HUMAN:
        return Cast(HUMAN, _nobody)
    if kind not in agents.ADAPTERS:
        raise unknown_agent(settings, name, (*agents.ADAPTERS, HUMAN))
    model = tier_model(settings, (name, kind), tier) if tier else ""
    if model and (kind == "acp" or kind not in agents.SPOKEN):
        options = {"model": model, **options}  # the agent's own entry and its spec take precedence
    if kind == "builtin":
        from rolecall.settings.settings import builtin_options

        written = {**options, **agents.written("builtin", argument)}
        given = builtin_options(settings, environment or config.environment(), written)
        return Cast(name, agents.make("builtin", given))
    return Cast(name, agents.resolve(spec, options))


_UNBOUND = ("env", "mcp")
"""Options that may hold secrets: a thread does not store them, but reads them from the configuration at each step."""


def _unbound_options(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    entry = (settings.get("agents") or {}).get(name)
    return {key: entry[key] for key in _UNBOUND if key in entry} if isinstance(entry, dict) else {}


def binder(override: str | None = None) -> Callable[[Playbook], dict[str, Any]]:
    """A function that binds agents to the roles of a new thread from the current configuration: the agent's name and
    its definition. A role without an agent takes it from the configuration when its turn comes."""

    def bind(book: Playbook) -> dict[str, Any]:
        from rolecall.settings.settings import agent_for, configured_agent
        from rolecall.threads.engine import HUMAN

        settings, hidden, bound = config.load(), mask(), dict[str, Any]()
        for role, part in book.workflow.roles.items():
            is_of_code = role in book.functions or (override is None and role in book.agents)
            if is_of_code or part.agent == HUMAN:
                continue
            try:
                name = agent_for(
                    settings, workflow=book.workflow.name, role=role, named=part.agent, override=override
                )
                spec, options = configured_agent(settings, name)
            except UsageError:
                if override is not None:
                    raise
                continue
            kept = {key: value for key, value in options.items() if key not in _UNBOUND}
            definition = {"spec": spec} | ({"options": kept} if kept else {})
            is_safe = hidden.value(definition) == definition
            bound[role] = {"name": hidden.text(name)} | (definition if is_safe else {})
        return bound

    return bind


async def _nobody(_prompt: str, _context: Any) -> str:
    raise UsageError("a role played by a person is not asked by the engine")


def _extractor(folder: str | None, environment: Mapping[str, str]) -> Any:
    """Reads what is configured when an answer has to be read: most answers need nobody to read them."""
    from rolecall.settings.settings import extract_endpoint

    async def ask(raw: str, schema: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> Any:
        from rolecall.errors import ExtractError
        from rolecall.threads.extract import Endpoint, extract

        endpoint = extract_endpoint(settings_for(folder), environment, overrides)
        if endpoint is None:
            raise ExtractError(
                "the answer carries no output and no model is configured to find it",
                raw=raw,
                hint="Nothing is lost. Configure `extract` to let a model read it, or resume with a word to the agent.",
                is_outage=True,
            )
        found = await extract(raw, schema, endpoint=Endpoint(**endpoint))
        return found.output, found.usage

    return ask
