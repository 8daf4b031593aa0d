"""Garbage collection: nothing in use is ever removed, whoever writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Damaged
from rolecall.store.backend import FRESH_MS, Change
from rolecall.store.collect import GRACE_MS, collect
from rolecall.store.files import FilesBackend
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import BUILTIN, META, Store

REF = {"type": "string", "format": "ocas_ref"}
DAY = 86_400_000


class Clock:
    """A time that passes only when told."""

    def __init__(self) -> None:
        self.ms = 1_780_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str, clock: Clock) -> Iterator[Store]:
    with Store(SqliteBackend(path), now=clock) as opened:
        yield opened


def ids_in(store: Store) -> set[str]:
    return {put.id for put in store.backend.puts()}


def link(store: Store, *targets: str) -> str:
    kind = store.put_schema({"type": "array", "items": REF})
    return store.put(kind, list(targets))


def test_the_index_keeps_nothing_and_forgets_what_is_removed(store: Store, clock: Clock) -> None:
    kept, lost = store.put_text("kept"), store.put_text("lost")
    store.move("keep/it", None, kept)
    draft = store.draft()
    draft.set_fact("key/a", {"step": lost})
    draft.set_fact("key/b", {"step": kept})
    draft.commit()
    clock.ms += DAY
    assert collect(store, delete=False).collected == 1
    assert [ref.name for ref in store.refs("key/")] == ["key/a", "key/b"]
    assert collect(store, delete=True).collected == 1
    assert [ref.name for ref in store.refs("key/")] == ["key/b"]


def test_dry_run_finds_what_can_go_and_changes_nothing(store: Store, clock: Clock, path: str) -> None:
    lost = store.put_text("nobody refers to this")
    store.move("keep/it", None, kept := store.put_text("kept"))
    clock.ms += DAY
    before = list(store.backend.scan())
    done = collect(store, delete=False)
    assert (done.collected, done.sample) == (1, (lost,))
    assert done.total == len(before) == 10
    assert done.reachable == 9
    assert done.young == 0
    assert list(store.backend.scan()) == before
    assert store.has(kept)


def test_only_what_nothing_refers_to_is_deleted(store: Store, clock: Clock) -> None:
    lost = [store.put_text(f"lost {number}") for number in range(5)]
    leaf = store.put_text("leaf")
    root = link(store, link(store, leaf))
    store.move("root", None, root)
    clock.ms += DAY
    before = ids_in(store)
    done = collect(store, delete=True)
    assert done.collected == 5
    assert set(done.sample) == set(lost)
    assert ids_in(store) == before - set(lost)
    assert collect(store, delete=True).collected == 0


def test_more_than_one_batch_is_deleted(store: Store, clock: Clock) -> None:
    draft = store.draft()
    for number in range(4_500):
        draft.put_text(f"lost {number}")
    draft.commit()
    store.move("keep", None, kept := store.put_text("kept"))
    clock.ms += DAY
    done = collect(store, delete=True)
    assert (done.total, done.collected) == (4_509, 4_500)
    assert ids_in(store) == {META, *BUILTIN.values(), kept}


def test_types_meta_and_builtins_of_reachable_nodes_stay(store: Store, clock: Clock) -> None:
    kind = store.put_schema({"type": "object", "title": "A type used once"})
    unused = store.put_schema({"type": "object", "title": "A type used never"})
    store.move("root", None, node := store.put(kind, {}))
    clock.ms += DAY
    collect(store, delete=True)
    assert ids_in(store) == {META, *BUILTIN.values(), kind, node}
    assert unused not in ids_in(store)
    with Store(SqliteBackend(str(store.backend.path))) as fresh:  # type: ignore[attr-defined]
        assert fresh.put(kind, {"again": 1})


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"oneOf": [{"type": "integer"}, REF]}, lambda node: node),
        ({"anyOf": [{"type": "null"}, REF]}, lambda node: node),
        ({"type": ["array", "null"], "items": REF}, lambda node: (node,)),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"], "properties": {"b": REF}}]},
            lambda node: {"b": node},
        ),
        ({"patternProperties": {r"^\D$": REF}}, lambda node: {"\u0663": node}),
        ({"if": {"type": "array"}, "else": REF}, lambda node: node),
        (
            {"patternProperties": {r"^\d+$": {"type": "integer"}}, "additionalProperties": REF},
            lambda node: {"x": node},
        ),
        (
            {"patternProperties": {"^a$": {"type": "integer"}}, "additionalProperties": REF},
            lambda node: {"a\n": node},
        ),
    ],
)
def test_what_is_reachable_only_through_a_branch_stays(
    store: Store, clock: Clock, schema: dict[str, Any], payload: Callable[[str], Any]
) -> None:
    leaf = store.put_text("leaf")
    store.move("root", None, store.put(store.put_schema(schema), payload(leaf)))
    clock.ms += DAY
    assert collect(store, delete=True).collected == 0
    assert store.get(leaf).payload == "leaf"


def test_what_a_ref_pointed_at_before_stays_until_the_ref_is_removed(store: Store, clock: Clock) -> None:
    first, second = store.put_text("first"), store.put_text("second")
    ref = store.move("root", None, first)
    ref = store.move("root", ref, second)
    clock.ms += DAY
    assert collect(store, delete=True).collected == 0
    store.move("root", ref)
    assert collect(store, delete=True).collected == 2
    assert not store.has(first)


def test_state_without_a_target_is_no_root(store: Store, clock: Clock) -> None:
    lost = store.put_text("lost")
    store.move("lease/x", None, None, {"holder": lost})
    clock.ms += DAY
    assert collect(store, delete=True).sample == (lost,)


def test_what_was_put_within_the_grace_time_stays(store: Store, clock: Clock) -> None:
    old = store.put_text("old")
    clock.ms += GRACE_MS
    leaf = store.put_text("leaf of the young one")
    young = link(store, leaf)
    clock.ms += GRACE_MS - 1
    done = collect(store, delete=True)
    assert done.sample == (old,)
    assert done.young == 3
    assert store.has(young) and store.has(leaf)
    clock.ms += 1 + FRESH_MS
    assert collect(store, delete=True).collected == 3


def test_a_young_node_keeps_the_old_ones_it_refers_to(store: Store, clock: Clock) -> None:
    leaf = store.put_text("old leaf")
    clock.ms += DAY
    link(store, leaf)
    assert collect(store, delete=True).collected == 0
    assert store.has(leaf)


def test_an_old_node_put_again_is_young_again(store: Store, clock: Clock) -> None:
    node = store.put_text("again")
    clock.ms += DAY
    assert store.put_text("again") == node
    assert collect(store, delete=True).collected == 0


class InterruptedBackend(SqliteBackend):
    """Lets something happen at the last moment before a batch of deletions holds writers off."""

    def __init__(self, path: str, interruption: Callable[[], object]) -> None:
        super().__init__(path)
        self._interruption = interruption
        self.entered = 0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self.entered += 1
        if self.entered == 2:  # the first time is the look at the position before marking
            self._interruption()
        with super().exclusive():
            yield


def collect_while(path: str, clock: Clock, interruption: Callable[[Store], object]) -> int:
    """Collect, with `interruption` acting through a connection of its own between mark and sweep."""

    def interrupt() -> None:
        with Store(SqliteBackend(path), now=clock) as other:
            interruption(other)

    backend = InterruptedBackend(path, interrupt)
    with Store(backend, now=clock) as store:
        done = collect(store, delete=True)
    assert backend.entered >= 2
    return done.collected


def test_a_node_put_again_between_mark_and_sweep_survives(store: Store, clock: Clock, path: str) -> None:
    node, lost = store.put_text("comes back"), store.put_text("does not")
    clock.ms += DAY
    assert collect_while(path, clock, lambda other: other.put_text("comes back")) == 1
    assert store.has(node)
    assert not store.has(lost)


def test_a_node_pointed_at_between_mark_and_sweep_survives(store: Store, clock: Clock, path: str) -> None:
    leaf = store.put_text("leaf")
    node = link(store, leaf)
    store.put_text("lost")
    clock.ms += DAY
    assert collect_while(path, clock, lambda other: other.move("new", None, node)) == 1
    assert store.has(node) and store.has(leaf)
    assert store.has(store.get(node).type)


def test_a_node_referred_to_by_a_new_node_survives(store: Store, clock: Clock, path: str) -> None:
    leaf = store.put_text("leaf")
    clock.ms += DAY
    assert collect_while(path, clock, lambda other: link(other, leaf)) == 0
    assert store.has(leaf)


def test_a_damaged_node_in_use_stops_the_collection(store: Store, clock: Clock) -> None:
    leaf = store.put_text("leaf")
    root = link(store, leaf)
    store.move("root", None, root)
    lost = store.put_text("lost")
    clock.ms += DAY
    assert isinstance(store.backend, SqliteBackend)
    store.backend._db.execute("UPDATE nodes SET data = X'80' WHERE id = ?", (root,))
    with pytest.raises(Damaged) as caught:
        collect(store, delete=True)
    assert caught.value.node == root
    assert "nothing was collected" in caught.value.message
    assert store.has(lost) and store.has(leaf)


def test_references_to_nothing_are_reported(store: Store, clock: Clock) -> None:
    missing = "0000000000001"
    root = link(store, missing)
    store.move("root", None, root)
    clock.ms += DAY
    done = collect(store, delete=False)
    assert [(visit.id, visit.referrer) for visit in done.dangling] == [(missing, root)]


def test_a_reference_to_nothing_stops_a_deletion_unless_forced(store: Store, clock: Clock) -> None:
    lost = store.put_text("lost")
    root = link(store, "0000000000001")
    store.move("root", None, root)
    clock.ms += DAY
    with pytest.raises(Damaged) as caught:
        collect(store, delete=True)
    assert f"nothing was collected: node {root} refers to 0000000000001" in caught.value.message
    assert "collect anyway" in caught.value.hint
    assert store.has(lost)
    assert collect(store, delete=True, force=True).sample == (lost,)
    assert store.has(root)


def test_a_ref_to_nothing_stops_a_deletion_by_its_name(store: Store, clock: Clock) -> None:
    lost = store.put_text("lost")
    store.move("wf/root", None, "0000000000001")
    clock.ms += DAY
    with pytest.raises(Damaged, match="ref 'wf/root' refers to 0000000000001"):
        collect(store, delete=True)
    assert store.has(lost)


def test_a_lost_node_file_costs_no_other_node(tmp_path: Path, clock: Clock) -> None:
    with Store(FilesBackend(str(tmp_path)), now=clock) as store:
        leaf = store.put_text("leaf")
        middle = link(store, leaf)
        store.move("root", None, link(store, middle))
        clock.ms += DAY
        (tmp_path / "cas" / f"{middle}.bin").unlink()
        with pytest.raises(Damaged, match=middle):
            collect(store, delete=True)
        assert store.has(leaf)


def test_a_node_whose_type_is_lost_stops_a_deletion(tmp_path: Path, clock: Clock) -> None:
    with Store(FilesBackend(str(tmp_path)), now=clock) as store:
        leaf = store.put_text("leaf")
        node = link(store, leaf)
        store.move("root", None, node)
        clock.ms += DAY
        (tmp_path / "cas" / f"{store.get(node).type}.bin").unlink()
        with Store(FilesBackend(str(tmp_path)), now=clock) as fresh, pytest.raises(Damaged) as caught:
            collect(fresh, delete=True, force=True)
        assert f"the references of node {node} cannot be determined" in caught.value.message
        assert store.has(leaf)


def test_kept_references_that_are_not_its_own_stop_a_deletion(store: Store, clock: Clock) -> None:
    leaf, other = store.put_text("leaf"), store.put_text("other")
    root = link(store, leaf)
    store.move("root", None, root)
    clock.ms += DAY
    assert isinstance(store.backend, SqliteBackend)
    store.backend._db.execute("UPDATE nodes SET refs = ? WHERE id = ?", (other, root))
    with pytest.raises(Damaged, match="references stored with it do not match its content") as caught:
        collect(store, delete=True)
    assert "Reindex" in caught.value.hint
    assert store.has(leaf)


def test_an_id_that_is_none_stops_a_deletion(store: Store, clock: Clock) -> None:
    node, other = store.put_text("hello"), store.put_text("lost")
    clock.ms += DAY
    assert isinstance(store.backend, SqliteBackend)
    store.backend._db.execute("UPDATE nodes SET id = 'not an id' WHERE id = ?", (node,))
    with pytest.raises(Damaged, match="'not an id' is stored, but is not a node id"):
        collect(store, delete=True)
    assert store.has(other)


def test_an_empty_store_has_nothing_to_collect(store: Store) -> None:
    store.backend.commit(Change(), now=0, durable=False)
    done = collect(store, delete=True)
    assert (done.total, done.collected) == (0, 0)
