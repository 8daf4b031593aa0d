"""An agent that Lead started: what it is told, what is kept of it, and what becomes of its task."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hook_stage import (
    OURS,
    SESSIONS,
    TASKS,
    TRACKER,
    at,
    known_hooks,
    lines,
    read,
    side_by_side,
    task,
    tasks,
    tell,
    write,
)

from rolecall.errors import StorageError, UsageError
from rolecall.hosts import project_summary, tool_log
from rolecall.hosts.event import (
    LEAD,
    HostAnswer,
    HostCaller,
    HostToolCall,
    PostToolUse,
    SessionStart,
    SubagentComplete,
    SubagentSpawn,
    UserMessage,
)
from rolecall.nexus import memory_access, resume
from rolecall.settings.mask import Mask

ENGINEER, OTHER, TESTER = (
    HostCaller("engineer", "e1"),
    HostCaller("engineer", "e2"),
    HostCaller("tester", "t1"),
)


def status(project: Path, number: int) -> str:
    return str(read(project, TASKS)["tasks"][number - 1]["status"])


def touch(project: Path, who: HostCaller, *names: str, error: str = "") -> None:
    call = HostToolCall("Write", ("file_modification",), tuple(str(project / name) for name in names))
    tell(project, PostToolUse("s1", who, call, error))


# -- the start of an agent --


def test_an_agent_without_a_task_is_told_its_limits_and_what_the_project_knows(tmp_path: Path) -> None:
    write(tmp_path, ".nexus/rules/style.md", "x")
    context = tell(tmp_path, SubagentSpawn("s1", TESTER)).context
    assert "You are held to no_file_edit, no_task_create." in context
    assert "report to Lead" in context and ".nexus/rules/: style.md" in context
    assert "TASK:" not in context
    assert read(tmp_path, TRACKER)[0]["status"] == "running"


def test_an_agent_of_the_hosts_own_is_held_to_what_strangers_are(tmp_path: Path) -> None:
    context = tell(tmp_path, SubagentSpawn("s1", HostCaller("general-purpose", "g"))).context
    assert "You are held to no_task_create, no_task_update." in context


def test_a_task_is_passed_on_with_its_parts_and_no_empty_ones(tmp_path: Path) -> None:
    write(tmp_path, ".nexus/memory/a-b.md", "x")
    tasks(tmp_path, task(1, title="Write it", context="Because.", acceptance="It runs.", owner="engineer"))
    context = tell(tmp_path, SubagentSpawn("s1", ENGINEER)).context
    assert context.startswith("TASK: Write it\n\nCONTEXT:\nBecause.\n\nACCEPTANCE:\nIt runs.")
    assert "APPROACH" not in context and ".nexus/memory/: a-b.md" in context


def test_a_very_long_task_is_cut_where_that_is_said(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, context="c" * 50_000, owner="engineer"))
    context = tell(tmp_path, SubagentSpawn("s1", ENGINEER)).context
    assert len(context) < 9_000 and "(cut here; nx_task_list has all of task 1)" in context


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            [task(1, owner="engineer", owner_agent_id="e1"), task(2, owner="engineer", status="in_progress")],
            1,
        ),
        ([task(1, owner="engineer"), task(2, owner="engineer", status="in_progress")], 2),
        ([task(1, owner="engineer"), task(2, owner="engineer", deps=[1])], 1),
        ([task(1, owner="engineer"), task(2, owner="engineer")], None),
        (
            [
                task(1, owner="engineer", status="in_progress"),
                task(2, owner="engineer", status="in_progress"),
            ],
            None,
        ),
        ([task(1, owner="writer")], None),
        ([task(1)], None),
        ([task(1, owner="engineer", status="completed")], None),
    ],
)
def test_the_task_of_an_agent_is_its_own_or_the_only_one_it_can_be(
    tmp_path: Path, found: list[dict[str, object]], expected: int | None
) -> None:
    tasks(tmp_path, *found)
    context = tell(tmp_path, SubagentSpawn("s1", ENGINEER)).context
    assert context.startswith(f"TASK: Task {expected}") is (expected is not None)
    link = read(tmp_path, SESSIONS)["s1"]["agents"]["e1"]
    assert link.partition(" ")[0] == ("" if expected is None else str(expected))


def test_a_task_that_a_running_agent_has_is_not_given_to_another(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"), task(2, owner="engineer"))
    assert tell(tmp_path, SubagentSpawn("s1", ENGINEER)).context.startswith("TASK: Task 1")
    assert tell(tmp_path, SubagentSpawn("s2", OTHER)).context.startswith("TASK: Task 2")
    assert tell(tmp_path, SubagentSpawn("s1", ENGINEER)).context.startswith("TASK: Task 1")  # told twice
    assert "TASK:" not in tell(tmp_path, SubagentSpawn("s2", HostCaller("engineer", "e3"))).context


def test_an_agent_without_an_id_is_told_what_it_needs_and_not_kept_track_of(tmp_path: Path) -> None:
    assert "Lead" in tell(tmp_path, SubagentSpawn("s1", HostCaller("engineer"))).context
    assert tell(tmp_path, SubagentComplete("s1", HostCaller("engineer"))) == HostAnswer()
    assert not (tmp_path / TRACKER).exists()


# -- the end of an agent --


def test_the_end_of_an_agent_completes_the_task_it_worked_on(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    touch(tmp_path, ENGINEER, "src/a.py", "src/b.py", "src/a.py")
    touch(tmp_path, ENGINEER, "failed.py", error="no")
    touch(tmp_path, OTHER, "others.py")
    touch(tmp_path, LEAD, "leads.py")
    answer = tell(tmp_path, SubagentComplete("s1", ENGINEER, "Done."), now=at(9))
    (entry,) = read(tmp_path, TRACKER)
    assert (entry["status"], entry["stopped_at"], entry["last_message"]) == ("completed", at(9), "Done.")
    assert entry["files_touched"] == ["src/a.py", "src/b.py"]
    assert status(tmp_path, 1) == "completed"
    assert answer.context == "Task 1 (Task 1) is completed."
    assert len(list((tmp_path / OURS / "touched").iterdir())) == 1


@pytest.mark.parametrize("standing", ["pending", "completed"])
def test_a_task_that_is_not_being_worked_on_is_left_alone(tmp_path: Path, standing: str) -> None:
    tasks(tmp_path, task(1, owner="engineer", owner_agent_id="e1", status=standing))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    assert tell(tmp_path, SubagentComplete("s1", ENGINEER)) == HostAnswer()
    assert status(tmp_path, 1) == standing


def test_an_end_that_comes_again_does_not_complete_a_task_that_was_taken_up_again(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    tell(tmp_path, SubagentComplete("s1", ENGINEER))
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    assert tell(tmp_path, SubagentComplete("s1", ENGINEER)) == HostAnswer()
    assert status(tmp_path, 1) == "in_progress"


def test_an_agent_of_the_last_cycle_does_not_complete_the_task_of_that_number_in_the_next(
    tmp_path: Path,
) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    tasks(tmp_path, task(1, title="Another", owner="writer", status="in_progress"))
    tell(tmp_path, SubagentComplete("s1", ENGINEER))
    assert status(tmp_path, 1) == "in_progress"


def test_a_check_is_called_for_where_acceptance_is_not_verified(tmp_path: Path) -> None:
    work = task(1, owner="engineer", status="in_progress", acceptance="It runs.")
    tasks(tmp_path, work)
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    answer = tell(tmp_path, SubagentComplete("s1", ENGINEER))
    assert "no task checks them: have a tester or a reviewer" in answer.context == answer.notice
    context = tell(tmp_path, UserMessage("s1", "hello")).context
    assert "Completed with acceptance criteria that no task verifies: 1." in context


@pytest.mark.parametrize("owner", ["tester", "reviewer"])
def test_no_check_is_called_for_where_one_is_planned(tmp_path: Path, owner: str) -> None:
    work = task(1, owner="engineer", status="in_progress", acceptance="It runs.")
    tasks(tmp_path, work, task(2, owner=owner, deps=[1], acceptance="It was checked."))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    assert tell(tmp_path, SubagentComplete("s1", ENGINEER)).context == "Task 1 (Task 1) is completed."
    assert "verifies" not in tell(tmp_path, UserMessage("s1", "hello")).context


def test_an_end_without_a_start_is_on_record_and_completes_nothing(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    tell(tmp_path, SubagentComplete("s1", ENGINEER, "Done."))
    assert read(tmp_path, TRACKER)[0]["status"] == "completed"
    tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(1))  # late
    assert read(tmp_path, TRACKER)[0]["status"] == "completed"
    assert status(tmp_path, 1) == "in_progress"


def test_tasks_that_cannot_be_read_do_not_keep_an_agent_from_ending(tmp_path: Path) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    write(tmp_path, TASKS, "{")
    assert "the tasks cannot be read" in tell(tmp_path, SubagentComplete("s1", ENGINEER)).context
    assert read(tmp_path, TRACKER)[0]["status"] == "completed"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("STATUS: blocked\nWhich database?", "in_progress"),
        ("I tried.\n\n**STATUS:** blocked", "in_progress"),
        ("status: Partial.", "in_progress"),
        ("STATUS: blocked: which database?", "in_progress"),
        ("STATUS: blocked at first\nSTATUS: done", "completed"),
        ("STATUS: done", "completed"),
        ("The status is: blocked", "completed"),
    ],
)
def test_a_report_that_says_blocked_leaves_the_task_open(tmp_path: Path, report: str, expected: str) -> None:
    tasks(tmp_path, task(1, owner="engineer", status="in_progress"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    answer = tell(tmp_path, SubagentComplete("s1", ENGINEER, report))
    assert status(tmp_path, 1) == expected
    assert ("is not completed: its agent ended with STATUS: " in answer.context) is (
        expected == "in_progress"
    )
    assert read(tmp_path, TRACKER)[0]["status"] == "completed"


# -- an agent that goes on --


def test_a_resumed_agent_gets_the_task_in_progress_under_its_id_and_completes_that_one(
    tmp_path: Path,
) -> None:
    old, new = task(1, owner="engineer"), task(2, owner="engineer", owner_agent_id="e1")
    tasks(tmp_path, {**old, "status": "in_progress"})
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    tell(tmp_path, SubagentComplete("s1", ENGINEER, "STATUS: blocked"), now=at(1))
    tasks(tmp_path, {**old, "status": "in_progress"}, {**new, "status": "in_progress"})
    context = tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(2)).context
    assert context.startswith("TASK: Task 2") and "Task 1" not in context
    tell(tmp_path, SubagentComplete("s1", ENGINEER, "STATUS: done"), now=at(3))
    assert [status(tmp_path, 1), status(tmp_path, 2)] == ["in_progress", "completed"]


def test_a_resumed_agent_is_not_given_a_task_it_has_completed(tmp_path: Path) -> None:
    old, new = task(1, owner="engineer", owner_agent_id="e1"), task(2, owner="engineer")
    tasks(tmp_path, {**old, "status": "in_progress"})
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    tell(tmp_path, SubagentComplete("s1", ENGINEER), now=at(1))
    tasks(tmp_path, {**old, "status": "completed"}, {**new, "status": "in_progress"})
    assert tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(2)).context.startswith("TASK: Task 2")
    tell(tmp_path, SubagentComplete("s1", ENGINEER), now=at(3))
    assert status(tmp_path, 2) == "completed"


def test_a_task_set_in_progress_after_the_start_of_its_agent_is_the_one_completed(tmp_path: Path) -> None:
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    tasks(tmp_path, task(1, owner="engineer", owner_agent_id="e1", status="in_progress"))
    tell(tmp_path, SubagentComplete("s1", ENGINEER))
    assert status(tmp_path, 1) == "completed"


def resumed(project: Path, who: HostCaller, *then: dict[str, Any]) -> str:
    tell(project, SubagentSpawn("s1", who), now=at(1))
    touch(project, who, "a.py")
    tell(project, SubagentComplete("s1", who), now=at(2))
    if then:
        tasks(project, *then)
    return tell(project, SubagentSpawn("s1", who), now=at(3)).context


def test_a_bounded_agent_that_goes_on_has_to_read_its_files_again(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "x")
    os.utime(tmp_path / "a.py", (0, 0))
    assert resume.REREAD in resumed(tmp_path, ENGINEER)
    assert read(tmp_path, TRACKER)[0]["resume_count"] == 1


def test_a_bounded_agent_is_told_when_its_files_were_changed_meanwhile(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "x")  # now, which is later than all that is told here
    reported = resumed(tmp_path, ENGINEER)
    assert "though a new one was called for (a.py was touched by somebody else since)" in reported
    assert resume.REREAD in reported


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ("In a.py.", ""),
        ("In b.py.", "bounded, and b.py was not among the files of its last session"),
        ("Somewhere.", "bounded, and the task names no file"),
    ],
)
def test_a_bounded_agent_goes_on_for_a_task_about_the_files_it_has_touched(
    tmp_path: Path, context: str, reason: str
) -> None:
    write(tmp_path, "a.py", "x")
    os.utime(tmp_path / "a.py", (0, 0))
    write(tmp_path, "b.py", "x")
    os.utime(tmp_path / "b.py", (0, 0))
    reported = resumed(
        tmp_path, ENGINEER, task(2, context=context, owner_agent_id="e1", status="in_progress")
    )
    assert reported.startswith("TASK: Task 2") and resume.REREAD in reported
    assert (f"though a new one was called for ({reason})" in reported) is bool(reason)


def test_a_file_that_is_still_to_be_made_was_touched_by_nobody(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "x")
    os.utime(tmp_path / "a.py", (0, 0))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(1))
    touch(tmp_path, ENGINEER, "a.py")
    tell(tmp_path, SubagentComplete("s1", ENGINEER), now=at(2))
    tasks(tmp_path, task(2, context="Make src/new.py.", owner_agent_id="e1", status="in_progress"))
    os.utime(tmp_path, (0, 0))
    context = tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(3)).context
    assert "(bounded, and src/new.py was not among the files of its last session)" in context


def test_an_edit_by_another_agent_since_is_told_with_its_id(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "x")
    os.utime(tmp_path / "a.py", (0, 0))
    resumed(tmp_path, ENGINEER)
    tell(tmp_path, SubagentComplete("s1", ENGINEER), now=at(4))
    tell(tmp_path, SubagentSpawn("s1", OTHER), now=at(5))
    touch(tmp_path, OTHER, "a.py")
    tell(tmp_path, SubagentComplete("s1", OTHER), now=at(6))
    context = tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(7)).context
    assert "though a new one was called for (a.py was touched by e2 since)" in context


@pytest.mark.parametrize(("name", "is_same"), [("docs/limits.md", True), ("docs/other.md", False)])
def test_the_artifact_of_an_agent_that_only_reads_is_what_its_report_names(
    tmp_path: Path, name: str, is_same: bool
) -> None:
    for file in ("docs/limits.md", "docs/other.md"):
        os.utime(write(tmp_path, file, "x"), (0, 0))
    who = HostCaller("researcher", "r1")
    tell(tmp_path, SubagentSpawn("s1", who), now=at(1))
    tell(tmp_path, SubagentComplete("s1", who, "STATUS: done\nSee docs/limits.md:3."), now=at(2))
    policy = {"owner_reuse_policy": "resume_if_same_artifact", "owner_agent_id": "r1"}
    tasks(tmp_path, task(1, context=f"Read {name} once more.", status="in_progress", **policy))
    context = tell(tmp_path, SubagentSpawn("s1", who), now=at(3)).context
    assert (
        f"FIRST: {resume.REREAD}" in context if is_same else f"and {name} was not among the files" in context
    )


def test_an_agent_that_checks_is_told_that_it_should_have_begun_anew(tmp_path: Path) -> None:
    assert "though a new one was called for (ephemeral)" in resumed(tmp_path, TESTER)


def test_a_persistent_agent_just_goes_on(tmp_path: Path) -> None:
    reported = resumed(tmp_path, HostCaller("architect", "a1"))
    assert "go on in a session" not in reported and resume.REREAD not in reported


# -- tools that have run --


def test_every_call_is_a_line_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "src")
    call = HostToolCall("Write", ("file_creation",), (str(tmp_path / "link/a.py"), "/etc/elsewhere"))
    tell(tmp_path, PostToolUse("s1", ENGINEER, call))
    tell(
        tmp_path,
        PostToolUse("s1", LEAD, HostToolCall("Read", reads=(str(tmp_path / "b"),)), "is a\ndirectory"),
        now=at(1),
    )
    first, second = lines(tmp_path, ".nexus/state/rolecall/tool-log.jsonl")
    assert first == {
        "timestamp": at(), "session": "s1", "agent_id": "e1", "agent": "engineer", "tool": "Write",
        "files": ["src/a.py"], "status": "ok",
    }  # fmt: skip
    assert second == {
        "timestamp": at(1), "session": "s1", "agent_id": "lead", "tool": "Read", "files": ["b"], "status": "error",
        "error": "is a\ndirectory",
    }  # fmt: skip


def test_commands_and_secrets_do_not_stand_in_the_log(tmp_path: Path) -> None:
    hooks = known_hooks()._replace(mask=lambda: Mask(["swordfish-77"]))
    call = HostToolCall("Bash", command="curl -H 'X: swordfish-77'")
    tell(tmp_path, PostToolUse("s1", LEAD, call, "denied: swordfish-77"), hooks)
    text = (tmp_path / ".nexus/state/rolecall/tool-log.jsonl").read_text()
    assert "swordfish" not in text and "curl" not in text and "***MASKED***" in text


def test_patterns_and_folders_are_no_files_that_were_touched(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    paths = tuple(str(tmp_path / name) for name in ("folder", "*.py", "src/$.py", "plain.py"))
    tell(tmp_path, PostToolUse("s1", ENGINEER, HostToolCall("Bash", writes=paths, command="rm …")))
    tell(tmp_path, SubagentComplete("s1", ENGINEER))
    assert read(tmp_path, TRACKER)[0]["files_touched"] == ["plain.py"]


def test_signs_of_a_shell_in_the_name_of_a_file_are_letters_where_a_tool_names_the_file(
    tmp_path: Path,
) -> None:
    names = ["routes/$id.tsx", "src/{x}.py", "what?.md"]
    write(tmp_path, "src/$lib.ts", "x")
    paths = tuple(str(tmp_path / name) for name in ("src/$lib.ts", "src/$.py"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    touch(tmp_path, ENGINEER, *names)
    tell(tmp_path, PostToolUse("s1", ENGINEER, HostToolCall("Bash", writes=paths, command="touch …")))
    tell(tmp_path, SubagentComplete("s1", ENGINEER))
    assert read(tmp_path, TRACKER)[0]["files_touched"] == [*names, "src/$lib.ts"]


def test_a_read_of_a_memory_note_is_counted_and_nothing_else_is(tmp_path: Path) -> None:
    note = write(tmp_path, ".nexus/memory/retry-limits.md", "x")
    write(tmp_path, ".nexus/rules/style.md", "x")
    (tmp_path / "door").symlink_to(note.parent)
    rule, through_link = tmp_path / ".nexus/rules/style.md", tmp_path / "door/retry-limits.md"
    for minute, (who, path) in enumerate(((LEAD, through_link), (ENGINEER, note), (TESTER, rule))):
        tell(tmp_path, PostToolUse("s1", who, HostToolCall("Read", reads=(str(path),))), now=at(minute))
    tell(tmp_path, PostToolUse("s1", LEAD, HostToolCall("Read", reads=(str(note),)), "failed"))
    tell(tmp_path, PostToolUse("s1", LEAD, HostToolCall("Write", writes=(str(note),))))
    tell(tmp_path, PostToolUse("s1", LEAD, HostToolCall("Read", reads=(str(note.parent / "gone.md"),))))
    (access,) = memory_access.read(tmp_path).values()
    assert (access.access_count, access.last_agent, access.last_accessed_ts) == (2, "e1", at(1))


def test_a_log_that_has_grown_is_put_aside_once(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"))
    log, old = (tmp_path / OURS / name for name in (tool_log.FILE, tool_log.OLD_FILE))
    with log.open("wb") as file:
        file.truncate(tool_log.LARGEST - 10)
    for minute in range(3):
        tell(tmp_path, PostToolUse("s1", LEAD, HostToolCall("Read")), now=at(minute))
    assert old.stat().st_size > tool_log.LARGEST
    assert [entry["timestamp"] for entry in lines(tmp_path, f"{OURS}/{tool_log.FILE}")] == [at(1), at(2)]


def test_lines_of_many_writers_are_whole(tmp_path: Path) -> None:
    def write_fifty(number: int) -> None:
        for _ in range(50):
            tell(tmp_path, PostToolUse(f"s{number}", HostCaller("engineer", "x" * 150), HostToolCall("Read")))

    tell(tmp_path, SessionStart("s1"))
    side_by_side(*(partial(write_fifty, number) for number in range(4)))
    found = lines(tmp_path, f"{OURS}/tool-log.jsonl")
    assert sorted(entry["session"] for entry in found) == sorted([f"s{n}" for n in range(4)] * 50)


@pytest.mark.parametrize("name", [tool_log.FILE, tool_log.ERRORS])
def test_a_log_that_is_a_link_or_a_pipe_is_refused_and_nothing_waits(tmp_path: Path, name: str) -> None:
    def append() -> None:
        if name == tool_log.FILE:
            tool_log.append(str(tmp_path), {})
        else:
            tool_log.note_error(str(tmp_path), "x")

    tell(tmp_path, SessionStart("s1"))
    path = tmp_path / OURS / name
    precious = write(tmp_path, "precious", "x")
    path.symlink_to(precious)
    with pytest.raises(UsageError, match="is a link"):
        append()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError):
        append()
    assert precious.read_text() == "x"


def test_a_state_folder_that_leads_out_of_the_project_is_not_written(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "rolecall").mkdir(parents=True)
    project = tmp_path / "project"
    (project / ".nexus").mkdir(parents=True)
    (project / ".nexus/state").symlink_to(elsewhere)
    for event in (
        SessionStart("s"),
        PostToolUse("s", LEAD, HostToolCall("Read")),
        SubagentSpawn("s", ENGINEER),
    ):
        with pytest.raises(UsageError, match=r"leads out of the project|outside the project"):
            tell(project, event)
    assert list((elsewhere / "rolecall").iterdir()) == []


def test_what_a_brief_and_a_list_say_is_counted_in_tokens() -> None:
    assert [project_summary.count_tokens(text) for text in ("", "a", "abcd", "abcde", "日本")] == [
        0,
        1,
        1,
        2,
        2,
    ]
