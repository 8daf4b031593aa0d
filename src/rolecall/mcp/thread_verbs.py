"""The functions behind the tools for workflows and threads: thin wrappers around the library.

A model reads every reply, so replies are small: ids, status, the beginning of the result, and the tool that shows more.
With `detail`, replies contain everything.

The client sees nothing that an agent or a workflow prints: see `stdio.py`. `thread_answer` accepts a text only if the
thread waits for a text, and an output only if a person plays the next role. Otherwise a text could influence any role,
and an output could take the place of any agent's answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from threading import Event as Signal
from threading import Thread as Background
from time import monotonic

from rolecall.api import Event, Project, Question, Rolecall, Run, Thread, reader
from rolecall.errors import NotFound, UsageError
from rolecall.mcp.hints import TOOLS as TOOL_NAMES
from rolecall.mcp.hints import phrase, with_tool
from rolecall.mcp.tools import Caller, ToolContext, encode
from rolecall.service.runner import ThreadRunner
from rolecall.settings import config
from rolecall.settings.yaml12 import MAX_BYTES
from rolecall.store.canonical import JsonObject
from rolecall.threads.report import shorten
from rolecall.threads.state import ENDED, Status
from rolecall.workflow import gallery
from rolecall.workflow.registry import Found
from rolecall.workflow.yaml import read_text

_BRIEF = (
    *("thread", "status", "name", "title", "currentRole", "reason", "steps", "updated", "until"),
    *("parent", "member"),
)
_LONGEST_FIELD = 300
_LONGEST_OUTPUT = 1_500
_LONGEST_TEXT = 600
_MOST_FILES = 10
_GLANCE = 0.5
"""Seconds between two looks at a thread that another process runs."""
_MORE = "thread_read shows what its roles did, thread_show with `detail` everything else"


@contextmanager
def find_thread(place: ToolContext, name: str) -> Iterator[Thread]:
    with reader(place.store, folder=place.project) as rolecall:
        if rolecall.store_if_any is None:
            raise NotFound("there are no threads yet", hint="thread_start makes one.")
        yield rolecall.thread(name)


# -- workflows --


def list_workflows(place: ToolContext, _caller: Caller, /, detail: bool = False) -> JsonObject:
    shown = []
    with reader(place.store, folder=place.project) as rolecall:
        for entry in rolecall.workflow_entries():
            more = {"id": entry.node, "path": entry.path} if detail else {}
            known = {"name": entry.name, "origin": entry.origin, **more}
            description = rolecall.describe(entry) or ""
            shown.append({key: value for key, value in known.items() if value} | {"description": description})
        bundled = {entry.name: rolecall.describe(entry) for entry in rolecall.gallery()}
    return {"workflows": shown, "gallery": bundled}


def _find_workflow(place: ToolContext, rolecall: Rolecall, text: str) -> Found:
    """Find a workflow by its name, its id or its file. A file must be in the project or the gallery."""
    found = rolecall.find_workflow(text)
    inside = os.path.join(os.path.realpath(place.project), "")
    is_ours = found.path is None or gallery.has_file(found.path)
    if not is_ours and not os.path.realpath(str(found.path)).startswith(inside):
        raise UsageError(f"{text} is outside the project", hint="Name a workflow, or a file of the project.")
    return found


def show_workflow(place: ToolContext, _caller: Caller, /, workflow: str, detail: bool = False) -> JsonObject:
    with reader(place.store, folder=place.project) as rolecall:
        node, path = _find_workflow(place, rolecall, workflow)
        if path is None or not path.endswith(".py"):
            shown = dict(rolecall.workflow(path or str(node)))
            if not detail:  # leave out the prompts and schemas of the roles
                roles = shown.get("roles", {})
                shown = {
                    key: shown[key] for key in ("name", "description", "graph", "limits") if key in shown
                }
                shown["roles"] = {
                    name: {key: role[key] for key in ("description", "agent") if role.get(key)}
                    for name, role in roles.items()
                }
                shown["more"] = "with `detail`: the instructions of each role, and what it must deliver"
            if path is None:
                return {"origin": "global", "id": node, "workflow": shown}
            origin = "gallery" if gallery.has_file(path) else "local"
            return {"origin": origin, "path": path, "workflow": shown}
    text = read_text(path)
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"{path!r} is larger than {MAX_BYTES:,} bytes", hint="Read the file in parts.")
    return {"origin": "local", "path": path, "source": text}


# -- threads --


def start_thread(
    place: ToolContext,
    _caller: Caller,
    /,
    workflow: str,
    prompt: str,
    limits: Mapping[str, float] | None = None,
    reuse: bool | None = None,
) -> JsonObject:
    with Rolecall(place.store, folder=place.project) as rolecall:
        found = _find_workflow(place, rolecall, workflow)
        made = rolecall.start(found.path or str(found.node), prompt, limits=limits, reuse=reuse)
        return _brief(made.entry())


def run_workflow(
    place: ToolContext,
    caller: Caller,
    /,
    workflow: str,
    prompt: str,
    limits: Mapping[str, float] | None = None,
    reuse: bool | None = None,
    wait: bool = True,
    detail: bool = False,
) -> JsonObject:
    with Rolecall(place.store, folder=place.project) as rolecall:
        found = _find_workflow(place, rolecall, workflow)
        loaded = rolecall.load_workflow(found.path or str(found.node))
        for _, error in rolecall.missing_agents(loaded.playbook):
            raise error
        made = rolecall.start(loaded, prompt, limits=limits, reuse=reuse)
        caller.tell(f"thread {made.id}")
        return _run(place, caller, made, wait=wait, detail=detail)


def run_thread(
    place: ToolContext, caller: Caller, /, thread: str, wait: bool = True, detail: bool = False
) -> JsonObject:
    with find_thread(place, thread) as found:
        return _run(place, caller, found, wait=wait, detail=detail)


def _run(place: ToolContext, caller: Caller, thread: Thread, *, wait: bool, detail: bool) -> JsonObject:
    """Run a thread here and report its progress. Without `wait`, hand the thread over to the service or to a process of
    its own."""
    if not wait:
        # Record the thread before it runs, because the thread can end at once.
        project = Project(place.project)
        project.notify_host(thread.id, config.full_store_address(place.store))
        assigned = _runner(place).carry_on(thread)
        shown = {**_brief(thread.entry()), "runs": assigned.runs}
        if assigned.runs == "nobody":
            project.cancel_notice(thread.id)
            return {**shown, **({"problem": assigned.problem} if assigned.problem else {})}
        return {
            **shown,
            "more": "It continues in the background, even after this session. thread_wait waits for its end",
        }
    _follow(caller, thread.run())
    return _show(thread, detail=detail)


def _follow(caller: Caller, run: Run) -> None:
    # The run is stopped in a separate thread, because stopping waits for the agent, and cancellations must still be
    # read meanwhile.
    caller.on_set(Background(target=run.stop, daemon=True).start)
    for event in run:
        if message := _word(event):
            caller.tell(message)


@cache
def _runner(place: ToolContext) -> ThreadRunner:
    address, project = config.full_store_address(place.store), Project(place.project)
    return ThreadRunner(
        place.store,
        tell=lambda thread, problem: project.notify_host(thread, address, problem=problem),
    )


def _word(event: Event) -> str:
    """Return the text of a progress notification about an event, or an empty text for an event that a host need not
    show."""
    body = event.body
    match event.kind:
        case "step_started":
            return f"step {body.get('number')}: {body.get('role')} begins ({body.get('agent')})"
        case "step":
            onward = f"{body['next']} is next" if body.get("next") else f"the thread is {body.get('status')}"
            return f"{body.get('role')} has answered; {onward}"
        case "tool_call":
            return f"uses {body.get('name')}"
        case "group":
            return f"{body.get('role')} is played by a group"
        case "suspended" | "attempt_failed" | "waits":
            return f"{event.kind.replace('_', ' ')}: {body.get('reason') or body.get('error') or ''}"
    return ""


def wait_for_thread(
    place: ToolContext, caller: Caller, /, thread: str, seconds: int = 600, detail: bool = False
) -> JsonObject:
    """Wait until no process runs a thread any more, or until the time is over."""
    with find_thread(place, thread) as found:
        cancelled, until, events = Signal(), monotonic() + seconds, found.tail()
        caller.on_set(cancelled.set)
        while True:
            # Read the state before the events, so that the events include everything that led to this state.
            problem = _runner(place).problems.get(found.id)
            is_over = bool(problem) or found.has_ended or found.needs_person or found.status == "crashed"
            while event := next(events):
                if message := _word(event):
                    caller.tell(message)
            if is_over or cancelled.is_set() or monotonic() >= until:
                break
            cancelled.wait(min(_GLANCE, max(0.0, until - monotonic())))
        if is_over and place.agent is None and not place.restrictions:
            Project(place.project).cancel_notice(found.id)  # this reply already reports the end
        failed = {"problem": problem} if problem else {}
        return {**_show(found, detail=detail), "isOver": is_over, **failed}


def step_thread(place: ToolContext, caller: Caller, /, thread: str) -> JsonObject:
    with find_thread(place, thread) as found:
        _follow(caller, found.run(steps=1))
        return _brief(found.entry())


def show_thread(place: ToolContext, _caller: Caller, /, thread: str, detail: bool = False) -> JsonObject:
    with find_thread(place, thread) as found:
        return _show(found, detail=detail)


def _brief(entry: JsonObject) -> JsonObject:
    """Return the entry of a thread without the fields that few callers need."""
    known = {key: entry[key] for key in _BRIEF if entry.get(key) is not None}
    return {**known, "continue": with_tool(entry)["continue"]}


def _show(thread: Thread, *, detail: bool) -> JsonObject:
    summary = thread.summary()
    result = thread.result() if summary["done"] else None
    if detail:
        return {**with_tool(summary), "result": result}
    used = {key: value for key, value in summary.get("usage", {}).items() if key not in ("roles", "saved")}
    shown = {**_brief(summary), "used": used, "limits": summary.get("limits", {}), "more": _MORE}
    if result is not None:
        output = result["output"]
        if len(encode(output)) > _LONGEST_OUTPUT and isinstance(output, Mapping):
            texts = {
                key: value if isinstance(value, str) else encode(value).decode()
                for key, value in output.items()
            }
            output = {key: shorten(text, _LONGEST_FIELD) for key, text in islice(texts.items(), 20)}
        files = result["files"]
        shown["result"] = {
            "role": result["role"],
            "status": result["status"],
            "output": output,
            "text": shorten(result["text"], _LONGEST_TEXT),
            "files": files[:_MOST_FILES],
            "fileCount": len(files),
        }
    return shown


def read_thread(
    place: ToolContext, _caller: Caller, /, thread: str, quota: int = 4_000, before: str | None = None
) -> JsonObject:
    with find_thread(place, thread) as found:
        return found.read_page(max_chars=quota, before=before, phrase=phrase)


def list_threads(
    place: ToolContext,
    _caller: Caller,
    /,
    status: Sequence[str] = (),
    workflow: str | None = None,
    text: str = "",
    max: int = 20,
    page: str | None = None,
    members: bool = False,
    detail: bool = False,
) -> JsonObject:
    with reader(place.store, folder=place.project) as rolecall:
        found = rolecall.entries(
            status=status or sorted(set(Status) - set(ENDED)),
            workflow=workflow,
            text=text,
            after=page,
            members=members,
        )
        shorten_entry = with_tool if detail else _brief
        entries = [shorten_entry(entry) for entry in islice(found, max + 1)]
    rest = {"page": entries[max - 1]["thread"]} if len(entries) > max else {}
    return {"threads": entries[:max], **rest}


# -- answering --


def answer_thread(
    place: ToolContext,
    _caller: Caller,
    /,
    thread: str,
    text: str | None = None,
    output: JsonObject | None = None,
    body: str | None = None,
) -> JsonObject:
    """Add an answer to a thread. If no answer is given, show the question."""
    given = "text" if text is not None else "output" if output is not None else None
    if text is not None and output is not None:
        raise UsageError(
            "an answer is a text or an output, not both",
            hint="Called with the thread alone, thread_answer shows which.",
        )
    if body is not None and given != "output":
        raise UsageError(
            "a body can only be given together with an output, which is missing",
            hint="Give `output` too, or a `text` instead.",
        )
    with Rolecall(place.store, folder=place.project, create=False) as rolecall:
        found = rolecall.thread(thread)
        question = found.question()
        onward, takes = found.continuation, None
        if onward is not None and found.state.status != Status.RUNNING:
            if question.due is not None and found.is_person(question.due.role):
                takes = "output"
            elif TOOL_NAMES.get(onward.code) == "thread_answer":
                takes = "text"
        if given is None:
            shown = {**_brief(found.entry()), "takes": takes}
            if takes == "output" and question.due and question.role:
                shown["task"], shown["instruction"] = question.task, question.due.prompt
                shown["prompt"], shown["schema"] = question.role.prompt, dict(question.role.schema)
            return shown
        if given != takes:
            raise _refusal(found, question, given, takes)
        if output is None:
            found.resume(text, by={"door": "mcp"})
        else:
            found.answer(output, body or "", by={"door": "mcp"})
        return _brief(found.entry())


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
    return UsageError(
        f"thread {found.id} is not waiting for an answer: it is {status}{why}", hint=_ONWARD.get(status, "")
    )


_ONWARD = {
    "idle": "thread_run continues it.",
    "crashed": "thread_run continues it.",
    "running": "thread_wait waits for its end.",
    "suspended": "Ask the user: no tool raises a limit.",
    "waiting": "It waits for the members of its group: thread_list with `members` shows them.",
}
"""Advice for a thread that asks nothing, by the thread's status."""
