"""The default backend: one SQLite file in WAL mode.

Nodes are appended in the order they were put, so a thread's nodes lie together and "put since" is a
range; a unique index finds them by id. Every method is one short transaction: an iterator pages
through the table instead of holding a read open, which would keep the WAL from being folded back.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rolecall.errors import Damaged, StorageError, UsageError
from rolecall.store.backend import (
    FRESH_MS,
    Change,
    Damage,
    Durability,
    Event,
    Move,
    Moved,
    Put,
    Record,
    Ref,
    collision,
    conflict,
    no_store,
    require,
    stored_object,
)
from rolecall.store.ids import NODE_ID_LENGTH

_APPLICATION = int.from_bytes(b"Role", "big")
_FORMAT = 1
_PAGE = 500
_PATIENCE = 60
"""Seconds that a lock of another process is waited for."""

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

_COLUMNS = "id, type, data, created, refs, sha256"
# Whatever the columns hold has to arrive, so that what is damaged can be named.
_RECORD = (
    "id, CAST(type AS TEXT), CAST(data AS BLOB),"
    " CASE typeof(created) WHEN 'integer' THEN created END, CAST(refs AS TEXT), CAST(sha256 AS BLOB)"
)


class SqliteBackend:
    """A store in one file, made by the first write: what fails before that leaves no trace.

    `create=False` refuses to make one.
    """

    clock: Callable[[], int] | None = None

    def __init__(self, path: str, *, create: bool = True, durability: Durability = "heads") -> None:
        self.path = path = os.path.abspath(path)  # which SQLite cannot take for a URI or for memory
        self._durability = durability
        self._inside = False
        self._synchronous = ""
        self._translated = _Translation(path)
        with self._translated:
            self._is_made = _exists(path)
            if not self._is_made and not create:
                raise no_store(path)
            self._connection = _open(path, create=create) if self._is_made else _nothing()

    @property
    def _db(self) -> sqlite3.Connection:
        if not self._is_made and _exists(self.path):
            self._make()  # by somebody else, meanwhile
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
            require(change.types, self.stored(change.types))
            self._put_records(change.nodes, now)
            moved = [self._move(move, now) for move in change.moves]
            self._db.executemany(
                "INSERT INTO events (stream, kind, body, at) VALUES (?, ?, ?, ?)",
                [
                    (event.stream, event.kind, _json(event.body), now if event.at is None else event.at)
                    for event in change.events
                ],
            )
        return moved

    def _put_records(self, records: Sequence[Record], now: int) -> None:
        # Two records of one change may be the same node; the dict keeps one of each.
        missing = {record.id: record for record in records}
        stored = self.records(list(missing))
        for found in stored:
            record = missing.pop(found.id, None)
            if record is None:
                raise _damaged(self.path, f"its index takes {found.id!r} for another node")
            if (found.type, found.data) != (record.type, record.data):
                raise collision(record, found.sha256)
        self._refresh(stored, now)
        self._db.executemany(
            f"INSERT INTO nodes ({_COLUMNS}, put_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (r.id, r.type, r.data, r.created, "".join(r.refs or ()), r.sha256, now)
                for r in missing.values()
            ],
        )

    def _refresh(self, records: Sequence[Record], now: int) -> None:
        """Move nodes to the end, so that a running collection sees they were put again."""
        self._db.executemany(
            f"INSERT OR REPLACE INTO nodes ({_COLUMNS}, put_at) SELECT {_COLUMNS}, ? FROM nodes"
            f" WHERE id = ? AND put_at < ?",
            [(now, record.id, now - FRESH_MS) for record in records],
        )

    def _move(self, move: Move, now: int) -> Ref:
        current = self.ref(move.name)
        if (current.version if current else 0) != move.expected:
            raise conflict(move, current)
        at = now if move.at is None else move.at
        ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, at)
        if move.removes:
            self._db.execute("DELETE FROM refs WHERE name = ?", (move.name,))
            self._db.execute("DELETE FROM moves WHERE name = ?", (move.name,))
            return ref
        self._db.execute(
            "INSERT OR REPLACE INTO refs (name, target, state, version, updated) VALUES (?, ?, ?, ?, ?)",
            (ref.name, ref.target, _json(ref.state), ref.version, at),
        )
        if ref.target is not None and (current is None or current.target != ref.target):
            self._db.execute(
                "INSERT INTO moves (name, target, at) VALUES (?, ?, ?)", (ref.name, ref.target, at)
            )
        return ref

    @contextmanager
    def _writing(self, synchronous: str) -> Iterator[None]:
        """A write transaction from its first statement, so that what it reads cannot change under it."""
        self._make()
        if synchronous != self._synchronous and not self._inside:
            self._db.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        # Inside `exclusive` a commit that fails takes back only itself.
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
            self._db.executemany("DELETE FROM nodes WHERE id = ?", [(node,) for node in nodes])
            return self._db.total_changes - before

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        with self.exclusive():
            if refs is None:
                self._db.execute("REINDEX")
            else:
                rows = [("".join(found), node) for node, found in refs.items()]
                self._db.executemany("UPDATE nodes SET refs = ? WHERE id = ?", rows)

    # -- reading nodes --

    def record(self, node: str) -> Record | None:
        with self._translated:
            rows = self._select(f"SELECT {_RECORD} FROM nodes WHERE id = ?", (node,))
        return _record(rows[0]) if rows else None

    def records(self, nodes: Sequence[str]) -> list[Record]:
        with self._translated:
            return [
                _record(row) for row in self._select_in(f"SELECT {_RECORD} FROM nodes WHERE id IN", nodes)
            ]

    def stored(self, nodes: Sequence[str]) -> set[str]:
        with self._translated:
            return {node for (node,) in self._select_in("SELECT id FROM nodes WHERE id IN", nodes)}

    def _select(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.OperationalError as exc:
            if not _is_undecodable(exc):
                raise
        # Bytes that are no UTF-8 stand in a text. Shown as they can be, they fit no id and are named.
        self._db.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            return self._db.execute(query, values).fetchall()
        finally:
            self._db.text_factory = str

    def _select_in(self, select: str, nodes: Sequence[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(nodes), _PAGE):
            page = nodes[start : start + _PAGE]
            marks = ",".join("?" * len(page))
            rows += self._select(f"{select} ({marks})", page)
        return rows

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        with self._translated:
            rows = self._db.execute(
                "SELECT id FROM nodes WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
                (prefix, prefix + "~", limit),
            ).fetchall()
        return [node for (node,) in rows]

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        for _, node in self._pages("seq, id", "type = ? AND ", (type_id,)):
            yield node

    def puts(self, after: int = 0) -> Iterator[Put]:
        # A time lost to damage counts as one that never grows old.
        put_at = f"CASE typeof(put_at) WHEN 'integer' THEN put_at ELSE {1 << 62} END"
        for row in self._pages(f"seq, id, {put_at}", "", (), after=after):
            yield Put(*row)

    def position(self) -> tuple[int, int]:
        with self._translated:
            highest = dict(self._db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        return highest.get("nodes", 0), highest.get("moves", 0)

    def scan(self) -> Iterator[Record | Damage]:
        last = 0
        try:
            for row in self._pages(f"seq, {_RECORD}", "", ()):
                last = row[0]
                yield _record(row[1:])
        except Damaged:
            yield from self._scan_by_id(beyond=last)

    def _scan_by_id(self, beyond: int) -> Iterator[Record | Damage]:
        """What lies beyond a damaged page, each by itself: the rest can still be had, and the lost is named."""
        after = ""
        while True:
            with self._translated:
                rows = self._db.execute(
                    f"SELECT id, seq FROM nodes WHERE id > ? ORDER BY id LIMIT {_PAGE}", (after,)
                ).fetchall()
            if not rows:
                return
            for node in (node for node, seq in rows if seq > beyond):
                try:
                    record = self.record(node)
                except Damaged as exc:
                    yield Damage(node, exc.message)
                else:
                    yield record or Damage(node, f"{self.path}: its index lists it, and it cannot be found")
            after = self._last_of(rows, after)

    def _pages(
        self, columns: str, where: str, values: tuple[Any, ...], after: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM nodes WHERE {where}seq > ? ORDER BY seq LIMIT {_PAGE}"
        while True:
            with self._translated:
                rows = self._select(query, (*values, after))
            if not rows:
                return
            yield from rows
            after = self._last_of(rows, after)

    def _last_of(self, rows: list[tuple[Any, ...]], after: Any) -> Any:
        """Where the next page begins. Rows of a damaged table may come in any order, without an end."""
        if rows[-1][0] <= after:
            raise _damaged(self.path, f"row {rows[-1][0]} comes after row {after}")
        return rows[-1][0]

    # -- reading refs and events --

    def ref(self, name: str) -> Ref | None:
        with self._translated:
            row = self._db.execute(
                "SELECT name, target, state, version, updated FROM refs WHERE name = ?", (name,)
            ).fetchone()
        return _ref(row) if row else None

    def refs(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, Sequence[str]] | None = None,
        before: str | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Ref]:
        tests, values = ["name >= ?", "name < ?"], [prefix, prefix + "\U0010ffff"]
        for key, wanted in (where or {}).items():
            tests.append(f"json_extract(state, ?) IN ({','.join('?' * len(wanted))})")
            values += [f'$."{key}"', *wanted]
        if before is not None:
            tests.append("name < ?" if newest_first else "name > ?")
            values.append(before)
        with self._translated:
            rows = self._db.execute(
                f"SELECT name, target, state, version, updated FROM refs WHERE {' AND '.join(tests)}"
                f" ORDER BY name {'DESC' if newest_first else 'ASC'} LIMIT ?",
                (*values, -1 if limit is None else limit),
            ).fetchall()
        return [_ref(row) for row in rows]

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        below = prefix + "\U0010ffff" if before is None else before
        with self._translated:
            rows = self._db.execute(
                "SELECT name FROM refs WHERE name >= ? AND name < ? ORDER BY name DESC LIMIT ?",
                (prefix, below, -1 if limit is None else limit),
            ).fetchall()
        return [name for (name,) in rows]

    def history(self, name: str) -> list[Moved]:
        with self._translated:
            rows = self._db.execute(
                "SELECT seq, name, target, at FROM moves WHERE name = ? ORDER BY seq", (name,)
            ).fetchall()
        return [Moved(*row) for row in rows]

    def roots(self, since: int = 0) -> Iterator[Moved]:
        while True:
            with self._translated:
                rows = self._db.execute(
                    f"SELECT seq, name, target, at FROM moves WHERE seq > ? ORDER BY seq LIMIT {_PAGE}",
                    (since,),
                ).fetchall()
            if not rows:
                return
            yield from (Moved(*row) for row in rows)
            since = self._last_of(rows, since)

    def events(self, stream: str | None = None, *, after: int = 0, limit: int | None = None) -> list[Event]:
        test, values = ("", ()) if stream is None else ("stream = ? AND ", (stream,))
        with self._translated:
            rows = self._db.execute(
                f"SELECT seq, stream, kind, body, at FROM events WHERE {test}seq > ? ORDER BY seq LIMIT ?",
                (*values, after, -1 if limit is None else limit),
            ).fetchall()
        return [
            Event(seq, name, kind, stored_object(body, f"event {seq}"), at)
            for seq, name, kind, body, at in rows
        ]

    # -- the container --

    def size(self) -> dict[str, Any]:
        with self._translated:
            nodes, payloads = self._db.execute(
                "SELECT count(*), COALESCE(sum(length(data)), 0) FROM nodes"
            ).fetchone()
            by_type = (
                "SELECT COALESCE(CAST(type AS TEXT), '?'), count(*) FROM nodes GROUP BY type ORDER BY 2 DESC"
            )
            types = dict(self._select(by_type, ()))
            (refs,) = self._db.execute("SELECT count(*) FROM refs").fetchone()
            (events,) = self._db.execute("SELECT count(*) FROM events").fetchone()
        disk = sum(
            os.path.getsize(self.path + end) for end in ("", "-wal") if os.path.exists(self.path + end)
        )
        return {
            "nodes": nodes,
            "bytes": payloads,
            "types": types,
            "refs": refs,
            "events": events,
            "disk": disk,
        }

    def problems(self) -> Iterator[str]:
        try:
            # Unlike quick_check, this one also finds a row that its index has lost.
            for (line,) in self._db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"{self.path}: {line}"
        except sqlite3.DatabaseError as exc:
            yield f"{self.path}: {exc}"

    def close(self) -> None:
        self._connection.close()


# -- opening --


def _nothing() -> sqlite3.Connection:
    """An empty store, to be read until there is a file."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    _create_tables(db)
    return db


