"""The other agents with a preset, through the adapter for the Agent Client Protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, Hangs, ModelServer, Says, Sends, When

from realagents import toolserver
from realagents.acp_stage import AcpStage
from realagents.stage import FOLDER, file_text, installed
from rolecall.agents.acp_presets import PRESETS
from rolecall.agents.adapters.acp import Acp, acp
from rolecall.agents.contract import ANSWER
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Reply, Usage, ask
from rolecall.errors import AgentError, UsageError
from rolecall.settings import capabilities

BOOM = b'{"error": {"message": "boom", "type": "invalid_request_error", "code": 400, "status": "INVALID"}}'
TINY = McpServer("tiny", sys.executable, ("-I", toolserver.__file__), {"TINY": "leaf"})


@dataclass(frozen=True)
class Case:
    env: Callable[[ModelServer], Mapping[str, str]]
    write: Callable[[str], Calls]
    shell: Callable[[str], Calls]
    delegate: Callable[[str], Calls]
    """Asks an agent of the agent's own."""
    add: str
    """The name of the tool `add` of the server `tiny`."""
    files: Callable[[ModelServer], Mapping[str, str]] = lambda _model: {}
    """Under the home."""
    usage: Usage = field(default_factory=Usage)
    """Of a turn of two requests with 100 tokens in, 7 out and 40 of the input cached."""
    is_telling_output: bool = True
    """Whether it tells what a command printed."""
    model: str | None = None
    """The model it is to ask, where its own choice would cost further requests."""
    is_patient: bool = False
    """Tries a failing endpoint again for longer than a test waits."""


def _claude_env(model: ModelServer) -> dict[str, str]:
    switches = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
    return {
        "ANTHROPIC_BASE_URL": model.root_url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        **dict.fromkeys(switches, "1"),
    }


def _opencode_files(model: ModelServer) -> dict[str, str]:
    limits = {"name": "scripted-model", "limit": {"context": 100000, "output": 8000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Scripted",
        "options": {"baseURL": model.base_url, "apiKey": "dummy"},
        "models": {"scripted-model": limits, "another-model": limits},
    }
    chosen = {"model": "scripted/scripted-model", "small_model": "scripted/scripted-model"}
    config = {**chosen, "share": "disabled", "autoupdate": False, "provider": {"scripted": provider}}
    return {".config/opencode/opencode.json": json.dumps(config)}


def _opencode_env(_model: ModelServer) -> dict[str, str]:
    names = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return {f"OPENCODE_DISABLE_{name}": "1" for name in names}


_QUIET = {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}}


def _signed_in(kind: str) -> str:
    off = {"enableAutoUpdate": False}
    return json.dumps({"security": {"auth": {"selectedType": kind}}, "general": off, **_QUIET})


def _hermes_files(model: ModelServer) -> dict[str, str]:
    chosen = {"provider": "custom", "default": "scripted-model", "base_url": model.base_url}
    return {
        ".hermes/config.yaml": json.dumps({"model": {**chosen, "api_key": "dummy", "context_length": 100000}})
    }


