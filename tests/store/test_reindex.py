"""Reindexing rebuilds what is derived, leaves nodes alone and steps over damage."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.store.verify import Reindexed, reindex

LIST = {"type": "array", "items": {"type": "string", "format": "ocas_ref"}}


def tamper(path: Path, statement: str, *values: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement, values)
    db.close()


def test_an_intact_store_needs_no_correction(tmp_path: Path) -> None:
    with Store(SqliteBackend(str(tmp_path / "s.db"))) as store:
        store.put(store.put_schema(LIST), [store.put_text("leaf")])
        before = list(store.backend.scan())
        counts: list[int] = []
        assert reindex(store, progress=counts.append) == Reindexed(types=3, nodes=11, corrected=0)
        assert counts == [11]
        assert list(store.backend.scan()) == before


def test_lost_and_invented_references_are_corrected(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store(SqliteBackend(str(path))) as store:
        leaf = store.put_text("leaf")
        nodes = store.put_many((store.put_schema(LIST), [leaf] * number) for number in range(1, 1_200))
        tamper(path, "UPDATE nodes SET refs = ''")
        tamper(path, "UPDATE nodes SET refs = ? WHERE id = ?", nodes[0], leaf)
        assert reindex(store).corrected == len(nodes) + 1
        assert all(store.refs_of(node) == (leaf,) for node in nodes)
        assert store.refs_of(leaf) == ()
        assert reindex(store).corrected == 0


def test_a_damaged_node_is_left_for_verify_to_name(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store(SqliteBackend(str(path))) as store:
        leaf = store.put_text("leaf")
        node = store.put(store.put_schema(LIST), [leaf])
        tamper(path, "UPDATE nodes SET data = X'80', refs = '' WHERE id = ?", node)
        assert reindex(store).corrected == 0
        assert store.record(node).refs == ()
