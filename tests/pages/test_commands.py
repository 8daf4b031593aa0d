"""Every command that a page shows in a block can be typed as it stands, and every command that a text names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rolecall.cli import NOUNS, parser
from rolecall.errors import UsageError

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - {ROOT / "CHANGELOG.md"})


def commands_of(page: Path) -> list[str]:
    """The commands in blocks, without what the shell adds to them."""
    found, fence = [], ""
    for line in page.read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip()
        elif fence == "```sh" or (not fence and line.startswith("    ")):
            found += re.findall(r"(?:^|&& |; |\| |\$\()(rolecall [^|;&<>\n]*)", line.strip())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples" / "demo")
    wrong = []
    for command in commands_of(page):
        try:
            words = shlex.split(command, comments=True)[1:]
        except ValueError:  # a quoted `;` or `|` ended the command early
            continue
        if (
            {"COMMAND", "…", "..."}.intersection(words)
            or words[:1] in ([], ["--version"])
            or "--help" in words
        ):
            continue
        try:
            parser._parse([word.rstrip(")") for word in words])
        except UsageError as error:
            wrong.append(f"{command}: {error.message}")
        except SystemExit:
            wrong.append(f"{command}: prints help")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_texts_exist(page: Path) -> None:
    unknown = []
    for command in re.findall(r"`rolecall ([a-z][a-z-]*(?: [a-z][a-z-]*)*)", page.read_text("utf-8")):
        noun, *words = command.split()
        verbs = parser.verbs_of(noun) if noun in NOUNS else {}
        names = {first for verb in verbs for first in verb.split(" ")[:1]}
        if not verbs or (words and "" not in verbs and words[0] not in names):
            unknown.append(command)
    assert unknown == []
