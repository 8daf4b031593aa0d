"""The verbs for threads: lists, one thread, its steps, files and graph, and the actions of a person."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, TypedDict

from rolecall.api import Thread
from rolecall.errors import Conflict, NotFound, RolecallError, UsageError
from rolecall.settings import config
from rolecall.threads.forecast import add_up
from rolecall.threads.report import shorten
from rolecall.threads.step_files import FilesDifference
from rolecall.threads.view_types import ThreadEntry, ThreadFacts, ThreadUsage
from rolecall.web import hints, markdown
from rolecall.web.questions import describe_question
from rolecall.web.verbs import FLAG, OBJECT, TEXT, WHOLE, Ask, GoesOn, JsonObject, get, post, record
from rolecall.web.workflows import draw

_MOST_ROWS = 200
_SECONDS = 1.0
"""How long a request searches for threads. After this time the reply contains the threads found so far, and the next
page continues the search."""
_LONGEST_TEXT = 60_000
_MOST_EVENTS = 500
_LONGEST_BRIEF = 4_000
_MOST_LINES = 10_000
_LONGEST_PATCH = 2_000_000
UNRUN = ("idle", "queued", "crashed")
"""The statuses of threads that no process is running."""
_LIMITS = {"type": "object", "additionalProperties": {"type": "number"}}
_AGENTS = {"type": "object", "additionalProperties": TEXT}
_COMMENT = record({"path": TEXT, "text": TEXT}, line=WHOLE, side={"enum": ["old", "new"]}, quote=TEXT)
_COMMENTS = {"type": "array", "items": _COMMENT, "maxItems": 200}


# -- lists --


@get(
    "/threads",
    "Threads, newest first. `next` is the cursor of the next page, null at the end; a page may have fewer than `max`. "
    "`lastEvent` is the number after which `/events` continues from this reply.",
    is_slow=lambda call: (
        any(map(call.query.get, ("text", "cost"))) or "damaged" in call.query.get("status", "")
    ),
    status="statuses, separated by commas",
    workflow="the name of a workflow",
    text="words in the id, title, workflow or reason",
    since="started at or after this time, in milliseconds",
    before="started before this time, in milliseconds",
    cost="used at least this many dollars",
    after="the cursor: the last thread of the page before",
    max=f"how many, at most {_MOST_ROWS} (default 50)",
)
def list_threads(ask: Ask) -> Any:
    newest = ask.rolecall.newest_event()  # read first, so that the page misses no later event
    query, count = ask.query, max(1, ask.number("max", 50, most=_MOST_ROWS))
    least = float(query["cost"]) if query.get("cost") else 0.0
    look = _Look()
    found = ask.rolecall.entries(
        status=query["status"].split(",") if query.get("status") else None,
        workflow=query.get("workflow") or None,
        text=query.get("text", ""),
        since=ask.number("since", 0, most=10**14),
        before=ask.number("before", 0, most=10**14) or None,
        after=query.get("after") or None,
        look=look,
    )
    rows: list[ListedThread] = []
    last = None
    for entry in found:
        if len(rows) == count:
            return {"threads": rows, "next": last, "lastEvent": newest}
        last = entry["thread"]
        row = with_usage(ask, entry)
        if (row["used"].get("cost") or 0) >= least:
            rows.append(row)
    return {"threads": rows, "next": look.last if look.is_late else None, "lastEvent": newest}


class _Look:
    """A callback that notes the last thread that was looked at, and ends a list that takes too long."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.is_late = False
        self._until = monotonic() + _SECONDS

    def __call__(self, ident: str) -> bool:
        self.is_late = self.last is not None and monotonic() > self._until
        if not self.is_late:
            self.last = ident
        return not self.is_late


OnwardButton = TypedDict("OnwardButton", {"continue": str | None})
"""The button that continues a thread."""


class ListedThread(ThreadFacts, OnwardButton):
    """A thread in one of the page's lists."""

    used: ThreadUsage


def with_usage(ask: Ask, entry: ThreadEntry) -> ListedThread:
    """Return an entry of a list with what the thread has used, and with the button that continues the thread."""
    is_damaged = entry["status"] == "damaged"
    used = ThreadUsage() if is_damaged else Thread(ask.rolecall, entry["thread"]).totals()
    return {**entry, "used": used, "continue": hints.name_button(entry["continue"])}


@get("/threads/{thread}/members", "The members of a thread's groups, each group with its members.")
def list_members(ask: Ask) -> Any:
    return {"groups": ask.thread.groups()}


# -- one thread --


