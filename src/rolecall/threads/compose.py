"""Compose an engine from the configuration: its agents, the extract model and the knowledge of the repository.

The extract model and the knowledge search are imported only when a step needs them, because importing them takes longer
than a step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rolecall.agents.confinement import find_allowed_layers, private_places
from rolecall.agents.presence import check_present
from rolecall.errors import ExtractError, RolecallError, UsageError
from rolecall.files.tree import Trees
from rolecall.settings import config, form, yaml12
from rolecall.settings.models import Endpoint, extract_endpoint
from rolecall.settings.repository import nearest
from rolecall.settings.settings import EXTRACT_OF_PROJECT, Settings, keeps_trees, shares_trees
from rolecall.settings.yaml12 import Problem
from rolecall.store import holder
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.store.store import Store
from rolecall.threads.casting import binder, cast, cast_stand_in
from rolecall.threads.engine import Engine
from rolecall.threads.setup import Cast, Recalled, Watch
from rolecall.workflow import registry
from rolecall.workflow.model import Recall
from rolecall.workflow.playbook import Playbook

if TYPE_CHECKING:
    from rolecall.knowledge import queries
    from rolecall.threads import extract
    from rolecall.workflow import versions
else:
    extract = Module("rolecall.threads.extract")
    queries = Module("rolecall.knowledge.queries")
    versions = Module("rolecall.workflow.versions")  # imports shutil and tempfile, which a step does not need


def engine(
    store: Store,
    *,
    agent: str | None = None,
    folder: str | None = None,
    watch: Watch = lambda _kind, _body: None,
    tiers: Mapping[str, str] | None = None,
    shares_process: bool = False,
    lease_ms: int = holder.LEASE_MS,
    is_served: bool = False,
) -> Engine:
    """Return an engine on `store` with the configured agents; if `agent` is given, it plays every role. The engine
    applies the project file around `folder`, the folder where the threads were started. `tiers` maps roles to model
    tiers. `shares_process` means that this process runs other threads as well. If `is_served`, members of groups are
    queued for the service."""
    settings, environment = config.load(), config.environment()
    # Agents work in other folders, so the paths of home and store are made absolute.
    kind, colon, rest = environment.get("ROLECALL_STORE", "").rpartition(":")
    if rest and not rest.startswith("//") and kind in ("", "files", "sqlite"):
        environment["ROLECALL_STORE"] = f"{kind}{colon}{os.path.abspath(rest)}"
    if environment.get("ROLECALL_HOME"):
        environment["ROLECALL_HOME"] = config.home(environment)
    agents = _Agents(settings, environment, agent, tiers)
    loaded: dict[str, Playbook] = {}

    def playbook(node: str) -> Playbook:
        if node not in loaded:
            loaded[node] = registry.load_node(store, node)
        return loaded[node]

    def find_endpoint(overrides: JsonObject | None) -> Endpoint | None:
        return extract_endpoint(settings_for(folder), environment, overrides)

    async def read_answer(raw: str, schema: JsonObject, overrides: JsonObject | None) -> extract.Extracted:
        """Ask the extract model. Load its configuration only now, because most answers are parsed without a model."""
        endpoint = find_endpoint(overrides)
        if endpoint is None:
            raise ExtractError(
                "no model is configured to read it",
                raw=raw,
                hint="The answer is kept. Configure `extract`, or tell the agent what to change.",
                is_outage=True,
            )
        return await extract.extract(raw, schema, endpoint=endpoint)

    def find_workflow(name: str, folder: str) -> str:
        """Return the id of the workflow called `name`. Store a file first, but not under its name, because playing a
        role must not change what that name means in other projects."""
        found = registry.find(store, name, folder=folder)
        return registry.keep(store, registry.load_file(found.path)) if found.path else found.node or ""

    return Engine(
        store,
        playbook=playbook,
        cast=agents.hire,
        stand_in=agents.hire_stand_in if agent is None else None,
        extract=read_answer,
        can_extract=lambda role: find_endpoint(role.extract) is not None,
        token=lambda: os.urandom(8).hex(),
        environment=environment,
        mask=config.mask(),
        bind=binder(agent),
        find_workflow=find_workflow,
        trees=trees_of(store, is_shared=shares_trees(settings)) if keeps_trees(settings) else None,
        work=config.work_folder(),
        layers=partial(find_allowed_layers, environment),
        private=private_places(store.backend.address, environment),
        cache=config.cache_folder(),
        recall=recall,
        close=agents.close,
        watch=watch,
        shares_process=shares_process,
        queues_members=is_served,
        lease_ms=lease_ms,
    )


class _Agents:
    """The agents of an engine. Each agent is created only once, because some keep a connection open between steps."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        override: str | None,
        tiers: Mapping[str, str] | None,
    ) -> None:
        """`override` is the name of an agent that plays every role; `tiers` maps roles to model tiers."""
        self._settings, self._environment = settings, environment
        self._override, self._tiers = override, tiers
        self._hired: dict[tuple[str, str, str], Cast] = {}

    def hire(self, book: Playbook, role: str) -> Cast:
        key = (book.workflow.name, role, repr(book.bound.get(role) or book.workflow.roles[role].agent))
        if key not in self._hired:
            settings, env = self._settings, self._environment
            made = cast(settings, book, role, override=self._override, environment=env, tiers=self._tiers)
            self._add(key, made)
        return self._hired[key]

    def hire_stand_in(self, book: Playbook, role: str) -> Cast:
        key = (book.workflow.name, role, f"stand_in {book.workflow.roles[role].stand_in}")
        if key not in self._hired:
            self._add(key, cast_stand_in(self._settings, book, role, environment=self._environment))
        return self._hired[key]

    def _add(self, key: tuple[str, str, str], made: Cast) -> None:
        check_present(made.agent, env=self._environment)
        same = (other for other in self._hired.values() if other == made)
        self._hired[key] = next(same, made)  # roles with the same agent and options share its connection

    async def close(self) -> None:
        for each in self._hired.values():
            if hasattr(each.agent, "aclose"):
                await each.agent.aclose()


