"""A pytest plugin: each process of tests has a home of its own, and a run that touches the real one fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_VARIABLES = ("HOME", "ROLECALL_HOME", "ROLECALL_STORE")
_MEMORY = "/dev/shm"
_real_home = pytest.StashKey[Path]()
_before = pytest.StashKey[dict[str, tuple[int, int]]]()
_scratch = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "keep temporary files in memory if there is room: a disk takes a tenth longer"
    parser.addoption("--in-memory", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # the controller of a distributed run has looked after the real home
        _set_home(Path(os.environ["HOME"], config.workerinput["workerid"]))
        return
    home = Path(os.environ.get("ROLECALL_HOME") or Path.home() / ".rolecall")
    config.stash[_real_home] = home
    config.stash[_before] = _snapshot(home)
    if config.option.in_memory and "TMPDIR" not in os.environ and _has_room(_MEMORY):
        os.environ["TMPDIR"] = _MEMORY
        tempfile.tempdir = None  # which somebody may have looked up
    config.stash[_scratch] = tempfile.mkdtemp(prefix="rolecall-test-home-")
    _set_home(Path(config.stash[_scratch]))
    # Nor is it the business of tests whose shell this is.
    for name in ("ROLECALL_STORE", "ROLECALL_RUN", "ROLECALL_RESTRICTIONS", "ROLECALL_MAY_START_THREADS"):
        os.environ.pop(name, None)


def _has_room(folder: str) -> bool:
    """Whether there is room for the files of all tests, and programs among them can be run."""
    try:
        found = os.statvfs(folder)
    except FileNotFoundError:
        return False
    room = found.f_bavail * found.f_frsize
    return os.access(folder, os.W_OK) and not found.f_flag & os.ST_NOEXEC and room >= 4 << 30


def _set_home(home: Path) -> None:
    home.mkdir(exist_ok=True)
    os.environ |= {"HOME": str(home), "ROLECALL_HOME": str(home / "rolecall")}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _before not in session.config.stash:
        return
    home = session.config.stash[_real_home]
    if _snapshot(home) != session.config.stash[_before]:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\nERROR: the tests touched the real home {home}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if _scratch in config.stash:
        shutil.rmtree(config.stash[_scratch], ignore_errors=True)


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for path in [folder, *folder.rglob("*")] if folder.exists() else []:
        status = path.lstat()
        found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found
