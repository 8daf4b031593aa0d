"""The behaviour that every backend must have, as a test suite that authors of backends can run.

Subclass `StoreContract` in a pytest module and give it two fixtures:

    class TestMyBackend(StoreContract):
        @pytest.fixture
        def place(self, tmp_path): ...                 # whatever you need

        @pytest.fixture
        def backend(self, place): ...                  # a Backend on a fresh, empty place

        @pytest.fixture
        def reopen(self, place): ...                   # a callable: another Backend on the same place

The fixtures must close what they open. `pytest.register_assert_rewrite("rolecall.store.contract")` in a conftest makes
failures show the values compared. Without `reopen`, tests that need a second writer are skipped. The suite uses the
backend through `Store` where possible, and directly for damage, collisions and positions. It tests neither speed nor
crashes, which need a process to kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rolecall.errors import Collision, Conflict, Damaged, NotFound
from rolecall.store import canonical
from rolecall.store.backend import FRESH_MS, Backend, Change, Move, NewEvent, NodeRecord, Ref
from rolecall.store.canonical import Schema
from rolecall.store.ids import is_node_id
from rolecall.store.store import BUILTIN, META, Dangling, Store, make_record

Reopen = Callable[[], Backend]

NODE: Schema = {"type": "string", "format": "ocas_ref"}
LINK = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "next": {"anyOf": [NODE, {"type": "null"}]},
        "either": {"oneOf": [NODE, {"type": "integer"}]},
        "many": {"type": "array", "items": NODE},
        "named": {"type": "object", "additionalProperties": NODE},
    },
}
ABSENT = "0000000000000"
TEN_MINUTES = 600_000


class SteppedClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def damage(record: NodeRecord) -> NodeRecord:
    """Return the record with one bit flipped, as a failing disk or a manual edit might leave it."""
    return record._replace(data=record.data[:-1] + bytes([record.data[-1] ^ 1]))


def chain(store: Store, length: int) -> list[str]:
    """Put linked nodes and return their ids, newest first."""
    draft = store.draft()
    link = draft.put_schema(LINK)
    ids: list[str] = []
    for index in range(length):
        ids.insert(0, draft.put(link, {"name": f"step {index}", "next": ids[0] if ids else None}))
    draft.commit()
    return ids


class StoreContract:
    """The tests of the contract. Provide the fixture `backend`, and also `reopen` if a second writer can exist."""

    @pytest.fixture
    def reopen(self) -> Reopen:
        pytest.skip("this backend gives no `reopen`")

    @pytest.fixture
    def clock(self) -> SteppedClock:
        return SteppedClock()

    @pytest.fixture
    def store(self, backend: Backend, clock: SteppedClock) -> Store:
        return Store(backend, now=clock)

    @pytest.fixture
    def link(self, store: Store) -> str:
        return store.put_schema(LINK)

    # -- nodes: put and get --

    def test_what_is_put_can_be_got(self, store: Store, clock: SteppedClock) -> None:
        node = store.put(BUILTIN["object"], {"text": "naïve ☃ \0 🎭", "list": [1, 2.5, None, True]})
        assert is_node_id(node)
        assert store.get(node) == (
            node,
            BUILTIN["object"],
            {"text": "naïve ☃ \0 🎭", "list": [1, 2.5, None, True]},
            clock.ms,
        )
        assert store.has(node)

    def test_a_second_put_keeps_the_time_of_the_first(self, store: Store, clock: SteppedClock) -> None:
        node = store.put_text("kept")
        created = clock.ms
        for later in (1, 2 * TEN_MINUTES):
            clock.ms = created + later
            assert store.put_text("kept") == node
            assert store.get(node).created == created
        assert store.backend.size()["nodes"] == 9

    def test_an_absent_node_is_not_found(self, store: Store) -> None:
        assert not store.has(ABSENT)
        with pytest.raises(NotFound, match=ABSENT):
            store.get(ABSENT)
        assert store.backend.record(ABSENT) is None
        assert store.backend.records([ABSENT]) == []
        assert store.backend.find_stored([ABSENT]) == set()

    def test_records_gives_those_that_are_stored_out_of_many(self, store: Store) -> None:
        ids = store.put_many([(BUILTIN["integer"], number) for number in range(1200)])
        found = store.backend.records([*ids, ABSENT])
        assert {record.id for record in found} == set(ids) == store.backend.find_stored([*ids, ABSENT])
        assert store.backend.records([]) == []

    def test_a_megabyte_comes_back_whole(self, store: Store) -> None:
        text = "0123456789abcdef" * 65_536
        assert store.get(store.put_text(text)).payload == text

    # -- nodes: refused changes --

    def test_the_same_node_twice_in_one_change_is_stored_once(self, backend: Backend) -> None:
        record = make_record(BUILTIN["string"], canonical.encode("twice"), (), 1)
        backend.commit(Change([record, record]), now=1, durable=True)
        assert [item.id for item in backend.scan()] == [record.id]
        assert backend.size()["nodes"] == 1

    def test_other_bytes_under_a_stored_id_are_a_collision_and_write_nothing(self, store: Store) -> None:
        node = store.put_text("first")
        before = store.backend.record(node)
        assert before is not None
        other = make_record(BUILTIN["string"], canonical.encode("beside"), (), 1)
        change = Change([other, damage(before)], [Move("r", 0, other.id)], [NewEvent("s", "k", {})])
        with pytest.raises(Collision, match=node) as caught:
            store.backend.commit(change, now=2, durable=True)
        assert caught.value.node == node
        assert store.backend.record(node) == before
        assert not store.has(other.id)
        assert (store.ref("r"), store.events()) == (None, [])

    # -- nodes: damage --

    def test_a_damaged_node_is_named_and_never_returned(self, store: Store, backend: Backend) -> None:
        store.put_text("intact")
        record = damage(make_record(BUILTIN["string"], canonical.encode("was this"), (), 1))
        backend.commit(Change([record]), now=1, durable=True)
        for read in (store.get, store.has, store.refs_of, lambda node: list(store.walk(node))):
            with pytest.raises(Damaged, match=record.id) as caught:
                read(record.id)
            assert caught.value.node == record.id

    def test_scan_gives_damaged_records_too(self, store: Store, backend: Backend) -> None:
        text = store.put_text("intact")
        record = damage(make_record(BUILTIN["string"], canonical.encode("was this"), (), 1))
        backend.commit(Change([record]), now=1, durable=True)
        scanned = {item.id for item in backend.scan()}
        assert scanned == {META, *BUILTIN.values(), text, record.id}

    # -- nodes: finding --

    def test_ids_are_found_by_their_prefix(self, backend: Backend) -> None:
        ids = ["ABCD000000001", "ABCD000000002", "ABCE000000001"]
        records = [NodeRecord(node, BUILTIN["string"], b"\x60", 1, (), None) for node in ids]
        backend.commit(Change(records), now=1, durable=True)
        assert backend.ids_with_prefix("ABC", 2) == ids[:2]
        assert backend.ids_with_prefix("ABCE", 6) == ids[2:]
        assert backend.ids_with_prefix("ZZZZ", 6) == []

    def test_references_are_kept_or_derived(self, store: Store, link: str) -> None:
        ids = chain(store, 3)
        assert list(store.walk(ids[0])) == ids
        node = store.put(link, {"name": "lost", "next": ABSENT})
        assert list(store.walk(node)) == [node, Dangling(ABSENT, node)]

    def test_of_type_gives_the_oldest_first(self, store: Store) -> None:
        first = store.put_many([(BUILTIN["integer"], number) for number in (5, 3, 9)])
        store.put_text("in between")
        last = store.put(BUILTIN["integer"], 1)
        store.put(BUILTIN["integer"], 5)
        assert list(store.of_type(BUILTIN["integer"])) == [*first, last]
        assert list(store.of_type(ABSENT)) == []

    def test_of_type_reaches_beyond_one_page(self, store: Store) -> None:
        ids = store.put_many([(BUILTIN["integer"], number) for number in range(1100)])
        assert list(store.of_type(BUILTIN["integer"])) == ids

    # -- refs --

    def test_a_ref_is_created_and_moved_by_compare_and_swap(self, store: Store, clock: SteppedClock) -> None:
        assert store.ref("thread/one") is None
        a, b = store.put_text("a"), store.put_text("b")
        created = store.move("thread/one", None, a, {"status": "idle"})
        assert created == Ref("thread/one", a, {"status": "idle"}, 1, clock.ms)
        clock.ms += 5
        moved = store.move("thread/one", created, b, {"status": "idle", "more": [1, {"x": None}]})
        assert moved == Ref("thread/one", b, {"status": "idle", "more": [1, {"x": None}]}, 2, clock.ms)
        assert store.ref("thread/one") == moved

    def test_a_move_and_an_event_may_be_dated(self, store: Store, clock: SteppedClock) -> None:
        a, b = store.put_text("a"), store.put_text("b")
        draft = store.draft()
        draft.move("r", None, a, {}, at=5)
        draft.move("r", Ref("r", a, {}, 1, 5), b, {"n": 1}, at=7)
        draft.event("s", "k", {}, at=6)
        draft.event("s", "k", {})
        draft.commit()
        assert store.ref("r") == Ref("r", b, {"n": 1}, 2, 7)
        assert [(moved.target, moved.at) for moved in store.history("r")] == [(a, 5), (b, 7)]
        assert [event.at for event in store.events("s")] == [6, clock.ms]

    def test_a_stale_version_is_a_conflict_and_changes_nothing(self, store: Store) -> None:
        a = store.put_text("a")
        first = store.move("r", None, a)
        second = store.move("r", first, a, {"n": 2})
        stale: Ref | None
        for stale in (None, first):
            with pytest.raises(Conflict, match="'r'"):
                store.move("r", stale, a, {"n": 3})
        with pytest.raises(Conflict, match="'absent'"):
            store.move("absent", second, a)
        assert store.refs() == [second]

    def test_a_lost_compare_and_swap_writes_no_node_and_no_event(self, store: Store) -> None:
        head = store.move("r", None, store.put_text("a"))
        draft = store.draft()
        node = draft.put_text("never")
        draft.move("fresh", None, node)
        draft.move("r", None, node)
        draft.event("r", "moved", {})
        with pytest.raises(Conflict):
            draft.commit()
        assert not store.has(node)
        assert (store.refs(), store.events()) == ([head], [])
        assert [moved.name for moved in store.backend.roots()] == ["r"]

    def test_moves_of_one_change_come_back_in_their_order(self, store: Store) -> None:
        a = store.put_text("a")
        draft = store.draft()
        for name in ("z", "a", "m"):
            draft.move(name, None, a)
        assert [ref.name for ref in draft.commit()] == ["z", "a", "m"]

    def test_one_change_may_move_a_ref_twice(self, backend: Backend) -> None:
        moves = [Move("r", 0, None, {"n": 1}), Move("r", 1, None, {"n": 2})]
        backend.commit(Change(moves=moves), now=1, durable=True)
        assert backend.ref("r") == Ref("r", None, {"n": 2}, 2, 1)

    def test_a_bump_raises_the_version_alone_whatever_it_is(self, store: Store, reopen: Reopen) -> None:
        node = store.put_text("x")
        seen = store.move("r", None, node, {"a": 1})
        with Store(reopen()) as other:
            for writer in (store, other, store):  # no writer has read the ref
                draft = writer.draft()
                draft.bump("r")
                draft.bump("absent")
                draft.move("s", writer.ref("s"), node)
                assert _names(draft.commit()) == "s"
        bumped = store.ref("r")
        assert bumped is not None and store.ref("absent") is None
        assert (bumped.target, bumped.state, bumped.version) == (node, {"a": 1}, seen.version + 3)
        with pytest.raises(Conflict):
            store.move("r", seen, node)
        assert [moved.target for moved in store.history("r")] == [node]

    def test_a_lost_compare_and_swap_bumps_nothing(self, store: Store) -> None:
        seen = store.move("r", None, state={"a": 1})
        draft = store.draft()
        draft.bump("r")
        draft.move("r", None, state={})
        with pytest.raises(Conflict):
            draft.commit()
        assert store.ref("r") == seen

    def test_a_fact_is_written_whatever_it_was_and_whoever_wrote_it(
        self, store: Store, reopen: Reopen
    ) -> None:
        with Store(reopen()) as other:
            for number, writer in enumerate((store, other, store), 1):  # no writer has read the ref
                draft = writer.draft()
                draft.set_fact("key/a", {"step": str(number)})
                draft.event("s", "k", {})
                assert draft.commit() == []
        fact = store.ref("key/a")
        assert fact is not None and (fact.target, fact.state, fact.version) == (None, {"step": "3"}, 3)
        assert (store.history("key/a"), list(store.backend.roots())) == ([], [])
        store.move("key/a", fact)
        assert store.refs() == []

    def test_a_removed_ref_is_gone_with_its_history_and_can_be_made_again(self, store: Store) -> None:
        a = store.put_text("a")
        ref = store.move("r", None, a)
        store.move("r", ref)
        assert store.ref("r") is None
        assert store.history("r") == []
        assert list(store.backend.roots()) == []
        with pytest.raises(Conflict, match="does not exist"):
            store.move("r", ref, a)
        assert store.move("r", None, a).target == a
        assert [moved.target for moved in store.history("r")] == [a]

    def test_a_ref_without_target_has_no_history_and_is_no_root(self, store: Store) -> None:
        held = store.move("lease/one", None, None, {"host": "h"})
        held = store.move("lease/one", held, None, {})
        assert store.ref("lease/one") == held
        assert (held.target, held.state, held.version) == (None, {}, 2)
        assert store.history("lease/one") == []
        assert list(store.backend.roots()) == []

    def test_history_tells_every_target_and_ignores_moves_of_state_alone(
        self, store: Store, clock: SteppedClock
    ) -> None:
        a, b = store.put_text("a"), store.put_text("b")
        ref = None
        for target, state in ((a, {}), (a, {"s": 1}), (b, {"s": 1}), (a, {})):
            clock.ms += 1
            ref = store.move("r", ref, target, state)
        start = clock.ms - 4
        assert [(moved.name, moved.target, moved.at - start) for moved in store.history("r")] == [
            ("r", a, 1),
            ("r", b, 3),
            ("r", a, 4),
        ]
        assert store.history("other") == []

    def test_a_state_keeps_any_json(self, store: Store) -> None:
        state = {
            "zero": "\0",
            "half": "\ud800",
            "wide": "☃🎭",
            "n": 1.5,
            "none": None,
            "": [],
            "a.b'\"": {"x": [True]},
        }
        store.move("r", None, None, state)
        found = store.ref("r")
        assert found is not None and found.state == state
        assert store.refs(where={"wide": ["☃🎭"]}) == [found]

    @pytest.fixture
    def threads(self, store: Store) -> Store:
        """Create the refs `thread/0` to `thread/5`, the even ones idle, and two other refs."""
        draft = store.draft()
        for number in (3, 0, 5, 1, 4, 2):
            status = "running" if number % 2 else "idle"
            draft.move(f"thread/{number}", None, None, {"status": status, "flow": f"f{number % 3}"})
        draft.move("thread", None, None, {"status": "idle"})
        draft.move("threads/x", None, None, {"status": 1})
        draft.commit()
        return store

    def test_refs_are_listed_by_prefix_in_the_order_of_their_names(self, threads: Store) -> None:
        assert _names(threads.refs("thread/")) == "0 1 2 3 4 5"
        assert _names(threads.refs("thread/", newest_first=True)) == "5 4 3 2 1 0"
        assert [ref.name for ref in threads.refs()][:1] == ["thread"]
        assert len(threads.refs()) == 8
        assert threads.refs("none") == []

    def test_names_are_listed_last_first_in_pages(self, threads: Store) -> None:
        names = threads.backend.names
        assert names("thread/") == [f"thread/{number}" for number in (5, 4, 3, 2, 1, 0)]
        assert names("thread/", limit=2) == ["thread/5", "thread/4"]
        assert names("thread/", before="thread/4", limit=2) == ["thread/3", "thread/2"]
        assert names() == ["threads/x", *names("thread/"), "thread"]
        assert names("none") == []

    def test_refs_are_selected_by_the_strings_of_their_state(self, threads: Store) -> None:
        assert _names(threads.refs("thread/", where={"status": ["idle"]})) == "0 2 4"
        assert _names(threads.refs("thread/", where={"status": ["idle", "running"], "flow": ["f0"]})) == "0 3"
        assert threads.refs(where={"status": ["killed"]}) == []
        assert threads.refs(where={"status": []}) == []
        assert threads.refs(where={"absent": ["x"]}) == []
        assert threads.refs("threads/", where={"status": ["1"]}) == []

    def test_refs_come_in_pages_in_both_directions(self, threads: Store) -> None:
        newest = threads.refs("thread/", newest_first=True, limit=2)
        assert _names(newest) == "5 4"
        assert _names(threads.refs("thread/", before=newest[-1].name, newest_first=True, limit=3)) == "3 2 1"
        assert _names(threads.refs("thread/", before="thread/3", limit=9)) == "4 5"
        idle = threads.refs(
            "thread/", where={"status": ["idle"]}, before="thread/4", newest_first=True, limit=1
        )
        assert _names(idle) == "2"
        assert threads.refs(limit=0) == []

    # -- events --

    def test_events_come_in_order_by_stream_and_after_a_number(
        self, store: Store, clock: SteppedClock
    ) -> None:
        for kind in ("one", "two", "three"):
            draft = store.draft()
            draft.event("a", kind, {"kind": kind, "zero": "\0", "half": "\udfff"})
            draft.event("b", kind, {})
            draft.commit()
        assert [(event.stream, event.kind) for event in store.events()] == [
            (stream, kind) for kind in ("one", "two", "three") for stream in ("a", "b")
        ]
        of_a = store.events("a")
        assert [event.body for event in of_a] == [
            {"kind": kind, "zero": "\0", "half": "\udfff"} for kind in ("one", "two", "three")
        ]
        assert {event.at for event in of_a} == {clock.ms}
        assert store.events("a", after=of_a[0].seq) == of_a[1:]
        assert store.events("a", after=of_a[0].seq, limit=1) == of_a[1:2]
        assert store.events(after=of_a[-1].seq, limit=0) == []
        assert store.events("c") == []

    def test_numbers_of_events_rise(self, store: Store) -> None:
        for _ in range(3):
            draft = store.draft()
            draft.event("s", "k", {})
            draft.event("s", "k", {})
            draft.commit()
        numbers = [event.seq for event in store.events()]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0
        assert store.newest_event() == numbers[-1]

    # -- support for garbage collection --

    def test_puts_tell_ids_in_the_order_of_their_put(self, store: Store, clock: SteppedClock) -> None:
        store.put_text("first")
        start = store.backend.position()[0]
        ids = store.put_many([(BUILTIN["integer"], number) for number in (2, 1, 3)])
        found = list(store.backend.puts(start))
        assert [(put.id, put.at) for put in found] == [(node, clock.ms) for node in ids]
        assert found[-1].seq == store.backend.position()[0]
        assert list(store.backend.puts(found[-1].seq)) == []
        assert len(list(store.backend.puts())) == store.backend.size()["nodes"]

    def test_an_old_node_put_again_counts_as_just_put(self, store: Store, clock: SteppedClock) -> None:
        node = store.put_text("old")
        before = store.backend.record(node)
        with store.backend.exclusive():
            position = store.backend.position()[0]
        clock.ms += FRESH_MS + 1
        store.put_text("old")
        assert [(put.id, put.at) for put in store.backend.puts(position)] == [(node, clock.ms)]
        assert [put.id for put in store.backend.puts()].count(node) == 1
        assert store.backend.record(node) == before

    def test_roots_tell_every_move_beyond_a_position(self, store: Store) -> None:
        a, b = store.put_text("a"), store.put_text("b")
        ref = store.move("r", None, a)
        with store.backend.exclusive():
            position = store.backend.position()[1]
        store.move("r", ref, b)
        store.move("other", None, a)
        assert [(moved.name, moved.target) for moved in store.backend.roots()] == [
            ("r", a),
            ("r", b),
            ("other", a),
        ]
        assert [(moved.name, moved.target) for moved in store.backend.roots(position)] == [
            ("r", b),
            ("other", a),
        ]

    def test_positions_never_go_back(self, store: Store) -> None:
        node = store.put_text("a")
        ref = store.move("r", None, node)
        before = store.backend.position()
        with store.backend.exclusive():
            store.backend.delete([node])
        store.move("r", ref)
        assert store.backend.position() >= before
        store.put_text("b")
        assert store.backend.position()[0] > before[0]

    def test_delete_removes_nodes_inside_exclusive_only(self, store: Store) -> None:
        kept, gone = store.put_text("kept"), store.put_text("gone")
        with pytest.raises(RuntimeError):
            store.backend.delete([gone])
        assert store.has(gone)
        with store.backend.exclusive():
            assert store.backend.delete([gone, ABSENT]) == 1
        assert (store.has(kept), store.has(gone)) == (True, False)
        assert gone not in store.of_type(BUILTIN["string"])
        assert store.put_text("gone") == gone
        assert store.has(gone)

    def test_an_error_inside_exclusive_leaves_the_backend_usable(self, store: Store) -> None:
        node = store.put_text("a")
        with pytest.raises(KeyError), store.backend.exclusive():
            raise KeyError
        with pytest.raises(RuntimeError):
            store.backend.delete([node])
        assert store.has(store.put_text("b"))

    def test_a_snapshot_can_be_read_and_leaves_the_backend_usable(self, store: Store) -> None:
        node = store.put_text("a")
        head = store.move("r", None, node)
        with store.backend.snapshot():
            assert store.get(node).payload == "a"
            assert store.ref("r") == head
        with pytest.raises(KeyError), store.backend.snapshot():
            raise KeyError
        assert store.has(store.put_text("b"))

    def test_a_commit_inside_exclusive_is_still_whole_or_nothing(self, store: Store) -> None:
        head = store.move("r", None, store.put_text("a"))
        with store.backend.exclusive():
            draft = store.draft()
            lost = draft.put_text("lost")
            draft.move("r", None, lost)
            with pytest.raises(Conflict):
                draft.commit()
            kept = store.put_text("kept")
        assert (store.has(lost), store.has(kept)) == (False, True)
        assert store.ref("r") == head

    def test_reindex_keeps_everything_and_replaces_given_references(self, store: Store, link: str) -> None:
        a = store.put_text("a")
        node = store.put(link, {"name": "n", "next": a})
        ref = store.move("r", None, node)
        before = sorted(item for item in store.backend.scan() if isinstance(item, NodeRecord))
        store.backend.reindex({node: (a,)})
        store.backend.reindex()
        assert sorted(item for item in store.backend.scan() if isinstance(item, NodeRecord)) == before
        assert (store.refs(), store.refs_of(node)) == ([ref], (a,))

    # -- the container --

    def test_size_counts_what_is_there(self, store: Store) -> None:
        empty = store.backend.size()
        assert [empty[figure] for figure in ("nodes", "bytes", "refs", "events")] == [0, 0, 0, 0]
        assert empty["types"] == {}
        store.put_text("12345678")
        draft = store.draft()
        draft.move("r", None, None, {})
        draft.event("s", "k", {})
        draft.commit()
        size = store.backend.size()
        assert [size[figure] for figure in ("nodes", "refs", "events")] == [9, 1, 1]
        assert size["types"] == {META: 8, BUILTIN["string"]: 1}
        nodes = [put.id for put in store.backend.puts()]
        assert size["bytes"] == sum(len(record.data) for record in store.backend.records(nodes))
        assert size["disk"] > size["bytes"]

    def test_a_sound_container_has_no_problems(self, store: Store) -> None:
        chain(store, 5)
        assert list(store.backend.problems()) == []

    def test_iterators_may_be_left_open_while_writing(self, store: Store) -> None:
        store.put_many([(BUILTIN["integer"], number) for number in range(600)])
        scan: Iterator[Any] = store.backend.scan()
        next(scan)
        node = store.put_text("written meanwhile")
        assert node in {record.id for record in scan}

    # -- two writers --

    def test_a_reopened_store_has_everything(self, store: Store, reopen: Reopen) -> None:
        ids = chain(store, 3)
        draft = store.draft()
        draft.move("r", None, ids[0], {"status": "idle"})
        draft.event("s", "k", {"n": 1})
        draft.commit()
        store.close()
        again = Store(reopen())
        assert list(again.walk(ids[0])) == ids
        assert [ref[:4] for ref in again.refs()] == [("r", ids[0], {"status": "idle"}, 1)]
        assert [moved.target for moved in again.history("r")] == [ids[0]]
        assert [event.body for event in again.events("s")] == [{"n": 1}]
        assert again.backend.size()["nodes"] == 8 + 1 + 3

    def test_a_second_writer_sees_each_commit_at_once(self, store: Store, reopen: Reopen) -> None:
        other = Store(reopen())
        node = store.put_text("here")
        assert other.get(node).payload == "here"
        ref = store.move("r", None, node)
        assert other.move("r", ref, node, {"by": "other"}) == store.ref("r")
        assert other.put_text("here") == node
        assert [put.id for put in store.backend.puts()].count(node) == 1

    def test_of_two_writers_one_wins_the_creation_and_one_the_move(
        self, store: Store, reopen: Reopen
    ) -> None:
        other = Store(reopen())
        a, b = store.put_text("a"), store.put_text("b")
        ref = store.move("r", None, a)
        with pytest.raises(Conflict):
            other.move("r", None, b)
        other.move("r", ref, b)
        with pytest.raises(Conflict):
            store.move("r", ref, a)
        assert [moved.target for moved in store.history("r")] == [a, b]

    def test_a_type_that_another_writer_deleted_is_refused_and_nothing_written(
        self, store: Store, link: str, reopen: Reopen
    ) -> None:
        store.put(link, {"name": "first"})
        delete_nodes(Store(reopen()), link)
        draft = store.draft()
        node = draft.put(link, {"name": "second"})
        draft.move("r", None, node)
        with pytest.raises(NotFound, match=f"type {link} is not in the store"):
            draft.commit()
        assert (store.has(node), store.ref("r")) == (False, None)
        assert store.put_schema(LINK) == link
        assert store.get(store.put(link, {"name": "second"})).type == link


def delete_nodes(store: Store, *nodes: str) -> None:
    with store.backend.exclusive():
        assert store.backend.delete(nodes) == len(nodes)


def _names(refs: list[Any]) -> str:
    return " ".join(ref.name.removeprefix("thread/") for ref in refs)
