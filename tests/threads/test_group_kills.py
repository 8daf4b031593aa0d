"""A runner of a group killed at any moment: finished members stay finished, and the group is joined once.

Every thread has a hundred members, whose agent is a command that leaves a line in a log. One process after the other
runs the thread and is killed by SIGKILL at a random place, until the thread has ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import group_actor
import pytest
import stage
from group_actor import SIZE

from rolecall.store.store import Store
from rolecall.threads.state import Status, group_name, read_members

KILLS = 12
"""How many processes die on each thread."""
ROUNDS = 6 if "SOAK" in os.environ else 1
AT_ONCE = 8


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, group_actor.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stage.open_store(tmp_path / "store.db") as opened:
        yield opened


def order(
    server: subprocess.Popen[str], folder: Path, name: str, place: str = "", at: int = 0
) -> dict[str, Any]:
    words = {
        "store": str(folder / "store.db"),
        "thread": name,
        "log": str(folder / name),
        "place": place,
        "at": at,
    }
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(words) + "\n")
    server.stdin.flush()
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer


@pytest.mark.parametrize("round", range(ROUNDS))
@pytest.mark.parametrize(
    "places", [("commit", "committed"), ("instruction",), ("start", "read", "trace", "answer")]
)
def test_no_finished_member_is_asked_again(
    server: subprocess.Popen[str], store: Store, tmp_path: Path, places: tuple[str, ...], round: int
) -> None:
    moments = random.Random(f"{places[0]} {round}")
    name = stage.start(store, stage.book(group_actor.FLOW), tmp_path / "work")
    log = tmp_path / name
    kills, running = 0, Counter[int]()
    while True:
        done = {ref.state.member for ref in read_members(store, name) if ref.state.status == Status.COMPLETED}
        started = {ref.state.member for ref in read_members(store, name)} - done
        asked = Counter(int(line) for line in log.read_text().split()) if log.exists() else Counter[int]()
        running.update(number for number in started if number)
        place = places[kills % len(places)]
        if place in ("commit", "committed"):
            at = moments.randint(1, SIZE * 5 // KILLS)
        elif place == "instruction":
            at = moments.randint(1, SIZE * 250 // KILLS)
        else:
            left = [number for number in range(1, SIZE + 1) if number not in done]
            at = moments.choice(
                left[: 2 * SIZE // KILLS]
            )  # near, so that there is work left for the next kill
        ended = order(server, tmp_path, name, place if kills < KILLS else "", at)
        again = Counter(int(line) for line in log.read_text().split()) if log.exists() else Counter[int]()
        assert not [number for number in done if number and again[number] != asked[number]]
        if ended["code"] == 0:
            break
        assert ended["code"] == -signal.SIGKILL, ended
        kills += 1
    assert kills >= KILLS / 2

    assert ended["told"][-2][1] == "completed", ended
    [group, last] = stage.steps(store, name)
    assert [one["number"] for one in group.output["members"]] == list(range(1, SIZE + 1))
    assert [one["output"]["note"] for one in group.output["members"]] == [
        f"by {number}" for number in range(1, SIZE + 1)
    ]
    assert (group.output["done"], last.number) == (SIZE, 2)
    for number in range(1, SIZE + 1):
        assert 1 <= again[number] <= 1 + running[number], number
    assert sum(again.values()) - again[0] <= SIZE + kills * AT_ONCE
    assert store.ref(group_name(name)) is None
    stage.assert_sound(store)
