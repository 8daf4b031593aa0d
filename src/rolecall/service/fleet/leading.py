"""When the dispatcher runs: as soon as something moves, when time alone changes the answer, and at regular intervals.

One machine leads: it admits threads and sweeps for abandoned ones. The others sweep too, but less often, so that
nothing depends on the leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rolecall.service.fleet.dispatch import Dispatcher
from rolecall.service.fleet.orders import Order
from rolecall.service.fleet.reach import Reach
from rolecall.service.policy import ServicePolicy

_LOOK = 10.0
"""Seconds between two looks at the queue if nothing reports a change."""
_SWEEP = 2.0
"""Seconds between two sweeps by the leader while threads run."""
_SOON = 0.05
_CLEANING = 600.0

T = TypeVar("T")


class Leading:
    def __init__(
        self,
        reach: Reach,
        dispatcher: Dispatcher,
        *,
        policy: Callable[[], ServicePolicy],
        has_news: asyncio.Event,
        lease_ms: int,
    ) -> None:
        """`has_news` is set when something has moved."""
        self._reach = reach
        self._dispatcher = dispatcher
        self._policy = policy
        self._has_news = has_news
        self._pause = lease_ms / 2000
        self._next_sweep = self._next_cleaning = 0.0

    async def round(self) -> None:
        """Decide for the fleet if this machine leads, and sweep when it is time, even if it does not."""
        self._has_news.clear()
        now, leads = time.monotonic(), self._reach.line.is_leading
        again = now + _LOOK
        if leads:
            verdict = await self._decide(self._dispatcher.look)
            again = min(again, self._at(verdict.look_again_at))
            self._next_sweep = min(self._next_sweep, now + _SWEEP)
        if now >= self._next_sweep:
            verdict = await self._decide(self._dispatcher.sweep)
            pause = (_SWEEP if self._dispatcher.has_slots else _LOOK) if leads else self._pause
            # Leases are renewed long before they end, unless the machine is gone.
            lost = self._at(self._dispatcher.lease_ends_at) + _SOON
            self._next_sweep = min(now + pause, self._at(verdict.look_again_at), lost)
        if leads and now >= self._next_cleaning:
            await self._decide(self._dispatcher.forget)
            self._next_cleaning = now + _CLEANING
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.02, min(again, self._next_sweep) - time.monotonic())):
                await self._has_news.wait()

    async def go_on(self, order: Order, *, pause: float) -> None:
        """Order the step after one that was taken. If this fails, the next sweep repairs it."""
        await asyncio.sleep(pause)
        verdict = await self._decide(lambda: self._dispatcher.go_on(order))
        if verdict.wait:  # its agent has reached its rate limit
            self._next_sweep = min(self._next_sweep, self._at(verdict.look_again_at))
            self._has_news.set()

    async def _decide(self, work: Callable[[], T]) -> T:
        def decided() -> T:
            self._dispatcher.policy = self._policy()
            return work()

        return await self._reach.decide(decided)

    def _at(self, moment: int | None) -> float:
        """Convert the fleet's time to this process's monotonic clock; None means never."""
        if moment is None:
            return float("inf")
        return time.monotonic() + (moment - self._reach.now()) / 1000
