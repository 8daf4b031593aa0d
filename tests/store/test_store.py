"""The verbs of the store that do not depend on its backend: types, canonical values, prefixes, references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Damaged, InvalidPayload, InvalidSchema, InvalidValue, NotFound, UsageError
from rolecall.store import canonical
from rolecall.store.backend import Backend, Change, NodeRecord
from rolecall.store.contract import ABSENT, LINK, chain, damage
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import BUILTIN, META, Dangling, Store, make_record


class CountingReads:
    """A backend that counts the nodes read through it; everything else passes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def record(self, node: str) -> NodeRecord | None:
        self.read += 1
        return self._backend.record(node)

    def records(self, nodes: Sequence[str]) -> list[NodeRecord]:
        self.read += len(nodes)
        return self._backend.records(nodes)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    backend = SqliteBackend(str(tmp_path / "store.db"))
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> Store:
    return Store(backend)


@pytest.fixture
def link(store: Store) -> str:
    return store.put_schema(LINK)


def test_the_same_content_has_the_same_id_in_any_key_order(store: Store) -> None:
    first = store.put(BUILTIN["object"], {"a": 1, "bb": {"x": 1, "y": 2}})
    second = store.put(BUILTIN["object"], {"bb": {"y": 2, "x": 1}, "a": 1})
    assert first == second
    assert list(store.of_type(BUILTIN["object"])) == [first]


def test_the_same_payload_under_another_type_is_another_node(store: Store) -> None:
    titled = store.put_schema({"type": "string", "title": "titled"})
    assert store.put_text("x") != store.put(titled, "x")


def test_a_payload_belongs_to_whoever_got_it(store: Store) -> None:
    node = store.put(BUILTIN["object"], {"list": [1, {"a": 2}]})
    first = store.get(node).payload
    first["list"][1]["a"] = "changed"
    first["list"].append(3)
    assert store.get(node).payload == {"list": [1, {"a": 2}]}


def test_an_unknown_type_is_refused_and_nothing_written(store: Store) -> None:
    with pytest.raises(NotFound, match=ABSENT):
        store.put(ABSENT, {})
    assert store.backend.size()["nodes"] == 0


def test_a_node_that_is_no_schema_cannot_be_a_type(store: Store) -> None:
    text = store.put_text("no schema")
    with pytest.raises(UsageError, match=text):
        store.put(text, 1)


