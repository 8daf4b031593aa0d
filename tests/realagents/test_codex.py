"""Codex through its adapter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, Closes, Hangs, ModelServer, Says, Sends, When

from realagents import toolserver
from realagents.confined import KEY, Confined, planted
from realagents.stage import Bell, Stage, file_text, installed
from rolecall.agents.adapters.codex import Codex, codex
from rolecall.agents.contract import ANSWER
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Reply, Usage

PROGRAM = installed("codex")
CONFIGURATION = """
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.scripted]
name = "Scripted"
base_url = "{url}"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
PATCH = "*** Begin Patch\n*** Add File: a.txt\n+written\n*** End Patch\n"
SCHEMA = {
    "type": "object",
    "properties": {"status": {"enum": ["done", "failed"]}},
    "required": ["status"],
    "additionalProperties": False,
}
CODE_MODEL = "gpt-6-sol"
"""A model that is offered one tool only, which runs code that calls the others."""


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    stage = Stage(model, tmp_path, {"SCRIPTED_KEY": "dummy"})
    own = stage.home / ".codex"
    own.mkdir()
    (own / "config.toml").write_text(CONFIGURATION.format(url=model.base_url), encoding="utf-8")
    return stage


def shell(command: str) -> Calls:
    # Of a command that fails at once in its sandbox the program tells nothing.
    return Calls("exec_command", {"cmd": f"sleep 0.3; {command}"})


def returned(model: ModelServer) -> list[str]:
    """What the tools gave back, as the model was told in the last request."""
    items: list[dict[str, Any]] = model.turns[-1].body["input"]
    return [json.dumps(item["output"]) for item in items if item["type"].endswith("_output")]


def test_the_answer_comes_with_session_and_usage(stage: Stage, model: ModelServer) -> None:
    model.add(Says(ANSWER, prompt_tokens=100, completion_tokens=7, cached_tokens=40))
    reply = stage.run(codex(), record="answer")
    assert (reply.text, reply.ending, reply.turns, reply.files) == (ANSWER, "completed", (), ())
    assert stage.recorder.bodies("session") == [{"session": reply.session}]
    assert stage.recorder.bodies("text") == [{"text": ANSWER}]
    assert reply.usage == Usage(100, 7, 40)


def test_model_and_instructions_arrive(stage: Stage, model: ModelServer) -> None:
    model.add("yes")
    stage.run(codex(model="gpt-5.6-luna", system='Be "kind" 😀.\nAlways.'))
    assert model.turns[0].body["model"] == "gpt-5.6-luna"
    assert json.dumps('Be "kind" 😀.\nAlways.', ensure_ascii=False).strip('"') in model.turns[0].text


def test_a_resumed_session_remembers_and_counts_only_what_is_new(stage: Stage, model: ModelServer) -> None:
    model.add(Says("The word is elm.", 100, 7, 40), Says("elm", 50, 3, 20))
    first = stage.run(codex(), "Choose a word.")
    second = stage.run(
        codex(), "Which word?", session=first.session, session_total=first.session_total, record="resumed"
    )
    assert second.session == first.session
    assert all(text in model.turns[1].text for text in ("Choose a word.", "The word is elm.", "Which word?"))
    assert second.usage == Usage(50, 3, 20)
    assert second.session_total == Usage(150, 10, 60)


def test_a_fork_goes_on_in_a_copy_and_leaves_the_session_as_it_was(stage: Stage, model: ModelServer) -> None:
    model.add("one", Says("two", 50, 3), "three")
    first = stage.run(codex(), "The trunk.")
    branch = stage.run(
        codex(), "The branch.", session=first.session, is_fork=True, session_total=first.session_total
    )
    assert branch.session not in (None, first.session)
    assert "The trunk." in model.turns[1].text
    assert branch.usage == Usage(50, 3)
    again = stage.run(codex(), "The trunk again.", session=first.session)
    assert again.session == first.session
    assert "The branch." not in model.turns[2].text


@pytest.mark.parametrize("is_fork", [False, True])
def test_an_unknown_session_is_reported_as_lost(stage: Stage, is_fork: bool) -> None:
    unknown = "01a1deb7-46df-7083-afc8-bbcf351a5100"
    record = "" if is_fork else "session-lost"
    error = stage.fails(codex(), session=unknown, is_fork=is_fork, record=record)
    assert (error.ending, error.is_session_lost) == ("failed", True)
    assert "no rollout found" in str(error)


