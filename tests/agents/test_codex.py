"""The adapter of Codex with a stand-in that plays what the real program printed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import replay
from replay import ANSWER, Replays, fails, play

from rolecall.agents import make
from rolecall.agents.adapters.codex import DENIES, SANDBOXES, Codex, codex
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

SESSION = "00000000-0000-4000-8000-000000000001"


class TestCodexKeepsTheContract(Replays):
    agent = codex()
    session = SESSION


def call(agent: Codex, folder: Path, **context: Any) -> dict[str, Any]:
    return replay.call(agent, folder, env={"HOME": str(folder / "home")}, **context)


def settings(seen: dict[str, Any]) -> dict[str, Any]:
    """What the overrides come to, later ones over earlier ones, each read as the TOML that it is."""
    argv: list[str] = seen["argv"]
    given = [argv[at + 1].partition("=")[::2] for at, word in enumerate(argv) if word == "-c"]
    return {key: tomllib.loads(f"value = {text}")["value"] for key, text in given}


# -- how it is called --


def test_the_prompt_goes_by_stdin_and_nobody_is_asked(tmp_path: Path) -> None:
    seen = call(codex(env={"CODEX_HOME": "/elsewhere"}), tmp_path)
    assert (seen["stdin"], seen["argv"][-1]) == ("The prompt.", "-")
    assert seen["argv"][:3] == ["exec", "--json", "--skip-git-repo-check"]
    assert settings(seen)["approval_policy"] == "never"
    assert seen["env"]["CODEX_HOME"] == "/elsewhere"


@pytest.mark.parametrize(("is_fork", "verb"), [(False, "resume"), (True, "fork")])
def test_a_session_is_resumed_or_forked_by_its_id(tmp_path: Path, is_fork: bool, verb: str) -> None:
    argv = call(codex(), tmp_path, session="s-1", is_fork=is_fork)["argv"]
    assert argv[:2] == ["exec", verb]
    assert argv[-2:] == ["s-1", "-"]


def test_options_become_arguments_and_settings(tmp_path: Path) -> None:
    made = make("codex", {"model": "gpt-5.5", "sandbox": "danger-full-access"})
    system = 'Be "kind" 😀\\\n\tAlways.\x7f'
    seen = call(replace(made, system=system, args=("--ephemeral",)), tmp_path)
    assert seen["argv"][seen["argv"].index("--model") + 1] == "gpt-5.5"
    assert "--ephemeral" in seen["argv"]
    assert settings(seen)["sandbox_mode"] == "danger-full-access"
    assert settings(seen)["developer_instructions"] == system


def test_an_unknown_sandbox_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'none at all'") as caught:
        codex(sandbox="none at all")
    assert all(level in caught.value.hint for level in SANDBOXES)


def test_tool_servers_are_required_settings_with_their_variables(tmp_path: Path) -> None:
    server = McpServer("tiny", "/bin/tiny", ("--say", 'a "b"'), {"KEY": "v=1", "two words": "w"})
    found = settings(call(codex(mcp=(server,)), tmp_path))
    assert {
        key.removeprefix("mcp_servers.tiny."): value for key, value in found.items() if "tiny" in key
    } == {
        "command": "/bin/tiny",
        "args": ["--say", 'a "b"'],
        "env": {"KEY": "v=1", "two words": "w"},
        "required": True,
        "default_tools_approval_mode": "approve",
    }


def test_a_schema_is_a_file_of_the_run_that_is_gone_after_it(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"status": {"enum": ["done"]}}}
    seen = call(codex(is_typed=True), tmp_path, schema=schema)
    path = seen["argv"][seen["argv"].index("--output-schema") + 1]
    assert json.loads(seen["files"][path]) == schema
    assert not Path(path).exists()
    assert "--output-schema" not in call(codex(), tmp_path / "free", schema=schema)["argv"]


# -- restrictions --


def test_every_class_of_actions_is_denied_or_goes_through_our_own_verbs() -> None:
    assert set(DENIES) == Codex.deniable
    assert set(DENIES) | set(capabilities.BY_OURSELVES) == set(capabilities.CLASSES)


@pytest.mark.parametrize("restriction", sorted(capabilities.RESTRICTIONS))
def test_a_restriction_sets_what_denies_each_of_its_classes_whatever_the_options_say(
    tmp_path: Path, restriction: str
) -> None:
    loose = ("-c", 'sandbox_mode="danger-full-access"', "-c", "features.shell_tool=true")
    seen = call(codex(sandbox="danger-full-access", args=loose), tmp_path, capabilities=(restriction,))
    for name in capabilities.RESTRICTIONS[restriction]:
        for key, text in DENIES.get(name, {}).items():
            assert settings(seen)[key] == tomllib.loads(f"value = {text}")["value"], name


def configured(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("restriction", ["read_only", "no_file_edit", "no_shell_exec"])
def test_a_restricted_role_has_no_tool_server_but_those_it_was_given(
    tmp_path: Path, restriction: str
) -> None:
    work = tmp_path / "outer" / "work"
    work.mkdir(parents=True)
    configured(work / "home/.codex/config.toml", '[mcp_servers."a \\"b\\""]\ncommand = "evil"\nargs = ["x"]')
    configured(work / "home/.codex/fast.config.toml", '[mcp_servers.far]\nurl = "http://far"')
    configured(work / ".codex/config.toml", '[mcp_servers.tiny]\ncommand = "theirs"')
    configured(tmp_path / "outer/.codex/config.toml", "[mcp_servers.up]\nenabled = true")
    agent = codex(mcp=(McpServer("tiny", "ours"),), args=("-c", "mcp_servers.more.command='evil'"))
    seen = call(agent, work, capabilities=(restriction,))
    assert settings(seen)["mcp_servers"] == {
        'a "b"': {"command": "evil", "enabled": False},
        "far": {"url": "http://far", "enabled": False},
        "up": {"enabled": False},
    }
    keys = [word.partition("=")[0] for word in seen["argv"] if word.startswith("mcp_servers")]
    assert keys[:3] == ["mcp_servers.more.command", "mcp_servers", "mcp_servers.tiny.command"]


@pytest.mark.parametrize("capability", ["no_task_create", "anything else"])
def test_a_role_that_may_write_keeps_the_servers_of_its_user(tmp_path: Path, capability: str) -> None:
    configured(tmp_path / "home/.codex/config.toml", '[mcp_servers.own]\ncommand = "own"')
    assert "mcp_servers" not in settings(call(codex(), tmp_path, capabilities=(capability,)))


def test_the_servers_are_looked_up_where_the_program_is_told_to_look(tmp_path: Path) -> None:
    configured(tmp_path / "other/config.toml", '[mcp_servers.own]\ncommand = "own"')
    for home in ("other", str(tmp_path / "other")):
        seen = call(codex(env={"CODEX_HOME": home}), tmp_path, capabilities=("read_only",))
        assert settings(seen)["mcp_servers"] == {"own": {"command": "own", "enabled": False}}
        (tmp_path / "bin").rename(tmp_path / f"bin-{len(home)}")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.toml", "[mcp_servers", "cannot be read"),
        ("config.toml", "x = '\udcff'", "cannot be read"),
        ("managed_config.toml", '[mcp_servers.own]\ncommand = "own"', "prescribes tool servers"),
    ],
)
def test_a_restriction_is_refused_where_servers_cannot_be_switched_off(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    path = configured(tmp_path / "home" / ".codex" / name, "")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=told) as caught:
        call(codex(), tmp_path, capabilities=("read_only",))
    assert str(path) in str(caught.value)
    assert call(codex(), tmp_path)["stdin"] == "The prompt."


def test_a_role_without_restrictions_keeps_its_shell_and_its_sandbox(tmp_path: Path) -> None:
    found = settings(call(codex(), tmp_path))
    assert found["sandbox_mode"] == "workspace-write"
    assert "features.shell_tool" not in found


# -- what its events mean --


def test_usage_is_the_difference_to_what_the_session_had_used(tmp_path: Path) -> None:
    reply, recorder = play(codex(), tmp_path, "resumed", session=SESSION, session_total=Usage(100, 7, 40))
    assert (reply.usage, reply.session_total) == (Usage(50, 3, 20), Usage(150, 10, 60))
    assert recorder.bodies("usage") == [{"input_tokens": 50, "output_tokens": 3, "cached_tokens": 20}]


def test_tool_calls_become_turns_and_written_files_are_told(tmp_path: Path) -> None:
    reply, recorder = play(codex(), tmp_path, "tools")
    changed, ran = (call for turn in reply.turns for call in turn.tool_calls)
    assert (changed.name, ran.name, ran.result) == (
        "file_change",
        "command_execution",
        "42\n\n(exit status 3)",
    )
    assert (reply.files, reply.text) == (("a.txt",), ANSWER)
    assert [body["name"] for body in recorder.bodies("tool_call")] == ["file_change", "command_execution"]


def test_what_the_sandbox_refused_is_a_result_and_touches_nothing(tmp_path: Path) -> None:
    reply, _ = play(codex(), tmp_path, "read-only")
    results = [call.result for turn in reply.turns for call in turn.tool_calls]
    assert "Read-only file system" in results[0]
    assert (reply.files, reply.ending) == ((), "completed")


def test_the_result_of_a_tool_server_is_kept(tmp_path: Path) -> None:
    reply, _ = play(codex(), tmp_path, "mcp")
    (call,) = (call for turn in reply.turns for call in turn.tool_calls)
    assert (call.name, call.result) == ("mcp__tiny__add", 'SUM=5 a "b"')


def test_a_typed_answer_becomes_frontmatter_only_for_an_agent_that_was_held_to_a_schema(
    tmp_path: Path,
) -> None:
    schema = {"type": "object"}
    assert play(codex(is_typed=True), tmp_path, "typed", schema=schema)[0].text == "---\nstatus: done\n---\n"
    assert play(codex(), tmp_path / "free", "typed", schema=schema)[0].text == '{"status": "done"}'
    assert play(codex(is_typed=True), tmp_path / "prose", "answer", schema=schema)[0].text == ANSWER


@pytest.mark.parametrize(
    ("stream", "files", "reason"),
    [
        ("api-failure", (), "401"),
        ("api-failure-later", ("a.txt",), "{}"),
        ("endpoint-gone", (), "Connection failed"),
    ],
)
def test_a_turn_that_failed_is_an_api_failure(
    tmp_path: Path, stream: str, files: tuple[str, ...], reason: str
) -> None:
    error = fails(codex(), tmp_path, stream)
    assert (error.ending, error.files, error.session) == ("api_failure", files, SESSION)
    assert reason in str(error)


@pytest.mark.parametrize(
    ("stream", "reason"), [("mcp-missing", "tiny"), ("prompt-too-long", "maximum length")]
)
def test_a_run_that_did_not_begin_failed_and_says_why(tmp_path: Path, stream: str, reason: str) -> None:
    error = fails(codex(), tmp_path, stream, session=SESSION)
    assert (error.ending, error.is_session_lost) == ("failed", False)
    assert reason in str(error)


def test_an_unknown_session_is_lost_only_where_one_was_asked_for(tmp_path: Path) -> None:
    assert fails(codex(), tmp_path, "session-lost", session=SESSION).is_session_lost
    assert not fails(codex(), tmp_path / "new", "session-lost").is_session_lost


@pytest.mark.parametrize(
    ("code", "ending"), [(0, "interrupted"), (-15, "killed"), (130, "killed"), (1, "failed")]
)
def test_without_the_end_of_the_turn_the_exit_decides_and_what_was_said_is_kept(
    tmp_path: Path, code: int, ending: str
) -> None:
    error = fails(codex(), tmp_path, "cancelled", ending={"hangs": False, "exit": code})
    assert (error.ending, error.text) == (ending, "I look first.")


def test_warnings_do_not_end_a_run(tmp_path: Path) -> None:
    events = [
        {"type": "thread.started", "thread_id": "s"},
        {"type": "item.completed", "item": {"id": "0", "type": "error", "message": "no metadata"}},
        {"type": "error", "message": "Reconnecting... 1/5"},
        {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": ANSWER}},
        {"type": "turn.completed", "usage": {"input_tokens": 1}},
    ]
    reply, _ = play(codex(), tmp_path, "".join(json.dumps(event) + "\n" for event in events))
    assert (reply.text, reply.ending, reply.turns) == (ANSWER, "completed", ())
