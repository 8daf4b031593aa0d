"""How replies are printed: as text everywhere, as JSON where that is asked for."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from terminal import shown_by

from rolecall.cli import NOUNS, build_parser

if TYPE_CHECKING:
    from conftest import Rolecall

WITHOUT_A_REPLY = {"knowledge serve", "mcp", "hook", "completion"}
"""Servers, and commands whose output has a form that others have set."""
COMMANDS = [f"{noun} {verb}".rstrip() for noun in NOUNS for verb in import_module(NOUNS[noun][0]).VERBS]


def test_a_pipe_gets_the_text_of_a_terminal_and_json_is_asked_for(rolecall: Rolecall, tmp_path: Path) -> None:
    from conftest import SCRIPTS

    node = rolecall.json("cas", "put-text", "hello")["hash"]
    for words in (["cas", "has", node], ["cas", "stats"], ["cas", "schema", "list"], ["config", "list"]):
        command = [str(SCRIPTS / "rolecall"), *words]
        shown = shown_by(command, cwd=tmp_path, env={"ROLECALL_HOME": str(rolecall.home)})
        piped = rolecall(*words, check=0).stdout
        assert piped == shown.replace("\r\n", "\n")
        assert (
            rolecall(*words, "--json", check=0).stdout == rolecall(*words, "--format", "json").stdout != piped
        )


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in WITHOUT_A_REPLY])
def test_every_command_with_a_reply_takes_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "--json " in capsys.readouterr().out


def test_the_predecessors_commands_print_json_in_a_pipe_under_its_name(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    piped = rolecall("cas", "put-text", "hello", program="uwf", check=0).stdout
    assert set(json.loads(piped)) == {"hash"}
    for words in (["workflow", "list"], ["thread", "list"], ["cas", "schema", "list"], ["config", "list"]):
        assert json.loads(rolecall(*words, program="uwf", check=0).stdout) is not None
    text = rolecall("cas", "put-text", "hello", "--format", "text", program="uwf", check=0).stdout
    assert text == rolecall("cas", "put-text", "hello", check=0).stdout != piped
    assert rolecall("agents", "list", program="uwf", check=0).stdout.startswith("agent")
