"""Look at a trigger's source: run a command or a sense in a child process, or check files.

The result is a value with a digest that reveals changes, or a signal, or the reason why there is neither. Child
processes end within their time limit and leave no processes behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from rolecall.agents import process
from rolecall.agents.confinement import confine_project
from rolecall.errors import AgentError, UsageError
from rolecall.service.triggers.trigger import Sense, WatchedCommand, WatchedFiles
from rolecall.store.canonical import JsonObject
from rolecall.store.schema import glob_test
from rolecall.workflow.model import Sandbox

FOLDER = "senses"
_MOST_SEEN = 200_000
_MAX_OUTPUT = 64 * 1024
_NAMED_FILES = 100
_IGNORED = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".tox", ".mypy_cache", ".pytest_cache", ".idea"}
)  # fmt: skip
"""Folders that are skipped unless a pattern names them. Changes in them are ignored, too."""


@dataclass(frozen=True)
class SourceLook:
    """The result of looking at a source."""

    data: JsonObject | None = None
    """The values that a prompt can use, or None if there is no signal."""
    digest: str = ""
    """The digest of the value seen, or empty if every signal counts."""
    problem: str = ""
    """Why the look failed."""
    folders: frozenset[str] = frozenset()
    """The folders that contain matching files, and all folders above those."""
    took: float = 0.0
    """The CPU time used, in seconds. It is measured only for files."""


# -- commands --


async def look_at_command(source: WatchedCommand, folder: str, env: Mapping[str, str]) -> SourceLook:
    digest = hashlib.sha256()
    try:
        ended = await process.run(
            source.argv,
            cwd=Path(folder),
            env=env,
            timeout=source.timeout,
            max_output=_MAX_OUTPUT,
            on_text=lambda text: digest.update(text.encode("utf-8", "surrogatepass")),
            sandbox=confine_project(source.sandbox, folder, env, owner="the trigger's command"),
        )
    except (AgentError, UsageError) as error:
        return SourceLook(problem=_line(f"{error.message}. {error.hint}"))
    if ended.ending != "completed":
        return SourceLook(problem=_line(ended.reason))
    return SourceLook({"output": ended.stdout.strip()}, digest.hexdigest()[:32])


# -- senses --


def sense_file(folder: str, name: str) -> str:
    """Return the path of `senses/NAME.py`, or of `senses/NAME/index.py` if only that file exists."""
    flat, nested = (os.path.join(folder, FOLDER, *parts) for parts in ([f"{name}.py"], [name, "index.py"]))
    return nested if os.path.isfile(nested) and not os.path.isfile(flat) else flat


async def look_with_sense(source: Sense, folder: str, env: Mapping[str, str]) -> SourceLook:
    path = sense_file(folder, source.name)
    answer = await call_sense(path, folder, env, timeout=source.timeout, sandbox=source.sandbox)
    if answer.error:
        return SourceLook(problem=_line(f"{os.path.relpath(path, folder)}:{answer.line}: {answer.error}"))
    return SourceLook(answer.signal)


class SenseAnswer(NamedTuple):
    signal: JsonObject | None = None
    error: str = ""
    line: int = 1
    """The line of the sense's file in which the error occurred."""


async def call_sense(
    path: str,
    folder: str,
    env: Mapping[str, str],
    *,
    timeout: float,
    is_called: bool = True,
    sandbox: Sandbox | None = None,
) -> SenseAnswer:
    """Run a sense. If `is_called` is false, only load its file."""
    if not os.path.isfile(path):
        return SenseAnswer(error=f"the file {path} does not exist")
    try:
        policy = confine_project(sandbox, folder, env, owner="the sense")
    except UsageError as error:
        return SenseAnswer(error=error.message)
    ended = await process.run(
        # With -P, a file in the project cannot shadow an imported module.
        [sys.executable, "-P", "-m", "rolecall.service.triggers.sensechild"],
        cwd=Path(folder),
        env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
        prompt=json.dumps({"path": path, "is_called": is_called}),
        timeout=timeout,
        max_output=2 * 1024 * 1024,
        sandbox=policy,
    )
    if ended.ending == "timeout":
        return SenseAnswer(error=f"it took longer than {timeout:g} s")
    try:
        return SenseAnswer(**json.loads(ended.stdout))
    except (ValueError, TypeError):
        last = ended.stderr.strip().rpartition("\n")[2][:300]
        return SenseAnswer(error=f"its process ended without an answer (exit code {ended.code}): {last}")


