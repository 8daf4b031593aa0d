"""Forks with the files of their step, in folders of their own: the installed program, real repositories and folders."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import test_group_files
from test_thread_folder import AGAIN, DONE, Project, git, run_git

if TYPE_CHECKING:
    from conftest import Rolecall

FIRST = {**AGAIN, "edit": {"ä.txt": "two\n", "new.txt": "new\n"}, "run": [["ln", "-s", "ä.txt", "link"]]}
SECOND = {
    **DONE,
    "edit": {"ä.txt": "three\n", "later.txt": "later\n"},
    "run": [["rm", "new.txt"], run_git("add", "--all"), run_git("commit", "-qm", "by the agent")],
}


@pytest.fixture
def project(rolecall: Rolecall, tmp_path: Path) -> Project:
    made = Project(rolecall, tmp_path)
    made.define(None)
    return made


def fork(project: Project, ident: str, *words: str, said: str = "the files of the step are in") -> str:
    done = project.rolecall("thread", "fork", ident, *words, "--json", check=0)
    assert said in done.stderr
    return str(json.loads(done.stdout)["thread"])


def place_of(project: Project, ident: str, kind: str = "fork") -> Path:
    return Path(project.state(ident)["folders"][kind]["cwd"])


def files_in(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if ".git" not in path.parts and not path.is_dir())
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in paths
    }


AFTER_FIRST = {"link": "ä.txt", "new.txt": "new\n", "ä.txt": "two\n"}


def test_a_fork_has_the_files_of_its_step_in_a_worktree_and_the_users_files_stay(project: Project) -> None:
    ident = project.run(FIRST, SECOND)
    before, head = files_in(project.repo), git(project.repo, "rev-parse", "HEAD")
    assert before["sub dir/ä.txt"] == "three\n"
    other = fork(project, ident, "--at", "1")
    folder = project.state(other)["folders"]["fork"]
    assert folder["path"] == str(project.work / other / "fork")
    assert folder["branch"] == f"rolecall/{other}-fork"
    assert files_in(Path(folder["cwd"])) == AFTER_FIRST
    assert git(folder["path"], "branch", "--show-current") == folder["branch"]
    project.script({**AGAIN}, {**DONE, "edit": {"ä.txt": "another try\n"}})
    project.rolecall("thread", "run", other, check=0)
    assert files_in(Path(folder["cwd"])) == {**AFTER_FIRST, "ä.txt": "another try\n"}
    details = project.rolecall.json("thread", "step-details", f"{other}#2")
    assert details["cwd"] == folder["cwd"]
    assert (files_in(project.repo), git(project.repo, "rev-parse", "HEAD")) == (before, head)
    assert git(project.repo, "status", "--porcelain") == ""


def test_what_the_user_had_not_committed_is_no_change_of_a_fork(project: Project) -> None:
    (project.sub / "mine.txt").write_text("not committed\n")
    other = fork(project, project.run({**AGAIN}, {**DONE}), "--at", "1")
    project.script({**AGAIN}, {**DONE})
    result = project.rolecall("thread", "run", other, check=0)
    assert "files changed" not in result.stdout and "merge it" not in result.stdout


def test_a_fork_at_the_start_has_the_files_that_the_first_step_found(project: Project) -> None:
    (project.sub / "mine.txt").write_text("not committed\n")
    ident = project.run(FIRST, SECOND)
    assert files_in(place_of(project, fork(project, ident, "--at", "start"))) == {
        "mine.txt": "not committed\n",
        "ä.txt": "one\n",
    }


def test_outside_git_a_fork_has_a_plain_folder(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "ä.txt").write_text("one\n")
    ident = project.start(FIRST, {**DONE, "edit": {"ä.txt": "three\n"}}, cwd=folder)
    project.rolecall("thread", "run", ident, check=0)
    other = fork(project, ident, "--at", "1")
    assert place_of(project, other) == project.work / other / "fork"
    assert files_in(place_of(project, other)) == AFTER_FIRST
    project.script({**AGAIN}, {**DONE, "edit": {"ä.txt": "another try\n"}})
    project.rolecall("thread", "run", other, check=0)
    assert (place_of(project, other) / "ä.txt").read_text() == "another try\n"
    assert (folder / "ä.txt").read_text() == "three\n"
    [shown] = project.rolecall.json("thread", "folder", "show", other)["folders"]
    assert shown["changes"] == ["changed ä.txt"]
    assert "files changed: ä.txt\n" in project.rolecall("thread", "run", other).stdout
    assert "-two\n+another try\n" in project.rolecall("thread", "folder", "diff", other, check=0).stdout
    # A fork of the fork, at a step that was taken before either.
    third = fork(project, other, "--at", "1")
    assert files_in(place_of(project, third)) == AFTER_FIRST
    fourth = fork(project, other)
    assert (place_of(project, fourth) / "ä.txt").read_text() == "another try\n"


@pytest.mark.parametrize("kind", ["worktree", "copy"])
def test_a_threads_own_folder_is_forked_as_it_was(project: Project, kind: str) -> None:
    project.define(kind)
    ident = project.run(FIRST, {**SECOND, "run": [["rm", "new.txt"]]})
    (place_of(project, ident, kind) / "ä.txt").write_text("by the user\n")
    other = fork(project, ident, "--at", "1")
    assert list(project.state(other)["folders"]) == [kind]
    assert files_in(place_of(project, other, kind)) == AFTER_FIRST
    assert (place_of(project, ident, kind) / "ä.txt").read_text() == "by the user\n"


def test_with_keep_files_a_fork_shares_the_folder(project: Project) -> None:
    ident = project.run(FIRST, SECOND)
    other = fork(project, ident, "--at", "1", "--keep-files", said="")
    assert "folders" not in project.state(other)
    project.script({**AGAIN}, {**DONE, "edit": {"ä.txt": "another try\n"}})
    project.rolecall("thread", "run", other, check=0)
    assert (project.sub / "ä.txt").read_text() == "another try\n"


def test_a_step_whose_files_are_not_recorded_is_forked_with_the_files_as_they_are(
    project: Project, tmp_path: Path
) -> None:
    without_git = tmp_path / "bin"
    without_git.mkdir()
    for program in ("env", "ln", "rm"):
        (without_git / program).symlink_to(str(shutil.which(program)))
    ident = project.start(FIRST, {**DONE, "edit": {"ä.txt": "three\n"}})
    project.rolecall("thread", "run", ident, env={"PATH": str(without_git)}, check=0)
    other = fork(project, ident, "--at", "1", said="note: the files of this step are not recorded")
    assert "folders" not in project.state(other)


def test_a_role_that_a_person_answered_is_called_again_in_the_folder_of_the_fork(project: Project) -> None:
    suspended = {"answer": "---\n$status: $SUSPEND\nreason: Which?\n---\n"}
    ident = project.start(FIRST, suspended, {**DONE, "edit": {"ä.txt": "three\n"}})
    project.rolecall("thread", "run", ident, check=7)
    project.rolecall("thread", "resume", ident, "-p", "This one", check=0)
    other = fork(project, ident)
    project.rolecall("thread", "run", other, check=0)
    assert (place_of(project, other) / "ä.txt").read_text() == "three\n"
    assert (project.sub / "ä.txt").read_text() == "two\n"


def test_templates_name_the_folder_of_the_fork(project: Project) -> None:
    ident = project.run(FIRST, SECOND)
    path = project.folder / "do-work.yaml"
    definition = json.loads(path.read_text())
    definition["graph"]["worker"]["again"]["prompt"] = "Go on in {{start.cwd}}"
    path.write_text(json.dumps(definition))
    other = fork(project, ident, "--at", "1", "--workflow", str(path))
    project.script(AGAIN, DONE)
    project.rolecall("thread", "run", other, check=0)
    prompt = project.rolecall.json("thread", "step-details", f"{other}#3")["prompt"]
    assert f"Go on in {place_of(project, other)}" in prompt


def test_the_folder_of_a_fork_is_merged_and_pruned_like_others(project: Project) -> None:
    ident = project.run({**FIRST, "run": []}, {**DONE, "edit": {"ä.txt": "three\n"}})
    git(project.repo, "reset", "--quiet", "--hard")
    git(project.repo, "clean", "-fdq")
    other = fork(project, ident, "--at", "1")
    project.script({**AGAIN}, {**DONE, "edit": {"ä.txt": "another try\n"}})
    done = project.rolecall("thread", "run", other, "--format", "text", check=0)
    assert f"merge it: rolecall thread folder merge {other}" in done.stdout
    assert [row["thread"] for row in project.rolecall.json("thread", "folder", "prune")["kept"]] == [other]
    assert [folder["kind"] for folder in project.folder_verb("show", other)["folders"]] == ["fork"]
    assert "another try" in project.folder_verb("diff", other)["diff"]
    assert project.folder_verb("merge", other)["branch"] == f"rolecall/{other}-fork"
    assert (project.sub / "ä.txt").read_text() == "another try\n"
    assert [row["thread"] for row in project.rolecall.json("thread", "folder", "prune")["removed"]] == [other]
    assert project.is_bare_of_traces()


def test_members_of_a_fork_are_merged_into_its_folder(rolecall: Rolecall, tmp_path: Path) -> None:
    project = test_group_files.Project(rolecall, tmp_path)
    ident = project.start()
    assert project.run(ident).returncode == 0
    head = project.git("rev-parse", "HEAD")
    done = rolecall.json("thread", "fork", ident, "--at", "start")
    folder = Path(done["folders"]["fork"]["path"])
    assert files_in(folder) == {"first": "first\n"}
    assert project.run(done["thread"]).returncode == 0
    assert sorted(files_in(folder)) == ["first", "part 1", "part 2", "part 3"]
    assert project.git("rev-parse", "HEAD") == head


@pytest.mark.parametrize("kind", ["worktree", None])
def test_a_group_whose_thread_has_a_worktree_is_forked_with_the_merged_files(
    rolecall: Rolecall, tmp_path: Path, kind: str | None
) -> None:
    project = test_group_files.Project(rolecall, tmp_path)
    definition = json.loads(project.file.read_text())
    definition["roles"]["editor"] = {**definition["roles"]["writer"], "workdir": kind or "shared"}
    for key in ("times", "merge"):
        del definition["roles"]["editor"][key]
    definition["roles"]["editor"]["goal"] = "Write part 7."
    definition["graph"] = {"$START": "editor", "editor": "writer", "writer": {"_": "$END"}}
    project.file.write_text(json.dumps(definition))
    ident = project.start()
    assert project.run(ident).returncode == 0
    done = rolecall.json("thread", "fork", ident)
    (folder,) = done["folders"].values()
    assert sorted(files_in(Path(folder["path"]))) == ["first", "part 1", "part 2", "part 3", "part 7"]


# -- killed while the folder is made: the first step makes it --

KILLERS: dict[str, tuple[str, str]] = {
    "before the worktree": ("worktree add", "kill -9 $PPID; exit 1"),
    "after the worktree": ("worktree add", '"$real" "$@"; kill -9 $PPID; exit 1'),
    "before the files": ("checkout-index", "kill -9 $PPID; exit 1"),
    "amid the files": (
        "checkout-index",
        '"$real" "$@"; rm "$HALF"/*/fork/*/new.txt "$HALF"/*/fork/new.txt; kill -9 $PPID; exit 1',
    ),
    "after the files": ("checkout-index", '"$real" "$@"; kill -9 $PPID; exit 1'),
}


@pytest.mark.parametrize(
    ("moment", "is_git"),
    [*((moment, True) for moment in KILLERS), *((moment, False) for moment in KILLERS if "files" in moment)],
)
def test_a_fork_whose_maker_was_killed_gets_its_folder_at_the_first_step(
    project: Project, tmp_path: Path, moment: str, is_git: bool
) -> None:
    folder = project.sub
    if not is_git:
        folder = tmp_path / "plain"
        shutil.copytree(project.sub, folder)
    ident = project.start(FIRST, {**DONE, "edit": {"ä.txt": "three\n"}}, cwd=folder)
    project.rolecall("thread", "run", ident, check=0)
    killer = tmp_path / "bin" / "git"
    killer.parent.mkdir()
    words, action = KILLERS[moment]
    is_meant = f'case " $* " in *" {words} "*) ;; *) exec "$real" "$@";; esac'
    killer.write_text(f"#!/bin/sh\nreal={shutil.which('git')}\n{is_meant}\n{action}\n")
    killer.chmod(0o755)
    env = {"PATH": f"{killer.parent}:{os.environ['PATH']}", "HALF": str(project.work)}
    died = project.rolecall("thread", "fork", ident, "--at", "1", env=env)
    assert died.returncode == -9, died.stderr
    (other,) = {*project.threads()} - {ident}
    made = project.state(other)["folders"]["fork"]
    assert not Path(f"{made['path']}.made").exists()
    project.script({**AGAIN}, {**DONE, "edit": {"another.txt": "try\n"}})
    project.rolecall("thread", "run", other, check=0)
    assert files_in(Path(made["cwd"])) == {**AFTER_FIRST, "another.txt": "try\n"}
    assert files_in(folder) == {**AFTER_FIRST, "ä.txt": "three\n"}


def test_a_tree_that_is_gone_makes_no_fork(project: Project) -> None:
    ident = project.run(FIRST, SECOND)
    shutil.rmtree(project.rolecall.home / "trees")
    done = project.rolecall("thread", "fork", ident, "--at", "1", check=None)
    assert done.returncode == 2 and "not on this machine" in done.stderr and "--keep-files" in done.stderr
    assert project.threads() == [ident]
    assert project.is_bare_of_traces()
