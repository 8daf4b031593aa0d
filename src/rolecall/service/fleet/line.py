"""A machine's connection for notifications, the server's time and leader election."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from rolecall.errors import StorageError
from rolecall.service.fleet.database import CHANNEL, LEADER_LOCK, shown, with_timeouts, without_password
from rolecall.store.clock import steady_ms
from rolecall.store.postgres import SERVER_MS, shut_down

_PAUSE = 3.0
"""Seconds between two queries to the server."""


class Line(threading.Thread):
    """A connection that receives notifications, keeps the server's time and takes part in leader election.

    Leadership is a session lock: it passes to another machine when this session ends, and the server ends a session
    that it has not heard from for a while. It only saves work; operations that must not run twice have their own
    guards.
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
        """Milliseconds by the server's clock, which the whole fleet uses."""
        return steady_ms() + self.clock_ahead_ms

    def open(self) -> None:
        """Connect, or raise, so that a wrong address is reported before anything runs."""
        try:
            self._db = self._connect()
        except psycopg.Error as error:
            raise StorageError(
                f"{shown(self._url)} is not reachable: {without_password(error, self._url)}",
                hint="Check that the server runs and that the address is right, then run it again.",
            ) from error
        self.start()

    def close(self) -> None:
        self._closed.set()
        self.abort()
        if self.is_alive():
            self.join(5)

    def abort(self) -> None:
        """Break off every wait for the server on this connection. May be called from another thread."""
        db = self._db
        if db is not None:
            shut_down(db)

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._db or self._connect() as db:
                    self._db = db
                    self._heard("connected")
                    self._listen(db)
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

    def _listen(self, db: psycopg.Connection[Any]) -> None:
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
