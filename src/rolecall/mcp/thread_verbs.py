"""Implements the tools of workflows and threads as thin wrappers around the library.

The client sees nothing that an agent or a workflow prints: see `stdio.py`. `thread_answer` accepts only the kind of
answer that was asked for, because a text could otherwise influence any role, and an output could replace any agent's.
So it accepts a text only if the thread waits for one, and an output only if a person plays the next role.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from threading import Thread as Background
from typing import Any, NamedTuple

from rolecall.api import Rolecall, Thread
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.mcp.hints import TOOLS as TOOL_NAMES
from rolecall.mcp.hints import phrase, with_tool
from rolecall.mcp.tools import Cancel, Place
from rolecall.settings import config
from rolecall.settings.stores import store_if_any
from rolecall.settings.yaml12 import MAX_BYTES
from rolecall.store.store import Store
from rolecall.threads import casting, thread, views
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import ENDED, Status
from rolecall.threads.turn import Turn, next_of
from rolecall.workflow import registry
from rolecall.workflow.document import to_document
from rolecall.workflow.registry import Found
from rolecall.workflow.route import Next
from rolecall.workflow.yaml import load_file, read_text

_PAGE = 20
_QUOTA = 10_000


@contextmanager
def _reading(place: Place) -> Iterator[Store | None]:
    """Open the store for a tool that only reads; yield None, without creating one, before the first thread."""
    store = store_if_any(place.store)
    try:
        yield store
    finally:
        if store is not None:
            store.close()


@contextmanager
def _found(place: Place, name: str) -> Iterator[Thread]:
    try:
        rolecall = Rolecall(place.store, folder=place.project, create=False)
    except NotFound:
        if place.store is not None:
            raise
        raise NotFound("there are no threads yet", hint="thread_start makes one.") from None
    with rolecall:
        yield rolecall.thread(name)


# -- workflows --


def list_workflows(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    shown = []
    with _reading(place) as store:
        for entry in registry.listed(store, folder=place.project):
            description = ""
            try:
                if store is not None and entry.node is not None:
                    node = registry.workflow_node(store, entry.node)
                    description = str(node.payload.get("description", ""))
                elif entry.path is not None and not entry.path.endswith(".py"):  # listing must not run code
                    workflow = load_file(entry.path).workflow
                    description = workflow.description if workflow else "(does not validate)"
            except RolecallError as error:  # an unreadable workflow does not hide the others
                description = f"({error.message})"
            known = {"name": entry.name, "origin": entry.origin, "hash": entry.node, "path": entry.path}
            shown.append(
                {**{key: value for key, value in known.items() if value}, "description": description}
            )
    return {"workflows": shown}


def _find_workflow(place: Place, store: Store | None, text: str) -> Found:
    """Find a workflow by name, id or file; a client may not read files outside the project."""
    found = registry.find(store, text, folder=place.project)
    inside = os.path.join(os.path.realpath(place.project), "")
    if found.path is not None and not os.path.realpath(found.path).startswith(inside):
        raise UsageError(
            f"{text} lies outside the project", hint="Name a workflow, or a file of the project."
        )
    return found


def show_workflow(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    with _reading(place) as store:
        found = _find_workflow(place, store, arguments["workflow"])
        if found.path is not None and found.path.endswith(".py"):
            text = read_text(found.path)
            if len(text.encode()) > MAX_BYTES:
                raise UsageError(
                    f"{found.path!r} is larger than {MAX_BYTES:,} bytes", hint="Read the file in parts."
                )
            return {"origin": "local", "path": found.path, "source": text}
        if found.path is not None:
            workflow = registry.load_file(found.path).workflow
            return {"origin": "local", "path": found.path, "workflow": to_document(workflow)}
        if store is None or found.node is None:
            raise NotFound(f"there is no workflow {arguments['workflow']!r}")
        workflow = registry.read_node(store, found.node)[0]
        return {"origin": "global", "hash": found.node, "workflow": to_document(workflow)}


# -- threads --


def start_thread(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    with Rolecall(place.store, folder=place.project) as rolecall:
        found = _find_workflow(place, rolecall.store, arguments["workflow"])
        limits = arguments.get("limits") or {}
        made = rolecall.start(found.path or found.node or "", arguments["prompt"], limits=limits)
        return with_tool(made.entry())


def step_thread(place: Place, arguments: dict[str, Any], cancel: Cancel) -> dict[str, Any]:
    with _found(place, arguments["thread"]) as found:
        run = found.run(steps=1)
        # In a separate thread, because stopping waits for the agent and must not block reading cancellations.
        cancel.on_set(Background(target=run.stop, daemon=True).start)
        run.wait()
        return with_tool(found.entry())


def show_thread(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    with _found(place, arguments["thread"]) as found:
        return with_tool(found.summary())


def read_thread(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    before = arguments.get("before")
    with _reading(place) as store:
        if store is None:
            raise NotFound("there are no threads yet", hint="thread_start makes one.")
        return views.read(
            store,
            thread.find(store, arguments["thread"]),
            quota=arguments.get("quota", _QUOTA),
            before=before,
            with_start=before is None,
            phrase=phrase,
        )


def list_threads(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    limit = arguments.get("limit", _PAGE)
    try:
        rolecall = Rolecall(place.store, folder=place.project, create=False)
    except NotFound:
        if place.store is not None:
            raise
        return {"threads": []}
    with rolecall:
        found = rolecall.threads(
            status=arguments.get("status") or sorted(set(Status) - set(ENDED)),
            workflow=arguments.get("workflow"),
            text=arguments.get("text", ""),
            after=arguments.get("page"),
            members=arguments.get("members", False),
        )
        entries = [with_tool(one.entry()) for one in islice(found, limit + 1)]
    page = {"page": entries[limit - 1]["thread"]} if len(entries) > limit else {}
    return {"threads": entries[:limit], **page}


# -- answering --


class _Question(NamedTuple):
    """The next role of a thread, and the kind of answer it waits for."""

    turn: Turn
    due: Next | None
    takes: str | None
    """`text` or `output`; None if no answer is expected."""


def answer_thread(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    """Show the question if no answer is given; otherwise add the answer to the thread."""
    given = next((kind for kind in ("text", "output") if kind in arguments), None)
    if "text" in arguments and "output" in arguments:
        raise UsageError(
            "an answer is a text or an output, not both",
            hint="Called with the thread alone, thread_answer shows which.",
        )
    if "body" in arguments and given != "output":
        raise UsageError(
            "a body goes with an output, and there is none", hint="Give `output` too, or a `text` instead."
        )
    with Rolecall(place.store, folder=place.project, create=False) as rolecall:
        found = rolecall.thread(arguments["thread"])
        question = _read_question(rolecall.store, found)
        if given is None:
            return _show_question(found, question)
        _check_takes(found, question, given)
        if given == "text":
            found.resume(arguments["text"])
        else:
            found.answer(arguments["output"], arguments.get("body", ""))
        return with_tool(found.entry())


def _read_question(store: Store, found: Thread) -> _Question:
    chain = thread.Chain(store, thread.find(store, found.id).head)
    turn = Turn(found.id, chain, registry.load_node(store, chain.start.workflow))
    way = next_of(turn)
    due = way if isinstance(way, Next) else None
    onward, state = found.continuation, found.state
    if state.status == Status.RUNNING or onward is None:
        return _Question(turn, due, None)
    if due is not None and due.role not in turn.playbook.functions:
        try:
            book = replace(turn.playbook, bound=state.agents)
            if casting.cast(config.load(), book, due.role, override=state.agent).name == HUMAN:
                return _Question(turn, due, "output")
        except RolecallError:
            pass  # a missing agent is reported by the step; a person is never missing
    return _Question(turn, due, "text" if TOOL_NAMES.get(onward.code) == "thread_answer" else None)


def _check_takes(found: Thread, question: _Question, given: str) -> None:
    articles = {"text": "a text", "output": "an output"}
    if given == question.takes:
        return
    if question.takes is not None:
        raise UsageError(
            f"thread {found.id} waits for {articles[question.takes]}, not for {articles[given]}",
            hint="Called with the thread alone, thread_answer shows what is asked.",
        )
    why = f": {found.reason}" if found.reason else ""
    if question.due and not why:
        why = f", and {question.due.role} is played by no person"
    status = found.status
    raise UsageError(f"thread {found.id} asks nothing: it is {status}{why}", hint=_ONWARD.get(status, ""))


_ONWARD = {
    "idle": "thread_step lets it go on.",
    "crashed": "thread_step lets it go on.",
    "running": "thread_show tells how it stands.",
    "suspended": "Ask the user: no tool raises a limit.",
    "waiting": "It waits for the members of its group: thread_list with `members` shows them.",
}
"""Advice for a thread that asks nothing, by its status."""


def _show_question(found: Thread, question: _Question) -> dict[str, Any]:
    """Return the thread, the kind of answer it takes, and for an output the role's task and schema."""
    shown = {**with_tool(found.entry()), "takes": question.takes}
    if question.takes != "output" or question.due is None:
        return shown
    role = question.turn.role(question.due.role)
    return {
        **shown,
        "task": question.turn.task,
        "instruction": question.due.prompt,
        "goal": role.prompt,
        "schema": dict(role.schema),
    }
