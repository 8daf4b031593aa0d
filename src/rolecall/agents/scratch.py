"""A folder of its own for one run of an agent: settings and schemas that a program is told of by their paths.

It is removed with the run. A process that is killed removes nothing, so whoever makes the next folder removes those
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

_PREFIX = "rolecall-run-"
_UNHELD = "rolecall-new-"
"""What a folder is called until it is held, lest another process removes it."""


@contextmanager
def folder() -> Iterator[Path]:
    remove_unheld()
    path = Path(tempfile.mkdtemp(prefix=_UNHELD))
    lock = os.open(path, os.O_RDONLY)
    try:
        # A file system without locks: it keeps the name by which nobody removes it.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
            path = path.rename(path.with_name(path.name.replace(_UNHELD, _PREFIX)))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def remove_unheld() -> None:
    """Remove the folders of runs whose process is gone; those of other users are theirs."""
    place = tempfile.gettempdir()
    names: list[str] = []
    with suppress(PermissionError):  # one may be written to and not be listed
        names = os.listdir(place)
    for name in names:
        if name.startswith(_PREFIX):
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