def _open(path: str, *, create: bool) -> sqlite3.Connection:
    try:
        return _prepared(_connect(path), path, create=create)
    except sqlite3.OperationalError as exc:
        if getattr(exc, "sqlite_errorcode", 0) != sqlite3.SQLITE_IOERR_SHMSIZE:
            raise
    # A full disk has no room for the file that connections share. Alone, a connection does without.
    db = _connect(path)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    return _prepared(db, path, create=create)


def _exists(path: str) -> bool:
    """Whether there is a file; an error when that may not be known."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _connect(path: str) -> sqlite3.Connection:
    if os.path.exists(path) and not os.access(os.path.dirname(path) or ".", os.W_OK):
        # WAL needs a shared-memory file beside the database. Where none can be made, nobody can be
        # writing either, unless a WAL is already there.
        mode = "ro" if os.path.exists(path + "-wal") else "ro&immutable=1"
        return sqlite3.connect(
            f"file:{_quoted(path)}?mode={mode}", uri=True, isolation_level=None, timeout=_PATIENCE
        )
    return sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE)


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def _prepared(db: sqlite3.Connection, path: str, *, create: bool) -> sqlite3.Connection:
    try:
        _prepare(db, path, create=create)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: str, *, create: bool) -> None:
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
        raise StorageError(
            f"{path} has format {version}; this program knows formats up to {_FORMAT}",
            hint="Upgrade rolecall: the store was written by a newer one.",
        )


def _create_tables(db: sqlite3.Connection) -> None:
    from rolecall.store import walmode  # not on the way of those who only read

    walmode.switch(db, patience=_PATIENCE)
    db.execute("BEGIN IMMEDIATE")
    # Another process may have been first; the lock is ours now, so this answer holds.
    if db.execute("PRAGMA user_version").fetchone() == (0,):
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_FORMAT}")
    db.execute("COMMIT")


# -- translating --


class _Translation:
    """SQLite's errors as ours: what happened, to which file, what to do. A class, not a generator:
    every read passes through it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        if isinstance(exc, sqlite3.DatabaseError):
            raise _translate(exc, self._path) from exc
        if isinstance(exc, UnicodeDecodeError):
            # The driver's message quotes the damage and is no text itself.
            raise _damaged(self._path, "it cannot be read") from exc
        if isinstance(exc, OSError):
            raise StorageError(
                f"{self._path} cannot be used: {exc.strerror}: {exc.filename}",
                hint="Check that its folder exists and is yours.",
            ) from exc


