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
    for arguments, why in (([], "the text is missing"), (["notes.md", "-m", "x"], "given twice")):
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


def test_thresholds_of_the_configuration_count(rolecall: Rolecall, project: Path) -> None:
    rolecall("memory", "add", "upstream-limits", "-m", LIMITS, cwd=project, check=0)
    note = project / ".nexus/memory/upstream-limits.md"
    os.utime(note, (note.stat().st_mtime - 20 * 86_400,) * 2)

    def signals() -> list[list[str]]:
        found = rolecall.json("memory", "gc", "--format", "json", cwd=project)["candidates"]
        return [[signal["id"] for signal in one["signals"]] for one in found]

    assert signals() == []
    rolecall("config", "set", "memory.unchangedDays", "19", check=0)
    rolecall("config", "set", "memory.unreadReads", "0", check=0)
    assert signals() == [["unread", "unchanged"]]
    rolecall("config", "set", "memory.graceDays", "21", check=0)
    assert signals() == []
    assert (
        "upstream-limits.md seems to be on the same subject"
        in rolecall("memory", "add", "api-backoff", "-m", LIMITS_AGAIN, cwd=project, check=2).stderr
    )
    rolecall("config", "set", "memory.overlap", "100", check=0)
    rolecall("memory", "add", "api-backoff", "-m", LIMITS_AGAIN, cwd=project, check=0)
    for key, value in (("signals", "2"), ("overlap", "0"), ("graceDays", "-1"), ("unreadDays", "1.5")):
        assert f"memory.{key} must be" in rolecall("config", "set", f"memory.{key}", value, check=2).stderr


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


def deadly_git(folder: Path, action: str) -> dict[str, str]:
    """An environment where git does an action of the shell when it is to move HEAD."""
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"real={shutil.which('git')}\n"
        f'for word in "$@"; do if [ "$word" = commit ]; then {action}; fi; done\n'
        'exec $real "$@"\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


BEFORE_THE_COMMIT = "kill -9 $PPID; exit 1"


@pytest.fixture
def two_notes(rolecall: Rolecall, project: Path) -> Path:
    rolecall("memory", "add", "retry-limits", "-m", LIMITS, cwd=project, check=0)
    rolecall("memory", "add", "release-steps", "-m", RELEASES, cwd=project, check=0)
    commit_all(project)
    return project


@pytest.mark.parametrize("verb", ["gc --delete release-steps", "merge retry-limits release-steps"])
def test_a_kill_before_the_commit_loses_nothing(
    rolecall: Rolecall, two_notes: Path, tmp_path: Path, verb: str
) -> None:
    head = git(two_notes, "rev-parse", "HEAD")
    deadly = deadly_git(tmp_path, BEFORE_THE_COMMIT)
    assert rolecall("memory", *verb.split(), cwd=two_notes, env=deadly).returncode == -9
    assert git(two_notes, "rev-parse", "HEAD") == head
    if verb.startswith("merge"):
        git(two_notes, "checkout", "HEAD", "--", ".nexus/memory")
    rolecall("memory", *verb.split(), cwd=two_notes, check=0)
    assert not (two_notes / ".nexus" / "memory" / "release-steps.md").exists()
    assert git(two_notes, "status", "--porcelain") == ""


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


RESTRICTIONS = ("no_file_edit", "no_shell_exec", "no_task_create", "no_task_update", "read_only")


