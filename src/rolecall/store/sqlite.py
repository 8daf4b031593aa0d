"""The default backend: one SQLite file in WAL mode.

Nodes are appended in the order they were put, so a thread's nodes are stored together, and the nodes put since a time
are a range. A unique index finds nodes by id. Every method is one short transaction, because an open read would keep
the WAL from being checkpointed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rolecall.errors import Damaged, Hint, StorageError, UsageError
from rolecall.store.backend import (
    FRESH_MS,
    Change,
    Damage,
    Durability,
    NodeRecord,
    Ref,
    collision,
    newer_format,
    no_store,
    require,
)
from rolecall.store.lazy import Module
from rolecall.store.sql import PAGE, RECORD, Row, SqlTables

if TYPE_CHECKING:
    from urllib import parse as urls
else:
    urls = Module("urllib.parse")  # needed only for a read-only folder

_APPLICATION = int.from_bytes(b"Role", "big")
_FORMAT = 1
_PATIENCE = 60
"""Seconds to wait for another process's lock."""

_TABLES = """
CREATE TABLE nodes (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  type TEXT NOT NULL,
  data BLOB NOT NULL,
  refs TEXT NOT NULL,
  sha256 BLOB,
  created INTEGER NOT NULL,
  put_at INTEGER NOT NULL
);
CREATE INDEX nodes_of_type ON nodes (type);
CREATE TABLE refs (
  name TEXT PRIMARY KEY,
  target TEXT,
  state TEXT NOT NULL,
  version INTEGER NOT NULL,
  updated INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE moves (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  target TEXT NOT NULL,
  at INTEGER NOT NULL
);
CREATE INDEX moves_of_ref ON moves (name);
CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  stream TEXT NOT NULL,
  kind TEXT NOT NULL,
  body TEXT NOT NULL,
  at INTEGER NOT NULL
);
CREATE INDEX events_of_stream ON events (stream);
"""


