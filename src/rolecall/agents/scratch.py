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
    made = tempfile.mkdtemp(prefix=_UNHELD)
    held = os.open(made, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        path = Path(made).rename(made.replace(_UNHELD, _PREFIX))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(held)


def remove_unheld() -> None:
    """Remove the folders of runs whose process is gone; those of other users are theirs."""
    place = tempfile.gettempdir()
    for name in os.listdir(place):
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
