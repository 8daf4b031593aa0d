"""Taking orders: those that wait and that this machine has everything for, as long as it has a slot free."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from rolecall.service.fleet.needs import Here, Need
from rolecall.service.fleet.orders import Orders
from rolecall.service.fleet.reach import Reach
from rolecall.service.fleet.step import Steps
from rolecall.service.policy import ServicePolicy

_POLL = 5.0
"""Seconds between two looks for orders when nobody says that there are any."""
_AGAIN = 0.05
"""Seconds until a queue is tried again that another machine was just taking from."""
_ARRIVES = 10.0
"""Seconds within which an order that was taken begins; its slot is kept for it so long."""


class Taking:
    def __init__(
        self,
        reach: Reach,
        orders: Orders,
        steps: Steps,
        *,
        slots: int,
        policy: Callable[[], ServicePolicy],
        is_open: Callable[[], bool],
    ) -> None:
        """`is_open` tells whether the machine takes work at all."""
        self._reach = reach
        self._orders = orders
        self._steps = steps
        self._slots = slots
        self._policy = policy
        self._is_open = is_open
        self._here = Here()
        self._expected: list[float] = []
        """When orders were taken that have not arrived yet."""
        self.lacking: dict[str, str] = {}
        """What orders need that wait and cannot be taken here, and what is missing for it."""
        self.has_orders = asyncio.Event()

    async def round(self) -> None:
        """Take what can be taken, and wait until there may be more."""
        self.has_orders.clear()
        is_refused = self._can_take() and await self._taken_some()
        # Whoever else was refused tries again at another moment.
        pause = _AGAIN * random.uniform(0.5, 1.5) if is_refused else _POLL  # noqa: S311 -- no secret
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self.has_orders.wait()

    def arrived(self) -> None:
        """An order that was taken has begun."""
        if self._expected:
            self._expected.pop()

    def _can_take(self) -> bool:
        self._expected = [at for at in self._expected if at > time.monotonic() - _ARRIVES]
        return self._is_open() and len(self._steps.running) + len(self._expected) < self._slots

    async def _taken_some(self) -> bool:
        """Take what waits; whether something is left that could not be had just now."""
        is_refused = False
        for (workflow, need), count in (await self._reach.ask(self._waiting)).items():
            limit, partition = self._policy().of(workflow).concurrency, need.partition
            for _ in range(count):
                if not self._can_take():
                    return False
                self._expected.append(time.monotonic())  # before it can arrive
                if not await self._reach.ask(self._orders.take, workflow, partition, limit=limit):
                    self.arrived()
                    is_refused = True
                    break
        return is_refused

    def _waiting(self) -> Counter[tuple[str, Need]]:
        """How many orders wait that this machine has everything for, by workflow and what they need; those first of
        which one has waited longest, so that nobody who has many holds up the others."""
        slots = {
            slot.state["order"]: (slot.name.split("/")[1], slot.state["need"])
            for slot in self._reach.store.refs("slot/")
            if "order" in slot.state
        }
        standing = self._orders.standing(slots)
        found: Counter[tuple[str, Need]] = Counter()
        lacking: dict[str, str] = {}
        waiting = [order for order, one in standing.items() if one.status == "ENQUEUED"]
        for order in sorted(waiting, key=lambda order: standing[order].given):
            workflow, text = slots[order]
            need = Need.of(text)
            if why := self._here.lacks(need):
                lacking[text] = why
            else:
                found[workflow, need] += 1
        self.lacking = lacking
        return found
