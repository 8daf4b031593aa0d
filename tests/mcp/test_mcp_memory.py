"""Memory and rules over MCP: kept, read in the caller's name, merged and deleted by commits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pipe import piped

LIMITS = "The upstream API answers 429 after 60 requests a minute; back off exponentially."
RELEASES = "Bump the version, tag the commit, build the wheel and run the smoke test."


def git(folder: Path, *args: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    command = ["git", "-C", str(folder), *who, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path) -> Path:
    project = folder / "project"
    project.mkdir()
    git(project, "init", "--quiet")
    return project


def test_a_lesson_is_kept_and_read_in_the_name_of_the_caller(tmp_path: Path) -> None:
    project = repository(tmp_path)
    with piped(project) as lead:
        lead.initialize()
        made = lead.call("memory_add", name="retry-limits", text=LIMITS, category="external")
        assert made["name"] == "external-retry-limits.md"
        refused = lead.call("memory_add", name="api-limits", text=LIMITS)["error"]
        assert "external-retry-limits.md seems to be on the same subject" in refused
        assert "`memory_add` with `into` external-retry-limits.md or with `new`" in refused
        into = lead.call("memory_add", name="api-limits", text=LIMITS, into="external-retry-limits")
        assert into["created"] is False
        assert lead.call("rule_add", name="style", text="Short lines.", tags=["frontend"])["tags"] == [
            "frontend"
        ]
        assert lead.call("memory_read", name="external-retry-limits")["text"].startswith(LIMITS)
    with piped(project, "--as", "tester") as tester:
        tester.initialize()
        assert tester.call("memory_read", name="external-retry-limits")["text"].startswith(LIMITS)
        assert tester.call("rule_read", name="style")["text"].endswith("Short lines.\n")
        assert [entry["name"] for entry in tester.call("rule_list", tag="frontend")["rules"]] == ["style.md"]
        (note,) = tester.call("memory_list")["notes"]
        assert (note["accessCount"], note["lastAgent"]) == (2, "tester")


def test_merging_and_deleting_are_commits_that_can_be_undone(tmp_path: Path) -> None:
    project = repository(tmp_path)
    with piped(project) as lead:
        lead.initialize()
        for name, text in (
            ("retry-limits", LIMITS),
            ("release-steps", RELEASES),
            ("other-note", "Queues wait."),
        ):
            lead.call("memory_add", name=name, text=text)
        assert "is not committed" in lead.call("memory_delete", names=["other-note"])["error"]
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "-m", "All")
        merged = lead.call("memory_merge", first="retry-limits", second="release-steps")
        assert merged["removed"] == ["release-steps.md"]
        assert lead.call("memory_gc") == {"candidates": []}
        (deleted,) = lead.call("memory_delete", names=["other-note"])["deleted"]
    for command in (*merged["restore"], deleted["restore"]):
        subprocess.run(command, shell=True, cwd=project, check=True, capture_output=True)
    assert (project / ".nexus" / "memory" / "release-steps.md").read_text() == RELEASES + "\n"
    assert (project / ".nexus" / "memory" / "other-note.md").read_text() == "Queues wait.\n"


READERS = {"memory_list", "memory_read", "memory_gc", "rule_list", "rule_read"}
DENIED: dict[str, dict[str, Any]] = {
    "memory_merge": {"first": "a-b", "second": "c-d"},
    "memory_delete": {"names": ["a-b"]},
    "rule_add": {"name": "style", "text": "Short lines."},
}


@pytest.mark.parametrize(
    ("agent", "restrictions", "may_add"),
    [
        ("architect", "", False),
        ("engineer", "", True),
        (None, "no_file_edit", False),
        (None, "read_only", False),
        (None, "no_shell_exec", True),
        (None, "no_task_create", True),
        ("engineer", "read_only", False),
    ],
)
def test_only_the_lead_deletes_notes_and_adds_rules_and_notes_are_files(
    tmp_path: Path, agent: str | None, restrictions: str, may_add: bool
) -> None:
    project = repository(tmp_path)
    who = ("--as", agent) if agent else ()
    with piped(project, "--only", "memory", *who, ROLECALL_RESTRICTIONS=restrictions) as pipe:
        pipe.initialize()
        assert set(pipe.tools()) == READERS | ({"memory_add"} if may_add else set())
        for name, arguments in DENIED.items():
            assert f"{name} is for the lead" in pipe.call(name, **arguments)["error"]
        added = pipe.call("memory_add", name="retry-limits", text=LIMITS)
    assert (project / ".nexus" / "memory").exists() == may_add
    assert may_add or "memory_add is denied to this role by" in added["error"]
    assert not (project / ".nexus" / "rules").exists()


def test_the_group_can_be_left_out(tmp_path: Path) -> None:
    with piped(repository(tmp_path), "--without", "memory") as pipe:
        pipe.initialize()
        assert not {name for name in pipe.tools() if name.startswith(("memory", "rule"))}


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    project = repository(tmp_path)
    with piped(project) as pipe:
        pipe.initialize()
        assert "text" in pipe.call("memory_add", name="retry-limits")["error"]
        assert "2 to 4" in pipe.call("memory_add", name="retry", text="x")["error"]
        assert "secret" in json.dumps(
            pipe.call("memory_add", name="a-b", text="-----BEGIN RSA PRIVATE KEY-----")
        )
        assert "fit" in pipe.call("memory_delete", names=[])["error"]
