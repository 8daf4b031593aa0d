"""The adapter of Claude Code with a stand-in that plays what the real program printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay import ANSWER, Replays, call, fails, play, value

from rolecall.agents import make
from rolecall.agents.adapters.claude import DENIES, Claude, claude
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

SESSION = "00000000-0000-4000-8000-000000000001"


class TestClaudeKeepsTheContract(Replays):
    agent = claude()
    session = SESSION


def listed(seen: dict[str, Any], flag: str) -> set[str]:
    return set((value(seen, flag) or "").split(","))


# -- how it is called --


def test_the_prompt_goes_by_stdin_and_variables_are_laid_over_the_contexts(tmp_path: Path) -> None:
    seen = call(claude(env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}), tmp_path)
    assert seen["stdin"] == "The prompt."
    assert "The prompt." not in seen["argv"]
    assert (seen["env"]["KEPT"], seen["env"]["DISABLE_AUTOUPDATER"]) == ("1", "1")
    assert seen["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"


def test_options_become_flags(tmp_path: Path) -> None:
    made = make("claude", {"model": "opus", "max-turns": "7", "max_cost": "1.5", "tools": "Read,Grep"})
    seen = call(replace(made, system="Be kind.", args=("--effort", "high")), tmp_path)
    flags = ("--model", "--max-turns", "--max-budget-usd", "--tools", "--append-system-prompt", "--effort")
    assert [value(seen, flag) for flag in flags] == ["opus", "7", "1.5", "Read,Grep", "Be kind.", "high"]


def test_without_options_their_flags_are_not_there(tmp_path: Path) -> None:
    seen = call(claude(), tmp_path)
    assert {
        "--model", "--max-turns", "--max-budget-usd", "--tools", "--append-system-prompt", "--disallowedTools",
        "--resume", "--fork-session", "--mcp-config", "--strict-mcp-config", "--json-schema",
    }.isdisjoint(seen["argv"])  # fmt: skip


def test_a_session_is_resumed_and_only_a_copy_is_forked(tmp_path: Path) -> None:
    seen = call(claude(), tmp_path, session="s-1")
    assert value(seen, "--resume") == "s-1"
    assert "--fork-session" not in seen["argv"]
    assert "--fork-session" in call(claude(), tmp_path / "fork", session="s-1", is_fork=True)["argv"]


def test_a_schema_is_passed_on_only_by_an_agent_that_is_held_to_it(tmp_path: Path) -> None:
    schema = {"type": "object"}
    assert value(call(claude(is_typed=True), tmp_path, schema=schema), "--json-schema") == json.dumps(schema)
    assert "--json-schema" not in call(claude(), tmp_path / "free", schema=schema)["argv"]
    assert "--json-schema" not in call(claude(is_typed=True), tmp_path / "none")["argv"]


def test_tool_servers_are_written_to_a_file_of_the_run_that_is_gone_after_it(tmp_path: Path) -> None:
    server = McpServer("tiny", "/bin/tiny", ("--port", "1"), {"KEY": "v"})
    seen = call(claude(mcp=(server,)), tmp_path)
    path = value(seen, "--mcp-config")
    assert path is not None
    assert json.loads(seen["files"][path]) == {
        "mcpServers": {
            "tiny": {"type": "stdio", "command": "/bin/tiny", "args": ["--port", "1"], "env": {"KEY": "v"}}
        }
    }
    assert "--strict-mcp-config" in seen["argv"]
    assert "mcp__tiny" in listed(seen, "--allowedTools")
    assert not Path(path).exists()


# -- restrictions --


def test_every_class_of_actions_is_denied_by_tools_of_its_own() -> None:
    assert set(DENIES) == set(capabilities.CLASSES) == Claude.deniable
    assert all(DENIES.values())


@pytest.mark.parametrize("restriction", sorted(capabilities.RESTRICTIONS))
def test_what_a_restriction_denies_is_forbidden_and_not_allowed(tmp_path: Path, restriction: str) -> None:
    seen = call(claude(), tmp_path, capabilities=(restriction, "a word of the workflow's own"))
    denied = {tool for name in capabilities.RESTRICTIONS[restriction] for tool in DENIES[name]}
    assert listed(seen, "--disallowedTools") == denied
    assert denied.isdisjoint(listed(seen, "--allowedTools"))
    assert "Read" in listed(seen, "--allowedTools")


def test_a_role_that_may_not_write_gets_no_tools_of_servers_it_was_not_given(tmp_path: Path) -> None:
    assert "--strict-mcp-config" in call(claude(), tmp_path, capabilities=("read_only",))["argv"]
    tasks = call(claude(), tmp_path / "tasks", capabilities=("no_task_create",))
    assert "--strict-mcp-config" not in tasks["argv"]


def test_named_tools_are_those_that_are_not_denied(tmp_path: Path) -> None:
    seen = call(claude(tools=("Read", "Write")), tmp_path, capabilities=("no_file_edit",))
    assert value(seen, "--tools") == "Read"


# -- what its events mean --


def test_usage_is_the_difference_to_what_the_session_had_used(tmp_path: Path) -> None:
    before = Usage(100, 7, cost=0.0001)
    reply, recorder = play(claude(), tmp_path, "resumed", session=SESSION, session_total=before)
    assert reply.session_total is not None
    assert (reply.session_total.input_tokens, reply.session_total.output_tokens) == (150, 10)
    assert reply.usage == replace(reply.session_total.since(before), turns=1)
    assert recorder.bodies("usage")[-1]["input_tokens"] == 50


def test_tool_calls_become_turns_and_written_files_are_told(tmp_path: Path) -> None:
    reply, recorder = play(claude(), tmp_path, "tools")
    assert [[call.name for call in turn.tool_calls] for turn in reply.turns] == [["Write"], ["Bash"], []]
    assert reply.turns[1].tool_calls[0].result == "42"
    assert (reply.files, reply.text) == (("a.txt",), ANSWER)
    assert [body["name"] for body in recorder.bodies("tool_call")] == ["Write", "Bash"]


def test_tokens_are_told_with_each_message_and_the_result_has_the_last_word(tmp_path: Path) -> None:
    reply, recorder = play(claude(), tmp_path, "tools")
    bodies = [(body["input_tokens"], body["output_tokens"]) for body in recorder.bodies("usage")]
    assert bodies == [(10, 1), (20, 2), (30, 3), (30, 15)]
    assert reply.usage and bodies[-1] == (reply.usage.input_tokens, reply.usage.output_tokens)


def test_a_refused_write_touches_nothing(tmp_path: Path) -> None:
    reply, recorder = play(claude(), tmp_path, "read-only")
    assert (reply.files, reply.ending) == ((), "completed")
    refused, recorder = play(claude(), tmp_path / "denied", "permission-denied")
    assert refused.files == ()
    assert [(body["what"], body["allowed"]) for body in recorder.bodies("permission")] == [("Write", False)]


def test_of_several_results_the_last_answers_and_all_are_counted(tmp_path: Path) -> None:
    reply, _ = play(claude(), tmp_path, "background")
    assert reply.text == ANSWER
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.turns) == (1030, 115, 3)
    assert "I saw it." not in [turn.text for turn in reply.turns]


def test_what_a_subagent_does_is_kept_and_what_it_says_is_not_the_agents_word(tmp_path: Path) -> None:
    reply, _ = play(claude(), tmp_path, "subagent")
    assert (reply.text, reply.files) == (ANSWER, ("sub.txt",))
    assert [call.name for turn in reply.turns for call in turn.tool_calls] == ["Agent", "Write"]
    assert "I wrote it." not in [turn.text for turn in reply.turns]


def test_a_typed_answer_becomes_frontmatter_with_what_was_said_as_its_body(tmp_path: Path) -> None:
    reply, _ = play(claude(), tmp_path, "typed")
    assert reply.text == "---\nstatus: done\nwhy: it works\n---\n\nI looked at all of it.\n"


def test_the_result_of_a_tool_server_is_kept(tmp_path: Path) -> None:
    reply, _ = play(claude(), tmp_path, "mcp")
    assert reply.turns[0].tool_calls[0].name == "mcp__tiny__add"
    assert "SUM=5" in reply.turns[0].tool_calls[0].result


@pytest.mark.parametrize(
    ("stream", "reason"), [("max-turns", "maximum number of turns"), ("max-cost", "maximum budget")]
)
def test_a_limit_is_a_reply_that_says_so(tmp_path: Path, stream: str, reason: str) -> None:
    reply, _ = play(claude(), tmp_path, stream)
    assert reply.ending == "limit"
    assert reason in reply.reason


@pytest.mark.parametrize(("stream", "files"), [("api-failure", ()), ("api-failure-later", ("a.txt",))])
def test_an_api_failure_is_told_although_the_result_says_success(
    tmp_path: Path, stream: str, files: tuple[str, ...]
) -> None:
    error = fails(claude(), tmp_path, stream)
    assert (error.ending, error.text, error.files, error.session) == ("api_failure", "", files, SESSION)
    assert "500 boom" in str(error)


def test_an_unknown_session_is_lost_only_where_one_was_asked_for(tmp_path: Path) -> None:
    assert fails(claude(), tmp_path, "session-lost", session=SESSION).is_session_lost
    assert not fails(claude(), tmp_path / "new", "session-lost").is_session_lost


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ({"exit": 0}, "interrupted"),
        ({"exit": 143}, "killed"),
        ({"exit": -9}, "killed"),
        ({"exit": 1, "stderr": "it is broken"}, "failed"),
    ],
)
def test_without_a_result_the_exit_decides_and_what_was_said_is_kept(
    tmp_path: Path, ending: dict[str, Any], expected: str
) -> None:
    error = fails(claude(), tmp_path, "cancelled", ending={"hangs": False, **ending})
    assert (error.ending, error.text) == (expected, "I look first.")
    assert error.session == SESSION
    assert str(ending.get("stderr", "")) in str(error)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"terminal_reason": "completed", "stop_reason": "refusal"}, "declined"),
        ({"terminal_reason": "hook_stopped", "result": "a hook says no"}, "a hook says no"),
        ({"terminal_reason": "tool_deferred"}, "tool_deferred"),
    ],
)
def test_a_run_that_was_stopped_for_a_reason_is_refused(
    tmp_path: Path, event: dict[str, Any], reason: str
) -> None:
    stream = json.dumps({"type": "result", "session_id": "s", **event}) + "\n"
    reply, _ = play(claude(), tmp_path, stream)
    assert reply.ending == "refused"
    assert reason in reply.reason


def test_a_prompt_that_a_hook_blocked_is_refused_although_the_result_says_success(tmp_path: Path) -> None:
    events = [
        {"type": "system", "subtype": "informational", "prevent_continuation": True, "content": "not today"},
        {"type": "result", "subtype": "success", "is_error": False, "result": "blocked by hook"},
    ]
    reply, _ = play(claude(), tmp_path, "".join(json.dumps(event) + "\n" for event in events))
    assert (reply.ending, reply.reason) == ("refused", "not today")


def test_an_option_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="'modell'") as caught:
        make("claude", {"modell": "opus"})
    assert "'model'" in caught.value.hint
