"""A store at the other end of a socket: what the process of a step has instead of one.

`PipeBackend` asks, `gate.py` in the supervisor answers, and lets through only what belongs to that step's thread.
Here is the asking side and what travels between the two: frames of JSON, each with its length before it. One
question waits for one answer, so a worker never has more than one on the way.
"""

from __future__ import annotations

import json
import socket
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rolecall import errors
from rolecall.errors import RolecallError, UsageError
from rolecall.store.backend import Change, Move, NewEvent, Record, Ref

LARGEST = 64 * 1024 * 1024
"""Bytes of one frame."""
HEADER = struct.Struct(">I")
_KEPT = 2_000
_KINDS: dict[str, type[RolecallError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.NotFound,
        errors.Damaged,
        errors.Collision,
        errors.Conflict,
        errors.StorageError,
    )
}


class PipeBackend:
    """The backend of a step's own store. `lost` is called when nobody answers any more, and does not return."""

    clock = None

    def __init__(self, pipe: socket.socket, *, lost: Callable[[], NoReturn]) -> None:
        self._pipe = pipe
        self._lost = lost
        # Nodes never change, and what this step has seen is not collected while it runs.
        self._seen: dict[str, Record] = {}

    # -- what a store asks --

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:  # noqa: ARG002 -- theirs counts
        moved = self._ask("commit", change_out(change), durable)
        self._keep(change.nodes)
        return [Ref(*ref) for ref in moved]

    def record(self, node: str) -> Record | None:
        found = self.records([node])
        return found[0] if found else None

    def records(self, nodes: Sequence[str]) -> list[Record]:
        missing = [node for node in nodes if node not in self._seen]
        if missing:
            self._keep([record_in(found) for found in self._ask("records", missing)])
        return [self._seen[node] for node in dict.fromkeys(nodes) if node in self._seen]

    def stored(self, nodes: Sequence[str]) -> set[str]:
        missing = [node for node in nodes if node not in self._seen]
        return {
            *(node for node in nodes if node in self._seen),
            *(self._ask("stored", missing) if missing else ()),
        }

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        return list(self._ask("ids_with_prefix", prefix, limit))

    def ref(self, name: str) -> Ref | None:
        found = self._ask("ref", name)
        return Ref(*found) if found else None

    def refs(self, prefix: str = "", **_: Any) -> list[Ref]:
        return [Ref(*found) for found in self._ask("refs", prefix)]

    def close(self) -> None:
        self._pipe.close()

    def __getattr__(self, name: str) -> Any:
        raise UsageError(f"a step has no store of its own to ask for {name!r}")

    def done(self, report: Mapping[str, Any]) -> None:
        """The step is over: the last thing that is said."""
        self._ask("done", dict(report))

    # -- below --

    def _keep(self, records: Sequence[Record]) -> None:
        self._seen |= {record.id: record for record in records}
        while len(self._seen) > _KEPT:
            del self._seen[next(iter(self._seen))]

    def _ask(self, *question: Any) -> Any:
        try:
            self._pipe.sendall(framed(question))
            (length,) = HEADER.unpack(self._receive(HEADER.size))
            answer = json.loads(self._receive(length))
        except (OSError, EOFError):
            self._lost()
        if "error" in answer:
            raise error_in(answer["error"])
        return answer["value"]

    def _receive(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._pipe.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


# -- what travels --


def framed(value: Any) -> bytes:
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(data)) + data


def record_out(record: Record) -> list[Any]:
    sha256 = b64encode(record.sha256).decode() if record.sha256 else None
    refs = list(record.refs) if record.refs is not None else None
    return [record.id, record.type, b64encode(record.data).decode(), record.created, refs, sha256]


def record_in(told: Sequence[Any]) -> Record:
    node, type_id, data, created, refs, sha256 = told
    return Record(
        node,
        type_id,
        b64decode(data, validate=True),
        created,
        tuple(refs) if refs is not None else None,
        b64decode(sha256, validate=True) if sha256 else None,
    )


def change_out(change: Change) -> list[Any]:
    return [
        [record_out(record) for record in change.nodes],
        [list(move) for move in change.moves],
        [list(event) for event in change.events],
        list(change.types),
    ]


def change_in(told: Sequence[Any]) -> Change:
    nodes, moves, events, types = told
    return Change(
        [record_in(node) for node in nodes],
        [Move(*move) for move in moves],
        [NewEvent(*event) for event in events],
        list(types),
    )


def error_out(error: RolecallError) -> dict[str, str]:
    kind = next(
        name for name in (*(base.__name__ for base in type(error).__mro__), "StorageError") if name in _KINDS
    )
    return {"kind": kind, "message": error.message, "hint": error.hint, "node": getattr(error, "node", "")}


def error_in(told: Mapping[str, str]) -> RolecallError:
    kind = _KINDS[told["kind"]]
    if issubclass(kind, errors.Damaged):
        return kind(told["message"], node=told["node"], hint=told["hint"])
    return kind(told["message"], hint=told["hint"])
