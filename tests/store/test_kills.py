"""A writer killed at any moment: what it had acknowledged is there, the rest is whole or absent.

168 kills, and 408 in `make soak`: some from outside while the child writes, some by the child itself between two of its
smallest steps, some while the store is being made. Every store is opened again as it was left.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import commands
import psycopg
import pytest
import writer
from psycopg import sql
from writer import HEAD, Address

from rolecall.errors import NotFound
from rolecall.store import canonical
from rolecall.store.ids import node_id
from rolecall.store.store import BUILTIN, Store
from rolecall.store.verify import verify

KILLS = 8
SEEDS = range(8 if "SOAK" in os.environ else 3)


@pytest.fixture(params=["sqlite", "files", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    if request.param == "postgres":
        return [
            "postgres",
            request.getfixturevalue("postgres_url"),
            request.getfixturevalue("postgres_schema"),
        ]
    return [request.param, str(tmp_path / "store")]


def child(*args: str) -> commands.PipedChild:
    return commands.spawn(writer.__file__, *args)


def numbers(pipe: IO[bytes]) -> list[int]:
    return [int(line) for line in pipe if line.endswith(b"\n")]


def kill_from_outside(address: Address, acknowledgements: int, steps: int) -> list[int]:
    """What the child had acknowledged; `steps` of this process lie between the last look and the kill."""
    with child("batches", "w", "1", *address) as process:
        acknowledged = [int(process.stdout.readline() or -1) for _ in range(acknowledgements)]
        for _ in range(steps):
            pass
        process.kill()
        acknowledged += numbers(process.stdout)
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    return acknowledged


def kill_from_inside(address: Address, part: float) -> list[int]:
    with child("batches", "w", str(part), *address) as process:
        acknowledged = numbers(process.stdout)
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    return acknowledged


def settle(store: Store) -> None:
    """A server may still be busy with the last statement of a client that is dead."""
    with store.backend.exclusive():
        pass


def check(store: Store, acknowledged: list[int]) -> int:
    """Everything acknowledged and whole, at most one more batch, nothing of the next; how many there are."""
    ref = store.ref(HEAD)
    count = ref.version if ref else 0
    last = acknowledged[-1] if acknowledged else count
    assert last <= count <= last + 1
    assert ref is None or ref.state == {"status": "running", "number": count}
    history = [moved.target for moved in store.history(HEAD)]
    assert [(event.body["number"], event.body["head"]) for event in store.events("writes")] == list(
        enumerate(history, 1)
    )
    assert len(history) == count
    before = None
    for number, head in enumerate(history, 1):
        link = store.get(head).payload
        assert (link["number"], link["before"]) == (number, before)
        assert [store.get(part).payload for part in link["parts"]] == writer.parts("w", number)
        before = head
    for text in writer.parts("w", count + 1):
        assert not store.has(node_id(BUILTIN["string"], canonical.encode(text)))
    assert [problem for done in verify(store) for problem in done.problems] == []
    return count


def reopen_and_check(address: Address, acknowledged: list[int]) -> int:
    with writer.connect(address, create=False) as store:
        if address[0] == "postgres":
            settle(store)
        count = check(store, acknowledged)
        text = f"put after batch {count}"
        assert store.get(store.put_text(text)).payload == text
    return count


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_from_outside_keeps_every_acknowledged_batch_and_no_half_one(
    address: Address, seed: int
) -> None:
    chance = random.Random(f"outside {seed}")
    seen = 0
    for _ in range(KILLS):
        acknowledged = kill_from_outside(address, chance.randint(1, 6), chance.randint(0, 60_000))
        assert acknowledged == list(range(seen + 1, seen + 1 + len(acknowledged)))
        seen = reopen_and_check(address, acknowledged)
    assert seen >= KILLS


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_between_two_steps_of_a_commit_keeps_every_acknowledged_batch_and_no_half_one(
    address: Address, seed: int
) -> None:
    chance = random.Random(f"inside {seed}")
    seen = 0
    for kill in range(KILLS):
        # The parts are spread over the whole commit, so that its beginning and its end are met in every run.
        acknowledged = kill_from_inside(address, (kill + chance.random()) / KILLS)
        assert len(acknowledged) >= 2
        seen = reopen_and_check(address, acknowledged)
    assert seen >= 2 * KILLS


def test_kill_while_the_store_is_made_leaves_none_or_a_whole_one(address: Address) -> None:
    chance = random.Random("create")
    seen = set()
    for kill in range(KILLS):
        place = [*address[:-1], f"{address[-1]}_{kill}"]
        with (
            schemas_dropped(address, kill),
            child("create", str((kill + chance.random() * 0.9) / KILLS), *place) as process,
        ):
            assert process.wait() == -signal.SIGKILL, process.stderr.read()
            try:
                with writer.connect(place, create=False) as store:
                    seen.add(True)
                    assert [problem for done in verify(store) for problem in done.problems] == []
            except NotFound:
                seen.add(False)
            with writer.connect(place) as store:
                writer.write(store, "w", None)
                assert check(store, [1]) == 1
    assert True in seen


@contextmanager
def schemas_dropped(address: Address, kill: int) -> Iterator[None]:
    """The schemas that a creating child makes on a server go with it."""
    yield
    if address[0] != "postgres":
        return
    with psycopg.connect(address[1], autocommit=True) as db:
        for end in (f"_{kill}", f"_{kill}_rehearsal", f"_{kill}_counted"):
            db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(address[2] + end)))
