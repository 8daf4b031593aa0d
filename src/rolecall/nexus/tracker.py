"""The agents of all open sessions, when they started and how they ended: `state/<harness>/agent-tracker.json`.

The list has the form defined by the contract, with one entry for each instance of an agent, and is removed with the
sessions that it describes. Events can arrive twice, late or not at all: starting a running agent changes nothing, and
the entry of an agent without a recorded start is added when the agent ends. The list is written as a whole under the
project's lock; readers need no lock. The form has no field for an agent's task, so sessions keep the task.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rolecall.errors import UsageError
from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder, is_harness_id, is_time
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import datetime

    from rolecall.nexus.reply import TrackedAgent
else:
    datetime = Module("datetime")  # slower to import than the rest of this module

FILE = "agent-tracker.json"
_LONGEST_MESSAGE = 2_000
"""The maximum length of an agent's last message, because each start and end of an agent reads the file."""
_LATEST_SECONDS = 120
_MOST, _LARGEST = 100, 50_000
"""The maximum number of entries and of bytes, unless more agents are running; a host waits while the file is read."""


def entries(project: Folder) -> list[TrackedAgent]:
    """Return every agent of the open sessions, in the order in which they were started."""
    path = project_paths.of_harness(project, FILE)
    data = state_file.read(path)
    return [] if data is None else list(_parse(path, data))


def record_start(project: Folder, *, agent_name: str, agent_id: str, at: str) -> TrackedAgent:
    """Record that an agent was started, or resumed after it had ended."""

    def edit(entry: TrackedAgent | None) -> TrackedAgent:
        if entry is None:
            return {**_new_entry(agent_name, agent_id, at), "resume_count": 0, "status": "running"}
        if entry.get("status") == "running":
            return entry
        if "resume_count" not in entry and entry["started_at"] == entry.get("stopped_at"):
            # The entry was made when the agent ended. Hosts do not wait for hooks, so its start can be reported later.
            with suppress(ValueError):  # another program wrote an invalid date
                times = (datetime.datetime.fromisoformat(time.upper()) for time in (entry["stopped_at"], at))
                ended, started = (time.timestamp() for time in times)
                if started - ended < _LATEST_SECONDS:
                    return entry
        count = entry.get("resume_count", 0) + 1
        resumed: TrackedAgent = {**entry, "last_resumed_at": at, "resume_count": count, "status": "running"}
        resumed.pop("stopped_at", None)
        return resumed

    return _change(project, agent_id, edit)


def record_end(
    project: Folder,
    *,
    agent_id: str,
    at: str,
    last_message: str = "",
    files: Iterable[str] = (),
    agent_name: str = "",
) -> TrackedAgent:
    """Record that an agent ended. `agent_name` is needed only if the agent's start was never reported."""

    def edit(entry: TrackedAgent | None) -> TrackedAgent:
        known = entry or _new_entry(agent_name, agent_id, at)
        touched = dict.fromkeys([*known.get("files_touched", ()), *files])
        ended: TrackedAgent = {**known, "status": "completed", "files_touched": list(touched)}
        if known.get("status") != "completed":
            ended["stopped_at"] = at
        if last_message:
            ended["last_message"] = last_message[:_LONGEST_MESSAGE]
        return ended

    return _change(project, agent_id, edit)


def _new_entry(agent_name: str, agent_id: str, at: str) -> TrackedAgent:
    # Hosts also use names such as `Explore`, which the contract's form does not allow.
    letters = [letter if letter.isascii() and letter.isalnum() else " " for letter in agent_name.lower()]
    name = "-".join("".join(letters).split()).lstrip("-0123456789")
    entry: TrackedAgent = {"harness_id": project_paths.harness(), "started_at": at}
    if name:
        entry["agent_name"] = name
    entry["agent_id"] = agent_id
    return entry


