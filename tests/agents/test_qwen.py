"""The adapter of Qwen Code with a stand-in that plays what the real program printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replay import ANSWER, Replays, call, calls_of, fails, play, value

from rolecall.agents.adapters.qwen import DENIES, qwen
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Usage
from rolecall.settings import capabilities

SESSION = "00000000-0000-4000-8000-000000000001"
TINY = McpServer("tiny", "/bin/tiny", ("--port", "1"), {"KEY": "v"})


class TestQwenKeepsTheContract(Replays):
    agent = qwen()
    session = SESSION


def following(seen: dict[str, Any], flag: str) -> list[str]:
    """The words after a flag that takes several, up to the next flag."""
    argv: list[str] = seen["argv"]
    rest = argv[argv.index(flag) + 1 :]
    return rest[: next((at for at, word in enumerate(rest) if word.startswith("--")), len(rest))]


def test_the_prompt_goes_by_stdin_and_every_tool_may_be_used(tmp_path: Path) -> None:
    seen = call(qwen(env={"OPENAI_BASE_URL": "http://127.0.0.1:9"}), tmp_path)
    assert seen["stdin"] == "The prompt."
    assert value(seen, "--approval-mode") == "yolo"
    assert (seen["env"]["KEPT"], seen["env"]["OPENAI_BASE_URL"]) == ("1", "http://127.0.0.1:9")
    others = {"--exclude-tools", "--allowed-mcp-server-names", "--resume", "--mcp-config", "--model"}
    assert others.isdisjoint(seen["argv"])


def test_options_and_the_session_become_flags(tmp_path: Path) -> None:
    seen = call(qwen(model="qwen3", args=("--debug",)), tmp_path, session="s-1")
    assert (value(seen, "--model"), value(seen, "--resume"), seen["argv"][-1]) == ("qwen3", "s-1", "--debug")
    assert "--fork-session" not in seen["argv"]
    assert "--fork-session" in call(qwen(), tmp_path / "fork", session="s-1", is_fork=True)["argv"]


def test_tool_servers_are_written_to_a_file_of_the_run(tmp_path: Path) -> None:
    seen = call(qwen(mcp=(TINY,)), tmp_path)
    path = str(value(seen, "--mcp-config"))
    server = {"type": "stdio", "command": "/bin/tiny", "args": ["--port", "1"], "env": {"KEY": "v"}}
    assert json.loads(seen["files"][path]) == {"mcpServers": {"tiny": server}}
    assert not Path(path).exists()


@pytest.mark.parametrize("restriction", sorted(capabilities.RESTRICTIONS))
def test_what_a_restriction_denies_is_excluded(tmp_path: Path, restriction: str) -> None:
    seen = call(qwen(), tmp_path, capabilities=(restriction,))
    expected = {tool for name in capabilities.RESTRICTIONS[restriction] for tool in DENIES[name]}
    assert set(following(seen, "--exclude-tools")) == expected


def test_a_restricted_role_may_ask_only_the_servers_it_was_given(tmp_path: Path) -> None:
    seen = call(qwen(mcp=(TINY,)), tmp_path, capabilities=("read_only",))
    assert following(seen, "--allowed-mcp-server-names") == ["tiny"]
    without = call(qwen(), tmp_path / "without", capabilities=("read_only",))
    assert following(without, "--allowed-mcp-server-names") == [""]
    tasks = call(qwen(), tmp_path / "tasks", capabilities=("no_task_create",))
    assert "--allowed-mcp-server-names" not in tasks["argv"]


def test_an_answer_comes_with_session_and_usage(tmp_path: Path) -> None:
    reply, recorder = play(qwen(), tmp_path, "answer")
    assert (reply.text, reply.session, reply.ending) == (ANSWER, SESSION, "completed")
    assert reply.usage == Usage(100, 7, 40, None, 1)
    fields = {"input_tokens": 100, "output_tokens": 7, "cached_tokens": 40}
    assert recorder.bodies("usage") == [fields, fields]  # with the message, and with the result


def test_figures_of_a_resumed_session_are_counted_from_where_it_was_left(tmp_path: Path) -> None:
    reply, _ = play(qwen(), tmp_path, "resumed", session=SESSION, session_total=Usage(100, 7, 40))
    assert reply.usage == Usage(50, 3, 20, None, 1)
    assert reply.session_total == Usage(150, 10, 60)


def test_turns_hold_the_calls_and_only_files_that_were_written_are_touched(tmp_path: Path) -> None:
    reply, _ = play(qwen(), tmp_path, "tools")
    assert [turn.text for turn in reply.turns] == ["I write it.", "", ANSWER]
    assert [name for name, _ in calls_of(reply)] == ["write_file", "run_shell_command"]
    assert "42042" in calls_of(reply)[1][1]
    assert reply.files == ("a.txt",)
    refused, recorder = play(qwen(), tmp_path / "refused", "no-file-edit")
    assert refused.files == ()
    assert recorder.bodies("permission") == [{"what": "write_file", "allowed": False, "reason": ""}]


def test_tools_of_servers_are_called_by_their_own_names(tmp_path: Path) -> None:
    assert calls_of(play(qwen(), tmp_path, "mcp")[0]) == [("mcp__tiny__add", "SUM=5 told")]


def test_a_limit_is_an_answer_that_says_so(tmp_path: Path) -> None:
    reply, _ = play(qwen(), tmp_path, "limit")
    assert (reply.text, reply.ending) == ("I look.", "limit")
    assert "max session turns" in reply.reason


def test_the_endings_that_are_no_answer(tmp_path: Path) -> None:
    api = fails(qwen(), tmp_path / "api", "api-failure")
    assert (api.ending, api.session) == ("api_failure", SESSION)
    assert "the key is wrong" in str(api)
    lost = fails(qwen(), tmp_path / "lost", "session-lost", session="s-1")
    assert (lost.ending, lost.is_session_lost) == ("failed", True)
    killed = fails(qwen(), tmp_path / "killed", "cancelled", ending={"hangs": False, "exit": -15})
    assert (killed.ending, killed.text, killed.files) == ("killed", "I write it.", ("a.txt",))
    other = '{"type": "result", "is_error": true, "subtype": "error_during_execution"}\n'
    error = fails(qwen(), tmp_path / "other", other)
    assert (error.ending, str(error)) == ("failed", "error_during_execution")