# -- files --


def look_at_files(source: WatchedFiles, folder: str, *, since_ms: int) -> SourceLook:
    """Check the files as they are now, and list those that changed at `since_ms` or later."""
    began, since = time.thread_time(), since_ms * 1_000_000
    stamps: dict[str, tuple[int, int]] = {}
    changed: list[str] = []
    try:
        for path, status, is_moved in _walk(folder, source.patterns, since):
            stamps[path] = (status.st_mtime_ns, status.st_size)
            if is_moved or max(status.st_mtime_ns, status.st_ctime_ns) >= since:
                changed.append(path)
    except UsageError as error:
        return SourceLook(problem=error.message)
    except OSError as error:  # a file that cannot be read now might still exist
        return SourceLook(problem=f"{error.filename}: {error.strerror}")
    digest = hashlib.sha256(json.dumps(dict(sorted(stamps.items()))).encode()).hexdigest()[:32]
    # A prompt is text, but a file name is not always valid UTF-8.
    named = [os.fsencode(path).decode("utf-8", "replace") for path in sorted(changed)[:_NAMED_FILES]]
    places = {os.path.dirname(path) for path in stamps}
    folders = places.union(str(above) for place in places for above in PurePath(place).parents)
    return SourceLook({"files": named}, digest, folders=frozenset(folders), took=time.thread_time() - began)


def _walk(folder: str, patterns: Sequence[str], since: int) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield every matching file below the folders with which the patterns begin, and whether the file's folder was
    moved here at `since` (in nanoseconds) or later. Such a move changes the folder's ctime, but not its mtime."""
    fits, count = glob_test(*patterns), 0
    moved: set[str] = set()
    for root in roots(folder, patterns):

        def check(error: OSError, root: str = root) -> None:
            """Ignore a folder that is gone, and a folder below the root that this process is not allowed to read."""
            is_theirs = isinstance(error, PermissionError) and error.filename != root
            if not isinstance(error, FileNotFoundError) and not is_theirs:
                raise error

        for place, folders, files in os.walk(root, onerror=check):
            with suppress(OSError):
                status = os.stat(place)
                if os.path.dirname(place) in moved or status.st_mtime_ns < since <= status.st_ctime_ns:
                    moved.add(place)
            folders[:] = [name for name in folders if not _is_ignored(name, patterns)]
            count += len(files)
            if count > _MOST_SEEN:
                raise UsageError(f"{root} has more than {_MOST_SEEN:,} files; name a folder within it")
            for name in files:
                path = os.path.relpath(os.path.join(place, name), folder)
                if fits(path):
                    with suppress(OSError):  # the file was just removed, or is a broken link
                        yield path, os.stat(os.path.join(place, name)), place in moved


def _is_ignored(name: str, patterns: Sequence[str]) -> bool:
    return name in _IGNORED and not any(name in pattern.split("/") for pattern in patterns)


def concerns(path: str, folder: str, patterns: tuple[str, ...], known: Collection[str]) -> bool:
    """Return whether a change of `path` can affect matching files. `known` contains the folders of the files seen
    before.

    If a folder with files appears or disappears, or fills up before it is watched, the kernel reports only the folder's
    name.
    """
    seen = os.path.relpath(path, folder)
    if glob_test(*patterns)(seen):
        return True
    is_ignored = any(_is_ignored(part, patterns) for part in seen.split(os.sep))
    return not is_ignored and (os.path.isdir(path) or seen in known)


def roots(folder: str, patterns: Sequence[str]) -> list[str]:
    """Return the folders in which to look for files that match the patterns. No returned folder is inside another."""
    found: set[str] = set()
    for pattern in patterns:
        place = folder
        for part in pattern.split("/")[:-1]:
            if re.search(r"[*?\[]", part) or not os.path.isdir(os.path.join(place, part)):
                break
            place = os.path.join(place, part)
        found.add(place)
    return sorted(one for one in found if not any(one.startswith(other + os.sep) for other in found))


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
