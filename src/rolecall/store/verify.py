"""Verification: is every stored node still what was put, does it fit its type, does what it refers to exist?

Works through the store in bounded memory and yields what it finds; it repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from rolecall.errors import Damaged, NotFound, UsageError
from rolecall.store.backend import Damage, Record
from rolecall.store.store import Store, check, payload_of, sha256_of

_BATCH = 200

Kind = Literal["damaged", "sha256", "invalid", "type", "dangling", "index", "container"]
DAMAGE: frozenset[Kind] = frozenset({"damaged", "sha256", "type", "index", "container"})
"""Kinds that mean stored bytes were lost or changed. An invalid payload or a dangling reference was put so."""


class Problem(NamedTuple):
    node: str
    """The node or ref it is about; empty for the container."""
    kind: Kind
    text: str


class Verified(NamedTuple):
    """One batch of work done: how many nodes were looked at, and what was wrong with them."""

    nodes: int
    problems: list[Problem]


def verify(store: Store, nodes: Sequence[str] = ()) -> Iterator[Verified]:
    """Check the given nodes, or everything: nodes, refs and the container itself."""
    if nodes:
        yield _verify_batch(store, [store.record(node) for node in nodes])
        return
    yield Verified(0, list(_container_problems(store)))
    scan = store.backend.scan()
    try:
        while batch := list(islice(scan, _BATCH)):
            yield _verify_batch(store, batch)
        yield Verified(0, list(_ref_problems(store)))
    except Damaged as exc:
        # What lies beyond cannot be reached; what was found so far must still be told.
        yield Verified(0, [Problem(exc.node, "container", exc.message)])


def _container_problems(store: Store) -> Iterator[Problem]:
    try:
        yield from (Problem("", "container", text) for text in store.backend.problems())
    except Damaged as exc:
        yield Problem(exc.node, "container", exc.message)


def _verify_batch(store: Store, batch: Sequence[Record | Damage]) -> Verified:
    problems: list[Problem] = []
    referrers: dict[str, str] = {}
    for item in batch:
        if isinstance(item, Damage):
            problems.append(Problem(item.id, "damaged", item.reason))
            continue
        try:
            problems += _record_problems(store, item, referrers)
        except Damaged as exc:
            problems.append(Problem(item.id, "damaged", exc.message))
    stored = _stored(store, list(referrers))
    for target, referrer in referrers.items():
        if target not in stored:
            problems.append(Problem(referrer, "dangling", f"refers to {target}, which is not stored"))
    return Verified(len(batch), problems)


def _record_problems(store: Store, record: Record, referrers: dict[str, str]) -> Iterator[Problem]:
    check(record)
    payload = payload_of(record)
    if record.sha256 is not None and record.sha256 != sha256_of(
        "" if record.id == record.type else record.type, record.data
    ):
        yield Problem(record.id, "sha256", "the SHA-256 kept with it is of other bytes")
    if record.id == record.type:
        return
    try:
        kind = store.type(record.type)
    except (NotFound, UsageError, Damaged) as exc:
        yield Problem(record.id, "type", exc.message)
        return
    for misfit in kind.misfits(payload):
        yield Problem(record.id, "invalid", misfit)
    refs = store.derive_refs(record)
    # Their order is that of the object that was put, which the bytes no longer tell.
    if record.refs is not None and set(record.refs) != set(refs):
        yield Problem(
            record.id, "index", "the references kept with it are not its own; run `rolecall cas reindex`"
        )
    referrers.update((target, record.id) for target in refs)


def _ref_problems(store: Store) -> Iterator[Problem]:
    refs = [ref for ref in store.refs() if ref.target is not None]
    stored = _stored(store, [ref.target for ref in refs if ref.target])
    for ref in refs:
        if ref.target not in stored:
            yield Problem(ref.name, "dangling", f"points at {ref.target}, which is not stored")


def _stored(store: Store, nodes: Sequence[str]) -> set[str]:
    """Those of `nodes` that are stored; asked in pages, because the records come with their bytes."""
    found: set[str] = set()
    for start in range(0, len(nodes), _BATCH):
        found.update(record.id for record in store.backend.records(nodes[start : start + _BATCH]))
    return found