@get("/threads/{thread}", "A thread: its state, task, usage, limits, what it waits for and what can be done.")
def show_thread(ask: Ask) -> Any:
    thread, newest = ask.thread, ask.rolecall.newest_event()
    summary = thread.summary()
    shown: JsonObject = {**summary, "lastEvent": newest, "continue": hints.name_button(summary["continue"])}
    status = summary["status"]
    if status == "damaged":
        return shown | {"actions": [], "question": None, "prompt": "", "promptHtml": ""}
    prompt = thread.prompt
    shown |= {"prompt": shorten_text(prompt), "promptHtml": markdown.render(shorten_text(prompt))}
    question = describe_question(thread, status)
    actions = [question["kind"]] if question else []
    actions += ["run"] if status in ("idle", "crashed") else []
    actions += ["fork"] if summary["done"] else ["kill", "fork"]
    shown |= {"question": question, "actions": [] if ask.is_read_only else actions}
    shown["problem"] = ask.problems.get(thread.id) if status in UNRUN else None
    shown["title"] = summary["title"] or shorten(prompt, 80)
    return shown


def shorten_text(text: str) -> str:
    return shorten(text, _LONGEST_TEXT)


@get(
    "/threads/{thread}/steps",
    "The newest steps, newest first, without their texts. `before` in the reply is the cursor of the next page.",
    before="the id of a step: show those before it",
    max="how many, at most 500 (default 100)",
)
def list_steps(ask: Ask) -> Any:
    page = ask.thread.step_page(
        before=ask.query.get("before") or None, max=max(1, ask.number("max", 100, most=500))
    )
    for step in page["steps"]:
        step["output"] = _cut(step["output"], _LONGEST_BRIEF)
    return page


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return shorten(value, most)
    if isinstance(value, Mapping):
        return {key: _cut(one, most) for key, one in value.items()}
    return [_cut(one, most) for one in value] if isinstance(value, list | tuple) else value


@get(
    "/steps/{step}",
    "Everything about a step or a failed attempt: prompt, answer, tool calls, files. Long texts are shortened.",
    whole="1: no text is shortened, except in the HTML",
)
def show_step(ask: Ask) -> Any:
    found = ask.rolecall.step(ask.path["step"])
    body = found["body"] if "number" in found else found["raw"]
    if "number" in found and found["role"] == "$PERSON" and isinstance(found["output"], Mapping):
        body = str(found["output"].get("answer", ""))
    turns = []
    for turn in found["turns"]:
        turns.append({**turn, "html": markdown.render(shorten_text(turn["text"]))})
        for call in turn["tool_calls"]:
            if not isinstance(call["arguments"], str):
                call["arguments"] = json.dumps(call["arguments"], ensure_ascii=False, indent=1)
            call["arguments"], call["result"] = shorten_text(call["arguments"]), shorten_text(call["result"])
    shown = {
        **found,
        "turns": turns,
        "bodyHtml": markdown.render(shorten_text(body)),
        "promptHtml": markdown.render(shorten_text(found["prompt"])),
    }
    return shown if ask.query.get("whole") else _cut(shown, _LONGEST_TEXT)


@get(
    "/threads/{thread}/diff",
    "What the thread changed in its files, as a list of files and as a patch; empty if no files were recorded. Files "
    f"beyond {_MOST_LINES:,} changed lines are `omitted` from the patch: ask for each by its `path`.",
    is_slow=True,
    at="a step's number or id, or A..B for what changed after step A up to step B (default: all steps)",
    other="a thread: how its last files differ from those of this one",
    path="a file: the patch has only this one",
)
def diff_files(ask: Ask) -> Any:
    query = ask.query
    other = ask.rolecall.thread(query["other"]) if query.get("other") else None
    try:
        return {"parts": _diff(ask.thread, other, query.get("at"), query.get("path")), "problem": None}
    except NotFound as error:
        return {"parts": [], "problem": error.message}


class PatchCut(TypedDict, total=False):
    isCut: bool
    """Whether the patch is too large to be shown whole."""


class ShownDifference(FilesDifference, PatchCut):
    """Changed files with a patch that is small enough for a page."""


def _diff(
    thread: Thread, other: Thread | None, at: str | None = None, path: str | None = None
) -> list[ShownDifference]:
    """Return the changed files, with a patch that is small enough for a page and in which secrets are masked."""
    parts = thread.diff_files(other, at=at or None, path=path or None, lines=None if path else _MOST_LINES)
    mask = config.mask()
    shown: list[ShownDifference] = []
    for part in parts:
        diff, cut = mask.text(part["diff"]), PatchCut()
        if len(diff) > _LONGEST_PATCH:
            end = diff.rfind("\n", 0, _LONGEST_PATCH) + 1
            diff, cut["isCut"] = diff[: end or _LONGEST_PATCH], True
        shown.append({**part, "diff": diff, **cut})
    return shown