def _translate(exc: sqlite3.DatabaseError, path: str) -> Exception:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _is_undecodable(exc):
        return _damaged(path, str(exc))
    if "malformed JSON" in str(exc):
        return Damaged(
            f"{path} is damaged: what is kept with a ref is not JSON", hint="Restore it from a copy."
        )
    if code == sqlite3.SQLITE_FULL:
        return StorageError(
            f"no room to write {path}: {exc}", hint="Free some disk space, then run it again."
        )
    if code == sqlite3.SQLITE_READONLY:
        return StorageError(f"{path} cannot be written: {exc}", hint="Make the file and its folder writable.")
    if code == sqlite3.SQLITE_CANTOPEN:
        return StorageError(
            f"{path} cannot be opened: {exc}", hint="Check that its folder exists and is yours."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(
            f"{path} stayed locked for {_PATIENCE} s", hint="Another process is writing; try again."
        )
    return StorageError(f"{path}: {exc}", hint="Check the disk and the file, then run it again.")


def _is_undecodable(exc: sqlite3.DatabaseError) -> bool:
    """A text that is not UTF-8, to which the driver gives no code; only damage makes one."""
    return str(exc).startswith("Could not decode")


def _damaged(path: str, reason: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {reason}",
        hint="Keep a copy of the file. `rolecall cas verify` says what can be read; "
        "`rolecall cas export --keep-going` saves that; restore the rest from a bundle.",
    )


def _record(row: tuple[Any, ...]) -> Record:
    node, type_id, data, created, refs, sha256 = row
    return Record(str(node), type_id, data, created, _split(refs), sha256)


def _split(refs: str | None) -> tuple[str, ...]:
    if refs is None:
        return ("",)  # Lost to damage; what is no node's references is noticed by whoever needs them.
    return tuple(refs[at : at + NODE_ID_LENGTH] for at in range(0, len(refs), NODE_ID_LENGTH))


def _ref(row: tuple[Any, ...]) -> Ref:
    name, target, state, version, updated = row
    return Ref(name, target, stored_object(state, f"ref {name!r}"), version, updated)


def _json(value: Mapping[str, Any]) -> str:
    # Escapes keep half a character, which has no UTF-8 form and which agents do send.
    return json.dumps(value, separators=(",", ":"))
