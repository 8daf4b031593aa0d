"""Verify that every stored node is still what was put, fits its type, and refers only to existing nodes; and rebuild
the data that is derived from nodes. Both operations read the store in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal, NamedTuple

from rolecall.errors import Damaged, InvalidValue, NotFound, RolecallError, UsageError
from rolecall.store.backend import Damage, NodeRecord
from rolecall.store.store import Store, check, payload_of, sha256_of

_BATCH = 200

Kind = Literal["damaged", "sha256", "invalid", "type", "dangling", "missing", "index", "container", "files"]
DAMAGE: frozenset[Kind] = frozenset({"damaged", "sha256", "type", "index", "container"})
"""The kinds of faults in which stored bytes were lost or changed. An invalid payload or a dangling reference, in
contrast, was stored that way."""


class Fault(NamedTuple):
    node: str
    """The node or ref concerned, or empty if the fault is in the container."""
    kind: Kind
    text: str


class Verified(NamedTuple):
    """The result for one batch of work: how many nodes were checked, and the problems found."""

    nodes: int
    problems: list[Fault]


def verify(store: Store, nodes: Sequence[str] = ()) -> Iterator[Verified]:
    """Check the given nodes or, without `nodes`, everything: all nodes, the refs and the container itself."""
    types: set[str] = set()
    if nodes:
        yield _verify_batch(store, [store.record(node) for node in nodes], types)
        yield Verified(0, list(_find_lost_types(store, types)))
        return
    try:
        yield Verified(0, [Fault("", "container", text) for text in store.backend.problems()])
    except Damaged as exc:
        yield Verified(0, [Fault(exc.node, "container", exc.message)])
    scan = store.backend.scan()
    try:
        while batch := list(islice(scan, _BATCH)):
            yield _verify_batch(store, batch, types)
        targets = {ref.name: ref.target for ref in store.refs() if ref.target is not None}
        missing = set(_find_missing(store, list(targets.values())))
        dangling = [
            Fault(name, "dangling", f"points at {target}, which is not stored")
            for name, target in targets.items()
            if target in missing
        ]
        yield Verified(0, [*_find_lost_types(store, types), *dangling])
    except Damaged as exc:
        # The rest cannot be read, but the problems found so far must be reported.
        yield Verified(0, [Fault(exc.node, "container", exc.message)])


def _verify_batch(store: Store, batch: Sequence[NodeRecord | Damage], types: set[str]) -> Verified:
    problems: list[Fault] = []
    referrers: dict[str, str] = {}
    for item in batch:
        if isinstance(item, Damage):
            problems.append(Fault(item.id, "damaged", item.reason))
            continue
        try:
            problems += _check_record(store, item, types, referrers)
        except Damaged as exc:
            problems.append(Fault(item.id, "damaged", exc.message))
    for target in _find_missing(store, list(referrers)):
        problems.append(Fault(referrers[target], "dangling", f"refers to {target}, which is not stored"))
    return Verified(len(batch), problems)


def _check_record(
    store: Store, record: NodeRecord, types: set[str], referrers: dict[str, str]
) -> Iterator[Fault]:
    check(record)
    if record.sha256 is not None and record.sha256 != sha256_of(
        "" if record.id == record.type else record.type, record.data
    ):
        yield Fault(record.id, "sha256", "the SHA-256 stored with it belongs to other bytes")
    if record.id == record.type:
        payload_of(record)
        return
    try:
        kind = store.type(record.type)
    except (NotFound, UsageError, Damaged) as exc:
        yield Fault(record.id, "type", exc.message)
        return
    types.add(record.type)
    try:
        misfits, refs = kind.misfits(payload_of(record)), store.derive_refs(record)
    except InvalidValue as exc:
        yield Fault(record.id, "invalid", exc.message)
        return
    yield from (Fault(record.id, "invalid", misfit) for misfit in misfits)
    # Compare them as sets: their order is that of the original object, which the canonical bytes do not preserve.
    if record.refs is not None and set(record.refs) != set(refs):
        yield Fault(
            record.id, "index", "the references stored with it do not match its content; reindex the store"
        )
    referrers.update((target, record.id) for target in refs)


def _find_lost_types(store: Store, types: set[str]) -> Iterator[Fault]:
    """Yield the types that nodes use but that are not stored, even if this process knows them."""
    for type_id in _find_missing(store, sorted(types)):
        yield Fault(type_id, "type", "nodes have this type, but it is not stored")


def _find_missing(store: Store, nodes: Sequence[str]) -> list[str]:
    stored = store.backend.find_stored(nodes)
    return [node for node in nodes if node not in stored]


class Reindexed(NamedTuple):
    types: int
    nodes: int
    corrected: int
    """The number of nodes whose stored references were wrong."""


def reindex(store: Store, *, progress: Callable[[int], None] = lambda _: None) -> Reindexed:
    """Reindex every intact node; `verify` reports the damaged ones."""
    store.backend.reindex()
    types: set[str] = set()
    nodes = corrected = 0
    scan = store.backend.scan()
    while batch := list(islice(scan, _BATCH)):
        wrong: dict[str, tuple[str, ...]] = {}
        for record in batch:
            if not isinstance(record, NodeRecord):
                continue
            nodes += 1
            types.add(record.type)
            with suppress(RolecallError):
                check(record)
                refs = store.derive_refs(record)
                if record.refs is not None and set(refs) != set(record.refs):
                    wrong[record.id] = refs
        if wrong:
            store.backend.reindex(wrong)
        corrected += len(wrong)
        progress(nodes)
    return Reindexed(len(types), nodes, corrected)
