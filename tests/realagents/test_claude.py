"""Claude Code through its adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, Hangs, ModelServer, Says, Sends, When

from realagents import toolserver
from realagents.confined import Confined, planted
from realagents.stage import Bell, Stage, file_text, installed
from rolecall.agents.adapters.claude import DENIES, Claude, claude
from rolecall.agents.contract import ANSWER
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Reply, Usage
from rolecall.settings import capabilities

PROGRAM = installed("claude")
BOOM = Sends(b'{"type": "error", "error": {"type": "api_error", "message": "boom"}}', 500)
SCHEMA = {
    "type": "object",
    "properties": {"status": {"enum": ["done", "failed"]}, "why": {"type": "string"}},
    "required": ["status"],
}


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    return Stage(
        model,
        tmp_path,
        {
            "ANTHROPIC_BASE_URL": model.root_url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_TMPDIR": str(tmp_path / "tmp"),
        },
    )


def write(path: Path) -> Calls:
    return Calls("Write", {"file_path": str(path), "content": "written"})


def shell(command: str) -> Calls:
    return Calls("Bash", {"command": command, "description": "do it"})


def said(model: ModelServer, turn: int = -1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = model.turns[turn].body["messages"]
    return messages


def test_the_answer_comes_with_session_and_usage(stage: Stage, model: ModelServer) -> None:
    model.add(Says(ANSWER, prompt_tokens=100, completion_tokens=7, cached_tokens=40))
    reply = stage.run(claude(), record="answer")
    assert (reply.text, reply.ending, reply.turns, reply.files) == (ANSWER, "completed", (), ())
    assert stage.recorder.bodies("session") == [{"session": reply.session}]
    assert stage.recorder.bodies("text") == [{"text": ANSWER}]
    assert reply.usage is not None
    assert reply.usage.cost is not None
    assert reply.usage.cost > 0
    assert reply.usage == Usage(100, 7, 40, reply.usage.cost, turns=1)


def test_model_and_instructions_arrive(stage: Stage, model: ModelServer) -> None:
    model.add("yes")
    stage.run(claude(model="claude-haiku-4-5", system='Be "kind".\nAlways.'))
    assert model.turns[0].body["model"].startswith("claude-haiku-4-5")
    assert any('Be "kind".\nAlways.' in block["text"] for block in model.turns[0].body["system"])


def test_a_resumed_session_remembers_and_counts_only_what_is_new(stage: Stage, model: ModelServer) -> None:
    model.add(Says("The word is elm.", 100, 7), Says("elm", 50, 3))
    first = stage.run(claude(), "Choose a word.")
    second = stage.run(
        claude(),
        "Which word?",
        session=first.session,
        session_total=first.session_total,
        record="resumed",
    )
    assert second.session == first.session
    assert all(text in model.turns[1].text for text in ("Choose a word.", "The word is elm.", "Which word?"))
    assert first.usage is not None
    assert first.usage.cost is not None
    assert second.usage is not None
    assert second.usage.cost is not None
    assert (second.usage.input_tokens, second.usage.output_tokens) == (50, 3)
    assert second.session_total is not None
    assert second.session_total.cost == pytest.approx(first.usage.cost + second.usage.cost)


def test_a_fork_goes_on_in_a_copy_and_leaves_the_session_as_it_was(stage: Stage, model: ModelServer) -> None:
    model.add("one", Says("two", 50, 3), "three")
    first = stage.run(claude(), "The trunk.")
    branch = stage.run(
        claude(), "The branch.", session=first.session, is_fork=True, session_total=first.session_total
    )
    assert branch.session not in (None, first.session)
    assert "The trunk." in model.turns[1].text
    assert branch.usage is not None
    assert branch.usage.input_tokens == 50
    again = stage.run(claude(), "The trunk again.", session=first.session)
    assert again.session == first.session
    assert "The branch." not in model.turns[2].text


def test_an_unknown_session_is_reported_as_lost(stage: Stage) -> None:
    error = stage.fails(claude(), session="11111111-2222-4333-8444-555555555555", record="session-lost")
    assert (error.ending, error.is_session_lost) == ("failed", True)
    assert "No conversation found" in str(error)


def test_the_session_is_known_while_the_agent_still_works(stage: Stage, model: ModelServer) -> None:
    model.add(Hangs())

    def session_came() -> bool:
        return model.wait_for_turn(1) and len(stage.recorder.bodies("session")) == 1

    error = stage.cancelled(claude(), session_came)
    assert error.ending == "interrupted"
    assert stage.recorder.bodies("session") == [{"session": error.session}]


def test_a_run_that_was_cut_off_goes_on_in_its_session_and_its_tokens_are_counted_then(
    stage: Stage, model: ModelServer
) -> None:
    model.add(Calls("Read", {"file_path": "/dev/null"}, "I look first.", prompt_tokens=70), Hangs())
    error = stage.cancelled(claude(), lambda: model.wait_for_turn(2), record="cancelled")
    assert error.text == "I look first."
    assert [call.name for turn in error.turns for call in turn.tool_calls] == ["Read"]
    model.add(Says("done", 50, 3))
    reply = stage.run(claude(), "Go on.", session=error.session)
    assert "I look first." in model.turns[-1].text
    assert reply.usage is not None
    assert reply.usage.input_tokens == 120


def test_without_restrictions_nothing_has_to_be_asked_for(stage: Stage, model: ModelServer) -> None:
    model.add(write(stage.work / "a.txt"), shell("echo shell > b.txt; echo $((40 + 2))"), ANSWER)
    reply = stage.run(claude(), record="tools")
    assert file_text(stage.work / "a.txt") == "written"
    assert file_text(stage.work / "b.txt") == "shell\n"
    assert reply.files == ("a.txt",)
    assert [call.name for turn in reply.turns for call in turn.tool_calls] == ["Write", "Bash"]
    assert reply.turns[1].tool_calls[0].result == "42"
    assert [body["name"] for body in stage.recorder.bodies("tool_call")] == ["Write", "Bash"]


@pytest.mark.parametrize("restriction", sorted(capabilities.RESTRICTIONS))
def test_what_a_restriction_denies_is_not_offered(stage: Stage, model: ModelServer, restriction: str) -> None:
    model.add(ANSWER)
    stage.run(claude(), capabilities=(restriction,))
    denied = {tool for name in capabilities.RESTRICTIONS[restriction] for tool in DENIES[name]}
    assert denied
    assert denied.isdisjoint(model.turns[0].tools)
    assert "Read" in model.turns[0].tools


def test_a_role_that_only_reads_cannot_write_by_any_tool(stage: Stage, model: ModelServer) -> None:
    subprocess.run(["git", "init", "-q"], cwd=stage.work, check=True)
    watch = {"command": "touch d", "description": "d", "timeout_ms": 1000, "persistent": False}
    ask_another = {"description": "d", "prompt": "WRITE IT", "subagent_type": "general-purpose"}
    model.add(
        When("WRITE IT", shell("touch sub")),
        write(stage.work / "a.txt"),
        shell("touch b"),
        Calls("EnterWorktree", {"name": "elsewhere"}),
        Calls("Monitor", watch),
        Calls("Agent", {**ask_another, "run_in_background": False}),
        "the other agent could not",
        ANSWER,
    )
    reply = stage.run(claude(), capabilities=("read_only",), record="read-only")
    assert reply.text == ANSWER
    assert [path.name for path in stage.work.iterdir()] == [".git"]
    assert reply.files == ()
    results = [call.result for turn in reply.turns for call in turn.tool_calls]
    assert ["No such tool available" in result for result in results] == [True] * 4 + [False, True]


def test_files_that_another_agent_of_the_session_wrote_are_told_too(stage: Stage, model: ModelServer) -> None:
    ask_another = {"description": "d", "prompt": "WRITE IT", "subagent_type": "general-purpose"}
    model.add(
        When("WRITE IT", write(stage.work / "sub.txt")),
        Calls("Agent", {**ask_another, "run_in_background": False}),
        "I wrote it.",
        ANSWER,
    )
    reply = stage.run(claude(), record="subagent")
    assert (reply.text, reply.files) == (ANSWER, ("sub.txt",))
    assert [call.name for turn in reply.turns for call in turn.tool_calls] == ["Agent", "Write"]
    assert "I wrote it." not in [turn.text for turn in reply.turns]


def test_without_a_shell_files_can_still_be_written(stage: Stage, model: ModelServer) -> None:
    model.add(write(stage.work / "a.txt"), shell("touch b"), ANSWER)
    assert stage.run(claude(), capabilities=("no_shell_exec",)).files == ("a.txt",)
    assert [path.name for path in stage.work.iterdir()] == ["a.txt"]


def test_only_the_named_tools_are_offered(stage: Stage, model: ModelServer) -> None:
    model.add(shell("touch b"), ANSWER)
    stage.run(claude(tools=("Read", "Write")), capabilities=("no_file_edit",))
    assert "Read" in model.turns[0].tools
    assert {"Write", "Bash", "Edit"}.isdisjoint(model.turns[0].tools)
    assert list(stage.work.iterdir()) == []


def test_what_the_program_itself_refuses_is_told_as_a_denied_permission(
    stage: Stage, model: ModelServer
) -> None:
    model.add(write(stage.work / ".git" / "hooks" / "pre-commit"), ANSWER)
    reply = stage.run(claude(), record="permission-denied")
    (asked,) = stage.recorder.bodies("permission")
    assert (asked["what"], asked["allowed"]) == ("Write", False)
    assert "sensitive file" in asked["reason"]
    assert reply.files == ()


def test_the_tool_of_a_server_is_called_with_the_servers_own_variables(
    stage: Stage, model: ModelServer
) -> None:
    server = McpServer("tiny", sys.executable, ("-I", toolserver.__file__), {"TINY": 'a "b"'})
    model.add(Calls("mcp__tiny__add", {"a": 2, "b": 3}), ANSWER)
    reply = stage.run(claude(mcp=(server,)), record="mcp")
    (call,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert (call.name, dict(call.arguments)) == ("mcp__tiny__add", {"a": 2, "b": 3})
    assert 'SUM=5 a "b"' in call.result.replace("\\", "")


def test_a_cancel_ends_the_agent_and_the_shell_it_runs(stage: Stage, model: ModelServer) -> None:
    bell = Bell(stage.work / "bell")
    model.add(shell(f"{bell.ring}; exec python3 -c 'import time; time.sleep(600)'"))
    error = stage.cancelled(claude(), bell.rings)
    assert error.ending == "interrupted"
    assert error.session
    assert stage.survivors() == []


def test_a_timeout_leaves_no_process(stage: Stage, model: ModelServer) -> None:
    model.add(Hangs())
    error = stage.fails(claude(timeout=2))
    assert error.ending == "timeout"
    assert stage.survivors() == []


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_failing_endpoint_is_an_api_failure(stage: Stage, model: ModelServer, status: int) -> None:
    model.add(When("", Sends(BOOM.body, status), is_once=False))
    error = stage.fails(claude(), record="api-failure" if status == 500 else "")
    assert error.ending == "api_failure"
    assert "boom" in str(error)
    assert error.text == ""
    assert error.session


def test_what_was_done_before_the_endpoint_failed_is_kept_and_counted(
    stage: Stage, model: ModelServer
) -> None:
    model.add(write(stage.work / "a.txt"), BOOM)
    error = stage.fails(claude(), record="api-failure-later")
    assert (error.ending, error.files) == ("api_failure", ("a.txt",))
    assert error.usage is not None
    assert error.usage.input_tokens == 10


def test_too_many_turns_are_a_limit(stage: Stage, model: ModelServer) -> None:
    model.add(Calls("Read", {"file_path": "/dev/null"}, "Reading."), "never")
    reply = stage.run(claude(max_turns=1), record="max-turns")
    assert (reply.ending, reply.text) == ("limit", "Reading.")
    assert "maximum number of turns" in reply.reason


def test_too_much_money_is_a_limit_and_is_counted(stage: Stage, model: ModelServer) -> None:
    model.add(Calls("Read", {"file_path": "/dev/null"}, prompt_tokens=100_000), "never")
    reply = stage.run(claude(max_cost=0.01), record="max-cost")
    assert reply.ending == "limit"
    assert reply.usage is not None
    assert reply.usage.input_tokens == 100_000
    assert reply.usage.cost is not None
    assert reply.usage.cost > 0.01


def test_an_agent_held_to_a_schema_answers_with_it(stage: Stage, model: ModelServer) -> None:
    model.add(Calls("StructuredOutput", {"status": "done", "why": "it works"}, "I looked at all of it."))
    reply = stage.run(claude(is_typed=True), schema=SCHEMA, record="typed")
    assert reply.text == "---\nstatus: done\nwhy: it works\n---\n\nI looked at all of it.\n"


def test_a_prompt_of_a_megabyte_arrives_whole(stage: Stage, model: ModelServer) -> None:
    prompt = "Zeile ü\n" * 131_072
    model.add(ANSWER)
    assert stage.run(claude(), prompt).text == ANSWER
    assert any(
        prompt.strip() in block["text"]
        for message in said(model)
        for block in message["content"]
        if "text" in block
    )


def test_the_work_of_other_agents_is_counted_and_the_last_of_several_results_is_the_answer(
    stage: Stage, model: ModelServer
) -> None:
    model.add(
        When(  # the main turn, which has the words too, may ask first
            "LOOK AROUND", Says("I saw it.", prompt_tokens=1000, completion_tokens=100), without="MAIN TURN"
        ),
        Calls("Agent", {"description": "d", "prompt": "LOOK AROUND", "subagent_type": "general-purpose"}),
        "It works in the background.",
        ANSWER,
    )
    reply = stage.run(claude(), "MAIN TURN", record="background")
    assert reply.text == ANSWER
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (1030, 115)
    assert "I saw it." not in [turn.text for turn in reply.turns]


def test_the_program_has_every_flag_the_adapter_uses(stage: Stage) -> None:
    command = [PROGRAM, *Claude.help_arguments]
    result = subprocess.run(command, env=stage.env, capture_output=True, text=True, check=True, timeout=60)
    assert [flag for flag in Claude.needed_flags if flag not in result.stdout] == []


class TestSandbox(Confined):
    key = "ANTHROPIC_API_KEY"
    settings = ".claude/settings.json"

    def run(self, stage: Stage, prompt: str = "Go on.", **context: Any) -> Reply:
        return stage.run(claude(), prompt, **context)

    def shell(self, command: str) -> Calls:
        return shell(command)

    def test_its_own_sandbox_is_off_inside_ours(self, stage: Stage, model: ModelServer) -> None:
        planted(stage, self.settings, '{"sandbox": {"enabled": true, "failIfUnavailable": true}}')
        model.add(shell("echo shell > b.txt"), ANSWER)
        assert self.run(stage, sandbox=self.plan(stage)).text == ANSWER
        assert file_text(stage.work / "b.txt") == "shell\n"
