"""The files that steps record: where they are kept, when not, and for how long."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rolecall
from rolecall import END, Context, Role, ThreadContext, Workflow
from rolecall.store.collect import collect
from rolecall.threads import compose, kept_files

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


# -- collecting and verifying --


def repository(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "committed").write_text("1\n")
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "first")
    return folder


def run_git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def forget(rc: rolecall.Rolecall, thread: rolecall.Thread) -> None:
    """Remove a thread's nodes, as if it had never been started: nothing leads to them any more."""
    with sqlite3.connect(rc.store.backend.address) as db:
        for table in ("refs", "moves"):
            db.execute(f"DELETE FROM {table} WHERE name LIKE ?", (f"%{thread.id}",))
    db.close()


def test_files_go_with_the_last_thread_that_names_them(home: Path) -> None:
    work = repository(home.parent / "work")
    (work / "new").write_text("not committed\n")
    with rolecall.open(folder=work) as rc:
        gone, kept = play(rc, "gone"), play(rc, "kept")
        trees = compose.trees_of(rc.store)
        left, stays = gone.steps[-1].tree, kept.steps[-1].tree
        assert left is not None and stays is not None
        packed = kept_files.collect(rc.store, delete=True, grace_ms=0)
        assert packed.removed == 0 and packed.freed >= 0
        forget(rc, gone)
        collect(rc.store, delete=True, grace_ms=0)

        assert kept_files.collect(rc.store, delete=False, grace_ms=3_600_000).removed == 0  # taken just now
        assert kept_files.collect(rc.store, delete=False, grace_ms=0).removed == 1
        assert trees.is_whole(left.found)
        done = kept_files.collect(rc.store, delete=True, grace_ms=0)
        assert (done.removed, done.problems) == (1, ())
        assert not trees.is_whole(left.found)  # the tree before the first file was written
        assert trees.is_whole(stays.found) and trees.is_whole(stays.left)
        assert kept_files.verify(rc.store) == []
        # The folder can still be recorded, also without a change since the last time.
        (step,) = play(rc, "kept").steps
        assert step.tree is not None and trees.is_whole(step.tree.found) and trees.is_whole(step.tree.left)


def test_a_folder_that_nobody_uses_any_more_leaves_nothing(home: Path) -> None:
    work = home.parent / "work"
    with rolecall.open(folder=work) as rc:
        thread = play(rc, "a")
        (ours,) = Path(compose.trees_of(rc.store).place).iterdir()
        forget(rc, thread)
        collect(rc.store, delete=True, grace_ms=0)
        kept_files.collect(rc.store, delete=True, grace_ms=0)
        assert list((ours / "indexes").glob("*.tree"))  # the folder may be used again soon
        for path in (ours / "indexes").iterdir():
            os.utime(path, (0, 0))
        (ours / "indexes" / "filling-1-1").touch()
        os.utime(ours / "indexes" / "filling-1-1", (0, 0))
        assert kept_files.collect(rc.store, delete=True, grace_ms=0).freed > 0
        assert not ours.exists()
        (step,) = play(rc, "b").steps
        assert step.tree is not None and compose.trees_of(rc.store).is_whole(step.tree.left)


def test_the_files_that_a_fork_begins_with_stay_without_the_thread_they_come_from(home: Path) -> None:
    work = repository(home.parent / "work")
    (work / "new").write_text("not committed\n")
    with rolecall.open(folder=work) as rc:
        source = play(rc, "source")
        (work / "new").unlink()
        fork = source.fork(at="start")
        found = source.steps[0].tree
        assert found is not None
        forget(rc, source)
        collect(rc.store, delete=True, grace_ms=0)
        kept_files.collect(rc.store, delete=True, grace_ms=0)
        assert compose.trees_of(rc.store).is_whole(found.found)
        shutil.rmtree(home / "work")
        fork.run().wait()
        assert fork.status == "completed"
        assert (Path(fork.state.folders["fork"].path) / "new").read_text() == "not committed\n"


