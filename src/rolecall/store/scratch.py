"""Temporary folders for one process, such as a run of an agent or an export.

A folder is removed at the end of its block. A killed process removes nothing, so the next process that makes a folder
removes the folders that no process holds: each folder is locked, and the lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def folder(prefix: str = "rolecall-run-", place: str | None = None) -> Iterator[Path]:
    """Make a folder whose name begins with `prefix`, in `place` or in the system's temporary folder."""
    place = place or tempfile.gettempdir()
    remove_unheld(prefix, place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Until the folder is locked, another process might take it for an abandoned one and remove it.
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # on a file system without locks, no other process removes the folder
                fcntl.flock(lock, fcntl.LOCK_SH)
            if path.exists():
                break
            os.close(lock)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_unheld(prefix: str = "rolecall-run-", place: str | None = None) -> None:
    """Remove the folders of processes that have ended, except those of other users."""
    place = place or tempfile.gettempdir()
    names: list[str] = []
    with suppress(OSError):  # the place can be unreadable, or missing
        names = [name for name in os.listdir(place) if name.startswith(prefix)]
    for name in names:
        with suppress(OSError):  # the folder is already gone
            path = os.path.join(place, name)
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with suppress(OSError):  # the folder is locked
                if os.fstat(held).st_uid == os.geteuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            os.close(held)