def trees_of(store: Store, *, is_shared: bool = False) -> Trees:
    """Return the recorder of the files that steps in `store` found and left."""
    address = store.backend.address
    private = (config.home(), address.removeprefix("files:"))
    return Trees(config.trees_folder(address), private=private, is_shared=is_shared)


def settings_for(folder: str | None) -> Settings:
    """Return the configuration, with the extract model from the project file around `folder`."""
    settings = config.load()
    path = nearest("rolecall.yaml", folder) if folder else None
    if path is None:
        return settings
    text = config.read_text(path)
    project = yaml12.load(text, source=path)
    if not isinstance(project, Mapping) or project.get("extract") is None:
        return settings
    section = form.load(EXTRACT_OF_PROJECT, text, source=path, section="extract").require("rolecall.yaml")
    return {**settings, "extract": section} if section else settings


def load_workflow(
    path: str, *, store: str | None, warn: Callable[[Problem], object] = lambda _: None
) -> Playbook:
    """Load a workflow file for a thread. Load a Python workflow from a copy that does not change, kept for the store at
    the address `store` or, if None, for the configured store."""
    playbook = registry.load_file(path, warn=warn)
    if not path.endswith(".py"):
        return playbook
    return registry.load_file(versions.keep(path, config.versions_folder(store)))


async def recall(wanted: Recall, question: str, folder: str) -> Recalled:
    """Search the repository around `folder`, using an index of its current files."""
    try:
        text, notes = await asyncio.to_thread(
            queries.brief, question, folder, tokens=wanted.tokens, path=wanted.path
        )
    except RolecallError as error:
        raise UsageError(
            f"the repository's knowledge is not available: {error.message}", hint=error.hint
        ) from error
    return Recalled(text, notes)
