"""An engine killed at any moment of a step: nothing acknowledged is lost, nothing is done or paid for twice.

Every kill has a thread of its own. A process runs it and dies at a chosen place; what it left is looked at;
a fresh process takes the thread to its end. 16 tests with 12 kills or more each; `make soak` has 24.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import actor
import pytest
import stage
from actor import STEPS

from rolecall.store.store import Store
from rolecall.threads import thread

KILLS = 24 if "SOAK" in os.environ else 12


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, actor.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


@dataclass
class Theatre:
    """One store, a thread per kill, and the processes that run and die on it."""

    folder: Path
    server: subprocess.Popen[str]
    store: Store
    agent: str
    kills: int = 0

    def new_thread(self) -> str:
        return stage.start(self.store, stage.book(stage.LOOP), self.folder / "work")

    def log(self, name: str) -> list[list[str]]:
        path = self.folder / name
        return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []

    def order(self, name: str, place: str = "", at: float = 0, spins: int = 0) -> dict[str, Any]:
        order = {"store": str(self.folder / "store.db"), "thread": name, "log": str(self.folder / name)}
        order |= {"agent": self.agent, "place": place, "at": at, "spins": spins}  # type: ignore[dict-item]
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        answer: dict[str, Any] = json.loads(self.server.stdout.readline())
        return answer

    def counted(self) -> dict[str, int]:
        """How often a whole run passes each place. The first one registers types, which no later one does."""
        self.order(self.new_thread())
        done = self.order(self.new_thread())
        assert done["code"] == 0, done
        counts: dict[str, int] = done["told"][-1]
        return counts

    def kill_and_continue(self, place: str, at: float, spins: int = 0) -> None:
        name = self.new_thread()
        died = self.order(name, place, at, spins)
        assert died["code"] == -signal.SIGKILL, (place, at, died)
        self.kills += 1
        calls = [int(line[0]) for line in self.log(name)]
        acknowledged = [item[0] for item in died["told"] if isinstance(item, list)]
        if place == "outside" and stage.state(self.store, name)["status"] == "completed":
            self.check(name, acknowledged, [])  # it died after its last commit: there is nothing to continue
            assert calls == [*range(1, STEPS + 1)]
            return
        due, is_answered, session = self.left_behind(name)
        finished = self.order(name)
        assert finished["code"] == 0, (place, at, finished)
        self.check(name, acknowledged, [item[0] for item in finished["told"][:-1]])
        asked = [int(line[0]) for line in self.log(name)]
        once = [*range(1, STEPS + 1)]
        if is_answered or due not in calls:
            # A command that outlived its engine may have left its trace after we looked.
            twice = sorted([*once, due]) if self.agent == "command" and not is_answered else once
            assert asked in (once, twice), (place, at, calls)
        else:
            assert asked == sorted([*once, due]), (place, at, calls)
            assert not session or self.log(name)[len(calls)][1] == session

    def left_behind(self, name: str) -> tuple[int, bool, str | None]:
        """The step that was due when the process died, whether its answer was on record, its session."""
        due = len(stage.steps(self.store, name)) + 1
        ref = self.store.ref(thread.attempt_name(name))
        note = ref.state if ref else {}
        return due, "raw" in note, note.get("session")

    def check(self, name: str, acknowledged: list[str], later: list[str]) -> None:
        stage.assert_whole(self.store, name)
        assert stage.state(self.store, name)["status"] == "completed"
        chain = [step.id for step in stage.steps(self.store, name)]
        assert chain[: len(acknowledged)] == acknowledged
        # At most one step was committed by the dead process without being acknowledged.
        assert [*acknowledged, *later] == chain or [
            *acknowledged,
            *chain[len(acknowledged) :][:1],
            *later,
        ] == chain
        assert len(chain) == STEPS
        assert all(step.prompt for step in stage.steps(self.store, name))
        assert self.store.ref(thread.attempt_name(name)) is None
        if self.agent == "command":
            assert [pid for (pid,) in self.log(f"{name}.pids") if is_running(pid)] == []

    def check_all(self) -> None:
        stage.assert_sound(self.store)
        assert self.kills >= KILLS


def is_running(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.fixture(params=["function", "command"])
def theatre(
    request: pytest.FixtureRequest, tmp_path: Path, server: subprocess.Popen[str]
) -> Iterator[Theatre]:
    with stage.open_store(tmp_path / "store.db") as store:
        yield Theatre(tmp_path, server, store, request.param)


@pytest.mark.parametrize("place", ["commit", "committed"])
def test_kill_before_or_after_any_commit_loses_and_doubles_nothing(theatre: Theatre, place: str) -> None:
    total = theatre.counted()[place]
    assert total >= STEPS * 4  # the lease, the question, the answer, the step
    for number in range(1, total):
        theatre.kill_and_continue(place, number)
    while theatre.kills < KILLS:
        theatre.kill_and_continue(place, theatre.kills % (total - 1) + 1)
    theatre.check_all()


@pytest.mark.parametrize("seed", range(2))
def test_kill_in_the_middle_of_a_write_or_a_read_loses_and_doubles_nothing(
    theatre: Theatre, seed: int
) -> None:
    chance = random.Random(f"instruction {seed}")
    total = theatre.counted()["instruction"]
    for kill in range(KILLS):
        # The parts are spread over the whole run, so that its beginning and its end are met every time.
        theatre.kill_and_continue("instruction", max(1, int(total * 0.9 * (kill + chance.random()) / KILLS)))
    theatre.check_all()


@pytest.mark.parametrize("theatre", ["command"], indirect=True)
@pytest.mark.parametrize("place", ["start", "read", "trace", "answer"])
def test_kill_while_a_command_runs_ends_it_and_asks_again_only_what_was_not_answered(
    theatre: Theatre, place: str
) -> None:
    for kill in range(KILLS):
        theatre.kill_and_continue(place, kill % STEPS + 1)
    theatre.check_all()


@pytest.mark.parametrize("theatre", ["function"], indirect=True)
@pytest.mark.parametrize("place", ["called", "logged"])
def test_kill_while_an_agent_thinks_resumes_its_session(theatre: Theatre, place: str) -> None:
    for kill in range(KILLS):
        theatre.kill_and_continue(place, kill % STEPS + 1)
    theatre.check_all()


def test_kill_from_outside_at_any_moment_loses_and_doubles_nothing(theatre: Theatre) -> None:
    chance = random.Random("outside")
    for _ in range(KILLS):
        theatre.kill_and_continue("outside", chance.randint(1, STEPS - 1), chance.randint(0, 20_000))
    theatre.check_all()
