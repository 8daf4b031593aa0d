"""The narrow protocol on which a store is built, and the plain values that the protocol uses.

A backend keeps bytes: nodes as records, refs that move by compare-and-swap, events in order. It knows nothing about
schemas, hashes or payloads; `Store` handles those for all backends. Every write is one `Change`, applied as a whole or
not at all, so a thread's new nodes, its head, its lease and its events become visible at the same instant.

A ref without a target is a small fact rather than a pointer; a lease is an example. Such a ref moves by
compare-and-swap like any other, but it protects no nodes from garbage collection and has no history.
"""

# Do not use `from __future__ import annotations` here: it would turn every field of a NamedTuple into a string that is
# compiled on import, and every command imports this module.
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Literal, NamedTuple, Protocol, TypedDict, get_args

from rolecall.errors import Collision, Conflict, Damaged, Hint, NotFound, StorageError
from rolecall.store.canonical import JsonObject

Durability = Literal["always", "heads", "never"]
"""When a commit waits for the disk: always, only when a ref moves, or never. A crash of the process never loses a
commit; a power failure can lose commits that did not wait."""

DURABILITIES: tuple[Durability, ...] = get_args(Durability)

INDEX = "key/"
"""The prefix of the refs that form an index. The state of such a ref names a node under `step`; when that node is
removed, so is the ref."""
FRESH_MS = 1_000
"""For this many milliseconds after a node is put, putting the node again writes nothing."""


class NodeRecord(NamedTuple):
    """A node as it is stored."""

    id: str
    type: str
    data: bytes
    """The canonical bytes of the payload."""
    created: int
    """When the node was first put, in milliseconds. The time is not part of the id."""
    refs: tuple[str, ...] | None
    """The ids to which the payload refers, or None if the backend does not keep them."""
    sha256: bytes | None
    """The SHA-256 hash of the bytes from which the id was made, or None if the node came without a hash."""


class Ref(NamedTuple):
    """A name and the node to which it points now."""

    name: str
    target: str | None
    state: JsonObject
    version: int
    """The number of moves of this ref, which a compare-and-swap compares."""
    updated: int


class Move(NamedTuple):
    """A compare-and-swap, which succeeds only if the ref is still at version `expected`."""

    name: str
    expected: int
    """The version that the caller saw, or 0 if the ref must not exist yet."""
    target: str | None = None
    state: JsonObject | None = None
    """A small JSON object kept with the ref. If both `target` and `state` are None, the ref is removed."""
    at: int | None = None
    """The time of the move, or None for now. Copies keep the original time."""

    @property
    def removes(self) -> bool:
        return self.target is None and self.state is None


class Put(NamedTuple):
    """The latest put of a node."""

    seq: int
    id: str
    at: int


class Fact(NamedTuple):
    """A state to write to a ref without a target, whatever its state was before."""

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
    """The time of the event, or None for now. Copies keep the original time."""


class StoredEvent(NamedTuple):
    seq: int
    stream: str
    kind: str
    body: JsonObject
    at: int


class Change(NamedTuple):
    """All changes that a single write makes to the store."""

    nodes: Sequence[NodeRecord] = ()
    moves: Sequence[Move] = ()
    events: Sequence[NewEvent] = ()
    types: Sequence[str] = ()
    """Ids that must be stored at commit time: the types of the new nodes, except types that are new themselves."""
    bumps: Sequence[str] = ()
    """Names of refs whose version is increased while their target and state stay the same. The current version is not
    checked, so two changes never conflict over a bump, but a reader who compares versions notices it. A ref that does
    not exist is skipped."""
    facts: Sequence[Fact] = ()
    """States for refs without a target. Two changes never conflict over a fact; the later one wins."""


class Damage(NamedTuple):
    """A stored item that cannot be read as a record."""

    id: str
    reason: str


class Size(TypedDict):
    """Statistics of a store."""

    nodes: int
    bytes: int
    """The total size of the nodes' payloads."""
    types: dict[str, int]
    """The number of nodes of each type, with the most frequent type first."""
    refs: int
    events: int
    disk: int
    """The number of bytes on disk."""


