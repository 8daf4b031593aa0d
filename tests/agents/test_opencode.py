"""The adapter of OpenCode with a stand-in that plays what the real program printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from replay import ANSWER, Replays, call, calls_of, fails, play, value
from standin import STREAMS

from rolecall.agents.adapters.opencode import DENIES, opencode
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

CONFIG = "OPENCODE_CONFIG_CONTENT"
TINY = McpServer("tiny", "/bin/tiny", ("--port", "1"), {"KEY": "v"})


def session_in(stream: str) -> str:
    text = (STREAMS / "opencode" / f"{stream}.jsonl").read_text(encoding="utf-8")
    (found,) = set(re.findall(r'"sessionID": "(\w+)"', text))
    return str(found)


class TestOpenCodeKeepsTheContract(Replays):
    agent = opencode()
    session = session_in("answer")


def permissions(seen: dict[str, Any]) -> dict[str, str]:
    agent: dict[str, Any] = json.loads(seen["env"][CONFIG])["agent"]["rolecall"]
    assert (agent["mode"], value(seen, "--agent")) == ("primary", "rolecall")
    found: dict[str, str] = agent["permission"]
    return found


def test_the_prompt_goes_by_stdin_and_every_tool_may_be_used(tmp_path: Path) -> None:
    seen = call(opencode(env={"OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}), tmp_path)
    assert seen["stdin"] == "The prompt."
    assert (value(seen, "--format"), "--auto" in seen["argv"]) == ("json", True)
    assert value(seen, "--dir") == str(tmp_path)
    assert (seen["env"]["KEPT"], seen["env"]["OPENCODE_DISABLE_LSP_DOWNLOAD"]) == ("1", "1")
    assert seen["env"]["OPENCODE_DISABLE_AUTOUPDATE"] == "1"
    assert CONFIG not in seen["env"]
    assert {"--agent", "--session", "--fork", "--model"}.isdisjoint(seen["argv"])


def test_options_and_the_session_become_flags(tmp_path: Path) -> None:
    seen = call(opencode(model="a/b", args=("--variant", "high")), tmp_path, session="s-1")
    flags = ("--model", "--session", "--variant")
    assert [value(seen, flag) for flag in flags] == ["a/b", "s-1", "high"]
    assert "--fork" not in seen["argv"]
    assert "--fork" in call(opencode(), tmp_path / "fork", session="s-1", is_fork=True)["argv"]


def test_tool_servers_are_added_to_what_the_program_was_told_already(tmp_path: Path) -> None:
    fields = {"theme": "dark", "mcp": {"mine": {"type": "local", "command": ["mine"]}}}
    seen = call(opencode(mcp=(TINY,)), tmp_path, env={CONFIG: json.dumps(fields)})
    server = {"type": "local", "command": ["/bin/tiny", "--port", "1"], "environment": {"KEY": "v"}}
    assert json.loads(seen["env"][CONFIG]) == {
        "theme": "dark",
        "mcp": {"mine": fields["mcp"]["mine"], "tiny": {**server, "enabled": True}},  # type: ignore[index]
    }


@pytest.mark.parametrize("told", ["{", "[1]", '"text"', "3"])
def test_what_the_program_was_told_must_be_an_object(tmp_path: Path, told: str) -> None:
    with pytest.raises(UsageError, match=CONFIG) as caught:
        call(opencode(mcp=(TINY,)), tmp_path, env={CONFIG: told})
    assert caught.value.hint


@pytest.mark.parametrize("restriction", ["no_file_edit", "no_shell_exec", "read_only"])
def test_a_restricted_role_is_played_by_an_agent_that_may_use_only_what_is_left(
    tmp_path: Path, restriction: str
) -> None:
    may = permissions(call(opencode(mcp=(TINY,)), tmp_path, capabilities=(restriction,)))
    denied = {tool for name in capabilities.RESTRICTIONS[restriction] for tool in DENIES[name]}
    assert next(iter(may.items())) == ("*", "deny")
    assert {tool for tool, answer in may.items() if answer == "deny"} == {"*", *denied}
    assert {tool for tool in ("edit", "bash") if may[tool] == "allow"} == {"edit", "bash"} - denied
    assert (may["read"], may["tiny_*"]) == ("allow", "allow")
    assert "task" not in may


@pytest.mark.parametrize("restriction", ["no_task_create", "no_task_update"])
def test_what_our_own_verbs_deny_needs_no_agent_of_our_own(tmp_path: Path, restriction: str) -> None:
    assert "--agent" not in call(opencode(), tmp_path, capabilities=(restriction,))["argv"]


def test_an_answer_comes_with_session_and_usage(tmp_path: Path) -> None:
    reply, recorder = play(opencode(), tmp_path, "answer")
    assert (reply.text, reply.ending, reply.reason) == (ANSWER, "completed", "")
    assert reply.session == session_in("answer")
    assert reply.usage == Usage(100, 7, 40, 0.000074, 1)
    assert len(recorder.bodies("usage")) == 1


def test_turns_hold_the_calls_and_usage_is_the_sum_of_the_steps(tmp_path: Path) -> None:
    reply, recorder = play(opencode(), tmp_path, "tools")
    assert [turn.text for turn in reply.turns] == ["I write it.", "", ANSWER]
    assert calls_of(reply) == [("write", "Wrote file successfully."), ("bash", "42042\n")]
    assert reply.files == ("a.txt",)
    assert reply.usage == Usage(30, 15, 0, 0.00006, 3)
    assert len(recorder.bodies("usage")) == 1
    refused, _ = play(opencode(), tmp_path / "refused", "no-file-edit")
    assert refused.files == ()


def test_a_patch_touches_every_file_it_names(tmp_path: Path) -> None:
    files = [{"filePath": "b.txt"}, {"filePath": "c/d.txt"}, "no record"]
    state = {"status": "completed", "input": {"patchText": "…"}, "metadata": {"files": files}}
    tool = {"type": "tool_use", "part": {"tool": "apply_patch", "callID": "1", "state": state}}
    finish = {"type": "step_finish", "part": {"reason": "stop"}}
    reply, _ = play(opencode(), tmp_path, f"{json.dumps(tool)}\n{json.dumps(finish)}\n")
    assert reply.files == ("b.txt", "c/d.txt")


def test_tools_of_servers_are_called_by_their_own_names(tmp_path: Path) -> None:
    assert calls_of(play(opencode(), tmp_path, "mcp")[0]) == [("tiny_add", "SUM=5 told")]


def test_an_answer_that_ran_out_of_room_is_a_limit(tmp_path: Path) -> None:
    reply, _ = play(opencode(), tmp_path, "limit")
    assert (reply.text, reply.ending, reply.reason) == ("As I was", "limit", "length")


def test_a_permission_that_nobody_gave_is_no_answer_though_the_program_exits_with_0(tmp_path: Path) -> None:
    error = fails(opencode(), tmp_path, "ask")
    assert error.ending == "interrupted"
    assert "'bash'" in str(error)


def test_the_endings_that_are_no_answer(tmp_path: Path) -> None:
    api = fails(opencode(), tmp_path / "api", "api-failure")
    assert (api.ending, str(api)) == ("api_failure", "APIError: the key is wrong")
    assert api.session == session_in("api-failure")
    lost = fails(opencode(), tmp_path / "lost", "session-lost", session="s-1")
    assert (lost.ending, lost.is_session_lost) == ("failed", True)
    killed = fails(opencode(), tmp_path / "killed", "cancelled", ending={"hangs": False, "exit": -15})
    assert (killed.ending, killed.text, killed.files) == ("killed", "I write it.", ("a.txt",))
    silent = fails(opencode(), tmp_path / "silent", "cancelled", ending={"hangs": False, "exit": 0})
    assert silent.ending == "interrupted"
    other = '{"type": "error", "error": {"name": "UnknownError", "data": {"message": "no such model"}}}\n'
    error = fails(opencode(), tmp_path / "other", other, ending={"exit": 1})
    assert (error.ending, str(error)) == ("failed", "UnknownError: no such model")
