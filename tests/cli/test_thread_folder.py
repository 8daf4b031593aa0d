"""Worktrees and copies of a thread's own: real repositories, the installed program, agents that need no model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rolecall.settings import stores
from rolecall.store.store import Store
from rolecall.threads import thread

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
IDENTITY = ("-c", "user.name=Somebody", "-c", "user.email=some@body", "-c", "gc.auto=0")
DONE: dict[str, Any] = {"output": {"status": "done"}, "body": "Did it."}
AGAIN: dict[str, Any] = {"output": {"status": "again"}, "body": "Not yet."}
STATUS = {"type": "object", "properties": {"status": {"enum": ["done", "again"]}}, "required": ["status"]}


def git(folder: Path | str, *args: str) -> str:
    argv = ["git", "-C", str(folder), *IDENTITY, *args]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout.strip()


class Project:
    """A repository with a committed file in a subfolder, a workflow of one role, and a script for it."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.folder = folder
        self.work = rolecall.home / "work"
        self.repo = folder / "Größe und so"
        self.sub = self.repo / "sub dir"
        self.sub.mkdir(parents=True)
        (self.sub / "ä.txt").write_text("one\n")
        (self.repo / "root.txt").write_text("root\n")
        git(self.repo, "init", "--quiet", "--initial-branch=main")
        self.commit("first")
        self.define("worktree")

    def commit(self, message: str) -> str:
        git(self.repo, "add", "--all")
        git(self.repo, "commit", "--quiet", "-m", message)
        return git(self.repo, "rev-parse", "HEAD")

    def define(self, workdir: str | None, *, location: str | None = None) -> None:
        begin = {"role": "worker", "location": location}
        definition = {
            "name": "do-work",
            "description": "Works.",
            "roles": {"worker": {"goal": "Work.", "meta": STATUS, "workdir": workdir}},
            "graph": {"$START": begin, "worker": {"done": "$END", "again": begin}},
            "limits": {"steps": 9},
        }
        (self.folder / "do-work.yaml").write_text(json.dumps(definition))

    def script(self, *entries: dict[str, Any], name: str = "script") -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"roles": {"worker": list(entries)}}))
        return f"scripted:{path}"

    def words(self, agent: str, cwd: Path | None = None) -> list[str]:
        file = str(self.folder / "do-work.yaml")
        named = ["--cwd", str(cwd or self.sub), "--agent", agent]
        return ["thread", "start", file, "-p", "Fix the bug", *named]

    def start(self, *entries: dict[str, Any], cwd: Path | None = None, name: str = "script") -> str:
        return str(self.rolecall.json(*self.words(self.script(*entries, name=name), cwd))["thread"])

    def run(self, *entries: dict[str, Any], cwd: Path | None = None) -> str:
        ident = self.start(*entries, cwd=cwd)
        self.rolecall("thread", "run", ident, check=0)
        return ident

    def worked_in(self, kind: str = "worktree", *, commit: bool = False, rest: str = "") -> str:
        """A thread in whose folder a file was changed, and perhaps committed, and another one added."""
        ident = self.start(DONE)
        folder = Path(self.state(ident)["folders"][kind]["cwd"])
        (folder / "ä.txt").write_text("two\n")
        if commit:
            git(folder, "commit", "--quiet", "--all", "-m", "two")
        if rest:
            (folder / rest).write_text("new\n")
        return ident

    def state(self, ident: str) -> Mapping[str, Any]:
        with self.store() as store:
            return thread.find(store, ident).ref.state

    def store(self) -> Store:
        return stores.open_store(str(self.rolecall.home / "store.db"))

    def tree(self, ident: str) -> Path:
        """The folder in which the worker of the thread works."""
        return self.work / ident / "tree" / "sub dir"

    def threads(self) -> list[str]:
        with self.store() as store:
            return [ref.name[7:] for ref in store.refs("thread/")]

    def is_bare_of_traces(self) -> bool:
        left = list(self.work.rglob("*")) if self.work.exists() else []
        return not left and git(self.repo, "branch", "--list", "rolecall/*") == ""

    def folder_verb(self, verb: str, ident: str, *more: str, check: int = 0) -> Any:
        done = self.rolecall("thread", "folder", verb, ident, *more, "--json", check=check)
        return json.loads(done.stdout) if check == 0 else done.stderr

    def events(self, ident: str, kind: str) -> list[dict[str, Any]]:
        with self.store() as store:
            return [dict(event.body) for event in store.events(ident) if event.kind == kind]


