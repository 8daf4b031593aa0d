"""Every command has help with an example, and stands in the documentation."""

from __future__ import annotations

import contextlib
import io
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rolecall.cli import NOUNS, Verb, main

if TYPE_CHECKING:
    from conftest import Rolecall

CLI_PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def verbs_of(noun: str) -> dict[str, Verb]:
    verbs: dict[str, Verb] = import_module(NOUNS[noun][0]).VERBS
    return verbs


def commands() -> list[str]:
    """Everything that can be typed after `rolecall`, groups of verbs included."""
    found = [""]
    for noun in NOUNS:
        found.append(noun)
        for verb in verbs_of(noun):
            words = verb.split()
            found += [" ".join([noun, *words[: count + 1]]) for count in range(len(words))]
    return list(dict.fromkeys(found))


def help_of(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    return out.getvalue()


@pytest.mark.parametrize("command", commands(), ids=lambda command: command or "rolecall itself")
def test_help_shows_usage_and_examples_of_this_command(command: str) -> None:
    text = help_of(command)
    assert text.startswith(f"usage: rolecall {command}".rstrip())
    _, found, block = text.partition("\nexamples:\n")
    assert found
    lines = [line.strip() for line in block.strip().splitlines()]
    assert lines
    for line in lines:
        assert re.search(r"(^|[ |(;])rolecall ", line), line
        assert f"rolecall {command}".rstrip() in line, line


@pytest.mark.parametrize("noun", NOUNS)
def test_help_of_a_noun_lists_its_verbs(noun: str) -> None:
    text = help_of(noun)
    for verb in verbs_of(noun):
        assert verb.split(" ")[0] in text


def test_help_of_the_program_lists_the_nouns() -> None:
    text = help_of("")
    for noun, (_, line) in NOUNS.items():
        assert noun in text
        assert line in text


def test_every_command_stands_in_the_documentation() -> None:
    page = CLI_PAGE.read_text(encoding="utf-8")
    wanted = [f"{noun} {verb}".rstrip() for noun in NOUNS for verb in verbs_of(noun)]
    missing = [command for command in wanted if not re.search(rf"`(rolecall )?{command}[ `]", page)]
    assert missing == []


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("workflow add x.yaml", "rolecall workflow put"),
        ("thread exec 01M7", "rolecall thread step"),
        ("thread stop 01M7", "rolecall serve stop"),
        ("thread cancel 01M7", "rolecall thread kill"),
        ("thread running", "rolecall thread list --status running"),
        ("step list 01M7", "rolecall thread steps"),
        ("step show 95ST", "rolecall thread step-details"),
        ("step read 95ST --quota 100", "rolecall thread step-details"),
        ("step fork 95ST", "rolecall thread fork"),
        ("step", "rolecall thread steps"),
        ("log list", "rolecall serve logs"),
    ],
)
def test_a_command_of_uwf_says_its_new_name(rolecall: Rolecall, command: str, instead: str) -> None:
    refused = rolecall(*command.split(), check=2)
    assert "there is no command" in refused.stderr and instead in refused.stderr
    words = instead.split()[1:]
    listed = rolecall(*words[: 1 + (words[0] != "run")], "--help", check=0)
    assert "usage" in listed.stdout