class SqliteBackend(SqlTables):
    """A store in one file. The first write creates the file, so that an earlier failure leaves no trace.

    With `create=False`, a store that does not exist is an error.
    """

    clock: Callable[[], int] | None = None
    # Return whatever a damaged column contains, so that the damage can be reported.
    _record_columns = (
        "id, CAST(type AS TEXT), CAST(data AS BLOB),"
        " CASE typeof(created) WHEN 'integer' THEN created END, CAST(refs AS TEXT), CAST(sha256 AS BLOB)"
    )
    # A node whose put time was lost to damage never counts as old.
    _put_at = f"CASE typeof(put_at) WHEN 'integer' THEN put_at ELSE {1 << 62} END"

    def __init__(self, path: str, *, create: bool = True, durability: Durability = "heads") -> None:
        # An absolute path is never taken for a URI or for `:memory:`.
        self.path = path = os.path.abspath(path)
        self.address = os.path.realpath(path)
        self._durability = durability
        self._inside = False
        self._synchronous = ""
        self._translated = _Translation(path)
        self._damage_error = partial(_damage, path)
        with self._translated:
            self._is_made = _exists(path)
            if not self._is_made and not create:
                raise no_store(path)
            if self._is_made:
                self._connection = _open(path, create=create)
            else:  # reads use an empty store until the file exists
                self._connection = sqlite3.connect(":memory:", isolation_level=None)
                _create_tables(self._connection)

    @property
    def _db(self) -> sqlite3.Connection:
        if not self._is_made and _exists(self.path):
            self._make()  # another process has created the file in the meantime
        return self._connection

    def _make(self) -> None:
        if not self._is_made:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            made = _open(self.path, create=True)
            self._connection.close()
            self._connection, self._is_made = made, True

    # -- writing --

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        wait = self._durability == "always" or (self._durability == "heads" and durable)
        with self._translated, self._writing("FULL" if wait else "NORMAL"):
            require(change.types, self.find_stored(change.types))
            # Two records of one change can be the same node; the dictionary keeps one of them.
            missing = {record.id: record for record in change.nodes}
            stored = self.records(list(missing))
            for found in stored:
                record = missing.pop(found.id, None)
                if record is None:
                    raise self._damage_error(f"its index takes {found.id!r} for another node")
                if (found.type, found.data) != (record.type, record.data):
                    raise collision(record, found.sha256)
            # Move nodes that are put again to the end, so that a running collection sees them.
            self._run(
                f"INSERT OR REPLACE INTO nodes ({RECORD}, put_at) SELECT {RECORD}, ? FROM nodes"
                " WHERE id = ? AND put_at < ?",
                [(now, found.id, now - FRESH_MS) for found in stored],
            )
            rows = [
                (r.id, r.type, r.data, r.created, "".join(r.refs or ()), r.sha256, now)
                for r in missing.values()
            ]
            self._run(f"INSERT INTO nodes ({RECORD}, put_at) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            return self._move_refs(change, now)

    def _put_ref(self, ref: Ref, state: str) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO refs (name, target, state, version, updated) VALUES (?, ?, ?, ?, ?)",
            (ref.name, ref.target, state, ref.version, ref.updated),
        )

    def _run(self, statement: str, rows: Sequence[Row]) -> None:
        if rows:
            self._db.executemany(statement, rows)

    @contextmanager
    def _writing(self, synchronous: str) -> Iterator[None]:
        """Run a write transaction that takes the lock at once, so that what the transaction reads cannot change
        meanwhile."""
        self._make()
        if synchronous != self._synchronous and not self._inside:
            self._db.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        # Inside `exclusive`, a failed commit rolls back only itself.
        begin, end, undo = (
            ("SAVEPOINT part", "RELEASE part", "ROLLBACK TO part")
            if self._inside
            else ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
        )
        outer = self._inside
        self._db.execute(begin)
        self._inside = True
        try:
            yield
            self._db.execute(end)
        except BaseException:
            if self._db.in_transaction:
                self._db.execute(undo)
            raise
        finally:
            self._inside = outer

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._translated, self._writing("NORMAL" if self._durability == "never" else "FULL"):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._translated:
            db = self._db
            db.execute("BEGIN")
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()  # the first read fixes the snapshot
        try:
            yield
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def delete(self, nodes: Iterable[str]) -> int:
        if not self._inside:
            raise RuntimeError("delete is only safe inside exclusive()")
        with self._translated:
            before = self._db.total_changes
            self._run("DELETE FROM nodes WHERE id = ?", [(node,) for node in nodes])
            return self._db.total_changes - before

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        with self.exclusive():
            if refs is None:
                self._db.execute("REINDEX")
            else:
                rows = [("".join(found), node) for node, found in refs.items()]
                self._run("UPDATE nodes SET refs = ? WHERE id = ?", rows)

    # -- reading --

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated:
            return self._db.execute(query, values).fetchall()

    def _read_nodes(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated:
            db = self._db
            try:
                return db.execute(query, values).fetchall()
            except sqlite3.OperationalError as exc:
                if not _is_undecodable(exc):
                    raise
            # A text contains invalid UTF-8. With replacement characters the text matches no id, so the node is
            # reported.
            db.text_factory = lambda text: text.decode("utf-8", "replace")
            try:
                return db.execute(query, values).fetchall()
            finally:
                db.text_factory = str

    def _read_among(self, select: str, ids: Sequence[str]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            rows += self._read_nodes(f"{select} WHERE id IN ({','.join('?' * len(page))})", page)
        return rows

    def _state_test(self, key: str, wanted: Sequence[str]) -> tuple[str, list[Any]]:
        return f"json_extract(state, ?) IN ({','.join('?' * len(wanted))})", [f'$."{key}"', *wanted]

    def position(self) -> tuple[int, int]:
        highest: dict[str, int] = dict(self._read("SELECT name, seq FROM sqlite_sequence"))
        return highest.get("nodes", 0), highest.get("moves", 0)

    def scan(self) -> Iterator[NodeRecord | Damage]:
        last = 0
        try:
            for last, record in self._scan_rows():  # noqa: B007 - the handler needs the number
                yield record
            return
        except Damaged:
            pass
        # Read the nodes beyond a damaged page one by one. Intact nodes are returned, and lost ones are reported.
        after = ""
        query = f"SELECT id, seq FROM nodes WHERE id > ? ORDER BY id LIMIT {PAGE}"
        while rows := self._read(query, (after,)):
            for node in (node for node, seq in rows if seq > last):
                try:
                    found = self.record(node)
                except Damaged as exc:
                    yield Damage(node, exc.message)
                else:
                    yield found or Damage(
                        node, f"{self.path}: the index lists this node, but it cannot be found"
                    )
            after = self._next_page(rows, after)

    # -- the container --

    def _disk_use(self) -> int:
        files = (self.path, self.path + "-wal")
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))

    def problems(self) -> Iterator[str]:
        try:
            # Unlike quick_check, this also finds rows that are missing from an index.
            for (line,) in self._db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"{self.path}: {line}"
        except sqlite3.DatabaseError as exc:
            yield f"{self.path}: {exc}"

    def close(self) -> None:
        self._connection.close()


