"""A hook killed at any step, and told once more as hosts do, leaves what one that lived leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hook_child
import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


FEWEST_STEPS = {"edit": 3, "compact": 0, "turn": 5}
"""Most events make some twenty calls to the system; these write little, or nothing when nothing has changed."""


@pytest.mark.parametrize("scenario", hook_child.SCENARIOS)
def test_an_event_that_is_killed_and_told_again_leaves_what_one_event_leaves(
    folder: Path, scenario: str
) -> None:
    done = subprocess.run(
        [sys.executable, hook_child.__file__, str(folder), scenario],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Step 0 never burns: that is what the event leaves when nobody disturbs it.
    clean, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not clean["killed"]
    assert len(found) >= FEWEST_STEPS.get(scenario, 10)
    expected: dict[str, Any] = clean["left"]
    for kill in found:
        assert kill["left"] == expected, kill["step"]
    assert expected["drafts"] == [] and expected["log"]
