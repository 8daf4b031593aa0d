"""How replies are printed: as text everywhere, as JSON where that is asked for."""

from __future__ import annotations

import json
import sys
import unicodedata
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from terminal import shown_by

from rolecall.cli import NOUNS, build_parser
from rolecall.cli.output import printable

if TYPE_CHECKING:
    from conftest import Rolecall

WITHOUT_A_REPLY = {"knowledge serve", "mcp", "hook", "completion", "help"}
"""Servers, and commands whose output is a text that others have a use for."""
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


# -- colours --

RED, GREEN, END = "\x1b[31m", "\x1b[32m", "\x1b[0m"


@pytest.fixture
def thread(rolecall: Rolecall, tmp_path: Path) -> str:
    """One that has been completed."""
    role = {"goal": "Do it.", "frontmatter": {"type": "object", "properties": {"status": {"enum": ["done"]}}}}
    graph = {"$START": {"_": {"role": "worker", "prompt": "Begin."}}, "worker": {"done": "$END"}}
    flow = {"name": "do-it", "description": "Does it.", "roles": {"worker": role}, "graph": graph}
    (tmp_path / "do-it.yaml").write_text(json.dumps(flow | {"limits": {"steps": 3}}))
    (tmp_path / "script.json").write_text(json.dumps({"roles": {"worker": [{"output": {"status": "done"}}]}}))
    words = ["thread", "start", "./do-it.yaml", "-p", "x", "--agent", "scripted:script.json"]
    ident = str(rolecall.json(*words, cwd=tmp_path)["thread"])
    rolecall("thread", "run", ident, cwd=tmp_path, check=0)
    return ident


def on_terminal(
    rolecall: Rolecall, folder: Path, *words: str, code: int = 0, env: dict[str, str] | None = None
) -> str:
    from conftest import SCRIPTS

    command = [str(SCRIPTS / "rolecall"), *words]
    own = {"ROLECALL_HOME": str(rolecall.home), "TERM": "xterm", "NO_COLOR": "", **(env or {})}
    return shown_by(command, cwd=folder, env=own, code=code).replace("\r\n", "\n")


def test_statuses_signs_and_errors_have_colours_on_a_terminal(
    rolecall: Rolecall, tmp_path: Path, thread: str
) -> None:
    assert f"{GREEN}completed{END}" in on_terminal(rolecall, tmp_path, "thread", "list", "--all")
    fork = rolecall.json("thread", "fork", thread, "--at", "start", cwd=tmp_path)["thread"]
    assert f"{GREEN}✓{END} 1 worker" in on_terminal(rolecall, tmp_path, "thread", "run", fork)
    missing = on_terminal(rolecall, tmp_path, "thread", "show", "nowhere", code=3)
    assert missing.startswith(f"{RED}rolecall:{END} ")


def test_differences_have_colours_on_a_terminal(rolecall: Rolecall, tmp_path: Path, thread: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (tmp_path / "do-it.yaml").read_text()
    (other / "do-it.yaml").write_text(text.replace("Do it.", "Do it well."))
    shown = on_terminal(rolecall, tmp_path, "workflow", "diff", "./do-it.yaml", "other/do-it.yaml")
    assert f"{RED}-    goal: Do it.{END}\n{GREEN}+    goal: Do it well.{END}" in shown


@pytest.mark.parametrize(
    ("words", "env", "is_colored"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color", "never"], {}, False),
        (["--color=always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_who_wants_no_colours_gets_none(
    rolecall: Rolecall, tmp_path: Path, thread: str, words: list[str], env: dict[str, str], is_colored: bool
) -> None:
    shown = on_terminal(rolecall, tmp_path, "thread", "show", thread, *words, env=env)
    assert ("\x1b[" in shown) == is_colored
    assert shown.replace(GREEN, "").replace(END, "") == rolecall("thread", "show", thread).stdout


def test_a_pipe_has_colours_only_when_asked(rolecall: Rolecall, thread: str) -> None:
    assert "\x1b" not in rolecall("thread", "show", thread, check=0).stdout
    assert f"{GREEN}completed{END}" in rolecall("thread", "show", thread, "--color", "always", check=0).stdout
    assert "\x1b" not in rolecall("thread", "show", thread, "--json", "--color", "always", check=0).stdout


# -- characters --


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\n\twith lines", "plain text\n\twith lines"),
        ("a\x1b[31mb\rc\x7f\x9b", "a\\u001b[31mb\\u000dc\\u007f\\u009b"),
        ("a\u061cb\u200bc\u00add\ufeffe\u2060f", "a\\u061cb\\u200bc\\u00add\\ufeffe\\u2060f"),
        ("a\u202eb\u2066c\u2028d", "a\\u202eb\\u2066c\\u2028d"),
        ("hi\U000e0041\U000e007f\U000e0001\U000e0000", "hi\\U000e0041\\U000e007f\\U000e0001\\U000e0000"),
        ("a\u200db\u200c", "a\\u200db\\u200c"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3", "👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3"),
        ("👩\u200d\u200d💻", "👩\\u200d\\u200d💻"),
        ("x\ufe00\ufe01\U000e0100", "x\ufe00\\ufe01\\U000e0100"),
        ("葛\U000e0100城", "葛\U000e0100城"),
        ("\u0600\u06dd ٣", "\u0600\u06dd ٣"),
        ("a\ufdd0b\ufdd5", "a\\ufdd0b\\ufdd5"),
        ("grüße, 日本語, ✓", "grüße, 日本語, ✓"),
    ],
)
def test_what_is_printed_can_be_seen(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_all_of_unicodes_format_characters_are_escaped_but_those_that_are_seen() -> None:
    formats = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"]
    kept = [letter for letter in formats if printable(f"a{letter}b") == f"a{letter}b"]
    assert [unicodedata.name(letter) for letter in kept if ord(letter) < 0x110BD] == [
        "ARABIC NUMBER SIGN", "ARABIC SIGN SANAH", "ARABIC FOOTNOTE MARKER", "ARABIC SIGN SAFHA",
        "ARABIC SIGN SAMVAT", "ARABIC NUMBER MARK ABOVE", "ARABIC END OF AYAH", "SYRIAC ABBREVIATION MARK",
        "ARABIC POUND MARK ABOVE", "ARABIC PIASTRE MARK ABOVE", "ARABIC DISPUTED END OF AYAH",
    ]  # fmt: skip
    assert [letter for letter in kept if ord(letter) >= 0x110BD] == ["\U000110bd", "\U000110cd"]
