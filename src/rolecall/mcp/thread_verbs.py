"""Implements the tools of workflows and threads as thin wrappers around the library.

The client sees nothing that an agent or a workflow prints: see `stdio.py`. `thread_answer` accepts only the kind of
answer that was asked for, because a text could otherwise influence any role, and an output could replace any agent's.
So it accepts a text only if the thread waits for one, and an output only if a person plays the next role.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import Thread as Background

from rolecall.api import Question, Rolecall, Thread, reader
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.mcp.hints import TOOLS as TOOL_NAMES
from rolecall.mcp.hints import phrase, with_tool
from rolecall.mcp.tools import Cancellation, Place
from rolecall.settings.yaml12 import MAX_BYTES
from rolecall.store.canonical import JsonObject
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import ENDED, Status
from rolecall.workflow import gallery
from rolecall.workflow.registry import Found
from rolecall.workflow.yaml import read_text


@contextmanager
def _found(place: Place, name: str) -> Iterator[Thread]:
    with reader(place.store, folder=place.project) as rolecall:
        if rolecall.store_if_any is None:
            raise NotFound("there are no threads yet", hint="thread_start makes one.")
        yield rolecall.thread(name)


# -- workflows --


def list_workflows(place: Place, _cancel: Cancellation, /) -> JsonObject:
    shown = []
    with reader(place.store, folder=place.project) as rolecall:
        for entry in rolecall.workflow_entries():
            known = {"name": entry.name, "origin": entry.origin, "hash": entry.node, "path": entry.path}
            description = rolecall.describe(entry) or ""
            shown.append({key: value for key, value in known.items() if value} | {"description": description})
        bundled = {entry.name: rolecall.describe(entry) for entry in rolecall.gallery()}
    return {"workflows": shown, "gallery": bundled}


def _find_workflow(place: Place, rolecall: Rolecall, text: str) -> Found:
    """Find a workflow by name, id or file; a client may not read files outside the project."""
    found = rolecall.find_workflow(text)
    inside = os.path.join(os.path.realpath(place.project), "")
    is_ours = found.path is None or gallery.has_file(found.path)
    if not is_ours and not os.path.realpath(str(found.path)).startswith(inside):
        raise UsageError(f"{text} is outside the project", hint="Name a workflow, or a file of the project.")
    return found


def show_workflow(place: Place, _cancel: Cancellation, /, workflow: str) -> JsonObject:
    with reader(place.store, folder=place.project) as rolecall:
        node, path = _find_workflow(place, rolecall, workflow)
        if path is None:
            return {"origin": "global", "hash": node, "workflow": rolecall.workflow(str(node))}
        if not path.endswith(".py"):
            origin = "gallery" if gallery.has_file(path) else "local"
            return {"origin": origin, "path": path, "workflow": rolecall.workflow(path)}
    text = read_text(path)
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"{path!r} is larger than {MAX_BYTES:,} bytes", hint="Read the file in parts.")
    return {"origin": "local", "path": path, "source": text}


# -- threads --


def start_thread(
    place: Place,
    _cancel: Cancellation,
    /,
    workflow: str,
    prompt: str,
    limits: Mapping[str, float] | None = None,
    reuse: bool | None = None,
) -> JsonObject:
    with Rolecall(place.store, folder=place.project) as rolecall:
        found = _find_workflow(place, rolecall, workflow)
        made = rolecall.start(found.path or str(found.node), prompt, limits=limits, reuse=reuse)
        return with_tool(made.entry())


def step_thread(place: Place, cancel: Cancellation, /, thread: str) -> JsonObject:
    with _found(place, thread) as found:
        run = found.run(steps=1)
        # In a separate thread, because stopping waits for the agent and must not block reading cancellations.
        cancel.on_set(Background(target=run.stop, daemon=True).start)
        run.wait()
        return with_tool(found.entry())


def show_thread(place: Place, _cancel: Cancellation, /, thread: str) -> JsonObject:
    with _found(place, thread) as found:
        return with_tool(found.summary())


def read_thread(
    place: Place, _cancel: Cancellation, /, thread: str, quota: int = 10_000, before: str | None = None
) -> JsonObject:
    with _found(place, thread) as found:
        return found.read_page(max_chars=quota, before=before, phrase=phrase)


def list_threads(
    place: Place,
    _cancel: Cancellation,
    /,
    status: Sequence[str] = (),
    workflow: str | None = None,
    text: str = "",
    limit: int = 20,
    page: str | None = None,
    members: bool = False,
) -> JsonObject:
    with reader(place.store, folder=place.project) as rolecall:
        found = rolecall.entries(
            status=status or sorted(set(Status) - set(ENDED)),
            workflow=workflow,
            text=text,
            after=page,
            members=members,
        )
        entries = [with_tool(entry) for entry in islice(found, limit + 1)]
    rest = {"page": entries[limit - 1]["thread"]} if len(entries) > limit else {}
    return {"threads": entries[:limit], **rest}


# -- answering --


def answer_thread(
    place: Place,
    _cancel: Cancellation,
    /,
    thread: str,
    text: str | None = None,
    output: JsonObject | None = None,
    body: str | None = None,
) -> JsonObject:
    """Show the question if no answer is given; otherwise add the answer to the thread."""
    given = "text" if text is not None else "output" if output is not None else None
    if text is not None and output is not None:
        raise UsageError(
            "an answer is a text or an output, not both",
            hint="Called with the thread alone, thread_answer shows which.",
        )
    if body is not None and given != "output":
        raise UsageError(
            "a body goes with an output, which is missing", hint="Give `output` too, or a `text` instead."
        )
    with Rolecall(place.store, folder=place.project, create=False) as rolecall:
        found = rolecall.thread(thread)
        question = found.question()
        takes = _takes(found, question)
        if given is None:
            shown = {**with_tool(found.entry()), "takes": takes}
            if takes == "output" and question.due and question.role:
                shown["task"], shown["instruction"] = question.task, question.due.prompt
                shown["goal"], shown["schema"] = question.role.prompt, dict(question.role.schema)
            return shown
        if given != takes:
            raise _refusal(found, question, given, takes)
        if output is None:
            found.resume(text, by={"door": "mcp"})
        else:
            found.answer(output, body or "", by={"door": "mcp"})
        return with_tool(found.entry())


def _takes(found: Thread, question: Question) -> str | None:
    """The kind of answer a thread waits for, `text` or `output`; None if it waits for none."""
    onward = found.continuation
    if found.state.status == Status.RUNNING or onward is None:
        return None
    if question.due is not None:
        try:
            if found.agent_of(question.due.role) == HUMAN:
                return "output"
        except RolecallError:
            pass  # a missing agent is reported by the step; a person is never missing
    return "text" if TOOL_NAMES.get(onward.code) == "thread_answer" else None


def _refusal(found: Thread, question: Question, given: str, takes: str | None) -> UsageError:
    articles = {"text": "a text", "output": "an output"}
    if takes is not None:
        return UsageError(
            f"thread {found.id} waits for {articles[takes]}, not for {articles[given]}",
            hint="Called with the thread alone, thread_answer shows what is asked.",
        )
    why = f": {found.reason}" if found.reason else ""
    if question.due and not why:
        why = f", and {question.due.role} is not played by a person"
    status = found.status
    return UsageError(f"thread {found.id} asks nothing: it is {status}{why}", hint=_ONWARD.get(status, ""))


_ONWARD = {
    "idle": "thread_step continues it.",
    "crashed": "thread_step continues it.",
    "running": "thread_show shows its status.",
    "suspended": "Ask the user: no tool raises a limit.",
    "waiting": "It waits for the members of its group: thread_list with `members` shows them.",
}
"""Advice for a thread that asks nothing, by its status."""
