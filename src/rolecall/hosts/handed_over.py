"""Threads that a host's model handed over without waiting for them. Each has a note below `.nexus/state`, which is
removed when the model is told of the thread's end, so the model is told once.

Hooks look for notes with every message, and open the store (`thread_news.py`) only if there are any.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from rolecall.nexus import project_paths, state_file

_FOLDER = "handed-over"
_MOST = 50
"""How many threads a hook looks at."""


def note(project: str, thread: str, store: str, *, problem: str = "") -> None:
    """Note that a thread was handed over, and, if it could not be run, why. Without hooks there is no `.nexus` folder,
    and no hook would read the note."""
    if not os.path.isdir(project_paths.nexus(project)):
        return
    with state_file.hold_lock(project):
        for folder in (project_paths.ours(project), project_paths.ours(project, _FOLDER)):
            state_file.make_folder(folder)
        about = {"store": store, **({"problem": problem} if problem else {})}
        state_file.replace(project, _path(project, thread), json.dumps(about).encode(), must_last=False)


def forget(project: str, thread: str) -> bool:
    """Remove the note of a thread, and return whether there was one."""
    try:
        os.unlink(_path(project, thread))
    except OSError:
        return False
    return True


def list_noted(project: str) -> list[str]:
    """The threads that were handed over and whose end the model has not been told."""
    with suppress(OSError):
        return sorted(os.listdir(project_paths.ours(project, _FOLDER)))[:_MOST]
    return []


def read(project: str, thread: str) -> tuple[str, str]:
    """The address of the store, and why the thread could not be run."""
    try:
        about = json.loads(state_file.read(_path(project, thread)) or b"{}")
        return str(about.get("store", "")), str(about.get("problem", ""))
    except ValueError:  # cut off by a power failure
        return "", ""


def _path(project: str, thread: str) -> str:
    return project_paths.ours(project, os.path.join(_FOLDER, thread))
