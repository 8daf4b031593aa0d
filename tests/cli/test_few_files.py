"""Commands where hardly any file may be opened: they work, or say in a line or two what is missing."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from conftest import SCRIPTS

COMMANDS = (
    "--version",
    "doctor",
    "thread list",
    "thread start hello -p x",
    "run hello -p x",
    "workflow list",
    "cas put-text x",
    "cas export bundle.tar",
    "task list",
    "plan run --dry-run",
    "validate",
    "agents list",
    "serve",
    "serve --detach",
    "mcp",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(
        [SCRIPTS / "rolecall", "init"], cwd=folder, env=environment(folder), check=True, capture_output=True
    )
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder.parent), "ROLECALL_HOME": str(folder.parent / "home")}


@pytest.mark.parametrize("limit", [6, 8])
def test_too_few_files_are_an_error_that_says_so(project: Path, limit: int) -> None:
    refused = []
    for command in COMMANDS:
        done = subprocess.run(
            [SCRIPTS / "rolecall", *command.split()],
            cwd=project,
            env=environment(project),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        )
        assert done.returncode in (0, 2, 3, 4, 5, 7), (command, done)
        for word in ("Traceback", "Warning", "Exception ignored"):
            assert word not in done.stderr, (command, done.stderr)
        if "Too many open files" in done.stderr:
            refused.append(command)
            assert done.returncode != 0, command
    assert "run hello -p x" in refused
