"""codex-acp through the adapter for the Agent Client Protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, Hangs, ModelServer, Says, Sends, When

from realagents import toolserver
from realagents.acp_stage import AcpStage
from realagents.confined import Confined
from realagents.stage import FOLDER, file_text, installed
from rolecall.agents.adapters.acp import Acp, acp
from rolecall.agents.contract import ANSWER
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Reply, Usage, ask
from rolecall.settings import capabilities

PROGRAM = installed("codex-acp")
CONFIG = """
model = "gpt-5.4"
model_provider = "scripted"
check_for_update_on_startup = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[features]
plugins = false
apps = false
"""


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> AcpStage:
    stage = AcpStage(model, tmp_path, {"SCRIPTED_KEY": "dummy"})
    # Its sandbox is a program that this package does not bring along, and that of codex does.
    for sandbox in Path(FOLDER).glob("codex/node_modules/@openai/*/vendor/*/codex-resources"):
        stage.env["PATH"] += f":{sandbox}"
    config = stage.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(CONFIG.format(url=model.base_url))
    return stage


def codex(**options: object) -> Acp:
    return acp("codex-acp", **options)


def shell(command: str, **more: object) -> Calls:
    return Calls("exec_command", {"cmd": command, **more})


def test_the_answer_comes_with_session_and_usage(stage: AcpStage, model: ModelServer) -> None:
    model.add(Says(ANSWER, prompt_tokens=100, completion_tokens=7))
    reply = stage.asked(codex(), record="answer")
    assert (reply.text, reply.ending, reply.turns, reply.files) == (ANSWER, "completed", (), ())
    assert stage.recorder.bodies("session") == [{"session": reply.session}]
    assert stage.recorder.bodies("text") == [{"text": ANSWER}]
    assert reply.usage == Usage(107, turns=1)
    assert stage.leftovers() == []


def test_the_model_arrives_and_a_notice_about_it_is_no_part_of_the_answer(
    stage: AcpStage, model: ModelServer
) -> None:
    model.add(ANSWER)
    assert stage.asked(codex(model="made-up-model"), record="notice").text == ANSWER
    assert model.turns[0].body["model"] == "made-up-model"


def test_every_request_of_a_turn_is_counted(stage: AcpStage, model: ModelServer) -> None:
    model.add(Calls("update_plan", {"plan": []}, prompt_tokens=100), Says(ANSWER, prompt_tokens=300))
    reply = stage.asked(codex())
    assert reply.usage is not None
    assert reply.usage.input_tokens == 410


def test_two_calls_go_on_in_one_process_and_session(stage: AcpStage, model: ModelServer) -> None:
    model.add("The word is elm.", "elm")
    agent = codex()

    async def act() -> list[Reply]:
        first = await ask(agent, "Choose a word.", context=stage.context())
        return [first, await ask(agent, "Which word?", context=stage.context(session=first.session))]

    first, second = stage.scene(agent, act)
    assert (second.text, second.session) == ("elm", first.session)
    assert "The word is elm." in model.turns[1].text
    assert len({body["pid"] for body in stage.recorder.bodies("process")}) == 1
    assert stage.leftovers() == []


def test_a_session_is_loaded_into_another_process_and_its_replay_is_not_the_answer(
    stage: AcpStage, model: ModelServer
) -> None:
    model.add(shell("echo first"), "The word is elm.", Says("elm", 50, 3))
    first = stage.asked(codex(), "Choose a word.")
    second = stage.asked(codex(), "Which word?", session=first.session, record="resumed")
    assert (second.text, second.session, second.turns) == ("elm", first.session, ())
    assert all(text in model.turns[-1].text for text in ("Choose a word.", "The word is elm.", "Which word?"))
    assert second.usage == Usage(53, turns=1)


def test_an_unknown_session_is_reported_as_lost(stage: AcpStage) -> None:
    error = stage.failed(codex(), session="01a1deaa-0000-7000-8000-000000000000")
    assert (error.ending, error.is_session_lost) == ("failed", True)


def test_a_process_that_was_killed_between_two_calls_is_started_anew(
    stage: AcpStage, model: ModelServer
) -> None:
    model.add("one", "two")
    agent = codex()

    async def act() -> list[Reply]:
        first = await ask(agent, "One.", context=stage.context())
        pid = stage.recorder.bodies("process")[0]["pid"]
        os.killpg(pid, signal.SIGKILL)
        # It is gone when its last thread is: until then it only looks dead.
        while stage.leftovers() or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            await asyncio.sleep(0)
        return [first, await ask(agent, "Two.", context=stage.context(session=first.session))]

    first, second = stage.scene(agent, act)
    assert (second.text, second.session) == ("two", first.session)
    assert "One." in model.turns[1].text
    assert stage.leftovers() == []


def test_without_restrictions_files_and_commands_are_free_and_questions_are_allowed(
    stage: AcpStage, model: ModelServer
) -> None:
    model.add(
        shell("echo shell > b.txt; echo $((40 + 2))"),
        shell("echo free > c.txt", sandbox_permissions="require_escalated", justification="I want to"),
        Calls("apply_patch", _patch("a.txt")),
        ANSWER,
    )
    reply = stage.asked(codex(), record="tools")
    assert reply.text == ANSWER
    assert [file_text(stage.work / name) for name in ("a.txt", "b.txt", "c.txt")] == [
        "written\n",
        "shell\n",
        "free\n",
    ]
    asked = stage.recorder.bodies("permission")
    assert [body["allowed"] for body in asked] == [True] * len(asked)
    assert any("c.txt" in body["what"] for body in asked)
    assert reply.files == ("a.txt",)
    results = [call.result for turn in reply.turns for call in turn.tool_calls]
    assert any("42" in result for result in results)


@pytest.mark.parametrize("restriction", ["no_file_edit", "read_only"])
def test_a_role_that_may_not_write_cannot_by_any_tool_and_goes_on(
    stage: AcpStage, model: ModelServer, restriction: str
) -> None:
    (stage.work / "old.txt").write_text("what was there before")
    model.add(
        shell("echo shell > b.txt"),
        shell("echo free > c.txt", sandbox_permissions="require_escalated", justification="I want to"),
        Calls("apply_patch", _patch("a.txt")),
        shell("cat old.txt"),
        ANSWER,
    )
    reply = stage.asked(codex(), capabilities=(restriction,), record=restriction)
    assert (reply.text, reply.ending, reply.files) == (ANSWER, "completed", ())
    assert [path.name for path in stage.work.iterdir()] == ["old.txt"]
    assert "what was there before" in str(model.turns[-1].body["input"][-1])


def test_a_role_without_a_shell_has_none_and_can_still_write(stage: AcpStage, model: ModelServer) -> None:
    model.add(
        shell("echo shell > b.txt"),
        Calls("shell", {"command": ["touch", "c.txt"]}),
        Calls("apply_patch", _patch("a.txt")),
        ANSWER,
    )
    reply = stage.asked(codex(), capabilities=("no_shell_exec",))
    assert (reply.text, reply.files) == (ANSWER, ("a.txt",))
    assert [path.name for path in stage.work.iterdir()] == ["a.txt"]
    assert {"exec_command", "shell", "write_stdin"}.isdisjoint(model.turns[0].tools)
    assert "apply_patch" in model.turns[0].tools
    assert "unsupported call" in model.turns[1].text


def test_a_folder_is_not_made_trusted_by_running_in_it(stage: AcpStage, model: ModelServer) -> None:
    config = stage.home / ".codex" / "config.toml"
    before = config.read_text()
    model.add(ANSWER, ANSWER)
    stage.asked(codex())
    stage.asked(codex(), capabilities=("read_only",))
    assert config.read_text() == before


@pytest.mark.parametrize("restriction", ["", "read_only", "no_file_edit", "no_shell_exec"])
def test_a_server_of_the_users_own_is_for_roles_without_restrictions_only(
    stage: AcpStage, model: ModelServer, restriction: str
) -> None:
    with (stage.home / ".codex" / "config.toml").open("a") as config:
        config.write(
            f"[mcp_servers.evil]\ncommand = {json.dumps(sys.executable)}\n"
            f'args = ["-I", {json.dumps(toolserver.__file__)}]\n'
            'required = true\ndefault_tools_approval_mode = "approve"\n'
        )
    model.add(
        *(Calls("add", {"a": 2, "b": 3}, namespace=f"mcp__{name}") for name in ("evil", "tiny")), ANSWER
    )
    server = McpServer("tiny", sys.executable, ("-I", toolserver.__file__), {"TINY": "leaf"})
    reply = stage.asked(codex(mcp=(server,)), capabilities=(restriction,) if restriction else ())
    assert reply.text == ANSWER
    assert ("SUM=5 nothing" in model.turns[-1].text) == (not restriction)
    assert "SUM=5 leaf" in model.turns[-1].text


@pytest.mark.parametrize("words", [(), ("read_only",), ("no_shell_exec",)])
def test_a_tool_of_a_server_that_was_given_is_called_under_every_restriction(
    stage: AcpStage, model: ModelServer, words: tuple[str, ...]
) -> None:
    server = McpServer("tiny", sys.executable, ("-I", toolserver.__file__), {"TINY": 'a "b"'})
    model.add(Calls("add", {"a": 2, "b": 3}, namespace="mcp__tiny"), ANSWER)
    reply = stage.asked(codex(mcp=(server,)), capabilities=words, record="" if words else "mcp")
    (call,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert call.arguments["arguments"] == {"a": 2, "b": 3}
    assert 'SUM=5 a "b"' in call.result.replace("\\", "")
    assert [body["allowed"] for body in stage.recorder.bodies("permission")] == [True]


def test_a_cancel_ends_the_agent_and_the_command_it_runs(stage: AcpStage, model: ModelServer) -> None:
    model.add(
        shell(
            "touch running; exec sleep 600", sandbox_permissions="require_escalated", justification="I must"
        )
    )
    error = stage.cut_off(codex(), lambda: _comes(stage.work / "running"))
    assert error.ending == "interrupted"
    assert error.session
    assert stage.leftovers() == []


def test_a_run_that_was_cut_off_goes_on_in_its_session(stage: AcpStage, model: ModelServer) -> None:
    model.add(Hangs())
    error = stage.cut_off(codex(), lambda: model.wait_for_turn(1))
    model.add(ANSWER)
    assert stage.asked(codex(), "And now?", session=error.session).text == ANSWER
    assert "Go on." in model.turns[-1].text


def test_a_timeout_leaves_no_process(stage: AcpStage, model: ModelServer) -> None:
    model.add(Hangs())
    error = stage.failed(codex(timeout=3))
    assert error.ending == "timeout"
    assert stage.leftovers() == []


@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_failing_endpoint_is_an_api_failure(stage: AcpStage, model: ModelServer, status: int) -> None:
    body = b'{"error": {"message": "boom", "type": "server_error"}}'
    model.add(When("", Sends(body, status), is_once=False))
    error = stage.failed(codex())
    assert error.ending == "api_failure"
    assert "boom" in str(error) or status == 500
    assert error.session
    assert stage.leftovers() == []


def test_a_prompt_of_a_megabyte_arrives_whole(stage: AcpStage, model: ModelServer) -> None:
    prompt = "Zeile ü\n" * 100_000
    model.add(ANSWER)
    assert stage.asked(codex(), prompt).text == ANSWER
    assert prompt.strip() in [
        block["text"].strip()
        for item in model.turns[0].body["input"]
        for block in item.get("content", ())
        if "text" in block
    ]


def test_every_restriction_is_held(stage: AcpStage) -> None:
    for word in capabilities.RESTRICTIONS:
        capabilities.check_supported("codex-acp", [word], codex().deniable)


def _patch(name: str) -> str:
    return f"*** Begin Patch\n*** Add File: {name}\n+written\n*** End Patch"


def _comes(path: Path) -> bool:
    """Wait until a file is there."""
    ended = subprocess.run(
        ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.02; done', str(path)], timeout=60, check=False
    )
    return ended.returncode == 0


class TestSandbox(Confined):
    key = "SCRIPTED_KEY"
    settings = ".codex/config.toml"

    def run(self, stage: AcpStage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.asked(codex(), prompt, **context)

    def shell(self, command: str) -> Calls:
        return shell(command)
