"""What a role finds after its process was killed: `on_crash`, with the installed program and real kills."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_thread_folder import AGAIN, DONE, STATUS, Project

from rolecall.threads import thread

if TYPE_CHECKING:
    from conftest import Rolecall

# Notes what it finds, changes it, and kills the program that runs it, the first time only.
WORK = """\
cat ä.txt >> "$NOTES/found"; ls >> "$NOTES/files"; echo -- >> "$NOTES/files"
echo more >> ä.txt; echo new > made.txt; rm -f old.txt
if [ ! -e "$NOTES/killed" ]; then touch "$NOTES/killed"; kill -9 $PPID; exec sleep 60; fi
"""


class Crash:
    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.project = Project(rolecall, folder)
        (self.project.sub / "old.txt").write_text("old\n")
        self.project.commit("second")
        self.notes = folder / "notes"
        self.notes.mkdir()

    def define(self, *, of_role: dict[str, Any], **of_workflow: Any) -> None:
        definition = {
            "name": "do-work",
            "description": "Works.",
            "roles": {"worker": {"goal": "Work.", "meta": STATUS, **of_role}},
            "graph": {"$START": "worker", "worker": {"done": "$END", "again": "worker"}},
            **of_workflow,
        }
        (self.project.folder / "do-work.yaml").write_text(json.dumps(definition))

    def run(self, ident: str, check: int, **env: str) -> str:
        given = {"NOTES": str(self.notes), **env}
        return self.project.rolecall("thread", "run", ident, env=given, check=check).stdout

    def start(self, cwd: Path | None = None) -> str:
        return self.project.start({**DONE, "run": [["sh", "-c", WORK]]}, cwd=cwd)

    def found(self) -> list[str]:
        return (self.notes / "found").read_text().split()

    def attempts(self, ident: str) -> list[dict[str, Any]]:
        with self.project.store() as store:
            step = thread.Chain(store, thread.find(store, ident).head).last
            assert step is not None
            node, found = step.payload.get("attempt"), []
            while node:
                found.append(store.get(node).payload)
                node = found[-1].get("previous")
            return found


def replace_git(folder: Path, action: str) -> str:
    """A PATH with a git that does something else when it is to write files."""
    fake = folder / "bin" / "git"
    fake.parent.mkdir()
    is_meant = 'case " $* " in *" checkout-index "*) ;; *) exec "$real" "$@";; esac'
    fake.write_text(f"#!/bin/sh\nreal={shutil.which('git')}\n{is_meant}\n{action}\n")
    fake.chmod(0o755)
    return f"{fake.parent}:{os.environ['PATH']}"


@pytest.fixture
def crash(rolecall: Rolecall, tmp_path: Path) -> Crash:
    return Crash(rolecall, tmp_path)


@pytest.mark.parametrize("kind", ["shared", "worktree", "copy", "no git"])
def test_a_crashed_step_with_restore_starts_from_the_files_that_it_found(
    crash: Crash, tmp_path: Path, kind: str
) -> None:
    crash.define(of_role={"on_crash": "restore"}, workdir="shared" if kind == "no git" else kind)
    cwd = crash.project.sub
    if kind == "no git":
        cwd = tmp_path / "plain"
        shutil.copytree(crash.project.sub, cwd)
    ident = crash.start(cwd)
    crash.run(ident, -9)
    crash.run(ident, 0)
    assert crash.found() == ["one", "one"]
    assert (crash.notes / "files").read_text().split("--\n") == ["old.txt\nä.txt\n"] * 2 + [""]
    own = crash.project.state(ident).get("folders", {})
    folder = Path(own[kind]["cwd"]) if own else cwd
    assert (folder / "ä.txt").read_text() == "one\nmore\n"
    (attempt,) = crash.attempts(ident)
    assert attempt["error"] == (
        "the process that ran this attempt is gone; the files from before the attempt are restored"
    )
    # What was replaced is recorded.
    assert {change[0].rpartition("/")[2]: change[1] for change in attempt["tree"]["changed"]} == {
        "made.txt": "added",
        "old.txt": "removed",
        "ä.txt": "changed",
    }


@pytest.mark.parametrize(
    ("of_workflow", "of_role", "found"),
    [
        (None, None, ["one", "one", "more"]),
        ("restore", None, ["one", "one"]),
        ("restore", "keep", ["one", "one", "more"]),
        ("keep", "restore", ["one", "one"]),
    ],
)
def test_the_role_goes_before_the_workflow_and_files_are_kept_unless_one_of_them_says_otherwise(
    crash: Crash, of_workflow: str | None, of_role: str | None, found: list[str]
) -> None:
    crash.define(of_role={"on_crash": of_role}, on_crash=of_workflow)
    ident = crash.start()
    crash.run(ident, -9)
    crash.run(ident, 0)
    assert crash.found() == found
    ending = "from before the attempt are restored" if len(found) == 2 else "that it changed are kept"
    assert crash.attempts(ident)[0]["error"].endswith(f"; the files {ending}")


@pytest.mark.parametrize("moment", ["before", "amid"])
def test_killed_while_the_files_are_put_back_the_next_process_puts_them_back(
    crash: Crash, tmp_path: Path, moment: str
) -> None:
    crash.define(of_role={"on_crash": "restore"})
    ident = crash.start()
    crash.run(ident, -9)
    action = {"before": "", "amid": '"$real" "$@"; echo half > "$HALF/ä.txt"; '}[moment] + "kill -9 $PPID"
    crash.run(ident, -9, PATH=replace_git(tmp_path, action), HALF=str(crash.project.sub))
    crash.run(ident, 0)
    assert crash.found() == ["one", "one"]
    (attempt,) = crash.attempts(ident)
    assert len(attempt["tree"]["changed"]) == 3  # of the role, not of the process that was putting them back


def test_what_is_not_recorded_is_kept_and_the_attempt_says_so(crash: Crash, tmp_path: Path) -> None:
    crash.define(of_role={"on_crash": "restore"})
    without_git = tmp_path / "bin"
    without_git.mkdir()
    for program in ("env", "sh", "cat", "ls", "rm", "touch", "sleep"):
        (without_git / program).symlink_to(str(shutil.which(program)))
    ident = crash.start()
    crash.run(ident, -9, PATH=str(without_git))
    crash.run(ident, 0)
    assert crash.found() == ["one", "one", "more"]
    assert "kept, because the original files are not on this machine" in crash.attempts(ident)[0]["error"]


def test_files_that_cannot_be_put_back_suspend_the_thread(crash: Crash, tmp_path: Path) -> None:
    crash.define(of_role={"on_crash": "restore"})
    ident = crash.start()
    crash.run(ident, -9)
    path = replace_git(tmp_path, "exit 1")
    assert "cannot be restored" in crash.run(ident, 7, PATH=path)
    env = {"NOTES": str(crash.notes)}
    crash.project.rolecall("thread", "resume", ident, "--run", env=env, check=0)


def test_a_later_step_of_the_thread_is_not_touched(crash: Crash) -> None:
    """Only the step that crashed starts again from what it found, which includes the work of the steps before it."""
    crash.define(of_role={"on_crash": "restore"})
    ident = crash.project.start(
        {**AGAIN, "edit": {"ä.txt": "by the first step\n"}}, {**DONE, "run": [["sh", "-c", WORK]]}
    )
    crash.run(ident, -9)
    crash.run(ident, 0)
    assert (crash.project.sub / "ä.txt").read_text() == "by the first step\nmore\n"
