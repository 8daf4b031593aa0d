"""Which agents of a session were started and what became of them: `state/<harness>/agent-tracker.json`.

A list in the shape of the contract, one entry for each instance of an agent. It lives no longer than the sessions
that it tells of. Events may come twice, late or not at all: an agent that is running and is started is still the
same one, and an agent that ends without having been started gets its entry then.

Written as a whole under the project's lock; readers need none. Which task an agent works on is not known here:
the shape has no place for it, so sessions keep it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from rolecall.errors import UsageError
from rolecall.nexus import project_paths, shape, state_file
from rolecall.nexus.project_paths import HARNESS, Folder

FILE = "agent-tracker.json"
_LONGEST_MESSAGE = 2_000
"""Characters of an agent's last message: enough to know what it was, in a file that is read at every start and end."""
_LATEST_SECONDS = 120
_MOST, _LARGEST = 100, 50_000
"""Entries and bytes that are kept, as long as not more are running: a host waits while the file is read."""

Entry: TypeAlias = dict[str, Any]


def path(project: Folder, harness: str = HARNESS) -> str:
    if not shape.is_harness_id(harness):
        raise UsageError(
            f"{harness!r} is not the name of a harness", hint="It is lower-case letters, digits and hyphens."
        )
    return os.path.join(project_paths.state(project, harness), FILE)


def entries(project: Folder, *, harness: str = HARNESS) -> list[Entry]:
    """Every agent of the sessions that are open, in the order they were started."""
    return _parsed(path(project, harness))


def spawned(project: Folder, *, agent_name: str, agent_id: str, at: str, harness: str = HARNESS) -> Entry:
    """An agent was started, or was taken up again when it had ended before."""
    _check_id(agent_id)
    started = {"harness_id": harness, "started_at": at, **_named(agent_name), "agent_id": agent_id}

    def edit(entry: Entry | None) -> Entry:
        if entry is None:
            return {**started, "resume_count": 0, "status": "running"}
        if entry.get("status") == "running":
            return entry
        if _came_late(entry, at):
            return entry
        count = entry.get("resume_count", 0) + 1
        resumed = {"last_resumed_at": at, "resume_count": count, "status": "running"}
        return {key: value for key, value in {**entry, **resumed}.items() if key != "stopped_at"}

    return _change(project, harness, agent_id, edit)


def completed(
    project: Folder,
    *,
    agent_id: str,
    at: str,
    last_message: str = "",
    files: Iterable[str] = (),
    agent_name: str = "",
    harness: str = HARNESS,
) -> Entry:
    """An agent ended; `agent_name` is needed only where its start was never told."""
    _check_id(agent_id)

    def edit(entry: Entry | None) -> Entry:
        known = entry or {"harness_id": harness, "started_at": at, **_named(agent_name), "agent_id": agent_id}
        touched = dict.fromkeys([*known.get("files_touched", ()), *files])
        ended = {"status": "completed", "files_touched": list(touched)}
        if known.get("status") != "completed":
            ended["stopped_at"] = at
        if last_message:
            ended["last_message"] = last_message[:_LONGEST_MESSAGE]
        return {**known, **ended}

    return _change(project, harness, agent_id, edit)


def _came_late(entry: Entry, at: str) -> bool:
    """Whether this is the start of an agent whose end was told first: hosts do not wait for one hook to end."""
    if "resume_count" in entry or entry["started_at"] != entry.get("stopped_at"):
        return False
    try:
        return _seconds(at) - _seconds(entry["stopped_at"]) < _LATEST_SECONDS
    except ValueError:  # a day that does not exist, by another's hand
        return False


def _seconds(at: str) -> float:
    from datetime import datetime  # takes a hook longer to import than all the rest of this does

    return datetime.fromisoformat(at.upper()).timestamp()


def reset(project: Folder, keep: Collection[str] = (), *, harness: str = HARNESS) -> str:
    """Begin anew with the entries of the agents in `keep`. A file that cannot be read is replaced as well, because
    only sessions that are gone would miss it; then it says so, and where the copy is."""
    with state_file.locked(project):
        return keep_only(project, keep, harness=harness)


