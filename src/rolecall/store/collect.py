"""Garbage collection: remove the nodes to which nothing refers, and only those.

The roots are every target that a ref has or had, every node put within the grace time (a ref to it might follow) and
the builtin types. Marking runs alongside writers. Before each batch of deletions all writers are blocked, and
everything that was put or pointed at in the meantime is marked, too, so a node that came back into use survives. If a
node in use is damaged or missing, its references are unknown, and no node is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from itertools import islice
from typing import NamedTuple

from rolecall.errors import Conflict, Damaged, Hint, UsageError
from rolecall.store.backend import FRESH_MS, INDEX
from rolecall.store.ids import is_node_id, node_number
from rolecall.store.store import BUILTIN, META, Dangling, Store

GRACE_MS = 3_600_000
_BATCH = 2_000


class Collection(NamedTuple):
    total: int
    """The number of nodes before the collection."""
    reachable: int
    young: int
    """The number of nodes that are not reachable, but were put within the grace time or are referenced by such a
    node."""
    collected: int
    """The number of nodes that were removed, or could be removed in a dry run."""
    dangling: tuple[Dangling, ...]
    """The first hundred dangling references that were found."""
    sample: tuple[str, ...]
    """Some of the ids of the collected nodes."""


def collect(store: Store, *, delete: bool, grace_ms: int = GRACE_MS, force: bool = False) -> Collection:
    """Find the nodes to which nothing refers, and remove them if `delete` is true.

    With `force`, nodes are removed even if a node in use refers to a node that is not stored.
    """
    marks = _Marks(store)
    with store.backend.exclusive() if delete else nullcontext():
        marks.position = store.backend.position()
    # A node put again within FRESH_MS keeps its earlier put time.
    cutoff = store.now() - grace_ms - (FRESH_MS if grace_ms > 0 else 0)
    marks.add(store.backend.find_stored((META, *BUILTIN.values())))
    marks.add(moved.target for moved in store.backend.roots())
    reachable = marks.count
    marks.add(put.id for put in store.backend.puts() if put.at > cutoff)
    fault = next(iter(store.backend.problems()), None) if delete and marks.dangling else None
    if delete and marks.dangling and (fault or not force):  # the references of a missing node are unknown
        dangling = marks.dangling[0]
        names = (moved.name for moved in store.backend.roots() if moved.target == dangling.id)
        referrer = f"node {dangling.referrer}" if dangling.referrer else f"ref {next(names, '?')!r}"
        message = f"nothing was collected: {referrer} refers to {dangling.id}, which is not stored"
        hint = Hint("If it was lost, restore it; if it was never stored, collect anyway", "import_or_force")
        if fault:
            message += f", and {fault}"
            hint = Hint("Verify the store, then repair or reindex it", "verify_store")
        raise Damaged(message, node=dangling.id, hint=hint)
    total = sum(1 for _ in store.backend.puts())

    sample: list[str] = []
    collected = 0
    doomed = (put.id for put in store.backend.puts() if put.at <= cutoff and not marks.has(put.id))
    while batch := list(islice(doomed, _BATCH)):
        if delete:
            with store.backend.exclusive():
                marks.catch_up()
                batch = [node for node in batch if not marks.has(node)]
                store.backend.delete(batch)
        collected += len(batch)
        sample += batch[: 20 - len(sample)]
    if delete:
        _remove_from_index(store)
    return Collection(
        total, reachable, marks.count - reachable, collected, tuple(marks.dangling), tuple(sample)
    )


def _remove_from_index(store: Store) -> None:
    last = None
    while page := store.refs(INDEX, before=last, limit=_BATCH):
        last = page[-1].name
        stored = store.backend.find_stored([ref.state["step"] for ref in page])
        draft = store.draft()
        for ref in page:
            if ref.state["step"] not in stored:
                draft.move(ref.name, ref)
        with suppress(Conflict):  # a ref now names a newer node; the next collection removes the other refs
            draft.commit(durable=False)


class _Marks:
    """The nodes to keep. The set is always closed under references and types."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[int] = set()
        self.position = (0, 0)
        self.count = 0
        self.dangling: list[Dangling] = []

    def has(self, node: str) -> bool:
        if not is_node_id(node):
            raise Damaged(
                f"nothing more was collected: {node!r} is stored, but is not a node id",
                node=node,
                hint=Hint("See it", "verify_store"),
            )
        return node_number(node) in self._seen

    def add(self, nodes: Iterable[str]) -> None:
        nodes = iter(nodes)
        while batch := list(islice(nodes, _BATCH)):
            try:
                for visit in self._store.walk(*batch, follow_types=True, seen=self._seen, checked=True):
                    if not isinstance(visit, Dangling):
                        self.count += 1
                    elif len(self.dangling) < 100:
                        self.dangling.append(visit)
            except (Damaged, UsageError) as exc:
                # The references of a damaged node are unknown, so no node can be removed.
                raise Damaged(
                    f"nothing was collected: {exc.message}", node=getattr(exc, "node", ""), hint=exc.hint
                ) from exc

    def catch_up(self) -> None:
        """Mark the nodes that were put or pointed at since the last call. Call this method while writers are
        blocked."""
        puts, moves = self.position
        self.position = self._store.backend.position()
        self.add(moved.target for moved in self._store.backend.roots(moves))
        self.add(put.id for put in self._store.backend.puts(puts))
