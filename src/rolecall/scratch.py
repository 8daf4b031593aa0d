"""A folder of its own for a process, such as one run of an agent or one export.

It is removed with its block. A process that is killed removes nothing, so whoever makes the next folder removes those
that nobody has any more: a folder is held by a lock on itself, which ends with the process whatever its end was.
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
    """A new folder whose name begins with `prefix`, in the system's place for temporary files or in `place`."""
    place = place or tempfile.gettempdir()
    remove_unheld(prefix, place)
    path, lock = _make_held(prefix, place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make_held(prefix: str, place: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Until it is held, another process may take it for one that nobody has, and remove it.
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: nobody removes it then
                fcntl.flock(lock, fcntl.LOCK_SH)
            if path.exists():
                return path, lock
            os.close(lock)


def remove_unheld(prefix: str = "rolecall-run-", place: str | None = None) -> None:
    """Remove the folders of processes that are gone; those of other users are theirs."""
    place = place or tempfile.gettempdir()
    names: list[str] = []
    with suppress(OSError):  # one may be written to and not be listed, or be missing
        names = os.listdir(place)
    for name in names:
        if name.startswith(prefix):
            # It is held, or somebody else's, or somebody was quicker.
            with suppress(OSError):
                _remove_if_unheld(os.path.join(place, name))


def _remove_if_unheld(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(descriptor)