def keep_only(
    project: Folder, keep: Collection[str], *, also: tuple[str, ...] = (), harness: str = HARNESS
) -> str:
    """The same for those who hold the lock already; `also` are beginnings of ids that are kept."""
    file, problem = path(project, harness), ""
    state_file.make_folder(os.path.dirname(file))
    try:
        found = _parsed(file)
    except state_file.DamagedFile as exc:
        copy = state_file.kept_aside(project, exc).copy
        problem, found = f"{file} could not be used ({exc.problem}) and began anew. A copy is in {copy}", []
    ids = ((entry, entry.get("agent_id", "")) for entry in found)
    kept = [entry for entry, name in ids if name in keep or name.startswith(also)]
    if kept != found or problem or not os.path.exists(file):
        _write(project, file, kept)
    return problem


def remove(project: Folder, *, harness: str = HARNESS) -> None:
    """Nobody is left to be told of."""
    if os.path.lexists(path(project, harness)):
        with state_file.locked(project):
            discard(project, harness=harness)


def discard(project: Folder, *, harness: str = HARNESS) -> None:
    """The same for those who hold the lock already."""
    state_file.remove(path(project, harness))


def _change(project: Folder, harness: str, agent_id: str, edit: Callable[[Entry | None], Entry]) -> Entry:
    file = path(project, harness)
    with state_file.locked(project):
        state_file.make_folder(os.path.dirname(file))
        before = _parsed(file)
        at = next((n for n, entry in enumerate(before) if entry.get("agent_id") == agent_id), len(before))
        entry = edit(before[at] if at < len(before) else None)
        after = [*before[:at], entry, *before[at + 1 :]]
        if after != before:
            _write(project, file, after, entry)
    return entry


def _parsed(file: str) -> list[Entry]:
    data = state_file.read(file)
    return [] if data is None else list(_judged(file, data))


@lru_cache(maxsize=1)
def _judged(file: str, data: bytes) -> tuple[Entry, ...]:
    """What the bytes of a list say. An event looks at it and then changes it; entries themselves never change."""
    try:
        found = json.loads(data)
        problem = shape.TRACKED(found)
    except (ValueError, RecursionError) as exc:
        problem = f" is not JSON: {exc}"
    if problem:
        raise state_file.DamagedFile(file, data, f"the list of agents{problem}")
    return tuple(found)


def _write(project: Folder, file: str, found: list[Entry], latest: Entry | None = None) -> None:
    text = "[" + ",\n".join(_kept(found, latest)) + "]\n"
    # What a power failure takes is gone with the sessions it was about, so nobody waits for the disk.
    state_file.replace(project, file, text.encode(errors="backslashreplace"), must_last=False)


def _kept(found: list[Entry], latest: Entry | None) -> list[str]:
    """A line for each entry; without the first of those that ended, where they are too many. The latest one stays."""
    lines = [json.dumps(entry, ensure_ascii=False) for entry in found]
    count, size, gone = len(lines), sum(map(len, lines)), set()
    for number, entry in enumerate(found):
        if count <= _MOST and size <= _LARGEST:
            break
        if entry.get("status") == "completed" and entry is not latest:
            gone.add(number)
            count, size = count - 1, size - len(lines[number])
    return [line for number, line in enumerate(lines) if number not in gone]


def _named(agent_name: str) -> Mapping[str, str]:
    """The kind of agent as the shape has it; hosts also have names such as `Explore`."""
    letters = [letter if letter.isascii() and letter.isalnum() else " " for letter in agent_name.lower()]
    name = "-".join("".join(letters).split()).lstrip("-0123456789")
    return {"agent_name": name} if name else {}


def _check_id(agent_id: str) -> None:
    if not agent_id:
        raise UsageError("an agent without an id cannot be kept track of", hint="Give the instance's id.")
