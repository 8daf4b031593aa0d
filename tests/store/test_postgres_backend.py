"""What only a store on a server can get wrong: other machines, a lost connection, a password."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Thread
from time import monotonic
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from rolecall.errors import Conflict, Damaged, NotFound, StorageError
from rolecall.store.backend import Change, Move, NewEvent
from rolecall.store.clock import steady_ms
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import META, Store

WAIT = 120
WRITERS = 3
ROUNDS = 30


@contextmanager
def opened(url: str, schema: str, *, create: bool = True) -> Iterator[Store]:
    with Store(PostgresBackend(url, schema=schema, create=create)) as store:
        yield store


def race(url: str, schema: str, writer: int, start: Any, won: Any) -> None:
    """Put common and own nodes, and try to be the one that moves the ref, again and again."""
    start.wait(WAIT)
    wins = 0
    with opened(url, schema) as store:
        for turn in range(ROUNDS):
            draft = store.draft()
            # Every other time the writers have nodes in common, which they bring in opposite orders.
            texts = [f"common {turn} {n}" for n in range(6 * (turn % 2))]
            for text in texts if writer % 2 else reversed(texts):
                draft.put_text(text)
            draft.move(f"turn/{turn}", None, draft.put_text(f"{writer} in {turn}"), {"by": str(writer)})
            draft.event("race", "won", {"turn": turn, "by": writer})
            try:
                draft.commit()
                wins += 1
            except Conflict:
                continue
    won.put(wins)


def test_of_parallel_writers_exactly_one_wins_each_new_ref(postgres_url: str, postgres_schema: str) -> None:
    context = multiprocessing.get_context("spawn")
    start, won = context.Barrier(WRITERS), context.Queue()
    writers = [
        context.Process(target=race, args=(postgres_url, postgres_schema, n, start, won))
        for n in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    wins = [won.get(timeout=WAIT) for _ in writers]
    for writer in writers:
        writer.join(WAIT)
    won.close()
    won.join_thread()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert sum(wins) == ROUNDS
    with opened(postgres_url, postgres_schema) as store:
        refs = store.refs("turn/")
        assert len(refs) == ROUNDS
        assert {(event.body["turn"], str(event.body["by"])) for event in store.events()} == {
            (int(ref.name.removeprefix("turn/")), ref.state["by"]) for ref in refs
        }
        # The builtin types, the winner's own node per turn, six common ones every other, nothing of a loser.
        assert store.backend.size()["nodes"] == 8 + ROUNDS + 6 * (ROUNDS // 2)


def test_event_order_is_commit_order_when_transactions_interleave(
    postgres_url: str, postgres_schema: str
) -> None:
    with (
        opened(postgres_url, postgres_schema) as reader,
        opened(postgres_url, postgres_schema) as slow,
        opened(postgres_url, postgres_schema) as quick,
        psycopg.connect(postgres_url, autocommit=True) as watcher,
    ):
        assert isinstance(slow.backend, PostgresBackend)
        second = Thread(target=append_event, args=(quick, "second"))
        with slow.backend._writing("pg_advisory_xact_lock_shared", durable=True):
            append_event(slow, "first")
            second.start()
            # The second has to wait: its number would be visible before the lower one of the first.
            _wait_for_lock_waiter(watcher)
            assert reader.events() == []
            # Nodes alone have no part in that order and go ahead.
            assert reader.has(reader.put_text("not held up"))
        second.join(WAIT)
        assert [event.kind for event in reader.events()] == ["first", "second"]


def append_event(store: Store, kind: str) -> None:
    store.backend.commit(Change(events=[NewEvent("s", kind, {})]), now=1, durable=True)


def _wait_for_lock_waiter(db: psycopg.Connection[Any]) -> None:
    """Come back when a session waits for an advisory lock."""
    deadline = monotonic() + WAIT
    while monotonic() < deadline:
        if db.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone():
            return
    raise AssertionError("nobody waits for the lock")


def test_writers_wait_while_exclusive_is_open_and_readers_do_not(
    postgres_url: str, postgres_schema: str
) -> None:
    with opened(postgres_url, postgres_schema) as store, opened(postgres_url, postgres_schema) as other:
        node = store.put_text("read meanwhile")
        with psycopg.connect(postgres_url, autocommit=True) as watcher, store.backend.exclusive():
            writer = Thread(target=other.put_text, args=("written after",))
            writer.start()
            _wait_for_lock_waiter(watcher)
            position = store.backend.position()
            assert [put.seq for put in store.backend.puts()][-1] == position[0]
            with opened(postgres_url, postgres_schema) as reader:
                assert reader.get(node).payload == "read meanwhile"
            assert store.backend.size()["nodes"] == 9
        writer.join(WAIT)
        assert store.backend.size()["nodes"] == 10


def test_an_ended_connection_is_made_again_for_reads_and_for_new_commits(
    postgres_url: str, postgres_schema: str
) -> None:
    with opened(postgres_url, postgres_schema) as store:
        node = store.put_text("there")
        _end_connections(store, postgres_url)
        assert store.get(node).payload == "there"
        _end_connections(store, postgres_url)
        assert store.has(store.put_text("after"))


@pytest.mark.parametrize("wrong_by", [-3_600_000, 3_600_000])
def test_a_clock_that_has_gone_wrong_is_put_right_by_the_next_write(
    postgres_url: str, postgres_schema: str, wrong_by: int
) -> None:
    """As after the server's clock was set, or a machine stood still for a while: the connection lives on."""
    with opened(postgres_url, postgres_schema) as store, psycopg.connect(postgres_url) as db:
        assert isinstance(store.backend, PostgresBackend)
        store.backend._clock_ahead_ms += wrong_by
        store.put_text("written at a wrong time")
        row = db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
        assert row is not None
        assert abs(store.now() - row[0]) < WAIT * 1000