@get(
    "/threads/{thread}/work",
    f"What happened in the current step of a thread: its events since the step began, the newest {_MOST_EVENTS}.",
)
def show_work(ask: Ask) -> Any:
    newest, span = ask.rolecall.newest_event(), _MOST_EVENTS
    while True:
        found = list(ask.thread.events(after=max(0, newest - span)))
        begun = max((at for at, event in enumerate(found) if event.kind == "step_started"), default=None)
        if begun is not None or span > newest:
            break
        span *= 8  # the range of numbers also contains events of other threads
    current = found[begun or 0 :]
    shown = [*current[:1], *current[1:][-_MOST_EVENTS:]]
    return {"events": [event._asdict() for event in shown]}


@get("/threads/{thread}/graph", "The workflow as places and lines, with how often each role has answered.")
def show_graph(ask: Ask) -> Any:
    thread, newest = ask.thread, ask.rolecall.newest_event()
    usage = thread.summary().get("usage", {}).get("roles", {})
    drawn = draw(ask.rolecall.define(thread.workflow).workflow)
    return drawn._asdict() | {
        "visits": {role: amounts.get("steps", 0) for role, amounts in usage.items()},
        "roles": usage,
        "lastEvent": newest,
    }


@get(
    "/compare", "Two threads from where they part: outputs, bodies and files.", is_slow=True, one="", other=""
)
def compare(ask: Ask) -> Any:
    one, other = (ask.rolecall.thread(ask.query.get(name, "")) for name in ("one", "other"))
    found = one.diff(other)
    summaries = [{**thread.summary(), "continue": None} for thread in (one, other)]
    files, problem = list[ShownDifference](), None
    try:
        files = _diff(one, other)
    except RolecallError as error:
        problem = error.message
    return {**found, "summaries": summaries, "files": files, "filesProblem": problem}


# -- what a person can do --


def _name_workflow(ask: Ask) -> str:
    return str(ask.body["workflow"])


def _follow(ask: Ask) -> str:
    return ask.thread.workflow


@post(
    "/threads",
    "Start a thread and run it. `agent` plays every role, `agents` (by role) play single ones.",
    record(
        {"workflow": TEXT, "prompt": TEXT}, agent=TEXT, agents=_AGENTS, limits=_LIMITS, reuse=FLAG, run=FLAG
    ),
    is_slow=True,
    loads=_name_workflow,
    is_repeatable=True,
)
def start(ask: Ask) -> Any:
    body = ask.body
    loaded = ask.rolecall.load_workflow(body["workflow"], is_kept=True)
    agent, agents = body.get("agent") or None, body.get("agents") or {}
    for _, error in ask.rolecall.missing_agents(loaded.playbook, agent, agents):
        raise error
    thread = ask.rolecall.start(
        loaded,
        body["prompt"],
        agent=agent,
        agents=agents,
        limits=body.get("limits") or {},
        reuse=body.get("reuse"),
        request=ask.request,
    )
    return GoesOn(thread.id, is_run=body.get("run", True))


@post(
    "/forecast",
    "Which first steps of a thread would be reused, and what the rest may use. Starts nothing and asks nobody.",
    record({"workflow": TEXT, "prompt": TEXT}, agent=TEXT, limits=_LIMITS, reuse=FLAG),
    is_slow=True,
    loads=_name_workflow,
)
def forecast(ask: Ask) -> Any:
    body = ask.body
    found = ask.rolecall.look_ahead(
        body["workflow"],
        body["prompt"],
        agent=body.get("agent") or None,
        limits=body.get("limits") or {},
        reuse=body.get("reuse"),
    )
    sums = add_up([found.forecast])
    return {
        "reused": [{"number": one.number, "role": one.role, **one.origin._asdict()} for one in found.reused],
        "asks": found.asks,
        "reason": found.reason,
        "threads": found.threads,
        "rest": {name: one.range._asdict() if one.range else None for name, one in sums.items()},
    }


@post(
    "/threads/{thread}/answer",
    "Play the role that waits for a person. `head` is the head that the person saw; if another answer came first, the "
    "reply is 409 and says who gave it.",
    record({"output": OBJECT}, body=TEXT, head=TEXT, comments=_COMMENTS),
    loads=_follow,
)
def answer(ask: Ask) -> Any:
    thread, body = ask.thread, ask.body
    text = "\n\n".join(filter(None, [body.get("body", ""), word_comments(body.get("comments", ()))]))
    with _tell_who_was_first(thread, body.get("head")):
        thread.answer(body["output"], text, by=ask.by, head=body.get("head"))
    return GoesOn(thread.id)


