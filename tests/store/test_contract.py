"""Every backend keeps the same promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rolecall.errors import NotFound
from rolecall.store.backend import FRESH_MS, Backend
from rolecall.store.collect import collect
from rolecall.store.contract import ABSENT, LINK, Reopen, SteppedClock, StoreContract, delete_nodes
from rolecall.store.store import BUILTIN, META, Store


class BackendContract(StoreContract):
    """Opens backends with `connect` and closes every one of them at the end of the test."""

    @pytest.fixture
    def connect(self) -> Callable[[], Backend]:
        raise NotImplementedError

    @pytest.fixture
    def reopen(self, connect: Callable[[], Backend]) -> Iterator[Reopen]:
        with ExitStack() as stack:

            def open_one() -> Backend:
                backend = connect()
                stack.callback(backend.close)
                return backend

            yield open_one

    @pytest.fixture
    def backend(self, reopen: Reopen) -> Backend:
        return reopen()

    # -- what `Store` adds to a backend --

    def test_the_first_commit_stores_the_builtin_types(self, store: Store) -> None:
        assert store.backend.record(META) is None
        store.put_text("first")
        assert store.get(META).type == META
        assert [store.get(node).payload for node in BUILTIN.values()] == [{"type": name} for name in BUILTIN]
        assert store.backend.size()["nodes"] == 1 + len(BUILTIN) + 1

    @pytest.mark.parametrize("grace_ms", [1_000, 60_000, 3_600_000])
    def test_a_node_put_again_within_the_grace_time_is_spared(
        self, store: Store, clock: SteppedClock, grace_ms: int
    ) -> None:
        node = store.put_text("again")
        for wait in (1, FRESH_MS, grace_ms // 2):
            clock.ms += wait
            store.put_text("again")
            clock.ms += grace_ms - 1
            assert collect(store, delete=True, grace_ms=grace_ms).collected == 0
            assert store.has(node)
        clock.ms += FRESH_MS + 1
        assert collect(store, delete=True, grace_ms=grace_ms).sample == (node,)

    def test_a_type_put_by_one_writer_serves_the_other(self, store: Store, reopen: Reopen) -> None:
        other = Store(reopen())
        link = store.put_schema(LINK)
        assert store.get(other.put(link, {"name": "x"})).type == link

    def test_what_another_writer_deleted_is_not_found(self, store: Store, reopen: Reopen) -> None:
        node = store.put_text("soon gone")
        assert store.get(node).payload == "soon gone"
        delete_nodes(Store(reopen()), node)
        assert not store.has(node)
        with pytest.raises(NotFound, match=node):
            store.get(node)

    def test_linked_nodes_are_read_once_and_got_only_while_they_are_stored(
        self, store: Store, reopen: Reopen
    ) -> None:
        one, other = store.put_text("one"), store.put_text("other")
        store.fetch([one, None, ABSENT, "../one", {}, other])
        delete_nodes(Store(reopen()), other)
        assert [store.follow(node).payload for node in (one, other)] == ["one", "other"]
        for node in (other, ABSENT):
            with pytest.raises(NotFound, match=node):
                store.get(node)

    def test_a_type_of_the_program_is_registered_again_when_it_was_deleted(
        self, store: Store, reopen: Reopen
    ) -> None:
        for name in ("first", "second"):
            draft = store.draft()
            node = draft.put_as(LINK, {"name": name})
            draft.commit()
            type_id = store.get(node).type
            assert store.get(type_id).payload == LINK
            delete_nodes(Store(reopen()), type_id)

    def test_builtin_types_that_were_lost_come_back_with_the_next_writer(
        self, store: Store, reopen: Reopen
    ) -> None:
        store.put_text("x")
        delete_nodes(store, BUILTIN["string"])
        other = Store(reopen())
        other.put(BUILTIN["integer"], 1)
        assert other.has(BUILTIN["string"])

    def test_two_writers_each_bring_the_builtin_types_once(self, store: Store, reopen: Reopen) -> None:
        other = Store(reopen())
        draft = other.draft()
        draft.put_text("second")
        store.put_text("first")
        draft.commit()
        assert store.backend.size()["types"][META] == 8


class TestSqlite(BackendContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Backend]:
        from rolecall.store.sqlite import SqliteBackend

        return lambda: SqliteBackend(str(tmp_path / "store.db"))


class TestFiles(BackendContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Backend]:
        from rolecall.store.files import FilesBackend

        return lambda: FilesBackend(str(tmp_path / "store"))


class TestPostgres(BackendContract):
    @pytest.fixture
    def connect(self, postgres_url: str, postgres_schema: str) -> Callable[[], Backend]:
        from rolecall.store.postgres import PostgresBackend

        return lambda: PostgresBackend(postgres_url, schema=postgres_schema)
