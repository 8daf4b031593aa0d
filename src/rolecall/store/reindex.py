"""Rebuild what is derived from nodes: the references kept beside them and a backend's own indexes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from rolecall.errors import RolecallError
from rolecall.store.backend import Record
from rolecall.store.store import Store, check

_BATCH = 500


class Reindexed(NamedTuple):
    types: int
    nodes: int
    corrected: int
    """Nodes whose kept references were not their own."""


def reindex(store: Store, *, progress: Callable[[int], None] = lambda _: None) -> Reindexed:
    """Work through every intact node; a damaged one is left for `verify` to name."""
    store.backend.reindex()
    types: set[str] = set()
    nodes = corrected = 0
    scan = store.backend.scan()
    while batch := list(islice(scan, _BATCH)):
        records = [item for item in batch if isinstance(item, Record)]
        types |= {record.type for record in records}
        wrong = {record.id: refs for record in records if (refs := _correct_refs(store, record)) is not None}
        if wrong:
            store.backend.reindex(wrong)
        corrected += len(wrong)
        nodes += len(records)
        progress(nodes)
    return Reindexed(len(types), nodes, corrected)


def _correct_refs(store: Store, record: Record) -> tuple[str, ...] | None:
    """What should be kept for a record, when something else is."""
    if record.refs is None:
        return None
    try:
        check(record)
        refs = store.derive_refs(record)
    except RolecallError:
        return None
    return refs if set(refs) != set(record.refs) else None
