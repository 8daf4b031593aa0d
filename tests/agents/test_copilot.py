"""The adapter of Copilot CLI with a stand-in that plays what the real program printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from replay import ANSWER, Replays, call, calls_of, fails, play, value

from rolecall.agents.adapters.copilot import DENIES, copilot
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Usage
from rolecall.settings import capabilities

SESSION = "00000000-0000-4000-8000-000000000001"
TINY = McpServer("tiny", "/bin/tiny", ("--port", "1"), {"KEY": "v"})


class TestCopilotKeepsTheContract(Replays):
    agent = copilot()

    def test_the_session_is_reported_live_and_in_the_reply(self, tmp_path: Path) -> None:
        reply, recorder = self._run(self.answering(tmp_path), tmp_path)
        assert recorder.bodies("session") == [{"session": reply.session}]
        assert [kind for kind, _ in recorder.events][:2] == ["process", "session"]
        assert UUID(reply.session).version == 4


def words(seen: dict[str, Any], flag: str) -> list[str]:
    return [word.removeprefix(f"{flag}=") for word in seen["argv"] if word.startswith(f"{flag}=")]


def test_the_prompt_goes_by_stdin_and_every_tool_may_be_used(tmp_path: Path) -> None:
    seen = call(copilot(env={"COPILOT_OFFLINE": "true"}), tmp_path)
    assert seen["stdin"] == "The prompt."
    assert {"--allow-all-tools", "--allow-all-paths", "--allow-all-urls"} <= set(seen["argv"])
    assert (seen["env"]["KEPT"], seen["env"]["COPILOT_OFFLINE"]) == ("1", "true")
    assert words(seen, "--deny-tool") == words(seen, "--allow-tool") == words(seen, "--resume") == []


def test_a_new_session_is_given_its_id_and_an_old_one_is_resumed(tmp_path: Path) -> None:
    (first,), (second,) = (words(call(copilot(), tmp_path / name), "--session-id") for name in ("a", "b"))
    assert UUID(first) != UUID(second)
    seen = call(copilot(model="gpt-5.4"), tmp_path / "c", session="s-1")
    assert (words(seen, "--resume"), words(seen, "--session-id")) == (["s-1"], [])
    assert (value(seen, "--model"), value(seen, "-C")) == ("gpt-5.4", str(tmp_path / "c"))


def test_tool_servers_are_written_to_a_file_of_the_run(tmp_path: Path) -> None:
    seen = call(copilot(mcp=(TINY,)), tmp_path)
    path = str(value(seen, "--additional-mcp-config")).removeprefix("@")
    entry = {"type": "stdio", "command": "/bin/tiny", "args": ["--port", "1"], "env": {"KEY": "v"}}
    assert json.loads(seen["files"][path]) == {"mcpServers": {"tiny": {**entry, "tools": ["*"]}}}
    assert not Path(path).exists()


@pytest.mark.parametrize("restriction", sorted(capabilities.RESTRICTIONS))
def test_what_a_restriction_denies_is_denied_and_what_is_left_allowed(
    tmp_path: Path, restriction: str
) -> None:
    seen = call(copilot(mcp=(TINY,)), tmp_path, capabilities=(restriction,))
    denied = {kind for name in capabilities.RESTRICTIONS[restriction] for kind in DENIES[name]}
    assert set(words(seen, "--deny-tool")) == denied
    if "--allow-all-tools" in seen["argv"]:
        assert denied.isdisjoint(("write", "shell"))
    else:
        assert set(words(seen, "--allow-tool")) == {"write", "shell", "tiny"} - denied


def test_an_answer_comes_with_session_and_usage(tmp_path: Path) -> None:
    reply, recorder = play(copilot(), tmp_path, "answer")
    assert (reply.text, reply.ending) == (ANSWER, "completed")
    assert reply.usage == reply.session_total == Usage(100, 7, 40, None, 1)
    assert len(recorder.bodies("usage")) == 1


def test_figures_of_a_resumed_session_are_counted_from_where_it_was_left(tmp_path: Path) -> None:
    before = Usage(100, 7, 40, None, 1)
    reply, _ = play(copilot(), tmp_path, "resumed", session=SESSION, session_total=before)
    assert reply.usage == Usage(50, 3, 20, None, 1)
    assert (reply.session, reply.session_total) == (SESSION, Usage(150, 10, 60, None, 2))


def test_turns_hold_the_calls_and_only_files_that_were_written_are_touched(tmp_path: Path) -> None:
    reply, _ = play(copilot(), tmp_path, "tools")
    assert [turn.text for turn in reply.turns] == ["I write it.", "", ANSWER]
    assert [name for name, _ in calls_of(reply)] == ["create", "bash"]
    assert "42042" in calls_of(reply)[1][1]
    assert reply.files == ("a.txt",)
    refused, recorder = play(copilot(), tmp_path / "refused", "no-file-edit")
    assert refused.files == ()
    (bodies,) = recorder.bodies("permission")
    assert (bodies["what"], bodies["allowed"]) == ("create", False)
    assert "`write`" in bodies["reason"]


def test_what_a_subagent_says_is_not_the_answer(tmp_path: Path) -> None:
    reply, _ = play(copilot(), tmp_path, "subagent")
    assert reply.text == "from above"
    assert "from below" not in [turn.text for turn in reply.turns]


def test_tools_of_servers_are_called_by_their_own_names(tmp_path: Path) -> None:
    assert calls_of(play(copilot(), tmp_path, "mcp")[0]) == [("tiny-add", "SUM=5 told")]


def test_the_endings_that_are_no_answer(tmp_path: Path) -> None:
    api = fails(copilot(), tmp_path / "api", "api-failure")
    assert api.ending == "api_failure"
    assert "HTTP 401" in str(api)
    lost = fails(copilot(), tmp_path / "lost", "session-lost", session="s-1")
    assert (lost.ending, lost.is_session_lost) == ("failed", True)
    killed = fails(copilot(), tmp_path / "killed", "cancelled", ending={"hangs": False, "exit": -15})
    assert (killed.ending, killed.text, killed.files) == ("killed", "I write it.", ("a.txt",))
    silent = fails(copilot(), tmp_path / "silent", "cancelled", ending={"hangs": False, "exit": 0})
    assert silent.ending == "interrupted"
    other = '{"type": "session.error", "data": {"message": "too long"}}\n{"type": "result", "exitCode": 1}\n'
    error = fails(copilot(), tmp_path / "other", other)
    assert (error.ending, str(error), error.usage) == ("failed", "too long", None)
