"""`rolecall memory` and `rolecall rule` as a user and an agent meet them: the real command in real repositories."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
LIMITS = "The upstream API answers 429 after 60 requests a minute; back off exponentially."
LIMITS_AGAIN = "The upstream API answers 429 when we are too fast: back off exponentially."
RELEASES = "Bump the version, tag the commit, build the wheel and run the smoke test."


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    return folder


def commit_all(project: Path) -> None:
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "All")


def on_terminal(rolecall: Rolecall, project: Path, *args: str) -> str:
    """What the command prints to a person."""
    control, terminal = pty.openpty()
    child = subprocess.Popen(
        [PROGRAM, *args],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        cwd=project,
        env={**os.environ, "ROLECALL_HOME": str(rolecall.home)},
    )
    os.close(terminal)
    printed = b""
    try:
        while part := os.read(control, 65536):
            printed += part
    except OSError:  # the other end is closed: everything was read
        pass
    os.close(control)
    child.wait(timeout=60)
    return printed.decode().replace("\r\n", "\n")


def test_a_lesson_is_added_listed_read_and_counted(rolecall: Rolecall, project: Path) -> None:
    (project / "deep").mkdir()
    made = rolecall.json(
        "memory", "add", "retry-limits", "--category", "external", "-m", LIMITS, cwd=project / "deep"
    )
    path = project / ".nexus" / "memory" / "external-retry-limits.md"
    assert made == {
        "name": "external-retry-limits.md",
        "path": str(path),
        "category": "external",
        "created": True,
    }
    assert rolecall("memory", "read", "external-retry-limits", cwd=project, check=0).stdout == LIMITS + "\n"
    rolecall("memory", "read", "external-retry-limits", "--agent", "tester", cwd=project, check=0)
    (listed,) = rolecall.json("memory", "list", "--project", str(project))
    assert (listed["accessCount"], listed["lastAgent"], listed["ageDays"]) == (2, "tester", 0)
    shown = on_terminal(rolecall, project, "memory", "list").splitlines()
    assert shown[0].split() == ["name", "category", "bytes", "last", "read", "reads", "age"]
    assert shown[1].startswith("external-retry-limits.md  external")
    as_json = rolecall.json("memory", "read", "external-retry-limits", "--format", "json", cwd=project)
    assert as_json == {"name": "external-retry-limits", "text": LIMITS + "\n"}


def test_the_text_comes_from_an_option_a_file_or_standard_input(rolecall: Rolecall, project: Path) -> None:
    (project / "notes.md").write_text(RELEASES)
    rolecall("memory", "add", "release-steps", "notes.md", cwd=project, check=0)
    rolecall("memory", "add", "retry-limits", "-", input=LIMITS, cwd=project, check=0)
    assert rolecall("memory", "read", "release-steps", cwd=project, check=0).stdout == RELEASES + "\n"
    assert rolecall("memory", "read", "retry-limits", cwd=project, check=0).stdout == LIMITS + "\n"
    for arguments, why in (([], "there is no text"), (["notes.md", "-m", "x"], "given twice")):
        done = rolecall("memory", "add", "other-steps", *arguments, cwd=project, check=2)
        assert why in done.stderr


def test_the_commands_offered_for_a_second_note_on_a_subject_do_what_they_say(
    rolecall: Rolecall, project: Path
) -> None:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, "--project", str(project), check=0)
    again = ["memory", "add", "api-limits", "-m", LIMITS_AGAIN, "--project", str(project)]
    done = rolecall(*again, check=2)
    assert "retry-limits.md seems to be on the same subject" in done.stderr
    assert "429" in done.stderr
    commands = [part for part in done.stderr.split("`") if part.startswith("rolecall memory add")]
    assert len(commands) == 2
    environment = {
        **os.environ,
        "ROLECALL_HOME": str(rolecall.home),
        "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}",
    }
    for command in commands:
        subprocess.run(command, shell=True, env=environment, check=True, capture_output=True)
    folder = project / ".nexus" / "memory"
    assert sorted(path.name for path in folder.iterdir()) == ["api-limits.md", "retry-limits.md"]
    assert (folder / "api-limits.md").read_text() == LIMITS_AGAIN + "\n"
    assert (folder / "retry-limits.md").read_text().endswith(LIMITS_AGAIN + "\n")


def test_a_secret_of_the_environment_is_not_written_down(rolecall: Rolecall, project: Path) -> None:
    secret = "correct-horse-battery"
    for noun in ("memory", "rule"):
        done = rolecall(
            noun, "add", "login-steps", "-m", f"Use {secret}.", cwd=project, env={"DB_PASSWORD": secret}
        )
        assert done.returncode == 2
        assert "line 1 holds the value of a secret" in done.stderr
        assert secret not in done.stderr
    assert not (project / ".nexus" / "memory").exists()


def test_gc_shows_the_command_and_the_command_deletes_by_a_commit(rolecall: Rolecall, project: Path) -> None:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, cwd=project, check=0)
    rolecall("memory", "add", "release-steps", "-m", RELEASES, cwd=project, check=0)
    commit_all(project)
    path = project / ".nexus" / "memory" / "retry-limits.md"
    os.utime(path, (0, 0))
    shown = on_terminal(rolecall, project, "memory", "gc").splitlines()
    assert shown[0] == "retry-limits.md"
    assert shown[1].split()[0] == "unchanged"
    assert shown[2].strip() == "delete it: rolecall memory gc --delete retry-limits.md"
    assert len(shown) == 3
    (candidate,) = rolecall.json("memory", "gc", cwd=project)["candidates"]
    done = rolecall.json(*candidate["command"].split()[1:], cwd=project)
    (deleted,) = done["deleted"]
    assert deleted["name"] == "retry-limits.md"
    assert not path.exists()
    assert deleted["restore"] in git(project, "log", "-1", "--format=%B")
    subprocess.run(deleted["restore"], shell=True, cwd=project, check=True, capture_output=True)
    assert path.read_text() == LIMITS + "\n"


def test_deletion_without_asking_has_to_be_switched_on(rolecall: Rolecall, project: Path) -> None:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, cwd=project, check=0)
    commit_all(project)
    done = rolecall("memory", "gc", "--auto", cwd=project, check=2)
    assert "rolecall config set memory.autoDelete true" in done.stderr
    rolecall("config", "set", "memory.autoDelete", "yes", check=2)
    rolecall("config", "set", "memory.autoDelete", "true", check=0)
    assert rolecall.json("memory", "gc", "--auto", cwd=project) == {"deleted": [], "stayed": []}
    rolecall("config", "set", "memory.autoDelete", "false", check=0)
    rolecall("memory", "gc", "--auto", cwd=project, check=2)


def test_merging_says_how_to_bring_back_what_was_removed(rolecall: Rolecall, project: Path) -> None:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, cwd=project, check=0)
    rolecall("memory", "add", "release-steps", "-m", RELEASES, cwd=project, check=0)
    refused = rolecall("memory", "merge", "retry-limits", "release-steps", cwd=project, check=2)
    assert "is not committed" in refused.stderr
    commit_all(project)
    shown = on_terminal(rolecall, project, "memory", "merge", "retry-limits", "release-steps")
    assert "removed release-steps.md; this brings it back: git checkout " in shown
    text = rolecall("memory", "read", "retry-limits", cwd=project, check=0).stdout
    assert text.startswith(LIMITS)
    assert text.endswith(RELEASES + "\n")


@pytest.mark.parametrize("verb", ["gc --delete release-steps", "merge retry-limits release-steps"])
def test_a_kill_in_the_middle_of_a_deletion_loses_no_text(
    rolecall: Rolecall, project: Path, tmp_path: Path, verb: str
) -> None:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, cwd=project, check=0)
    rolecall("memory", "add", "release-steps", "-m", RELEASES, cwd=project, check=0)
    commit_all(project)
    deadly = tmp_path / "bin" / "git"
    deadly.parent.mkdir()
    deadly.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do [ "$word" = commit ] && kill -9 $PPID && exit 1; done\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    deadly.chmod(0o755)
    path = f"{deadly.parent}:{os.environ['PATH']}"
    done = rolecall("memory", *verb.split(), cwd=project, env={"PATH": path})
    assert done.returncode == -9
    folder = project / ".nexus" / "memory"
    assert not (folder / "release-steps.md").exists(), (
        "killed after the file was taken away, before the commit"
    )
    if verb.startswith("merge"):
        assert RELEASES in (folder / "retry-limits.md").read_text()
    git(project, "checkout", "--", ".")
    assert (folder / "release-steps.md").read_text() == RELEASES + "\n"
    done = rolecall("memory", *verb.split(), cwd=project, check=0)
    assert not (folder / "release-steps.md").exists(), "the lock of the one that was killed keeps nobody out"


def test_rules_are_added_listed_and_read(rolecall: Rolecall, project: Path) -> None:
    made = rolecall.json("rule", "add", "css-tokens", "--tag", "frontend", "-m", "Use tokens.", cwd=project)
    assert made["tags"] == ["frontend"]
    rolecall("rule", "add", "commits", "-", input="One line says it.\n", cwd=project, check=0)
    listed = rolecall.json("rule", "list", "--tag", "frontend", cwd=project)
    assert [entry["name"] for entry in listed] == ["css-tokens.md"]
    assert [entry["name"] for entry in rolecall.json("rule", "list", cwd=project)] == [
        "commits.md",
        "css-tokens.md",
    ]
    assert rolecall("rule", "read", "commits", cwd=project, check=0).stdout == "One line says it.\n"
    rolecall("rule", "read", "none", cwd=project, check=3)


def test_context_is_listed_on_request(rolecall: Rolecall, project: Path) -> None:
    (project / ".nexus" / "context").mkdir(parents=True)
    (project / ".nexus" / "context" / "Design.md").write_text("# Design\n")
    (listed,) = rolecall.json("memory", "list", "--context", cwd=project)
    assert listed["name"] == "Design.md"
    assert rolecall.json("memory", "list", cwd=project) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["memory", "add", "retry-limits", "-m", "x"],
        ["memory", "merge", "a-b", "c-d"],
        ["memory", "gc", "--delete", "a-b"],
        ["memory", "gc", "--auto"],
        ["rule", "add", "style", "-m", "x"],
    ],
)
def test_a_role_that_may_not_edit_files_changes_no_note(
    rolecall: Rolecall, project: Path, arguments: list[str]
) -> None:
    done = rolecall(*arguments, cwd=project, env={"ROLECALL_RESTRICTIONS": "no_file_edit"}, check=2)
    assert "denied to the role by no_file_edit" in done.stderr
    assert not (project / ".nexus").exists()


def test_a_read_that_cannot_be_counted_still_prints_the_note(rolecall: Rolecall, project: Path) -> None:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, cwd=project, check=0)
    log = project / ".nexus" / "state" / "rolecall" / "memory-access.jsonl"
    log.write_text("no json\n")
    done = rolecall("memory", "read", "retry-limits", cwd=project, check=0)
    assert done.stdout == LIMITS + "\n"
    assert "warning: the read was not counted" in done.stderr
    assert log.read_text() == "no json\n"
    assert rolecall("memory", "list", cwd=project).returncode == 4


def test_outside_git_the_project_has_to_be_named(rolecall: Rolecall, tmp_path: Path) -> None:
    done = rolecall("memory", "list", cwd=tmp_path, check=2)
    assert "--project" in done.stderr
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, "--project", str(tmp_path), check=0)
    done = rolecall("memory", "gc", "--delete", "retry-limits", "--project", str(tmp_path), check=2)
    assert "lies in no git repository" in done.stderr
    assert json.loads(rolecall("memory", "list", "--project", str(tmp_path), check=0).stdout)
