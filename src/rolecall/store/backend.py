"""The narrow protocol that a store is built on, and the plain values that it uses.

A backend keeps bytes: nodes as records, refs that move by compare-and-swap, events in order. It knows nothing about
schemas, hashes or payloads; `Store` handles those for all backends. Every write is one `Change`, applied as a whole or
not at all, so a thread's new nodes, its head, its lease and its events become visible at the same instant.

A ref without a target is a small fact rather than a pointer; a lease is one. It moves by compare-and-swap like any
other, protects no nodes from garbage collection and has no history.
"""

# No `from __future__ import annotations` here: it would turn every field of a NamedTuple into a string that is compiled
# on import, and every command imports this module.
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol, TypedDict, get_args

from rolecall.errors import Collision, Conflict, Damaged, Hint, NotFound, StorageError
from rolecall.store.canonical import JsonObject

Durability = Literal["always", "heads", "never"]
"""When a commit waits for the disk: always, when a ref moves, or never. A crash of the process never loses anything; a
power failure can lose commits that did not wait."""

DURABILITIES: tuple[Durability, ...] = get_args(Durability)

INDEX = "key/"
"""Refs whose names begin so are an index: their state names a node under `step`, and they go when the node goes."""
FRESH_MS = 1_000
"""A node put again within this time counts as just put, without being written again."""


class NodeRecord(NamedTuple):
    """One node as stored."""

    id: str
    type: str
    data: bytes
    """The canonical bytes of the payload."""
    created: int
    """Milliseconds of the first put. Not part of the id."""
    refs: tuple[str, ...] | None
    """The ids that the payload refers to; None if the backend does not keep them."""
    sha256: bytes | None
    """SHA-256 of the bytes that the id was made from; None for a node that came without it."""


class Ref(NamedTuple):
    """A name and what it points at now."""

    name: str
    target: str | None
    state: JsonObject
    version: int
    """Counts the moves of this ref; a compare-and-swap compares it."""
    updated: int


class Move(NamedTuple):
    """One compare-and-swap: it succeeds only if the ref is still at version `expected`."""

    name: str
    expected: int
    """The version that the caller saw; 0 if the ref must not exist yet."""
    target: str | None = None
    state: JsonObject | None = None
    """A small JSON object kept with the ref. If both target and state are None, the ref is removed."""
    at: int | None = None
    """The time of the move, if not now; used for copies."""

    @property
    def removes(self) -> bool:
        return self.target is None and self.state is None


class Put(NamedTuple):
    """The latest put of a node."""

    seq: int
    id: str
    at: int


class Fact(NamedTuple):
    """The state of a ref without a target, to be written whatever it was before."""

    name: str
    state: JsonObject


class Moved(NamedTuple):
    """One entry of a ref's history."""

    seq: int
    name: str
    target: str
    at: int


class NewEvent(NamedTuple):
    stream: str
    kind: str
    body: JsonObject
    at: int | None = None
    """The time of the event, if not now; used for copies."""


class StoredEvent(NamedTuple):
    seq: int
    stream: str
    kind: str
    body: JsonObject
    at: int


class Change(NamedTuple):
    """Everything that one write does."""

    nodes: Sequence[NodeRecord] = ()
    moves: Sequence[Move] = ()
    events: Sequence[NewEvent] = ()
    types: Sequence[str] = ()
    """Ids that must be stored at commit time: types of the new nodes that are not new themselves."""
    bumps: Sequence[str] = ()
    """Names of refs whose version rises, whatever it is, while target and state stay. A ref that does not exist is
    skipped. Two changes never conflict over a bump, and nobody who compares versions misses it."""
    facts: Sequence[Fact] = ()
    """Refs without a target. Two changes never conflict over a fact; the later one stays."""


class Damage(NamedTuple):
    """A stored item that cannot be read as a record at all."""

    id: str
    reason: str


class Size(TypedDict):
    """Statistics of a store."""

    nodes: int
    bytes: int
    """Of the nodes' payloads."""
    types: dict[str, int]
    """How many nodes each type has, most first."""
    refs: int
    events: int
    disk: int
    """Bytes on disk."""


