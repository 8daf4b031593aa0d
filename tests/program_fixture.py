"""Small real programs for the agents to run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from textwrap import dedent

import pytest

Program = Callable[[str], list[str]]


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Turn Python source into a command; it lies outside the test's own work folder."""
    folder = tmp_path_factory.mktemp("programs")

    def write(source: str) -> list[str]:
        path = folder / f"program{len(list(folder.iterdir()))}.py"
        path.write_text(dedent(source), encoding="utf-8")
        return [sys.executable, "-I", str(path)]

    return write
