"""A writer killed at every step: what it acknowledged is there, the rest is whole or absent, nothing is doubled.

A few hundred kills in all. After each the next writer does its work as if nothing had happened.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import project_child
import pytest
from project_stage import plan


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def kills(folder: Path, scenario: str, size: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, project_child.__file__, "kills", str(folder), scenario, size],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= 10
    assert [kill["step"] for kill in found] == list(range(1, len(found) + 1))
    return found


def plan_ids(state: dict[str, Any]) -> Counter[int]:
    plans = [entry["plan"] for entry in state["cycles"]] + [state["plan"]]
    return Counter(plan["id"] for plan in plans if plan)


def titles(state: dict[str, Any]) -> Counter[str]:
    running = state["tasks"]["tasks"] if state["tasks"] else []
    lists = [*(entry["tasks"] for entry in state["cycles"]), running]
    return Counter(task["title"] for tasks in lists for task in tasks if task["title"] != "old")


def seeded(size: str) -> list[dict[str, Any]]:
    return project_child.seeded_tasks(count_of(size), "long" if size == "big" else "")


def count_of(size: str) -> int:
    return {"empty": 0, "small": 2, "big": project_child.BIG}[size]


def check_clean(state: dict[str, Any]) -> None:
    """Nothing of the dead writer is left lying about once another has worked."""
    names = {Path(name).name for name in state["files"]}
    assert names <= {"plan.json", "tasks.json", "history.json", ".gitignore", "lock", "b.md"}


SIZES = ("empty", "small", "big")


@pytest.mark.parametrize("size", SIZES)
def test_a_task_is_added_once_or_not_at_all(folder: Path, size: str) -> None:
    there = [entry["title"] for entry in seeded(size)]
    outcomes = set()
    for kill in kills(folder, "add", size):
        added = titles(kill["left"])["killed"]
        outcomes.add(added)
        assert added == 1 or not (added or kill["acknowledged"])
        assert titles(kill["then"]) == Counter([*there, *["killed"] * added, "after"])
        numbers = [entry["id"] for entry in kill["then"]["tasks"]["tasks"]]
        assert numbers == list(range(1, len(numbers) + 1))
        check_clean(kill["then"])
    assert outcomes == {0, 1}


@pytest.mark.parametrize("size", ["small", "big"])
def test_a_task_is_updated_or_as_it_was(folder: Path, size: str) -> None:
    outcomes = set()
    for kill in kills(folder, "update", size):
        tasks = kill["left"]["tasks"]["tasks"]
        outcomes.add(tasks[1]["status"])
        expected = seeded(size)
        expected[1]["status"] = tasks[1]["status"]
        assert tasks == expected
        assert tasks[1]["status"] == "completed" or not kill["acknowledged"]
        assert kill["then"]["tasks"]["tasks"][:-1] == tasks
        check_clean(kill["then"])
    assert outcomes == {"pending", "completed"}


def test_an_issue_is_decided_or_as_it_was(folder: Path) -> None:
    outcomes = set()
    for kill in kills(folder, "decide", "small"):
        issue = kill["left"]["plan"]["issues"][0]
        outcomes.add(issue["status"])
        assert (issue["status"], issue.get("decision")) in (("pending", None), ("decided", "So."))
        assert issue["status"] == "decided" or not kill["acknowledged"]
        assert [entry["title"] for entry in kill["then"]["plan"]["issues"]] == ["A", "after"]
        assert kill["then"]["plan"]["issues"][0] == issue
        check_clean(kill["then"])
    assert outcomes == {"pending", "decided"}


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_that_is_replaced_is_archived_once_and_no_id_is_given_twice(folder: Path, size: str) -> None:
    outcomes = set()
    for kill in kills(folder, "start", size):
        then = kill["then"]
        ids = plan_ids(then)
        topics = Counter(
            (entry["plan"] or {}).get("topic") for entry in [*then["cycles"], {"plan": then["plan"]}]
        )
        outcomes.add(topics["killed"])
        assert set(ids.values()) == {1}
        was_seen = (kill["left"]["plan"] or {}).get("topic") == "killed"
        assert topics["killed"] == 1 or not (topics["killed"] or was_seen or kill["acknowledged"])
        assert then["plan"]["topic"] == "after" and then["plan"]["id"] == max(ids)
        before = count_of(size) + (size != "empty")
        assert set(ids) >= set(range(1, before + 1))
        assert len(then["cycles"]) == before + topics["killed"]
        assert (then["tasks"] is None) is (size == "empty")
        check_clean(then)
    assert outcomes == {0, 1}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scenario", ["close", "close again"])
def test_a_cycle_is_closed_once_and_its_plan_and_tasks_are_nowhere_else(
    folder: Path, size: str, scenario: str
) -> None:
    count = count_of(size)
    there = Counter(entry["title"] for entry in seeded(size))
    outcomes = set()
    for kill in kills(folder, scenario, size):
        then = kill["then"]
        assert set(plan_ids(then)) == set(range(1, count + 2)) - ({1} if size == "empty" else set())
        assert set(plan_ids(then).values()) <= {1}
        assert titles(then) == there + Counter({"after": scenario == "close"})
        assert then["plan"] is None and then["tasks"] is None
        killed = kill["left"]["cycles"][count:]
        outcomes.add(len(killed))
        assert len(killed) == 1 or not (killed or kill["acknowledged"])
        if killed and size != "empty":
            assert (killed[0]["plan"], killed[0]["tasks"]) == (plan(count + 1, "A"), seeded(size))
        check_clean(then)
    assert outcomes == {0, 1}


def test_a_plan_archived_by_a_writer_that_died_is_not_archived_by_the_next_close(folder: Path) -> None:
    for kill in kills(folder, "start, then close", "small"):
        assert set(plan_ids(kill["then"]).values()) == {1}
        assert {1, 2, 3} <= set(plan_ids(kill["then"]))
        check_clean(kill["then"])


def test_an_artifact_is_whole_or_absent(folder: Path) -> None:
    outcomes = set()
    for kill in kills(folder, "artifact", "empty"):
        outcomes.add(kill["left"]["artifact"])
        assert kill["left"]["artifact"] == "new" * 99 or not kill["acknowledged"]
    assert outcomes == {None, "new" * 99}
