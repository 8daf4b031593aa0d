"""The narrow protocol a store is built on, and the plain values that cross it.

A backend keeps bytes: nodes as records, refs that move by compare-and-swap, events in order. It
knows nothing of schemas, hashes or payloads; `Store` does, once, for all backends. Every write is
one `Change`, applied whole or not at all, so a thread's new nodes, its head, its lease and its
events become visible in the same instant.

A ref without a target is a small fact rather than a pointer (a lease is one): it moves by
compare-and-swap like any other, does not keep nodes from garbage collection and has no history.
"""

# No `from __future__ import annotations` here: it would make every field of a NamedTuple a string
# that is compiled when the module is imported, and every command imports this one.
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, get_args

from rolecall.errors import Collision, Conflict, Damaged, Hint, NotFound

Durability = Literal["always", "heads", "never"]
"""When a commit waits for the disk: every time, when a ref moves, or never. A crash of the process
loses nothing in any case; only a power cut can take what was not waited for."""

DURABILITIES: tuple[Durability, ...] = get_args(Durability)

FRESH_MS = 1_000
"""A node put again this soon after its last put counts as just put without being written again."""


class Record(NamedTuple):
    """One node as stored."""

    id: str
    type: str
    data: bytes
    """The canonical bytes of the payload."""
    created: int
    """Milliseconds of the first put. Not part of the id."""
    refs: tuple[str, ...] | None
    """The ids the payload refers to; None where the backend does not keep them."""
    sha256: bytes | None
    """SHA-256 of the bytes the id was made from; None for a node that came without."""


class Ref(NamedTuple):
    """A name and what it points at now."""

    name: str
    target: str | None
    state: Mapping[str, Any]
    version: int
    """Counts the moves of this ref; what a compare-and-swap compares."""
    updated: int


class Move(NamedTuple):
    """One compare-and-swap: it succeeds only if the ref is still at version `expected`."""

    name: str
    expected: int
    """The version the caller saw; 0 when the ref must not exist yet."""
    target: str | None = None
    state: Mapping[str, Any] | None = None
    """Small JSON facts kept with the ref. None for both target and state removes the ref."""
    at: int | None = None
    """When it happened, if not now: for a copy."""

    @property
    def removes(self) -> bool:
        return self.target is None and self.state is None


class Put(NamedTuple):
    """That a node was put, again or for the first time."""

    seq: int
    id: str
    at: int


class Moved(NamedTuple):
    """One entry of a ref's history."""

    seq: int
    name: str
    target: str
    at: int


class NewEvent(NamedTuple):
    stream: str
    kind: str
    body: Mapping[str, Any]
    at: int | None = None
    """When it happened, if not now: for a copy."""


class Event(NamedTuple):
    seq: int
    stream: str
    kind: str
    body: Mapping[str, Any]
    at: int


class Change(NamedTuple):
    """Everything one write does."""

    nodes: Sequence[Record] = ()
    moves: Sequence[Move] = ()
    events: Sequence[NewEvent] = ()
    types: Sequence[str] = ()
    """Ids that must be stored at that moment: the types of new nodes that are not themselves new."""


class Damage(NamedTuple):
    """A stored thing that cannot be read as a record at all."""

    id: str
    reason: str


