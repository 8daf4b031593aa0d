"""Small real programs for the agents to run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import pytest

Program = Callable[[str], list[str]]


@pytest.fixture
def program() -> Iterator[Program]:
    """Turn Python source into a command; it lies outside the test's own work folder, where a sandbox shows it."""
    with TemporaryDirectory(prefix="rc-programs-", dir="/tmp") as name:
        folder = Path(name)

        def write(source: str) -> list[str]:
            path = folder / f"program{len(list(folder.iterdir()))}.py"
            path.write_text(dedent(source), encoding="utf-8")
            return [sys.executable, "-I", str(path)]

        yield write
