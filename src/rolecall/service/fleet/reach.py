"""A machine's access to the database.

`Reach` runs the event loop's queries in threads, which wait for an unavailable server. The loop gives up queries that
have waited too long (`give_up_dead_lines`); they are retried on a new connection. `ServerLine` is the connection for
notifications, the server's time and leader election.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import psycopg

from rolecall.service.fleet.database import CHANNEL, LEADER_LOCK, with_timeouts
from rolecall.service.fleet.shared import HUNG, SharedBackend
from rolecall.store.clock import steady_ms
from rolecall.store.postgres import SERVER_MS, PostgresBackend, PostgresServer, shut_down
from rolecall.store.store import Store

_PAUSE = 3.0
"""Seconds between two queries on the connection of `ServerLine`."""
_CONNECTIONS = 4
SILENCE = 10.0
"""Seconds without an answer after which the database counts as unavailable."""

T = TypeVar("T")


class Reach:
    def __init__(self, url: str, *, lease_ms: int, threads: int, heard: Callable[[str], object]) -> None:
        self.line = ServerLine(url, silence=max(2.0, lease_ms / 4000), heard=heard)
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
        """Connect, or raise an error. Return the dispatcher's connection."""
        await asyncio.to_thread(self.line.open)
        self._decider = await self.ask(PostgresBackend, with_timeouts(self._url))
        return self._decider

    async def ask(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run `work`, which queries the database, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *args, **options))

    async def decide(self, work: Callable[[], T]) -> T:
        """Run `work`, which uses the dispatcher's connection, one call at a time."""

        def work_and_time() -> T:
            self._decides_since = time.monotonic()
            try:
                return work()
            finally:
                self._decides_since = None

        return await asyncio.get_running_loop().run_in_executor(self._deciding, work_and_time)

    def is_heard(self) -> bool:
        """Return whether the database answers."""
        return time.monotonic() - self.line.contact < SILENCE

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


class ServerLine(threading.Thread):
    """A connection that receives notifications, keeps the server's time and takes part in leader election.

    Leadership is a session lock: it passes to another machine when this session ends, and the server ends a session
    that it has not heard from for a while. Leadership only avoids duplicate work; operations that must not run twice
    have guards of their own.
    """

    def __init__(self, url: str, *, silence: float, heard: Callable[[str], object]) -> None:
        """The server ends the session after `silence` seconds without a query."""
        super().__init__(name="fleet-line", daemon=True)
        self._url = url
        self._silence_ms = round(silence * 1000)
        self._pause = min(_PAUSE, silence / 3)
        self._heard = heard
        self._closed = threading.Event()
        self._db: psycopg.Connection[Any] | None = None
        self.contact = time.monotonic()
        """When the server last answered."""
        self.clock_ahead_ms = 0
        """How far the server's clock is ahead of this machine's monotonic clock."""
        self.is_leading = False

    def now(self) -> int:
        """Return the time in milliseconds by the server's clock, which the whole fleet uses."""
        return steady_ms() + self.clock_ahead_ms

    def open(self) -> None:
        """Connect, or raise an error, so that a wrong address is reported before anything runs."""
        with PostgresServer(self._url).translate_errors():
            self._db = self._connect()
        self.start()

    def close(self) -> None:
        self._closed.set()
        self.abort()
        if self.is_alive():
            self.join(5)

    def abort(self) -> None:
        """Break off every wait for the server on this connection. This method can be called from another thread."""
        db = self._db
        if db is not None:
            shut_down(db)

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._db or self._connect() as db:
                    self._db = db
                    self._heard("connected")
                    news = select.poll()  # `select.select` cannot handle descriptors above 1023
                    news.register(db, select.POLLIN)
                    while not self._closed.is_set():
                        for note in db.notifies(timeout=0):
                            self._heard(note.payload)
                        left = self.contact + self._pause - time.monotonic()
                        if left <= 0:
                            self._ask(db)
                        else:  # the driver's own wait would wake ten times a second
                            news.poll(left * 1000)
            except (psycopg.Error, OSError):
                pass  # try again; `contact` shows how long the outage lasts
            self._db, self.is_leading = None, False
            self._closed.wait(0.3)

    def _connect(self) -> psycopg.Connection[Any]:
        db = psycopg.connect(with_timeouts(self._url), autocommit=True)
        try:
            db.execute(f"SET idle_session_timeout = {self._silence_ms}")
            db.execute(f"LISTEN {CHANNEL}")
            self._ask(db)
        except BaseException:
            db.close()
            raise
        return db

    def _ask(self, db: psycopg.Connection[Any]) -> None:
        before, since = steady_ms(), time.monotonic()
        ask = f"SELECT {SERVER_MS}"
        row = db.execute(ask if self.is_leading else f"{ask}, pg_try_advisory_lock({LEADER_LOCK})").fetchone()
        assert row is not None  # noqa: S101 -- a select without a table has one row
        self.clock_ahead_ms = row[0] - (before + steady_ms()) // 2
        self.contact = since
        if not self.is_leading and row[1]:
            self.is_leading = True
            self._heard("leads")