@post(
    "/threads/{thread}/resume",
    "Continue a suspended thread: with a message to its role, with higher limits, or to try again.",
    record(text=TEXT, limits=_LIMITS, agent=TEXT, head=TEXT, comments=_COMMENTS),
    loads=_follow,
)
def resume(ask: Ask) -> Any:
    thread, body = ask.thread, ask.body
    text = "\n\n".join(filter(None, [body.get("text", ""), word_comments(body.get("comments", ()))]))
    with _tell_who_was_first(thread, body.get("head")):
        thread.resume(
            text or None,
            limits=body.get("limits"),
            agent=body.get("agent") or None,
            by=ask.by,
            head=body.get("head"),
        )
    return GoesOn(thread.id)


@post("/threads/{thread}/run", "Run a thread that nobody runs.", record())
def run(ask: Ask) -> Any:
    ask.thread.refuse_running()
    return GoesOn(ask.thread.id)


@post("/threads/{thread}/kill", "End a thread for good, and the process that runs it.", record(reason=TEXT))
def kill(ask: Ask) -> Any:
    reason = ": ".join(filter(None, [f"killed by {ask.by['person']}", ask.body.get("reason")]))
    killed = ask.thread.kill(reason)
    return {"thread": ask.thread.id, "process": killed.process}


@post(
    "/threads/{thread}/merge",
    "Merge a thread's branch into the branch checked out in its start folder; a conflict changes nothing.",
    record(),
    is_slow=True,
)
def merge(ask: Ask) -> Any:
    return {"thread": ask.thread.id, **ask.thread.merge_folder()}


@post(
    "/threads/{thread}/folders/remove",
    "Remove a thread's own folders and its branch. With `force` also work that exists nowhere else.",
    record(force=FLAG),
    is_slow=True,
)
def remove_folders(ask: Ask) -> Any:
    return {"thread": ask.thread.id, **ask.thread.remove_folders(force=ask.body.get("force", False))}


@post(
    "/threads/{thread}/fork",
    "Make a thread that shares the steps up to `at` (default: all), with another prompt, agent or workflow if given.",
    record(at=TEXT, prompt=TEXT, agent=TEXT, workflow=TEXT, keepFiles=FLAG, run=FLAG, comments=_COMMENTS),
    is_slow=True,
    loads=lambda ask: ask.body.get("workflow") or _follow(ask),
    is_repeatable=True,
)
def fork(ask: Ask) -> Any:
    body = ask.body
    prompt = body.get("prompt") or None
    if comments := word_comments(body.get("comments", ())):
        prompt = f"{prompt or ask.thread.prompt}\n\n{comments}"
    made = ask.thread.fork(
        at=body.get("at") or None,
        prompt=prompt,
        agent=body.get("agent") or None,
        workflow=body.get("workflow") or None,
        keep_files=body.get("keepFiles", False),
        request=ask.request,
    )
    return GoesOn(made.id, is_run=body.get("run", True))


@contextmanager
def _tell_who_was_first(thread: Thread, seen: str | None) -> Iterator[None]:
    """If an error is raised in the `with` block and the thread has moved since the person saw its head, report the move
    as the cause of the error."""
    try:
        yield
    except (Conflict, UsageError):
        if seen is None or thread.head == seen:
            raise
        said = ""
        with suppress(RolecallError):
            newest = thread.step_page(max=1)["steps"][0]
            by = newest.get("by") or {}
            if newest["role"] == "$PERSON":  # in any other output, an agent could have written `by`
                by = newest["output"].get("by") or {}
            said = f": {by.get('person') or newest['agent']} answered as {newest['role']}"
        raise Conflict(
            f"thread {thread.id} continued before your answer arrived{said}",
            hint="Nothing was sent. Read what happened, then decide again.",
        ) from None


def word_comments(comments: Any) -> str:
    """Return comments on the lines of a diff as Markdown, in the order of the files."""
    if not comments:
        return ""
    lines = ["Comments on your changes:", ""]
    for one in sorted(comments, key=lambda one: (one["path"], one.get("line", 0))):
        if not one["text"].strip():
            raise UsageError(f"the comment on {one['path']} is empty")
        where = f"`{one['path']}`"
        if one.get("line"):
            where += f", line {one['line']}" + (" before the change" if one.get("side") == "old" else "")
        lines.append(
            f"- {where}:" + (f" `{one['quote'].strip()[:200]}`" if one.get("quote", "").strip() else "")
        )
        lines += [f"  {line}" for line in one["text"].strip().splitlines()]
    return "\n".join(lines)
