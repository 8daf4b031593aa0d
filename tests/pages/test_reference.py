"""docs/reference is what scripts/reference.py writes, and says something about every key."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def generate() -> dict[str, str]:
    found: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["pages"]()
    return found


def test_the_reference_is_what_the_program_says() -> None:
    folder = ROOT / "docs" / "reference"
    pages = generate()
    assert {path.name for path in folder.iterdir()} == pages.keys()
    stale = [name for name, text in pages.items() if (folder / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs-reference` and commit docs/reference"


def test_every_key_and_argument_has_a_meaning() -> None:
    mute = [line for text in generate().values() for line in text.splitlines() if line.endswith("|  |")]
    assert mute == []
