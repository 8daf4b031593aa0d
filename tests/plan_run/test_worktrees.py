"""Tasks in worktrees of their own: what they did is merged into the project, one at a time."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_run.stage import DONE, Crew
from rolecall.api import Rolecall

LINES = "".join(f"{number}\n" for number in range(1, 21))


def git(crew: Crew, *args: str) -> str:
    argv = ["git", "-C", str(crew.project), "-c", "user.name=S", "-c", "user.email=s@b", *args]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout.strip()


@pytest.fixture
def project(crew: Crew) -> Path:
    """The crew's project with a first commit, in which two tasks write one file that they do not name."""
    crew.task("First")
    crew.task("Second")
    (crew.project / "shared").write_text(LINES)
    git(crew, "add", "--all")
    git(crew, "commit", "--quiet", "-m", "first")
    return crew.project


def writes(**files: str) -> list[dict[str, Any]]:
    return [{**DONE, "write": files}]


def change(line: int, text: str) -> str:
    return LINES.replace(f"\n{line}\n", f"\n{text}\n")


def test_two_tasks_that_touch_one_file_at_once_are_both_merged(crew: Crew, project: Path) -> None:
    meeting = {"meet": [crew.fifo("meeting")]}
    crew.score(
        **{
            "engineer: First": [{**writes(shared=change(3, "three"))[0], **meeting, "side": "left"}],
            "engineer: Second": [{**writes(shared=change(17, "seventeen"))[0], **meeting, "side": "right"}],
        }
    )
    result = crew.run("--worktrees")
    assert result["done"], result
    assert (project / "shared").read_text() == change(3, "three").replace("\n17\n", "\nseventeen\n")
    assert git(crew, "status", "--porcelain") == ""
    assert git(crew, "rev-list", "--count", "--merges", "HEAD") == "2"
    assert [row["remarks"] for row in result["tasks"]] == [[], []]


def test_a_conflict_names_the_other_task(crew: Crew, project: Path) -> None:
    crew.task("Third", deps=[1, 2])
    meeting = {"meet": [crew.fifo("meeting")]}
    crew.score(
        **{
            "engineer: First": [{**writes(shared=change(3, "three"))[0], **meeting, "side": "left"}],
            "engineer: Second": [{**writes(shared=change(3, "drei"))[0], **meeting, "side": "right"}],
        }
    )
    result = crew.run("--worktrees", check=7)
    by_status = {row["status"]: row for row in result["tasks"]}
    done, aside, blocked = by_status["completed"], by_status["set_aside"], by_status["blocked"]
    assert aside["reason"] == f"conflicts in shared, also changed by task {done['task']}"
    assert aside["command"] == f"rolecall thread folder merge {aside['thread']}"
    [file] = aside["conflict"]["files"]
    assert file["path"] == "shared"
    assert "drei" in file["hunks"][0]
    assert git(crew, "status", "--porcelain") == ""
    assert crew.statuses()[aside["task"]] == "pending"
    assert blocked["reason"] == f"waits for {aside['task']}, which was set aside"

    with Rolecall(crew.store(), folder=project) as rc:
        [entry] = rc.set_aside()
        assert (entry["thread"], entry["reason"]) == (aside["thread"], "conflicts in shared")
        assert entry["conflict"]["files"][0]["path"] == "shared"

    # Nothing is asked again: once its branch is merged, the task is completed.
    asked = crew.asked()
    again = crew.run("--worktrees", check=7)
    assert again["rows"][aside["task"]]["status"] == "set_aside"
    git(crew, "merge", "--quiet", "-X", "theirs", "-m", "by hand", f"rolecall/{aside['thread']}")
    last = crew.run("--worktrees")
    assert last["done"]
    assert crew.asked() == [*asked, "engineer: Third"]
    with Rolecall(crew.store(), folder=project) as rc:
        assert list(rc.set_aside()) == []


def test_a_check_that_fails_sets_the_task_aside(crew: Crew, project: Path) -> None:
    crew.score(**{"engineer: First": writes(bad="1\n"), "engineer: Second": writes(good="2\n")})
    result = crew.run("--worktrees", "--check", "test ! -e bad", check=7)
    assert result["rows"][1]["status"] == "set_aside"
    assert result["rows"][1]["reason"] == "the check failed: 'test' exited with status 1"
    assert result["rows"][1]["conflict"]["check"]["command"] == ["test", "!", "-e", "bad"]
    assert result["rows"][2]["status"] == "completed"
    assert not (project / "bad").exists()
    assert (project / "good").exists()
    text = crew.rolecall("plan", "run", "--worktrees", "--check", "test ! -e bad", cwd=project, check=7)
    assert "[1] ✗ set aside: the check failed" in text.stdout + text.stderr
    assert f"merge it by hand: rolecall thread folder merge {result['rows'][1]['thread']}" in text.stdout
    assert "then: rolecall plan run --worktrees --check 'test ! -e bad'" in text.stderr

    proof = crew.rolecall.json("prove", cwd=project)
    assert proof["proven"] and proof["thread"] == result["rows"][2]["thread"], proof["problems"]
    merged = {"role": "merge", "command": "test ! -e bad", "status": "passed", "step": ""}
    assert merged in proof["checks"]


def test_killed_during_a_check_the_next_run_merges_once_and_asks_nobody(crew: Crew, project: Path) -> None:
    crew.score(**{"engineer: First": writes(one="1\n"), "engineer: Second": writes(two="2\n")})
    kill = crew.stage / "kill"
    kill.write_text('#!/bin/sh\ntest -e "$0.done" || { touch "$0.done"; kill -9 $PPID; exec sleep 60; }\n')
    kill.chmod(0o755)
    words = ("--worktrees", "--check", str(kill), "--at-once", "1")
    assert crew.rolecall("plan", "run", *words, cwd=project).returncode == -signal.SIGKILL
    result = crew.run(*words)
    assert result["done"]
    assert git(crew, "rev-list", "--count", "--merges", "HEAD") == "2"
    assert (project / "one").exists()
    assert (project / "two").exists()
    assert crew.asked() == ["engineer: First", "engineer: Second"]


def test_uncommitted_changes_in_the_same_file_are_left_alone(crew: Crew, project: Path) -> None:
    crew.score(
        **{"engineer: First": writes(shared=change(3, "three")), "engineer: Second": writes(two="2\n")}
    )
    (project / "shared").write_text("mine\n")
    result = crew.run("--worktrees", check=7)
    assert "uncommitted changes in files that are to be merged: shared" in result["rows"][1]["reason"]
    assert result["rows"][1]["remarks"] == [
        "its worktree does not have the project's uncommitted changes (1)"
    ]
    assert result["rows"][2]["status"] == "completed"
    assert (project / "shared").read_text() == "mine\n"
    git(crew, "checkout", "--quiet", "shared")
    assert crew.run()["done"]
    assert (project / "shared").read_text() == change(3, "three")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--worktrees",), "would lack .nexus"),
        (("--check", "make"), "Add --worktrees"),
        (("--worktrees", "--check", "'"), "--check cannot be read"),
    ],
)
def test_what_cannot_be_merged_is_refused_at_once(crew: Crew, words: tuple[str, ...], told: str) -> None:
    crew.task("First")
    done = crew.rolecall("plan", "run", *words, cwd=crew.project, check=2)
    assert told in done.stderr
