"""Fixtures of the whole suite, and the guard that keeps it away from the real home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonata  # noqa: F401 -- raises the recursion limit, so it does before the first test and not in the midst of one
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and that is no fault of what is tested.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

os.environ["NO_COLOR"] = "1"  # tests look for text, also on a terminal; those of colours take it back

pytest_plugins = ["disk_fixture", "home_guard", "postgres_fixture", "program_fixture"]

SCRIPTS = Path(sys.executable).parent


class Rolecall:
    """Runs the installed command in a child process with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(
        self,
        *args: str,
        input: str | bytes | None = None,
        env: dict[str, str] | None = None,
        check: int | None = None,
        program: str = "rolecall",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            [str(SCRIPTS / program), *args],
            input=data if data is not None else b"",
            capture_output=True,
            env={**os.environ, "ROLECALL_HOME": str(self.home), **(env or {})},
            cwd=cwd,
            timeout=120,
            check=False,
        )
        result = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )
        if check is not None:
            assert result.returncode == check, (args, result.returncode, result.stdout, result.stderr)
        return result

    def json(self, *args: str, **options: Any) -> Any:
        """The reply to a command as a value."""
        cut = args.index("--") if "--" in args else len(args)
        done = self(*args[:cut], "--json", *args[cut:], **{"check": 0, **options})
        return json.loads(done.stdout)


@pytest.fixture(autouse=True, scope="session")
def signals() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and `nohup` a hang-up; so would all children."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def rolecall(tmp_path: Path) -> Rolecall:
    return Rolecall(tmp_path / "home")


@pytest.fixture
def shared_data() -> Path:
    """The reference data beside the project, for tests that look further when it is there."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no reference data beside the project")
    return folder
