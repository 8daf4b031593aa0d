"""What our plugin in OpenCode tells, in our words, and our answers as it takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import WORK, calls, first

from rolecall.errors import UsageError
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
from rolecall.hosts.opencode import events
from rolecall.settings.capabilities import FILES

SESSION = "ses_1"


def read_call(tool: str, **args: Any) -> HostToolCall:
    payload = {"session": SESSION, "cwd": WORK, "tool": tool, "args": args}
    event = events.event("tool.execute.before", payload)
    assert isinstance(event, PreToolUse)
    return event.call


@pytest.mark.parametrize("call", calls("opencode"), ids=lambda call: f"{call.scene}-{call.event}")
def test_every_recorded_event_names_its_session(call: Any) -> None:
    event = events.event(call.event, call.payload)
    assert event is not None
    assert event.session == call.payload["session"]


def test_a_whole_session_in_order() -> None:
    received = [events.event(call.event, call.payload) for call in calls("opencode", "refused")]
    assert [type(event) for event in received] == [
        SessionStart,
        UserMessage,
        PreToolUse,
        SessionEnd,
        SessionEnd,
    ]
    assert received[0] == SessionStart(SESSION, is_new=True, cwd=WORK)
    assert received[-2:] == [SessionEnd(SESSION, is_over=False), SessionEnd(SESSION, is_over=True)]


def test_a_session_that_goes_on_is_not_new() -> None:
    event = events.event("session.created", {"session": SESSION, "isNew": False})
    assert event == SessionStart(SESSION, is_new=False)


def test_a_message_to_the_session_of_an_agent_starts_it() -> None:
    event = events.event("chat.message", first("opencode", "work", "chat.message", agent="engineer"))
    assert isinstance(event, SubagentSpawn)
    assert (event.session, event.who.agent) == (SESSION, "engineer")


def test_an_agent_that_ended_gives_its_last_message() -> None:
    event = events.event("subagent.completed", first("opencode", "work", "subagent.completed"))
    assert isinstance(event, SubagentComplete)
    assert (event.who.agent, event.last_message) == ("engineer", "sub done")


def test_an_agent_that_failed_has_ended_too() -> None:
    payload = {"session": SESSION, "child": "ses_9", "agent": "engineer", "output": "Subagent failed: boom"}
    expected = SubagentComplete(SESSION, HostCaller("engineer", "ses_9"), "Subagent failed: boom")
    assert events.event("subagent.completed", payload) == expected


def test_an_agent_in_the_background_has_not_ended_when_its_call_returns() -> None:
    output = '<task id="ses_9" state="running">\n<task_result>\nlater\n</task_result>\n</task>'
    payload = {"session": SESSION, "child": "ses_9", "agent": "engineer", "output": output}
    assert events.event("subagent.completed", payload) is None


def test_compaction_of_an_agents_own_session_is_nothing_of_ours() -> None:
    name = "experimental.session.compacting"
    assert events.event(name, first("opencode", "compaction", name)) == ContextCompact(SESSION)
    assert events.event(name, {"session": SESSION, "child": "ses_9", "agent": "engineer"}) is None


def test_a_command_is_a_message_as_it_was_typed() -> None:
    event = events.event("chat.message", first("opencode", "command", "chat.message"))
    assert isinstance(event, UserMessage)
    assert event.text == '/nx-plan "some words"'


def test_the_tools_that_edit_write_the_file_they_name() -> None:
    for scene, tool in (("refused", "write"), ("work", "edit")):
        event = events.event(
            "tool.execute.before", first("opencode", scene, "tool.execute.before", tool=tool)
        )
        assert isinstance(event, PreToolUse)
        assert event.who == LEAD
        assert set(event.call.classes) <= set(FILES)
        assert event.call.writes[0].startswith(WORK)
    patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: b.txt\n*** End Patch"
    assert read_call("apply_patch", patchText=patch).writes == (f"{WORK}/a.txt", f"{WORK}/b.txt")


def test_a_call_that_failed_says_so() -> None:
    failed = [
        event.error
        for call in calls("opencode", "work")
        if isinstance(event := events.event(call.event, call.payload), PostToolUse) and event.error
    ]
    assert failed == [f"File not found: {WORK}/nope.md"]


def test_a_skill_that_is_called_is_named() -> None:
    assert read_call("skill", name="nx-plan").skill == "nx-plan"


def test_a_read_names_the_file() -> None:
    assert read_call("bash", command="cat .nexus/memory/a.md").reads == (f"{WORK}/.nexus/memory/a.md",)
    assert read_call("read", filePath=f"{WORK}/.nexus/memory/a.md").reads == (f"{WORK}/.nexus/memory/a.md",)


def test_a_command_writes_in_the_folder_it_is_run_in() -> None:
    assert read_call("bash", command="echo x > a.txt").writes == (f"{WORK}/a.txt",)
    assert read_call("bash", command="echo x > a.txt", workdir="/elsewhere").writes == ("/elsewhere/a.txt",)
    assert read_call("bash", command="echo x > a.txt", workdir="sub").writes == (f"{WORK}/sub/a.txt",)


def test_an_agent_is_named_with_what_it_starts() -> None:
    assert read_call("task", subagent_type="architect").starts == "architect"
    assert read_call("task").starts == "general"


def test_our_own_tools_and_those_that_look_write_no_files() -> None:
    for tool in ("rolecall_nx_artifact_write", "todowrite", "grep", "invalid", "skill"):
        assert read_call(tool, path="a.txt", content="x") == HostToolCall(tool)


def test_a_tool_that_nobody_knows_is_told_by_its_input() -> None:
    assert read_call("files_write_file", path="a.txt", content="x").writes == (f"{WORK}/a.txt",)


@pytest.mark.parametrize("name", events.EVENTS)
@pytest.mark.parametrize(
    "payload", [{"session": "s"}, {"session": "s", "args": [], "text": 3, "child": None}]
)
def test_fields_that_are_missing_or_of_another_kind_are_empty(name: str, payload: dict[str, Any]) -> None:
    event = events.event(name, payload)
    assert event is None or event.session == "s"


def test_an_event_without_a_session_or_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="session"):
        events.event("dispose", {})
    with pytest.raises(UsageError, match=r"'session\.updated'"):
        events.event("session.updated", {"session": "s"})


@pytest.mark.parametrize("name", events.EVENTS)
def test_the_plugin_is_given_what_there_is_to_do_and_nothing_else(name: str) -> None:
    output = events.output(name, HostAnswer(block="No: ü", notice="Look."))
    assert (json.loads(output.stdout), output.stderr, output.code) == (
        {"block": "No: ü", "notice": "Look."},
        "",
        0,
    )
    assert events.output(name, HostAnswer()) == ("", "", 0)
