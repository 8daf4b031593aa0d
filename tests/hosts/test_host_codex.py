"""What Codex tells, in our words, and our answers in its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import WORK, calls, first

from rolecall.errors import UsageError
from rolecall.hosts.codex import events
from rolecall.hosts.event import (
    LEAD,
    ContextCompact,
    HostAnswer,
    HostCaller,
    HostToolCall,
    PostToolUse,
    PreToolUse,
    SessionEnd,
    SessionStart,
    SubagentComplete,
    SubagentSpawn,
    UserMessage,
)
from rolecall.settings.capabilities import FILES

OURS = [call for call in calls("codex") if call.event in events.EVENTS]


def said(name: str, answer: HostAnswer) -> Any:
    output = events.output(name, answer)
    assert (output.stderr, output.code) == ("", 0)
    return json.loads(output.stdout)


def read_call(payload: dict[str, Any]) -> HostToolCall:
    event = events.event("PreToolUse", {"session_id": "s", "cwd": WORK, **payload})
    assert isinstance(event, PreToolUse)
    return event.call


def shell(command: str) -> HostToolCall:
    return read_call({"tool_name": "Bash", "tool_input": {"command": command}})


@pytest.mark.parametrize("call", OURS, ids=lambda call: f"{call.scene}-{call.event}")
def test_every_recorded_event_names_its_session(call: Any) -> None:
    event = events.event(call.event, call.payload)
    assert event is None or event.session == call.payload["session_id"]


def test_a_whole_session_in_order() -> None:
    received = [events.event(call.event, call.payload) for call in calls("codex", "edit")]
    kinds = [type(event) for event in received]
    tools = [PreToolUse, PostToolUse]
    assert kinds == [SessionStart, UserMessage, *tools, *tools, SessionEnd, SessionEnd]
    session = "00000000-0000-4000-8000-000000000001"
    assert received[0] == SessionStart(session, is_new=True, cwd=calls("codex", "edit")[0].payload["cwd"])
    assert received[1] == UserMessage(session, "Hello [plan] do", "00000000-0000-4000-8000-000000000002")
    assert received[-2:] == [SessionEnd(session, is_over=False), SessionEnd(session, is_over=True)]


def test_a_patch_writes_the_files_it_names() -> None:
    event = events.event("PreToolUse", first("codex", "edit", "PreToolUse", tool_name="apply_patch"))
    assert isinstance(event, PreToolUse)
    assert (event.who, event.call) == (LEAD, HostToolCall("apply_patch", FILES, (f"{WORK}/a.txt",)))
    moved = first("codex", "heredoc", "PreToolUse", tool_name="apply_patch")
    assert read_call(dict(moved)).writes == (f"{WORK}/c.txt", f"{WORK}/sub/d.txt")


def test_a_patch_that_names_no_file_is_an_edit_all_the_same() -> None:
    assert read_call({"tool_name": "apply_patch", "tool_input": {"command": "nonsense"}}) == HostToolCall(
        "apply_patch", FILES
    )


def test_a_patch_given_to_a_shell_writes_the_files_it_names() -> None:
    commands = [call.payload for call in calls("codex", "heredoc") if call.payload.get("tool_name") == "Bash"]
    assert f"{WORK}/c.txt" in read_call(next(call for call in commands if "c.txt" in str(call))).writes


def test_a_command_writes_what_it_redirects_to() -> None:
    found = shell("echo hi > notes.txt")
    assert (found.command, found.writes) == ("echo hi > notes.txt", (f"{WORK}/notes.txt",))
    assert "shell_command_exec" in found.classes


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("cat .nexus/memory/a.md", ["a.md"]),
        ("sed -n '1,200p' .nexus/memory/a.md && nl ./.nexus/memory/b-c.md | head", ["a.md", "b-c.md"]),
        (f"head -5 {WORK}/.nexus/memory/a.md", ["a.md"]),
        ("rg word .nexus/memory/a.md", []),
        ("ls .nexus/memory/", []),
        ("echo .nexus/memory/a.md", []),
        ("cat README.md", []),
        ("cat '.nexus/memory/a.md", []),
        ("cat README.md > .nexus/memory/a.md", []),
        ("sed -i s/a/b/ .nexus/memory/a.md", []),
    ],
)
def test_a_note_that_a_command_prints_was_read(command: str, read: list[str]) -> None:
    assert [path.rpartition("/")[2] for path in shell(command).reads] == read
    assert all(path.startswith(WORK) for path in shell(command).reads)


def test_a_skill_whose_file_is_printed_was_called() -> None:
    assert shell("cat .codex/skills/nx-plan/SKILL.md").skill == "nx-plan"
    assert shell("grep -n x .codex/skills/nx-plan/SKILL.md").skill == ""


def test_a_subagent_is_named_in_its_own_events() -> None:
    who = HostCaller("architect", first("codex", "agent", "SubagentStart")["agent_id"])
    received = [events.event(call.event, call.payload) for call in calls("codex", "agent")]
    session = calls("codex", "agent")[0].payload["session_id"]
    assert SubagentSpawn(session, who) in received
    assert SubagentComplete(session, who, "sub done") in received
    theirs = [event.call.tool for event in received if isinstance(event, PreToolUse) and event.who == who]
    assert theirs == ["Bash", "mcp__tiny__add"]


def test_what_lead_writes_to_an_agent_is_no_message_of_the_user() -> None:
    prompts = [call for call in calls("codex", "agent") if call.event == "UserPromptSubmit"]
    received = [events.event(call.event, call.payload) for call in prompts]
    assert [call.payload["prompt"] for call in prompts] == ["Go", "WRITE IT"]
    assert isinstance(received[0], UserMessage)
    assert received[1] is None


def test_an_agent_without_a_kind_is_still_no_lead() -> None:
    event = events.event("PreToolUse", {"session_id": "s", "agent_id": "7", "tool_name": "Bash"})
    assert isinstance(event, PreToolUse)
    assert event.who == HostCaller("default", "7")


def test_starting_an_agent_is_seen_under_each_name_that_codex_has_for_it() -> None:
    names = {
        call.payload["tool_name"]: read_call(call.payload).starts
        for scene in ("agent", "nested")
        for call in calls("codex", scene)
        if call.event == "PreToolUse" and "spawn_agent" in call.payload["tool_name"]
    }
    assert names == {"spawn_agent": "architect", "collaborationspawn_agent": "architect"}
    assert read_call({"tool_name": "multi_agent_v1send_input", "tool_input": {"target": "7"}}).starts == "7"
    assert read_call({"tool_name": "spawn_agent", "tool_input": {"message": "x"}}).starts == "default"


def test_waiting_for_an_agent_and_asking_the_user_do_nothing() -> None:
    for tool in ("collaborationwait_agent", "multi_agent_v1wait_agent", "request_user_input", "update_plan"):
        assert read_call({"tool_name": tool, "tool_input": {"path": "x", "content": "y"}}) == HostToolCall(
            tool
        )


def test_our_own_tools_write_no_files_of_the_project() -> None:
    given = {"filename": "a.md", "content": "x"}
    tool = "mcp__rolecall__nx_artifact_write"
    assert read_call({"tool_name": tool, "tool_input": given}) == HostToolCall(tool)


def test_a_tool_that_nobody_knows_is_told_by_its_input() -> None:
    found = read_call(
        {"tool_name": "mcp__files__write_file", "tool_input": {"path": "a.txt", "content": "x"}}
    )
    assert found.writes == (f"{WORK}/a.txt",)


def test_a_session_that_goes_on_is_not_new_and_one_that_was_compacted_is_told_so() -> None:
    starts = [
        events.event(call.event, call.payload)
        for scene in ("resumed", "compaction")
        for call in calls("codex", scene)
        if call.event == "SessionStart"
    ]
    assert [type(event) for event in starts] == [SessionStart, SessionStart, SessionStart, ContextCompact]
    assert [event.is_new for event in starts if isinstance(event, SessionStart)] == [True, False, True]


@pytest.mark.parametrize("name", events.EVENTS)
@pytest.mark.parametrize("payload", [{"session_id": "s"}, {"session_id": "s", "tool_input": [], "prompt": 3}])
def test_fields_that_are_missing_or_of_another_kind_are_empty(name: str, payload: dict[str, Any]) -> None:
    event = events.event(name, payload)
    assert event is None or event.session == "s"


def test_an_event_without_a_session_or_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="session_id"):
        events.event("Stop", {})
    with pytest.raises(UsageError, match="'PreCompact'"):
        events.event("PreCompact", {"session_id": "s"})


def test_a_refusal_is_said_in_json_with_exit_zero() -> None:
    assert said("PreToolUse", HostAnswer(block="No.", context="Because.", notice="Look.")) == {
        "systemMessage": "Look.",
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "additionalContext": "Because.",
            "permissionDecision": "deny",
            "permissionDecisionReason": "No.",
        },
    }


@pytest.mark.parametrize("name", ["SessionStart", "UserPromptSubmit", "SubagentStart", "PostToolUse"])
def test_context_goes_to_the_model(name: str) -> None:
    specific = {"hookEventName": name, "additionalContext": "Look: ü"}
    assert said(name, HostAnswer(context="Look: ü")) == {"hookSpecificOutput": specific}


@pytest.mark.parametrize("name", ["Stop", "SubagentStop", "SessionEnd"])
def test_at_an_end_only_the_person_is_told(name: str) -> None:
    assert said(name, HostAnswer(notice="A", context="B")) == {"systemMessage": "A\nB"}


@pytest.mark.parametrize("name", events.EVENTS)
def test_nothing_to_say_is_said_with_nothing(name: str) -> None:
    assert events.output(name, HostAnswer()) == ("", "", 0)
