"""Composes an engine from the configuration: agents, the extract model, the repository's knowledge.

The last two are imported only when a step needs them, because importing them takes longer than a step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

from rolecall.agents.presence import check_present
from rolecall.errors import ExtractError, RolecallError, UsageError
from rolecall.files.tree import Trees
from rolecall.settings import config, form, yaml12
from rolecall.settings.repository import nearest
from rolecall.settings.settings import EXTRACT_OF_PROJECT, extract_endpoint, keeps_trees
from rolecall.settings.yaml12 import Problem
from rolecall.store.clock import timestamp
from rolecall.store.store import Store
from rolecall.threads.casting import binder, cast
from rolecall.threads.engine import Engine
from rolecall.threads.setup import Cast, Recalled, Watch
from rolecall.workflow import registry
from rolecall.workflow.model import Recall
from rolecall.workflow.playbook import Playbook


def engine(
    store: Store,
    *,
    agent: str | None = None,
    folder: str | None = None,
    watch: Watch = lambda _kind, _body: None,
    tiers: Mapping[str, str] | None = None,
    shares_process: bool = False,
) -> Engine:
    """Return an engine on `store` with the configured agents; `agent`, if given, plays every role. The project file
    around `folder`, where the threads were started, applies. `tiers` are the model tiers of roles that have one.
    `shares_process` means that this process runs other threads as well."""
    settings, environment = config.load(), _for_children(config.environment())
    loaded: dict[str, Playbook] = {}
    hired: dict[tuple[str, str, str], Cast] = {}

    def playbook(node: str) -> Playbook:
        if node not in loaded:
            loaded[node] = registry.load_node(store, node)
        return loaded[node]

    def hire(book: Playbook, role: str) -> Cast:
        """Create each agent only once, because some keep a connection open between steps."""
        key = (book.workflow.name, role, repr(book.bound.get(role) or book.workflow.roles[role].agent))
        if key not in hired:
            made = cast(settings, book, role, override=agent, environment=environment, tiers=tiers)
            check_present(made.agent, env=environment)
            same = (other for other in hired.values() if other == made)
            hired[key] = next(same, made)  # roles with the same agent and options share its connection
        return hired[key]

    async def read_answer(raw: str, schema: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> Any:
        """Load the extract model's configuration only when it is needed, because most answers are parsed without it."""
        endpoint = extract_endpoint(settings_for(folder), environment, overrides)
        if endpoint is None:
            raise ExtractError(
                "the answer carries no output and no model is configured to find it",
                raw=raw,
                hint="Nothing is lost. Configure `extract` to let a model read it, or resume with a word to the agent.",
                is_outage=True,
            )
        from rolecall.threads.extract import Endpoint, extract

        found = await extract(raw, schema, endpoint=Endpoint(**endpoint))
        return found.output, found.usage

    def find_workflow(name: str, folder: str) -> str:
        """Return the id of a workflow by its name. A workflow file of the project is stored first."""
        found = registry.find(store, name, folder=folder)
        return registry.register(store, registry.load_file(found.path)) if found.path else found.node or ""

    async def close() -> None:
        for each in hired.values():
            if hasattr(each.agent, "aclose"):
                await each.agent.aclose()

    return Engine(
        store,
        playbook=playbook,
        cast=hire,
        extract=read_answer,
        can_extract=lambda role: (
            extract_endpoint(settings_for(folder), environment, role.extract) is not None
        ),
        token=lambda: os.urandom(8).hex(),
        environment=environment,
        mask=config.mask(),
        bind=binder(agent),
        find_workflow=find_workflow,
        trees=trees_of(store) if keeps_trees(settings) else None,
        work=config.work_folder(),
        recall=recall,
        close=close,
        watch=watch,
        shares_process=shares_process,
    )


def trees_of(store: Store) -> Trees:
    """The files that the steps of a store found and left."""
    address = store.backend.address
    return Trees(config.trees_folder(address), private=(config.home(), address.removeprefix("files:")))


def _for_children(environment: dict[str, str]) -> dict[str, str]:
    """The environment with absolute paths for home and store, because agents work in other folders."""
    kind, colon, rest = environment.get("ROLECALL_STORE", "").rpartition(":")
    if rest and not rest.startswith("//") and kind in ("", "files", "sqlite"):
        environment["ROLECALL_STORE"] = f"{kind}{colon}{os.path.abspath(rest)}"
    if environment.get("ROLECALL_HOME"):
        environment["ROLECALL_HOME"] = config.home(environment)
    return environment


def settings_for(folder: str | None) -> dict[str, Any]:
    """The configuration, with the extract model from the project file around `folder`."""
    settings = config.load()
    path = nearest("rolecall.yaml", folder) if folder else None
    if path is None:
        return settings
    text = config.read_text(path)
    project = yaml12.load(text, source=path)
    if not isinstance(project, Mapping) or project.get("extract") is None:
        return settings
    section = form.load(EXTRACT_OF_PROJECT, text, source=path, section="extract").checked("rolecall.yaml")
    return {**settings, "extract": section} if section else settings


def load_workflow(
    path: str, *, store: str | None, warn: Callable[[Problem], object] = lambda _: None
) -> Playbook:
    """Load a workflow file for a thread. A workflow in Python is loaded from a copy that does not change, kept for
    the store at the address `store` (None: the configured one)."""
    playbook = registry.load_file(path, warn=warn)
    if not path.endswith(".py"):
        return playbook
    from rolecall.workflow import versions  # brings shutil and tempfile, which a step does without

    return registry.load_file(versions.keep(path, config.versions_folder(store)))


async def recall(wanted: Recall, question: str, folder: str) -> Recalled:
    """Search the repository around a folder, with an index of its current files."""
    from rolecall.knowledge import queries

    try:
        text, notes = await asyncio.to_thread(
            queries.brief, question, folder, now=timestamp(), tokens=wanted.tokens, path=wanted.path
        )
    except RolecallError as error:
        raise UsageError(
            f"the repository's knowledge is not available: {error.message}", hint=error.hint
        ) from error
    return Recalled(text, notes)
