"""A session begins, ends, or has forgotten what was said in it; and another one is open beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hook_stage import (
    LOG,
    OURS,
    PLAN,
    SESSIONS,
    STATE,
    TASKS,
    TRACKER,
    at,
    known_hooks,
    plan,
    read,
    task,
    tasks,
    tell,
    write,
)
from hypothesis import given
from hypothesis import strategies as st

from rolecall.hosts import project_summary, sessions, tool_log
from rolecall.hosts.event import (
    ContextCompact,
    Event,
    HostAnswer,
    HostCaller,
    HostToolCall,
    PostToolUse,
    SessionEnd,
    SessionStart,
    SubagentComplete,
    SubagentSpawn,
    UserMessage,
)
from rolecall.hosts.hook_context import HookContext
from rolecall.store import holder

ENGINEER = HostCaller("engineer", "e1")
GONE = {"host": holder.process(os.getpid())["host"], "pid": 2**22 + 1, "born": "1"}
"""A process of this machine that is not there."""


def here() -> dict[str, object]:
    return dict(holder.process(os.getpid()))


# -- the start --


def test_a_start_makes_the_folders_and_an_empty_list_of_agents(tmp_path: Path) -> None:
    assert tell(tmp_path, SessionStart("s1")) == HostAnswer()
    assert read(tmp_path, TRACKER) == []
    assert (tmp_path / ".nexus/.gitignore").read_text() == "state/\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mine\n", "mine\nstate/\n"),
        ("mine", "mine\nstate/\n"),
        ("", "state/\n"),
        ("# state/\n", "# state/\nstate/\n"),
        ("/state/\nmine", "/state/\nmine"),
        ("*\n!memory\n", "*\n!memory\n"),
        ("!state/\n", "!state/\n"),
    ],
)
def test_a_gitignore_that_is_there_is_left_as_it_is_but_for_the_state(
    tmp_path: Path, before: str, after: str
) -> None:
    write(tmp_path, ".nexus/.gitignore", before)
    for _ in range(2):
        tell(tmp_path, SessionStart("s1"))
        assert (tmp_path / ".nexus/.gitignore").read_text() == after


def test_the_list_of_agents_where_everybody_wrote_is_removed_but_never_through_a_link(tmp_path: Path) -> None:
    old = write(tmp_path, f"{STATE}/agent-tracker.json", [])
    tell(tmp_path, SessionStart("s1"))
    assert not old.exists()
    precious = write(tmp_path, "precious.json", [])
    old.symlink_to(precious)
    tell(tmp_path, SessionStart("s2"))
    assert precious.exists() and old.is_symlink()


def test_other_harnesses_folders_are_not_touched(tmp_path: Path) -> None:
    theirs = write(
        tmp_path, f"{STATE}/claude-nexus/agent-tracker.json", [{"harness_id": "x", "started_at": at()}]
    )
    before = theirs.read_bytes()
    for event in (SessionStart("s1"), SubagentSpawn("s1", ENGINEER), SessionEnd("s1")):
        tell(tmp_path, event)
    assert theirs.read_bytes() == before
    assert list(theirs.parent.iterdir()) == [theirs]


def test_what_is_left_over_is_counted_and_what_to_do_is_said(tmp_path: Path) -> None:
    plan(tmp_path, "A", "B", "C", i1="So.")
    tasks(tmp_path, task(1, status="completed"), task(2), task(3, status="in_progress"))
    answer = tell(tmp_path, SessionStart("s1"))
    for item in (answer.context, answer.notice):
        assert "plan 'Storage' with 2 of 3 issues pending and 3 tasks, 2 of them unfinished" in item
        assert "rolecall task close" in item and "[run]" in item
    assert (tmp_path / PLAN).exists() and (tmp_path / TASKS).exists()


def test_a_session_in_another_folder_than_the_project_is_told_that_nothing_is_checked_there(
    tmp_path: Path,
) -> None:
    project, other = tmp_path / "shop", tmp_path / "shop copy"
    (project / "src").mkdir(parents=True)
    other.mkdir()
    (tmp_path / "door").symlink_to(project)
    answer = tell(project, SessionStart("s1", cwd=str(other)))
    for item in (answer.context, answer.notice):
        assert f"for {project}, and this session works in {other}" in item
        assert "rolecall install" in item
    for inside in (project, project / "src", tmp_path / "door", Path()):
        assert tell(project, SessionStart("s1", cwd=str(inside))) == HostAnswer()


def test_a_session_that_goes_on_is_not_told_that_its_own_work_is_left_over(tmp_path: Path) -> None:
    tasks(tmp_path, task(1))
    assert "Left over" not in tell(tmp_path, SessionStart("s1", is_new=False)).notice


def test_what_is_left_over_and_cannot_be_read_is_said_too(tmp_path: Path) -> None:
    write(tmp_path, PLAN, "{")
    write(tmp_path, TASKS, "[]")
    answer = tell(tmp_path, SessionStart("s1"))
    assert "a plan that cannot be read" in answer.notice and "tasks that cannot be read" in answer.notice


def test_the_files_of_knowledge_are_listed(tmp_path: Path) -> None:
    for name in ("memory/retry-limits.md", "context/domain.md", "rules/style.md"):
        write(tmp_path, f".nexus/{name}", "x")
    context = tell(tmp_path, SessionStart("s1")).context
    assert ".nexus/memory/: retry-limits.md" in context
    assert ".nexus/context/: domain.md" in context and ".nexus/rules/: style.md" in context


def test_what_is_said_at_the_start_is_bounded(tmp_path: Path) -> None:
    for number in range(500):
        write(tmp_path, f".nexus/memory/a-rather-long-name-for-a-note-{number:03d}.md", "x")
    assert project_summary.count_tokens(tell(tmp_path, SessionStart("s1")).context) <= 600


# -- sessions beside each other --


def test_a_start_clears_away_agents_of_sessions_that_are_gone(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"), known_hooks()._replace(process=GONE))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER), known_hooks()._replace(process=GONE))
    tell(tmp_path, PostToolUse("s1", ENGINEER, HostToolCall("Write", (), (str(tmp_path / "a"),))))
    assert [entry["agent_id"] for entry in read(tmp_path, TRACKER)] == ["e1"]
    assert len(list((tmp_path / OURS / "touched").iterdir())) == 1
    answer = tell(tmp_path, SessionStart("s2"), known_hooks()._replace(process=here()))
    assert read(tmp_path, TRACKER) == [] and set(read(tmp_path, SESSIONS)) == {"s2"}
    assert list((tmp_path / OURS / "touched").iterdir()) == []
    assert answer == HostAnswer()


def test_agents_of_a_session_that_lives_stay_whatever_other_sessions_do(tmp_path: Path) -> None:
    living = known_hooks()._replace(process=here())
    tell(tmp_path, SessionStart("s1"), living)
    tell(tmp_path, SubagentSpawn("s1", ENGINEER), living)
    answer = tell(tmp_path, SessionStart("s2"), living)
    assert "Another session is open in this project" in answer.notice
    tell(tmp_path, SubagentSpawn("s2", HostCaller("tester", "t1")), living)
    tell(tmp_path, SessionStart("s1"), living)  # told twice
    tell(tmp_path, SessionEnd("s2"), living)
    assert [(entry["agent_id"], entry["status"]) for entry in read(tmp_path, TRACKER)] == [("e1", "running")]
    tell(tmp_path, SessionEnd("s1"), living)
    assert not (tmp_path / TRACKER).exists() and not (tmp_path / SESSIONS).exists()


def test_a_session_whose_process_is_not_known_lives_as_long_as_it_is_heard_of(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"), now=at(0))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(0))
    tell(tmp_path, SessionStart("s2"), now=at(11 * 60))
    assert [entry["agent_id"] for entry in read(tmp_path, TRACKER)] == ["e1"]
    tell(tmp_path, SessionStart("s3"), now="2026-01-31T22:30:00.000Z")
    assert read(tmp_path, TRACKER) == []
    assert set(read(tmp_path, SESSIONS)) == {"s2", "s3"}


def test_a_session_that_only_talks_stays_alive(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"), now=at(0))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER), now=at(0))
    for hour in range(1, 14):
        tell(tmp_path, UserMessage("s1", "go on"), now=at(61 * hour))
    tell(tmp_path, SessionStart("s2"), now=at(61 * 14))
    assert [entry["agent_id"] for entry in read(tmp_path, TRACKER)] == ["e1"]


@pytest.mark.parametrize(
    "event",
    [
        UserMessage("s1", "hi"),
        SubagentSpawn("s1", ENGINEER),
        ContextCompact("s1"),
        SessionEnd("s1", is_over=False),
    ],
)
def test_a_session_that_goes_on_in_another_process_is_that_ones(tmp_path: Path, event: Event) -> None:
    tell(tmp_path, SessionStart("s1"), known_hooks()._replace(process=GONE))
    tell(tmp_path, event, known_hooks()._replace(process=here()))
    assert read(tmp_path, SESSIONS)["s1"]["process"] == here()


def test_a_process_that_serves_for_weeks_does_not_keep_its_sessions_alive() -> None:
    long_ago = sessions.HostSession(at(), here())
    assert sessions.is_alive(long_ago, "2026-02-06T00:00:00.000Z")
    assert not sessions.is_alive(long_ago, "2026-02-08T00:00:00.000Z")


@given(st.datetimes(datetime(1970, 1, 1), datetime(2999, 12, 31)), st.integers(0, 12 * 3_600_000 + 60_000))
def test_whether_a_session_was_heard_of_within_twelve_hours_is_told_right_at_any_time(
    last: datetime, later: int
) -> None:
    def format_time(moment: datetime) -> str:
        return moment.replace(tzinfo=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    last = last.replace(microsecond=last.microsecond // 1000 * 1000)
    heard = sessions.HostSession(format_time(last), process={"host": "elsewhere", "pid": 1, "born": "1"})
    now = format_time(last + timedelta(milliseconds=later))
    assert sessions.is_alive(heard, now) == (later < 12 * 3_600_000)


def test_the_process_of_the_host_is_the_nearest_that_is_no_shell(tmp_path: Path) -> None:
    asks = "from rolecall.hosts import sessions\nprint(sessions.host_process()['pid'])\n"
    script = write(tmp_path, "asks.py", asks)
    line = f"sh -c '{sys.executable} {script}; true'; true"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid()


# -- damage between two events --


SEEN = '{"s1": {"seen": "2026-01-31T09:30:00.000Z", %s}}'


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"s1": 3}', '{"s1": {"odd": 1}}', '{"s1": {"seen": "x"}}', "[" * 99_999),
        *(SEEN % odd for odd in ('"process": "x"', '"agents": [1]', '"skill": ["x"]')),
    ],
)
def test_a_record_of_sessions_that_is_damaged_begins_anew_and_that_is_said(
    tmp_path: Path, content: str
) -> None:
    tell(tmp_path, SessionStart("s1"))
    write(tmp_path, SESSIONS, content)
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    assert read(tmp_path, SESSIONS)["s1"]["agents"] == {"e1": ""}
    assert "sessions.json could not be used" in tell(tmp_path, UserMessage("s1", "hello")).notice
    assert [path.read_text() for path in (tmp_path / OURS / "damaged").iterdir()] == [content]


def test_at_a_start_with_damaged_records_no_agent_is_forgotten(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    write(tmp_path, SESSIONS, "{")
    assert "sessions.json could not be used" in tell(tmp_path, SessionStart("s2")).notice
    assert [entry["agent_id"] for entry in read(tmp_path, TRACKER)] == ["e1"]


def test_a_list_of_agents_that_is_damaged_begins_anew_and_that_is_said(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"))
    write(tmp_path, TRACKER, "{")
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    assert [entry["agent_id"] for entry in read(tmp_path, TRACKER)] == ["e1"]
    assert "agent-tracker.json could not be used" in tell(tmp_path, UserMessage("s1", "hello")).notice
    write(tmp_path, TRACKER, "{")
    assert "agent-tracker.json could not be used" in tell(tmp_path, SessionStart("s1")).notice


def test_damaged_plan_and_tasks_are_told_of_and_left_as_they_are(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"))
    write(tmp_path, TASKS, '{"goal": "g", "decisions": [], "tasks": [{"id": 1}]}')
    write(tmp_path, PLAN, "{")
    for event in (UserMessage("s1", "hello"), ContextCompact("s1")):
        context = tell(tmp_path, event).context
        assert "The tasks cannot be read" in context and "The plan cannot be read" in context
    assert "cannot be read" in tell(tmp_path, SessionEnd("s1")).notice
    assert (tmp_path / PLAN).read_text() == "{"


# -- what went wrong before --


def test_hooks_that_failed_are_told_of_once(tmp_path: Path) -> None:
    tell(tmp_path, SessionStart("s1"))
    for number in range(5):
        tool_log.note_error(str(tmp_path), f"number {number}\nwent wrong")
    answer = tell(tmp_path, UserMessage("s1", "hello"))
    assert answer.notice.startswith("5 hooks failed before this: number 2 went wrong; number 3")
    assert answer.notice in answer.context
    assert tell(tmp_path, UserMessage("s1", "hello")) == tell(tmp_path, SessionStart("s1")) == HostAnswer()
    assert len((tmp_path / OURS / "hook-errors.1.log").read_text().splitlines()) == 5


# -- the end --


def test_the_end_names_what_is_unfinished_and_removes_only_what_is_the_sessions(tmp_path: Path) -> None:
    plan(tmp_path, "A")
    tasks(tmp_path, task(1), task(2, status="completed"))
    for name in (".nexus/history.json", ".nexus/memory/a-b.md", ".nexus/rules/r.md", ".nexus/context/c.md"):
        write(tmp_path, name, '{"cycles": []}')
    tell(tmp_path, SessionStart("s1"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    tell(tmp_path, PostToolUse("s1", ENGINEER, HostToolCall("Write", (), (str(tmp_path / "a"),))))
    kept = {path for path in tmp_path.rglob("*") if path.is_file()}
    answer = tell(tmp_path, SessionEnd("s1"))
    assert "plan 'Storage' with 1 of 1 issues pending and 2 tasks, 1 of them unfinished" in answer.notice
    gone = {str(path.relative_to(tmp_path)) for path in kept if not path.exists()}
    assert {name for name in gone if "touched" not in name} == {TRACKER, SESSIONS}
    assert len(gone) == 3
    assert (tmp_path / LOG).exists()


def test_an_end_without_unfinished_work_says_nothing_and_one_without_a_project_makes_none(
    tmp_path: Path,
) -> None:
    assert tell(tmp_path, SessionEnd("s1")) == HostAnswer()
    assert list(tmp_path.iterdir()) == []
    tasks(tmp_path, task(1, status="completed"))
    tell(tmp_path, SessionStart("s1"))
    assert tell(tmp_path, SessionEnd("s1")) == tell(tmp_path, SessionEnd("s1")) == HostAnswer()


def test_the_end_of_a_turn_warns_once_and_removes_nothing(tmp_path: Path) -> None:
    tasks(tmp_path, task(1))
    tell(tmp_path, SessionStart("s1"))
    turn = SessionEnd("s1", is_over=False)
    assert "1 tasks, 1 of them unfinished" in tell(tmp_path, turn).notice
    assert tell(tmp_path, turn) == HostAnswer()
    tasks(tmp_path, task(1), task(2))
    assert "2 tasks" in tell(tmp_path, turn).notice
    assert read(tmp_path, TRACKER) == [] and "s1" in read(tmp_path, SESSIONS)


# -- compaction --


def test_after_a_compaction_everything_is_told_again(tmp_path: Path) -> None:
    plan(tmp_path, "Which format?", "Who pays?", i1="JSON, because everybody reads it.")
    tasks(
        tmp_path, task(1, status="in_progress", owner="engineer"), task(2, owner="writer"), task(3, deps=[1])
    )
    write(tmp_path, ".nexus/memory/retry-limits.md", "x")
    tell(tmp_path, SessionStart("s1"))
    tell(tmp_path, UserMessage("s1", "[plan:auto] go"))
    tell(tmp_path, SubagentSpawn("s1", ENGINEER))
    context = tell(tmp_path, ContextCompact("s1")).context
    for part in (
        "Active skill: nx-plan, mode auto.",
        "Plan 'Storage': 1 of 2 decided. Pending: 2 Who pays?.",
        "0 of 3 completed, 2 pending, 1 in progress. Ready: 2.",
        "- running: engineer e1, task 1",
        "- task 1 (in progress, engineer) Task 1",
        "- task 2 (ready, writer) Task 2",
        ".nexus/memory/: retry-limits.md",
        "- issue 1 (decided) Which format?: JSON, because everybody reads it.",
        "How you work while the skill nx-plan is active:",
    ):
        assert part in context
    assert known_hooks().skills["nx-plan"].strip() in context
    assert context == tell(tmp_path, ContextCompact("s1")).context


def test_after_a_compaction_agents_that_may_be_resumed_are_listed(tmp_path: Path) -> None:
    ended = [
        HostCaller("researcher", "r1"),
        HostCaller("engineer", "e1"),
        HostCaller("tester", "t1"),
        HostCaller("Explore", "x"),
    ]
    for minute, who in enumerate(ended):
        tell(tmp_path, SubagentSpawn("s1", who), now=at(minute))
        call = HostToolCall("Write", ("file_modification",), (str(tmp_path / "a.py"),))
        if who.agent == "engineer":
            tell(tmp_path, PostToolUse("s1", who, call), now=at(minute))
        tell(tmp_path, SubagentComplete("s1", who), now=at(minute))
    lines = tell(tmp_path, ContextCompact("s1")).context.splitlines()
    assert lines[1:] == [
        "- can be resumed: engineer e1 (bounded; a.py)",
        "- can be resumed: researcher r1 (persistent)",
    ]


def test_a_compaction_is_bounded_with_a_thousand_tasks_and_a_skill(tmp_path: Path) -> None:
    plan(tmp_path, *(f"An issue with a title of some length, number {n}" for n in range(200)))
    tasks(tmp_path, *(task(n, title="T" * 300) for n in range(1, 1001)))
    for number in range(100):
        write(tmp_path, f".nexus/memory/note-number-{number}.md", "x")
    tell(tmp_path, SessionStart("s1"))
    bare = tell(tmp_path, ContextCompact("s1")).context
    assert project_summary.count_tokens(bare) <= project_summary.LONG
    assert "lines more: nx_plan_status, nx_task_list)" in bare
    tell(tmp_path, UserMessage("s1", "[plan] go"))
    assert len(tell(tmp_path, ContextCompact("s1")).context) < 9_900


def test_a_compaction_without_anything_to_tell_tells_nothing(tmp_path: Path) -> None:
    assert tell(tmp_path, ContextCompact("s1")) == HostAnswer()
    assert list(tmp_path.iterdir()) == []


# -- inside a run of the engine --


def test_inside_a_run_only_gates_and_log_apply(tmp_path: Path) -> None:
    tasks(tmp_path, task(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    hooks = HookContext(run="thread/abc")
    for event in (
        *(SessionStart("s"), UserMessage("s", "[plan] go"), SubagentSpawn("s", ENGINEER)),
        *(SubagentComplete("s", ENGINEER), ContextCompact("s"), SessionEnd("s")),
    ):
        assert tell(tmp_path, event, hooks) == HostAnswer()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    tell(tmp_path, PostToolUse("s", HostCaller(), HostToolCall("Read")), hooks)
    assert json.loads((tmp_path / LOG).read_text())["run"] == "thread/abc"
