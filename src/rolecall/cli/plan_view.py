"""What is seen of a plan that is run: lines or records while it runs, the result, and the outlook of a dry run.

Whatever is to be typed next is shown as it has to be typed, with the project and the store of this run.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from rolecall.cli import hints, under_this_name
from rolecall.cli.output import LastLine, format_of, printable, say, show, show_record, table
from rolecall.cli.thread_arguments import in_this_store
from rolecall.cli.thread_live import duration, gist, step_line
from rolecall.plan_run import taskflow
from rolecall.store.store import Store
from rolecall.threads import thread, workspace
from rolecall.threads.thread import Step
from rolecall.workflow.route import status_of

if TYPE_CHECKING:
    from rolecall.plan_run.board import Board
    from rolecall.plan_run.report import Row
    from rolecall.plan_run.schedule import Outlook
    from rolecall.settings.mask import Mask

DEFAULT_LIMIT = 3
LONGEST_REASON = 200
"""Characters of why a task has ended, in the line that is shown meanwhile."""


# -- what is to be typed next --


def again(options: Namespace) -> str:
    words = ["rolecall plan run", *(f"--task {number}" for number in options.task)]
    words += [f"--limit {options.limit}"] if options.limit != DEFAULT_LIMIT else []
    words += [f"--agent {quote(options.agent)}"] if options.agent else []
    return printable(_here(options, " ".join(words)))


def _here(options: Namespace, command: str) -> str:
    """A command that is to be typed next, for the project and the store of this run."""
    command = hints.command(command)
    is_of_thread = command.startswith("rolecall thread ")
    return in_this_store(options, command if is_of_thread else _of_project(options, command))


def _of_project(options: Namespace, command: str) -> str:
    command = under_this_name(command)
    return f"{command} --project {quote(options.project)}" if options.project else command


def typed(options: Namespace, body: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the command in it as it has to be typed."""
    return {**body, "command": _here(options, body["command"])} if body.get("command") else dict(body)


# -- while it runs --


class Records:
    """One record per event of every task, at once, for whoever reads the pipe."""

    def __init__(self, options: Namespace) -> None:
        self._options = options

    def event(self, kind: str, body: Mapping[str, Any]) -> None:
        show_record(self._options, {"event": kind, **body})

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line whenever something has come to an end, each with its task; below them one for what goes on now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last = LastLine()
        self._now: dict[Any, tuple[str, float]] = {}
        """Of each task at work the role, and since when."""
        self._latest: dict[Any, str] = {}
        """What was last heard of each, the newest last."""

    def event(self, kind: str, body: Mapping[str, Any]) -> None:
        task = body.get("task")
        if kind == "step_started":
            self._now[task] = (str(body["role"]), time.monotonic())
        elif kind in ("step", "settled", "paused"):
            self._now.pop(task, None)
            self._latest.pop(task, None)
        line = self._line(kind, body)
        if line:
            self._say(f"[{task}] {line}" if task is not None else line)
        elif kind in ("text", "tool_call"):
            self._latest.pop(task, None)
            self._latest[task] = gist(kind, body)

    def _line(self, kind: str, body: Mapping[str, Any]) -> str:
        if kind == "begun":
            then = f", then {body['checker']}" if body["checker"] not in ("", body["owner"]) else ""
            return f"▶ {body['owner']}{then}: {body['title']}{_session(body['session'])}"
        if kind == "goes_on":
            return f"▶ goes on in {body['thread']}: {body['title']}"
        if kind == "step":
            return self._step(str(body["step"]))
        if kind == "attempt_failed":
            return f"✗ {body['role']}: {body['error']}"
        if kind == "remark":
            return f"⚠ {body['text']}"
        if kind == "paused":
            return f"… waits for {body['file']}, which another task writes"
        return _settled(body) if kind == "settled" else ""

    def _step(self, node: str) -> str:
        step = Step(self._store, self._store.get(node))
        line = step_line(step)
        return line.replace("✓", "✗", 1) if status_of(step.output) in taskflow.FAILURES else line

    def tick(self) -> None:
        if not self._now:
            return
        at_work = (
            f"{task} {role} {duration(time.monotonic() - since)}" for task, (role, since) in self._now.items()
        )
        heard = (f"[{task}] {words}" for task, words in list(self._latest.items())[-1:])
        self._last.draw("… " + " · ".join([*at_work, *heard]))

    def close(self) -> None:
        self._last.clear()

    def _say(self, line: str) -> None:
        self.close()
        say(line)


def _session(told: Mapping[str, str]) -> str:
    return f" (goes on in the session of {told['thread']})" if "step" in told else ""


def _settled(body: Mapping[str, Any]) -> str:
    status = str(body["status"])
    if status == "completed":
        return "■ completed"
    reason = f": {_short(str(body['reason']))}" if body.get("reason") else ""
    sign = {"waiting": "? waits for a person", "failed": "✗ failed", "stopped": "■ stopped"}[status]
    return sign + reason


def _short(text: str) -> str:
    """The whole of it is told at the end."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


# -- the result --


def show_rows(options: Namespace, board: Board, rows: Sequence[Row], mask: Mask, *, id_length: int) -> None:
    """`id_length` is how much of the end of a thread's id the table shows."""
    if format_of(options) == "yaml":
        print("---")
    is_done = all(task["status"] == "completed" for task in board.tasks.values())
    tasks = [typed(options, row.as_json()) for row in rows]
    shown = mask.value({"goal": board.goal, "done": is_done, "tasks": tasks})
    asked = [row for row in rows if board.is_asked_for(row.task)]
    show(options, shown, lambda: mask.text("\n".join(_result(options, board, asked, mask, id_length))))