def test_the_session_is_known_while_the_agent_still_works(stage: Stage, model: ModelServer) -> None:
    model.add(Hangs())

    def session_came() -> bool:
        return model.wait_for_turn(1) and len(stage.recorder.bodies("session")) == 1

    error = stage.cancelled(codex(), session_came)
    assert error.ending == "interrupted"
    assert stage.recorder.bodies("session") == [{"session": error.session}]


def test_a_run_that_was_cut_off_goes_on_in_its_session(stage: Stage, model: ModelServer) -> None:
    model.add(Calls("exec_command", {"cmd": "echo looked"}, "I look first."), Hangs())
    error = stage.cancelled(codex(), lambda: model.wait_for_turn(2), record="cancelled")
    assert error.text == "I look first."
    model.add(ANSWER)
    assert stage.run(codex(), "Go on.", session=error.session).text == ANSWER
    assert "I look first." in model.turns[-1].text


def test_files_and_commands_of_the_work_folder_need_not_be_asked_for(
    stage: Stage, model: ModelServer
) -> None:
    model.add(Calls("apply_patch", PATCH), shell("echo shell > b.txt; echo $((40 + 2)); exit 3"), ANSWER)
    reply = stage.run(codex(), record="tools")
    assert file_text(stage.work / "a.txt") == "written\n"
    assert file_text(stage.work / "b.txt") == "shell\n"
    assert reply.files == ("a.txt",)
    changed, ran = (call for turn in reply.turns for call in turn.tool_calls)
    assert (changed.name, ran.name) == ("file_change", "command_execution")
    assert "echo $((40 + 2))" in ran.arguments["command"]
    assert ran.result == "42\n\n(exit status 3)"


@pytest.mark.parametrize(
    ("sandbox", "written"),
    [
        ("read-only", []),
        ("workspace-write", ["inside"]),
        ("danger-full-access", ["inside", "outside"]),
    ],
)
def test_the_sandbox_bounds_what_commands_may_write(
    stage: Stage, model: ModelServer, sandbox: str, written: list[str]
) -> None:
    # The folders of temporary files, where this test runs, count as part of the workspace otherwise.
    strict = [
        f"sandbox_workspace_write.{name}=true" for name in ("exclude_slash_tmp", "exclude_tmpdir_env_var")
    ]
    outside = stage.home / "outside"
    model.add(shell("touch inside"), shell(f"touch {outside}"), ANSWER)
    stage.run(codex(sandbox=sandbox, args=("-c", strict[0], "-c", strict[1])))
    found = [path.name for path in (stage.work / "inside", outside) if path.exists()]
    assert found == written


@pytest.mark.parametrize("restriction", ["read_only", "no_file_edit"])
def test_a_role_that_may_not_edit_can_write_by_no_tool(
    stage: Stage, model: ModelServer, restriction: str
) -> None:
    model.add(Calls("apply_patch", PATCH), shell("touch b"), shell("cat /dev/null && echo read"), ANSWER)
    record = "read-only" if restriction == "read_only" else ""
    own = codex(sandbox="danger-full-access", args=("-c", 'sandbox_mode="danger-full-access"'))
    reply = stage.run(own, capabilities=(restriction,), record=record)
    assert list(stage.work.iterdir()) == []
    assert reply.files == ()
    patch, touch, read = returned(model)
    assert "read-only sandbox" in patch
    assert "Read-only file system" in touch
    assert "read" in read


@pytest.mark.parametrize("name", ["gpt-5.5", "a-model-nobody-knows"])
def test_without_a_shell_no_tool_that_runs_commands_is_offered(
    stage: Stage, model: ModelServer, name: str
) -> None:
    model.add(shell("touch b"), Calls("apply_patch", PATCH), ANSWER)
    reply = stage.run(codex(model=name), capabilities=("no_shell_exec",))
    assert {"exec_command", "write_stdin", "shell", "shell_command"}.isdisjoint(model.turns[0].tools)
    assert "unsupported call" in returned(model)[0]
    assert [path.name for path in stage.work.iterdir()] == list(reply.files)