class Backend(Protocol):
    """Storage for a `Store`. One instance serves one thread of control.

    Errors are those of `rolecall.errors`; driver exceptions never escape.
    """

    @property
    def address(self) -> str:
        """Where the store is, without a password. The same for everybody on this machine who opens it."""

    @property
    def clock(self) -> Callable[[], int] | None:
        """The server's clock in milliseconds, which all machines share; None if all users are on this machine."""

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        """Apply `change` as a whole or not at all, and return the moved refs in the order of the moves.

        With `durable`, the change survives a power failure once this returns. A record whose id is stored with the same
        bytes only has its put time refreshed; other bytes are a `Collision`. A move with the wrong version is a
        `Conflict`, a type that is not stored is `NotFound`. `now` is the time in milliseconds.
        """
        ...

    def record(self, node: str) -> NodeRecord | None: ...

    def records(self, nodes: Sequence[str]) -> list[NodeRecord]:
        """The stored records among `nodes`, in any order."""
        ...

    def find_stored(self, nodes: Sequence[str]) -> set[str]:
        """The ids among `nodes` that are stored, without reading the records."""
        ...

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        """At most `limit` ids that begin with `prefix`, sorted."""
        ...

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        """Ids of one type, oldest first."""
        ...

    def scan(self) -> Iterator[NodeRecord | Damage]:
        """Every record, lazily, in bounded memory; one that cannot be read comes as a `Damage`."""
        ...

    def ref(self, name: str) -> Ref | None: ...

    def refs(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, Sequence[str]] | None = None,
        before: str | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Ref]:
        """Refs sorted by name. `where` keeps those whose state has one of the given values for each key; `before`
        starts after that name in the chosen direction, for paging."""
        ...

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        """Names of refs, last first, without reading their states, which may be damaged. `before` starts below that
        name."""
        ...

    def history(self, name: str) -> list[Moved]:
        """The targets of a ref so far, oldest first."""
        ...

    def roots(self, since: int = 0) -> Iterator[Moved]:
        """Every move of every ref that still matters, with a sequence number above `since`."""
        ...

    def events(
        self, stream: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[StoredEvent]:
        """Events in order, of one stream or of all, with a sequence number above `after`."""
        ...

    def newest_event(self) -> int:
        """The sequence number of the newest event, 0 before the first."""
        ...

    def puts(self, after: int = 0) -> Iterator[Put]:
        """The latest put of each node, in order, beyond position `after`."""
        ...

    def position(self) -> tuple[int, int]:
        """The current end positions of `puts` and `roots`; exact only inside `exclusive`."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep all other processes from writing while this is open; reads inside see the latest state. For `delete`."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Make reads inside see the store at one instant, whatever others write meanwhile. Do not write inside."""
        ...

    def delete(self, nodes: Iterable[str]) -> int:
        """Remove records and return how many existed. Only allowed inside `exclusive`."""
        ...

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Rebuild data that is derived from the records. `refs` replaces the stored references of some of them."""
        ...

    def size(self) -> Size: ...

    def problems(self) -> Iterator[str]:
        """Faults of the container itself, such as a malformed database page."""
        ...

    def close(self) -> None: ...


_LATEST_MS = 8_640_000_000_000_000


def is_time(value: object) -> bool:
    """Whether `value` is a time in milliseconds within the range of JavaScript dates."""
    return isinstance(value, int | float) and 0 <= value <= _LATEST_MS


def no_store(path: str) -> NotFound:
    return NotFound(
        f"there is no store at {path} yet",
        hint=Hint("The first thread creates it. Set up a project with a workflow to run", "init_project"),
    )


def newer_format(place: str, version: int, known: int) -> StorageError:
    return StorageError(
        f"{place} has format {version}; this program knows formats up to {known}",
        hint="Upgrade rolecall: the store was written by a newer one.",
    )


def missing_type(type_id: str) -> NotFound:
    hint = Hint("Register the schema first", "put_schema")
    return NotFound(f"type {type_id} is not in the store", hint=hint)


def require(types: Sequence[str], stored: set[str]) -> None:
    """Refuse a change with a type that is not among the `stored` ones."""
    for type_id in types:
        if type_id not in stored:
            raise missing_type(type_id)


def conflict(move: Move, current: Ref | None) -> Conflict:
    now = f"is at version {current.version}" if current else "does not exist"
    return Conflict(
        f"ref {move.name!r} {now}, not at version {move.expected}",
        hint="Somebody moved it first. Read it again, then retry.",
    )


def collision(record: NodeRecord, sha256: bytes | None) -> Collision:
    stored = sha256.hex()[:16] if sha256 else "unknown"
    cause = "A changed store or a 64-bit collision; nothing was written."
    hint = Hint("Verify the node", "verify_node", before=cause, node=record.id)
    message = f"node {record.id} is stored with other bytes (SHA-256 {stored}…)"
    return Collision(message, node=record.id, hint=hint)


def stored_object(text: str, what: str) -> JsonObject:
    """Parse the JSON object stored with a ref or an event; raise `Damaged` if it is anything else."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as exc:
        raise Damaged(
            f"{what} is damaged: what is kept with it is not JSON", hint="Restore the store."
        ) from exc
    if not isinstance(value, dict):
        raise Damaged(f"{what} is damaged: what is kept with it is not an object", hint="Restore the store.")
    return value
