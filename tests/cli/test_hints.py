"""Below the doors a hint names an action, not a command; the command line knows the command of every action."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from traceback import format_exception

import pytest

import rolecall
from rolecall.cli import hints
from rolecall.cli.parser import build_parser
from rolecall.errors import Hint, UsageError
from rolecall.mcp import hints as tool_hints

SOURCE = Path(rolecall.__file__).parent
DOORS = ("acp", "cli", "mcp", "web")
PROMPTS = ("hosts", "nexus/brief.py")
"""Texts that an agent with a shell or an editor of project files reads; they are prompts and not hints."""
COMMAND = re.compile(r"`(?:rolecall|uwf) [a-z]|^rolecall [a-z]+ |(?<![\w-])--[a-z]+(?:-[a-z]+)*(?= |$|\.|,)")


@cache
def below_the_doors() -> list[tuple[Path, ast.AST]]:
    """The parts of all modules that can say something."""
    return [
        (path.relative_to(SOURCE), node)
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in DOORS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword | ast.Constant | ast.Call)
    ]


def texts(node: ast.AST) -> Iterator[str]:
    for found in ast.walk(node):
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield found.value


def test_no_hint_below_the_doors_names_a_command_or_an_option() -> None:
    found = [
        f"{path}:{node.value.lineno}: {text}"
        for path, node in below_the_doors()
        if isinstance(node, ast.keyword) and node.arg in ("hint", "fix")
        for text in texts(node.value)
        if COMMAND.search(text) and not text.startswith(("Install ", "Upgrade "))
    ]
    assert found == []


def test_no_text_below_the_doors_quotes_a_command_of_ours() -> None:
    found = []
    for path, node in below_the_doors():
        if (
            str(path).startswith(PROMPTS)
            or not isinstance(node, ast.Constant)
            or not isinstance(node.value, str)
        ):
            continue
        is_docstring = "\n" in node.value or node.value.endswith(".")  # which may say how a command is made
        if "`rolecall " in node.value and not is_docstring:
            found.append(f"{path}:{node.lineno}: {node.value}")
    assert found == []


def test_the_command_line_words_every_action() -> None:
    at = {"Hint": 1, "Onward": 0}  # the place of the code among the arguments
    calls = [
        (node, at[node.func.id])
        for _, node in below_the_doors()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in at and node.args
    ]
    assert len(calls) > 60
    given = [call.args[place] for call, place in calls]
    codes = {code.value for code in given if isinstance(code, ast.Constant)}
    assert codes == set(hints._PHRASES)
    assert set(tool_hints.TOOLS) <= codes


@pytest.mark.parametrize("phrase", hints._PHRASES.values())
def test_every_command_that_is_advised_exists(phrase: str) -> None:
    commands = [phrase] if phrase.startswith("rolecall ") else re.findall(r"`(rolecall [^`]*)`", phrase)
    for command in commands:
        words = [re.sub(r"\{\w+\}", "1", word) for word in command.split()[1:]]
        verb = [word for word in words if word.isalpha() or "-" in word.strip("-")][:3]
        with pytest.raises(SystemExit) as ended:
            build_parser(verb[0]).parse_args([*_verb(verb), "--help"])
        assert ended.value.code == 0


def _verb(words: list[str]) -> list[str]:
    from rolecall.cli.parser import verbs_of

    for count in (2, 1, 0):
        if " ".join(words[1 : 1 + count]) in verbs_of(words[0]):
            return words[: 1 + count]
    raise AssertionError(f"there is no command {words}")


def test_arguments_that_a_command_does_not_name_become_options() -> None:
    hint = Hint("Install it again", "install_host", host="claude", project="/a b", user=False, force=True)
    assert hints.word(hint) == "Install it again: `rolecall install claude --project '/a b' --force`."
    assert (
        hints.command(Hint("Run it again", "run_tasks", task=(1, 2))) == "rolecall plan run --task 1 --task 2"
    )


def test_a_hint_keeps_its_action_in_copies_and_shows_it_in_a_traceback() -> None:
    hint = Hint("Fork it", "fork_thread", before="It has ended.", thread="01A")
    for twin in (copy.deepcopy(hint), pickle.loads(pickle.dumps(hint))):
        assert (twin, twin.code, twin.arguments) == (
            "It has ended. Fork it.",
            "fork_thread",
            {"thread": "01A"},
        )
    shown = "".join(format_exception(UsageError("wrong", hint=hint)))
    assert "It has ended. Fork it. rc.thread('01A').fork()" in shown
