"""The backend of a machine and of its steps, whose users need not handle outages of the server.

Time-critical work does not use it: `step.py` ends steps in time without querying the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg

from rolecall.errors import Conflict, StorageError
from rolecall.service.fleet.database import with_timeouts
from rolecall.store.backend import Change, Ref
from rolecall.store.postgres import PostgresBackend, PostgresServer

HUNG = 20.0
"""Seconds after which no answer is expected any more, because the connection is dead or the server hangs."""

T = TypeVar("T")


class SharedBackend:
    """A backend for many threads over a few connections, which waits while the server is unavailable.

    If a connection breaks during a commit, the backend checks afterwards whether the commit succeeded, so that the
    commit happens only once. Only an event that was committed without a ref might be recorded twice.
    """

    clock = None
    """None, because `ServerLine` keeps the server's time."""

    _VERBS = frozenset({"record", "records", "find_stored", "ids_with_prefix"}).union(
        {"ref", "refs", "names", "history", "events", "newest_event"}
    )

    def __init__(self, url: str, *, size: int) -> None:
        self.address = str(PostgresServer(url, "rolecall"))
        self._url = with_timeouts(url)
        self._free: list[PostgresBackend] = []
        self._room = threading.Semaphore(size)
        self._busy: dict[PostgresBackend, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __getattr__(self, verb: str) -> Any:
        if verb not in self._VERBS:
            raise AttributeError(verb)

        def ask(*args: Any, **options: Any) -> Any:
            return self._patiently(lambda backend: getattr(backend, verb)(*args, **options))

        return ask

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        is_uncertain = False
        # After a server crash, a lease that was not flushed to disk would be lost, and another machine would repeat the
        # step.
        durable = durable or bool(change.moves)

        def work(backend: PostgresBackend) -> list[Ref]:
            nonlocal is_uncertain
            try:
                return backend.commit(change, now=now, durable=durable)
            except Conflict:
                done = _find_done(backend, change, now) if is_uncertain else None
                if done is None:
                    raise
                return done
            except StorageError:
                is_uncertain = True
                raise

        return self._patiently(work)

    def close(self) -> None:
        """Close the connections and stop every wait."""
        self._closed.set()
        with self._lock:
            free, self._free = self._free, []
        for backend in free:
            backend.close()
        self.abort(older_than=0.0)

    def abort(self, *, older_than: float = HUNG) -> None:
        """Abort queries that have waited too long for an answer. They are retried on a new connection."""
        now = time.monotonic()
        with self._lock:
            hung = [backend for backend, since in self._busy.items() if now - since >= older_than]
        for backend in hung:
            backend.abort()

    def _patiently(self, work: Callable[[PostgresBackend], T]) -> T:
        """Do the work on a free connection, and repeat it while the server is unavailable."""
        while True:
            try:
                with self._room, self._borrow() as backend:
                    return work(backend)
            except StorageError as error:
                if not is_outage(error) or self._closed.wait(0.5):
                    raise

    @contextmanager
    def _borrow(self) -> Iterator[PostgresBackend]:
        """Lend a connection for exclusive use. It is closed after a `StorageError`, otherwise lent again."""
        with self._lock:
            backend = self._free.pop() if self._free else None
        backend = backend or PostgresBackend(self._url, create=False)
        with self._lock:
            self._busy[backend] = time.monotonic()
        is_kept = True
        try:
            yield backend
        except StorageError:
            is_kept = False
            raise
        finally:
            with self._lock:
                del self._busy[backend]
                is_kept = is_kept and not self._closed.is_set()
                if is_kept:
                    self._free.append(backend)
            if not is_kept:
                backend.close()


def is_outage(error: StorageError) -> bool:
    """Return whether the server is unavailable or dropped an idle connection, rather than refused the operation."""
    away = (psycopg.OperationalError, pg.IdleInTransactionSessionTimeout)
    unwilling = (pg.DiskFull, pg.ReadOnlySqlTransaction, pg.InsufficientPrivilege, pg.LockNotAvailable)
    cause = error.__cause__
    return isinstance(cause, away) and not isinstance(cause, unwilling)


def _find_done(backend: PostgresBackend, change: Change, now: int) -> list[Ref] | None:
    """Return the refs of a change that was committed although the connection broke, or None if it was not committed."""
    done = []
    for move in change.moves:
        ref, version = backend.ref(move.name), move.expected + 1
        wanted = None
        if not move.removes:
            state, updated = dict(move.state or {}), ref.updated if ref else 0
            wanted = Ref(move.name, move.target, state, version, updated)
        if ref != wanted:
            return None
        done.append(ref or Ref(move.name, None, {}, version, now))
    return done or None
