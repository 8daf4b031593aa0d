"""acpx, a client of the Agent Client Protocol without an editor, talks to `rolecall acp`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import join

import rolecall
from realagents.stage import installed

DEMO = Path(__file__).parents[2] / "examples/demo"
PROGRAM = installed("acpx")


def test_a_published_client_runs_a_workflow_and_shows_its_work(tmp_path: Path) -> None:
    project = tmp_path / "calc"
    shutil.copytree(DEMO, project)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    agent = [sys.executable, "-m", "rolecall", "acp", "--workflow", "fix-bug"]
    agent += ["--agent", f"scripted:{project / 'script.yaml'}"]
    words = [PROGRAM, "--approve-all", "--agent", join(agent), "exec", "add(2, 3) must be 5"]
    done = subprocess.run(
        words,
        cwd=project,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[completed] reviewer: Runs the tests and decides. (approved)" in done.stdout
    assert "developer changed calc.py" in done.stdout and "All tests pass." in done.stdout
    assert "[done] end_turn" in done.stdout
    with rolecall.open(folder=project) as opened:
        thread = opened.latest_thread()
        assert thread is not None and thread.status == "completed"
