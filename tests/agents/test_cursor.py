"""The adapter of Cursor's agent with a stand-in that prints the events of its documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay import ANSWER, Replays, call, calls_of, fails, play, value

from rolecall.agents.adapters.cursor import DENIES, Cursor, cursor
from rolecall.agents.protocol import Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

SESSION = "c6b62c6f-7ead-4fd6-9922-e952131177ff"


class TestCursorKeepsTheContract(Replays):
    agent = cursor()
    session = SESSION


def test_the_prompt_goes_by_stdin_and_every_tool_may_be_used(tmp_path: Path) -> None:
    seen = call(cursor(env={"CURSOR_API_KEY": "dummy"}), tmp_path)
    assert seen["stdin"] == "The prompt."
    assert (seen["env"]["KEPT"], seen["env"]["CURSOR_API_KEY"]) == ("1", "dummy")
    assert {"--print", "--trust", "--force", "--approve-mcps"} <= set(seen["argv"])
    assert not any(word.startswith(("--mode", "--resume", "--model")) for word in seen["argv"])


def test_options_and_the_session_become_flags(tmp_path: Path) -> None:
    seen = call(cursor(model="gpt-5", args=("--sandbox", "enabled")), tmp_path, session="s-1")
    assert (value(seen, "--model"), value(seen, "--sandbox")) == ("gpt-5", "enabled")
    assert "--resume=s-1" in seen["argv"]


@pytest.mark.parametrize("restriction", ["no_file_edit", "read_only"])
def test_a_role_that_may_not_write_is_played_in_the_mode_that_only_reads(
    tmp_path: Path, restriction: str
) -> None:
    seen = call(cursor(), tmp_path, capabilities=(restriction,))
    assert "--mode=ask" in seen["argv"]
    assert {"--force", "--approve-mcps"}.isdisjoint(seen["argv"])


@pytest.mark.parametrize("restriction", ["no_task_create", "no_task_update"])
def test_what_our_own_verbs_deny_needs_no_mode(tmp_path: Path, restriction: str) -> None:
    assert "--force" in call(cursor(), tmp_path, capabilities=(restriction,))["argv"]


def test_a_shell_alone_cannot_be_denied(tmp_path: Path) -> None:
    assert Cursor.deniable == set(DENIES) == {*capabilities.FILES, *capabilities.SHELL_WRITES}
    with pytest.raises(UsageError, match="no_shell_exec"):
        call(cursor(), tmp_path, capabilities=("no_shell_exec",))


def test_an_answer_comes_with_session_and_usage(tmp_path: Path) -> None:
    reply, recorder = play(cursor(), tmp_path, "answer")
    assert (reply.text, reply.session, reply.ending) == (ANSWER, SESSION, "completed")
    assert reply.usage == Usage(100, 7, 40, None, 1)
    assert len(recorder.bodies("usage")) == 1


def test_the_answer_is_the_last_message_and_the_turns_hold_the_calls(tmp_path: Path) -> None:
    reply, recorder = play(cursor(), tmp_path, "tools")
    assert reply.text == ANSWER
    assert calls_of(reply) == [
        ("read", "# Project\n"),
        ("write", calls_of(reply)[1][1]),
        ("shell", "42042\n"),
        ("search", "{'message': 'no index'}"),
    ]
    assert "linesCreated" in reply.turns[1].tool_calls[0].result
    assert reply.files == ("a.txt",)
    assert reply.usage is None  # older versions tell none
    assert [body["name"] for body in recorder.bodies("tool_call")] == ["read", "write", "shell", "search"]


def test_what_was_rejected_is_told_and_touches_nothing(tmp_path: Path) -> None:
    reply, recorder = play(cursor(), tmp_path, "rejected")
    assert reply.files == ()
    (bodies,) = recorder.bodies("permission")
    assert (bodies["what"], bodies["allowed"]) == ("delete", False)
    assert "not in ask mode" in bodies["reason"]


def test_the_endings_that_are_no_answer(tmp_path: Path) -> None:
    failed = fails(cursor(), tmp_path / "failed", "failed")
    assert (failed.ending, failed.session) == ("failed", SESSION)
    assert "The model is not available" in str(failed)
    silent = fails(cursor(), tmp_path / "silent", "cancelled", ending={"hangs": False, "exit": 0})
    assert (silent.ending, silent.text, silent.files) == ("interrupted", "I write it.", ("a.txt",))
    error = '{"type": "result", "is_error": true, "result": "out of credit"}\n'
    assert str(fails(cursor(), tmp_path / "error", error)) == "out of credit"
