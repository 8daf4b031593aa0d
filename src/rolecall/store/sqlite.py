"""The default backend: one SQLite file in WAL mode.

Nodes are appended in the order they were put, so a thread's nodes lie together and "put since" is a
range; a unique index finds them by id. Every method is one short transaction: an iterator pages
through the table instead of holding a read open, which would keep the WAL from being folded back.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rolecall.errors import Damaged, StorageError
from rolecall.ids import NODE_ID_LENGTH
from rolecall.store.backend import (
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
)

_FORMAT = 1
_PAGE = 500
# A node put again counts as fresh; within this time the earlier put still protects it well enough.
_FRESH_MS = 10 * 60_000

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
# The casts keep the driver from stumbling over a value that was changed to another storage class.
_RECORD = "id, type, CAST(data AS BLOB), created, CAST(refs AS TEXT), CAST(sha256 AS BLOB)"


class SqliteBackend:
    """A store in one file. `create=False` refuses to make one, so that a read leaves no trace."""

    def __init__(self, path: str, *, create: bool = True, durability: Durability = "heads") -> None:
        self.path = path
        self._durability = durability
        self._inside = False
        self._translated = _Translation(path)
        with self._translated:
            self._db = _open(path, create=create)
            self._synchronous = ""

    # -- writing --

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        wait = self._durability == "always" or (self._durability == "heads" and durable)
        self._set_synchronous("FULL" if wait else "NORMAL")
        with self._translated, self._writing():
            self._put_records(change.nodes, now)
            moved = [self._move(move, now) for move in change.moves]
            self._db.executemany(
                "INSERT INTO events (stream, kind, body, at) VALUES (?, ?, ?, ?)",
                [(event.stream, event.kind, _json(event.body), now) for event in change.events],
            )
        return moved

    def _put_records(self, records: Sequence[Record], now: int) -> None:
        # Two records of one change may be the same node; the dict keeps one of each.
        missing = {record.id: record for record in records}
        for node, sha256, type_id, data, put_at in self._select_in(
            "SELECT id, CAST(sha256 AS BLOB), type, CAST(data AS BLOB), put_at FROM nodes WHERE id IN",
            list(missing),
        ):
            record = missing.pop(node)
            if (type_id, data) != (record.type, record.data):
                raise collision(record, sha256)
            if put_at < now - _FRESH_MS:
                self._refresh(node, now)
        self._db.executemany(
            f"INSERT INTO nodes ({_COLUMNS}, put_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (r.id, r.type, r.data, r.created, "".join(r.refs or ()), r.sha256, now)
                for r in missing.values()
            ],
        )

    def _refresh(self, node: str, now: int) -> None:
        """Move an old node to the end, so that a running collection sees it was put again."""
        row = self._db.execute(f"SELECT {_RECORD} FROM nodes WHERE id = ?", (node,)).fetchone()
        self._db.execute("DELETE FROM nodes WHERE id = ?", (node,))
        self._db.execute(f"INSERT INTO nodes ({_COLUMNS}, put_at) VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, now))

    def _move(self, move: Move, now: int) -> Ref:
        current = self.ref(move.name)
        if (current.version if current else 0) != move.expected:
            raise conflict(move, current)
        ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, now)
        if move.removes:
            self._db.execute("DELETE FROM refs WHERE name = ?", (move.name,))
            self._db.execute("DELETE FROM moves WHERE name = ?", (move.name,))
            return ref
        self._db.execute(
            "INSERT OR REPLACE INTO refs (name, target, state, version, updated) VALUES (?, ?, ?, ?, ?)",
            (ref.name, ref.target, _json(ref.state), ref.version, now),
        )
        if ref.target is not None and (current is None or current.target != ref.target):
            self._db.execute(
                "INSERT INTO moves (name, target, at) VALUES (?, ?, ?)", (ref.name, ref.target, now)
            )
        return ref

    def _set_synchronous(self, mode: str) -> None:
        if mode != self._synchronous and not self._inside:
            self._db.execute(f"PRAGMA synchronous = {mode}")
            self._synchronous = mode

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A write transaction from its first statement, so that what it reads cannot change under it."""
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
        self._set_synchronous("NORMAL" if self._durability == "never" else "FULL")
        with self._translated, self._writing():
            yield

    def delete(self, nodes: Iterable[str]) -> int:
        if not self._inside:
            raise RuntimeError("delete is only safe inside exclusive()")
        with self._translated:
            before = self._db.total_changes
            self._db.executemany("DELETE FROM nodes WHERE id = ?", [(node,) for node in nodes])
            return self._db.total_changes - before

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        with self._translated, self._writing():
            if refs is None:
                self._db.execute("REINDEX")
            else:
                rows = [("".join(found), node) for node, found in refs.items()]
                self._db.executemany("UPDATE nodes SET refs = ? WHERE id = ?", rows)

    # -- reading nodes --

    def record(self, node: str) -> Record | None:
        with self._translated:
            row = self._db.execute(f"SELECT {_RECORD} FROM nodes WHERE id = ?", (node,)).fetchone()
        return _record(row) if row else None

    def records(self, nodes: Sequence[str]) -> list[Record]:
        with self._translated:
            return [
                _record(row) for row in self._select_in(f"SELECT {_RECORD} FROM nodes WHERE id IN", nodes)
            ]

    def _select_in(self, select: str, nodes: Sequence[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(nodes), _PAGE):
            page = nodes[start : start + _PAGE]
            marks = ",".join("?" * len(page))
            rows += self._db.execute(f"{select} ({marks})", page).fetchall()
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
        for row in self._pages("seq, id, put_at", "", (), after=after):
            yield Put(*row)

    def position(self) -> tuple[int, int]:
        with self._translated:
            highest = dict(self._db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        return highest.get("nodes", 0), highest.get("moves", 0)

    def scan(self) -> Iterator[Record | Damage]:
        for row in self._pages(f"seq, {_RECORD}", "", ()):
            yield _record(row[1:])

    def _pages(
        self, columns: str, where: str, values: tuple[Any, ...], after: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM nodes WHERE {where}seq > ? ORDER BY seq LIMIT {_PAGE}"
        while True:
            with self._translated:
                rows = self._db.execute(query, (*values, after)).fetchall()
            if not rows:
                return
            yield from rows
            after = self._last_of(rows, after)

    def _last_of(self, rows: list[tuple[Any, ...]], after: int) -> int:
        """Where the next page begins. Rows of a damaged table may come in any order, without an end."""
        if rows[-1][0] <= after:
            raise _damaged(self.path, f"row {rows[-1][0]} comes after row {after}")
        return int(rows[-1][0])

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
            Event(seq, name, kind, _object(body, f"event {seq}"), at) for seq, name, kind, body, at in rows
        ]

    # -- the container --

    def size(self) -> dict[str, Any]:
        with self._translated:
            nodes, payloads = self._db.execute(
                "SELECT count(*), COALESCE(sum(length(data)), 0) FROM nodes"
            ).fetchone()
            types = dict(
                self._db.execute("SELECT type, count(*) FROM nodes GROUP BY type ORDER BY 2 DESC").fetchall()
            )
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
        self._db.close()


# -- opening --


def _open(path: str, *, create: bool) -> sqlite3.Connection:
    exists = _exists(path)
    if not exists and not create:
        raise no_store(path)
    if not exists:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
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
            f"file:{_quoted(path)}?mode={mode}", uri=True, isolation_level=None, timeout=60
        )
    return sqlite3.connect(path, isolation_level=None, timeout=60)


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
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _FORMAT:
        raise StorageError(
            f"{path} has format {version}; this program knows formats up to {_FORMAT}",
            hint="Upgrade rolecall: the store was written by a newer one.",
        )
    if version == 0:
        if not create:
            raise no_store(path)
        _create_tables(db)


def _create_tables(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN IMMEDIATE")
    # Another process may have been first; the lock is ours now, so this answer holds.
    if db.execute("PRAGMA user_version").fetchone() == (0,):
        for statement in _TABLES.split(";"):
            db.execute(statement)
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
        if isinstance(exc, OSError):
            raise StorageError(
                f"{self._path} cannot be used: {exc.strerror}: {exc.filename}",
                hint="Check that its folder exists and is yours.",
            ) from exc


def _translate(exc: sqlite3.DatabaseError, path: str) -> Exception:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    # The driver gives no code to a text that is not UTF-8; only damage makes one.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(exc).startswith("Could not decode"):
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
        return StorageError(f"{path} stayed locked for 60 s", hint="Another process is writing; try again.")
    return StorageError(f"{path}: {exc}", hint="Check the disk and the file, then run it again.")


def _damaged(path: str, reason: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {reason}",
        hint="Keep a copy of the file. `rolecall cas verify` says what can be read; "
        "`rolecall cas export` saves that; restore the rest from a bundle.",
    )


def _record(row: tuple[Any, ...]) -> Record:
    node, type_id, data, created, refs, sha256 = row
    return Record(node, type_id, data, created, _split(refs), sha256)


def _split(refs: str | None) -> tuple[str, ...]:
    if refs is None:
        return ("",)  # Lost to damage; what is no node's references is noticed by whoever needs them.
    return tuple(refs[at : at + NODE_ID_LENGTH] for at in range(0, len(refs), NODE_ID_LENGTH))


def _ref(row: tuple[Any, ...]) -> Ref:
    name, target, state, version, updated = row
    return Ref(name, target, _object(state, f"ref {name!r}"), version, updated)


def _json(value: Mapping[str, Any]) -> str:
    # Escapes keep half a character, which has no UTF-8 form and which agents do send.
    return json.dumps(value, separators=(",", ":"))


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as exc:
        raise Damaged(
            f"{what} is damaged: what is kept with it is not JSON", hint="Restore the store."
        ) from exc
    if not isinstance(value, dict):
        raise Damaged(f"{what} is damaged: what is kept with it is not an object", hint="Restore the store.")
    return value
