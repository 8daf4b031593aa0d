"""Whether anything changed in a work folder between two moments: what a read-only role is checked by.

In a git work tree git is asked: what is not as it was committed, each with its size, time and mode, so that a
file that was changed already and is changed again is seen; and where HEAD is, so that a commit is seen. Files
that git ignores do not count (build caches), nor does what lies deeper in a submodule that was changed before.
Elsewhere the folder is walked, `.git` folders left out, up to a number of entries.

A change that restores a file's size and time is only seen where git notices it. Nothing here is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from stat import S_IFIFO, S_IFMT, S_IFSOCK, S_ISDIR

from rolecall.files import git
from rolecall.settings.repository import root_around

MOST_ENTRIES = 200_000
MOST_TOLD = 100

Mark = tuple[str, tuple[int, ...]]
"""What an entry is compared by: what git says of it, then its mode, size and time; none where it is gone."""


@dataclass(frozen=True)
class State:
    head: str
    """The commit and the branch that are checked out; empty outside git."""
    entries: Mapping[str, Mark]
    """By path: in git what is not as it was committed, elsewhere everything."""
    is_partial: bool = False
    """There was more than is looked at."""


def take(folder: str) -> State:
    """How the work tree that `folder` lies in, or outside git the folder, is now."""
    folder = os.path.realpath(folder)
    top = root_around(folder)
    if top is None or (top != folder and git.ask(top, "check-ignore", "-q", "--", folder).code == 0):
        return scan(folder)
    return _status(top) or scan(folder)


def changes(before: State, after: State) -> list[str]:
    """What was added, changed or removed, by path; at most 100 of them and how many more there are."""
    entries = sorted(f"{word} {_told(path)}" for word, path in differences(before, after))
    found = [*_head_changes(before, after), *entries]
    if len(found) > MOST_TOLD:
        found[MOST_TOLD:] = [f"and {len(found) - MOST_TOLD:,} more"]
    return found


def _head_changes(before: State, after: State) -> Iterator[str]:
    if before.head == after.head:
        return
    if not before.head or not after.head:
        yield f"the git repository {'is new' if after.head else 'can no longer be read'}"
    else:
        yield f"HEAD moved from {before.head} to {after.head}"


def differences(before: State, after: State) -> Iterator[tuple[str, str]]:
    """Paths that were `added`, `changed` or `removed`, in no order."""
    old, new = before.entries, after.entries
    for path in old.keys() & new.keys():
        if old[path] != new[path]:
            yield "changed", path
    if before.is_partial or after.is_partial:
        return  # what is in one only may just have been left out of the other
    for path in new.keys() - old.keys():
        by_git, found = new[path]
        is_known = by_git not in ("", "?")
        yield "removed" if not found else "changed" if is_known else "added", path
    for path in old.keys() - new.keys():
        is_known = old[path][0] not in ("", "?")  # now as it was committed
        yield "changed" if is_known else "removed", path


def _told(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


# -- in git --


def _status(top: str) -> State | None:
    """None where git cannot tell: the repository is broken, or it is somebody else's."""
    options = ("--branch", "--no-ahead-behind", "--untracked-files=all", "--no-renames")
    result = git.ask(top, "status", "--porcelain=v2", "-z", *options, "--ignore-submodules=none")
    if result.code:
        return None
    head: dict[str, str] = {}
    entries: dict[str, Mark] = {}
    for record in result.words:
        if record.startswith("# "):
            _, name, value = record.split(" ", 2)
            head[name] = value
        elif len(entries) < MOST_ENTRIES:
            entries.update(_entries(top, record))
    told = f"{head['branch.oid'][:12]} ({head['branch.head']})"
    return State(told, entries, is_partial=len(entries) >= MOST_ENTRIES)


def _entries(top: str, record: str) -> Iterator[tuple[str, Mark]]:
    kind = record[0]
    *facts, path = record.split(" ", {"1": 8, "u": 10}.get(kind, 1))
    if not path.endswith("/"):
        yield path, (" ".join(facts), _stat(os.path.join(top, path)))
        return
    # A repository inside this one that is no submodule: git does not look into it.
    for inner, mark in scan(os.path.join(top, path)).entries.items():
        yield path + inner, (" ".join(facts), mark[1])


def _stat(path: str) -> tuple[int, ...]:
    try:
        return _facts(os.lstat(path))
    except OSError:
        return ()


def _facts(found: os.stat_result) -> tuple[int, ...]:
    # A folder's own time and size say only what its entries say better.
    if S_ISDIR(found.st_mode):
        return (found.st_mode,)
    return found.st_mode, found.st_size, found.st_mtime_ns


# -- elsewhere --


def scan(folder: str, *, most: int = MOST_ENTRIES) -> State:
    """Everything below a folder, whatever git thinks of it."""
    entries: dict[str, Mark] = {}
    waiting = [""]
    while waiting and len(entries) < most:
        inner = waiting.pop()
        for entry in _listed(os.path.join(folder, inner)):
            path = f"{inner}{entry.name}"
            facts = _stat(entry.path)
            if not facts or S_IFMT(facts[0]) in (S_IFSOCK, S_IFIFO):  # a socket or a pipe holds nothing
                continue
            entries[path] = ("", facts)
            if entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                waiting.append(f"{path}/")
    return State("", entries, is_partial=bool(waiting))


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            # In one order, so that of a folder that is too large the same part is looked at again.
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
