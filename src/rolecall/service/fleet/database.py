"""How a machine reaches the fleet's PostgreSQL: the schema, connections that are waited for, the server's clock.

A server that is away is waited for; that is here, so that nobody above has to know. What cannot wait is not here: a
machine must end its steps in time although it hears nothing, and `machine.py` does that without asking anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rolecall.errors import Conflict, StorageError, UsageError
from rolecall.store.backend import Change, Move, Ref
from rolecall.store.postgres import PostgresBackend, shut_down

DBOS_SCHEMA = "rolecall_dbos"
CHANNEL = "rolecall_news"
_SCHEMA = "rolecall"
_MIGRATION_LOCK, _LEADER_LOCK = 0x526F6C6563616C01, 0x526F6C6563616C02
HUNG = 20.0
"""Seconds after which an answer does not come any more: the line is dead, or everything stands still."""

# Whoever moves a ref that the fleet waits for wakes it, from whatever program.
_NEWS = f"""
CREATE OR REPLACE FUNCTION {_SCHEMA}.fleet_news() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  PERFORM pg_notify('{CHANNEL}', TG_OP || ' ' || CASE TG_OP WHEN 'DELETE' THEN OLD.name ELSE NEW.name END);
  RETURN NULL;
END $body$;
CREATE OR REPLACE TRIGGER fleet_put AFTER INSERT ON {_SCHEMA}.refs FOR EACH ROW
  WHEN (NEW.name LIKE 'queue/%' OR NEW.name LIKE 'fleet/%') EXECUTE FUNCTION {_SCHEMA}.fleet_news();
CREATE OR REPLACE TRIGGER fleet_moved AFTER UPDATE ON {_SCHEMA}.refs FOR EACH ROW
  WHEN (NEW.name LIKE 'slot/%' OR NEW.name LIKE 'fleet/%') EXECUTE FUNCTION {_SCHEMA}.fleet_news();
CREATE OR REPLACE TRIGGER fleet_removed AFTER DELETE ON {_SCHEMA}.refs FOR EACH ROW
  WHEN (OLD.name LIKE 'slot/%' OR OLD.name LIKE 'queue/%') EXECUTE FUNCTION {_SCHEMA}.fleet_news();
"""
_HAS_NEWS = "SELECT count(*) = 3 FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname LIKE 'fleet%%'"

T = TypeVar("T")


# -- the address --


TIMEOUTS: Mapping[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""So that a line which was cut is noticed within seconds, not within the quarter of an hour that TCP is patient."""
ABANDONED = 5
"""Seconds after which the server undoes a transaction in which nothing happens any more. Whoever is cut off in the
middle of one holds locks that all the others wait for."""


def with_timeouts(url: str) -> str:
    """The same server, with the limits that its address does not give."""
    parts = _parts(url)
    added = {key: value for key, value in TIMEOUTS.items() if key not in parts}
    options = f"{parts.get('options') or ''} -c idle_in_transaction_session_timeout={ABANDONED}s"
    return make_conninfo(url, **added, options=options.strip())


def shown(url: str) -> str:
    """An address as it may be shown: no password, no user."""
    parts = _parts(url)
    return f"postgresql://{parts.get('host') or 'localhost'}:{parts.get('port') or 5432}/{parts.get('dbname') or ''}"


def _parts(url: str) -> dict[str, Any]:
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError(
            "a fleet needs the address of a PostgreSQL database",
            hint="rolecall serve --database postgresql://user@host/database",
        )
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:  # what the driver says quotes the text, password included
        raise UsageError(
            "the address of the PostgreSQL server cannot be read",
            hint="It looks like postgresql://user:password@host:5432/database, with special characters as %40.",
        ) from None


# -- the schema --


def migrate(url: str) -> None:
    """Make what is missing of the tables: once, by whoever comes first, while the others wait."""
    import logging

    from dbos import DBOS
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("dbos").setLevel(logging.ERROR)
    PostgresBackend(with_timeouts(url)).close()  # has a lock of its own for its tables
    try:
        with psycopg.connect(with_timeouts(url), autocommit=True) as db:
            # Asked again and again: a statement that waits for the lock would be waited for in turn by indexes
            # that are made beside running transactions.
            while not _is_true(db, "SELECT pg_try_advisory_lock(%s)", _MIGRATION_LOCK):
                time.sleep(0.2)
            if not _is_true(db, _HAS_NEWS, f"{_SCHEMA}.refs"):
                with db.transaction():
                    db.execute(_NEWS)
            DBOS.migrate(url, schema=DBOS_SCHEMA)
    except (psycopg.Error, SQLAlchemyError) as error:
        raise StorageError(
            f"the tables of the fleet cannot be made in {shown(url)}: {' '.join(str(error).split())[:500]}",
            hint="The user needs the right to create schemas in the database.",
        ) from error


def _is_true(db: psycopg.Connection[Any], question: LiteralString, value: object) -> bool:
    row = db.execute(question, (value,)).fetchone()
    return row is not None and bool(row[0])


# -- connections that many threads share --