# -- opening --


def _exists(path: str) -> bool:
    """Return whether the file exists. Raise an error if that cannot be determined."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _open(path: str, *, create: bool) -> sqlite3.Connection:
    try:
        return _connect(path, create=create)
    except sqlite3.OperationalError as exc:
        if getattr(exc, "sqlite_errorcode", 0) != sqlite3.SQLITE_IOERR_SHMSIZE:
            raise
    # A full disk has no room for the shared-memory file, which an exclusive connection does not need.
    return _connect(path, create=create, alone=True)


def _connect(path: str, *, create: bool, alone: bool = False) -> sqlite3.Connection:
    address, is_uri = path, False
    if os.path.exists(path) and not os.access(os.path.dirname(path) or ".", os.W_OK):
        # WAL needs a shared-memory file next to the database. If that file cannot be created, no other process can be
        # writing, unless a WAL already exists.
        mode = "ro" if os.path.exists(path + "-wal") else "ro&immutable=1"
        address, is_uri = f"file:{urls.quote(path)}?mode={mode}", True
    db = sqlite3.connect(address, uri=is_uri, isolation_level=None, timeout=_PATIENCE)
    try:
        if alone:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if not tables:
            if not create:
                raise no_store(path)
            _create_tables(db)
        elif application != _APPLICATION and not tables >= {"nodes", "refs", "moves", "events"}:
            raise UsageError(f"{path} is the database of another program", hint="Name another file.")
        elif version > _FORMAT:
            raise newer_format(path, version, _FORMAT)
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection) -> None:
    use_wal(db, patience=_PATIENCE)
    db.execute("BEGIN IMMEDIATE")
    # Another process might have been first. With the lock held, this answer is final.
    if db.execute("PRAGMA user_version").fetchone() == (0,):
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_FORMAT}")
    db.execute("COMMIT")


def use_wal(db: sqlite3.Connection, *, patience: float) -> None:
    """Switch to WAL mode. SQLite does not wait for a locked database here, so retry for up to `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


# -- errors --


class _Translation:
    """Translates SQLite's errors into ours, which say what happened, to which file, and what to do. This is a class,
    not a generator, because every read uses it and a class is faster."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        path = self._path
        if isinstance(exc, sqlite3.ProgrammingError) and "in that same thread" in str(exc):
            hint = "Call `rolecall.open` in each Python thread."
            raise UsageError(f"the store {path} was opened in another Python thread", hint=hint) from exc
        if isinstance(exc, sqlite3.DatabaseError):
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _is_undecodable(exc):
                raise _damage(path, str(exc)) from exc
            if "malformed JSON" in str(exc):
                raise _damage(path, "what is kept with a ref is not JSON") from exc
            message, hint = _REFUSALS.get(code, _OTHER_REFUSAL)
            raise StorageError(message.format(path=path, exc=exc), hint=hint) from exc
        if isinstance(exc, UnicodeDecodeError):
            # The driver's message quotes the damaged text, so the message itself cannot be decoded.
            raise _damage(path, "it cannot be read") from exc
        if isinstance(exc, OSError):
            hint = "Check that the folder exists and belongs to you."
            raise StorageError(f"{path} cannot be used: {exc.strerror}: {exc.filename}", hint=hint) from exc


_REFUSALS = {
    sqlite3.SQLITE_FULL: (
        "no room to write {path}: {exc}",
        "Free some disk space, then try again.",
    ),
    sqlite3.SQLITE_READONLY: ("{path} cannot be written: {exc}", "Make the file and its folder writable."),
    sqlite3.SQLITE_CANTOPEN: (
        "{path} cannot be opened: {exc}",
        "Check that the folder exists and belongs to you.",
    ),
    **dict.fromkeys(
        (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        (f"{{path}} stayed locked for {_PATIENCE} s", "Another process is writing; try again."),
    ),
}
_OTHER_REFUSAL = ("{path}: {exc}", "Check the disk and the file, then try again.")


def _is_undecodable(exc: sqlite3.DatabaseError) -> bool:
    """Return whether the error is about text that is not valid UTF-8. Such an error has no code, and only damage causes
    it."""
    return str(exc).startswith("Could not decode")


def _damage(path: str, reason: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {reason}",
        hint=Hint(
            "Keep a copy of the file. See what can be read, save that, and restore the rest from a bundle",
            "rescue_store",
        ),
    )
