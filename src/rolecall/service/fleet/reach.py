"""The event loop's access to the database: queries run in threads, which wait for an unavailable server.

The loop gives up queries that have waited too long (`give_up_dead_lines`); they are retried on a new connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from rolecall.service.fleet.database import with_timeouts
from rolecall.service.fleet.line import Line
from rolecall.service.fleet.shared import HUNG, SharedBackend
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store

_CONNECTIONS = 4
_SILENCE = 10.0
"""Seconds without an answer after which the database counts as unavailable."""

T = TypeVar("T")


class Reach:
    def __init__(self, url: str, *, lease_ms: int, threads: int, heard: Callable[[str], object]) -> None:
        self.line = Line(url, silence=max(2.0, lease_ms / 4000), heard=heard)
        self.now = self.line.now
        self._url = url
        self._shared = SharedBackend(url, size=_CONNECTIONS)
        self.store = self.new_store()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="fleet-db")
        self._deciding = ThreadPoolExecutor(1, thread_name_prefix="fleet-decide")
        self._decides_since: float | None = None
        self._decider: PostgresBackend | None = None

    def new_store(self) -> Store:
        return Store(self._shared, now=self.now)

    async def open(self) -> PostgresBackend:
        """Connect, or raise. Returns the dispatcher's connection."""
        await asyncio.to_thread(self.line.open)
        self._decider = await self.ask(PostgresBackend, with_timeouts(self._url))
        return self._decider

    async def ask(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run `work`, which queries the database, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *args, **options))

    async def decide(self, work: Callable[[], T]) -> T:
        """Run `work`, which uses the dispatcher's connection, one call at a time."""

        def timed() -> T:
            self._decides_since = time.monotonic()
            try:
                return work()
            finally:
                self._decides_since = None

        return await asyncio.get_running_loop().run_in_executor(self._deciding, timed)

    def is_heard(self) -> bool:
        """Whether the database answers."""
        return self.silent_for() < _SILENCE

    def silent_for(self) -> float:
        return time.monotonic() - self.line.contact

    def give_up_dead_lines(self) -> None:
        if not self.is_heard():
            self.line.abort()
        self._shared.abort()
        since = self._decides_since
        if since is not None and self._decider is not None and time.monotonic() - since > HUNG:
            self._decider.abort()

    def stop_waiting(self) -> None:
        """Stop waiting for a server that is unavailable."""
        self._shared.close()

    def close(self) -> None:
        self.line.close()
        self._shared.close()
        if self._decider is not None:  # do not close it while a thread is using it
            self._decider.close() if self._decides_since is None else self._decider.abort()
        for pool in (self._threads, self._deciding):
            pool.shutdown(wait=False, cancel_futures=True)
