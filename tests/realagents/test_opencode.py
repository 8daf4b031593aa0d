"""OpenCode through its adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, ModelServer, Says, Sends

from realagents.confined import Confined
from realagents.duties import TINY, Duties, Servers
from realagents.stage import Stage, file_text, installed
from rolecall.agents.adapters.opencode import opencode
from rolecall.agents.contract import ANSWER
from rolecall.agents.protocol import Reply, Usage

PROGRAM = installed("opencode")


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    # It takes PWD for the folder to work in: a wrong one must not lead it astray.
    env = {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches} | {"PWD": "/", "SCRIPTED_KEY": "dummy"}
    stage = Stage(model, tmp_path, env)
    settle(stage)
    return stage


def settle(stage: Stage, **more: object) -> None:
    known = {"limit": {"context": 2_000_000, "output": 8_000}, "cost": {"input": 1, "output": 2}}
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": stage.server.base_url, "apiKey": "{env:SCRIPTED_KEY}"},
        "models": {name: {"name": name, **known} for name in ("fake-model", "another-model")},
    }
    settings = {
        "model": "fake/fake-model",
        "small_model": "fake/fake-model",
        "share": "disabled",
        "provider": {"fake": provider},
    }
    folder = stage.home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(settings | more), encoding="utf-8")


class TestOpenCode(Duties, Servers):
    agent = opencode
    tool = "tiny_add"
    unknown = "ses_e214e59e7ffeVc0gnHw7yjvXXX"

    def write(self, stage: Stage, name: str) -> Calls:
        given = {"filePath": str(stage.work / name), "content": "written\n"}
        return Calls("write", given, "I write it.")

    def shell(self, command: str) -> Calls:
        return Calls("bash", {"command": command, "description": "a command"})

    def named_model(self) -> str:
        return "fake/another-model"


def test_the_cost_is_told(stage: Stage, model: ModelServer) -> None:
    model.add(Says(ANSWER, prompt_tokens=1_000_000, completion_tokens=500_000))
    assert stage.run(opencode()).usage == Usage(1_000_000, 500_000, 0, 2.0, 1)


def test_permissions_the_user_gave_to_an_agent_do_not_undo_a_restriction(
    stage: Stage, model: ModelServer
) -> None:
    settle(stage, agent={"build": {"permission": {"edit": "allow"}}, "general": {"permission": "allow"}})
    delegate = {"description": "write", "prompt": "Write it.", "subagent_type": "general"}
    write = TestOpenCode().write(stage, "a.txt")
    model.add(write, Calls("task", delegate), write, ANSWER, ANSWER)
    stage.run(opencode(), capabilities=("no_file_edit",))
    assert file_text(stage.work / "a.txt") is None


def test_servers_of_the_user_are_not_asked_under_a_restriction(stage: Stage, model: ModelServer) -> None:
    settle(stage, mcp={"tiny": {"type": "local", "command": [TINY.command, *TINY.args]}})
    ask = Calls("tiny_add", {"a": 2, "b": 3})
    model.add(ask, "asked", ask, "not asked")
    stage.run(opencode())
    assert "SUM=5" in model.turns[1].text
    stage.run(opencode(), capabilities=("no_file_edit",))
    assert "SUM=5" not in model.turns[3].text


def test_an_answer_that_ran_out_of_room_is_a_limit(stage: Stage, model: ModelServer) -> None:
    choice = {"index": 0, "delta": {"role": "assistant", "content": "As I was"}, "finish_reason": "length"}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    stream = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    model.add(Sends(stream.encode(), headers={"Content-Type": "text/event-stream"}))
    reply = stage.run(opencode(), record="limit")
    assert (reply.ending, reply.text) == ("limit", "As I was")


class TestSandbox(Confined):
    key = "SCRIPTED_KEY"
    settings = ".config/opencode/opencode.json"

    def run(self, stage: Stage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.run(opencode(), prompt, **context)

    def shell(self, command: str) -> Calls:
        return TestOpenCode().shell(command)
