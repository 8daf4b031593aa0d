"""What Claude Code says at its events, in our words; and our answers as it reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolecall.errors import UsageError
from rolecall.hosts.claude import events
from rolecall.hosts.claude.install import sample
from rolecall.hosts.codex import events as codex
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

SESSION = {"session_id": "s1", "cwd": "/work"}
TESTER = HostCaller("tester", "a1")
OF_TESTER = {"agent_type": "tester", "agent_id": "a1"}


def event(name: str, **payload: Any) -> Any:
    return events.event(name, {**SESSION, **payload})


def read_call(tool: str, **given: Any) -> HostToolCall:
    found = event("PreToolUse", tool_name=tool, tool_input=given)
    assert isinstance(found, PreToolUse)
    return found.call


# -- events --


@pytest.mark.parametrize(("source", "is_new"), [("startup", True), ("clear", True), ("resume", False)])
def test_a_session_that_goes_on_is_told_from_a_new_one(source: str, is_new: bool) -> None:
    assert event("SessionStart", source=source) == SessionStart("s1", is_new=is_new, cwd=SESSION["cwd"])


def test_a_session_that_starts_after_compaction_is_the_compaction() -> None:
    assert event("SessionStart", source="compact") == ContextCompact("s1")


@pytest.mark.parametrize("host", [events, codex])
def test_the_event_after_a_compaction_is_understood_and_not_installed(host: Any) -> None:
    assert host.event("PostCompact", {**SESSION, "trigger": "auto"}) == ContextCompact("s1")
    assert "PostCompact" not in host.EVENTS
    output = json.loads(host.output("PostCompact", HostAnswer(context="c")).stdout)
    assert output["hookSpecificOutput"] == {"hookEventName": "PostCompact", "additionalContext": "c"}


def test_what_the_user_wrote_comes_with_its_id() -> None:
    assert event("UserPromptSubmit", prompt="[plan] it", prompt_id="p1") == UserMessage(
        "s1", "[plan] it", "p1"
    )


def test_what_an_agent_answered_is_no_word_of_the_users() -> None:
    message = "<task-notification>\n<result>[run] it now</result>\n</task-notification>"
    assert event("UserPromptSubmit", prompt=message, prompt_id="p2") == UserMessage("s1", "", "p2")


def test_agents_come_and_go_by_kind_and_id() -> None:
    assert event("SubagentStart", **OF_TESTER) == SubagentSpawn("s1", TESTER)
    done = event("SubagentStop", **OF_TESTER, last_assistant_message="PASS")
    assert done == SubagentComplete("s1", TESTER, "PASS")


def test_an_agent_without_a_kind_is_the_hosts_own_affair() -> None:
    assert event("SubagentStart", agent_id="a1", agent_type="") is None
    assert event("SubagentStop", agent_id="a1", agent_type="", last_assistant_message="summary") is None


def test_who_uses_a_tool_is_the_agent_that_is_named_or_lead() -> None:
    read = {"tool_name": "Read", "tool_input": {"file_path": "/work/a"}}
    found = HostToolCall("Read", reads=("/work/a",))
    assert event("PreToolUse", **read) == PreToolUse("s1", LEAD, found)
    assert event("PostToolUse", **read, **OF_TESTER) == PostToolUse("s1", TESTER, found)
    assert event("PostToolUseFailure", **read, error="gone") == PostToolUse("s1", LEAD, found, "gone")


def test_a_session_of_which_an_agent_is_the_main_one_is_that_agents() -> None:
    found = event("PreToolUse", agent_type="tester", tool_name="Read", tool_input={})
    assert found.who == HostCaller("tester")


def test_the_end_of_a_turn_is_not_the_end_of_the_session() -> None:
    assert event("Stop") == SessionEnd("s1", is_over=False)
    assert event("SessionEnd", reason="other") == SessionEnd("s1", is_over=True)


@pytest.mark.parametrize("name", events.EVENTS)
def test_a_payload_without_anything_but_the_session_raises_nothing(name: str) -> None:
    events.event(name, {"session_id": "s1"})
    events.event(name, {"session_id": "s1", "tool_input": [], "tool_name": 3, "prompt": None, "cwd": 1})


@pytest.mark.parametrize("name", events.EVENTS)
def test_a_payload_without_a_session_says_so(name: str) -> None:
    with pytest.raises(UsageError, match="no session_id"):
        events.event(name, OF_TESTER)


def test_an_event_that_claude_does_not_have_says_so() -> None:
    with pytest.raises(UsageError, match="no event 'Nonsense'"):
        events.event("Nonsense", SESSION)


@pytest.mark.parametrize("name", events.EVENTS)
def test_there_is_a_sample_of_every_event(name: str) -> None:
    assert events.event(name, sample(name, "/work")) is not None


# -- tools --


@pytest.mark.parametrize("tool", ["Write", "Edit", "MultiEdit"])
def test_editing_tools_write_the_file_they_name(tool: str) -> None:
    found = read_call(tool, file_path="src/a.py", content="x")
    assert found.writes == ("/work/src/a.py",)
    assert set(found.classes) <= set(FILES)
    assert found.classes


def test_a_notebook_is_a_structured_document() -> None:
    found = read_call("NotebookEdit", notebook_path="/work/n.ipynb", new_source="1")
    assert found.writes == ("/work/n.ipynb",)
    assert "structured_document_edit" in found.classes


def test_a_shell_writes_what_its_command_visibly_writes() -> None:
    found = read_call("Bash", command="echo x > out.txt")
    assert (found.command, found.writes) == ("echo x > out.txt", ("/work/out.txt",))
    assert "shell_command_exec" in found.classes


def test_a_note_that_is_printed_was_read_and_one_that_is_searched_was_not() -> None:
    note = "/work/.nexus/memory/a.md"
    assert read_call("Bash", command="cat .nexus/memory/a.md").reads == (note,)
    assert read_call("Read", file_path=note).reads == (note,)
    for command in ("grep x .nexus/memory/a.md", "ls .nexus/memory", "echo x > .nexus/memory/a.md"):
        assert read_call("Bash", command=command).reads == ()
    for tool in (
        "Grep",
        "Glob",
        "LS",
        "mcp__files__grep",
        "mcp__files__list_directory",
        "mcp__files__get_file_info",
    ):
        assert read_call(tool, path=note, pattern="x").reads == ()


def test_a_skill_that_is_called_is_named_with_its_words() -> None:
    assert read_call("Skill", skill="nx-plan", args="auto now") == HostToolCall(
        "Skill", skill="nx-plan", words="auto now"
    )


@pytest.mark.parametrize(
    ("tool", "given", "kind"),
    [
        ("Agent", {"subagent_type": "tester", "prompt": "p"}, "tester"),
        ("Task", {"prompt": "p"}, "general-purpose"),
        ("SendMessage", {"to": "a1", "message": "m", "content": "m"}, "a1"),
        ("Workflow", {"script": "rm -rf x", "name": "w"}, "w"),
    ],
)
def test_a_tool_that_sets_agents_to_work_starts_them_and_writes_nothing(
    tool: str, given: dict[str, str], kind: str
) -> None:
    assert read_call(tool, **given) == HostToolCall(tool, starts=kind)


@pytest.mark.parametrize("server", ["rolecall", "rolecall-tester", "rolecall-my-own"])
@pytest.mark.parametrize("name", ["nx_task_add", "nx_artifact_write"])
def test_our_own_tools_are_left_to_the_gate_which_knows_them_by_name(server: str, name: str) -> None:
    assert read_call(f"mcp__{server}__{name}", path="a", content="b") == HostToolCall(
        f"mcp__{server}__{name}"
    )


def test_a_tool_nobody_knows_is_judged_by_its_input() -> None:
    assert read_call("WriteV2", file_path="a", content="b").writes == ("/work/a",)
    assert read_call("mcp__files__write_file", path="/work/b", content="c").writes == ("/work/b",)
    assert read_call("mcp__rolecallish__write_file", path="/work/b", content="c").writes == ("/work/b",)


@pytest.mark.parametrize("tool", ["Skill", "TodoWrite", "WebFetch", "AskUserQuestion"])
def test_tools_of_the_host_that_edit_nothing_are_not_guessed_about(tool: str) -> None:
    assert read_call(tool, path="a", content="b", url="c") == HostToolCall(tool)


# -- answers --


def said(name: str, answer: HostAnswer) -> Any:
    found = events.output(name, answer)
    assert (found.stderr, found.code) == ("", 0)
    return json.loads(found.stdout) if found.stdout else None


@pytest.mark.parametrize("name", events.EVENTS)
def test_an_empty_answer_says_nothing(name: str) -> None:
    assert events.output(name, HostAnswer()) == ("", "", 0)


def test_a_block_is_said_in_json_and_never_by_a_failure() -> None:
    assert said("PreToolUse", HostAnswer(block="no task")) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "no task",
        }
    }


@pytest.mark.parametrize(
    "name",
    ["SessionStart", "UserPromptSubmit", "SubagentStart", "PreToolUse", "PostToolUse", "PostToolUseFailure"],
)
def test_context_goes_before_the_model_and_a_notice_to_the_person(name: str) -> None:
    assert said(name, HostAnswer(context="now", notice="ü")) == {
        "systemMessage": "ü",
        "hookSpecificOutput": {"hookEventName": name, "additionalContext": "now"},
    }


@pytest.mark.parametrize("name", ["Stop", "SubagentStop"])
def test_where_context_would_make_the_model_go_on_it_goes_to_the_person(name: str) -> None:
    assert said(name, HostAnswer(context="unfinished", notice="look")) == {
        "systemMessage": "look\nunfinished"
    }
    assert said(name, HostAnswer(context="the same", notice="the same")) == {"systemMessage": "the same"}


def test_at_the_end_a_failure_is_how_the_person_is_told() -> None:
    assert events.output("SessionEnd", HostAnswer(notice="2 tasks are open")) == ("", "2 tasks are open", 1)


@pytest.mark.parametrize("letter", ["x", "ü", "한", "🙂"])
@pytest.mark.parametrize("host", [events, codex])
def test_context_that_is_longer_than_the_host_takes_says_where_it_was_cut(host: Any, letter: str) -> None:
    size, encoding = host.LIMIT
    most = size // len(letter.encode(encoding))
    fitting = letter * most
    assert context_of(host, fitting) == fitting
    reported = context_of(host, f"begin {fitting}")
    assert reported.startswith(f"begin {letter}")
    assert "(cut here" in reported
    assert size - 4 < len(reported.encode(encoding)) <= size


def context_of(host: Any, context: str) -> str:
    output = host.output("UserPromptSubmit", HostAnswer(context=context))
    text: str = json.loads(output.stdout)["hookSpecificOutput"]["additionalContext"]
    return text
