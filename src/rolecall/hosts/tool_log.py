"""What agents did, a line for each call: `state/rolecall/tool-log.jsonl`; and which files each of them touched.

Lines are appended by one write each and without a lock, so a call costs the same whatever the log has grown to. At a
size it is put aside as `tool-log.1.jsonl`, over the one before. What an agent touched has a file of its own, so that
nobody looks through the log for it. Commands are not kept, because people write secrets into them.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from stat import S_ISREG
from typing import Any

from rolecall.errors import StorageError
from rolecall.nexus import project_paths, state_file

FILE, OLD_FILE = "tool-log.jsonl", "tool-log.1.jsonl"
LARGEST = 16 * 1024 * 1024
ERRORS, OLD_ERRORS = "hook-errors.log", "hook-errors.1.log"
TOUCHED = "touched"
_MOST_SHOWN = 3
_MOST_TOUCHED = 1_000
"""Files of one agent that are told at its end."""


def append(project: str, entry: Mapping[str, Any]) -> None:
    size = _append(project, FILE, _line(entry))
    if size >= LARGEST:
        _put_aside(project, FILE, OLD_FILE, at_least=LARGEST)


def _line(entry: Mapping[str, Any]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") + b"\n"


def _append(project: str, name: str, line: bytes) -> int:
    """Add a line to a file of ours by one write; how large the file is then."""
    path = project_paths.of_harness(project, name)
    try:
        file = _opened(path)
    except FileNotFoundError:  # the first event of a project, or somebody cleared its state away
        with state_file.locked(project):
            state_file.make_folder(project_paths.of_harness(project, ""))
            state_file.make_folder(os.path.dirname(path))
        file = _opened(path)
    try:
        status = os.fstat(file)
        if not S_ISREG(status.st_mode):
            raise StorageError(f"{path} is no regular file", hint="Remove it.")
        os.write(file, line)
        return status.st_size + len(line)
    except OSError as exc:
        raise StorageError(f"{path}: {exc.strerror}", hint="Check the disk, then go on.") from exc
    finally:
        os.close(file)


def _opened(path: str) -> int:
    """For appending; no link is followed on the way."""
    state_file.refuse_links(path)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as exc:
        what = "it is a link" if exc.errno == errno.ELOOP else exc.strerror
        raise StorageError(f"{path}: {what}", hint="Remove it, or check who may write there.") from exc


def _put_aside(project: str, name: str, old: str, *, at_least: int) -> None:
    """Under the lock, so that of two that notice only the first moves it. Who has it open still writes there."""
    path = project_paths.of_harness(project, name)
    with state_file.locked(project):
        if os.path.exists(path) and os.path.getsize(path) >= at_least:
            os.replace(path, project_paths.of_harness(project, old))


# -- files touched --


def touch(project: str, agent: str, paths: Iterable[str]) -> None:
    lines = b"".join(_line({"path": path}) for path in paths)
    if lines:
        _append(project, os.path.join(TOUCHED, _name(agent)), lines)


def touched(project: str, agent: str) -> list[str]:
    """What an agent touched since its start or the last time it ended; a line that is cut off is left out."""
    data = state_file.read(project_paths.of_harness(project, os.path.join(TOUCHED, _name(agent)))) or b""
    found: dict[str, None] = {}
    for line in data.split(b"\n"):
        try:
            found[json.loads(line)["path"]] = None
        except (ValueError, TypeError, LookupError):
            continue
    return list(found)[:_MOST_TOUCHED]


def forget_touched(project: str, agent: str) -> None:
    """Once it stands in the list of agents."""
    state_file.remove(project_paths.of_harness(project, os.path.join(TOUCHED, _name(agent))))


def forget_others(project: str, agents: Callable[[str], Collection[str]]) -> None:
    """Of agents that no session knows any more. Who they are is asked after looking what is there: an agent is on
    record before it touches anything."""
    try:
        found = os.listdir(project_paths.of_harness(project, TOUCHED))
    except OSError:
        return
    names = {_name(agent) for agent in agents(project)} if found else set()
    for name in found:
        if name not in names:
            state_file.remove(project_paths.of_harness(project, os.path.join(TOUCHED, name)))


def _name(agent: str) -> str:
    """An id is the host's and may hold anything, so it is no file name."""
    return state_file.digest(agent.encode(errors="surrogatepass"))


# -- what went wrong --


def note_error(project: str, line: str) -> None:
    """A hook that failed says so to whoever comes next."""
    _append(project, ERRORS, " ".join(line.split()).encode(errors="backslashreplace")[:2_000] + b"\n")


def take_errors(project: str) -> list[str]:
    """What hooks that failed left, once: it is put aside at the same time."""
    path, old = project_paths.of_harness(project, ERRORS), project_paths.of_harness(project, OLD_ERRORS)
    if not os.path.exists(path):
        return []
    try:
        os.replace(path, old)
    except FileNotFoundError:  # another session was quicker
        return []
    data = state_file.read(old) or b""
    return data.decode(errors="replace").splitlines()


def errors_before(project: str) -> list[str]:
    """A sentence about hooks that failed, if any did since the last time it was said."""
    found = take_errors(project)
    if not found:
        return []
    what = "A hook" if len(found) == 1 else f"{len(found)} hooks"
    return [f"{what} failed before this: {'; '.join(found[-_MOST_SHOWN:])}"]
