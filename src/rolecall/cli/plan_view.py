"""Format the output of `plan run`: progress lines, the result, and the preview of a dry run.

Suggested commands include the project and store of the run, so they can be typed as shown.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, hints
from rolecall.cli.arguments import in_this_store
from rolecall.cli.group_view import duration, gist
from rolecall.cli.output import LastLine, printable, say, short, table, under_this_name
from rolecall.cli.thread_play import View, step_line
from rolecall.plan_run import taskflow
from rolecall.plan_run.schedule import outlook
from rolecall.settings import config
from rolecall.store.canonical import JsonObject
from rolecall.workflow.route import status_of

if TYPE_CHECKING:
    from rolecall.plan_run.board import TaskBoard
    from rolecall.plan_run.report import Row
    from rolecall.settings.mask import Mask

DEFAULT_AT_ONCE = 3
_LONGEST_REASON = 200
"""How many characters of a task's reason a progress line shows."""


def repeat_command(options: Namespace) -> str:
    words = ["rolecall plan run", *(f"--task {number}" for number in options.task)]
    words += [f"--at-once {options.at_once}"] if options.at_once != DEFAULT_AT_ONCE else []
    words += [f"--agent {quote(options.agent)}"] if options.agent else []
    words += ["--worktrees"] if options.worktrees else []
    words += [f"--check {quote(options.check)}"] if options.check else []
    return printable(_here(options, " ".join(words)))


def _here(options: Namespace, command: str) -> str:
    command = hints.command(command)
    is_of_thread = command.startswith("rolecall thread ")
    return in_this_store(options, command if is_of_thread else _in_project(options, command))


def _in_project(options: Namespace, command: str) -> str:
    command = under_this_name(command)
    return f"{command} --project {quote(options.project)}" if options.project else command


def with_command(options: Namespace, body: JsonObject) -> JsonObject:
    """Return `body` with its command completed by the project and store of this run."""
    return {**body, "command": _here(options, body["command"])} if body.get("command") else dict(body)


class TaskLines(View):
    """A view that prints a line for each task that ends and, below these lines, the current activity."""

    def __init__(self, rolecall: Rolecall) -> None:
        self._rolecall = rolecall
        self._last = LastLine()
        self._now: dict[Any, tuple[str, float]] = {}
        """The current role of each running task, and when it started."""
        self._latest: dict[Any, str] = {}
        """The last message of each task; the task with the newest message comes last."""

    def event(self, kind: str, body: JsonObject) -> None:
        task = body.get("task")
        if kind == "step_started":
            self._now[task] = (str(body["role"]), time.monotonic())
        elif kind in ("step", "settled", "paused"):
            self._now.pop(task, None)
            self._latest.pop(task, None)
        line = self._line(kind, body)
        if line:
            self.close()
            say(f"[{task}] {line}" if task is not None else line)
        elif kind in ("text", "tool_call"):
            self._latest.pop(task, None)
            self._latest[task] = gist(kind, body)

    def _line(self, kind: str, body: JsonObject) -> str:
        if kind == "begun":
            then = f", then {body['checker']}" if body["checker"] not in ("", body["owner"]) else ""
            session = body["session"]
            shared = f" (in the session of {session['thread']})" if "step" in session else ""
            return f"▶ {body['owner']}{then}: {body['title']}{shared}"
        if kind == "goes_on":
            return f"▶ continues in {body['thread']}: {body['title']}"
        if kind == "step":
            step = self._rolecall.find_step(str(body["step"]))
            line = step_line(step)
            return line.replace("✓", "✗", 1) if status_of(step.output) in taskflow.FAILURES else line
        if kind == "attempt_failed":
            return f"✗ {body['role']}: {body['error']}"
        if kind == "remark":
            return f"⚠ {body['text']}"
        if kind == "paused":
            return f"… waits for {body['file']}, which another task writes"
        if kind != "settled":
            return ""
        signs = {
            "completed": "■ completed",
            "waiting": "? waits for a person",
            "failed": "✗ failed",
            "set_aside": "✗ set aside",
            "stopped": "■ stopped",
        }
        reason = body.get("reason") if body["status"] != "completed" else ""
        return signs[str(body["status"])] + (f": {short(str(reason), _LONGEST_REASON)}" if reason else "")

    def tick(self) -> None:
        if not self._now:
            return
        now = time.monotonic()
        at_work = (f"{task} {role} {duration(now - since)}" for task, (role, since) in self._now.items())
        latest = (f"[{task}] {words}" for task, words in list(self._latest.items())[-1:])
        self._last.draw("… " + " · ".join([*at_work, *latest]))

    def close(self) -> None:
        self._last.clear()


