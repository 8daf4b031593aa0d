"""Detect changes in a work folder between two points in time, to check that a read-only role did not write.

Where snapshots of the folder are taken, they show most changes. `take_rest` adds HEAD and the files that snapshots
leave out, including those in nested repositories. In this case, ignored files and empty folders do not count.

Without snapshots, `take` looks at the whole folder. In a git work tree, git lists the files that differ from the
commit; their size, time and mode reveal further changes, and HEAD reveals a commit. Ignored files such as build caches
do not count, nor do further changes inside a submodule that had already changed. Outside git, everything in the folder
except `.git` folders is read, up to a maximum number of entries.

A change that preserves a file's size and time is seen only if git notices it. Nothing here writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from stat import S_IFIFO, S_IFMT, S_IFSOCK, S_ISDIR
from typing import NamedTuple

from rolecall.files import git
from rolecall.files.tree import find_top
from rolecall.settings.repository import root_around

MOST_ENTRIES = 200_000
MOST_LISTED = 100

Mark = tuple[str, tuple[int, ...]]
"""Git's status of an entry, and its mode, size and time, or an empty tuple if the entry no longer exists."""


class FolderState(NamedTuple):
    """The files of a folder at one moment."""

    head: str
    """The commit and the branch that are checked out, or empty outside git."""
    entries: Mapping[str, Mark]
    """The entries by path. In git these are the files that differ from the commit, elsewhere all files."""
    is_partial: bool = False
    """Whether the folder has more entries than were read."""


def take(folder: str) -> FolderState:
    """Return the current state of the work tree that contains `folder` or, outside git, of the folder itself."""
    top = find_top(folder)
    return (_status(top) if root_around(top) == top else None) or scan(os.path.realpath(folder))


def take_rest(folder: str, omitted: Iterable[str]) -> FolderState:
    """Return the state that a snapshot of the folder lacks: the checked-out commit and branch, the files left out of
    the snapshot and, for a nested repository, its uncommitted files."""
    top = find_top(folder)
    head = ""
    if root_around(top) == top:
        found = git.ask(top, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
        commit, _, branch = found.text.partition("\n")
        head = f"{commit[:12]} ({branch})" if found.code == 0 else "no commit"
    entries: dict[str, Mark] = {}
    for path in omitted:
        nested = _status(os.path.join(top, path)) if path.endswith("/") else None
        if nested is not None:
            entries |= {path + inner: mark for inner, mark in nested.entries.items()}
        else:
            entries[path] = ("", _stat(os.path.join(top, path)))
    return FolderState(head, entries)


def changes(before: FolderState, after: FolderState) -> list[str]:
    """Describe the paths that were added, changed or removed. At most 100 are listed, followed by the number of the
    others."""
    found: list[str] = []
    if before.head != after.head and before.head and after.head:
        found.append(f"HEAD moved from {before.head} to {after.head}")
    elif before.head != after.head:
        found.append(f"the git repository {'is new' if after.head else 'can no longer be read'}")
    found += sorted(
        f"{word} {os.fsencode(path).decode('utf-8', 'backslashreplace')}"
        for word, path in differences(before, after)
    )
    return shorten(found)


def shorten(found: list[str], more: int = 0) -> list[str]:
    """Return the first 100 of some changes, followed by the number of the others, including `more` that are not in the
    list."""
    more += max(0, len(found) - MOST_LISTED)
    return [*found[:MOST_LISTED], *([f"and {more:,} more"] if more else [])]


def differences(before: FolderState, after: FolderState) -> Iterator[tuple[str, str]]:
    """Yield the paths that were `added`, `changed` or `removed`, in no particular order."""
    old, new = before.entries, after.entries
    for path in old.keys() & new.keys():
        if old[path] != new[path]:
            yield "changed", path
    if before.is_partial or after.is_partial:
        return  # an entry that is missing from one state might just not have been read
    for path in new.keys() - old.keys():
        by_git, found = new[path]
        is_known = by_git not in ("", "?")
        yield "removed" if not found else "changed" if is_known else "added", path
    for path in old.keys() - new.keys():
        is_known = old[path][0] not in ("", "?")  # the file is back to its committed state
        yield "changed" if is_known else "removed", path


# -- in git --


def _status(top: str) -> FolderState | None:
    """Return the state of a git work tree, or None if git fails because the repository is broken or belongs to another
    user."""
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
            *facts, path = record.split(" ", {"1": 8, "u": 10}.get(record[0], 1))
            if not path.endswith("/"):
                entries[path] = (" ".join(facts), _stat(os.path.join(top, path)))
                continue
            # Git does not list the files in a nested repository that is not a submodule.
            for inner, mark in scan(os.path.join(top, path)).entries.items():
                entries[path + inner] = (" ".join(facts), mark[1])
    where = f"{head['branch.oid'][:12]} ({head['branch.head']})"
    return FolderState(where, entries, is_partial=len(entries) >= MOST_ENTRIES)


def _stat(path: str) -> tuple[int, ...]:
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    # A folder's own time and size add nothing to those of its entries.
    return (found.st_mode,) if S_ISDIR(found.st_mode) else (found.st_mode, found.st_size, found.st_mtime_ns)


# -- outside git --


def scan(folder: str, *, most: int = MOST_ENTRIES) -> FolderState:
    """Return the state of everything below a folder, without using git."""
    entries: dict[str, Mark] = {}
    waiting = [""]
    while waiting and len(entries) < most:
        inner = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, inner)) as found:
                # Sort the entries, so that the same part of a folder that is too large is read each time.
                listed = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        for entry in listed:
            path = f"{inner}{entry.name}"
            facts = _stat(entry.path)
            if not facts or S_IFMT(facts[0]) in (S_IFSOCK, S_IFIFO):  # sockets and pipes have no content
                continue
            entries[path] = ("", facts)
            if entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                waiting.append(f"{path}/")
    return FolderState("", entries, is_partial=bool(waiting))
