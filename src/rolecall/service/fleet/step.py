"""One step on one machine: how long it may go on, and what its end means for its thread.

Meanwhile another machine may have taken the thread up, so whatever is done about it is done to the thread as it was
seen, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolecall import thread
from rolecall.errors import Conflict, StorageError
from rolecall.service import queue
from rolecall.service.fleet.orders import Order
from rolecall.service.gate import Gate
from rolecall.service.queue import Slot
from rolecall.service.workers import Ended
from rolecall.store.backend import Ref
from rolecall.store.store import Store


@dataclass
class Step:
    """A step that is being taken here."""

    order: Order
    token: str = ""
    until: float | None = None
    """When its lease ends, by a clock that nobody sets."""
    is_stopped: bool = False
    """It was we who ended it."""

    def note_lease(self, ref: Ref, *, now: Callable[[], int]) -> None:
        """From any thread: a ref that the step has moved; its thread's says how long it is ours."""
        if ref.name != thread.ref_name(self.order.thread):
            return
        lease = ref.state.get("lease") or {}
        self.token = lease.get("token", self.token)
        self.until = _steady() + (lease["deadline"] - now()) / 1000 if lease else None

    def ends_within(self, seconds: float) -> bool:
        return self.until is not None and _steady() > self.until - seconds


def _steady() -> float:
    """Seconds that pass while the machine sleeps, too, where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Threaded:
    """A gate that is asked in a thread, because its store may have to wait."""

    def __init__(self, gate: Gate, ask: Callable[..., Awaitable[bytes]]) -> None:
        self._gate = gate
        self._ask = ask

    @property
    def report(self) -> Mapping[str, Any] | None:
        return self._gate.report

    def answer(self, question: bytes, /) -> Awaitable[bytes]:
        return self._ask(self._gate.answer, question)


class Settled(NamedTuple):
    """What became of an order."""

    became: str
    reason: str = ""
    is_taken: bool = False
    """The thread has one step more."""
    is_over: bool = False
    """The thread has ended, or waits for a person."""


def settle(store: Store, step: Step, ended: Ended) -> Settled:
    """Do what the end of a step's process means for its thread, if it is not another machine's by now."""
    order = step.order
    ref = store.ref(thread.ref_name(order.thread))
    status = ref.state.get("status", "idle") if ref else "gone"
    is_taken = ref is not None and ref.target != order.head
    if ref is None or status not in ("idle", "running"):
        with suppress(Conflict):  # it needs its slot no longer, and somebody has seen that already
            queue.release(store, _slot(order))
        return Settled(f"is {status}", is_taken=is_taken, is_over=True)
    is_held = (ref.state.get("lease") or {}).get("token", "") == step.token != ""
    if is_taken or (status == "running" and not is_held):
        return Settled("went on", is_taken=is_taken)
    return _failed(store, step, ended, ref)


def _failed(store: Store, step: Step, ended: Ended, ref: Ref) -> Settled:
    """No step was taken, and nobody else has the thread."""
    slot, report = _slot(step.order), ended.report or {}
    if ended.fault:
        queue.fail(store, slot, ended.fault, seen=ref)
        return Settled("failed", ended.fault)
    if ended.report is None and not step.is_stopped:
        queue.crashed(store, slot, ended.cause, is_loss=ended.code is None, seen=ref)
        return Settled("crashed", ended.cause)
    if "error" in report and report["error"] not in ("Conflict", "StorageError"):
        reason = ". ".join(filter(None, [report["message"], report.get("hint")]))
        queue.suspend(store, slot, reason, seen=ref)
        return Settled("suspended", reason)
    if ref.state.get("status") == "running":
        queue.lay_down(store, slot, seen=ref)
    if "error" in report:  # another process has it, or the server was away for longer than anybody waits
        raise StorageError(report["message"])
    return Settled("was interrupted")


def _slot(order: Order) -> Slot:
    return Slot(order.workflow, order.thread, 0)
