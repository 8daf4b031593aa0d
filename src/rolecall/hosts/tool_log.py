"""What agents did, one line for each call: `state/rolecall/tool-log.jsonl`; and which files each of them touched.

Each line is one append without a lock, so a call costs the same however large the log is. At a certain size it becomes
`tool-log.1.jsonl`. What an agent touched has a file of its own, so nobody searches the log for it. Commands are not
kept, because people write secrets into them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rolecall.errors import StorageError
from rolecall.nexus import project_paths, state_file

FILE, OLD_FILE = "tool-log.jsonl", "tool-log.1.jsonl"
LARGEST = 16 * 1024 * 1024
ERRORS, OLD_ERRORS = "hook-errors.log", "hook-errors.1.log"
TOUCHED = "touched"
_MOST_SHOWN = 3
_MOST_TOUCHED = 1_000
"""Files of one agent that are reported at its end."""


def append(project: str, entry: Mapping[str, Any]) -> None:
    if _append(project, FILE, _line(entry)) >= LARGEST:
        path = project_paths.of_harness(project, FILE)
        with state_file.locked(project):  # of two that notice, only the first moves it
            if os.path.exists(path) and os.path.getsize(path) >= LARGEST:
                os.replace(path, project_paths.of_harness(project, OLD_FILE))


def _line(entry: Mapping[str, Any]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") + b"\n"


def _append(project: str, name: str, line: bytes) -> int:
    """Append to a file of ours by one write, and return the file's size."""
    path = project_paths.of_harness(project, name)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        state_file.refuse_links(path)
        try:
            file = os.open(path, flags, 0o666)
        except FileNotFoundError:  # the first event of a project, or its state was removed
            with state_file.locked(project):
                state_file.make_folder(project_paths.of_harness(project, ""))
                state_file.make_folder(os.path.dirname(path))
            file = os.open(path, flags, 0o666)
        try:
            os.write(file, line)
            return os.fstat(file).st_size
        finally:
            os.close(file)
    except OSError as exc:
        raise StorageError(
            f"{path}: {exc.strerror}", hint="Check the disk and the permissions, then try again."
        ) from exc


# -- files touched --


def _touched_path(project: str, agent: str) -> str:
    """The host's id of an agent may contain anything, so it is hashed to make a file name."""
    return project_paths.of_harness(project, os.path.join(TOUCHED, _file_name(agent)))


def _file_name(agent: str) -> str:
    return state_file.digest(agent.encode(errors="surrogatepass"))


def touch(project: str, agent: str, paths: Iterable[str]) -> None:
    lines = b"".join(_line({"path": path}) for path in paths)
    if lines:
        _append(project, os.path.join(TOUCHED, _file_name(agent)), lines)


def touched(project: str, agent: str) -> list[str]:
    """The files that an agent touched since its start or since it last ended; an incomplete line is skipped."""
    data = state_file.read(_touched_path(project, agent)) or b""
    found: dict[str, None] = {}
    for line in data.split(b"\n"):
        try:
            found[json.loads(line)["path"]] = None
        except (ValueError, TypeError, LookupError):
            continue
    return list(found)[:_MOST_TOUCHED]


def forget_touched(project: str, agent: str) -> None:
    """Call it when the list of agents has them."""
    state_file.remove(_touched_path(project, agent))


def forget_others(project: str, agents: Callable[[str], Collection[str]]) -> None:
    """Remove the files of agents that no session knows any more.

    `agents` is called after the folder is listed, because an agent is on record before it touches anything.
    """
    try:
        found = os.listdir(project_paths.of_harness(project, TOUCHED))
    except OSError:
        return
    known = {_file_name(agent) for agent in agents(project)} if found else set()
    for name in found:
        if name not in known:
            state_file.remove(project_paths.of_harness(project, os.path.join(TOUCHED, name)))


# -- what went wrong --


def note_error(project: str, line: str) -> None:
    """Keep the failure of a hook for the next event at which a person or the model can be told."""
    _append(project, ERRORS, " ".join(line.split()).encode(errors="backslashreplace")[:2_000] + b"\n")


def take_errors(project: str) -> list[str]:
    """A sentence about hooks that failed since it was last said, if any did; it is said once."""
    path, old = project_paths.of_harness(project, ERRORS), project_paths.of_harness(project, OLD_ERRORS)
    if not os.path.exists(path):
        return []
    try:
        os.replace(path, old)
    except FileNotFoundError:  # another session was quicker
        return []
    lines = (state_file.read(old) or b"").decode(errors="replace").splitlines()
    if not lines:
        return []
    what = "A hook" if len(lines) == 1 else f"{len(lines)} hooks"
    return [f"{what} failed before this: {'; '.join(lines[-_MOST_SHOWN:])}"]
