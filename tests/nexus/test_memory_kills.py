"""A deletion killed at every step: no text is lost, the user's own changes stay, and asking again finishes it.

Run as a program, this file plays the one that is killed:

    python test_memory_kills.py FOLDER SCENARIO NEXT      die at every step in turn, say what is left each time
    python test_memory_kills.py once PROJECT SCENARIO     play a scenario once
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import project_child
import pytest

from rolecall.errors import RolecallError
from rolecall.nexus import memory, memory_access, memory_gc
from rolecall.settings.mask import Mask

LIMITS = "The upstream API answers 429 after 60 requests a minute; back off exponentially.\n"
STEPS = "Bump the version, tag the commit, build the wheel and run the smoke test.\n"
WHEELS = "Wheels need a clean tree.\n"
QUEUES = "Timers of the queue are dropped when a worker restarts.\n"
GIT = shutil.which("git") or "git"

SCENARIOS: dict[str, Callable[[Path], object]] = {
    "delete": lambda project: memory_gc.delete(project, ["release-steps"]),
    "merge": lambda project: memory.merge(project, "retry-limits", "release-steps"),
    "merge into": lambda project: memory.merge(
        project, "retry-limits", "release-steps", into="all-the-steps"
    ),
}
WORK: dict[str, Callable[[Path], object]] = {
    **SCENARIOS,
    "add a note": lambda project: memory.add(project, "wheel-builds", WHEELS, mask=Mask([])),
}
NEXT: dict[str, Callable[[Path], object]] = {
    **SCENARIOS,
    "add": lambda project: memory.add(project, "queue-timers", QUEUES, mask=Mask([])),
}


def git(folder: Path, *args: str) -> str:
    done = subprocess.run([GIT, "-C", str(folder), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout.rstrip("\n")


def seed(folder: Path) -> Path:
    """Two notes that are committed and were read, and a user who has staged and changed other files."""
    project = folder / "project"
    (project / ".nexus" / "memory").mkdir(parents=True)
    git(project, "init", "--quiet", "--initial-branch=main", "--template=")
    git(project, "config", "user.name", "Ada")
    git(project, "config", "user.email", "ada@example.org")
    (project / ".nexus" / ".gitignore").write_text("state/\n")
    (project / ".nexus" / "memory" / "retry-limits.md").write_text(LIMITS)
    (project / ".nexus" / "memory" / "release-steps.md").write_text(STEPS)
    (project / "README.md").write_text("# Project\n")
    (project / "other.txt").write_text("one\n")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "All")
    for name in ("retry-limits", "release-steps"):
        memory.read(project, name)
    (project / "README.md").write_text("# Staged\n")
    (project / "new.txt").write_text("new\n")
    git(project, "add", "README.md", "new.txt")
    (project / "other.txt").write_text("two\n")
    return project


USERS_OWN = ["A  new.txt", "M  README.md", " M other.txt"]


# -- the one that is killed --


LOOKING = {"rev-parse", "ls-files", "var", "merge-base", "symbolic-ref", "log"}


class Fuse(project_child.Fuse):
    """Burns at links, renames and whatever git is told to do as well. Looking is no step: who is killed before
    it leaves what whoever is killed after it does."""

    is_calling = False

    def burn(self) -> None:
        if not self.is_calling:
            super().burn()

    def lay(self) -> None:
        super().lay()
        for name in ("link", "rename", "utime"):
            setattr(os, name, self.around(getattr(os, name)))
        subprocess.run = self.around_git(subprocess.run)

    def around_git(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def burning(command: list[str], **options: Any) -> Any:
            if not LOOKING.intersection(command):
                self.burn()
            self.is_calling = True  # what it takes to start a process is no step either
            try:
                return call(command, **options)
            finally:
                self.is_calling = False

        return burning


def state(project: Path) -> dict[str, Any]:
    notes = {path.name: path.read_text() for path in (project / ".nexus" / "memory").iterdir()}
    ours = project / ".nexus" / "state" / "rolecall"
    return {
        "notes": notes,
        "commits": git(project, "log", "--format=%s").splitlines(),
        "in git": {
            name: git(project, "show", f"HEAD^{{/All}}:.nexus/memory/{name}") + "\n" for name in BEFORE
        },
        "status": sorted(git(project, "status", "--porcelain").splitlines()),
        "left in git": sorted(path.name for path in (project / ".git").glob("index?*")),
        "left in state": sorted(path.name for path in ours.iterdir()),
        "reads": {
            Path(path).name: access.access_count for path, access in memory_access.read(project).items()
        },
    }


def kill_everywhere(folder: Path, scenario: str, next_work: str) -> None:
    project_child.Fuse = Fuse  # type: ignore[misc]
    template = seed(folder / "template")
    step = 0
    while True:
        step += 1
        project = shutil.copytree(template, folder / str(step) / "project")
        move_log(project, template)
        acknowledged = project_child.is_acknowledged(lambda: WORK[scenario](project), step)  # noqa: B023
        if acknowledged is None:
            return
        left, said = state(project), None
        try:
            said = NEXT[next_work](project)
        except RolecallError as error:
            said = error.message
        print(json.dumps({"left": left, "then": state(project), "said": said}))
        shutil.rmtree(project.parent)


def move_log(project: Path, template: Path) -> None:
    """The log of reads knows notes by their whole path."""
    log = project / ".nexus" / "state" / "rolecall" / "memory-access.jsonl"
    log.write_text(log.read_text().replace(str(template), str(project)))


# -- at every step --


@pytest.fixture
def folder() -> Iterator[Path]:
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as name:
        yield Path(name)


def kills(folder: Path, scenario: str, next_work: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, __file__, str(folder), scenario, next_work],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= 15
    return found


BEFORE = {"retry-limits.md": LIMITS, "release-steps.md": STEPS}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_loses_no_text_and_nothing_of_the_user(folder: Path, scenario: str) -> None:
    outcomes = set()
    for kill in kills(folder, scenario, "add"):
        left, then = kill["left"], kill["then"]
        is_made = len(left["commits"]) == 2
        outcomes.add(is_made)
        if is_made:
            assert "release-steps.md" not in left["notes"]
        assert left["in git"] == BEFORE, "every note can be brought back"
        assert {line for line in left["status"] if ".nexus" not in line} == set(USERS_OWN)
        assert then["notes"]["queue-timers.md"] == QUEUES
        assert then["left in git"] == []
        assert then["left in state"] == ["lock", "memory-access.jsonl"]
    assert outcomes == {False, True}


def test_after_a_kill_the_same_deletion_is_done_once(folder: Path) -> None:
    for kill in kills(folder, "delete", "delete"):
        then = kill["then"]
        assert then["notes"] == {"retry-limits.md": LIMITS}
        assert len(then["commits"]) == 2
        assert then["status"] == sorted(USERS_OWN)
        if isinstance(kill["said"], str):
            assert "release-steps.md does not exist" in kill["said"] and len(kill["left"]["commits"]) == 2
        else:
            assert then["reads"] == {"retry-limits.md": 1}


def test_a_kill_of_whoever_adds_a_note_leaves_it_whole_or_not_at_all_and_nothing_else_for_long(
    folder: Path,
) -> None:
    outcomes = set()
    for kill in kills(folder, "add a note", "add"):
        left, then = kill["left"], kill["then"]
        added = left["notes"].get("wheel-builds.md")
        outcomes.add(added)
        assert then["notes"].get("wheel-builds.md") == added
        assert then["left in state"] == ["lock", "memory-access.jsonl"]
    assert outcomes == {None, WHEELS}


def deadly_git(folder: Path, verb: str, action: str) -> dict[str, str]:
    """An environment where git, asked for `verb`, does an action of the shell instead."""
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'for word in "$@"; do if [ "$word" = {verb} ]; then {action}; exit 1; fi; done\n'
        f'exec {shlex.quote(GIT)} "$@"\n'
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def play(project: Path, scenario: str, env: dict[str, str]) -> int:
    command = [sys.executable, __file__, "once", str(project), scenario]
    return subprocess.run(command, env=env, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("verb", ["rm", "commit"])
def test_a_project_is_as_it_was_when_git_refuses(folder: Path, scenario: str, verb: str) -> None:
    project = seed(folder)
    assert play(project, scenario, deadly_git(folder, verb, "exit 1")) == 1
    assert {path.name: path.read_text() for path in (project / ".nexus" / "memory").iterdir()} == BEFORE
    assert sorted(git(project, "status", "--porcelain").splitlines()) == sorted(USERS_OWN)


def test_what_the_user_commits_and_stages_in_between_stays(folder: Path) -> None:
    project = seed(folder)
    real = shlex.quote(GIT)
    action = f'cd {shlex.quote(str(project))} && echo x > late.txt && {real} add late.txt && cd - && exec {real} "$@"'
    assert play(project, "delete", deadly_git(folder, "commit", action)) == 0
    assert sorted(git(project, "status", "--porcelain").splitlines()) == sorted([*USERS_OWN, "A  late.txt"])
    assert git(project, "show", "--name-status", "--format=", "HEAD") == "D\t.nexus/memory/release-steps.md"


def main(*args: str) -> None:
    if args[0] == "once":
        print(json.dumps(SCENARIOS[args[2]](Path(args[1]))))
    else:
        kill_everywhere(Path(args[0]), *args[1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
