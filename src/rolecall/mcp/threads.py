"""Workflows and threads as tools: thin wrappers over the verbs of the library.

Nothing of what an agent or a workflow prints comes near the client: see `stdio.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any

from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.mcp import hints
from rolecall.mcp.answer import thread_answer
from rolecall.mcp.protocol import Cancel
from rolecall.mcp.tools import Place, checked_tool

if TYPE_CHECKING:
    from rolecall.store.store import Store
    from rolecall.threads.state import ThreadRef
    from rolecall.workflow.registry import Entry, Found

_PAGE = 20
_QUOTA = 10_000


# -- workflows --


def _workflow_list(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    from rolecall.workflow import registry

    with _Reading(place) as store:
        entries = registry.listed(store, folder=place.project)
        return {"workflows": [_listed(store, entry) for entry in entries]}


def _listed(store: Store | None, entry: Entry) -> dict[str, Any]:
    known = {"name": entry.name, "origin": entry.origin, "hash": entry.node, "path": entry.path}
    try:
        description = _description(store, entry)
    except RolecallError as error:  # one that cannot be read does not hide the others
        description = f"({error.message})"
    return {**{key: value for key, value in known.items() if value}, "description": description}


def _description(store: Store | None, entry: Entry) -> str:
    if store is not None and entry.node is not None:
        from rolecall.workflow.registry import workflow_node

        return str(workflow_node(store, entry.node).payload.get("description", ""))
    if entry.path is None or entry.path.endswith(".py"):  # listing runs nobody's code
        return ""
    from rolecall.workflow.yaml import load_file

    workflow = load_file(entry.path).workflow
    return workflow.description if workflow else "(does not validate)"


def _workflow(place: Place, store: Store | None, text: str) -> Found:
    """A workflow by name, id or file; a client may not look at files outside the project."""
    from rolecall.workflow import registry

    found = registry.find(store, text, folder=place.project)
    inside = os.path.join(os.path.realpath(place.project), "")
    if found.path is not None and not os.path.realpath(found.path).startswith(inside):
        raise UsageError(
            f"{text} lies outside the project", hint="Name a workflow, or a file of the project."
        )
    return found


def _workflow_show(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    from rolecall.workflow import registry
    from rolecall.workflow.document import to_document

    with _Reading(place) as store:
        found = _workflow(place, store, arguments["workflow"])
        if found.path is not None and found.path.endswith(".py"):
            return {"origin": "local", "path": found.path, "source": _source(found.path)}
        if found.path is not None:
            workflow = registry.load_file(found.path).workflow
            return {"origin": "local", "path": found.path, "workflow": to_document(workflow)}
        if store is None or found.node is None:
            raise NotFound(f"there is no workflow {arguments['workflow']!r}")
        workflow = registry.read_node(store, found.node)[0]
        return {"origin": "global", "hash": found.node, "workflow": to_document(workflow)}


def _source(path: str) -> str:
    from rolecall.settings.yaml12 import MAX_BYTES
    from rolecall.workflow.yaml import read_text

    text = read_text(path)
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"{path!r} is larger than {MAX_BYTES:,} bytes", hint="Read the file in parts.")
    return text


# -- threads --


def _thread_start(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    from rolecall.settings import config
    from rolecall.threads import lifecycle, views, workspace
    from rolecall.workflow import registry

    limits = arguments.get("limits") or {}
    with workspace.open_store(place.store) as store:
        found = _workflow(place, store, arguments["workflow"])
        book = registry.load_file(found.path) if found.path else registry.load_node(store, found.node or "")
        _check_limits(limits, book.workflow.roles)
        ref = lifecycle.start(
            store,
            found.node or book,
            arguments["prompt"],
            cwd=place.project,
            mask=workspace.mask(),
            limits=limits,
            bind=workspace.binder(),
            work=config.work_folder(),
        )
        return hints.with_tool(views.entry(store, ref))


def _check_limits(limits: Mapping[str, float], roles: Mapping[str, Any]) -> None:
    from rolecall.threads.thread import LIMITS

    for name in limits:
        role, _, kind = name.rpartition(".")
        if kind not in LIMITS or (role and role not in roles):
            raise UsageError(
                f"there is no limit {name!r}",
                hint=f"Limits are {', '.join(LIMITS)}, of one role ROLE.steps; roles: {', '.join(roles)}.",
            )


def _thread_step(place: Place, arguments: dict[str, Any], cancel: Cancel) -> dict[str, Any]:
    from rolecall.api import Rolecall
    from rolecall.threads import views

    with _Reading(place) as store:
        ident = _ident(_found(store, arguments["thread"]))
    with Rolecall(place.store, folder=place.project) as rolecall:
        run = rolecall.thread(ident).run(steps=1)
        # Stopping waits for the agent, and the thread that reads cancellations must not.
        cancel.on_set(Thread(target=run.stop, daemon=True).start)
        run.wait()
        return hints.with_tool(views.entry(rolecall.store, _found(rolecall.store, ident)))


def _thread_show(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    from rolecall.threads import views

    with _Reading(place) as store:
        ref = _found(store, arguments["thread"])
        return hints.with_tool(views.card(_there(store), ref))


def _thread_read(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    from rolecall.threads import views

    before = arguments.get("before")
    with _Reading(place) as store:
        ref = _found(store, arguments["thread"])
        quota = arguments.get("quota", _QUOTA)
        return views.read(
            _there(store), ref, quota=quota, before=before, with_start=before is None, phrase=hints.phrase
        )


def _thread_list(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    from itertools import islice

    from rolecall.threads import listing, thread

    going_on = {*thread.STATUSES, "crashed", "damaged"} - set(thread.ENDED)
    statuses = frozenset(arguments.get("status") or going_on)
    words = tuple(arguments.get("text", "").lower().split())
    asked = listing.Filter(statuses, arguments.get("workflow"), 0, None, words)
    limit = arguments.get("limit", _PAGE)
    with _Reading(place) as store:
        if store is None:
            return {"threads": []}
        found = list(islice(listing.listed(store, asked, page=arguments.get("page")), limit + 1))
    page = {"page": found[limit - 1]["thread"]} if len(found) > limit else {}
    return {"threads": [hints.with_tool(one) for one in found[:limit]], **page}


# -- the store --


class _Reading:
    """The store for a verb that only reads: None where none has been made yet, and none is made."""

    def __init__(self, place: Place) -> None:
        from rolecall.threads.workspace import open_store

        try:
            self._store: Store | None = open_store(place.store, create=False)
        except NotFound:
            if place.store is not None:
                raise
            self._store = None

    def __enter__(self) -> Store | None:
        return self._store

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()


def _found(store: Store | None, text: str) -> ThreadRef:
    from rolecall.threads import thread

    return thread.find(_there(store), text)


def _there(store: Store | None) -> Store:
    if store is None:
        raise NotFound("there are no threads yet", hint="thread_start makes one.")
    return store


def _ident(ref: ThreadRef) -> str:
    from rolecall.threads.thread import id_of

    return id_of(ref)


# -- the table --

_THREAD = {"thread": {"type": "string", "description": "Id of the thread, or an unambiguous part of it."}}
_WORKFLOW = {"workflow": {"type": "string", "description": "Name, path or id of the workflow."}}
_STATUSES = [
    *("queued", "idle", "running", "crashed", "suspended", "completed", "failed", "killed", "discarded"),
    "damaged",
]


_RUNS_AGENTS: dict[str, Any] = {"is_for_lead": True, "starts_threads": True, "reaches_out": True}
"""A thread's agents have restrictions of their own: whoever is restricted must not have them act instead."""


