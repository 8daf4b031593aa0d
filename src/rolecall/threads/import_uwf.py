"""Import threads from a folder of the predecessor (`uwf`): nodes unchanged, threads as threads of Rolecall.

`rolecall.threads.thread` reads the steps of uwf under Rolecall's field names, so nothing is rewritten and every id
stays the same. Facts that a listing needs but uwf's files lack, such as a title or the number of steps, are computed
from the chain once, during the import. Importing again adds only what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from rolecall.errors import Hint, NotFound, RolecallError, UsageError
from rolecall.settings import config, config_file
from rolecall.settings.settings import key_of, problems
from rolecall.store.bundle import import_from
from rolecall.store.files import FilesBackend
from rolecall.store.store import Draft, Store
from rolecall.store.verify import Fault
from rolecall.threads import thread
from rolecall.threads.state import ThreadRef, add, move, read_thread, read_threads
from rolecall.threads.thread import Chain
from rolecall.threads.views import role_due


class UnreadThread(NamedTuple):
    """A thread or a workflow whose nodes are missing or damaged."""

    name: str
    reason: str


class Imported(NamedTuple):
    threads: list[str]
    """Threads that are new in this store, or that have new steps in the imported folder."""
    workflows: list[str]
    nodes: int
    kept: list[str]
    """Threads and workflows that differ in this store and were left unchanged."""
    unread: list[UnreadThread]
    problems: list[Fault]
    """Problems with individual nodes."""


def import_threads(
    store: Store,
    folder: str,
    *,
    cas: str | None = None,
    keep_going: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Imported:
    """Import every thread and workflow of `folder`. `cas` names a separate folder of nodes, because the predecessor
    keeps nodes outside `folder` by default."""
    for place in filter(None, (folder, cas)):
        if not os.path.isdir(place):
            raise NotFound(f"there is no folder {place!r}")
    # uwf's command line and its agents may have written nodes to different folders; both folders are needed.
    found = [place for place in (cas, os.path.join(folder, "cas")) if place and os.path.isdir(place)]
    if not found:
        raise UsageError(
            f"there are no nodes in {folder!r}",
            hint=Hint("uwf keeps them in ~/.uncaged/json-cas by default; name their folder", "name_cas"),
        )
    done = Imported([], [], 0, [], [], [])
    places = list(dict.fromkeys(os.path.realpath(place) for place in found))
    for place in places:
        copied = import_from(store, place, keep_going=keep_going, progress=progress)
        done = done._replace(nodes=done.nodes + copied.nodes)
        done.problems.extend(copied.problems)
    with Store(FilesBackend(folder, create=False, cas=places[0])) as source:
        draft = store.draft()
        for named in source.refs("workflow/"):
            if (present := store.ref(named.name)) is not None:
                done.kept.extend([named.name] if present.target != named.target else [])
                continue
            try:
                store.get(named.target or "")
                draft.move(named.name, None, named.target, dict(named.state))
                done.workflows.append(named.name[9:])
            except RolecallError as error:
                done.unread.append(UnreadThread(named.name, error.message))
        for ref in read_threads(source):
            try:
                _import_thread(store, draft, ref, done)
            except RolecallError as error:
                done.unread.append(UnreadThread(ref.ref.name, error.message))
        draft.commit(durable=True)
    return done


def _import_thread(store: Store, draft: Draft, ref: ThreadRef, done: Imported) -> None:
    chain = Chain(store, ref.head)
    state = ref.state.move_to(ref.state.status, **thread.facts_of(store, chain))
    if state.has_ended:
        state = state._replace(ended_at=ref.ref.updated)
    else:
        state = state._replace(role=role_due(store, ref, chain))
    present = read_thread(store, ref.id)
    if present is not None:
        if present.head == ref.head and present.state.status == state.status:
            return
        # A thread that has new steps only in the imported folder is updated; steps taken in this store are never
        # undone.
        leads_to = chain.start.id == present.head or any(step.id == present.head for step in chain)
        if present.state.imported != present.ref.version or not leads_to:
            done.kept.append(ref.ref.name)
            return
    draft.event(ref.id, "imported", {"head": ref.head})
    if present is None:
        add(draft, ref.id, ref.head, state._replace(imported=1))
    else:
        move(draft, present, state._replace(imported=present.ref.version + 1), head=ref.head)
    done.threads.append(ref.id)


# -- the configuration --

CONFIG = "config.yaml"
_NAMED = ("providers", "models", "agents", "agentOverrides", "modelOverrides")
_SINGLE = ("defaultAgent", "defaultModel")


class TakenConfig(NamedTuple):
    taken: list[str]
    """Settings and `.env` variables that were imported, because they were not set here."""
    kept: list[str]
    """Settings and `.env` variables that were not imported, because they have a different value here."""
    refused: list[str]
    """Keys that are not settings of Rolecall, or whose values have the wrong shape."""


def has_config(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, CONFIG))


def take_config(folder: str) -> TakenConfig:
    """Import those settings of `folder` that are not set here, including the keys of providers."""
    file = os.path.join(folder, CONFIG)
    written = config.read_text(file)
    theirs = config.parse(written, file)
    entries: dict[tuple[str, ...], Any] = {(key,): theirs[key] for key in _SINGLE if theirs.get(key)}
    for section in _NAMED:
        named = theirs.get(section)
        entries |= {(section, name): named[name] for name in named} if isinstance(named, dict) else {}
    done = TakenConfig([], [], [])

    def edit(text: str) -> str:
        ours = config.parse(text, config.config_path())
        for path, value in entries.items():
            present = ours.get(path[0]) if len(path) == 1 else (ours.get(path[0]) or {}).get(path[1])
            as_written = {path[0]: value if len(path) == 1 else {path[1]: value}}
            if present is not None:
                done.kept.extend([key_of(path)] if present != value else [])
            elif found := problems(as_written, written, source=file):
                done.refused.extend(f"{problem.place}: {problem.text}" for problem in found)
            else:
                text = config_file.with_value(text, path, value, source=config.config_path())
                done.taken.append(key_of(path))
        return text

    def add_variables(text: str) -> str:
        known = config.env_file()
        for name, value in config.variables_in(os.path.join(folder, ".env")).items():
            if name not in known:
                text = config_file.with_variable(text, name, value)
                done.taken.append(f".env {name}")
            elif known[name] != value:
                done.kept.append(f".env {name}")
        return text

    config_file.change(config.config_path(), edit)
    config_file.change(os.path.join(config.home(), ".env"), add_variables)
    return done
