"""Fixtures of the whole suite, and the guard that keeps it away from the real home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import jsonata  # noqa: F401 -- raises the recursion limit, so it does before the first test and not in the midst of one
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and that is no fault of what is tested.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

os.environ["COLUMNS"] = "80"  # outside a terminal tables are as wide as they need to be, unless this is set
os.environ["NO_COLOR"] = "1"  # tests look for text, also on a terminal; those of colours take it back

pytest_plugins = [
    "browser_fixture",
    "disk_fixture",
    "home_guard",
    "leak_guard",
    "postgres_fixture",
    "program_fixture",
]

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
        result = commands.run(
            [str(SCRIPTS / program), *args],
            input=input or b"",
            env={**os.environ, "ROLECALL_HOME": str(self.home), **(env or {})},
            cwd=cwd,
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that wait most, for leases and dying machines, so that the others run meanwhile."""
    items.sort(key=lambda item: ("service/test_fleet" not in item.nodeid, "service/" not in item.nodeid))


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