CASES = {
    "claude-agent-acp": Case(
        env=_claude_env,
        write=lambda path: Calls("Write", {"file_path": path, "content": "written"}, **_USED),
        shell=lambda command: Calls("Bash", {"command": command, "description": "d"}, **_USED),
        delegate=lambda task: Calls(
            "Agent",
            {
                "prompt": task,
                "description": "d",
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
        ),
        add="mcp__tiny__add",
        usage=Usage(200, 14, 80),
    ),
    "opencode": Case(
        env=_opencode_env,
        files=_opencode_files,
        write=lambda path: Calls("write", {"filePath": path, "content": "written"}, **_USED),
        shell=lambda command: Calls("bash", {"command": command, "description": "d"}, **_USED),
        delegate=lambda task: Calls("task", {"prompt": task, "description": "d", "subagent_type": "general"}),
        add="tiny_add",
        usage=Usage(100, 7, 40),  # it tells the last request only
        is_patient=True,
    ),
    "gemini": Case(
        env=lambda model: {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model.root_url},
        files=lambda _model: {".gemini/settings.json": _signed_in("gemini-api-key")},
        write=lambda path: Calls("write_file", {"file_path": path, "content": "written"}, **_USED),
        shell=lambda command: Calls("run_shell_command", {"command": command}, **_USED),
        delegate=lambda task: Calls("invoke_agent", {"prompt": task, "agent_name": "generalist"}),
        add="mcp_tiny_add",
        usage=Usage(200, 14),
        is_telling_output=False,
        model="gemini-2.5-pro",
    ),
    "copilot": Case(
        env=lambda model: {
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_PROVIDER_BASE_URL": model.base_url,
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_API_KEY": "dummy",
            "COPILOT_MODEL": "scripted-model",
        },
        write=lambda path: Calls("create", {"path": path, "file_text": "written"}, **_USED),
        shell=lambda command: Calls("bash", {"command": command, "description": "d"}, **_USED),
        delegate=lambda task: Calls(
            "task", {"prompt": task, "description": "d", "agent_type": "general-purpose", "name": "other"}
        ),
        add="tiny-add",
        usage=Usage(200, 14, 80),
    ),
    "qwen": Case(
        env=lambda model: {
            "OPENAI_API_KEY": "dummy",
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_MODEL": "scripted-model",
        },
        files=lambda _model: {".qwen/settings.json": _signed_in("openai")},
        write=lambda path: Calls("write_file", {"file_path": path, "content": "written"}, **_USED),
        shell=lambda command: Calls(
            "run_shell_command", {"command": command, "is_background": False}, **_USED
        ),
        delegate=lambda task: Calls(
            "agent", {"prompt": task, "description": "d", "subagent_type": "general-purpose"}
        ),
        add="mcp__tiny__add",
        usage=Usage(200, 14, 80),
    ),
    "hermes": Case(
        env=lambda _model: {},
        files=_hermes_files,
        write=lambda path: Calls("write_file", {"path": path, "content": "written"}, **_USED),
        shell=lambda command: Calls("terminal", {"command": command}, **_USED),
        delegate=lambda task: Calls("delegate_task", {"goal": task}),  # which edits without asking
        add="mcp_tiny_add",
        usage=Usage(200, 14, 80),
    ),
}
_USED: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 40}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    installed(PRESETS[request.param].words[0])
    return str(request.param)


@pytest.fixture
def stage(name: str, model: ModelServer, tmp_path: Path) -> AcpStage:
    case = CASES[name]
    stage = AcpStage(model, tmp_path, dict(case.env(model)))
    for path, text in case.files(model).items():
        (stage.home / path).parent.mkdir(parents=True, exist_ok=True)
        (stage.home / path).write_text(text)
    # Qwen asks its model on the side, with tools, what to remember and what the user might say next.
    for words in ("Managed memory has TWO directories", "[SUGGESTION MODE"):
        model.add(When(words, "nothing", is_once=False))
    return stage


def agent_of(name: str, **options: Any) -> Acp:
    return acp(name, **{"model": CASES[name].model, **options})


def said(text: str = ANSWER) -> Says:
    return Says(text, **_USED)


def test_the_answer_comes_with_session_tools_files_and_usage(
    name: str, stage: AcpStage, model: ModelServer
) -> None:
    case = CASES[name]
    model.add(case.write(str(stage.work / "a.txt")), said())
    reply = stage.asked(agent_of(name), record="write")
    assert (reply.text, reply.ending, reply.files) == (ANSWER, "completed", ("a.txt",))
    assert file_text(stage.work / "a.txt") == "written"
    assert stage.recorder.bodies("session") == [{"session": reply.session}]
    assert len([call for turn in reply.turns for call in turn.tool_calls]) == 1
    assert reply.usage is not None
    reported = (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens)
    assert reported == (case.usage.input_tokens, case.usage.output_tokens, case.usage.cached_tokens)
    assert all(body["allowed"] for body in stage.recorder.bodies("permission"))
    assert stage.leftovers() == []


