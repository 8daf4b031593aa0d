"""The stage of the tests in this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plan_run.stage import Crew


@pytest.fixture
def crew(rolecall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    # The agents tell these tests through files outside of the project what they were asked.
    monkeypatch.setenv("ROLECALL_SANDBOX", "off")
    made = Crew(rolecall, tmp_path)
    yield made
    for end in made.open_ends:
        os.close(end)
    for child in made.children:  # of a test that has failed; else they have ended by now
        with child:
            child.kill()