class Backend(Protocol):
    """Storage for a `Store`. An instance must not be used from several threads at once.

    It raises only errors from `rolecall.errors`; driver exceptions never escape.
    """

    @property
    def address(self) -> str:
        """The address of the store, without a password. The address is the same for every process on this machine that
        opens the store."""

    @property
    def clock(self) -> Callable[[], int] | None:
        """The server's clock in milliseconds, which all machines share, or None if all users are on this machine."""

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        """Apply `change` as a whole or not at all, and return the moved refs in the order of the moves.

        If `durable` is true, the change survives a power failure once this method returns. If a record's id is stored
        with the same bytes, only its put time is refreshed; if it is stored with other bytes, `Collision` is raised. A
        move with the wrong version raises `Conflict`, and a type that is not stored raises `NotFound`. `now` is the
        time in milliseconds.
        """

    def record(self, node: str) -> NodeRecord | None: ...

    def records(self, nodes: Sequence[str]) -> list[NodeRecord]:
        """Return the stored records among `nodes`, in any order."""

    def find_stored(self, nodes: Sequence[str]) -> set[str]:
        """Return the ids among `nodes` that are stored, without reading the records."""

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        """Return at most `limit` ids that begin with `prefix`, sorted."""

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        """Yield the ids of the nodes of one type, oldest first."""

    def scan(self) -> Iterator[NodeRecord | Damage]:
        """Yield every record lazily, in bounded memory. Yield a `Damage` for a record that cannot be read."""

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
        """Return refs sorted by name. `where` selects refs whose state has, for each key, one of the given values. For
        paging, the result starts after the name `before` in the chosen direction."""

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        """Return the names of refs in descending order, without reading their states, which might be damaged. Only
        names below `before` are returned."""

    def history(self, name: str) -> list[Moved]:
        """Return the targets that a ref has had, oldest first."""

    def roots(self, since: int = 0) -> Iterator[Moved]:
        """Yield every move of every existing ref, with a sequence number above `since`."""

    def events(
        self, stream: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[StoredEvent]:
        """Return events in order, from one stream or from all, with sequence numbers above `after`."""

    def newest_event(self) -> int:
        """Return the sequence number of the newest event, or 0 if there is none."""

    def puts(self, after: int = 0) -> Iterator[Put]:
        """Yield the latest put of each node, in order, starting after position `after`."""

    def position(self) -> tuple[int, int]:
        """Return the current end positions of `puts` and `roots`. They are exact only inside `exclusive`."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep all other processes from writing while this context is open. Reads inside it see the latest state.
        Needed by `delete`."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Make reads inside this context see the store at one instant, whatever others write meanwhile. Do not write
        inside it."""

    def delete(self, nodes: Iterable[str]) -> int:
        """Remove records, and return how many existed. This is allowed only inside `exclusive`."""

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Rebuild the data that is derived from the records. `refs` replaces the stored references of some records."""

    def size(self) -> Size: ...

    def problems(self) -> Iterator[str]:
        """Yield faults of the container itself, such as a malformed database page."""

    def close(self) -> None: ...


_LATEST_MS = 8_640_000_000_000_000


def is_time(value: object) -> bool:
    """Return whether `value` is a time in milliseconds within the range of JavaScript dates."""
    return isinstance(value, int | float) and 0 <= value <= _LATEST_MS


def no_store(path: str) -> NotFound:
    return NotFound(
        f"there is no store at {path} yet",
        hint=Hint("The first thread creates it. Set up a project with a workflow to run", "init_project"),
    )


def newer_format(place: str, version: int, known: int) -> StorageError:
    return StorageError(
        f"{place} has format {version}; this program knows formats up to {known}",
        hint="Upgrade Rolecall: a newer version wrote the store.",
    )


def missing_type(type_id: str) -> NotFound:
    hint = Hint("Register the schema first", "put_schema")
    return NotFound(f"type {type_id} is not in the store", hint=hint)


def require(types: Sequence[str], stored: set[str]) -> None:
    """Raise `NotFound` if one of `types` is not among the `stored` ones."""
    for type_id in types:
        if type_id not in stored:
            raise missing_type(type_id)


def conflict(move: Move, current: Ref | None) -> Conflict:
    now = f"is at version {current.version}" if current else "does not exist"
    return Conflict(
        f"ref {move.name!r} {now}, not at version {move.expected}",
        hint="Another process moved the ref first. Read it again, then retry.",
    )


def collision(record: NodeRecord, sha256: bytes | None) -> Collision:
    stored = sha256.hex()[:16] if sha256 else "unknown"
    cause = "A changed store or a 64-bit collision; nothing was written."
    hint = Hint("Verify the node", "verify_node", before=cause, node=record.id)
    message = f"node {record.id} is stored with other bytes (SHA-256 {stored}…)"
    return Collision(message, node=record.id, hint=hint)


def parse_stored_object(text: str, what: str) -> JsonObject:
    """Parse the JSON object stored with a ref or an event. Raise `Damaged` if the text is anything else."""
    with suppress(TypeError, ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    message = f"{what} is damaged: the data stored with it is not a JSON object"
    raise Damaged(message, hint="Restore the store.")
