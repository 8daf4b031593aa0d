"""The one connection of a machine that hears what moves, tells the server's time, and says who leads."""

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
"""Seconds between two questions to the server."""


class Line(threading.Thread):
    """One connection that hears what moves, tells the server's time, and says who leads.

    Leading is a lock of the session: it goes to another machine when this one's session ends, and the server ends
    a session that it has not heard of for a while. It only saves work: what must not be done by two is
    guarded where it is done.
    """

    def __init__(self, url: str, *, silence: float, heard: Callable[[str], object]) -> None:
        """After `silence` seconds without a word the server ends the session."""
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
        """How far the server's clock is before the one of this machine that nobody sets."""
        self.is_leading = False

    def now(self) -> int:
        """Milliseconds by the server's clock, which is the one of the whole fleet."""
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
        """From another thread: end every wait for the server on this line."""
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
                pass  # the next try tells; how long it lasts is seen by `contact`
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
        news = select.poll()  # `select.select` knows no more than 1024 files
        news.register(db, select.POLLIN)
        while not self._closed.is_set():
            for note in db.notifies(timeout=0):
                self._heard(note.payload)
            left = self.contact + self._pause - time.monotonic()
            if left <= 0:
                self._ask(db)
            else:  # the driver would wait as well, but wakes ten times a second for it
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
