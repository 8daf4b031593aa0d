"""Several processes on one project at once: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import project_child
import pytest
from project_stage import HISTORY, PLAN, TASKS, read

from rolecall.nexus import dispatch, tools

ADDERS, CLOSERS, TASKS_EACH = 8, 2, 200
STARTERS, PLANS_EACH = 4, 50

Child = subprocess.Popen[str]


@pytest.fixture
def project() -> Iterator[Path]:
    """In memory where that can be: waiting for the disk is not what is looked at here, and takes most of the time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts children; none of them outlives the test."""
    with ExitStack() as stack:

        def start_one(*args: str | Path) -> Child:
            child = subprocess.Popen(
                [sys.executable, project_child.__file__, *map(str, args)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            return child

        yield start_one


def lines(child: Child) -> list[list[str]]:
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return [line.split() for line in out.splitlines()]


def test_tasks_added_while_cycles_are_closed_are_in_the_tasks_or_the_history_exactly_once(
    project: Path, start: Callable[..., Child]
) -> None:
    closers = [start("close", project) for _ in range(CLOSERS)]
    adders = [start("add", project, f"a{number}", str(TASKS_EACH)) for number in range(ADDERS)]
    acknowledged = [line for adder in adders for line in lines(adder)]
    closed = sum(int(count) for closer in closers for (count,) in lines(closer))
    cycles = [cycle["tasks"] for cycle in read(project, HISTORY)["cycles"]]
    running = (read(project, TASKS) or {"tasks": []})["tasks"]
    titles = Counter(task["title"] for tasks in [*cycles, running] for task in tasks)
    assert titles == Counter(title for title, _ in acknowledged)
    assert len(titles) == len(acknowledged) == ADDERS * TASKS_EACH
    assert closed == sum(map(len, cycles))
    for tasks in [*cycles, running]:
        assert [task["id"] for task in tasks] == list(range(1, len(tasks) + 1))
    reported = {title: int(number) for title, number in acknowledged}
    assert {task["title"]: task["id"] for tasks in [*cycles, running] for task in tasks} == reported


def test_plans_begun_at_once_have_each_an_id_of_its_own_and_none_is_lost(
    project: Path, start: Callable[..., Child]
) -> None:
    starters = [start("start", project, f"s{number}", str(PLANS_EACH)) for number in range(STARTERS)]
    reported = {topic: int(number) for starter in starters for topic, number in lines(starter)}
    plans = [cycle["plan"] for cycle in read(project, HISTORY)["cycles"]] + [read(project, PLAN)]
    assert [plan["id"] for plan in plans] == list(range(1, STARTERS * PLANS_EACH + 1))
    assert {plan["topic"]: plan["id"] for plan in plans} == reported


def test_a_lock_left_by_a_dead_process_delays_nobody(project: Path, start: Callable[..., Child]) -> None:
    holder = start("hold", project)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    lock = project / ".nexus/state/rolecall/lock"
    with lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    waiting = start("add", project, "w", "1")
    holder.kill()
    holder.wait(timeout=60)
    # The file is still there, and in nobody's way: neither of who waited nor of who comes now.
    assert lock.exists()
    assert lines(waiting) == [["w-0", "1"]]
    assert dispatch.call(project, tools.task_add, {"title": "T", "context": "C"})["task"]["id"] == 2


def test_readers_beside_writers_see_whole_states_only(project: Path, start: Callable[..., Child]) -> None:
    closer = start("close", project)
    adder = start("add", project, "a", "150")
    starter = start("start", project, "s", "50")
    looks = 0
    while adder.poll() is None or starter.poll() is None:
        looks += 1
        listed = dispatch.call(project, tools.task_list)
        assert [task["id"] for task in listed.get("tasks", [])] == list(
            range(1, len(listed.get("tasks", [])) + 1)
        )
        dispatch.call(project, tools.plan_status)
        found = dispatch.call(project, tools.history_search, {"query": "s-1"})
        assert found["showing"] <= found["total"]
    assert looks > 5
    for child in (adder, starter, closer):
        lines(child)