@pytest.mark.parametrize("word", RESTRICTIONS)
@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ("memory merge a-b c-d", "memory merge"),
        ("memory gc --delete a-b", "memory gc --delete"),
        ("memory gc --auto", "memory gc --auto"),
        ("rule add style -m x", "rule add"),
    ],
)
def test_a_role_with_any_restriction_deletes_no_note_and_adds_no_rule(
    rolecall: Rolecall, project: Path, word: str, arguments: str, action: str
) -> None:
    done = rolecall(*arguments.split(), cwd=project, env={"ROLECALL_RESTRICTIONS": word}, check=2)
    assert f"{action} is for the lead, and this role is held to {word}" in done.stderr
    assert "Leave it to the role that leads the work." in done.stderr
    assert not (project / ".nexus").exists()


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_a_role_reads_whatever_its_restrictions_and_adds_a_lesson_unless_it_may_not_write_files(
    rolecall: Rolecall, two_notes: Path, word: str
) -> None:
    role = {"ROLECALL_RESTRICTIONS": word}
    rolecall("rule", "add", "style", "-m", "Short lines.", cwd=two_notes, check=0)
    for looking in ("memory list", "memory list --context", "memory gc", "rule list", "rule read style"):
        rolecall(*looking.split(), cwd=two_notes, env=role, check=0)
    assert (
        rolecall("memory", "read", "retry-limits", cwd=two_notes, env=role, check=0).stdout == LIMITS + "\n"
    )
    done = rolecall("memory", "add", "queue-timers", "-m", "Timers are dropped.", cwd=two_notes, env=role)
    path = two_notes / ".nexus" / "memory" / "queue-timers.md"
    if word in ("no_file_edit", "read_only"):
        assert done.returncode == 2
        assert f"denied to this role by {word}" in done.stderr
        assert not path.exists()
    else:
        assert done.returncode == 0
        assert path.read_text() == "Timers are dropped.\n"


ODD = os.fsdecode(b"caf\xe9-notes")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["memory", "add", ODD, "-m", "x"], 2, "not UTF-8"),
        (["memory", "add", "queue-timers", "-m", ODD], 2, "which UTF-8 cannot say"),
        (["memory", "add", "queue-timers", ODD], 2, "cannot be read: No such file"),
        (["memory", "add", "queue-timers", "-m", "x", "--into", ODD], 2, "not UTF-8"),
        (["memory", "add", "queue-timers", "-m", "x", "--category", ODD], 2, "invalid choice"),
        (["memory", "read", ODD], 2, "not UTF-8"),
        (["memory", "read", "retry-limits", "--agent", ODD], 0, "not UTF-8"),
        (["memory", "merge", "retry-limits", ODD], 2, "not UTF-8"),
        (["memory", "merge", "retry-limits", "release-steps", "--into", ODD], 2, "not UTF-8"),
        (["memory", "gc", "--delete", ODD], 2, "not UTF-8"),
        (["memory", "list", "--project", ODD], 2, "does not exist"),
        (["rule", "add", ODD, "-m", "x"], 2, "not UTF-8"),
        (["rule", "add", "style", "-m", ODD], 2, "which UTF-8 cannot say"),
        (["rule", "add", "style", "-m", "x", "--tag", ODD], 2, "is not a tag"),
        (["rule", "read", ODD], 2, "not UTF-8"),
        (["rule", "list", "--tag", ODD], 0, ""),
    ],
)
def test_arguments_with_bytes_that_are_not_utf8_are_answered_in_words(
    rolecall: Rolecall, two_notes: Path, arguments: list[str], code: int, told: str
) -> None:
    done = rolecall(*arguments, cwd=two_notes, check=code)
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert git(two_notes, "status", "--porcelain") == ""


def test_a_project_whose_path_is_not_utf8_is_worked_in_like_any_other(
    rolecall: Rolecall, two_notes: Path
) -> None:
    odd = shutil.copytree(two_notes, two_notes.parent / ODD)
    there = ("--project", str(odd))
    rolecall("memory", "add", "queue-timers", "-m", "Timers are dropped.", *there, check=0)
    assert [entry["name"] for entry in rolecall.json("memory", "list", *there)] == [
        *("queue-timers.md", "release-steps.md", "retry-limits.md")
    ]
    rolecall("memory", "merge", "retry-limits", "release-steps", *there, check=0)
    rolecall("memory", "gc", "--delete", "retry-limits", *there, check=0)
    assert [path.name for path in (odd / ".nexus" / "memory").iterdir()] == ["queue-timers.md"]
    assert git(odd, "status", "--porcelain") == "?? .nexus/memory/"


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
    assert "is not in a git repository" in done.stderr
    assert json.loads(rolecall("memory", "list", "--project", str(tmp_path), "--json", check=0).stdout)