def test_an_answer_that_was_long_on_its_way_does_not_move_a_clock_that_is_right(
    postgres_url: str, postgres_schema: str
) -> None:
    """As when a machine sleeps while it waits for the lock."""
    with opened(postgres_url, postgres_schema) as store:
        assert isinstance(store.backend, PostgresBackend)
        right, asked = store.backend._clock_ahead_ms, steady_ms() - 3_600_000
        store.backend._set_clock(asked + right, asked=asked)
        assert store.backend._clock_ahead_ms == right


def _end_connections(store: Store, url: str) -> None:
    assert isinstance(store.backend, PostgresBackend)
    pid = store.backend._db.info.backend_pid
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


def test_a_connection_lost_inside_a_transaction_is_an_error_and_nothing_is_written(
    postgres_url: str, postgres_schema: str
) -> None:
    with opened(postgres_url, postgres_schema) as store:
        store.put_text("there")
        with pytest.raises(StorageError, match="ended the connection"), store.backend.exclusive():
            store.put_text("lost")
            _end_connections(store, postgres_url)
            store.put_text("never sent")
        assert store.backend.size()["nodes"] == 9


def test_a_connection_lost_during_the_commit_leaves_it_unknown_and_says_so(
    postgres_url: str, postgres_schema: str
) -> None:
    with opened(postgres_url, postgres_schema) as store:
        with (
            pytest.raises(StorageError, match="might or might not have succeeded"),
            store.backend.exclusive(),
        ):
            _end_connections(store, postgres_url)
        assert store.has(store.put_text("goes on"))


def test_a_stopped_server_is_a_storage_error_and_a_restarted_one_works_again(
    postgres_server: Any, postgres_url: str, postgres_schema: str
) -> None:
    with opened(postgres_url, postgres_schema) as store:
        node = store.put_text("survives", durable=True)
        _control(postgres_server, "stop")
        try:
            with pytest.raises(StorageError, match="postgres") as reading:
                store.get(node)
            with pytest.raises(StorageError):
                store.put_text("refused")
            with pytest.raises(StorageError, match="not reachable"):
                PostgresBackend(postgres_url, schema=postgres_schema)
        finally:
            _control(postgres_server, "start")
        assert "server is running" in reading.value.hint
        assert store.get(node).payload == "survives"
        assert store.has(store.put_text("again"))


def _control(server: Any, action: str) -> None:
    pg_ctl = import_module("pgserver._commands").pg_ctl
    options = ["-o", '-h ""', "-o", f"-k {server.get_postmaster_info().socket_dir}", "-l", str(server.log)]
    how = ["-m", "fast"] if action == "stop" else options
    pg_ctl(["-w", *how, action], pgdata=server.pgdata, user=server.system_user, timeout=WAIT)
    if action == "start":
        # The handle remembers the process it started; it must know the new one to stop it at the end.
        server.ensure_postgres_running()