def test_every_misfit_of_a_payload_is_listed_with_its_path(store: Store, link: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        store.put(link, {"next": 7, "many": ["x"], "extra": 1})
    paths = {problem.split(":")[0] for problem in caught.value.problems}
    assert paths == {"/", "/next", "/many/0"}
    assert len(caught.value.problems) == 4


def test_a_schema_outside_the_accepted_set_is_refused_with_every_problem(store: Store) -> None:
    with pytest.raises(InvalidSchema) as caught:
        store.put_schema({"type": "text", "$ref": "#/x"})
    assert len(caught.value.problems) == 2


def test_a_value_without_canonical_form_is_refused(store: Store) -> None:
    with pytest.raises(InvalidValue, match="/here"):
        store.put(BUILTIN["object"], {"here": float("nan")})


def test_a_bad_node_in_the_middle_of_a_batch_writes_nothing(store: Store) -> None:
    nodes = [(BUILTIN["string"], "good"), (BUILTIN["string"], 5), (BUILTIN["string"], "also good")]
    with pytest.raises(InvalidPayload):
        store.put_many(nodes)
    assert list(store.backend.scan()) == []


def test_a_later_node_of_a_batch_may_have_an_earlier_one_as_its_type(store: Store) -> None:
    draft = store.draft()
    kind = draft.put_schema({"type": "integer", "minimum": 10})
    node = draft.put(kind, 11)
    with pytest.raises(InvalidPayload):
        draft.put(kind, 9)
    assert not store.has(node)
    draft.commit()
    assert store.get(node).type == kind


def test_a_damaged_schema_is_no_type(store: Store, backend: Backend) -> None:
    store.put_text("intact")
    schema = damage(make_record(META, canonical.encode({"type": "string", "title": "t"}), (), 1))
    backend.commit(Change([schema]), now=1, durable=True)
    with pytest.raises(Damaged, match=schema.id):
        store.put(schema.id, "x")


def test_a_prefix_stands_for_the_one_node_it_begins(store: Store) -> None:
    node = store.put_text("found by its beginning")
    assert [store.resolve(text) for text in (node[:6], node[:6].lower(), node, node.lower())] == [node] * 4


def test_an_ambiguous_short_or_impossible_prefix_is_refused(store: Store, backend: Backend) -> None:
    ids = ["ABCD000000001", "ABCD000000002", "ABCE000000001"]
    records = [NodeRecord(node, BUILTIN["string"], b"\x60", 1, (), None) for node in ids]
    backend.commit(Change(records), now=1, durable=True)
    with pytest.raises(UsageError, match="ABCD000000001, ABCD000000002"):
        store.resolve("abcd")
    with pytest.raises(UsageError, match="'ABC'"):
        store.resolve("ABC")
    with pytest.raises(UsageError, match="'ABCU'"):
        store.resolve("ABCU")
    with pytest.raises(NotFound, match="ZZZZ"):
        store.resolve("ZZZZ")
    assert store.resolve("ABCE") == ids[2]
    assert backend.ids_with_prefix("ABC", 2) == ids[:2]


def test_references_are_found_through_nullable_choices_lists_and_maps(store: Store, link: str) -> None:
    a, b, c, d = (store.put_text(text) for text in "abcd")
    whole = {"name": a, "next": a, "either": b, "many": [c, a], "named": {"x": d}}
    assert set(store.refs_of(store.put(link, whole))) == {a, b, c, d}
    assert store.refs_of(store.put(link, {"name": "none", "next": None, "either": 4, "many": []})) == ()


def test_walk_visits_nearest_first_and_each_node_once(store: Store, link: str) -> None:
    shared = store.put(link, {"name": "shared"})
    left = store.put(link, {"name": "left", "next": shared})
    right = store.put(link, {"name": "right", "next": shared})
    top = store.put(link, {"name": "top", "many": [left, right, shared]})
    root = store.put(link, {"name": "root", "next": top})
    assert list(store.walk(root)) == [root, top, left, right, shared]
    assert list(store.walk(left, right)) == [left, right, shared]


def test_walk_reads_only_as_far_as_it_is_asked(store: Store, backend: Backend) -> None:
    ids = chain(store, 600)
    counting = CountingReads(backend)
    visits = Store(counting).walk(ids[0])
    assert list(islice(visits, 3)) == ids[:3]
    assert counting.read < 10
    assert list(visits) == ids[3:]


def test_walk_stops_at_its_limit(store: Store) -> None:
    ids = chain(store, 10)
    assert list(store.walk(ids[0], limit=4)) == ids[:4]
    assert list(store.walk(ids[0], limit=0)) == []


def test_walk_follows_types_only_when_asked(store: Store, link: str) -> None:
    node = store.put(link, {"name": "typed"})
    assert list(store.walk(node)) == [node]
    assert list(store.walk(node, follow_types=True)) == [node, link, META]


def test_walk_stays_away_from_what_was_seen(store: Store) -> None:
    ids = chain(store, 4)
    seen: set[int] = set()
    assert list(store.walk(ids[2], seen=seen)) == ids[2:]
    assert list(store.walk(ids[0], seen=seen)) == ids[:2]


def test_a_dangling_reference_comes_with_its_referrer(store: Store, link: str) -> None:
    node = store.put(link, {"name": "points nowhere", "next": ABSENT})
    assert list(store.walk(node)) == [node, Dangling(ABSENT, node)]
    assert list(store.walk(ABSENT)) == [Dangling(ABSENT, "")]


def test_references_may_have_been_put_in_any_order(store: Store, link: str) -> None:
    leaf = store.put_text("leaf")
    node = store.put(link, {"name": "n", "named": {"zz": ABSENT, "a": leaf}, "either": link})
    found = {link, leaf, Dangling(ABSENT, node)}
    assert set(store.walk(node)) == {node, *found}
    assert set(store.walk(node, checked=True)) == {node, *found}


def test_an_impossible_ref_name_is_refused(store: Store) -> None:
    for name in ("", "a//b", "../a", "a b", "x" * 201):
        with pytest.raises(UsageError):
            store.move(name, None, None, {})
