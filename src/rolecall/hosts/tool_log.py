"""The log of agents' tool calls, one line each (`state/rolecall/tool-log.jsonl`), and the files that each agent
touched.

Each line is appended without a lock, so a call costs the same however large the log is. At a certain size, the log is
renamed to `tool-log.1.jsonl`. The files that an agent touched are recorded in a separate file, so that the log need not
be searched for them. Commands are not logged, because they can contain secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from rolecall.nexus import project_paths, state_file

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject

FILE, OLD_FILE = "tool-log.jsonl", "tool-log.1.jsonl"
LARGEST = 16 * 1024 * 1024
ERRORS, OLD_ERRORS = "hook-errors.log", "hook-errors.1.log"
TOUCHED = "touched"
_MOST_SHOWN = 3
_MOST_TOUCHED = 1_000
"""The maximum number of touched files reported when an agent ends."""


def append(project: str, entry: JsonObject) -> None:
    if _append(project, FILE, _line(entry)) >= LARGEST:
        path = project_paths.of_harness(project, FILE)
        with state_file.hold_lock(project):  # of two processes, only the first renames the log
            if os.path.exists(path) and os.path.getsize(path) >= LARGEST:
                os.replace(path, project_paths.of_harness(project, OLD_FILE))


def _line(entry: JsonObject) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") + b"\n"


def _append(project: str, name: str, line: bytes) -> int:
    """Append a line to one of our files in a single write, and return the file's size."""
    path = project_paths.of_harness(project, name)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        state_file.refuse_links(path)
        try:
            file = os.open(path, flags, 0o666)
        except FileNotFoundError:  # this is the project's first event, or its state was removed
            with state_file.hold_lock(project):
                state_file.make_folder(project_paths.of_harness(project, ""))
                state_file.make_folder(os.path.dirname(path))
            file = os.open(path, flags, 0o666)
        try:
            os.write(file, line)
            return os.fstat(file).st_size
        finally:
            os.close(file)
    except OSError as exc:
        raise state_file.storage_error(exc, path) from exc


def _file_of(agent: str) -> str:
    # The name is a hash, because the host's id can contain any characters.
    return os.path.join(TOUCHED, state_file.digest(agent.encode(errors="surrogatepass")))


def touch(project: str, agent: str, paths: Iterable[str]) -> None:
    if lines := b"".join(_line({"path": path}) for path in paths):
        _append(project, _file_of(agent), lines)


def read_touched(project: str, agent: str) -> list[str]:
    """Return the files that an agent has touched since its start or its last end. An incomplete line is skipped."""
    data = state_file.read(project_paths.of_harness(project, _file_of(agent))) or b""
    found: dict[str, None] = {}
    for line in data.split(b"\n"):
        try:
            found[json.loads(line)["path"]] = None
        except (ValueError, TypeError, LookupError):
            continue
    return list(found)[:_MOST_TOUCHED]


def forget_touched(project: str, agent: str) -> None:
    """Remove an agent's file of touched files, once the list of agents contains them."""
    state_file.remove(project_paths.of_harness(project, _file_of(agent)))


def forget_others(project: str, agents: Callable[[str], Collection[str]]) -> None:
    """Remove the files of agents that no session knows any longer. `agents` is called only after the folder is listed,
    because an agent is recorded before it touches anything."""
    try:
        names = os.listdir(project_paths.of_harness(project, TOUCHED))
    except OSError:
        return
    found = {os.path.join(TOUCHED, name) for name in names}
    for name in found.difference(map(_file_of, agents(project))) if found else ():
        state_file.remove(project_paths.of_harness(project, name))


def note_error(project: str, line: str) -> None:
    """Keep a hook's error until the next event at which the person or the model can be informed."""
    _append(project, ERRORS, " ".join(line.split()).encode(errors="backslashreplace")[:2_000] + b"\n")


def take_errors(project: str) -> list[str]:
    """Return a sentence about the hooks that failed since the last report, if any did."""
    path, old = project_paths.of_harness(project, ERRORS), project_paths.of_harness(project, OLD_ERRORS)
    if not os.path.exists(path):
        return []
    try:
        os.replace(path, old)
    except FileNotFoundError:  # another session was faster
        return []
    lines = (state_file.read(old) or b"").decode(errors="replace").splitlines()
    if not lines:
        return []
    what = "A hook" if len(lines) == 1 else f"{len(lines)} hooks"
    return [f"{what} failed before this: {'; '.join(lines[-_MOST_SHOWN:])}"]
