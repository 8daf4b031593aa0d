"""The paths of a project's state, and two values from outside it: the time and the branch.

Nothing here writes. The branch is read from git's files, because starting git would take longer than any tool takes.
"""

from __future__ import annotations

import os
import re
from typing import TypeAlias

from rolecall.errors import Hint, UsageError
from rolecall.settings.repository import root_around
from rolecall.store.clock import timestamp

Folder: TypeAlias = "str | os.PathLike[str]"

HARNESS = "rolecall"
"""Our name among the harnesses that share a project: only the files below `state/rolecall/` belong to us alone."""
PLAN, TASKS, HISTORY = "plan.json", "tasks.json", "history.json"
NO_BRANCH, NO_GIT = "detached", "unknown"
"""The names recorded instead of a branch if none is checked out, or without git, because cycles must name a branch."""


def nexus(project: Folder) -> str:
    return os.path.join(os.path.abspath(project), ".nexus")


def state(project: Folder, name: str = "") -> str:
    """Return the folder with the running cycle's state, or the path of one file in it."""
    return os.path.join(nexus(project), "state", name) if name else os.path.join(nexus(project), "state")


def ours(project: Folder, name: str = "") -> str:
    """Return the folder that belongs to Rolecall alone among the harnesses, or the path of a file in it."""
    return os.path.join(state(project, HARNESS), name) if name else state(project, HARNESS)


_harness = HARNESS


def use_harness(name: str) -> None:
    """From now on, keep the hooks' files under this harness name."""
    global _harness
    if not is_harness_id(name):
        hint = "Use lower-case letters, digits and hyphens."
        raise UsageError(f"{name!r} is not the name of a harness", hint=hint)
    _harness = name


def harness() -> str:
    """Return the harness name under which the hooks keep their files."""
    return _harness


def is_harness_id(value: object) -> bool:
    """Return whether a value consists of lower-case letters, digits and hyphens, starting with a letter."""
    if type(value) is not str or not value.isascii() or not value[:1].isalpha():
        return False
    return value == value.lower() and value.replace("-", "").isalnum()


def of_harness(project: Folder, name: str) -> str:
    """Return the path of a file that hooks keep, such as agents and sessions. The lock is in `ours`."""
    return os.path.join(state(project, _harness), name)


def history(project: Folder) -> str:
    return os.path.join(nexus(project), HISTORY)


def artifacts(project: Folder) -> str:
    return state(project, "artifacts")


def choose(folder: Folder | None) -> str:
    """Return the project that a person names or, without a name, the project that contains the working directory."""
    if folder is None:
        return find(os.getcwd())
    if not os.path.isdir(folder):
        hint = Hint("Name one that exists", "name_project")
        raise UsageError(f"the folder {os.fspath(folder)!r} does not exist", hint=hint)
    return os.path.abspath(folder)


def find(start: Folder) -> str:
    """Return the project that contains a folder, which is the git work tree around the folder."""
    root = root_around(os.path.abspath(start))
    if root is None:
        hint, start = Hint("Name its folder", "name_project"), os.path.abspath(start)
        raise UsageError(f"{start} is not in a git repository, so it belongs to no project", hint=hint)
    return root


now = timestamp


_TIME = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


def is_time(value: object) -> bool:
    """Return whether a value is a string with an RFC 3339 time."""
    return type(value) is str and _TIME.fullmatch(value) is not None


def branch(project: Folder) -> str:
    """Return the branch that is checked out in the project's repository; the name is never empty."""
    root = root_around(os.path.abspath(project))
    if root is None:
        return NO_GIT
    # In worktrees and submodules, `.git` is a file that points to the folder.
    pointer = _text(os.path.join(root, ".git"))
    folder = pointer.removeprefix("gitdir:").strip() if pointer.startswith("gitdir:") else ".git"
    head = _text(os.path.join(root, folder, "HEAD"))
    kind, _, ref = head.partition(" ")
    name = ref.strip().removeprefix("refs/heads/") if kind == "ref:" else ""
    if name == ".invalid":  # git writes this name if the refs are kept elsewhere
        return NO_GIT
    return name or (NO_BRANCH if head else NO_GIT)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""
