"""Copilot CLI through its adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, ModelServer

from realagents.confined import Confined
from realagents.duties import TINY, Duties, Servers
from realagents.stage import Stage, file_text, installed
from rolecall.agents.adapters.copilot import copilot
from rolecall.agents.protocol import Reply

PROGRAM = installed("copilot")


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    return Stage(
        model,
        tmp_path,
        {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": model.base_url,
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_API_KEY": "dummy",
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "2000000",
            "COPILOT_MODEL": "fake-model",
        },
        is_session_told=True,
    )


class TestCopilot(Duties, Servers):
    agent = copilot
    tool = "tiny-add"

    def write(self, stage: Stage, name: str) -> Calls:
        given = {"path": str(stage.work / name), "file_text": "written\n"}
        return Calls("create", given, "I write it.")

    def shell(self, command: str) -> Calls:
        return Calls("bash", {"command": command, "description": "a command"})


def test_what_was_denied_is_told(stage: Stage, model: ModelServer) -> None:
    model.add(TestCopilot().shell("ls"), "no")
    stage.run(copilot(), capabilities=("no_shell_exec",))
    (bodies,) = stage.recorder.bodies("permission")
    assert (bodies["what"], bodies["allowed"]) == ("bash", False)
    assert "`shell`" in bodies["reason"]


def test_servers_of_the_user_are_not_asked_under_a_restriction(stage: Stage, model: ModelServer) -> None:
    server = {"type": "local", "command": TINY.command, "args": list(TINY.args), "tools": ["*"]}
    (stage.home / ".copilot").mkdir()
    (stage.home / ".copilot" / "mcp-config.json").write_text(json.dumps({"mcpServers": {"tiny": server}}))
    ask = Calls("tiny-add", {"a": 2, "b": 3})
    model.add(ask, "asked", ask, "not asked")
    stage.run(copilot())
    assert "SUM=5" in model.turns[1].text
    stage.run(copilot(), capabilities=("no_file_edit",))
    assert "SUM=5" not in model.turns[3].text


def test_a_resumed_session_works_in_the_folder_of_the_role(stage: Stage, model: ModelServer) -> None:
    model.add("one", TestCopilot().shell("pwd"), "two")
    first = stage.run(copilot())
    elsewhere = stage.folder / "elsewhere"
    elsewhere.mkdir()
    reply = stage.run(copilot(), session=first.session, workdir=elsewhere)
    (ran,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert ran.result.startswith(f"{elsewhere}\n")


def test_what_a_subagent_says_is_not_the_answer_and_it_may_not_more_than_the_role(
    stage: Stage, model: ModelServer
) -> None:
    task = {"name": "sub", "description": "d", "prompt": "Write it.", "agent_type": "general-purpose"}
    write = TestCopilot().write(stage, "a.txt")
    model.add(Calls("task", {**task, "mode": "sync"}), write, "from below", "from above")
    reply = stage.run(copilot(), capabilities=("no_file_edit",), record="subagent")
    assert "Write it." in model.turns[1].text
    assert reply.text == "from above"
    assert "from below" not in [turn.text for turn in reply.turns]
    assert file_text(stage.work / "a.txt") is None
    assert reply.usage is not None
    assert reply.usage.turns == 4


class TestSandbox(Confined):
    is_wrapped = True
    key = "COPILOT_PROVIDER_API_KEY"
    settings = ".copilot/mcp-config.json"

    def run(self, stage: Stage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.run(copilot(), prompt, **context)

    def shell(self, command: str) -> Calls:
        return TestCopilot().shell(command)