def test_the_password_is_in_no_message(postgres_url: str) -> None:
    secret = "s3cret-" + uuid4().hex
    for address in (
        f"postgresql://me:{secret}@127.0.0.1:1/nothing",
        f"postgresql://me@127.0.0.1:1/nothing?password={secret}",
        f"host=127.0.0.1 port=1 password={secret}",
        f"postgres//me:{secret}@127.0.0.1:1/nothing",
        f"postgresql://me:{secret}@127.0.0.1:1/%zz",
        f"{postgres_url}&password={secret}&dbname=absent",
    ):
        with pytest.raises(StorageError) as caught:
            PostgresBackend(address)
        assert secret not in caught.value.message + caught.value.hint


def test_messages_name_the_host_and_the_database() -> None:
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1/threads"):
        PostgresBackend("postgresql://me:pw@127.0.0.1:1/threads")


def test_opening_without_creating_leaves_no_trace(postgres_url: str, postgres_schema: str) -> None:
    with pytest.raises(NotFound, match=postgres_schema):
        PostgresBackend(postgres_url, schema=postgres_schema, create=False)
    with psycopg.connect(postgres_url) as db:
        assert (
            db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (postgres_schema,)).fetchone() is None
        )


def test_a_newer_format_is_refused(postgres_url: str, postgres_schema: str) -> None:
    PostgresBackend(postgres_url, schema=postgres_schema).close()
    with psycopg.connect(postgres_url) as db:
        db.execute(f"UPDATE {postgres_schema}.format SET version = 99")
    with pytest.raises(StorageError, match="format 99"):
        PostgresBackend(postgres_url, schema=postgres_schema)


@pytest.mark.parametrize("text", ["no json", "[]", ""])
def test_a_state_or_body_that_is_no_object_is_damage(
    postgres_url: str, postgres_schema: str, text: str
) -> None:
    with opened(postgres_url, postgres_schema) as store:
        draft = store.draft()
        draft.move("note/x", None, None, {"n": 1})
        draft.event("s", "k", {})
        draft.commit()
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(f"UPDATE {postgres_schema}.refs SET state = %s", (text,))
            db.execute(f"UPDATE {postgres_schema}.events SET body = %s", (text,))
        for read in (lambda: store.ref("note/x"), store.refs, lambda: store.move("note/x", None, None, {})):
            with pytest.raises(Damaged, match="ref 'note/x' is damaged"):
                read()
        with pytest.raises(Damaged, match="event 1 is damaged"):
            store.events()


def test_a_store_that_may_only_be_read_says_so(postgres_url: str, postgres_schema: str) -> None:
    with opened(postgres_url, postgres_schema) as store:
        node = store.put_text("there")
    with opened(f"{postgres_url}&options=-cdefault_transaction_read_only%3Don", postgres_schema) as store:
        assert store.get(node).payload == "there"
        with pytest.raises(StorageError, match="cannot be written"):
            store.put_text("refused")


def test_two_stores_of_one_database_know_nothing_of_each_other(
    postgres_url: str, postgres_schema: str
) -> None:
    with opened(postgres_url, postgres_schema) as store:
        store.put_text("one")
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(f'CREATE SCHEMA "{postgres_schema}.x y"')
            try:
                with opened(postgres_url, f"{postgres_schema}.x y") as other, store.backend.exclusive():
                    other.put_text("not held up")
                    assert other.backend.size()["nodes"] == 9
                    assert META in {put.id for put in other.backend.puts()}
            finally:
                db.execute(f'DROP SCHEMA "{postgres_schema}.x y" CASCADE')


def test_a_wait_for_the_disk_is_asked_for_only_when_wanted(postgres_url: str, postgres_schema: str) -> None:
    with opened(postgres_url, postgres_schema) as store:
        backend = store.backend
        assert isinstance(backend, PostgresBackend)
        for durable, setting in ((True, "on"), (False, "off")):
            with backend._writing("pg_advisory_xact_lock_shared", durable=durable):
                assert backend._db.execute("SHOW synchronous_commit").fetchone() == (setting,)
        backend.commit(Change(moves=[Move("r", 0, None, {})]), now=1, durable=True)
        assert backend._db.execute("SHOW synchronous_commit").fetchone() == ("on",)
