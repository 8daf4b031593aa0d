"""Folders on a disk: a small one of its own, which a test can fill, and the usual one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


def mount(*args: str) -> str:
    """Empty when it worked, else why not."""
    try:
        done = subprocess.run(["mount", *args], capture_output=True, text=True, timeout=120)
    except FileNotFoundError as exc:
        return str(exc)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 2 MB, where this process may mount one. Not in /tmp, which looks different in a sandbox while
    something is mounted there."""
    folder = Path(tempfile.mkdtemp(prefix="rc-disk-", dir="/var/tmp"))
    refused = mount("-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", str(folder))
    if refused:
        folder.rmdir()
        pytest.skip(f"no small disk to fill: {refused}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=120)
        folder.rmdir()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A `tmp_path` that a sandboxed program sees. It has a /dev/shm of its own, where other tests keep their files."""
    with tempfile.TemporaryDirectory(prefix="rc-disk-", dir="/tmp") as folder:
        yield Path(folder)


def fill_up(folder: Path) -> Path:
    """Take all the room there is; removing the file gives it back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return ballast
