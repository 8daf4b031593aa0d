"""The guard against what a failing test leaves open, tried on a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAILING = """
import gc, subprocess
from pathlib import Path
import pytest

@pytest.fixture
def half_made():
    child = subprocess.Popen(["sleep", "600"])
    Path("pids").write_text(f"{child.pid}\\n")
    raise ValueError

def test_that_fails():
    child, file = subprocess.Popen(["sleep", "600"]), open("pids", "a")
    file.write(f"{child.pid}\\n")
    file.flush()
    raise ValueError

def test_whose_fixture_fails(half_made):
    pass

def test_that_is_innocent():
    gc.collect()
    for pid in Path("pids").read_text().split():
        assert not Path("/proc", pid).exists()
"""


def test_what_a_failing_test_leaves_open_ends_with_it_and_fails_no_other_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-W",
        "error",
        "-p",
        "leak_guard",
        "-p",
        "no:cacheprovider",
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [*words, "test_it.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "PASSED test_it.py::test_that_is_innocent" in done.stdout, done.stdout
    output = [
        line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR "))
    ]
    assert {line.split("::")[1] for line in output} == {"test_that_fails", "test_whose_fixture_fails"}