def describe_rows(
    options: Namespace, board: TaskBoard, rows: Sequence[Row], mask: Mask, id_length: int
) -> Iterator[str]:
    """Yield the text of the result. The table shows the last `id_length` characters of each thread's id."""
    columns: dict[str, list[Any]] = {
        "id": [row.task for row in rows],
        "status": [row.status for row in rows],
        "owner": [row.owner for row in rows],
        "ended": [row.verdict for row in rows],
        "tokens": [row.tokens or "" for row in rows],
        "cost $": [f"{row.cost:.4f}".rstrip("0").rstrip(".") if row.cost else "" for row in rows],
        "thread": [row.thread[-id_length:] for row in rows],
        "title": [mask.text(row.title) for row in rows],  # masked before the table shortens the titles
    }
    filled = {name: cells for name, cells in columns.items() if any(cell != "" for cell in cells)}
    if rows:
        yield table(list(zip(*filled.values(), strict=True)), tuple(filled), ("tokens", "cost $", "ended"))
    if not board.tasks:
        yield "there are no tasks any more: the cycle has been closed"
        return
    done = sum(task["status"] == "completed" for task in board.tasks.values())
    yield f"{done} of {len(board.tasks)} tasks are completed"
    for row in rows:
        if row.reason and row.status not in ("completed", "stopped"):
            yield f"{row.task}{':' if row.status in ('waiting', 'failed', 'set_aside') else ''} {row.reason}"
        for remark in row.remarks:
            yield f"{row.task}: ⚠ {remark}"
        if row.command:
            command = hints.command(row.command)
            is_answer = command.startswith("rolecall thread answer ") or " -p " in command
            purpose = "answer" if is_answer else "try it again"
            if command.startswith("rolecall plan "):
                purpose = "begin it again"
            if row.status == "set_aside":
                purpose = "merge it by hand"
            yield f"  {purpose}: {_here(options, command)}"
    if done == len(board.tasks):
        yield f"close the cycle: {_in_project(options, 'rolecall task close')}"


def view_outlook(
    options: Namespace, board: TaskBoard, agents: Mapping[str, str], hints: Iterable[str]
) -> CommandResult:
    """Return the preview. `agents` maps each role to its agent, or to the reason why no agent can play the role;
    `hints` say what to do about such roles."""
    state = board.find_state()
    words = {number: left.word for number, left in state.left.items()}
    ahead = outlook(state.wants, done=state.done, at_once=options.at_once, others=words)

    def preview(number: float) -> JsonObject:
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
            "thread": begun.id if begun else "",
        }

    shown = config.mask().value(
        {
            "goal": board.goal,
            "limit": options.at_once,
            "waves": [[preview(number) for number in wave] for wave in ahead.waves],
            "left": [
                {"task": number, "title": board.tasks[number]["title"], "reason": reason}
                for number, reason in {**words, **ahead.left}.items()
            ],
            "agents": dict(agents),
        }
    )
    return CommandResult(shown, [*_word_outlook(shown), *(f"  {hint}" for hint in hints)])


def _word_outlook(shown: JsonObject) -> Iterator[str]:
    if shown["goal"]:
        yield f"goal: {shown['goal']}"
    for number, wave in enumerate(shown["waves"], 1):
        yield f"round {number}{', at once' if len(wave) > 1 else ''}:"
        for job in wave:
            then = f", then {job['checker']}" if job["checker"] else ""
            assumed = " (by default)" if job["assumed"] else ""
            after = f", after {', '.join(map(str, job['after']))}" if job["after"] else ""
            yield f"  {job['task']}  {job['owner']}{assumed}{then}{after}: {job['title']}"
            yield f"     {'checked' if job['checker'] else 'not checked'}: {job['pairing']}"
            if job["files"]:
                yield f"     writes {', '.join(job['files'])}"
            if clash := job["clash"]:
                yield f"     not at once with task {clash['task']}: both write {clash['file']}"
            if job["thread"]:
                yield f"     continues in {job['thread']}"
    if shown["left"]:
        yield "not by this run:"
        yield from (f"  {one['task']}  {one['title']}: {one['reason']}" for one in shown["left"])
    players: dict[str, list[str]] = {}
    for role, agent in shown["agents"].items():
        players.setdefault(agent, []).append(role)
    if players:
        yield "agents:"
        yield from (f"  {', '.join(roles)}: {agent}" for agent, roles in players.items())
