"""Gemini CLI through its adapter."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, ModelServer

from realagents.confined import Confined
from realagents.duties import TINY, Duties
from realagents.stage import Stage, file_text, installed
from rolecall.agents.adapters.gemini import gemini
from rolecall.agents.contract import ANSWER
from rolecall.agents.protocol import Reply

PROGRAM = installed("gemini")
MODEL = "gemini-2.5-pro"  # without a name the program first asks a model which one to take


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    stage = Stage(model, tmp_path, {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model.root_url})
    settle(stage)
    return stage


def settle(stage: Stage, **more: object) -> None:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        "telemetry": {"enabled": False},
    }
    (stage.home / ".gemini").mkdir(exist_ok=True)
    (stage.home / ".gemini" / "settings.json").write_text(json.dumps(settings | more), encoding="utf-8")


class TestGemini(Duties):
    agent = partial(gemini, model=MODEL)

    def write(self, stage: Stage, name: str) -> Calls:
        return Calls("write_file", {"file_path": name, "content": "written\n"}, "I write it.")

    def shell(self, command: str) -> Calls:
        return Calls("run_shell_command", {"command": command})

    def named_model(self) -> str:
        return "gemini-2.5-flash"


def test_a_limit_of_turns_is_told_as_one(stage: Stage, model: ModelServer) -> None:
    settle(stage, model={"maxSessionTurns": 1})
    model.add(Calls("list_directory", {"dir_path": "."}, "I look."), "too late")
    reply = stage.run(gemini(model=MODEL), record="limit")
    assert (reply.ending, reply.text) == ("limit", "I look.")
    assert "max session turns" in reply.reason


def test_servers_of_the_user_are_not_asked_under_a_restriction(stage: Stage, model: ModelServer) -> None:
    settle(stage, mcpServers={"tiny": {"command": TINY.command, "args": list(TINY.args)}})
    ask = Calls("mcp_tiny_add", {"a": 2, "b": 3})
    model.add(ask, "asked", ask, "not asked")
    stage.run(gemini(model=MODEL))
    assert "SUM=5" in model.turns[1].text
    stage.run(gemini(model=MODEL), capabilities=("no_file_edit",))
    assert "SUM=5" not in model.turns[3].text


def test_rules_of_the_user_do_not_allow_what_the_role_may_not(stage: Stage, model: ModelServer) -> None:
    rules = stage.home / ".gemini" / "policies"
    rules.mkdir()
    rule = '[[rule]]\ntoolName = "write_file"\ndecision = "allow"\npriority = 999\n'
    (rules / "mine.toml").write_text(rule, encoding="utf-8")
    model.add(TestGemini().write(stage, "a.txt"), ANSWER)
    stage.run(gemini(model=MODEL), capabilities=("no_file_edit",))
    assert file_text(stage.work / "a.txt") is None


def test_subagents_are_held_to_the_restrictions_of_the_role(stage: Stage, model: ModelServer) -> None:
    write = TestGemini().write(stage, "a.txt")
    model.add(
        Calls("invoke_agent", {"agent_name": "generalist", "prompt": "Write it."}),
        write,
        Calls("complete_task", {"result": {"response": "no"}}),
        *["enough"] * 4,
    )
    stage.run(gemini(model=MODEL), capabilities=("no_file_edit",))
    assert "Write it." in model.turns[1].text
    assert file_text(stage.work / "a.txt") is None


class TestSandbox(Confined):
    key = "GEMINI_API_KEY"
    settings = ".gemini/settings.json"

    def run(self, stage: Stage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.run(gemini(model=MODEL), prompt, **context)

    def shell(self, command: str) -> Calls:
        return TestGemini().shell(command)
