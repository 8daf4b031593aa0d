"""Whether a work folder changed, in real repositories and outside them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rolecall.files import treestate

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git in the test's repository, which has two committed files and ignores `*.cache`."""
    repo = tmp_path / "repo"
    repo.mkdir()

    def run(*args: str, folder: Path = repo) -> str:
        identity = ("-c", "user.name=Somebody", "-c", "user.email=some@body", "-c", "gc.auto=0")
        argv = ["git", "-C", str(folder), *identity, *args]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    (repo / "a.py").write_text("a = 1\n")
    (repo / "sub").mkdir()
    (repo / "sub" / "Größe 1.py").write_text("b = 1\n")
    (repo / ".gitignore").write_text("*.cache\n/ignored/\n")
    run("add", "--all")
    run("commit", "--quiet", "-m", "first")
    return run


@pytest.fixture
def repo(git: Git, tmp_path: Path) -> Path:
    return tmp_path / "repo"


def changed_by(folder: Path, act: Callable[[], object]) -> list[str]:
    before = treestate.take(str(folder))
    act()
    return treestate.changes(before, treestate.take(str(folder)))


def test_what_was_not_touched_has_not_changed(repo: Path) -> None:
    (repo / "a.py").write_text("a = 2\n")
    (repo / "new.py").write_text("")
    assert changed_by(repo, lambda: (repo / "a.py").read_text()) == []


def test_files_that_were_added_changed_and_removed_are_named(repo: Path) -> None:
    def act() -> None:
        (repo / "a.py").write_text("a = 2\n")
        (repo / "sub" / "Größe 1.py").unlink()
        (repo / "deep" / "er").mkdir(parents=True)
        (repo / "deep" / "er" / "new file.py").write_text("")

    assert changed_by(repo, act) == [
        "added deep/er/new file.py",
        "changed a.py",
        "removed sub/Größe 1.py",
    ]


def test_a_file_that_was_changed_already_is_seen_to_change_again(repo: Path) -> None:
    (repo / "a.py").write_text("a = 2\n")
    (repo / "new.py").write_text("1")
    os.utime(repo / "a.py", ns=(1, 1))

    def act() -> None:
        (repo / "a.py").write_text("a = 3\n")
        (repo / "new.py").write_text("12")

    assert changed_by(repo, act) == ["changed a.py", "changed new.py"]


def test_a_change_that_is_taken_back_is_a_change(repo: Path) -> None:
    (repo / "a.py").write_text("a = 2\n")
    (repo / "new.py").write_text("")

    def act() -> None:
        (repo / "a.py").write_text("a = 1\n")
        (repo / "new.py").unlink()

    assert changed_by(repo, act) == ["changed a.py", "removed new.py"]


def test_a_mode_is_part_of_a_file(repo: Path) -> None:
    assert changed_by(repo, lambda: (repo / "a.py").chmod(0o755)) == ["changed a.py"]


def test_a_commit_is_seen_although_every_file_is_as_committed(repo: Path, git: Git) -> None:
    def act() -> None:
        (repo / "a.py").write_text("a = 2\n")
        git("commit", "--quiet", "--all", "-m", "second")

    (reported,) = changed_by(repo, act)
    assert reported.startswith("HEAD moved from ")
    assert reported.endswith(f"to {git('rev-parse', 'HEAD')[:12]} (main)")


def test_another_branch_at_the_same_commit_is_seen(repo: Path, git: Git) -> None:
    (reported,) = changed_by(repo, lambda: git("switch", "--quiet", "-c", "other"))
    assert "(main) to" in reported and reported.endswith("(other)")


def test_staging_is_a_change(repo: Path, git: Git) -> None:
    (repo / "a.py").write_text("a = 2\n")
    (repo / "new.py").write_text("")
    assert changed_by(repo, lambda: git("add", "--all")) == ["changed a.py", "changed new.py"]


def test_ignored_files_do_not_count(repo: Path) -> None:
    assert changed_by(repo, lambda: (repo / "build.cache").write_text("x")) == []


def test_an_ignored_folder_to_work_in_is_looked_through(repo: Path) -> None:
    work = repo / "ignored" / "work"
    work.mkdir(parents=True)
    assert changed_by(work, lambda: (work / "x").write_text("")) == ["added x"]


def test_a_folder_inside_a_repository_stands_for_all_of_it(repo: Path) -> None:
    assert changed_by(repo / "sub", lambda: (repo / "a.py").write_text("a = 2\n")) == ["changed a.py"]


def test_a_repository_inside_another_is_looked_into(repo: Path, git: Git) -> None:
    inner = repo / "inner"
    inner.mkdir()
    git("init", "--quiet", folder=inner)
    (inner / "x.py").write_text("1")
    assert changed_by(repo, lambda: (inner / "x.py").write_text("12")) == ["changed inner/x.py"]


def test_looking_writes_nothing(repo: Path) -> None:
    os.utime(repo / "a.py", ns=(1, 1))  # git would note in its index that only the time has changed
    index = (repo / ".git" / "index").read_bytes()
    treestate.take(str(repo))
    assert (repo / ".git" / "index").read_bytes() == index


def test_variables_of_a_hook_do_not_lead_to_its_repository(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other-index"))
    assert changed_by(repo, lambda: (repo / "a.py").write_text("a = 2\n")) == ["changed a.py"]


def test_a_repository_that_was_destroyed_is_told(repo: Path) -> None:
    reported = changed_by(repo, lambda: (repo / ".git" / "HEAD").write_text("nonsense"))
    assert reported[0] == "the git repository can no longer be read"


def test_outside_git_everything_counts(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").write_text("1")
    (tmp_path / "link").symlink_to("old")

    def act() -> None:
        (tmp_path / "old" / "a").write_text("12")
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").unlink()

    assert changed_by(tmp_path, act) == ["added empty", "changed old/a", "removed link"]


def test_sockets_and_pipes_hold_nothing(tmp_path: Path) -> None:
    assert changed_by(tmp_path, lambda: os.mkfifo(tmp_path / "pipe")) == []


def test_names_that_are_no_text_can_be_told(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.txt"

    def act() -> None:
        with open(name, "w"):
            pass

    assert changed_by(tmp_path, act) == ["added \\xff.txt"]


def test_a_hundred_changes_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    def act() -> None:
        for number in range(103):
            (tmp_path / f"{number:03}").write_text("")

    reported = changed_by(tmp_path, act)
    assert reported[0] == "added 000" and reported[99] == "added 099"
    assert reported[100:] == ["and 3 more"]


def test_of_a_folder_that_is_too_large_only_what_was_seen_is_compared(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:03}").mkdir()
        (tmp_path / f"{number:03}" / "x").write_text("1")
    before = treestate.scan(str(tmp_path), most=20)
    assert before.is_partial and len(before.entries) < 100
    (tmp_path / "new").write_text("")
    seen = next(path for path in before.entries)
    (tmp_path / seen).chmod(0o700)
    assert treestate.changes(before, treestate.scan(str(tmp_path), most=20)) == [f"changed {seen}"]