def test_a_command_is_run_and_its_result_told(name: str, stage: AcpStage, model: ModelServer) -> None:
    model.add(CASES[name].shell("echo shell > b.txt; expr 40 + 2"), said())
    reply = stage.asked(agent_of(name), record="shell")
    assert (reply.text, file_text(stage.work / "b.txt")) == (ANSWER, "shell\n")
    (call,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert "echo shell" in str(call.arguments)
    assert ("42" in call.result) == CASES[name].is_telling_output


@pytest.mark.parametrize("restriction", ["no_file_edit", "no_shell_exec", "read_only"])
def test_a_restriction_holds_and_the_agent_goes_on(
    name: str, stage: AcpStage, model: ModelServer, restriction: str
) -> None:
    case, agent = CASES[name], agent_of(name)
    denied = set(capabilities.RESTRICTIONS[restriction])
    if not denied <= agent.deniable:
        with pytest.raises(UsageError, match=f"cannot be held to '{restriction}'"):
            stage.asked(agent, capabilities=(restriction,))
        assert stage.recorder.events == []
        return
    can_write = denied.isdisjoint(capabilities.FILES)
    has_shell = denied.isdisjoint((*capabilities.SHELL, *capabilities.SHELL_WRITES))
    model.add(
        case.write(str(stage.work / "a.txt")),
        case.shell("printf '%s-%s' tree top"),
        case.shell("echo shell > b.txt"),
        said(),
    )
    reply = stage.asked(agent, capabilities=(restriction,), record=restriction)
    assert (reply.text, reply.files) == (ANSWER, ("a.txt",) if can_write else ())
    assert (stage.work / "a.txt").exists() == can_write
    assert ("tree-top" in model.turns[-1].text) == has_shell
    assert has_shell or not (stage.work / "b.txt").exists()


def test_what_the_agent_may_not_do_no_agent_of_its_own_does_for_it(
    name: str, stage: AcpStage, model: ModelServer
) -> None:
    case, path = CASES[name], stage.work / "a.txt"
    if not agent_of(name).deniable:
        pytest.skip(f"{name} cannot be denied anything")
    # Whoever is asked next gets to write: the other agent, and the one that waits for it.
    model.add(When("WRITE IT", case.write(str(path))), When("WRITE IT", case.write(str(path))))
    model.add(case.delegate("WRITE IT"), *[said()] * 8)
    stage.asked(agent_of(name), capabilities=("no_file_edit",))
    assert len(model.turns) >= 4
    assert not path.exists()


def test_a_tool_of_a_server_that_was_given_is_called_under_a_restriction(
    name: str, stage: AcpStage, model: ModelServer
) -> None:
    if name == "hermes" and not list(Path(FOLDER).glob("hermes/venv/lib/*/site-packages/mcp")):
        pytest.skip("hermes was installed without its extra mcp, and passes over tool servers")
    model.add(Calls(CASES[name].add, {"a": 2, "b": 3}), said())
    agent = agent_of(name, mcp=(TINY,))
    reply = stage.asked(agent, capabilities=("no_file_edit",) if agent.deniable else (), record="mcp")
    assert reply.text == ANSWER
    (call,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert "SUM=5 leaf" in call.result


@pytest.mark.parametrize("name", ["claude-agent-acp"], indirect=True)
@pytest.mark.parametrize("restriction", ["", "read_only", "no_file_edit", "no_shell_exec"])
def test_a_server_of_the_users_own_is_for_roles_without_restrictions_only(
    name: str, stage: AcpStage, model: ModelServer, restriction: str
) -> None:
    evil = {"type": "stdio", "command": sys.executable, "args": ["-I", toolserver.__file__]}
    (stage.home / ".claude.json").write_text(json.dumps({"mcpServers": {"evil": evil}}))
    (stage.home / ".claude").mkdir()
    allowed = {"permissions": {"allow": ["mcp__evil"]}}
    (stage.home / ".claude" / "settings.json").write_text(json.dumps(allowed))
    model.add(*(Calls(f"mcp__{server}__add", {"a": 2, "b": 3}) for server in ("evil", "tiny")), said())
    agent = agent_of(name, mcp=(TINY,))
    reply = stage.asked(agent, capabilities=(restriction,) if restriction else ())
    assert reply.text == ANSWER
    assert ("SUM=5 nothing" in model.turns[-1].text) == (not restriction)
    assert "SUM=5 leaf" in model.turns[-1].text


def test_two_calls_go_on_in_one_process_and_session_and_count_apart(
    name: str, stage: AcpStage, model: ModelServer
) -> None:
    model.add(said("The word is elm."), said("elm"))
    agent = agent_of(name)

    async def act() -> list[Reply]:
        first = await ask(agent, "Choose a word.", context=stage.context())
        return [first, await ask(agent, "Which word?", context=stage.context(session=first.session))]

    first, second = stage.scene(agent, act)
    assert (second.text, second.session) == ("elm", first.session)
    assert "The word is elm." in model.turns[-1].text
    assert second.usage is not None
    assert (second.usage.input_tokens, second.usage.output_tokens) == (100, 7)
    assert len({body["pid"] for body in stage.recorder.bodies("process")}) == 1
    assert stage.leftovers() == []


def test_a_session_is_loaded_into_another_process_or_said_to_be_lost(
    name: str, stage: AcpStage, model: ModelServer
) -> None:
    model.add(said("The word is elm."), said("elm"))
    first = stage.asked(agent_of(name), "Choose a word.")
    try:
        second = stage.asked(agent_of(name), "Which word?", session=first.session)
    except AgentError as error:
        assert (name, error.is_session_lost) == ("gemini", True)  # it finds them at times
        return
    assert (second.text, second.session, second.turns) == ("elm", first.session, ())
    assert "The word is elm." in model.turns[-1].text


def test_an_unknown_session_is_reported_as_lost(name: str, stage: AcpStage, model: ModelServer) -> None:
    model.add(said())
    error = stage.failed(agent_of(name), session="11111111-2222-4333-8444-555555555555")
    assert (error.ending, error.is_session_lost) == ("failed", True)


def test_a_copy_of_a_session_leaves_it_as_it_was(name: str, stage: AcpStage, model: ModelServer) -> None:
    if not agent_of(name).can_fork:
        pytest.skip(f"{name} copies no sessions")
    model.add(said("one"), said("two"), said("three"))
    trunk = stage.asked(agent_of(name), "The trunk.")
    branch = stage.asked(agent_of(name), "The branch.", session=trunk.session, is_fork=True)
    assert branch.session not in (None, trunk.session)
    assert "The trunk." in model.turns[-1].text
    again = stage.asked(agent_of(name), "The trunk again.", session=trunk.session)
    assert (again.text, again.session) == ("three", trunk.session)
    assert "The branch." not in model.turns[-1].text


def test_the_model_is_chosen(name: str, stage: AcpStage, model: ModelServer) -> None:
    model.add(said())
    chosen = {"opencode": "scripted/another-model", "gemini": "gemini-2.5-flash", "claude-agent-acp": "haiku"}
    agent = agent_of(name, model=chosen.get(name, "another-model"))
    if name == "hermes":
        with pytest.raises(UsageError, match="offers no choice of models"):
            stage.asked(agent)
        return
    assert stage.asked(agent).text == ANSWER
    asked = f"{model.turns[0].path} {model.turns[0].body.get('model')}"
    assert chosen.get(name, "another-model").removeprefix("scripted/") in asked


def test_a_cancel_ends_the_agent_and_everything_it_started(
    name: str, stage: AcpStage, model: ModelServer
) -> None:
    model.add(Hangs())
    error = stage.cut_off(agent_of(name), lambda: model.wait_for_turn(1))
    assert error.ending == "interrupted"
    assert error.session
    assert stage.leftovers() == []


def test_a_failing_endpoint_is_an_api_failure(name: str, stage: AcpStage, model: ModelServer) -> None:
    if CASES[name].is_patient:
        pytest.skip(f"{name} tries again for longer than a test waits")
    model.add(When("", Sends(BOOM, 400), is_once=False))
    error = stage.failed(agent_of(name))
    assert error.ending == "api_failure"
    assert "boom" in f"{error} {error.text}"
    assert stage.leftovers() == []