TOOLS = (
    checked_tool(
        "workflow_list", _workflow_list, "List the workflows that can be started here, with what they do.", {}
    ),
    checked_tool(
        "workflow_show",
        _workflow_show,
        "Show a workflow: its roles, what each has to give, and who comes after whom.",
        _WORKFLOW,
    ),
    checked_tool(
        "thread_start",
        _thread_start,
        "Make a thread of a workflow in the project's folder. Nothing is run yet: thread_step does that.",
        _WORKFLOW | {"prompt": {"type": "string", "description": "The task."}},
        {
            "limits": {
                "type": "object",
                "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
                "description": "Suspend the thread at this much: steps, turns, tokens, cost, minutes, "
                "or of one role ROLE.steps.",
            }
        },
        effect="adds",
        **_RUNS_AGENTS,
    ),
    checked_tool(
        "thread_step",
        _thread_step,
        "Take one step of a thread: the agent of the role that is due works, which may take minutes. "
        "Cancelling the call stops the agent; the thread stays where it was and can be stepped again.",
        _THREAD,
        effect="changes",
        is_long=True,
        **_RUNS_AGENTS,
    ),
    checked_tool(
        "thread_show",
        _thread_show,
        "Show how a thread stands: status, role that is due, limits, what it has used.",
        _THREAD,
    ),
    checked_tool(
        "thread_read",
        _thread_read,
        "Read what a thread's roles did, as Markdown: the newest steps that fit.",
        _THREAD,
        {
            "quota": {"type": "integer", "minimum": 1, "description": "Characters, 10000 when not given."},
            "before": {"type": "string", "description": "Only steps before this one; the reply names it."},
        },
    ),
    checked_tool(
        "thread_list",
        _thread_list,
        "List threads, the newest first.",
        {},
        {
            "status": {
                "type": "array",
                "items": {"enum": _STATUSES},
                "description": "Only these; when not given, those that have not ended.",
            },
            "workflow": {"type": "string", "description": "Only threads of this workflow."},
            "text": {"type": "string", "description": "Only threads whose title has these words."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 200, "description": "20 when not given."},
            "page": {"type": "string", "description": "Go on after this thread; the reply names it."},
        },
    ),
    checked_tool(
        "thread_answer",
        thread_answer,
        "See what a thread asks a person, or answer it. With the thread alone, the reply says in `takes` which of "
        "the two it waits for: a `text`, or the `output` of a role that a person plays. Nothing is run.",
        _THREAD,
        {
            "text": {
                "type": "string",
                "description": "The answer to the question of a suspended thread, or a word to the role that failed; "
                "empty to let that one try again.",
            },
            "output": {"type": "object", "description": "The role's output, as its schema wants it."},
            "body": {"type": "string", "description": "Free text that goes with the output."},
        },
        effect="adds",
        **_RUNS_AGENTS,
    ),
)