def edit(text: str, **more: Any) -> dict[str, Any]:
    return {**DONE, "edit": {"ä.txt": text}, **more}


def run_git(*args: str) -> list[str]:
    return ["git", *IDENTITY, *args]


@pytest.fixture
def project(rolecall: Rolecall, tmp_path: Path) -> Project:
    return Project(rolecall, tmp_path)


def test_a_finished_run_names_the_files_of_the_worktree_and_the_command_that_merges_it(
    project: Project,
) -> None:
    ident = project.start({**DONE, "run": [["sh", "-c", "echo two > ä.txt; echo new > made.txt"]]})
    text = project.rolecall("thread", "run", ident, "--format", "text", check=0).stdout
    assert "\nfiles changed: sub dir/made.txt +1 -0, sub dir/ä.txt +1 -1\n" in text
    assert text.endswith(f"\nmerge it: rolecall thread folder merge {ident}\n")
    project.folder_verb("merge", ident)
    project.folder_verb("remove", ident)
    done = project.rolecall("thread", "run", ident, "--format", "json", check=0)
    result = json.loads(done.stdout.splitlines()[-1])["result"]
    assert (result["files"], result["merge"]) == ([], None)


# -- starting --


def test_a_role_works_in_the_threads_own_worktree_on_its_own_branch(project: Project) -> None:
    ident = project.run(edit("two\n", run=[run_git("commit", "-qam", "by the agent")]))
    shown = project.state(ident)
    path = project.work / ident / "tree"
    assert shown["folders"] == {
        "worktree": {
            "path": str(path),
            "cwd": str(path / "sub dir"),
            "source": str(project.repo),
            "branch": f"rolecall/{ident}",
            "base": git(project.repo, "rev-parse", "main"),
        }
    }
    assert (path / "sub dir" / "ä.txt").read_text() == "two\n"
    assert git(project.repo, "log", "-1", "--format=%s", f"rolecall/{ident}") == "by the agent"
    assert (project.sub / "ä.txt").read_text() == "one\n"
    assert git(project.repo, "status", "--porcelain") == ""
    assert git(project.repo, "log", "--format=%s", "main") == "first"
    steps = project.rolecall.json("thread", "step-details", f"{ident}#1")
    assert steps["cwd"] == str(path / "sub dir")


def test_the_folder_is_shown_listed_and_exported(project: Project) -> None:
    ident = project.start(DONE)
    folders = project.state(ident)["folders"]
    assert project.rolecall.json("thread", "show", ident)["folders"] == folders
    assert [listed["folders"] for listed in project.rolecall.json("thread", "list")] == [folders]
    line = f"{folders['worktree']['path']} on rolecall/{ident}"
    assert line in project.rolecall("thread", "show", ident, "--format", "text").stdout
    for name in ("report.md", "report.html"):
        project.rolecall("thread", "export", ident, str(project.folder / name), check=0)
        assert line in (project.folder / name).read_text()


def test_a_page_has_the_files_and_the_differences_of_the_worktree_and_the_path_taken(
    project: Project,
) -> None:
    ident = project.run(AGAIN, edit("two\n"))
    path = project.folder / "report.html"
    project.rolecall("thread", "export", ident, str(path), check=0)
    page = path.read_text()
    assert "<li><code>sub dir/ä.txt</code></li>" in page
    assert '<span class="less">-one</span><span class="more">+two</span>' in page
    (graph,) = re.findall('src="data:image/svg\\+xml;base64,([^"]+)"', page)
    svg = b64decode(graph).decode()
    assert svg.count('<g class="taken">') == 6  # $START, worker and $END, and the three ways between them
    shutil.rmtree(project.repo)
    result = project.rolecall("thread", "export", ident, str(path), "--force", check=0)
    assert "warning: the thread's worktree is not in the report" in result.stderr