class SharedBackend:
    """A backend for many threads over a few connections. A server that is away is waited for.

    What was being committed when the line broke is looked for afterwards: it is done once, and said to be done.
    Only an event that was committed alone may be told twice.
    """

    _VERBS = frozenset(
        ("record", "records", "stored", "ids_with_prefix", "ref", "refs", "names", "history", "events")
    )

    def __init__(self, url: str, *, size: int) -> None:
        self._url = with_timeouts(url)
        self._free: list[PostgresBackend] = []
        self._room = threading.Semaphore(size)
        self._busy: dict[PostgresBackend, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __getattr__(self, verb: str) -> Any:
        if verb not in self._VERBS:
            raise AttributeError(verb)
        return partial(self._ask, verb)

    def _ask(self, verb: str, *args: Any, **options: Any) -> Any:
        return self._patiently(lambda backend: getattr(backend, verb)(*args, **options))

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        is_uncertain = False
        # A server that crashes forgets what it was not told to write down: a lease, and others would begin anew.
        durable = durable or bool(change.moves)

        def work(backend: PostgresBackend) -> list[Ref]:
            nonlocal is_uncertain
            try:
                return backend.commit(change, now=now, durable=durable)
            except Conflict:
                done = _already_done(backend, change, now) if is_uncertain else None
                if done is None:
                    raise
                return done
            except StorageError:
                is_uncertain = True
                raise

        return self._patiently(work)

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed.set()
        with self._lock:
            free, self._free = self._free, []
        for backend in free:
            backend.close()
        self.abort(older_than=0.0)

    def abort(self, *, older_than: float = HUNG) -> None:
        """Give up what has waited for an answer so long that none will come; it is tried again on a new line."""
        now = time.monotonic()
        with self._lock:
            hung = [backend for backend, since in self._busy.items() if now - since >= older_than]
        for backend in hung:
            backend.abort()

    def _patiently(self, work: Callable[[PostgresBackend], T]) -> T:
        while True:
            try:
                return self._once(work)
            except StorageError as error:
                if not is_outage(error) or self._closed.wait(0.5):
                    raise

    def _once(self, work: Callable[[PostgresBackend], T]) -> T:
        with self._room:
            with self._lock:
                backend = self._free.pop() if self._free else None
            if backend is None:
                backend = PostgresBackend(self._url, create=False)
            with self._lock:
                self._busy[backend] = time.monotonic()
            is_sound = False
            try:
                result = work(backend)
                is_sound = True
                return result
            except StorageError:
                raise
            except BaseException:
                is_sound = True
                raise
            finally:
                self._give_back(backend, is_sound=is_sound)

    def _give_back(self, backend: PostgresBackend, *, is_sound: bool) -> None:
        with self._lock:
            del self._busy[backend]
            is_kept = is_sound and not self._closed.is_set()
            if is_kept:
                self._free.append(backend)
        if not is_kept:
            backend.close()


def is_outage(error: StorageError) -> bool:
    """Whether the server is away, rather than unwilling."""
    unwilling = (pg.DiskFull, pg.ReadOnlySqlTransaction, pg.InsufficientPrivilege, pg.LockNotAvailable)
    cause = error.__cause__
    return isinstance(cause, psycopg.OperationalError) and not isinstance(cause, unwilling)


def _already_done(backend: PostgresBackend, change: Change, now: int) -> list[Ref] | None:
    """The refs of a change that was committed although nobody could say so; None: it was not."""
    found = [_moved(backend, move, now) for move in change.moves]
    done = [ref for ref in found if ref is not None]
    return done if done and len(done) == len(found) else None


def _moved(backend: PostgresBackend, move: Move, now: int) -> Ref | None:
    ref = backend.ref(move.name)
    if move.removes:
        return Ref(move.name, None, {}, move.expected + 1, now) if ref is None else None
    is_ours = (
        ref is not None
        and ref.version == move.expected + 1
        and ref.target == move.target
        and ref.state == dict(move.state or {})
    )
    return ref if is_ours else None


# -- the line that hears news --


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
        self._heard = heard
        self._closed = threading.Event()
        self._db: psycopg.Connection[Any] | None = None
        self.contact = time.monotonic()
        """When the server last answered."""
        self.clock_ahead_ms = 0
        """How far the server's clock is before this machine's."""
        self.is_leading = False

    def now(self) -> int:
        """Milliseconds by the server's clock, which is the one of the whole fleet."""
        return time.time_ns() // 1_000_000 + self.clock_ahead_ms

    def open(self) -> None:
        """Connect, or raise: what is wrong with an address is told before anything runs."""
        try:
            self._db = self._connected()
        except psycopg.Error as error:
            raise StorageError(
                f"{shown(self._url)} is not reachable: {' '.join(str(error).split())}",
                hint="Check that the server runs and that the address is right, then run it again.",
            ) from error
        self.start()

    def close(self) -> None:
        self._closed.set()
        self.abort()
        self.join(5)

    def abort(self) -> None:
        """From another thread: whoever waits for the server on this line waits no longer."""
        db = self._db
        if db is not None:
            shut_down(db)

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._db or self._connected() as db:
                    self._db = db
                    self._heard("connected")
                    self._listen(db)
            except (psycopg.Error, OSError):
                pass  # the next try tells; how long it lasts is seen by `contact`
            self._db, self.is_leading = None, False
            self._closed.wait(0.3)

    def _connected(self) -> psycopg.Connection[Any]:
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
        while not self._closed.is_set():
            for note in db.notifies(timeout=1.0):
                self._heard(note.payload)
            self._ask(db)

    def _ask(self, db: psycopg.Connection[Any]) -> None:
        before, since = time.time_ns(), time.monotonic()
        ask = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        row = db.execute(
            ask if self.is_leading else f"{ask}, pg_try_advisory_lock({_LEADER_LOCK})"
        ).fetchone()
        assert row is not None  # noqa: S101 -- a select without a table has one row
        self.clock_ahead_ms = row[0] - (before + time.time_ns()) // 2_000_000
        self.contact = since
        self.is_leading = self.is_leading or bool(row[1])
