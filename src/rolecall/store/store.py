"""The operations of the content-addressed store, on any backend.

Before a value is put, the store checks that its type is stored and that the value fits it. A value is named by its
content. A value that is read is checked against its name, so damage is reported and never returned. Writes are
collected in a `Draft` and committed in one transaction.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import Damaged, Hint, InvalidPayload, InvalidValue, NotFound, RolecallError, UsageError
from rolecall.store import canonical
from rolecall.store.backend import (
    Backend,
    Change,
    Fact,
    Move,
    NewEvent,
    NodeRecord,
    Ref,
    is_time,
    missing_type,
)
from rolecall.store.canonical import JsonObject, Schema
from rolecall.store.ids import META as META
from rolecall.store.ids import NODE_ID_LENGTH, is_id_of, is_node_id, node_from_number, node_id, node_number
from rolecall.store.ids import Node as Node
from rolecall.store.lazy import Module
from rolecall.store.schema import META_SCHEMA, TYPE_NAMES, Type, refusal

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = Module("hashlib")  # not needed for reading

_FETCH = 200
# Nodes never change, so nodes that were read recently are cached: a run keeps reading its latest steps.
_RECENT = 1_024
_LARGE = 16_384
_SHORTEST_PREFIX = 4


class Dangling(NamedTuple):
    """A reference to a node that is not stored."""

    id: str
    referrer: str


TEMPORARY = "rolecall-temporary-"
"""The prefix of the folders of temporary stores."""


class Store:
    """Nodes, refs and events in one place.

    `now` returns the time in milliseconds. By default, it is the clock that all users of the backend share.
    """

    def __init__(self, backend: Backend, *, now: Callable[[], int] | None = None) -> None:
        self.backend = backend
        self.now = now or backend.clock or (lambda: time.time_ns() // 1_000_000)
        self.ref, self.refs = backend.ref, backend.refs
        self.history, self.events = backend.history, backend.events
        self.newest_event = backend.newest_event
        self._types: dict[str, Type] = {}
        self._has_builtins = False
        self.registered: dict[int, tuple[NodeRecord, Schema]] = {}
        """The types that `Draft.put_as` has registered, by the `id()` of their schemas. The schemas are kept alive so
        that their `id()` stays unique."""
        self._recent: dict[str, Node] = {}

    @property
    def is_shared(self) -> bool:
        """Whether other machines can use the store."""
        return "://" in self.backend.address

    @property
    def is_temporary(self) -> bool:
        """Whether the store is temporary, that is, removed when the process that made it ends."""
        return TEMPORARY in self.backend.address

    # -- writing --

    def draft(self) -> "Draft":
        """Return a set of writes that are committed together."""
        return Draft(self)

    def put(self, type_id: str, payload: Any, *, durable: bool = False) -> str:
        """Store one node and return its id. Putting the same node again changes nothing."""
        return self.put_many([(type_id, payload)], durable=durable)[0]

    def put_many(self, nodes: Iterable[tuple[str, Any]], *, durable: bool = False) -> list[str]:
        """Store several nodes in one transaction. The type of a node can be an earlier node of the same call."""
        draft = self.draft()
        ids = [draft.put(type_id, payload) for type_id, payload in nodes]
        draft.commit(durable=durable)
        return ids

    def put_schema(self, schema: Schema, *, durable: bool = False) -> str:
        """Register a schema as a type and return its id."""
        return self.put(META, schema, durable=durable)

    def put_text(self, text: str, *, durable: bool = False) -> str:
        return self.put(BUILTIN["string"], text, durable=durable)

    def move(
        self,
        name: str,
        expected: Ref | None,
        target: str | None = None,
        state: JsonObject | None = None,
        *,
        durable: bool = True,
    ) -> Ref:
        """Compare-and-swap one ref. `expected` is the ref as last seen, or None if the ref must not exist yet."""
        draft = self.draft()
        draft.move(name, expected, target, state)
        return draft.commit(durable=durable)[0]

    # -- reading nodes --

    def get(self, node: str) -> Node:
        """Return one node. Raise `NotFound` if it is not stored, `Damaged` if its content is not what was stored."""
        if node in self._recent and not self.backend.find_stored([node]):
            del self._recent[node]
        known = self.follow(node)
        return known._replace(payload=copy_json(known.payload))

    def follow(self, node: str) -> Node:
        """Return a node to which a stored node refers: like `get`, but without checking that the node is still stored.
        The payload is shared and must not be changed."""
        known = self._recent.pop(node, None)
        if known is None:
            return self._read(self.record(node))
        self._recent[node] = known  # the dictionary is ordered by use: the least recently used node is first
        return known

    def fetch(self, nodes: Iterable[Any]) -> None:
        """Read at once all the nodes for which `follow` will be called."""
        ids = (node for node in nodes if isinstance(node, str))
        wanted = [node for node in ids if node not in self._recent and is_node_id(node)]
        try:
            for record in self.backend.records(wanted) if wanted else ():
                if len(record.data) <= _LARGE:  # a larger node would be decoded, but not kept
                    self._read(record)
        except RolecallError:
            pass  # `follow` reports the problem with each node

    def _read(self, record: NodeRecord) -> Node:
        check(record)
        node = Node(record.id, record.type, payload_of(record), record.created)
        if len(record.data) <= _LARGE:
            self._recent[node.id] = node
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]
        return node

    def has(self, node: str) -> bool:
        """Return whether a node is stored. Raise `Damaged` if its content differs from what was stored."""
        record = self.backend.record(_check_id(node))
        if record is not None:
            check(record)
        return record is not None

    def resolve(self, prefix: str) -> str:
        """Return the only id that begins with `prefix`."""
        wanted = prefix.upper()
        if is_node_id(wanted):
            return wanted
        if len(wanted) < _SHORTEST_PREFIX or not is_node_id(wanted.ljust(NODE_ID_LENGTH, "0")):
            raise UsageError(
                f"{prefix!r} is not a node id",
                hint=f"An id has 13 characters of 0-9 and A-Z without I, L, O, U; the first {_SHORTEST_PREFIX} may do.",
            )
        found = self.backend.ids_with_prefix(wanted, 6)
        if not found:
            raise NotFound(f"no node id begins with {wanted}")
        if len(found) > 1:
            listed = f"{', '.join(found[:5])}{' …' if found[5:] else ''}"
            raise UsageError(f"{wanted} matches several nodes: {listed}", hint="Give more characters.")
        return found[0]

    def refs_of(self, node: str) -> tuple[str, ...]:
        """Return the ids to which a node's payload refers."""
        record = self.record(node)
        check(record)
        return self.derive_refs(record)

    def of_type(self, type_id: str) -> Iterator[str]:
        """Yield the ids of the nodes of one type, oldest first."""
        return self.backend.ids_of_type(_check_id(type_id))

    def walk(
        self,
        *start: str,
        follow_types: bool = False,
        limit: int | None = None,
        seen: set[int] | None = None,
        checked: bool = False,
    ) -> Iterator[str | Dangling]:
        """Visit every node that can be reached from `start`, nearest first, each id once.

        The walk is lazy: it reads nodes as the caller asks for more. For a reference to a missing node, it yields a
        `Dangling`. `seen` contains the numbers of ids to skip; the walk adds the ids that it visits. With `checked`,
        the stored references of each node are compared with those in its payload, which takes about twice as long.
        """
        seen = set() if seen is None else seen
        waiting: deque[int] = deque()
        referrers: deque[int] = deque()

        def enqueue(nodes: Iterable[str], referrer: int) -> None:
            for node in nodes:
                try:
                    number = node_number(node)
                except ValueError as exc:
                    raise _wrong_refs(node_from_number(referrer)) from exc
                if number not in seen:
                    seen.add(number)
                    waiting.append(number)
                    referrers.append(referrer)

        enqueue((_check_id(node) for node in start), -1)
        visited = 0
        while waiting:
            page = [(waiting.popleft(), referrers.popleft()) for _ in range(min(len(waiting), _FETCH))]
            names = [node_from_number(number) for number, _ in page]
            records = {record.id: record for record in self.backend.records(names)}
            for name, (number, referrer) in zip(names, page, strict=True):
                if limit is not None and visited >= limit:
                    return
                visited += 1
                record = records.get(name)
                if record is None:
                    source = self.backend.record(node_from_number(referrer)) if referrer >= 0 else None
                    if source is not None and not checked:
                        self._refs_in(source, checked=True)  # raises an error if the references are damaged
                    yield Dangling(name, node_from_number(referrer) if referrer >= 0 else "")
                    continue
                check(record)
                yield name
                enqueue(self._refs_in(record, checked=checked), number)
                if follow_types:
                    enqueue((record.type,), number)

    def type(self, type_id: str) -> Type:
        """Return a stored schema, compiled. Raise `NotFound` if the schema is not stored."""
        known = self._types.get(type_id)
        if known is not None:
            return known
        schema: Any = META_SCHEMA if type_id == META else _BUILTIN_SCHEMAS.get(type_id)
        if schema is None:
            record = self.backend.record(_check_id(type_id))
            if record is None:
                raise missing_type(type_id)
            check(record)
            if record.type not in (META, record.id):
                raise UsageError(
                    f"{type_id} is not a schema, so it cannot be a type",
                    hint=Hint("See the types", "list_schemas"),
                )
            schema = payload_of(record)
        known = self._types[type_id] = Type(schema)
        return known

    def close(self) -> None:
        self.backend.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- below the operations --

    def record(self, node: str) -> NodeRecord:
        """Return a node as it is stored, unchecked, for verification and export."""
        record = self.backend.record(_check_id(node))
        if record is None:
            raise NotFound(f"node {node} is not in the store", hint=Hint("See what is", "list_nodes"))
        return record

    def _refs_in(self, record: NodeRecord, *, checked: bool = False) -> tuple[str, ...]:
        if record.refs is not None and not checked:
            return record.refs
        try:
            derived = self.derive_refs(record)
        except (NotFound, UsageError) as exc:
            if record.refs is not None:
                return record.refs  # the type is missing, but the references are stored
            message = f"the references of node {record.id} cannot be determined: {exc.message}"
            raise Damaged(message, node=record.id, hint=exc.hint) from exc
        # Compare them as sets: their order is that of the original object, which the canonical bytes do not preserve.
        if record.refs is not None and set(record.refs) != set(derived):
            raise _wrong_refs(record.id)
        return derived

    def derive_refs(self, record: NodeRecord) -> tuple[str, ...]:
        """Derive the references of a record from the schema of its type, for a backend to store."""
        if record.type in (record.id, META):
            return ()
        kind = self.type(record.type)
        return kind.refs(payload_of(record)) if kind.has_refs else ()

    def remember(
        self, types: Mapping[str, Type], registered: Mapping[int, tuple[NodeRecord, Schema]]
    ) -> None:
        """Keep the types that a committed draft has compiled."""
        self._has_builtins = True
        self._types.update(types)
        self.registered.update(registered)

    def learn_types(self, other: "Store") -> None:
        """Take over the types that another store has compiled. A type is the same wherever it is stored."""
        self.remember(other._types, other.registered)

    def builtins(self) -> list[NodeRecord]:
        """Return the records of the builtin types, or an empty list if all of them are stored."""
        if not self._has_builtins:
            builtin = (META, *BUILTIN.values())
            self._has_builtins = len(self.backend.records(builtin)) == len(builtin)
        if self._has_builtins:
            return []
        now, meta = self.now(), canonical.encode(META_SCHEMA)
        schemas = [canonical.encode(schema) for schema in _BUILTIN_SCHEMAS.values()]
        records = [make_record(META, schema, (), now) for schema in schemas]
        return [NodeRecord(META, META, meta, now, (), sha256_of("", meta)), *records]


