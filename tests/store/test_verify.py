"""Verification names everything that is not as it was put, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Damaged, InvalidValue, NotFound
from rolecall.store import canonical
from rolecall.store.backend import Change
from rolecall.store.collect import collect
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import BUILTIN, META, Store, make_record
from rolecall.store.verify import DAMAGE, Fault, reindex, verify

LIST = {"type": "array", "items": {"type": "string", "format": "ocas_ref"}}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str) -> Iterator[Store]:
    with Store(SqliteBackend(path)) as opened:
        yield opened


def tamper(path: str, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(statement, values).rowcount == 1
    db.close()


def problems(store: Store, *nodes: str) -> list[Fault]:
    with Store(SqliteBackend(str(store.backend.path))) as fresh:  # type: ignore[attr-defined]
        return [problem for done in verify(fresh, nodes) for problem in done.problems]


def kinds(store: Store, *nodes: str) -> list[tuple[str, str]]:
    return [(problem.node, problem.kind) for problem in problems(store, *nodes)]


def add_unchecked(store: Store, type_id: str, payload: Any) -> str:
    """A node as a program without checks would have stored it."""
    draft = store.draft()
    draft.add(record := make_record(type_id, canonical.encode(payload), (), 1))
    draft.commit()
    return record.id


def test_an_intact_store_has_no_problems(store: Store) -> None:
    leaf = store.put_text("leaf")
    store.move("root", None, store.put(store.put_schema(LIST), [leaf]))
    assert problems(store) == []
    assert sum(done.nodes for done in verify(store)) == 11


def test_every_node_of_a_large_store_is_looked_at(store: Store) -> None:
    store.put_many((BUILTIN["integer"], number) for number in range(1_000))
    assert sum(done.nodes for done in verify(store)) == 1_008


def test_changed_bytes_are_damage(store: Store, path: str) -> None:
    node, intact = store.put_text("hello"), store.put_text("intact")
    tamper(path, "UPDATE nodes SET data = ? WHERE id = ?", canonical.encode("hullo"), node)
    assert kinds(store) == [(node, "damaged")]
    assert kinds(store, node) == [(node, "damaged")]
    assert kinds(store, intact) == []
    assert "damaged" in DAMAGE
    with pytest.raises(Damaged) as caught:
        store.get(node)
    assert caught.value.node == node


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE nodes SET data = 'a text where bytes belong' WHERE id = ?",
        "UPDATE nodes SET data = 5 WHERE id = ?",
        "UPDATE nodes SET data = X'' WHERE id = ?",
        "UPDATE nodes SET type = 'BEAZQGKVXMZT8' WHERE id = ?",
        "UPDATE nodes SET type = 'not a type' WHERE id = ?",
    ],
)
def test_columns_edited_by_hand_are_damage(store: Store, path: str, statement: str) -> None:
    node = store.put_text("hello")
    tamper(path, statement, node)
    assert (node, "damaged") in kinds(store)
    with pytest.raises(Damaged):
        store.get(node)
    with pytest.raises(Damaged):
        list(store.walk(node))


@pytest.mark.parametrize("column", ["type", "id"])
def test_a_byte_that_is_no_text_is_damage_of_one_node(store: Store, path: str, column: str) -> None:
    store.put_text("intact")
    node = store.put_text("hello")
    tamper(path, f"UPDATE nodes SET {column} = CAST(X'FF' || {column} AS TEXT) WHERE id = ?", node)
    found = problems(store)
    shown = node if column == "type" else "\ufffd" + node
    assert [(problem.node, problem.kind) for problem in found if problem.kind != "container"] == [
        (shown, "damaged")
    ]
    assert sum(done.nodes for done in verify(store)) == 10
    if column == "type":
        with pytest.raises(Damaged, match=node):
            store.get(node)


@pytest.mark.parametrize("value", ["'soon'", "-1", "9e15", "1.5", "X'00'", "CAST(X'FF' AS TEXT)"])
def test_a_time_that_is_none_is_damage(store: Store, path: str, value: str) -> None:
    node = store.put_text("hello")
    tamper(path, f"UPDATE nodes SET created = {value} WHERE id = ?", node)
    assert kinds(store) == [(node, "damaged")]
    with pytest.raises(Damaged, match=f"node {node} is damaged: the time kept with it"):
        store.get(node)


def test_a_time_of_the_last_put_that_is_none_stops_nothing(store: Store, path: str) -> None:
    node = store.put_text("hello")
    tamper(path, "UPDATE nodes SET put_at = 'soon' WHERE id = ?", node)
    assert store.put_text("hello") == node
    assert collect(store, delete=True, grace_ms=0).collected == 0


def test_an_id_edited_by_hand_is_damage(store: Store, path: str) -> None:
    node = store.put_text("hello")
    tamper(path, "UPDATE nodes SET id = 'not an id' WHERE id = ?", node)
    assert kinds(store) == [("not an id", "damaged")]


def test_a_sha256_of_other_bytes_is_damage(store: Store, path: str) -> None:
    node = store.put_text("hello")
    tamper(path, "UPDATE nodes SET sha256 = zeroblob(32) WHERE id = ?", node)
    assert kinds(store) == [(node, "sha256")]


def test_a_node_that_came_without_sha256_is_no_problem(store: Store, path: str) -> None:
    node = store.put_text("hello")
    tamper(path, "UPDATE nodes SET sha256 = NULL WHERE id = ?", node)
    assert problems(store) == []


def test_the_meta_schema_has_its_sha256_checked_too(store: Store, path: str) -> None:
    store.put_text("hello")
    tamper(path, "UPDATE nodes SET sha256 = zeroblob(32) WHERE id = ?", META)
    assert kinds(store) == [(META, "sha256")]


def test_a_payload_that_does_not_fit_its_type_is_named_with_all_misfits(store: Store) -> None:
    kind = store.put_schema({"type": "object", "required": ["a", "b"]})
    node = add_unchecked(store, kind, {})
    assert kinds(store) == [(node, "invalid"), (node, "invalid")]
    assert "invalid" not in DAMAGE


def test_a_node_whose_type_is_missing_is_named(store: Store) -> None:
    node = add_unchecked(store, "0000000000001", {})
    found = problems(store)
    assert [(problem.node, problem.kind) for problem in found] == [(node, "type")]
    assert "0000000000001" in found[0].text


def test_a_builtin_type_that_was_lost_is_named(store: Store, path: str) -> None:
    store.put_text("its type goes")
    tamper(path, "DELETE FROM nodes WHERE id = ?", BUILTIN["string"])
    assert kinds(store) == [(BUILTIN["string"], "type")]
    assert kinds(store, store.put(BUILTIN["integer"], 1)) == []


def test_a_value_that_nests_too_deep_is_invalid_and_no_damage(store: Store) -> None:
    data = b"\x81" * 300 + b"\x00"
    store.backend.commit(Change([record := make_record(BUILTIN["array"], data, (), 1)]), now=1, durable=True)
    store.put_text("x")
    found = problems(store)
    assert [(problem.node, problem.kind) for problem in found] == [(record.id, "invalid")]
    with pytest.raises(InvalidValue, match=f"node {record.id} cannot be read: .* deeper than 200"):
        store.get(record.id)
    assert list(store.walk(record.id, checked=True)) == [record.id]


def test_a_node_whose_type_is_no_schema_is_named(store: Store) -> None:
    text = store.put_text("no schema")
    node = add_unchecked(store, text, {})
    assert kinds(store) == [(node, "type")]


@pytest.mark.parametrize("schema", [{"anyOf": 5}, "text", {"$ref": "#/x"}, {"pattern": "("}])
def test_a_schema_that_is_none_is_named_and_so_are_its_nodes(store: Store, schema: Any) -> None:
    kind = add_unchecked(store, META, schema)
    node = add_unchecked(store, kind, "x")
    found = kinds(store)
    assert (kind, "invalid") in found
    assert {name for name, _ in found} == {kind, node}


def test_a_node_whose_type_is_damaged_is_named_with_it(store: Store, path: str) -> None:
    kind = store.put_schema({"type": "object"} | {"title": "T"})
    node = store.put(kind, {})
    tamper(path, "UPDATE nodes SET data = X'a0' WHERE id = ?", kind)
    assert sorted(kinds(store)) == sorted([(kind, "damaged"), (node, "type")])


def test_references_to_nothing_are_named_with_their_referrer(store: Store) -> None:
    node = store.put(store.put_schema(LIST), ["0000000000001"])
    store.move("root", None, "0000000000002")
    found = problems(store)
    assert [(problem.node, problem.kind) for problem in found] == [(node, "dangling"), ("root", "dangling")]
    assert "0000000000001" in found[0].text
    assert "0000000000002" in found[1].text


def test_tampered_references_are_named_and_reindex_corrects_them(store: Store, path: str) -> None:
    leaf, other = store.put_text("leaf"), store.put_text("other")
    node = store.put(store.put_schema(LIST), [leaf])
    tamper(path, "UPDATE nodes SET refs = ? WHERE id = ?", other, node)
    assert kinds(store) == [(node, "index")]
    assert store.refs_of(node) == (leaf,)
    assert list(store.walk(node)) == [node, other]
    with pytest.raises(Damaged, match=node):
        list(store.walk(node, checked=True))
    assert reindex(store).corrected == 1
    assert list(store.walk(node)) == [node, leaf]
    assert problems(store) == []


def test_a_node_asked_for_that_is_not_there_is_not_found(store: Store) -> None:
    store.put_text("x")
    with pytest.raises(NotFound, match="0000000000001"):
        problems(store, "0000000000001")


def test_a_damaged_database_page_is_named(store: Store, path: str) -> None:
    store.put_many((BUILTIN["string"], f"{number}" * 100) for number in range(500))
    store.close()
    data = bytearray(Path(path).read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 4096):
        data[at] = 0xAA
    Path(path).write_bytes(data)
    found: list[str] = []
    with Store(SqliteBackend(path)) as damaged:
        try:
            found += [problem.kind for done in verify(damaged) for problem in done.problems]
        except Damaged as exc:
            found.append(exc.message)
    assert found
