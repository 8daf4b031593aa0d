"""Copies of workflows written in Python, so that a thread keeps the version with which it was started.

The definition of a workflow is a node and never changes, but its functions are in a file, which can change. A copy is
in a folder named after the digest of its content, so the same content is copied only once, and no copy is ever changed.
A copy contains the file and the files that it imports relatively (`from .prompts import …`) or, for an `index.py`, its
whole folder. A copy is removed once no thread and no name refers to it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress

from rolecall.errors import UsageError

MOST_FILES = 1_000
MOST_BYTES = 20_000_000
_IGNORED = ("__pycache__", "node_modules")


def keep(path: str, into: str) -> str:
    """Copy a workflow file, unless the copy already exists. Return the file's path in the copy."""
    contents, digest = _read_version(path)
    # The name of the folder is the name of the workflow.
    is_folder = os.path.basename(path) == "index.py"
    below = [os.path.basename(os.path.dirname(os.path.realpath(path)))] if is_folder else []
    copy = os.path.join(into, digest[:32])
    kept = os.path.join(copy, *below, os.path.basename(path))
    if os.path.isdir(copy):
        with suppress(OSError):
            os.utime(copy)  # in use again, so a clean-up that has just begun keeps the copy
        return kept
    os.makedirs(into, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".new-", dir=into)
    try:
        for name, content in contents.items():
            file = os.path.join(made, *below, name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as stream:
                stream.write(content)
        os.rename(made, copy)  # renamed into place, so that an existing copy is always complete
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not os.path.isdir(copy):  # otherwise another process has just made the same copy
            raise
    return kept


def digest(where: str) -> str:
    """Return the digest of the code at `FILE:VARIABLE` without running the code. Return an empty string if there is no
    such file."""
    file = where.rpartition(":")[0]
    return _read_version(file)[1] if file.endswith(".py") and os.path.isfile(file) else ""


def _read_version(path: str) -> tuple[dict[str, bytes], str]:
    """Return the files of a workflow by their names, and the digest of these files."""
    folder = os.path.dirname(os.path.realpath(path))
    is_folder = os.path.basename(path) == "index.py"
    found = set[str]()
    for place, folders, names in os.walk(folder) if is_folder else ():
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _IGNORED]
        names = [name for name in names if not name.startswith(".") and not name.endswith((".pyc", ".pyo"))]
        found |= set(filter(os.path.isfile, (os.path.join(place, name) for name in names)))
    waiting = [] if is_folder else [os.path.realpath(path)]
    found |= {*waiting}
    while waiting:  # find the files that are imported relatively, directly or indirectly
        new = set(_imports_of(waiting.pop())) - found
        found |= new
        waiting += new
    contents, digest, left = dict[str, bytes](), hashlib.sha256(), MOST_BYTES
    for file in sorted(found):
        name = os.path.relpath(file, folder)
        with open(file, "rb") as stream:
            content = contents[name] = stream.read(left + 1)
        left -= len(content)
        if left < 0 or len(contents) > MOST_FILES:
            most = f"{MOST_FILES:,} files or {MOST_BYTES // 1_000_000} MB"
            raise UsageError(
                f"the workflow in {folder} has more than {most} beside it",
                hint="Keep what it works on somewhere else: a copy is kept of every version.",
            )
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return contents, digest.hexdigest()


def clean(folder: str, needed: Collection[str], *, before: float) -> list[str]:
    """Remove the copies in a folder that are not needed and have not been used since `before`, in seconds. Return the
    paths of the removed copies. `needed` are paths of workflow files, inside the folder or not."""
    removed, places = [], [os.path.realpath(path) for path in needed]
    for entry in os.scandir(folder) if os.path.isdir(folder) else ():
        copy = os.path.realpath(entry.path) + os.sep
        is_needed = any(place.startswith(copy) for place in places)
        if not is_needed and entry.is_dir(follow_symlinks=False) and entry.stat().st_mtime < before:
            shutil.rmtree(entry.path)
            removed.append(entry.path)
    return removed


def _imports_of(path: str) -> Iterator[str]:
    try:
        with open(path, "rb") as stream:
            tree = ast.parse(stream.read(MOST_BYTES), filename=path)
    except (OSError, SyntaxError, ValueError):  # reported when the file is loaded
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        place = path
        for _ in range(node.level):
            place = os.path.dirname(place)
        places = []
        for part in node.module.split(".") if node.module else ():
            place = os.path.join(place, part)
            places.append(place)
        places += [os.path.join(place, alias.name) for alias in node.names]
        files = (file for place in places for file in (f"{place}.py", os.path.join(place, "__init__.py")))
        yield from filter(os.path.isfile, files)
