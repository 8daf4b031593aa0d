"""A repository may come from anybody: nothing in it makes us write outside it, wait, or end in a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolecall.errors import RolecallError, UsageError
from rolecall.project import memory, tools

DEEP = "[" * 200_000


def state(project: Path) -> Path:
    folder = project / ".nexus" / "state" / "rolecall"
    folder.mkdir(parents=True)
    return folder


def add(project: Path) -> None:
    tools.task_add(str(project), title="t", context="c")


def test_a_link_where_drafts_are_written_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    project = tmp_path / "project"
    (state(project) / "draft").symlink_to(victim)
    tools.artifact_write(str(project), filename="a.md", content="ATTACK")
    add(project)
    assert victim.read_text() == "precious"
    assert not (project / ".nexus/state/artifacts/a.md").is_symlink()


@pytest.mark.parametrize(
    "link", [".nexus", ".nexus/state", ".nexus/state/rolecall", ".nexus/state/rolecall/lock"]
)
def test_a_folder_of_state_that_is_elsewhere_is_refused(tmp_path: Path, link: str) -> None:
    outside, project = tmp_path / "outside", tmp_path / "project"
    outside.mkdir()
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(outside / "lock" if link.endswith("lock") else outside)
    with pytest.raises(RolecallError):
        add(project)
    assert [path for path in outside.rglob("*") if path.is_file()] == []


def test_a_file_of_state_that_is_a_link_out_is_not_written_through(tmp_path: Path) -> None:
    victim, project = tmp_path / "victim", tmp_path / "project"
    victim.write_text('{"goal": "", "decisions": [], "tasks": []}')
    (state(project).parent / "tasks.json").symlink_to(victim)
    before = victim.read_text()
    with pytest.raises(UsageError, match="leads out of the project"):
        add(project)
    assert victim.read_text() == before


def test_a_pipe_in_the_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(state(tmp_path).parent / "plan.json")
    with pytest.raises(RolecallError, match="no regular file"):
        tools.plan_status(str(tmp_path))


@pytest.mark.parametrize(
    "note",
    [
        DEEP,
        '{"cycle": "x", "completed_at": "x", "sources": {}}',
        '{"cycle": -1, "completed_at": "x", "sources": {}}',
        '{"cycle": 0, "completed_at": "x", "sources": {"../../precious": "x"}}',
    ],
)
def test_a_note_that_is_not_ours_is_named_and_kept(tmp_path: Path, note: str) -> None:
    path = state(tmp_path) / "archiving.json"
    path.write_text(note)
    with pytest.raises(RolecallError, match=r"archiving\.json"):
        add(tmp_path)
    assert path.read_text() == note


def test_an_index_that_is_nonsense_is_done_without(tmp_path: Path) -> None:
    add(tmp_path)
    (tmp_path / ".nexus/state/rolecall/tasks.index.json").write_text(DEEP)
    assert tools.task_list(str(tmp_path))["summary"]["total"] == 1


def test_a_log_of_reads_that_is_nonsense_is_named(tmp_path: Path) -> None:
    (state(tmp_path) / "memory-access.jsonl").write_text(DEEP)
    (tmp_path / ".nexus" / "memory").mkdir()
    with pytest.raises(RolecallError, match=r"memory-access\.jsonl"):
        memory.listed(str(tmp_path))