def _result(
    options: Namespace, board: Board, rows: Sequence[Row], mask: Mask, id_length: int
) -> Iterator[str]:
    if rows:
        yield _table(rows, mask, id_length)
    if not board.tasks:
        yield "there are no tasks any more: the cycle was closed meanwhile"
        return
    done = sum(task["status"] == "completed" for task in board.tasks.values())
    yield f"{done} of {len(board.tasks)} tasks are completed"
    for row in rows:
        yield from _details(options, row)
    if done == len(board.tasks):
        yield f"close the cycle: {_of_project(options, 'rolecall task close')}"


def _table(rows: Sequence[Row], mask: Mask, id_length: int) -> str:
    """The columns that have something in them. Titles are masked before the table cuts them."""
    columns: dict[str, list[Any]] = {
        "id": [row.task for row in rows],
        "status": [row.status for row in rows],
        "owner": [row.owner for row in rows],
        "ended": [row.verdict for row in rows],
        "tokens": [row.tokens or "" for row in rows],
        "cost $": [f"{row.cost:.4f}".rstrip("0").rstrip(".") if row.cost else "" for row in rows],
        "thread": [row.thread[-id_length:] for row in rows],
        "title": [mask.text(row.title) for row in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cell != "" for cell in cells)}
    return table(list(zip(*filled.values(), strict=True)), tuple(filled), ("tokens", "cost $", "ended"))


def _details(options: Namespace, row: Row) -> Iterator[str]:
    if row.reason and row.status not in ("completed", "stopped"):
        is_own = row.status in ("waiting", "failed")
        yield f"{row.task}{':' if is_own else ''} {row.reason}"
    for remark in row.remarks:
        yield f"{row.task}: ⚠ {remark}"
    if row.command:
        yield f"  {_purpose(row.command)}: {_here(options, row.command)}"


def _purpose(command: str) -> str:
    command = hints.command(command)
    if command.startswith("rolecall plan "):
        return "begin it anew"
    return "answer" if command.startswith("rolecall thread answer ") or " -p " in command else "try it again"


# -- the outlook --


def show_outlook(
    options: Namespace, board: Board, agents: Mapping[str, str], hints: Iterable[str] = ()
) -> None:
    """`agents` are those of each role, or why there is none; `hints` what to do about that."""
    from rolecall.plan_run.schedule import outlook

    stands = board.standing()
    words = {number: left.word for number, left in stands.left.items()}
    ahead = outlook(stands.wants, done=stands.done, limit=options.limit, others=words)
    left = {**words, **ahead.left}
    shown = {
        "goal": board.goal,
        "limit": options.limit,
        "waves": [[_ahead(board, ahead, agents, number) for number in wave] for wave in ahead.waves],
        "left": [
            {"task": number, "title": board.tasks[number]["title"], "reason": reason}
            for number, reason in left.items()
        ],
        "agents": dict(agents),
    }
    shown = workspace.mask().value(shown)
    advice = [f"  {hint}" for hint in hints if hint]
    show(options, shown, lambda: "\n".join([*_outlook(shown), *advice]))


def _ahead(board: Board, ahead: Outlook, agents: Mapping[str, str], number: float) -> dict[str, Any]:
    job, begun = board.jobs[number], board.begun(board.tasks[number])
    clash = ahead.clashes.get(number)
    return {
        "task": number,
        "title": job.task["title"],
        "owner": job.players.owner,
        "assumed": job.is_assumed,
        "agent": agents[job.players.owner],
        "checker": "" if job.players.is_check else job.players.checker,
        "pairing": job.pairing,
        "after": list(job.task["deps"]),
        "files": sorted(job.files),
        "clash": clash and {"file": clash.file, "task": clash.other},
        "thread": thread.id_of(begun) if begun else "",
    }


def _outlook(shown: Mapping[str, Any]) -> Iterator[str]:
    if shown["goal"]:
        yield f"goal: {shown['goal']}"
    for number, wave in enumerate(shown["waves"], 1):
        yield f"round {number}{', at once' if len(wave) > 1 else ''}:"
        for job in wave:
            yield from _ahead_lines(job)
    if shown["left"]:
        yield "not by this run:"
        yield from (f"  {one['task']}  {one['title']}: {one['reason']}" for one in shown["left"])
    if shown["agents"]:
        yield "agents:"
        yield from _agent_lines(shown["agents"])


def _agent_lines(agents: Mapping[str, str]) -> Iterator[str]:
    """Who plays which roles, in a line for each agent."""
    roles: dict[str, list[str]] = {}
    for role, agent in agents.items():
        roles.setdefault(agent, []).append(role)
    yield from (f"  {', '.join(names)}: {agent}" for agent, names in roles.items())


def _ahead_lines(job: Mapping[str, Any]) -> Iterator[str]:
    then = f", then {job['checker']}" if job["checker"] else ""
    assumed = " (by default)" if job["assumed"] else ""
    after = f", after {', '.join(map(str, job['after']))}" if job["after"] else ""
    yield f"  {job['task']}  {job['owner']}{assumed}{then}{after}: {job['title']}"
    yield f"     {'checked' if job['checker'] else 'not checked'}: {job['pairing']}"
    if job["files"]:
        yield f"     writes {', '.join(job['files'])}"
    if job["clash"]:
        yield f"     not at once with task {job['clash']['task']}: both write {job['clash']['file']}"
    if job["thread"]:
        yield f"     goes on in {job['thread']}"
