"""A repository may come from anybody: nothing in it makes us write outside it, wait, or end in a traceback."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Conflict, RolecallError, StorageError, UsageError
from rolecall.nexus import knowledge_files, memory, rule, state_file, tools
from rolecall.settings.mask import Mask

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
    assert list(outside.iterdir()) == []


def test_a_file_of_state_that_is_a_link_out_is_not_written_through(tmp_path: Path) -> None:
    victim, project = tmp_path / "victim", tmp_path / "project"
    victim.write_text('{"goal": "", "decisions": [], "tasks": []}')
    (state(project).parent / "tasks.json").symlink_to(victim)
    before = victim.read_text()
    with pytest.raises(UsageError, match="leads out of the project"):
        add(project)
    assert victim.read_text() == before


@pytest.mark.parametrize("name", ["plan.json", "tasks.json"])
def test_a_file_of_state_that_is_a_link_out_is_neither_read_nor_copied(tmp_path: Path, name: str) -> None:
    key, project = tmp_path / "key", tmp_path / "project"
    key.write_text("SECRET")
    key.chmod(0o600)
    (state(project).parent / name).symlink_to(key)
    calls = [tools.plan_status, tools.task_list, tools.task_close]
    refusals = [call for call in calls if is_refused_for_a_link(partial(call, str(project)))]
    assert refusals == ([tools.plan_status, tools.task_close] if name == "plan.json" else calls[1:])
    copies = [path for path in project.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in copies if b"SECRET" in path.read_bytes()] == []


def is_refused_for_a_link(call: Callable[[], object]) -> bool:
    try:
        call()
    except UsageError as error:
        return "is a link" in error.message
    return False


def test_a_copy_of_a_damaged_file_can_be_read_by_nobody_who_cannot_read_the_file(tmp_path: Path) -> None:
    plan = state(tmp_path).parent / "plan.json"
    plan.write_text("damaged")
    plan.chmod(0o600)
    with pytest.raises(state_file.DamagedFile, match="a copy of it is in") as item:
        tools.plan_start(str(tmp_path), topic="t", issues=["a"], research_summary="r")
    assert os.stat(item.value.copy).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("link", "target"),
    [
        (".nexus/.gitignore", "../.git/packed-refs"),
        (".nexus/state/tasks.json", "../../conftest.py"),
        (".nexus/history.json", "../conftest.py"),
        (".nexus/state", "../src"),
        (".nexus", "src"),
        (".nexus/state/tasks.json", "rolecall/tasks.json"),
    ],
)
def test_a_link_is_not_written_through_wherever_in_the_project_it_leads(
    tmp_path: Path, link: str, target: str
) -> None:
    for folder in (".git", "src"):
        (tmp_path / folder).mkdir()
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(target)
    with pytest.raises(UsageError, match="is a link"):
        add(tmp_path)
        tools.task_close(str(tmp_path))
    assert os.readlink(tmp_path / link) == target
    assert not (tmp_path / "conftest.py").exists()
    assert [*(tmp_path / ".git").iterdir(), *(tmp_path / "src").iterdir()] == []


def test_nothing_is_read_from_a_nexus_folder_that_is_elsewhere(tmp_path: Path) -> None:
    private, project = tmp_path / "private", tmp_path / "project"
    project.mkdir()
    memory.add(private_project(private), "secret-note", "SECRET", mask=Mask([]))
    rule.add(str(private), "secret-rule", "SECRET", mask=Mask([]))
    add(private)
    (project / ".nexus").symlink_to(private / ".nexus")
    folder = str(project)
    readers: list[Callable[[], object]] = [
        lambda: memory.read(folder, "secret-note"),
        lambda: memory.list_notes(folder),
        lambda: rule.read(folder, "secret-rule"),
        lambda: rule.list_rules(folder),
        lambda: tools.task_list(folder),
        lambda: tools.plan_status(folder),
        lambda: tools.history_search(folder),
    ]
    assert [is_refused_for_a_link(reader) for reader in readers] == [True] * len(readers)
    assert tools.context(folder) == {"branch": "unknown", "activeMode": "team", "decisions": []}
    assert knowledge_files.as_text(folder) == ""


def private_project(folder: Path) -> str:
    folder.mkdir()
    return str(folder)


def test_a_project_that_is_reached_by_a_link_is_as_good_as_any(tmp_path: Path) -> None:
    (tmp_path / ".nexus" / "inner").mkdir(parents=True)
    (tmp_path / "door").symlink_to(tmp_path / ".nexus" / "inner")
    add(tmp_path / "door")
    assert tools.task_list(str(tmp_path / ".nexus" / "inner"))["summary"]["total"] == 1


# -- waiting for the lock --


def test_whoever_gives_up_while_somebody_else_writes_writes_nothing(tmp_path: Path) -> None:
    add(tmp_path)
    asked: list[bool] = []

    def has_given_up() -> bool:
        asked.append(len(asked) >= 3)
        return asked[-1]

    token = state_file.is_taken_back.set(has_given_up)
    try:
        lock = os.open(tmp_path / ".nexus/state/rolecall/lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="cancelled"):
            add(tmp_path)
        os.close(lock)
        with pytest.raises(Conflict, match="cancelled"):
            add(tmp_path)
        asked.clear()
        add(tmp_path)
    finally:
        state_file.is_taken_back.reset(token)
    assert tools.task_list(str(tmp_path))["summary"]["total"] == 2


def test_what_can_be_had_at_once_is_had_also_when_patience_has_ended(tmp_path: Path) -> None:
    token = state_file.patience_ends.set(time.monotonic() - 1)
    try:
        add(tmp_path)
        add(tmp_path)
        lock = os.open(tmp_path / ".nexus/state/rolecall/lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match=r"another process still holds .*rolecall/lock"):
            add(tmp_path)
        os.close(lock)
        add(tmp_path)
    finally:
        state_file.patience_ends.reset(token)
    assert tools.task_list(str(tmp_path))["summary"]["total"] == 3


# -- what is no folder, or no file --


@pytest.mark.parametrize("name", ["memory", "rules"])
def test_a_file_in_the_place_of_a_folder_of_notes_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / ".nexus").mkdir()
    (tmp_path / ".nexus" / name).write_text("a file")
    there: Any = memory if name == "memory" else rule
    list_all = memory.list_notes if there is memory else rule.list_rules
    for call in (list_all, lambda project: there.read(project, "some-note")):
        with pytest.raises(StorageError, match=f"{name}.*Not a directory"):
            call(str(tmp_path))
    with pytest.raises(StorageError, match=f"{name}.*Not a directory"):
        there.add(str(tmp_path), "some-note", "text", mask=Mask([]))


def test_the_context_leaves_out_tasks_that_are_a_folder(tmp_path: Path) -> None:
    (state(tmp_path).parent / "tasks.json").mkdir()
    assert tools.context(str(tmp_path)) == {"branch": "unknown", "activeMode": "team", "decisions": []}


def test_a_pipe_in_the_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(state(tmp_path).parent / "plan.json")
    with pytest.raises(RolecallError, match="not a regular file"):
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


def test_a_log_of_reads_that_is_nonsense_is_named(tmp_path: Path) -> None:
    (state(tmp_path) / "memory-access.jsonl").write_text(DEEP)
    (tmp_path / ".nexus" / "memory").mkdir()
    with pytest.raises(RolecallError, match=r"memory-access\.jsonl"):
        memory.list_notes(str(tmp_path))