class Draft:
    """Writes to be made together. Each write is checked when it is added, and all of them are committed at once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._records: dict[str, NodeRecord] = {}
        self._types: dict[str, Type] = {}
        self._used: set[str] = set()
        self._registering: dict[int, tuple[NodeRecord, Schema]] = {}
        self._moves: list[Move] = []
        self._events: list[NewEvent] = []
        self._bumps: list[str] = []
        self._facts: list[Fact] = []
        self._then: list[Callable[[list[Ref]], None]] = []

    def put(self, type_id: str, payload: Any) -> str:
        """Add one node and return its id."""
        kind = self._types.get(type_id) or self.store.type(_check_id(type_id))
        # Encode the payload first, which finds values without a canonical form before the validator sees them.
        data = canonical.encode(payload)
        if misfits := kind.misfits(payload):
            if type_id == META:
                raise refusal(misfits)
            listed = "".join(f"\n  {misfit}" for misfit in misfits)
            raise InvalidPayload(
                f"the payload does not fit type {type_id}:{listed}",
                misfits,
                hint=Hint("See the type", "show_schema", type=type_id),
            )
        record = make_record(type_id, data, kind.refs(payload), self.store.now())
        self._records[record.id] = record
        self._used.add(type_id)
        if type_id == META:
            # Use the bytes, because the caller's object might change later.
            self._types[record.id] = Type(canonical.decode(data), is_checked=True)
        return record.id

    def put_schema(self, schema: Schema) -> str:
        return self.put(META, schema)

    def put_text(self, text: str) -> str:
        return self.put(BUILTIN["string"], text)

    def put_as(self, schema: Schema, payload: Any) -> str:
        """Add a node whose type is a constant in the program, and register that type if it is new."""
        known = self.store.registered.get(id(schema)) or self._registering.get(id(schema))
        if known is None:
            known = self._registering[id(schema)] = (self._records[self.put_schema(schema)], schema)
        # Put the type every time, because a collection might have removed it.
        self._records[known[0].id] = known[0]
        return self.put(known[0].id, payload)

    def add(self, record: NodeRecord) -> None:
        """Add a node made elsewhere, under its own id. Its bytes are checked against the id, but not against its
        type."""
        check(record)
        self._records[record.id] = record

    def move(
        self,
        name: str,
        expected: Ref | None,
        target: str | None = None,
        state: JsonObject | None = None,
        *,
        at: int | None = None,
    ) -> None:
        """Add a compare-and-swap. If both `target` and `state` are None, the ref is removed. `at` is the time of a
        copied move."""
        if target is not None:
            _check_id(target)
        version = expected.version if expected else 0
        self._moves.append(Move(check_ref_name(name), version, target, state, at))

    def bump(self, name: str) -> None:
        """Increase the version of a ref, if the ref exists, so that readers who compare versions notice it."""
        self._bumps.append(check_ref_name(name))

    def set_fact(self, name: str, state: JsonObject) -> None:
        """Write the state of a ref without a target, whatever its state was before."""
        self._facts.append(Fact(check_ref_name(name), state))

    def event(self, stream: str, kind: str, body: JsonObject, *, at: int | None = None) -> None:
        self._events.append(NewEvent(stream, kind, body, at))

    def then(self, call: Callable[[list[Ref]], None]) -> None:
        """Call `call` with the moved refs after they are committed. The function must not raise an exception."""
        self._then.append(call)

    def commit(self, *, durable: bool | None = None) -> list[Ref]:
        """Apply all writes or none, and return the moved refs.

        By default, the commit waits for the disk only if it moves a ref.
        """
        nodes = {record.id: record for record in (*self.store.builtins(), *self._records.values())}
        if not (nodes or self._moves or self._events or self._bumps or self._facts):
            return []
        types = [type_id for type_id in self._used if type_id not in nodes]
        change = Change(list(nodes.values()), self._moves, self._events, types, self._bumps, self._facts)
        moved = self.store.backend.commit(
            change, now=self.store.now(), durable=bool(self._moves) if durable is None else durable
        )
        self.store.remember(self._types, self._registering)
        for call in self._then:
            call(moved)
        return moved


# -- records --


def make_record(type_id: str, data: bytes, refs: tuple[str, ...], created: int) -> NodeRecord:
    return NodeRecord(node_id(type_id, data), type_id, data, created, refs, sha256_of(type_id, data))


def sha256_of(type_id: str, data: bytes) -> bytes:
    return hashlib.sha256(type_id.encode("ascii") + data).digest()


def check(record: NodeRecord) -> None:
    """Raise `Damaged` unless the id was made from these bytes."""
    # A damaged database can contain anything in place of bytes or text.
    is_readable = isinstance(record.data, bytes) and isinstance(record.type, str)
    if not is_readable or not is_id_of(record.id, record.type, record.data):
        raise _damage_error(record.id, "its bytes do not give its id")
    if not is_time(record.created):
        raise _damage_error(record.id, "the time kept with it is not a time")


def _damage_error(node: str, reason: str) -> Damaged:
    return Damaged(
        f"node {node} is damaged: {reason}",
        node=node,
        hint=Hint("Restore it from a bundle that holds it", "repair_store"),
    )


def _wrong_refs(node: str) -> Damaged:
    return Damaged(
        f"node {node} is damaged: the references stored with it do not match its content",
        node=node,
        hint=Hint("Reindex the store", "reindex_store"),
    )


def payload_of(record: NodeRecord) -> Any:
    try:
        return canonical.decode(record.data)
    except Damaged as exc:
        raise _damage_error(record.id, exc.message) from exc
    except InvalidValue as exc:
        raise InvalidValue(
            f"node {record.id} cannot be read: {exc.message}",
            hint="A program with other limits stored the node; read it with that program.",
        ) from exc


def copy_json(value: Any) -> Any:
    """Return a copy of a JSON value, which the caller is free to change."""
    if type(value) is dict:
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if type(value) is list else value


def _check_id(node: str) -> str:
    if not is_node_id(node):
        raise UsageError(
            f"{node!r} is not a node id", hint="An id has 13 characters of 0-9 and A-Z without I, L, O, U."
        )
    return node


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@._$-")


def check_ref_name(name: str) -> str:
    """Return a ref's name if it is valid. Raise `UsageError` otherwise."""
    segments = name.split("/")
    if len(name) > 200 or not all(
        part and part not in (".", "..") and _NAME_CHARACTERS.issuperset(part) for part in segments
    ):
        raise UsageError(
            f"{name!r} is not a ref name",
            hint="Use segments of letters, digits and @ . _ $ - joined by /, at most 200 characters.",
        )
    return name


# -- builtin types --


_BUILTIN_SCHEMAS: dict[str, Schema] = {
    node_id(META, canonical.encode({"type": name})): {"type": name} for name in TYPE_NAMES
}
BUILTIN = {schema["type"]: type_id for type_id, schema in _BUILTIN_SCHEMAS.items()}
"""The ids of the primitive types, keyed by name: string, number, integer, boolean, object, array, null."""
