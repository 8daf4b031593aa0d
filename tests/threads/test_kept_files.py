"""The files that steps record: where they are kept, when not, and for how long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import rolecall
from rolecall import END, Context, Role, ThreadContext, Workflow

VERDICT = {"type": "object", "properties": {"status": {"const": "done"}}, "required": ["status"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


async def write(_prompt: str, context: Context) -> str:
    """Write a file with the task into the work folder."""
    number = len(context.steps) + 1
    (context.workdir / f"file{number}").write_text(f"{context.start}\n")
    return "---\nstatus: done\n---\nWrote it."


def play(rc: rolecall.Rolecall, task: str, *, steps: int = 1, agent: Any = write) -> rolecall.Thread:
    def decide(context: ThreadContext) -> str:
        return "writer" if len(context.steps) < steps else END

    thread = rc.start(Workflow("write-files", {"writer": Role(agent, "Write.", VERDICT)}, decide), task)
    thread.run().wait()
    return thread


def test_a_step_names_the_files_that_its_role_changed(home: Path) -> None:
    with rolecall.open(folder=home.parent / "work") as rc:
        (step,) = play(rc, "a").steps
        assert step.tree is not None
        assert [(change.path, change.kind) for change in step.tree.changed] == [("file1", "added")]


def test_recording_can_be_switched_off(home: Path) -> None:
    (home / "config.yaml").write_text("trees: {keep: false}\n")
    with rolecall.open(folder=home.parent / "work") as rc:
        (step,) = play(rc, "a").steps
        assert step.tree is None
    assert not (home / "trees").exists()


def test_each_store_has_its_own_trees_and_a_temporary_one_leaves_none(home: Path) -> None:
    for store in (f"{home}/one.db", f"{home}/two.db", f"sqlite:{home}/one.db", ":memory:"):
        with rolecall.open(store, folder=home.parent / "work") as rc:
            play(rc, store)
    assert len(os.listdir(home / "trees")) == 2