def test_threads_that_run_at_once_do_not_meet(project: Project) -> None:
    idents = [project.start(edit(f"{number}\n"), name=f"script{number}") for number in range(2)]
    env = {**os.environ, "ROLECALL_HOME": str(project.rolecall.home)}
    children = [
        subprocess.Popen([PROGRAM, "thread", "run", ident], env=env, stdout=subprocess.DEVNULL)
        for ident in idents
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    trees = [project.tree(ident) for ident in idents]
    assert len(set(trees)) == 2
    assert [(tree / "ä.txt").read_text() for tree in trees] == ["0\n", "1\n"]
    assert (project.sub / "ä.txt").read_text() == "one\n"


def test_threads_that_begin_alike_say_once_what_they_begin_without(project: Project) -> None:
    (project.repo / "new.txt").write_text("mine\n")
    (project.repo / "prompts.txt").write_text("one\ntwo\nthree\n")
    words = project.words(project.script(DONE))
    flow = words[words.index("start") + 1]
    done = project.rolecall(
        "run", flow, "--each", str(project.repo / "prompts.txt"), *words[words.index("--cwd") :]
    )
    assert done.stderr.count("begins without") == 1


def test_changes_that_are_not_committed_are_left_out_and_told(project: Project) -> None:
    (project.sub / "ä.txt").write_text("mine\n")
    (project.repo / "new.txt").write_text("mine\n")
    done = project.rolecall(*project.words(project.script(DONE)), "--json", check=0)
    assert (
        f"note: the thread's worktree begins without 2 uncommitted changes in {project.repo}" in done.stderr
    )
    ident = json.loads(done.stdout)["thread"]
    assert project.state(ident)["folders"]["worktree"]["omitted"] == 2
    assert (project.tree(ident) / "ä.txt").read_text() == "one\n"
    assert (project.sub / "ä.txt").read_text() == "mine\n"


def test_the_location_of_an_edge_is_seen_from_the_roles_folder(project: Project) -> None:
    project.define("worktree", location="sub dir")
    ident = project.run(edit("two\n"), cwd=project.repo)
    assert (project.tree(ident) / "ä.txt").read_text() == "two\n"


def test_a_role_that_shares_works_where_the_thread_was_started(project: Project) -> None:
    project.define(None)
    ident = project.run(edit("two\n"))
    assert "folders" not in project.state(ident)
    assert (project.sub / "ä.txt").read_text() == "two\n"
    assert project.is_bare_of_traces()


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("plain", "is not in a git repository, so it cannot have worktrees"),
        ("empty", "has no commit"),
        ("bare", "bare repository"),
        ("untracked", "'new' is not in the commit"),
    ],
)
def test_where_a_worktree_cannot_be_nothing_is_started(project: Project, place: str, told: str) -> None:
    folder = project.repo / "new" if place == "untracked" else project.folder / place
    folder.mkdir()
    if place in ("empty", "bare"):
        git(folder, "init", "--quiet", *(["--bare"] if place == "bare" else []))
    done = project.rolecall(*project.words(project.script(DONE), folder), check=2)
    assert told in done.stderr
    assert "workdir: copy" in done.stderr or place == "bare"
    assert project.threads() == []
    assert project.is_bare_of_traces()


def test_a_branch_that_stands_in_the_way_is_told_and_nothing_is_left(project: Project) -> None:
    git(project.repo, "branch", "rolecall")
    done = project.rolecall(*project.words(project.script(DONE)), check=5)
    assert "git worktree failed" in done.stderr and "rolecall" in done.stderr
    assert project.threads() == []
    assert project.is_bare_of_traces()