def _change(
    project: Folder, agent_id: str, edit: Callable[[TrackedAgent | None], TrackedAgent]
) -> TrackedAgent:
    if not agent_id:
        raise UsageError("an agent without an id cannot be tracked", hint="Give the instance's id.")
    with state_file.hold_lock(project):
        before = entries(project)
        at = next((n for n, entry in enumerate(before) if entry.get("agent_id") == agent_id), len(before))
        entry = edit(before[at] if at < len(before) else None)
        after = [*before[:at], entry, *before[at + 1 :]]
        if after != before:
            _save(project, after, entry)
    return entry


def reset(project: Folder, keep: Collection[str] = ()) -> str:
    """Keep only the entries of the agents in `keep`. An unreadable file is replaced by an empty list; the function
    then returns a sentence that says so and names the copy."""
    with state_file.hold_lock(project):
        return keep_only(project, keep)


def keep_only(project: Folder, keep: Collection[str], *, also: tuple[str, ...] = ()) -> str:
    """Do the same as `reset`, for callers that hold the lock. `also` contains prefixes of further ids to keep."""
    problem = ""
    try:
        found = entries(project)
    except state_file.DamagedFile as exc:
        problem, found = state_file.set_aside(project, exc), []
    ids = ((entry, entry.get("agent_id", "")) for entry in found)
    kept = [entry for entry, name in ids if name in keep or name.startswith(also)]
    if kept != found or problem or not os.path.exists(project_paths.of_harness(project, FILE)):
        _save(project, kept)
    return problem


def remove(project: Folder) -> None:
    """Remove the list. The caller must hold the lock."""
    state_file.remove(project_paths.of_harness(project, FILE))


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "harness_id": is_harness_id,
    "started_at": is_time,
    "agent_name": is_harness_id,
    "agent_id": lambda value: type(value) is str and bool(value),
    "last_resumed_at": is_time,
    "resume_count": lambda value: type(value) is int and value >= 0,
    "status": lambda value: value in ("running", "completed"),
    "stopped_at": is_time,
    "last_message": lambda value: type(value) is str,
    "files_touched": lambda value: type(value) is list and all(type(name) is str for name in value),
}


def problem_of(found: Any) -> str:
    """Return why a value is not a list of agents as defined by the contract, or an empty string if it is one."""
    if type(found) is not list:
        return "it is not a list"
    for number, entry in enumerate(found):
        if type(entry) is not dict or not {"harness_id", "started_at"} <= entry.keys():
            return f"[{number}] is not an object with harness_id and started_at"
        for key, value in entry.items():
            if key not in _FIELDS:
                return f"[{number}] has an unknown field {key!r}"
            if not _FIELDS[key](value):
                return f"[{number}].{key} cannot be {value!r}"
    return ""


@lru_cache(maxsize=1)
def _parse(path: str, data: bytes) -> tuple[TrackedAgent, ...]:
    """Return the entries, which must not be changed. They are cached, because an event reads them repeatedly."""
    try:
        found = json.loads(data)
        problem = problem_of(found)
    except (ValueError, RecursionError) as exc:
        problem = f"not JSON: {exc}"
    if problem:
        raise state_file.DamagedFile(path, data, f"the list of agents: {problem}")
    return tuple(found)


def _save(project: Folder, found: list[TrackedAgent], latest: TrackedAgent | None = None) -> None:
    """Write the list. If it is too long, leave out the oldest agents that ended, but not `latest`."""
    lines = [json.dumps(entry, ensure_ascii=False) for entry in found]
    count, size, gone = len(lines), sum(map(len, lines)), set()
    for number, entry in enumerate(found):
        if count <= _MOST and size <= _LARGEST:
            break
        if entry.get("status") == "completed" and entry is not latest:
            gone.add(number)
            count, size = count - 1, size - len(lines[number])
    text = "[" + ",\n".join(line for number, line in enumerate(lines) if number not in gone) + "]\n"
    path = project_paths.of_harness(project, FILE)
    state_file.make_folder(os.path.dirname(path))
    # A power failure also ends the sessions in this list, so there is no need to wait for the disk.
    state_file.replace(project, path, text.encode(errors="backslashreplace"), must_last=False)
