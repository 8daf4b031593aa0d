"""The outcome of the tasks: one row for each task, read from its thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from rolecall.api import Rolecall, Thread
from rolecall.errors import Hint
from rolecall.plan_run.board import BLOCKED, COMPLETED, FAILED, NEVER, SET_ASIDE, STOPPED, WAITING, TaskBoard
from rolecall.plan_run.past import list_touched_files
from rolecall.plan_run.schedule import explain_hopeless, reasons
from rolecall.plan_run.taskflow import PERSON
from rolecall.store.canonical import JsonObject
from rolecall.workflow.route import status_of


@dataclass(frozen=True)
class Row:
    task: float
    title: str
    status: str
    owner: str
    reason: str = ""
    thread: str = ""
    agent: str = ""
    """The agent that last played the owner's role."""
    verdict: str = ""
    tokens: int = 0
    cost: float = 0
    files: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    command: str = ""
    conflict: JsonObject = field(default_factory=dict)
    """What the task's work conflicts with if it was set aside, as reported by `files/merge.py`."""

    def as_json(self) -> JsonObject:
        return {**asdict(self), "files": list(self.files), "remarks": list(self.remarks)}


def question(thread: Thread) -> str:
    """Return the question that a thread asks a person, or the reason why the thread ended."""
    due = thread.question().due
    text = due.prompt if due and due.role == PERSON else thread.reason
    return " ".join(text.split())


def rows(
    rolecall: Rolecall,
    board: TaskBoard,
    *,
    at_once: int,
    without: Collection[float],
    remarks: Mapping[float, Sequence[str]],
) -> list[Row]:
    """Return one row for each task, except those in `without`, which were done before the run."""
    stands = board.find_state()
    words = {number: left.word for number, left in stands.left.items()}
    blocked = reasons(stands.wants, done=stands.done, running={}, at_once=at_once, others=words)
    never = explain_hopeless(stands.wants, known={*stands.done, *words})
    found = []
    for number, task in board.tasks.items():
        if number in without:
            continue
        left, run, job = stands.left.get(number), board.run_of(task), board.jobs.get(number)
        if task["status"] == "completed":
            status, reason = COMPLETED, ""
        elif left is not None:
            status, reason = left.status, left.word
        elif number in never:
            status, reason = NEVER, never[number]
        elif number in blocked:
            status, reason = BLOCKED, blocked[number]
        else:
            status, reason = STOPPED, "was not begun before the run was stopped"
        owner = job.players.owner if job else str(task.get("owner", ""))
        thread = rolecall.thread_if_any(run.thread) if run else None
        row = Row(number, task["title"], status, owner, remarks=tuple(dict.fromkeys(remarks.get(number, ()))))
        if run and owner:
            row = replace(row, thread=run.thread)
        if thread and owner:
            steps = thread.steps[::-1]
            answered = [step for step in steps if step.role != PERSON and not step.role.startswith("$")]
            totals: JsonObject = steps[0].payload["totals"] if steps else {}
            row = replace(
                row,
                agent=next((step.agent for step in answered if step.role == owner), ""),
                verdict=(status_of(answered[0].output) or "") if answered else "",
                tokens=int(totals.get("tokens", 0)),
                cost=float(totals.get("cost", 0)),
                files=tuple(sorted({file for step in answered for file in list_touched_files(step)})),
            )
        if run and thread and status in (WAITING, FAILED):
            again = Hint("Run it again", "run_tasks", task=(*run.redoes, number))
            reason = question(thread) or reason
            row = replace(row, command=thread.continuation or again)
        if left and thread and status == SET_ASIDE:
            onward = Hint("Merge it by hand", "merge_folder", thread=thread.id)
            row = replace(row, command=onward, conflict=left.conflict)
        found.append(replace(row, reason=(left.reason if left else "") or reason))
    return found
