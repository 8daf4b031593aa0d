"""The steps on one machine: each in its own process, how long it can run, and what its end means for its thread.

A step whose lease can no longer be renewed is ended, without the database, before another machine can take the thread.
After a step has ended, another machine might have taken the thread, so changes apply only if the thread is still as it
was last seen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rolecall.errors import RolecallError, StorageError
from rolecall.service import queue
from rolecall.service.fleet.machines import MachineSettings
from rolecall.service.fleet.orders import Order
from rolecall.service.fleet.reach import Reach
from rolecall.service.policy import ServicePolicy
from rolecall.service.queue import Slot
from rolecall.service.worker import StepOrder
from rolecall.service.workers import GRACE, WorkerExit, Workers
from rolecall.store.canonical import JsonObject
from rolecall.store.clock import steady_ms
from rolecall.store.store import Store
from rolecall.threads.state import read_thread


@dataclass
class Steps:
    """The steps that this machine is taking, keyed by thread. Use it only on the machine's event loop."""

    reach: Reach
    workers: Workers
    settings: MachineSettings
    policy: Callable[[], ServicePolicy]
    log: Callable[[str], None]
    tell: Callable[[str], object]
    """Called from any thread with the id of a thread that has a new event."""
    running: dict[str, RunningStep] = field(default_factory=dict)
    total: int = 0
    """How many steps this machine has taken."""
    is_stopping: bool = False
    _lately: deque[float] = field(default_factory=deque)
    """When the latest steps were taken, by the monotonic clock."""

    async def take(self, order: Order) -> Settled:
        """Carry out an order and return its outcome."""
        if order.thread in self.running:
            return Settled("is running here", is_trouble=True)
        step, reach = RunningStep(order), self.reach
        self.running[order.thread] = step

        def hear(kind: str, value: Any) -> None:
            if kind == "lease":
                step.token = value["token"] if value else step.token
                step.until = steady_ms() + value["deadline"] - reach.now() if value else None
            else:
                self.tell(value)

        try:
            ref = await reach.ask(read_thread, reach.store, order.thread)
            if ref is None or ref.state.status != "idle" or ref.head != order.head:
                settled = Settled("is not due")
            elif self.is_stopping:
                settled = Settled("was handed back")
            else:
                settings, ahead = self.settings, reach.line.clock_ahead_ms
                words = StepOrder(order.thread, order.workflow, settings.name, settings.lease_ms, ahead)
                ended = await self.workers.step(words, limits=self.policy().worker, heard=hear)
                settled = await reach.ask(settle, reach.new_store(), step, ended)
        except Exception as error:  # a problem with one thread must not stop the others
            why = error if isinstance(error, RolecallError | OSError) else repr(error)
            self.log(f"{order.thread} is tried again: {why}")
            return Settled("had trouble", is_trouble=True)
        finally:
            del self.running[order.thread]
        if settled.is_taken:
            self.total += 1
            self._lately.append(time.monotonic())
        if settled.reason or settled.is_over:
            self.log(f"{order.thread} {settled.became}{': ' if settled.reason else ''}{settled.reason}")
        self.tell(order.thread)
        return settled

    def end(self, step: RunningStep, *, grace: float = GRACE) -> None:
        """Ask a step to stop, and kill it if it does not."""
        step.is_stopped = True
        worker = self.workers.running.get(step.order.thread)
        if worker is not None:
            worker.stop(grace=grace)

    def end_what_is_over(self) -> None:
        """End the steps whose leases are about to expire, without querying the database."""
        margin = self.settings.margin
        for step in self.running.values():
            is_ending = step.until is not None and steady_ms() > step.until - margin * 1000
            if is_ending and not step.is_stopped:
                self.log(f"{step.order.thread} is ended: its lease could not be renewed")
                self.end(step, grace=margin / 2)

    def stop(self, *, finish: bool) -> None:
        """Begin no more steps, and interrupt the running steps unless `finish` is true."""
        self.is_stopping = True
        for step in () if finish else self.running.values():
            self.end(step)

    def kill(self) -> None:
        for worker in self.workers.running.values():
            worker.kill()

    def per_minute(self) -> int:
        """Return how many steps this machine has taken in the last minute."""
        while self._lately and self._lately[0] < time.monotonic() - 60:
            self._lately.popleft()
        return len(self._lately)

    def describe(self) -> list[JsonObject]:
        pids = {name: worker.pid for name, worker in self.workers.running.items()}
        return [
            {"thread": name, "workflow": step.order.workflow, "pid": pids.get(name)}
            for name, step in self.running.items()
        ]


@dataclass
class RunningStep:
    """A step that this machine is taking."""

    order: Order
    token: str = ""
    until: int | None = None
    """When the step's lease ends, in milliseconds of the monotonic clock."""
    is_stopped: bool = False
    """Whether this machine has asked the step to stop."""


class Settled(NamedTuple):
    """The outcome of an order."""

    became: str
    reason: str = ""
    is_taken: bool = False
    """Whether the thread has a new step."""
    is_over: bool = False
    """Whether the thread has ended or is waiting for a person."""
    is_trouble: bool = False
    """Whether the step could not be taken or settled, so that it must be ordered again after a pause."""


def settle(store: Store, step: RunningStep, ended: WorkerExit) -> Settled:
    """Update a thread after the process of its step has ended, unless another machine has taken the thread since."""
    slot, report = Slot(step.order.workflow, step.order.thread, 0), ended.report or {}
    ref = read_thread(store, slot.thread)
    status = ref.state.status if ref else "gone"
    is_taken = ref is not None and ref.head != step.order.head
    if ref is None or status not in ("idle", "running"):
        queue.release(store, slot)
        return Settled(f"is {status}", is_taken=is_taken, is_over=True)
    is_held = ref.state.lease.get("token", "") == step.token != ""
    if is_taken or (status == "running" and not is_held):
        return Settled("went on", is_taken=is_taken)

    # The process ended without a step, and nobody else has the thread.
    if ended.report is None and not step.is_stopped:
        queue.count_crash(store, slot, ended.cause, is_loss=ended.code is None, seen=ref)
        return Settled("crashed", ended.cause)
    if "error" in report and report["error"] not in ("Conflict", "StorageError"):
        reason = ". ".join(filter(None, [report["message"], report.get("hint")]))
        queue.suspend(store, slot, reason, seen=ref)
        return Settled("suspended", reason)
    if status == "running":
        queue.lay_down(store, slot, seen=ref)
    if "error" in report:  # another process has the thread, or the server was unavailable for too long
        raise StorageError(report["message"])
    return Settled("was interrupted")
