"""The adapter of Gemini CLI with a stand-in that plays what the real program printed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from replay import ANSWER, Replays, call, calls_of, fails, play, value

from rolecall.agents.adapters.gemini import DENIES, Gemini, gemini
from rolecall.agents.protocol import Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

SESSION = "00000000-0000-4000-8000-000000000001"


class TestGeminiKeepsTheContract(Replays):
    agent = gemini()
    session = SESSION


def denied(seen: dict[str, Any]) -> set[str]:
    path = value(seen, "--admin-policy")
    if path is None:
        return set()
    (rule,) = tomllib.loads(seen["files"][path])["rule"]
    assert (rule["decision"], rule["priority"]) == ("deny", 999)
    return set(rule["toolName"])


def test_the_prompt_goes_by_stdin_and_every_tool_may_be_used(tmp_path: Path) -> None:
    seen = call(gemini(env={"GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9"}), tmp_path)
    assert seen["stdin"] == "The prompt."
    assert (value(seen, "--approval-mode"), "--skip-trust" in seen["argv"]) == ("yolo", True)
    assert (seen["env"]["KEPT"], seen["env"]["GOOGLE_GEMINI_BASE_URL"]) == ("1", "http://127.0.0.1:9")
    assert {"--admin-policy", "--resume", "--model"}.isdisjoint(seen["argv"])


def test_options_and_the_session_become_flags(tmp_path: Path) -> None:
    seen = call(gemini(model="gemini-2.5-pro", args=("--debug",)), tmp_path, session="s-1")
    assert (value(seen, "--model"), value(seen, "--resume")) == ("gemini-2.5-pro", "s-1")
    assert seen["argv"][-1] == "--debug"


@pytest.mark.parametrize("restriction", ["no_file_edit", "no_shell_exec", "read_only"])
def test_what_a_restriction_denies_is_denied_by_a_rule_of_the_run(tmp_path: Path, restriction: str) -> None:
    seen = call(gemini(), tmp_path, capabilities=(restriction,))
    expected = {tool for name in capabilities.RESTRICTIONS[restriction] for tool in DENIES[name]}
    assert denied(seen) == expected
    assert "mcp_*" in expected
    assert not Path(str(value(seen, "--admin-policy"))).exists()


@pytest.mark.parametrize("restriction", ["no_task_create", "no_task_update"])
def test_what_our_own_verbs_deny_needs_no_rule(tmp_path: Path, restriction: str) -> None:
    assert denied(call(gemini(), tmp_path, capabilities=(restriction,))) == set()


def test_where_the_machine_has_rules_of_its_own_a_restricted_role_is_refused(tmp_path: Path) -> None:
    rules = tmp_path / "policies"
    rules.mkdir()

    @dataclass(frozen=True, kw_only=True)
    class Elsewhere(Gemini):
        system_policies: ClassVar[tuple[Path, ...]] = (rules,)

    assert denied(call(Elsewhere(), tmp_path / "before", capabilities=("read_only",)))
    (rules / "own.toml").touch()
    call(Elsewhere(), tmp_path / "free")
    with pytest.raises(UsageError, match="policies") as caught:
        call(Elsewhere(), tmp_path / "after", capabilities=("read_only",))
    assert caught.value.hint


def test_an_answer_comes_with_session_text_and_usage(tmp_path: Path) -> None:
    reply, recorder = play(gemini(), tmp_path, "answer")
    assert (reply.text, reply.session, reply.ending) == (ANSWER, SESSION, "completed")
    assert reply.usage == Usage(100, 7, 40, None, 1)
    used = {"input_tokens": 100, "output_tokens": 7, "cached_tokens": 40}
    assert recorder.bodies("usage") == [used]
    assert recorder.bodies("text") == [{"text": ANSWER}]


def test_turns_hold_the_calls_and_only_files_that_were_written_are_touched(tmp_path: Path) -> None:
    reply, recorder = play(gemini(), tmp_path, "tools")
    assert [turn.text for turn in reply.turns] == ["I write it.", "", ANSWER]
    assert calls_of(reply) == [("write_file", ""), ("run_shell_command", "42042")]
    assert reply.files == ("a.txt",)
    assert [body["name"] for body in recorder.bodies("tool_call")] == ["write_file", "run_shell_command"]
    refused, _ = play(gemini(), tmp_path / "refused", "no-file-edit")
    assert refused.files == ()
    assert calls_of(refused)[0] == ("write_file", 'Tool "write_file" not found. Did you mea')


def test_pieces_of_a_message_are_one_text(tmp_path: Path) -> None:
    stream = (
        '{"type": "message", "role": "assistant", "content": "One ", "delta": true}\n'
        '{"type": "message", "role": "assistant", "content": "message.", "delta": true}\n'
        '{"type": "result", "status": "success"}\n'
    )
    assert play(gemini(), tmp_path, stream)[0].text == "One message."


def test_a_limit_of_turns_is_an_answer_that_says_so(tmp_path: Path) -> None:
    reply, _ = play(gemini(), tmp_path, "limit")
    assert (reply.text, reply.ending) == ("I look.", "limit")
    assert "max session turns" in reply.reason


def test_the_endings_that_are_no_answer(tmp_path: Path) -> None:
    api = fails(gemini(), tmp_path / "api", "api-failure")
    assert (api.ending, api.session) == ("api_failure", SESSION)
    assert "the key is wrong" in str(api)
    lost = fails(gemini(), tmp_path / "lost", "session-lost", session="s-1")
    assert (lost.ending, lost.is_session_lost) == ("failed", True)
    assert "No previous sessions found" in str(lost)
    silent = fails(gemini(), tmp_path / "silent", "cancelled", ending={"hangs": False, "exit": 0})
    assert (silent.ending, silent.text, silent.files) == ("interrupted", "I write it.", ("a.txt",))
    signed_out = fails(gemini(), tmp_path / "out", "\n", ending={"exit": 41, "stderr": "Invalid auth method"})
    assert (signed_out.ending, signed_out.is_session_lost) == ("failed", False)
    assert "Invalid auth method" in str(signed_out)


def test_a_session_that_was_not_asked_for_is_not_lost(tmp_path: Path) -> None:
    assert not fails(gemini(), tmp_path, "session-lost").is_session_lost
