"""Take the steps of one machine, each in its own process, and end those that run out of time.

A step whose lease can no longer be renewed is ended, without the database, before another machine can take the thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rolecall.errors import RolecallError
from rolecall.service.fleet.machines import MachineSettings
from rolecall.service.fleet.orders import Order
from rolecall.service.fleet.reach import Reach
from rolecall.service.policy import ServicePolicy
from rolecall.service.queue import Slot
from rolecall.service.recovery import Settled, settle
from rolecall.service.worker import StepOrder
from rolecall.service.workers import Workers
from rolecall.store.canonical import JsonObject
from rolecall.store.clock import steady_ms
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
                slot = Slot(order.workflow, order.thread, 0)
                settled = await reach.ask(settle, reach.new_store(), slot, ended, head=order.head)
        except Exception as error:  # a problem with one thread must not stop the others
            why = str(error) if isinstance(error, RolecallError | OSError) else repr(error)
            settled = Settled("had trouble", why, is_trouble=True)
        finally:
            del self.running[order.thread]
        if settled.is_trouble:
            self.log(f"{order.thread} is tried again: {settled.reason}")
            return settled
        if settled.is_taken:
            self.total += 1
            self._lately.append(time.monotonic())
        if settled.is_news:
            self.log(f"{order.thread} {settled.line}")
        self.tell(order.thread)
        return settled

    def end_what_is_over(self) -> None:
        """End the steps whose leases are about to expire, without querying the database."""
        margin = self.settings.margin
        for name, worker in self.workers.running.items():
            until = self.running[name].until
            if until is not None and steady_ms() > until - margin * 1000 and not worker.is_stopping:
                self.log(f"{name} is ended: its lease could not be renewed")
                worker.stop(grace=margin / 2)

    def stop(self, *, finish: bool) -> None:
        """Begin no more steps, and interrupt the running steps unless `finish` is true."""
        self.is_stopping = True
        if not finish:
            self.workers.stop()

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
    until: int | None = None
    """When the step's lease ends, in milliseconds of the monotonic clock."""