def as_a_plain_user() -> list[str]:
    """Root may write everywhere; without these two capabilities it may not."""
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.parametrize(("kind", "code"), [("worktree", 5), ("copy", 0)])
def test_a_repository_that_cannot_be_written_has_copies_but_no_worktrees(
    project: Project, kind: str, code: int
) -> None:
    project.define(kind)
    folders = [project.repo, *(path for path in project.repo.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    argv = [*as_a_plain_user(), PROGRAM, *project.words(project.script(DONE), project.repo)]
    env = {**os.environ, "ROLECALL_HOME": str(project.rolecall.home)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    for folder in folders:
        folder.chmod(0o755)
    assert done.returncode == code, done.stderr
    if code:
        assert "git worktree failed" in done.stderr and "unable to create" in done.stderr
        assert project.threads() == []
        assert project.is_bare_of_traces()


def test_variables_of_a_hook_do_not_lead_to_its_repository(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    env = {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other), "GIT_INDEX_FILE": str(other / "x")}
    ident = project.rolecall.json(*project.words(project.script(edit("two\n"))), env=env)["thread"]
    project.rolecall("thread", "run", ident, check=0)
    project.rolecall("thread", "folder", "merge", ident, env=env, check=0)
    assert (project.sub / "ä.txt").read_text() == "two\n"
    assert git(other, "for-each-ref") == ""


# -- dying while they are made --

KILLERS = {
    "before": "kill -9 $PPID; exit 1",
    "halfway": '"$real" "$@" && find "$HALF" -type f -delete; kill -9 $PPID; exit 1',
    "after": '"$real" "$@"; kill -9 $PPID; exit 1',
}


@pytest.mark.parametrize(
    ("kind", "moment"), [*(("worktree", moment) for moment in KILLERS), ("copy", "halfway")]
)
def test_killed_between_the_thread_and_its_folder_the_next_step_makes_it(
    project: Project, tmp_path: Path, kind: str, moment: str
) -> None:
    program = "git" if kind == "worktree" else "cp"
    project.define(kind)
    killer = tmp_path / "bin" / program
    killer.parent.mkdir()
    is_meant = 'case " $* " in *" worktree add "*|*" -a "*) ;; *) exec "$real" "$@";; esac'
    killer.write_text(f"#!/bin/sh\nreal={shutil.which(program)}\n{is_meant}\n{KILLERS[moment]}\n")
    killer.chmod(0o755)
    env = {"PATH": f"{killer.parent}:{os.environ['PATH']}", "HALF": str(project.work)}
    died = project.rolecall(*project.words(project.script(edit("two\n"))), env=env)
    assert died.returncode == -9
    (ident,) = project.threads()
    folder = project.state(ident)["folders"][kind]
    assert not Path(f"{folder['path']}.made").exists()
    project.rolecall("thread", "run", ident, check=0)
    assert Path(folder["cwd"], "ä.txt").read_text() == "two\n"
    assert os.listdir(folder["cwd"]) == ["ä.txt"]
    if kind == "worktree":
        assert git(folder["path"], "status", "--porcelain").split(maxsplit=1)[0] == "M"
        assert git(project.repo, "worktree", "list", "--porcelain").count("\nworktree ") == 1


# -- gone --


def test_a_worktree_that_is_gone_before_anybody_worked_in_it_is_made_again(project: Project) -> None:
    ident = project.start(edit("two\n"))
    shutil.rmtree(project.work)
    project.rolecall("thread", "run", ident, check=0)
    assert (project.tree(ident) / "ä.txt").read_text() == "two\n"


def test_a_worktree_that_was_worked_in_and_is_gone_suspends_the_thread_until_it_is_back(
    project: Project,
) -> None:
    committing = {**AGAIN, "edit": {"ä.txt": "two\n"}, "run": [run_git("commit", "-qam", "two")]}
    ident = project.start(committing, DONE)
    project.rolecall("thread", "step", ident, check=0)
    tree = project.tree(ident)
    shutil.rmtree(project.work)
    project.rolecall("thread", "run", ident, check=7)
    reason = project.state(ident)["reason"]
    assert "is gone, and so are uncommitted changes in it" in reason
    forked = project.rolecall("thread", "fork", ident, "--json", check=0)
    assert "begins without" not in forked.stderr
    assert (project.tree(json.loads(forked.stdout)["thread"]) / "ä.txt").read_text() == "two\n"
    (back,) = re.findall(r"`(git .*?)`", reason)
    subprocess.run(["git", "-C", str(project.repo), "worktree", "prune"], check=True)
    subprocess.run(shlex.split(back), check=True, capture_output=True)
    project.rolecall("thread", "resume", ident, "--run", check=0)
    assert (tree / "ä.txt").read_text() == "two\n"


def test_a_copy_that_was_worked_in_and_is_gone_suspends_the_thread(project: Project) -> None:
    project.define("copy")
    ident = project.start(AGAIN, DONE)
    project.rolecall("thread", "step", ident, check=0)
    shutil.rmtree(project.work)
    project.rolecall("thread", "run", ident, check=7)
    reason = project.state(ident)["reason"]
    assert "is gone, and so is the work in it" in reason
    assert "fork the thread to continue in a new one" in reason


def test_a_thread_whose_worktree_was_removed_goes_on_as_a_fork(project: Project) -> None:
    ident = project.start(edit("two\n"))
    project.folder_verb("remove", ident)
    project.rolecall("thread", "run", ident, check=7)
    assert "was removed by a person" in project.state(ident)["reason"]
    fork = project.rolecall.json("thread", "fork", ident)["thread"]
    project.rolecall("thread", "run", fork, check=0)
    assert (project.tree(fork) / "ä.txt").read_text() == "two\n"


# -- forking --


def test_a_fork_begins_at_the_last_commit_of_the_other_branch(project: Project) -> None:
    ident = project.worked_in(commit=True, rest="rest.txt")
    done = project.rolecall("thread", "fork", ident, "--at", "start", "--json", check=0)
    tip = git(project.repo, "rev-parse", f"rolecall/{ident}")
    tree = project.work / ident / "tree"
    assert f"begins without 1 uncommitted change in {tree}" in done.stderr
    fork = json.loads(done.stdout)["thread"]
    folder = project.state(fork)["folders"]["worktree"]
    assert folder["base"] == tip and folder["from"] == str(tree) and folder["omitted"] == 1
    assert folder["branch"] == f"rolecall/{fork}"
    assert (Path(folder["cwd"]) / "ä.txt").read_text() == "two\n"
    assert not (Path(folder["cwd"]) / "rest.txt").exists()
    # What the fork has as well is not lost with the first.
    project.folder_verb("remove", ident, check=2)
    (tree / "sub dir" / "rest.txt").unlink()
    project.folder_verb("remove", ident)
    assert git(project.repo, "rev-parse", f"rolecall/{fork}") == tip


def test_a_fork_of_a_copy_is_a_copy_of_the_copy(project: Project) -> None:
    project.define("copy")
    ident = project.worked_in("copy")
    fork = project.rolecall.json("thread", "fork", ident, "--at", "start")["thread"]
    folder = project.state(fork)["folders"]["copy"]
    assert folder["source"] == str(project.sub)
    assert folder["from"] == str(project.work / ident / "copy")
    assert Path(folder["path"], "ä.txt").read_text() == "two\n"
    assert (project.sub / "ä.txt").read_text() == "one\n"


# -- looking --


def test_show_and_diff_tell_everything_since_the_beginning(project: Project) -> None:
    ident = project.worked_in(commit=True, rest="new ö.txt")
    (project.repo / "root.txt").write_text("newer\n")
    project.commit("second")
    (folder,) = project.folder_verb("show", ident)["folders"]
    assert (folder["kind"], folder["state"]) == ("worktree", "there")
    assert (folder["into"], folder["ahead"], folder["behind"]) == ("main", 1, 1)
    assert (folder["checkedOut"], folder["uncommitted"]) == (f"rolecall/{ident}", ["sub dir/new ö.txt"])
    diff = project.folder_verb("diff", ident)["diff"]
    assert "-one\n+two\n" in diff and "+new\n" in diff and "root.txt" not in diff
    assert git(folder["path"], "diff", "--cached", "--name-only") == ""
    text = project.rolecall("thread", "folder", "show", ident, "--format", "text", check=0).stdout
    assert "1 ahead of main, 1 behind" in text and "new ö.txt" in text


def test_show_and_diff_of_a_copy_compare_it_with_what_it_was_copied_from(project: Project) -> None:
    project.define("copy")
    ident = project.worked_in("copy", rest="new ö.txt")
    (folder,) = project.folder_verb("show", ident)["folders"]
    assert (folder["kind"], folder["state"]) == ("copy", "there")
    assert folder["changes"] == ["added new ö.txt", "changed ä.txt"]
    diff = project.folder_verb("diff", ident)["diff"]
    assert "-one\n+two\n" in diff and "+new\n" in diff


def test_show_tells_what_is_wrong_with_the_repository(project: Project) -> None:
    ident = project.start(DONE)
    shutil.rmtree(project.repo / ".git")
    (folder,) = project.folder_verb("show", ident)["folders"]
    assert folder["state"] == "there" and "not a git repository" in folder["problem"]
    project.folder_verb("remove", ident, check=5)
    assert project.folder_verb("remove", ident, "--force")["removed"] == [folder["path"]]


def test_a_thread_that_shares_its_folder_has_none_to_look_at(project: Project) -> None:
    project.define("shared")
    ident = project.start(DONE)
    assert project.folder_verb("show", ident)["folders"] == []
    assert "has no folder of its own" in project.folder_verb("diff", ident, check=2)
    refused = project.folder_verb("merge", ident, check=2)
    assert "has no worktree to merge" in refused and "its changes are already there" in refused
    assert project.folder_verb("remove", ident) == {"thread": ident, "removed": [], "kept": []}


# -- merging --


def hook(project: Project, name: str, script: str) -> None:
    path = project.repo / ".git" / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_merge_commits_what_is_left_and_keeps_the_worktree(project: Project) -> None:
    hook(project, "pre-commit", "exit 1")
    hook(project, "post-merge", "echo ran > ../merged.txt")
    ident = project.worked_in()
    (project.repo / "root.txt").write_text("mine\n")  # not touched by the merge
    merged = project.folder_verb("merge", ident)
    head = git(project.repo, "rev-parse", "main")
    branch = f"rolecall/{ident}"
    assert merged == {
        "thread": ident, "branch": branch, "into": "main", "committed": True, "head": head, "merged": True,
    }  # fmt: skip
    assert (project.sub / "ä.txt").read_text() == "two\n"
    assert (project.repo / "root.txt").read_text() == "mine\n"
    reported = git(project.repo, "log", "-1", "--format=%an <%ae> %s", branch)
    assert reported == f"Rolecall <rolecall@localhost> Thread {ident}: Fix the bug"
    assert (project.folder / "merged.txt").read_text() == "ran\n"
    assert (project.tree(ident) / "ä.txt").exists()
    assert [event["head"] for event in project.events(ident, "folder_merged")] == [head]
    assert project.folder_verb("merge", ident)["merged"] is False


def test_merge_is_in_the_users_name_where_git_knows_one(project: Project) -> None:
    git(project.repo, "config", "user.name", "Änne")
    git(project.repo, "config", "user.email", "aenne@example.org")
    ident = project.worked_in()
    (project.repo / "root.txt").write_text("newer\n")
    project.commit("second")
    project.folder_verb("merge", ident)
    reported = git(project.repo, "log", "-2", "--topo-order", "--format=%an %s", "main").splitlines()
    assert reported == [f"Änne Merge thread {ident}: Fix the bug", f"Änne Thread {ident}: Fix the bug"]


def test_a_conflict_leaves_the_repository_as_it_was(project: Project) -> None:
    ident = project.worked_in()
    (project.sub / "ä.txt").write_text("three\n")
    head = project.commit("second")
    (project.repo / "root.txt").write_text("mine\n")
    reported = project.folder_verb("merge", ident, check=2)
    assert f"rolecall/{ident} could not be merged into main: conflicts in sub dir/ä.txt" in reported
    assert f"merge rolecall/{ident}`" in reported
    assert git(project.repo, "rev-parse", "HEAD") == head
    assert not (project.repo / ".git" / "MERGE_HEAD").exists()
    assert git(project.repo, "status", "--porcelain") == "M root.txt"
    assert (project.sub / "ä.txt").read_text() == "three\n"
    # Nothing of the thread's work is lost: it is committed on its branch.
    assert git(project.repo, "show", f"rolecall/{ident}:sub dir/ä.txt") == "two"


def test_merge_does_not_overwrite_what_the_user_has_not_committed(project: Project) -> None:
    ident = project.worked_in()
    (project.sub / "ä.txt").write_text("mine\n")
    head = git(project.repo, "rev-parse", "HEAD")
    reported = project.folder_verb("merge", ident, check=2)
    assert "git did not begin to merge" in reported and "overwritten" in reported
    assert (project.sub / "ä.txt").read_text() == "mine\n"
    assert git(project.repo, "rev-parse", "HEAD") == head


def test_merge_needs_both_sides_on_their_branches_and_at_rest(project: Project) -> None:
    ident = project.worked_in()
    tree = project.tree(ident)
    git(tree, "switch", "--quiet", "-c", "elsewhere")
    reported = project.folder_verb("merge", ident, check=2)
    assert f"has elsewhere checked out instead of rolecall/{ident}" in reported
    git(tree, "switch", "--quiet", f"rolecall/{ident}")
    git(project.repo, "switch", "--quiet", "--detach")
    assert "no branch is checked out" in project.folder_verb("merge", ident, check=2)
    git(project.repo, "switch", "--quiet", "main")
    (project.repo / ".git" / "MERGE_HEAD").write_text(git(project.repo, "rev-parse", "main") + "\n")
    assert "in the middle of another merge" in project.folder_verb("merge", ident, check=2)
    assert (project.repo / ".git" / "MERGE_HEAD").exists()
    assert git(tree, "status", "--porcelain") != ""


def test_neither_merge_nor_remove_while_the_thread_runs(project: Project) -> None:
    ident = project.start({"hang": True, "emit": [{"kind": "text", "text": "thinking"}]})
    env = {**os.environ, "ROLECALL_HOME": str(project.rolecall.home)}
    argv = [PROGRAM, "thread", "run", ident, "--json"]
    child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        assert any('"text"' in line for line in iter(child.stdout.readline, ""))
        for verb in (["merge"], ["remove"], ["remove", "--force"]):
            reported = project.folder_verb(verb[0], ident, *verb[1:], check=5)
            assert f"is being run by process {child.pid}" in reported
    finally:
        child.terminate()
        child.communicate(timeout=60)
    assert project.tree(ident).is_dir()


# -- removing --


def test_remove_refuses_to_lose_work_and_removes_what_was_merged(project: Project) -> None:
    ident = project.worked_in(commit=True, rest="rest.txt")
    reported = project.folder_verb("remove", ident, check=2)
    assert "would lose 1 uncommitted change in" in reported
    assert "1 commit that is not on any other branch" in reported
    path = project.work / ident / "tree"
    assert path.is_dir()
    project.folder_verb("merge", ident)
    assert project.folder_verb("remove", ident) == {"thread": ident, "removed": [str(path)], "kept": []}
    assert project.is_bare_of_traces()
    assert git(project.repo, "worktree", "list", "--porcelain").count("worktree ") == 1
    assert project.state(ident)["folders"]["worktree"]["removed"] is True
    assert project.folder_verb("show", ident)["folders"][0]["state"] == "removed"
    assert len(project.events(ident, "folder_removed")) == 1
    assert project.folder_verb("remove", ident)["removed"] == []
    assert len(project.events(ident, "folder_removed")) == 1


def test_remove_by_force_removes_what_nobody_else_has(project: Project) -> None:
    ident = project.worked_in()
    git(project.tree(ident), "switch", "--quiet", "--detach")
    git(project.tree(ident), "commit", "--quiet", "--all", "-m", "on no branch at all")
    assert "1 commit that is not on any other branch" in project.folder_verb("remove", ident, check=2)
    project.folder_verb("remove", ident, "--force")
    assert git(project.repo, "branch", "--list", "rolecall/*") == ""
    assert project.events(ident, "folder_removed")[0]["force"] is True


def test_a_branch_that_is_checked_out_elsewhere_is_kept_and_told(project: Project) -> None:
    ident = project.start(DONE)
    git(project.tree(ident), "switch", "--quiet", "--detach")
    git(project.repo, "switch", "--quiet", f"rolecall/{ident}")
    done = project.rolecall("thread", "folder", "remove", ident, "--json", check=0)
    assert json.loads(done.stdout)["kept"] == [f"rolecall/{ident}"]
    assert f"the branch rolecall/{ident} is kept" in done.stderr


def test_a_copy_with_work_in_it_is_only_removed_by_force(project: Project) -> None:
    project.define("copy")
    project.folder_verb("remove", project.start(DONE))
    ident = project.worked_in("copy")
    reported = project.folder_verb("remove", ident, check=2)
    assert "the differences in" in reported and "changed ä.txt" in reported
    path = str(project.work / ident / "copy")
    assert project.folder_verb("remove", ident, "--force")["removed"] == [path]
    assert list(project.work.iterdir()) == []


def test_a_removal_that_was_interrupted_is_finished_by_another(project: Project) -> None:
    ident = project.start(DONE)
    path = project.work / ident / "tree"
    project.folder_verb("remove", ident)
    path.mkdir(parents=True)  # as if the first had died right after it was recorded
    (path / "rest").write_text("")
    assert project.folder_verb("show", ident)["folders"][0]["state"] == "half removed"
    assert project.folder_verb("remove", ident)["removed"] == [str(path)]
    assert list(project.work.iterdir()) == []


# -- pruning --


def prune(project: Project, *options: str) -> Any:
    return project.rolecall.json("thread", "folder", "prune", *options, "--json")


def test_prune_removes_what_is_merged_and_keeps_the_rest_with_the_reason(project: Project) -> None:
    merged, open_work = project.worked_in(commit=True), project.worked_in(commit=True)
    waiting = project.worked_in(commit=True)
    for ident in (merged, open_work, waiting):  # commits of the same second would be the same commit
        git(project.tree(ident), "commit", "--quiet", "--amend", "-m", ident)
    untouched, dirty = project.run(DONE), project.worked_in(rest="rest.txt")
    for ident in (merged, open_work, dirty):
        project.rolecall("thread", "run", ident, check=0)
    for ident in (merged, waiting):
        project.folder_verb("merge", ident)

    would = prune(project, "--dry-run")
    assert project.tree(merged).is_dir()
    done = prune(project)
    assert would == {**done, "dryRun": True}
    assert sorted(row["thread"] for row in done["removed"]) == sorted([merged, untouched])
    assert done["removed"][0].keys() == {"thread", "folders", "branches"}
    why = {row["thread"]: row["why"] for row in done["kept"]}
    assert why == {
        open_work: "1 commit that is not merged into any branch",
        dirty: f"2 uncommitted changes in {project.work / dirty / 'tree'}",
        waiting: "the thread is idle and can still continue",
    }
    assert not (project.work / merged).exists()
    assert (project.tree(open_work) / "ä.txt").read_text() == "two\n"
    branches = git(project.repo, "branch", "--list", "rolecall/*", "--format=%(refname:short)").splitlines()
    assert sorted(branches) == sorted(f"rolecall/{ident}" for ident in why)
    assert prune(project)["removed"] == []


def test_prune_keeps_a_repository_inside_a_worktree_to_which_the_branch_has_only_a_link(
    project: Project,
) -> None:
    ident = project.worked_in(commit=True)
    tree = project.tree(ident)
    inner = tree / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    git(inner, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "--allow-empty", "-m", "inner")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", "link")
    project.rolecall("thread", "run", ident, check=0)
    git(project.repo, "merge", "--quiet", f"rolecall/{ident}")
    lost = f"the repository {tree.name}/inner in {tree.parent}"
    assert prune(project)["kept"] == [{"thread": ident, "why": lost}]
    refused = project.rolecall("thread", "folder", "remove", ident, check=2)
    assert f"would lose {lost}" in refused.stderr


def test_prune_does_not_take_the_branch_of_another_thread_for_a_merge(project: Project) -> None:
    ident = project.worked_in(commit=True)
    project.rolecall("thread", "run", ident, check=0)
    fork = project.rolecall.json("thread", "fork", ident, "--at", "start")["thread"]
    project.rolecall("thread", "run", fork, check=0)
    assert git(project.tree(fork), "rev-parse", "HEAD") == git(project.tree(ident), "rev-parse", "HEAD")
    assert sorted(row["thread"] for row in prune(project)["kept"]) == sorted([ident, fork])


def test_prune_keeps_folders_whose_repository_is_gone_and_says_so(project: Project) -> None:
    ident = project.run(DONE)
    shutil.move(project.repo, project.folder / "elsewhere")
    done = project.rolecall("thread", "folder", "prune", check=0)
    assert f"kept {ident}: " in done.stdout
    assert (project.work / ident / "tree").is_dir()


def test_prune_finishes_a_removal_and_keeps_a_branch_that_is_checked_out(project: Project) -> None:
    half, held = project.run(DONE), project.run(DONE)
    project.folder_verb("remove", half)
    (project.work / half / "tree").mkdir(parents=True)
    git(project.tree(held), "switch", "--quiet", "--detach")
    git(project.repo, "switch", "--quiet", f"rolecall/{held}")
    done = prune(project)
    assert [row["thread"] for row in done["removed"]] == sorted([half, held])
    assert done["kept"] == [
        {"thread": held, "why": f"the branch rolecall/{held} is checked out somewhere else"}
    ]
    assert list(project.work.iterdir()) == []
