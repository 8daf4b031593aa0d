"""Threads that a host's model handed over without waiting for their end.

Each thread has a note in a folder in `.nexus/state`. The note is removed when the thread's end is reported to the
model, so that it is reported only once. Hooks look for notes with every message, and open the store (`thread_news.py`)
only if there are notes.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from rolecall.nexus import project_paths, state_file

_FOLDER = "handed-over"
_MOST = 50
"""The maximum number of threads that a hook looks at."""


def note(project: str, thread: str, store: str, *, problem: str = "") -> None:
    """Note that a thread was handed over, with the `problem` if the thread could not be run. Without hooks, there is no
    `.nexus` folder, and no hook would read the note."""
    if not os.path.isdir(project_paths.nexus(project)):
        return
    with state_file.hold_lock(project):
        for folder in (project_paths.ours(project), project_paths.ours(project, _FOLDER)):
            state_file.make_folder(folder)
        about = {"store": store, **({"problem": problem} if problem else {})}
        state_file.replace(project, _path(project, thread), json.dumps(about).encode(), must_last=False)


def forget(project: str, thread: str) -> bool:
    """Remove a thread's note, and return whether the thread had one."""
    try:
        os.unlink(_path(project, thread))
    except OSError:
        return False
    return True


def list_noted(project: str) -> list[str]:
    """Return the handed-over threads whose end has not been reported to the model."""
    with suppress(OSError):
        return sorted(os.listdir(project_paths.ours(project, _FOLDER)))[:_MOST]
    return []


def read(project: str, thread: str) -> tuple[str, str]:
    """Return what a thread's note says: the address of the store, and why the thread could not be run."""
    try:
        about = json.loads(state_file.read(_path(project, thread)) or b"{}")
        return str(about.get("store", "")), str(about.get("problem", ""))
    except ValueError:  # a power failure cut the note off
        return "", ""


def _path(project: str, thread: str) -> str:
    return project_paths.ours(project, os.path.join(_FOLDER, thread))
