"""Several processes on one store at once: nothing is lost, nothing is won twice, nothing is seen by halves."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import commands
import pytest
import writer
from writer import HEAD, Address

from rolecall.store.bundle import export_to, import_from
from rolecall.store.collect import collect
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.store.verify import verify

WRITERS = 8
WINS = 6


@pytest.fixture(params=["sqlite", "files", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    if request.param == "postgres":
        return [
            "postgres",
            request.getfixturevalue("postgres_url"),
            request.getfixturevalue("postgres_schema"),
        ]
    return [request.param, str(tmp_path / "store")]


@pytest.fixture
def start() -> Iterator[Callable[[Address], list[commands.PipedChild]]]:
    """Starts the writers; none of them outlives the test."""
    with ExitStack() as stack:

        def start_all(address: Address) -> list[commands.PipedChild]:
            words = [[f"w{number}", str(WINS), *address] for number in range(WRITERS)]
            return [stack.enter_context(commands.spawn(writer.__file__, "race", *args)) for args in words]

        yield start_all


def running(children: list[commands.PipedChild]) -> Iterator[int]:
    """Rounds for as long as a child writes."""
    rounds = 0
    while any(child.poll() is None for child in children):
        yield rounds
        rounds += 1


def winners(children: list[commands.PipedChild]) -> list[list[int]]:
    outputs = [child.stdout.read() for child in children]
    assert [child.wait() for child in children] == [0] * WRITERS
    return [[int(line) for line in output.split()] for output in outputs]


def look(store: Store, seen: int) -> int:
    """One look from outside: what the head shows is there as a whole. The version that was seen."""
    ref = store.ref(HEAD)
    if ref is None:
        return 0
    assert ref.target is not None and ref.version >= seen
    link = store.get(ref.target).payload
    assert link["number"] == ref.version == ref.state["number"]
    assert [store.get(part).payload for part in link["parts"]] == writer.parts(link["name"], ref.version)
    bodies = [event.body["number"] for event in store.events("writes")]
    assert bodies[: ref.version] == list(range(1, ref.version + 1))
    after = store.ref(HEAD)
    assert after is not None and len(bodies) <= after.version
    return ref.version


def check_chain(store: Store, won: list[list[int]]) -> None:
    """Each version was won once, by the one whose name its node bears."""
    by_version = {version: f"w{number}" for number, versions in enumerate(won) for version in versions}
    total = WRITERS * WINS
    assert sorted(version for versions in won for version in versions) == list(range(1, total + 1))
    links = [store.get(moved.target).payload for moved in store.history(HEAD)]
    assert [(link["number"], link["name"]) for link in links] == sorted(by_version.items())
    for link in links:
        assert [store.get(part).payload for part in link["parts"]] == writer.parts(
            link["name"], link["number"]
        )
    assert [event.body["number"] for event in store.events("writes")] == list(range(1, total + 1))
    assert [problem for done in verify(store) for problem in done.problems] == []


def test_eight_writers_lose_nothing_and_a_reader_sees_whole_batches_only(
    address: Address, start: Callable[[Address], list[commands.PipedChild]]
) -> None:
    with writer.connect(address) as store:
        children = start(address)
        seen = 0
        for _ in running(children):
            seen = look(store, seen)
        won = winners(children)
        assert look(store, seen) == WRITERS * WINS
        check_chain(store, won)


def test_collecting_without_grace_beside_eight_writers_removes_nothing_in_use(
    address: Address, start: Callable[[Address], list[commands.PipedChild]]
) -> None:
    with writer.connect(address) as store:
        children = start(address)
        collected = 0
        for _ in running(children):
            collected += collect(store, delete=True, grace_ms=0).collected
        won = winners(children)
        garbage = store.put_text("kept by nobody")
        last = collect(store, delete=True, grace_ms=-60_000)
        assert last.collected and not store.has(garbage)
        assert not last.dangling
        # Each win left one node that nobody keeps; the text several put may have gone more than once.
        assert collected + last.collected > WRITERS * WINS
        check_chain(store, won)


def test_a_store_that_another_process_is_just_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE unfinished (x)")
    made: list[str] = []

    def put() -> None:
        with Store(SqliteBackend(str(path))) as store:
            made.append(store.put_text("first"))

    thread = threading.Thread(target=put)
    thread.start()
    thread.join(0.3)  # it can only wait now, or have failed
    is_waiting = thread.is_alive()
    other.execute("ROLLBACK")
    other.close()
    thread.join(60)
    assert is_waiting and len(made) == 1


EXPORTS, BATCHES = 8 if "SOAK" in os.environ else 3, 25
"""How many exports are made, and how many batches are written beside each."""


def test_exports_beside_a_writer_are_whole(address: Address, tmp_path: Path) -> None:
    with commands.spawn(writer.__file__, "paced", "w", "40", *address) as child:
        for number in range(EXPORTS):
            child.stdin.write(b"%d\n" % BATCHES)
            child.stdin.flush()
            written = int(child.stdout.readline())
            path = str(tmp_path / f"{number}.tar")
            with writer.connect(address) as store:
                exported = export_to(store, path)
            assert exported.problems == ()
            with writer.connect(["sqlite", str(tmp_path / f"{number}.db")]) as copy:
                assert import_from(copy, path) == exported
                ref = copy.ref(HEAD)
                assert ref is not None and ref.state["number"] >= written
                links = [copy.get(moved.target).payload for moved in copy.history(HEAD)]
                bodies = [event.body["number"] for event in copy.events("writes")]
                numbers = list(range(1, ref.state["number"] + 1))
                assert [link["number"] for link in links] == bodies == numbers
                assert [problem for done in verify(copy) for problem in done.problems] == []
            last = [int(child.stdout.readline()) for _ in range(BATCHES - 1)][-1]
            assert last == written + BATCHES - 1
