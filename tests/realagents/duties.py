"""What every coding agent is asked to do here: the same scenes with each program, in its own words.

A module of a program subclasses `Duties` and says how its model calls the tools. The streams it records are
what tests/agents replays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from modelserver import Calls, Hangs, ModelServer, Says, Sends

from realagents import toolserver
from realagents.stage import Bell, Stage, file_text
from rolecall.agents.contract import ANSWER
from rolecall.agents.program import McpServer, Program
from rolecall.agents.protocol import Usage

PROMPT_LINES = 131_072
TINY = McpServer("tiny", sys.executable, ("-I", str(Path(toolserver.__file__))), {"TINY": "told"})
REFUSAL = b'{"error": {"message": "the key is wrong", "code": 401, "type": "authentication"}}'


class Duties:
    agent: ClassVar[Callable[..., Program]]
    """Makes the adapter, as it is called with options."""
    unknown: ClassVar[str] = "11111111-2222-4333-8444-555555555555"
    """The id of a session that never was."""
    has_live_session: ClassVar[bool] = True

    def write(self, stage: Stage, name: str) -> Calls:
        """The model writes the text "written" and a line's end to a file, after some words."""
        raise NotImplementedError

    def shell(self, command: str) -> Calls:
        raise NotImplementedError

    def make(self, **options: Any) -> Program:
        return type(self).agent(**options)

    def test_the_answer_comes_with_session_and_usage(self, stage: Stage, model: ModelServer) -> None:
        model.add(Says(ANSWER, prompt_tokens=100, completion_tokens=7, cached_tokens=40))
        reply = stage.run(self.make(), record="answer")
        assert (reply.text, reply.ending, reply.turns, reply.files) == (ANSWER, "completed", (), ())
        assert reply.session
        assert stage.recorder.bodies("session") == [{"session": reply.session}]
        assert stage.recorder.bodies("text") == [{"text": ANSWER}]
        assert reply.usage is not None
        used = (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens)
        assert (*used, reply.usage.turns) == (100, 7, 40, 1)
        assert stage.survivors() == []

    def test_the_model_that_is_named_is_asked(self, stage: Stage, model: ModelServer) -> None:
        model.add("yes")
        named = self.named_model()
        stage.run(self.make(model=named))
        asked = str(model.turns[0].body.get("model") or model.turns[0].path)
        assert named.rpartition("/")[2] in asked

    def named_model(self) -> str:
        return "another-model"

    def test_tools_need_not_be_asked_for_and_the_turns_show_them(
        self, stage: Stage, model: ModelServer
    ) -> None:
        model.add(self.write(stage, "a.txt"), self.shell("echo shell > b.txt; expr 40000 + 2042"), ANSWER)
        reply = stage.run(self.make(), record="tools")
        assert file_text(stage.work / "a.txt") == "written\n"
        assert file_text(stage.work / "b.txt") == "shell\n"
        assert reply.text == ANSWER
        self.check_turns(stage, reply)

    def check_turns(self, stage: Stage, reply: Any) -> None:
        assert reply.files == ("a.txt",)
        assert reply.usage.turns == 3
        wrote, ran = (call for turn in reply.turns for call in turn.tool_calls)
        assert "written" in str(dict(wrote.arguments))
        assert "expr 40000 + 2042" in str(dict(ran.arguments))
        assert "42042" in ran.result
        assert [turn.text for turn in reply.turns if turn.text] == ["I write it.", ANSWER]
        assert [body["name"] for body in stage.recorder.bodies("tool_call")] == [wrote.name, ran.name]

    def test_a_resumed_session_remembers_and_counts_only_what_is_new(
        self, stage: Stage, model: ModelServer
    ) -> None:
        model.add(Says("The word is elm.", 100, 7, 40), Says("elm", 50, 3, 20))
        first = stage.run(self.make(), "Choose a word.")
        second = stage.run(
            self.make(),
            "Which word?",
            session=first.session,
            session_total=first.session_total,
            record="resumed",
        )
        assert (second.text, second.session) == ("elm", first.session)
        assert "The word is elm." in model.turns[1].text
        self.check_resumed(second.usage)

    def check_resumed(self, usage: Usage | None) -> None:
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.turns) == (50, 3, 20, 1)

    def test_a_fork_goes_on_in_a_copy_and_leaves_the_session_as_it_was(
        self, stage: Stage, model: ModelServer
    ) -> None:
        if not self.make().can_fork:
            pytest.skip("the program cannot fork a session")
        model.add("one", Says("two", 50, 3), "three")
        first = stage.run(self.make(), "The trunk.")
        branch = stage.run(
            self.make(), "The branch.", session=first.session, is_fork=True, session_total=first.session_total
        )
        assert branch.session not in (None, first.session)
        assert "The trunk." in model.turns[1].text
        assert branch.usage is not None
        assert (branch.usage.input_tokens, branch.usage.output_tokens) == (50, 3)
        again = stage.run(self.make(), "The trunk again.", session=first.session)
        assert again.session == first.session
        assert "The branch." not in model.turns[2].text

    def test_an_unknown_session_is_reported_as_lost(self, stage: Stage, model: ModelServer) -> None:
        error = stage.fails(self.make(), session=self.unknown, record="session-lost")
        assert (error.ending, error.is_session_lost) == ("failed", True)
        assert model.turns == []

    def test_a_run_that_was_cut_off_goes_on_in_its_session(self, stage: Stage, model: ModelServer) -> None:
        if not self.has_live_session:
            pytest.skip("the program tells its session only at the end")
        model.add(self.write(stage, "a.txt"), Hangs())
        error = stage.cancelled(self.make(), lambda: model.wait_for_turn(2), record="cancelled")
        assert (error.ending, error.text, error.files) == ("interrupted", "I write it.", ("a.txt",))
        assert stage.recorder.bodies("session") == [{"session": error.session}]
        assert stage.survivors() == []
        model.add(ANSWER)
        assert stage.run(self.make(), "Go on now.", session=error.session).text == ANSWER
        assert "I write it." in model.turns[-1].text

    def test_a_cancel_ends_a_command_that_is_running(self, stage: Stage, model: ModelServer) -> None:
        bell = Bell(stage.work / "bell")
        model.add(self.shell(f"{bell.ring}; sleep 600"), "too late")
        error = stage.cancelled(self.make(), bell.rings)
        assert error.ending == "interrupted"
        assert stage.survivors() == []

    def test_a_timeout_ends_it(self, stage: Stage, model: ModelServer) -> None:
        model.add(Hangs())
        error = stage.fails(self.make(timeout=8.0))
        assert error.ending == "timeout"
        assert stage.survivors() == []

    def test_a_failure_of_the_endpoint_is_told_as_one(self, stage: Stage, model: ModelServer) -> None:
        model.add(*[Sends(REFUSAL, 401, {"Content-Type": "application/json"})] * 8)
        error = stage.fails(self.make(), record="api-failure")
        assert error.ending == "api_failure"
        assert "401" in str(error) or "the key is wrong" in str(error)

    def test_files_that_may_not_be_edited_are_not(self, stage: Stage, model: ModelServer) -> None:
        model.add(self.write(stage, "a.txt"), self.shell("expr 40000 + 2042"), ANSWER)
        reply = stage.run(self.make(), capabilities=("no_file_edit",), record="no-file-edit")
        assert (reply.text, reply.files) == (ANSWER, ())
        assert not (stage.work / "a.txt").exists()
        assert "42042" in model.turns[2].text  # a shell is not denied with it

    def test_a_shell_that_may_not_be_used_is_not(self, stage: Stage, model: ModelServer) -> None:
        model.add(self.shell("echo shell > b.txt"), self.write(stage, "a.txt"), ANSWER)
        reply = stage.run(self.make(), capabilities=("no_shell_exec",), record="no-shell-exec")
        assert reply.text == ANSWER
        assert not (stage.work / "b.txt").exists()
        assert file_text(stage.work / "a.txt") == "written\n"

    def test_a_role_that_may_only_read_changes_nothing(self, stage: Stage, model: ModelServer) -> None:
        if "shell_file_write" not in self.make().deniable:
            pytest.skip("the adapter refuses such a role")
        model.add(self.write(stage, "a.txt"), self.shell("echo shell > b.txt"), ANSWER)
        reply = stage.run(self.make(), capabilities=("read_only",), record="read-only")
        assert (reply.text, reply.files) == (ANSWER, ())
        assert list(stage.work.iterdir()) == []

    def test_a_prompt_of_a_megabyte_arrives_whole(self, stage: Stage, model: ModelServer) -> None:
        # The command gives a program that does not wait for its reader the time to print.
        model.add(self.shell("sleep 1"), ANSWER)
        reply = stage.run(self.make(), "Zeile ü\n" * PROMPT_LINES)
        assert reply.text == ANSWER
        assert model.turns[0].text.count("Zeile ü") >= PROMPT_LINES


class Servers:
    """For programs that are given tool servers."""

    agent: ClassVar[Callable[..., Program]]
    tool: ClassVar[str]
    """What the model calls the tool `add` of the server `tiny`."""

    @pytest.mark.parametrize("restriction", ["", "read_only"])
    def test_a_tool_server_is_started_and_asked(
        self, stage: Stage, model: ModelServer, restriction: str
    ) -> None:
        model.add(Calls(self.tool, {"a": 2, "b": 3}), ANSWER)
        agent = type(self).agent(mcp=(TINY,))
        reply = stage.run(
            agent,
            capabilities=(restriction,) if restriction else (),
            record="" if restriction else "mcp",
        )
        assert reply.text == ANSWER
        (called,) = (call for turn in reply.turns for call in turn.tool_calls)
        assert (called.name, called.result) == (self.tool, "SUM=5 told")
        assert stage.survivors() == []