def test_code_that_calls_tools_is_held_to_the_same_restrictions(stage: Stage, model: ModelServer) -> None:
    code = 'text(JSON.stringify(await tools.exec_command({cmd: "sleep 0.3; touch b"})))'
    model.add(Calls("exec", code), Calls("exec", f"await tools.apply_patch({json.dumps(PATCH)})"), ANSWER)
    stage.run(codex(model=CODE_MODEL), capabilities=("no_shell_exec", "read_only"))
    ran, patched = returned(model)
    assert "tools.exec_command is not a function" in ran
    assert "read-only sandbox" in patched
    assert list(stage.work.iterdir()) == []


def test_another_agent_that_is_started_has_the_same_restrictions(stage: Stage, model: ModelServer) -> None:
    model.add(
        When("WRITE IT", Calls("exec_command", {"cmd": "touch b"})),
        Calls("spawn_agent", {"message": "WRITE IT"}, namespace="multi_agent_v1"),
        *["It is done."] * 4,
    )
    stage.run(codex(model="a-model-nobody-knows"), capabilities=("no_shell_exec",))
    theirs = [turn.tools for turn in model.turns if "spawn_agent" not in turn.tools]
    assert theirs
    assert all("exec_command" not in tools for tools in theirs)
    assert list(stage.work.iterdir()) == []


def test_a_restriction_holds_in_a_session_that_began_without_it(stage: Stage, model: ModelServer) -> None:
    model.add(shell("touch free"), ANSWER, shell("touch bound"), ANSWER)
    first = stage.run(codex())
    stage.run(codex(), session=first.session, capabilities=("read_only",))
    assert [path.name for path in stage.work.iterdir()] == ["free"]