def test_files_stay_although_their_repository_forgets_them(home: Path) -> None:
    """Rewritten history is lost to git after a while; what a step found is not."""
    work = repository(home.parent / "work")
    with rolecall.open(folder=work) as rc:
        (step,) = play(rc, "a").steps
        assert step.tree is not None
        (work / "committed").write_text("2\n")
        run_git(work, "add", "--all")
        run_git(work, "commit", "--quiet", "--amend", "--message", "other")
        kept_files.collect(rc.store, delete=True, grace_ms=0)
        run_git(work, "reflog", "expire", "--expire=now", "--all")
        run_git(work, "gc", "--quiet", "--prune=now")
        trees = compose.trees_of(rc.store)
        assert trees.is_whole(step.tree.found)
        assert trees.read(step.tree.found, "committed") == b"1\n"


def test_verify_names_the_step_whose_files_are_damaged_or_missing(home: Path) -> None:
    work = home.parent / "work"
    with rolecall.open(folder=work) as rc:
        first, second = play(rc, "first").steps[-1], play(rc, "second").steps[-1]
        assert first.tree is not None and second.tree is not None
        ours = Path(compose.trees_of(rc.store).place, first.tree.left.repository)
        blob = hashlib.sha1(b"blob 6\0first\n").hexdigest()
        file = ours / "objects" / blob[:2] / blob[2:]
        file.chmod(0o600)
        whole = file.read_bytes()
        file.write_bytes(b"x" * len(whole))
        damaged = kept_files.verify(rc.store)
        assert {problem.kind for problem in damaged} == {"files"}
        assert all(first.tree.left.tree[:12] in problem.text for problem in damaged)
        assert kept_files.collect(rc.store, delete=True, grace_ms=0).problems  # nothing is removed
        assert file.exists()
        file.write_bytes(whole)
        assert kept_files.verify(rc.store) == []
        shutil.rmtree(ours)
        assert "not on this machine" in kept_files.verify(rc.store)[0].text


# -- bundles --


def rolecall_at(home: Path, *words: str) -> str:
    """The output of a command with a home of its own."""
    program = [str(Path(sys.executable).parent / "rolecall"), *words]
    env = {**os.environ, "ROLECALL_HOME": str(home)}
    return subprocess.run(program, env=env, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("bundle", ["bundle.tgz", "folder/"])
def test_files_travel_in_bundles_with_what_is_borrowed(
    home: Path, monkeypatch: pytest.MonkeyPatch, bundle: str
) -> None:
    work, other, path = repository(home.parent / "work"), home.parent / "other", f"{home.parent}/{bundle}"
    with rolecall.open(folder=work) as rc:
        thread = play(rc, "a", steps=3)
    rolecall_at(home, "cas", "export", path)
    shutil.rmtree(work)
    rolecall_at(other, "cas", "import", path)
    rolecall_at(other, "cas", "import", path)  # again: nothing is there twice
    assert rolecall_at(other, "cas", "verify").endswith("nodes: ok\n")
    monkeypatch.setenv("ROLECALL_HOME", str(other))
    with rolecall.open(folder=home.parent) as rc:
        trees, last = compose.trees_of(rc.store), rc.thread(thread.id).steps[-1].tree
        assert last is not None
        trees.check_out(last.left, str(home.parent / "out"))
        assert sorted(os.listdir(home.parent / "out")) == ["committed", "file1", "file2", "file3"]
        assert kept_files.collect(rc.store, delete=True, grace_ms=0).removed == 0
        assert kept_files.verify(rc.store) == []


def test_a_bundle_without_files_says_so_where_they_are_missed(home: Path) -> None:
    with rolecall.open(folder=home.parent / "work") as rc:
        play(rc, "a")
    path, other = str(home.parent / "bundle.tar"), home.parent / "other"
    rolecall_at(home, "cas", "export", path, "--no-files")
    rolecall_at(other, "cas", "import", path)
    assert not (other / "trees").exists()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        rolecall_at(other, "cas", "verify")
    assert failed.value.returncode == 1 and "it is not on this machine" in failed.value.stdout
    again = rolecall_at(other, "cas", "export", str(home.parent / "again.tar"))
    assert "files: " in again and "it is not on this machine" in again