class Backend(Protocol):
    """What a store needs of the place it keeps things in. One instance serves one thread of control.

    Errors are those of `rolecall.errors`; nothing of a driver leaks out.
    """

    @property
    def clock(self) -> Callable[[], int] | None:
        """The server's clock in milliseconds, which all machines share; None if all users are on this machine."""

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        """Apply `change` whole or not at all; the refs as moved, in the order of the moves.

        `durable` asks for power-loss safety before the return. A record whose id is stored with the
        same bytes changes nothing but its freshness; with other bytes it is a `Collision`. A move
        whose version does not match is a `Conflict`, a type that is not stored is `NotFound`. `now` is the
        time in milliseconds.
        """
        ...

    def record(self, node: str) -> Record | None: ...

    def records(self, nodes: Sequence[str]) -> list[Record]:
        """Those of `nodes` that are stored, in any order."""
        ...

    def stored(self, nodes: Sequence[str]) -> set[str]:
        """Those of `nodes` that are stored, without reading them."""
        ...

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        """At most `limit` ids that begin with `prefix`, sorted."""
        ...

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        """Ids of one type, oldest first."""
        ...

    def scan(self) -> Iterator[Record | Damage]:
        """Every record, lazily, in bounded memory; one that cannot be read at all comes as a `Damage`."""
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
        """Refs by name. `where` keeps those whose state has one of the given values under each key;
        `before` starts after that name in the chosen direction, so that pages can follow each other."""
        ...

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        """Names of refs, last first, without reading their states, which may be damaged.
        `before` starts below that name."""
        ...

    def history(self, name: str) -> list[Moved]:
        """What a ref has pointed at, oldest first, up to now."""
        ...

    def roots(self, since: int = 0) -> Iterator[Moved]:
        """Every move that still matters, of every ref, with a sequence number above `since`."""
        ...

    def events(self, stream: str | None = None, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """Events in order, of one stream or of all, with a sequence number above `after`."""
        ...

    def puts(self, after: int = 0) -> Iterator[Put]:
        """Which ids were put when, in the order of their last put, beyond position `after`."""
        ...

    def position(self) -> tuple[int, int]:
        """How far `puts` and `roots` reach now; exact when asked inside `exclusive`."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """No other process writes while this is open; reads inside see the latest. For `delete`."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Reads inside see the store as it was at one instant, whatever others write meanwhile; no writes inside."""
        ...

    def delete(self, nodes: Iterable[str]) -> int:
        """Remove records, inside `exclusive` only; how many were there."""
        ...

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Rebuild what is derived from the records. `refs` replaces the kept references of some."""
        ...

    def size(self) -> dict[str, Any]:
        """Figures: `nodes`, `bytes` (of payloads), `types` (id to count), `refs`, `events`, `disk`."""
        ...

    def problems(self) -> Iterator[str]:
        """Faults of the container itself, such as a malformed database page."""
        ...

    def close(self) -> None: ...


_LATEST_MS = 8_640_000_000_000_000


def is_time(value: object) -> bool:
    """Whether `value` is a time in milliseconds, as far as JavaScript's calendar reaches."""
    return isinstance(value, int | float) and 0 <= value <= _LATEST_MS


def no_store(path: str) -> NotFound:
    return NotFound(
        f"there is no store at {path} yet",
        hint=Hint("The first thread creates it. Set up a project with a workflow to run", "init_project"),
    )


def missing_type(type_id: str) -> NotFound:
    return NotFound(
        f"type {type_id} is not in the store",
        hint=Hint("Register the schema first", "put_schema"),
    )


def require(types: Sequence[str], stored: set[str]) -> None:
    """Refuse a change whose types are not all among the `stored` ones."""
    for type_id in types:
        if type_id not in stored:
            raise missing_type(type_id)


def conflict(move: Move, current: Ref | None) -> Conflict:
    now = f"is at version {current.version}" if current else "does not exist"
    return Conflict(
        f"ref {move.name!r} {now}, not at version {move.expected}",
        hint="Somebody moved it first. Read it again, then retry.",
    )


def collision(record: Record, sha256: bytes | None) -> Collision:
    stored = sha256.hex()[:16] if sha256 else "unknown"
    return Collision(
        f"node {record.id} is stored with other bytes (SHA-256 {stored}…)",
        node=record.id,
        hint=Hint(
            "Verify the node",
            "verify_node",
            before="A changed store or a 64-bit collision; nothing was written.",
            node=record.id,
        ),
    )


def stored_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object kept with a ref or an event; `Damaged` if it is anything else."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as exc:
        raise Damaged(
            f"{what} is damaged: what is kept with it is not JSON", hint="Restore the store."
        ) from exc
    if not isinstance(value, dict):
        raise Damaged(f"{what} is damaged: what is kept with it is not an object", hint="Restore the store.")
    return value
