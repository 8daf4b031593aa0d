"""Qwen Code through its adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, ModelServer

from realagents.confined import Confined
from realagents.duties import TINY, Duties, Servers
from realagents.stage import Stage, file_text, installed
from rolecall.agents.adapters.qwen import qwen
from rolecall.agents.protocol import Reply

PROGRAM = installed("qwen")


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    keys = {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "fake-model"}
    stage = Stage(model, tmp_path, keys)
    settle(stage)
    return stage


def settle(stage: Stage, **more: object) -> None:
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        "telemetry": {"enabled": False},
        "model": {"generationConfig": {"contextWindowSize": 2_000_000}},
        # Its own requests after an answer would take turns of the script.
        "memory": {"enableManagedAutoMemory": False},
    }
    (stage.home / ".qwen").mkdir(exist_ok=True)
    (stage.home / ".qwen" / "settings.json").write_text(json.dumps(settings | more), encoding="utf-8")


class TestQwen(Duties, Servers):
    agent = qwen
    tool = "mcp__tiny__add"

    def write(self, stage: Stage, name: str) -> Calls:
        given = {"file_path": str(stage.work / name), "content": "written\n"}
        return Calls("write_file", given, "I write it.")

    def shell(self, command: str) -> Calls:
        return Calls("run_shell_command", {"command": command, "is_background": False})


def test_a_limit_of_turns_is_told_as_one(stage: Stage, model: ModelServer) -> None:
    look = Calls("glob", {"pattern": "*"}, "I look.")
    model.add(look, look, "too late")
    reply = stage.run(qwen(args=("--max-session-turns", "1")), record="limit")
    assert (reply.ending, reply.text) == ("limit", "I look.")
    assert "max session turns" in reply.reason


def test_what_was_denied_is_told(stage: Stage, model: ModelServer) -> None:
    model.add(TestQwen().shell("ls"), "no")
    stage.run(qwen(), capabilities=("no_shell_exec",))
    assert stage.recorder.bodies("permission") == [
        {"what": "run_shell_command", "allowed": False, "reason": ""}
    ]


def test_servers_of_the_user_are_not_asked_under_a_restriction(stage: Stage, model: ModelServer) -> None:
    settle(stage, mcpServers={"tiny": {"command": TINY.command, "args": list(TINY.args)}})
    ask = Calls("mcp__tiny__add", {"a": 2, "b": 3})
    model.add(ask, "asked", ask, "not asked")
    stage.run(qwen())
    assert "SUM=5" in model.turns[1].text
    stage.run(qwen(), capabilities=("no_file_edit",))
    assert "SUM=5" not in model.turns[3].text


def test_subagents_are_held_to_the_restrictions_of_the_role(stage: Stage, model: ModelServer) -> None:
    delegate = {"description": "write", "prompt": "Write it.", "subagent_type": "general-purpose"}
    write = TestQwen().write(stage, "a.txt")
    model.add(Calls("agent", delegate), write, write, *["enough"] * 4)
    stage.run(qwen(), capabilities=("no_file_edit",))
    assert any("Write it." in turn.text for turn in model.turns[1:])
    assert file_text(stage.work / "a.txt") is None


class TestSandbox(Confined):
    is_wrapped = True
    key = "OPENAI_API_KEY"
    settings = ".qwen/settings.json"

    def run(self, stage: Stage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.run(qwen(), prompt, **context)

    def shell(self, command: str) -> Calls:
        return TestQwen().shell(command)
