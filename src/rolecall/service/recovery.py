"""Decide what becomes of a thread that has a slot, after its step's process has ended or when its state is unknown.

The store decides. `settle` follows a step whose process this service or machine started. `take_up` is for a thread
whose state is unknown, when the service starts or after an error. If the process of a step died, the crash is recorded,
and the thread can continue: its next step resumes the agent's session from the note of the attempt. Another
process might have taken the thread in the meantime, so changes apply only if the thread is still as it was read.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from rolecall.agents.process import end_leftovers
from rolecall.service import queue
from rolecall.service.queue import Slot
from rolecall.service.workers import WorkerExit
from rolecall.store import holder
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads.state import Status, ThreadRef, read_note, read_thread

Finding = Literal["ready", "held", "lost", "gone"]
"""`ready`: the thread can take its next step. `held`: a living process might be running the thread. `lost`: the process
that ran the thread is gone. `gone`: the thread no longer needs its slot, which is free now."""


class Settled(NamedTuple):
    """What became of a thread that has a slot."""

    became: str
    """The outcome, in a few words."""
    reason: str = ""
    head: str = ""
    """The head that the thread's next step extends, or empty if the thread cannot take a step now."""
    is_taken: bool = False
    """Whether the thread has a new step."""
    is_over: bool = False
    """Whether the thread no longer needs its slot, because it has ended or is waiting."""
    is_news: bool = False
    """Whether the outcome belongs in the log."""
    is_trouble: bool = False
    """Whether the thread must be tried again after a pause."""

    @property
    def line(self) -> str:
        return f"{self.became}: {self.reason}" if self.reason else self.became


def settle(store: Store, slot: Slot, ended: WorkerExit, *, head: str) -> Settled:
    """Update a thread after the process of its step has ended, unless another process has taken the thread since.
    `head` is the head that the step was to extend."""
    finding, ref = examine(store, slot)
    report, is_taken = ended.report or {}, ref is not None and ref.head != head
    if ref is None or finding == "gone":
        return _explain_end(ref)._replace(is_taken=is_taken)
    head = ref.head if finding == "ready" else ""
    if is_taken:
        reason = (
            "" if ended.is_stopped else ended.cause if ended.report is None else report.get("message", "")
        )
        return Settled("went on", reason, head, is_taken=True, is_news=reason != "")
    if ref.state.lease.get("token", "") != ended.token:
        return Settled("went on", head=head)
    if ended.report is None and ended.code is None and finding == "held":
        return _wait_for_holder(ref)

    # The process ended without a step, and nobody else has the thread.
    if ended.report is None and not ended.is_stopped:
        return _count_crash(store, ref, ended.cause, is_loss=ended.code is None)
    if "error" in report and report["error"] not in ("Conflict", "StorageError"):
        moved = queue.suspend(store, ref, ". ".join(filter(None, [report["message"], report["hint"]])))
        return _explain_end(moved) if moved is not None else Settled("went on")
    left: ThreadRef | None = ref
    if finding != "ready":
        left = queue.lay_down(store, ref)
    # Another process has the thread, the disk is full, or the database could not be reached.
    if "error" in report:
        return Settled("had trouble", report["message"], is_trouble=True)
    return Settled("was interrupted", head=left.head if left is not None else "")


async def take_up(store: Store, slot: Slot) -> Settled:
    """Find out whether a thread can continue. If the process that ran the thread is gone, first record the loss."""
    finding, ref = examine(store, slot)
    if ref is None or finding == "gone":
        return _explain_end(ref)
    if finding == "held":
        return _wait_for_holder(ref)
    return Settled("is idle", head=ref.head) if finding == "ready" else await count_loss(store, ref)


def examine(store: Store, slot: Slot) -> tuple[Finding, ThreadRef | None]:
    """Read a thread that has a slot. Free the slot if the thread does not need it."""
    ref = read_thread(store, slot.thread)
    if ref is None or ref.state.status not in (Status.IDLE, Status.RUNNING):
        queue.release(store, slot)
        return "gone", ref
    if ref.state.status == Status.IDLE:
        return "ready", ref
    lease = ref.state.lease
    # Only one machine uses a SQLite file, so a process from before that machine's last boot is gone.
    is_of_the_past = isinstance(store.backend, SqliteBackend) and not holder.is_of_this_boot(lease)
    return "held" if holder.is_alive(lease, now=store.now()) and not is_of_the_past else "lost", ref


async def count_loss(store: Store, seen: ThreadRef) -> Settled:
    """Record that the process that ran a thread is gone, and end the processes that it left on this host."""
    lease = seen.state.lease
    # In a fleet, another machine on this host might have the thread by now, unless the lease names this host.
    if isinstance(store.backend, SqliteBackend) or lease.get("host") == holder.process(os.getpid())["host"]:
        known = read_note(store, seen.id)
        runs = (known.note.run, *known.note.runs) if known else ()
        for run in (seen.id, *filter(None, runs)):
            await end_leftovers(run)
    reason = f"{holder.describe(lease)}, which ran it, is gone"
    return _count_crash(store, seen, reason, is_loss=True)


def _count_crash(store: Store, seen: ThreadRef, reason: str, *, is_loss: bool) -> Settled:
    moved = queue.count_crash(store, seen, reason, is_loss=is_loss)
    if moved is None:
        return Settled("went on")
    if moved.state.is_over:
        return _explain_end(moved)
    return Settled("crashed", reason, head=moved.head, is_news=True)


def _wait_for_holder(ref: ThreadRef) -> Settled:
    return Settled("is held", f"{holder.describe(ref.state.lease)} runs it", is_trouble=True)


def _explain_end(ref: ThreadRef | None) -> Settled:
    if ref is None:
        return Settled("is gone", is_over=True, is_news=True)
    is_news = ref.state.status != Status.WAITING  # a thread gets this status again whenever a member ends
    return Settled(f"is {ref.state.status}", ref.state.reason, is_over=True, is_news=is_news)
