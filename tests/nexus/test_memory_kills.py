"""A deletion killed at every step: nothing happened, or its commit is there and whoever writes next goes on.

Never is a file gone that no commit took away. Run as a program, this file plays the one that is killed:

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

from rolecall.errors import Damaged, RolecallError, UsageError
from rolecall.nexus import memory, memory_access, memory_gc, state_file
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
STAYING = {"delete": "retry-limits.md", "merge": "retry-limits.md", "merge into": "all-the-steps.md"}
READS = {"delete": 1, "merge": 2, "merge into": 2}


def assert_done(scenario: str, found: dict[str, Any]) -> None:
    """The work is done as if nobody had been killed, and nothing of the dead one is left lying about."""
    notes = {name: text for name, text in found["notes"].items() if name != "queue-timers.md"}
    assert list(notes) == [STAYING[scenario]]
    if scenario == "delete":
        assert notes == {"retry-limits.md": LIMITS}
    else:
        assert all(text in notes[STAYING[scenario]] for text in (LIMITS, STEPS))
    assert len(found["commits"]) == 2
    assert found["reads"] == {STAYING[scenario]: READS[scenario]}


def assert_untouched(found: dict[str, Any]) -> None:
    assert {name: text for name, text in found["notes"].items() if name != "queue-timers.md"} == BEFORE
    assert found["commits"] == ["All"]
    assert found["reads"] == dict.fromkeys(BEFORE, 1)


def assert_clean(found: dict[str, Any], *new: str) -> None:
    """What the user had staged and changed is as it was, and only that."""
    assert found["status"] == sorted([*USERS_OWN, *new])
    assert found["left in git"] == []
    assert found["left in state"] == ["lock", "memory-access.jsonl"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_leaves_everything_or_a_commit_that_the_next_writer_follows(
    folder: Path, scenario: str
) -> None:
    outcomes = set()
    for kill in kills(folder, scenario, "add"):
        left, then = kill["left"], kill["then"]
        is_made = len(left["commits"]) == 2
        outcomes.add((is_made, "release-steps.md" in left["notes"]))
        if not is_made:
            assert left["notes"] == BEFORE, "nothing happened"
            assert left["status"] == sorted(USERS_OWN)
        assert then["notes"]["queue-timers.md"] == QUEUES
        if is_made:
            assert_done(scenario, then)
        else:
            assert_untouched(then)
        assert_clean(then, "?? .nexus/memory/queue-timers.md")
    assert outcomes == {(False, True), (True, True), (True, False)}


@pytest.mark.parametrize("scenario", ["delete", "merge into"])
def test_after_a_kill_the_same_work_is_done_once(folder: Path, scenario: str) -> None:
    refused = []
    for kill in kills(folder, scenario, scenario):
        assert_done(scenario, kill["then"])
        assert_clean(kill["then"])
        refused += [kill["said"]] if isinstance(kill["said"], str) else []
    # Killed when all was done and nothing noted any more, it is told apart from a new request by nobody.
    assert len(refused) <= 3
    assert all("there is no re" in said for said in refused)


# -- after the commit, with the user at work before the next writer --


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


@pytest.fixture
def killed(folder: Path) -> Path:
    """A project whose deletion of a note was killed as soon as its commit was made."""
    project = seed(folder)
    env = deadly_git(folder, "update-ref", f'{shlex.quote(GIT)} "$@" && kill -9 $PPID')
    assert play(project, "delete", env) == -9
    assert git(project, "log", "-1", "--format=%s") == "Delete memory note release-steps.md"
    assert (project / ".nexus" / "memory" / "release-steps.md").read_text() == STEPS
    return project


def add(project: Path) -> dict[str, Any]:
    return memory.add(project, "queue-timers", QUEUES, mask=Mask([]))


def test_whoever_finishes_a_deletion_says_so(killed: Path) -> None:
    (finished,) = add(killed)["finished"]
    assert finished["name"] == "release-steps.md"
    assert finished["commit"] == git(killed, "rev-parse", "HEAD")
    assert not (killed / ".nexus" / "memory" / "release-steps.md").exists()
    subprocess.run(finished["restore"], shell=True, cwd=killed, check=True, capture_output=True)
    assert (killed / ".nexus" / "memory" / "release-steps.md").read_text() == STEPS
    assert "finished" not in memory.add(killed, "wheel-builds", "Wheels need a clean tree.", mask=Mask([]))


def test_a_call_that_fails_says_what_it_finished_before(killed: Path) -> None:
    with pytest.raises(UsageError, match="cannot be merged with itself") as caught:
        memory.merge(killed, "retry-limits", "retry-limits")
    assert "release-steps.md was removed by commit " in caught.value.hint


def test_the_same_deletion_again_is_answered_as_the_first_would_have_been(killed: Path) -> None:
    (deleted,) = memory_gc.delete(killed, ["release-steps"])
    assert (deleted["name"], deleted["commit"]) == ("release-steps.md", git(killed, "rev-parse", "HEAD"))


def test_who_only_looks_is_told_and_changes_nothing(killed: Path) -> None:
    reading = memory.read(killed, "release-steps")
    assert reading.text == STEPS
    assert "the removal of release-steps.md" in reading.warning
    assert "it is finished or taken back when" in reading.warning
    assert "the removal of release-steps.md" in memory.unfinished(killed)
    memory.listed(killed)
    memory_gc.candidates(killed)
    assert (killed / ".nexus" / "memory" / "release-steps.md").exists()
    assert [gone["name"] for gone in memory.finish(killed)] == ["release-steps.md"]
    assert memory.unfinished(killed) == ""
    assert memory.finish(killed) == []


def test_a_lock_of_git_that_the_user_removed_by_hand_is_not_needed(killed: Path) -> None:
    (killed / ".git" / "index.lock").unlink()
    assert "A  .nexus/memory/release-steps.md" in git(killed, "status", "--porcelain")
    add(killed)
    assert_clean(state(killed), "?? .nexus/memory/queue-timers.md")


def test_a_lock_of_git_that_somebody_else_holds_is_left_and_named(killed: Path) -> None:
    lock = killed / ".git" / "index.lock"
    lock.unlink()
    lock.write_text("of somebody else")
    with pytest.raises(RolecallError, match=r"index\.lock"):
        add(killed)
    assert lock.read_text() == "of somebody else"
    assert (killed / ".nexus" / "memory" / "release-steps.md").exists()
    lock.unlink()
    assert [gone["name"] for gone in add(killed)["finished"]] == ["release-steps.md"]


def test_a_note_that_was_changed_after_the_kill_stays_and_is_named(killed: Path) -> None:
    path = killed / ".nexus" / "memory" / "release-steps.md"
    path.write_text(STEPS + "And say so.\n")
    (finished,) = add(killed)["finished"]
    assert "changed" in finished["stays"]
    assert path.read_text() == STEPS + "And say so.\n"
    assert "?? .nexus/memory/release-steps.md" in git(killed, "status", "--porcelain")
    assert memory.unfinished(killed) == ""


def test_a_note_that_the_user_committed_again_stays_and_is_named(killed: Path) -> None:
    (killed / ".git" / "index.lock").unlink()
    git(killed, "commit", "--quiet", "--all", "--message", "Everything")
    (finished,) = add(killed)["finished"]
    assert "in git again" in finished["stays"]
    assert (killed / ".nexus" / "memory" / "release-steps.md").read_text() == STEPS
    assert git(killed, "status", "--porcelain") == "?? .nexus/memory/queue-timers.md"


def test_a_commit_that_the_user_took_back_is_not_followed(killed: Path) -> None:
    (killed / ".git" / "index.lock").unlink()
    git(killed, "reset", "--quiet", "--hard", "HEAD^")
    assert "finished" not in add(killed)
    assert (killed / ".nexus" / "memory" / "release-steps.md").read_text() == STEPS
    assert git(killed, "status", "--porcelain") == "?? .nexus/memory/queue-timers.md"


def test_a_commit_on_a_branch_that_was_left_is_not_followed_but_said(killed: Path) -> None:
    (killed / ".git" / "index.lock").unlink()
    git(killed, "checkout", "--quiet", "--force", "-b", "side", "HEAD^")
    (finished,) = add(killed)["finished"]
    assert "refs/heads/main" in finished["stays"]
    assert (killed / ".nexus" / "memory" / "release-steps.md").read_text() == STEPS


def test_a_repository_that_is_gone_after_the_kill_keeps_its_notes(killed: Path) -> None:
    shutil.rmtree(killed / ".git")
    assert add(killed)["created"]
    assert (killed / ".nexus" / "memory" / "release-steps.md").read_text() == STEPS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gone", [{"name": "../../../outside.md", "blob": "0" * 40, "digest": "0"}]),
        ("new_index", "../../outside"),
        ("commit", "--help"),
        ("branch", "--all"),
        ("more", 1),
        ("gone", 7),
        ("gone", []),
        ("gone", [{"name": "release-steps.md", "blob": "0" * 40, "digest": 5}]),
        ("gone", [{"name": "release-steps.md", "blob": "0" * 40, "digest": None}]),
        ("gone", [{"name": "release-steps.md", "blob": "0" * 40, "digest": "0"}]),
        ("into", {"name": "a-b.md", "mode": "100644", "blob": "0" * 40, "text": 5, "before": None}),
        ("into", {"name": "a-b.md", "mode": "100644", "blob": "0" * 40, "text": None, "before": None}),
        ("into", {"name": "a-b.md", "mode": "100644", "blob": "0" * 40, "text": "x", "before": 5}),
        ("into", {"name": "a-b.md", "mode": "100644", "blob": "0" * 40, "text": "x", "before": None}),
    ],
)
def test_a_note_of_a_removal_that_leads_elsewhere_is_refused(killed: Path, field: str, value: Any) -> None:
    file = killed / ".nexus" / "state" / "rolecall" / "removal.json"
    (killed.parent / "outside.md").write_text("precious\n")
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(RolecallError, match="cannot be used"):
        add(killed)
    assert (killed.parent / "outside.md").read_text() == "precious\n"
    assert (killed / ".nexus" / "memory" / "release-steps.md").exists()


def test_a_removal_that_its_commit_did_not_make_is_not_followed(folder: Path) -> None:
    project = seed(folder)
    steps, limits = (
        project / ".nexus" / "memory" / f"{name}.md" for name in ("release-steps", "retry-limits")
    )
    blobs = [git(project, "rev-parse", f"HEAD:.nexus/memory/{path.name}") for path in (steps, limits)]
    before = state_file.digest(limits.read_bytes())
    forged = {
        "commit": git(project, "rev-parse", "HEAD"),
        "parent": git(project, "rev-parse", "HEAD"),
        "branch": "refs/heads/main",
        "new_index": "index.rolecall-0123456789abcdef",
        "gone": [
            {"name": steps.name, "blob": blobs[0], "digest": state_file.digest(steps.read_bytes())},
        ],
        "into": {"name": limits.name, "mode": "100644", "blob": blobs[1], "text": "FORGED", "before": before},
    }
    texts = [steps.read_text(), limits.read_text()]
    write_removal(project, forged)
    with pytest.raises(Damaged, match=r"cannot be used: commit .* did not remove"):
        add(project)
    assert [steps.read_text(), limits.read_text()] == texts
    assert json.loads((project / REMOVAL).read_text()) == forged


REMOVAL = ".nexus/state/rolecall/removal.json"


def write_removal(project: Path, value: dict[str, Any]) -> None:
    (project / REMOVAL).parent.mkdir(parents=True, exist_ok=True)
    (project / REMOVAL).write_text(json.dumps(value))


def test_a_file_that_git_never_had_is_not_removed_whatever_is_noted_of_it(killed: Path) -> None:
    path = killed / ".nexus" / "memory" / "release-steps.md"
    path.write_text("never committed\n")
    value = json.loads((killed / REMOVAL).read_text())
    value["gone"][0]["digest"] = state_file.digest(path.read_bytes())
    write_removal(killed, value)
    (finished,) = add(killed)["finished"]
    assert "changed" in finished["stays"]
    assert path.read_text() == "never committed\n"


def test_a_text_that_the_commit_does_not_have_is_not_written(folder: Path) -> None:
    project = seed(folder)
    env = deadly_git(folder, "update-ref", f'{shlex.quote(GIT)} "$@" && kill -9 $PPID')
    assert play(project, "merge", env) == -9
    value = json.loads((project / REMOVAL).read_text())
    value["into"]["text"] = "FORGED\n"
    write_removal(project, value)
    before = (project / ".nexus" / "memory" / "retry-limits.md").read_text()
    (finished,) = add(project)["finished"]
    assert "git show HEAD:" in finished["stays"]
    assert (project / ".nexus" / "memory" / "retry-limits.md").read_text() == before


# -- git that outlives whoever started it --


def test_the_next_writer_waits_for_git_that_is_still_moving_head(folder: Path) -> None:
    project = seed(folder)
    gate = folder / "gate"
    os.mkfifo(gate)
    held = f'kill -9 $PPID; read go < {shlex.quote(str(gate))}; exec {shlex.quote(GIT)} "$@"'
    assert play(project, "delete", deadly_git(folder, "update-ref", held)) == -9
    assert git(project, "log", "--format=%s") == "All", "git waits at the gate"
    command = [sys.executable, __file__, "once", str(project), "delete"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        await_blocked(follower)
        gate.write_text("go\n")
        printed, errors = follower.communicate(timeout=60)
    assert follower.returncode == 0, errors
    assert json.loads(printed)[0]["commit"] == git(project, "rev-parse", "HEAD")
    assert_done("delete", state(project))
    assert_clean(state(project))


def await_blocked(child: subprocess.Popen[bytes]) -> None:
    """Until the kernel says that a child waits for a lock; a child that ends before was not kept waiting."""
    waiting = f"FLOCK  ADVISORY  WRITE {child.pid} "
    while not any("->" in line and waiting in line for line in Path("/proc/locks").read_text().splitlines()):
        assert child.poll() is None, "nobody waited"


# -- what stands in the way --


def test_a_project_is_as_it_was_when_git_cannot_move_head(folder: Path) -> None:
    project = seed(folder)
    (project / ".git" / "refs" / "heads" / "main.lock").write_text("")
    before = state(project)
    with pytest.raises(RolecallError, match=r"git made no commit .*main\.lock") as caught:
        memory.merge(project, "retry-limits", "release-steps")
    assert "Nothing was removed" in caught.value.hint
    assert state(project) == before


def test_a_commit_of_the_user_in_between_is_not_lost(folder: Path) -> None:
    project = seed(folder)
    commit = f"{shlex.quote(GIT)} -C {shlex.quote(str(project))} -c user.name=B -c user.email=b@c "
    first = f'{commit} commit --quiet --allow-empty -m Theirs; exec {shlex.quote(GIT)} "$@"'
    assert play(project, "delete", deadly_git(folder, "commit-tree", first)) == 1
    found = state(project)
    assert found["commits"] == ["Theirs", "All"]
    assert found["notes"] == BEFORE
    assert found["left in git"] == []
    assert [each["name"] for each in memory_gc.delete(project, ["release-steps"])] == ["release-steps.md"]


@pytest.mark.parametrize(("verb", "code"), [("commit-tree", 0), ("update-index", 1)])
def test_what_the_user_stages_in_between_stays_staged(folder: Path, verb: str, code: int) -> None:
    project = seed(folder)
    stage = f"env -u GIT_INDEX_FILE {shlex.quote(GIT)} -C {shlex.quote(str(project))} add other.txt"
    # Asked to change the copy of the index, git finds that the user has changed the index itself.
    is_late = 'case "$GIT_INDEX_FILE" in */git-index) ;; *) ' + stage + ";; esac"
    env = deadly_git(folder, verb, f'{is_late}; exec {shlex.quote(GIT)} "$@"')
    assert play(project, "delete", env) == code
    found = state(project)
    assert "M  other.txt" in found["status"]
    assert (len(found["commits"]), "release-steps.md" in found["notes"]) == ((2, False), (1, True))[code]
    assert found["left in git"] == []


_STUCK = """
import os, sys
from rolecall.nexus import memory_gc
unlink = os.unlink
def refusing(path):
    if str(path).endswith("release-steps.md"):
        raise PermissionError(13, "Permission denied", path)
    unlink(path)
os.unlink = refusing
memory_gc.delete(sys.argv[1], ["release-steps"])
"""


def test_a_file_that_cannot_be_removed_is_named_with_the_commit_and_goes_later(folder: Path) -> None:
    project = seed(folder)
    done = subprocess.run(
        [sys.executable, "-c", _STUCK, str(project)], capture_output=True, text=True, check=False
    )
    commit = git(project, "rev-parse", "HEAD")
    assert f"commit {commit[:12]} removed release-steps.md, but the files could not follow" in done.stderr
    assert state(project)["notes"] == BEFORE
    assert sorted(state(project)["status"]) == sorted([*USERS_OWN, "?? .nexus/memory/release-steps.md"])
    assert [gone["commit"] for gone in memory.finish(project)] == [commit]
    assert_done("delete", state(project))
    assert_clean(state(project))


def main(*args: str) -> None:
    if args[0] == "once":
        print(json.dumps(SCENARIOS[args[2]](Path(args[1]))))
    else:
        kill_everywhere(Path(args[0]), *args[1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
