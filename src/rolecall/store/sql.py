"""The queries shared by the SQLite and PostgreSQL backends, which have the same four tables.

A backend inherits the reads and implements the few primitive methods at the top of `SqlTables`. Statements use `?`
placeholders. Iterators read page by page, by sequence number, instead of keeping a read open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rolecall.errors import Damaged
from rolecall.store.backend import (
    Change,
    Move,
    Moved,
    NodeRecord,
    Put,
    Ref,
    Size,
    StoredEvent,
    conflict,
    parse_stored_object,
)
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import NODE_ID_LENGTH

PAGE = 500
RECORD = "id, type, data, created, refs, sha256"
_REF = "name, target, state, version, updated"
_NO_LIMIT = 1 << 62

Row = tuple[Any, ...]


class SqlTables:
    """A store's nodes, refs, moves and events in SQL tables."""

    _record_columns = RECORD
    _put_at = "put_at"
    _damage_error: Callable[[str], Damaged]

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a query and return its rows."""
        raise NotImplementedError

    def _read_nodes(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a query for nodes. Return damaged rows, too, so that they can be reported."""
        return self._read(query, values)

    def _read_among(self, select: str, ids: Sequence[str]) -> list[Row]:
        """Return the rows of `select` for these node ids."""
        raise NotImplementedError

    def _run(self, statement: str, rows: Sequence[Row]) -> None:
        """Run a statement for each row, inside the transaction of a commit."""
        raise NotImplementedError

    def _put_ref(self, ref: Ref, state: str) -> None:
        raise NotImplementedError

    def _state_test(self, key: str, wanted: Sequence[str]) -> tuple[str, list[Any]]:
        """Return a condition on a ref's state, with its values."""
        raise NotImplementedError

    # -- writing refs and events --

    def _move_refs(self, change: Change, now: int) -> list[Ref]:
        """Write everything in a change except its nodes, and return the moved refs."""
        moved = [self._move(move, now) for move in change.moves]
        bumps = [(now, name) for name in change.bumps]
        self._run("UPDATE refs SET version = version + 1, updated = ? WHERE name = ?", bumps)
        for fact in change.facts:
            current = self.ref(fact.name)
            ref = Ref(fact.name, None, fact.state, current.version + 1 if current else 1, now)
            self._put_ref(ref, _json(ref.state))
        events = [
            (event.stream, event.kind, _json(event.body), now if event.at is None else event.at)
            for event in change.events
        ]
        self._run("INSERT INTO events (stream, kind, body, at) VALUES (?, ?, ?, ?)", events)
        return moved

    def _move(self, move: Move, now: int) -> Ref:
        current = self.ref(move.name)
        if (current.version if current else 0) != move.expected:
            raise conflict(move, current)
        at = now if move.at is None else move.at
        ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, at)
        if move.removes:
            self._run("DELETE FROM refs WHERE name = ?", [(move.name,)])
            self._run("DELETE FROM moves WHERE name = ?", [(move.name,)])
            return ref
        self._put_ref(ref, _json(ref.state))
        if ref.target is not None and (current is None or current.target != ref.target):
            self._run("INSERT INTO moves (name, target, at) VALUES (?, ?, ?)", [(ref.name, ref.target, at)])
        return ref

    # -- reading nodes --

    def record(self, node: str) -> NodeRecord | None:
        rows = self._read_nodes(f"SELECT {self._record_columns} FROM nodes WHERE id = ?", (node,))
        return _record(rows[0]) if rows else None

    def records(self, nodes: Sequence[str]) -> list[NodeRecord]:
        return [_record(row) for row in self._read_among(f"SELECT {self._record_columns} FROM nodes", nodes)]

    def find_stored(self, nodes: Sequence[str]) -> set[str]:
        return {node for (node,) in self._read_among("SELECT id FROM nodes", nodes)}

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        rows = self._read(
            "SELECT id FROM nodes WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", (prefix, prefix + "~", limit)
        )
        return [node for (node,) in rows]

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        for _, node in self._pages("seq, id", "nodes", where="type = ? AND ", values=(type_id,)):
            yield node

    def puts(self, after: int = 0) -> Iterator[Put]:
        for row in self._pages(f"seq, id, {self._put_at}", "nodes", after=after):
            yield Put(*row)

    def _scan_rows(self) -> Iterator[tuple[int, NodeRecord]]:
        for row in self._pages(f"seq, {self._record_columns}", "nodes"):
            yield row[0], _record(row[1:])

    def _pages(
        self, columns: str, table: str, *, where: str = "", values: Row = (), after: int = 0
    ) -> Iterator[Row]:
        query = f"SELECT {columns} FROM {table} WHERE {where}seq > ? ORDER BY seq LIMIT {PAGE}"
        read = self._read_nodes if table == "nodes" else self._read
        while rows := read(query, (*values, after)):
            yield from rows
            after = self._next_page(rows, after)

    def _next_page(self, rows: list[Row], after: Any) -> Any:
        """Return the start of the next page. Raise an error if the rows of a damaged table would repeat endlessly."""
        if rows[-1][0] <= after:
            raise self._damage_error(f"row {rows[-1][0]} comes after row {after}")
        return rows[-1][0]

    # -- reading refs and events --

    def ref(self, name: str) -> Ref | None:
        rows = self._read(f"SELECT {_REF} FROM refs WHERE name = ?", (name,))
        return _ref(rows[0]) if rows else None

    def refs(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, Sequence[str]] | None = None,
        before: str | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Ref]:
        tests: list[str] = ["name >= ?", "name < ?"]
        values: list[Any] = [prefix, prefix + "\U0010ffff"]
        for key, wanted in (where or {}).items():
            test, more = self._state_test(key, wanted)
            tests.append(test)
            values += more
        if before is not None:
            tests.append("name < ?" if newest_first else "name > ?")
            values.append(before)
        order = "DESC" if newest_first else "ASC"
        rows = self._read(
            f"SELECT {_REF} FROM refs WHERE {' AND '.join(tests)} ORDER BY name {order} LIMIT ?",
            (*values, _NO_LIMIT if limit is None else limit),
        )
        return [_ref(row) for row in rows]

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        below = prefix + "\U0010ffff" if before is None else before
        rows = self._read(
            "SELECT name FROM refs WHERE name >= ? AND name < ? ORDER BY name DESC LIMIT ?",
            (prefix, below, _NO_LIMIT if limit is None else limit),
        )
        return [name for (name,) in rows]

    def history(self, name: str) -> list[Moved]:
        rows = self._read("SELECT seq, name, target, at FROM moves WHERE name = ? ORDER BY seq", (name,))
        return [Moved(*row) for row in rows]

    def roots(self, since: int = 0) -> Iterator[Moved]:
        for row in self._pages("seq, name, target, at", "moves", after=since):
            yield Moved(*row)

    def events(
        self, stream: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[StoredEvent]:
        test, values = ("", ()) if stream is None else ("stream = ? AND ", (stream,))
        rows = self._read(
            f"SELECT seq, stream, kind, body, at FROM events WHERE {test}seq > ? ORDER BY seq LIMIT ?",
            (*values, after, _NO_LIMIT if limit is None else limit),
        )
        return [
            StoredEvent(seq, name, kind, parse_stored_object(body, f"event {seq}"), at)
            for seq, name, kind, body, at in rows
        ]

    def newest_event(self) -> int:
        return int(self._read("SELECT COALESCE(max(seq), 0) FROM events")[0][0])

    def size(self) -> Size:
        types = self._read_nodes(
            "SELECT CAST(type AS TEXT), count(*) FROM nodes GROUP BY type ORDER BY 2 DESC"
        )
        [(nodes, payloads, refs, events)] = self._read(
            "SELECT count(*), COALESCE(sum(length(data)), 0), (SELECT count(*) FROM refs),"
            " (SELECT count(*) FROM events) FROM nodes"
        )
        return {
            "nodes": nodes,
            "bytes": int(payloads),
            "types": {"?" if type_id is None else type_id: count for type_id, count in types},
            "refs": refs,
            "events": events,
            "disk": self._disk_use(),
        }

    def _disk_use(self) -> int:
        raise NotImplementedError


def _record(row: Row) -> NodeRecord:
    node, type_id, data, created, refs, sha256 = row
    if refs is None:
        found: tuple[str, ...] = ("",)  # the references were lost to damage; no payload contains this id
    else:
        found = tuple(refs[at : at + NODE_ID_LENGTH] for at in range(0, len(refs), NODE_ID_LENGTH))
    return NodeRecord(str(node), type_id, data, created, found, sha256)


def _ref(row: Row) -> Ref:
    name, target, state, version, updated = row
    return Ref(name, target, parse_stored_object(state, f"ref {name!r}"), version, updated)


def _json(value: JsonObject) -> str:
    # ASCII escapes preserve a lone surrogate, which has no UTF-8 form but does occur in agents' output.
    return json.dumps(value, separators=(",", ":"))
