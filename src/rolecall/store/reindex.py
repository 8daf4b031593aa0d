"""Rebuild data derived from nodes: the references stored with them and a backend's own indexes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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
    """Nodes whose stored references were wrong."""


def reindex(store: Store, *, progress: Callable[[int], None] = lambda _: None) -> Reindexed:
    """Reindex every intact node; `verify` reports the damaged ones."""
    store.backend.reindex()
    types: set[str] = set()
    nodes = corrected = 0
    scan = store.backend.scan()
    while batch := list(islice(scan, _BATCH)):
        wrong: dict[str, tuple[str, ...]] = {}
        for record in batch:
            if not isinstance(record, Record):
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
