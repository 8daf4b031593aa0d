"""The command blocks of README.md, the tutorial and the tour, run in one shell as a reader would paste them.

A block whose first line is `# needs: SOMETHING` is not run. A `text` block shows what the block before it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import SCRIPTS

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/tutorial.md", "docs/tour.md"]


class Block(NamedTuple):
    line: int
    language: str
    text: str

    @property
    def needs(self) -> str | None:
        first = self.text.partition("\n")[0]
        return first.removeprefix("# needs: ") if first.startswith("# needs: ") else None


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, fence.start()) + 2, fence[1], fence[2]) for fence in fences]


def test_blocks_that_are_not_run_are_these() -> None:
    assert [(page, block.needs) for page in PAGES for block in blocks_of(page) if block.needs] == [
        ("README.md", "the package registry"),
        ("README.md", "Claude Code, Codex or another agent, and a repository of yours"),
        ("README.md", "Claude Code, Codex or another agent, and a repository of yours"),
        ("docs/tutorial.md", "Claude Code"),
        ("docs/tour.md", "the package registry"),
        ("docs/tour.md", "the package registry and a browser"),
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_reader_who_pastes_the_commands_sees_what_the_page_shows(page: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if not block.needs]
    assert {block.language for block in blocks} <= {"sh", "text"}
    commands = [block for block in blocks if block.language == "sh"]
    script = "exec 2>&1\n" + "".join(f"printf '\\036'\n{with_exit_codes(block.text)}" for block in commands)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        **{name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ},
    }
    try:
        done = subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=300,
            check=False,
        )
    finally:
        subprocess.run(
            [SCRIPTS / "rolecall", "serve", "stop"], env=environment, capture_output=True, check=False
        )
    printed = done.stdout.decode().split("\036")[1:]
    assert done.returncode == 0, f"{page}:{commands[len(printed) - 1].line}\n{printed[-1]}"
    for block, shown in pairwise(blocks):
        if shown.language == "text":
            assert regular(printed[commands.index(block)]) == regular(shown.text), f"{page}:{shown.line}"


def with_exit_codes(commands: str) -> str:
    """The commands, of which those that say `exit code N` in their comment must end with it."""
    return re.sub(
        r"^(rolecall [^#\n]*)#.*exit code (\d+).*$",
        r"if \1; then exit 99; else test $? -eq \2; fi",
        commands,
        flags=re.MULTILINE,
    )


def regular(output: str) -> str:
    """The output without what differs from run to run: ids and times."""
    output = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ID", output)
    return re.sub(r"\b(?:\d+\.\d+|\d+m \d+)s\b", "TIME", output).strip()