def test_the_tool_of_a_server_is_called_with_the_servers_own_variables(
    stage: Stage, model: ModelServer
) -> None:
    server = McpServer("tiny", sys.executable, ("-I", toolserver.__file__), {"TINY": 'a "b"', "MORE": "c"})
    model.add(Calls("add", {"a": 2, "b": 3}, namespace="mcp__tiny"), ANSWER)
    reply = stage.run(codex(mcp=(server,)), record="mcp")
    (call,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert (call.name, dict(call.arguments)) == ("mcp__tiny__add", {"a": 2, "b": 3})
    assert call.result == 'SUM=5 a "b"'
    assert "mcp_servers" not in (stage.home / ".codex" / "config.toml").read_text(encoding="utf-8")


EVIL = """
[mcp_servers.{name}]
command = {command}
args = ["-I", {server}]
required = true
default_tools_approval_mode = "approve"
"""
"""A server of the user's own: what its tools do, no sandbox bounds."""


def configure_server(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    server = EVIL.format(
        name=name, command=json.dumps(sys.executable), server=json.dumps(toolserver.__file__)
    )
    with path.open("a", encoding="utf-8") as file:
        file.write(server)


@pytest.mark.parametrize("restriction", ["", "read_only", "no_file_edit", "no_shell_exec"])
@pytest.mark.parametrize("trust", ["trusted", "untrusted"])
def test_servers_of_the_users_own_are_for_roles_without_restrictions_only(
    stage: Stage, model: ModelServer, restriction: str, trust: str
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=stage.work, check=True)
    own = stage.home / ".codex" / "config.toml"
    configure_server(own, "evil")
    configure_server(stage.work / ".codex" / "config.toml", "worse")
    project = f'[projects.{json.dumps(str(stage.work))}]\ntrust_level = "{trust}"\n'
    own.write_text(f"{own.read_text(encoding='utf-8')}{project}", encoding="utf-8")
    names = ("evil", "worse", "tiny")
    model.add(*(Calls("add", {"a": 2, "b": 3}, namespace=f"mcp__{name}") for name in names), ANSWER)
    server = McpServer("tiny", sys.executable, ("-I", toolserver.__file__), {"TINY": "leaf"})
    reply = stage.run(codex(mcp=(server,)), capabilities=(restriction,) if restriction else ())
    theirs, of_project, ours = returned(model)
    assert "SUM=5 leaf" in ours
    assert ("SUM=5 nothing" in theirs) == (not restriction)
    assert ("SUM=5 nothing" in of_project) == (trust == "trusted" and not restriction)
    assert reply.text == ANSWER


def test_a_server_that_does_not_start_ends_the_run(stage: Stage, model: ModelServer) -> None:
    error = stage.fails(codex(mcp=(McpServer("tiny", "/no/such/program"),)), record="mcp-missing")
    assert (error.ending, error.is_session_lost) == ("failed", False)
    assert "tiny" in str(error)
    assert model.turns == []


def test_a_cancel_ends_the_agent_and_the_shell_it_runs(stage: Stage, model: ModelServer) -> None:
    bell = Bell(stage.work / "bell")
    command = f"{bell.ring}; exec python3 -c 'import time; time.sleep(600)'"
    model.add(Calls("exec_command", {"cmd": command, "yield_time_ms": 30_000}))
    error = stage.cancelled(codex(), bell.rings)
    assert error.ending == "interrupted"
    assert error.session
    assert stage.survivors() == []


def test_a_timeout_leaves_no_process(stage: Stage, model: ModelServer) -> None:
    model.add(Hangs())
    error = stage.fails(codex(timeout=2))
    assert error.ending == "timeout"
    assert stage.survivors() == []


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_failing_endpoint_is_an_api_failure(stage: Stage, model: ModelServer, status: int) -> None:
    model.add(When("", Sends(b'{"error": {"message": "boom"}}', status), is_once=False))
    error = stage.fails(codex(), record="api-failure" if status == 401 else "")
    assert error.ending == "api_failure"
    assert str(error)
    assert error.session


def test_an_endpoint_that_hangs_up_is_an_api_failure(stage: Stage, model: ModelServer) -> None:
    model.add(When("", Closes(), is_once=False))
    assert stage.fails(codex()).ending == "api_failure"


def test_an_endpoint_that_is_not_there_is_an_api_failure_and_not_waited_for(
    stage: Stage, model: ModelServer
) -> None:
    gone = codex(args=("-c", 'model_providers.scripted.base_url="http://127.0.0.1:1/v1"'), timeout=60)
    assert stage.fails(gone, record="endpoint-gone").ending == "api_failure"


def test_what_was_done_before_the_endpoint_failed_is_kept(stage: Stage, model: ModelServer) -> None:
    model.add(Calls("apply_patch", PATCH), Sends(b"{}", 400))
    error = stage.fails(codex(), record="api-failure-later")
    assert (error.ending, error.files) == ("api_failure", ("a.txt",))


def test_an_agent_held_to_a_schema_answers_with_it(stage: Stage, model: ModelServer) -> None:
    model.add('{"status": "done"}')
    reply = stage.run(codex(is_typed=True), schema=SCHEMA, record="typed")
    assert reply.text == "---\nstatus: done\n---\n"
    assert model.turns[0].body["text"]["format"]["schema"] == SCHEMA


def test_a_prompt_of_a_megabyte_arrives_whole(stage: Stage, model: ModelServer) -> None:
    prompt = "Zeile ü\n" * 131_072
    model.add(ANSWER)
    assert stage.run(codex(), prompt).text == ANSWER
    assert any(
        prompt == block["text"]
        for item in model.turns[0].body["input"]
        for block in item.get("content") or ()
        if "text" in block
    )


def test_a_prompt_that_the_program_does_not_take_is_told(stage: Stage, model: ModelServer) -> None:
    error = stage.fails(codex(), "x" * 1_100_000, record="prompt-too-long")
    assert error.ending == "failed"
    assert "maximum length" in str(error)
    assert model.turns == []


def test_the_program_has_every_flag_the_adapter_uses(stage: Stage) -> None:
    command = [PROGRAM, *Codex.help_arguments]
    result = subprocess.run(command, env=stage.env, capture_output=True, text=True, check=True, timeout=60)
    assert [flag for flag in Codex.needed_flags if flag not in result.stdout] == []


class TestSandbox(Confined):
    key = "SCRIPTED_KEY"
    settings = ".codex/config.toml"

    def run(self, stage: Stage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.run(codex(), prompt, **context)

    def shell(self, command: str) -> Calls:
        return shell(command)

    def test_without_a_provider_of_its_own_the_key_of_openai_stays_outside(
        self, stage: Stage, model: ModelServer
    ) -> None:
        planted(stage, self.settings, f'model = "gpt-5.5"\nopenai_base_url = "{model.base_url}"\n')
        stage.env["CODEX_API_KEY"] = KEY
        model.add("The word is elm.", "elm")
        first = self.run(stage, sandbox=self.plan(stage, network="none"))
        second = self.run(stage, session=first.session, sandbox=self.plan(stage, network="none"))
        assert (second.text, second.session) == ("elm", first.session)
        assert [turn.headers["authorization"] for turn in model.turns] == [f"Bearer {KEY}"] * 2
