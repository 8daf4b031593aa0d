"""The outcome of the tasks: one row per task, read from its thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rolecall.errors import Hint
from rolecall.plan_run.board import BLOCKED, COMPLETED, FAILED, NEVER, STOPPED, WAITING, Board, Left
from rolecall.plan_run.past import touched_files
from rolecall.plan_run.schedule import hopeless, reasons
from rolecall.plan_run.taskflow import PERSON
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import ThreadRef, read_thread
from rolecall.threads.thread import Chain
from rolecall.threads.turn import Turn, next_of
from rolecall.workflow import registry
from rolecall.workflow.route import Next, status_of


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
    """The status of the last step."""
    tokens: int = 0
    cost: float = 0
    files: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Other observations, such as a file that two tasks touched at once."""
    command: str = ""
    """The command that continues it."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": list(self.files), "remarks": list(self.remarks)}


def facts(store: Store, ident: str, owner: str) -> dict[str, Any]:
    """The fields of a thread's row; only its id if it is not in the store."""
    ref = read_thread(store, ident)
    if ref is None:
        return {"thread": ident}
    chain = Chain(store, ref.head)
    steps = list(chain)
    spoken = [step for step in steps if step.role != PERSON and not step.role.startswith("$")]
    totals: Mapping[str, Any] = steps[0].payload["totals"] if steps else {}
    return {
        "thread": ident,
        "agent": next((step.agent for step in spoken if step.role == owner), ""),
        "verdict": (status_of(spoken[0].output) or "") if spoken else "",
        "tokens": int(totals.get("tokens", 0)),
        "cost": float(totals.get("cost", 0)),
        "files": tuple(sorted({file for step in spoken for file in touched_files(step)})),
    }


def question(store: Store, ref: ThreadRef) -> str:
    """The question a thread asks a person, or the reason it ended."""
    chain = Chain(store, ref.head)
    way = next_of(Turn(thread.id_of(ref), chain, registry.load_node(store, chain.start.workflow)))
    text = way.prompt if isinstance(way, Next) and way.role == PERSON else ref.state.reason
    return " ".join(str(text).split())


def rows(
    store: Store,
    board: Board,
    *,
    limit: int,
    without: Collection[float],
    remarks: Mapping[float, Sequence[str]],
) -> list[Row]:
    """One row per task, except those in `without`, which were done before."""
    stands = board.standing()
    words = {number: left.word for number, left in stands.left.items()}
    waits = {
        number: (BLOCKED, reason)
        for number, reason in reasons(
            stands.wants, done=stands.done, running={}, limit=limit, others=words
        ).items()
    }
    for number, reason in hopeless(stands.wants, known={*stands.done, *words}).items():
        waits[number] = (NEVER, reason)
    return [
        _row(store, board, task, stands.left.get(number), waits.get(number), remarks.get(number, ()))
        for number, task in board.tasks.items()
        if number not in without
    ]


def _row(
    store: Store,
    board: Board,
    task: Mapping[str, Any],
    left: Left | None,
    wait: tuple[str, str] | None,
    remarks: Sequence[str],
) -> Row:
    job, run = board.jobs.get(task["id"]), board.run_of(task)
    owner = job.players.owner if job else str(task.get("owner", ""))
    known = facts(store, run.thread, owner) if run and owner else {}
    if task["status"] == "completed":
        status, reason = COMPLETED, ""
    elif left is not None:
        status, reason = left.status, left.word
    else:
        status, reason = wait or (STOPPED, "was not begun before the run was stopped")
    ref = read_thread(store, run.thread) if status in (WAITING, FAILED) and run else None
    if ref is not None and run is not None:
        again = Hint("Run it again", "run_tasks", task=(*run.redoes, task["id"]))
        known |= {"reason": question(store, ref), "command": thread.continuation(ref) or again}
    known["reason"] = (left.reason if left else "") or known.get("reason") or reason
    return Row(task["id"], task["title"], status, owner, remarks=tuple(dict.fromkeys(remarks)), **known)
