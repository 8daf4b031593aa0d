"""A log of who read which memory note, when, and how often: `state/rolecall/memory-access.jsonl`, one line per note.

Two kinds of reads count: `memory read`, and an agent's reads of a note's content that a hook reports. The log is
rewritten as a whole under the project's lock, so that no count is lost when two readers write at the same time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rolecall.errors import RolecallError, UsageError
from rolecall.nexus import note, note_name, project_paths, state_file
from rolecall.nexus.project_paths import Folder

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject

FILE = "memory-access.jsonl"
LEAD = "lead"
"""The reader if no other reader is named."""


class Access(NamedTuple):
    path: str
    last_accessed_ts: str
    access_count: int
    last_agent: str
    schema_version: str | None = None


Log: TypeAlias = dict[str, Access]


def moment(at: str) -> datetime:
    # RFC 3339 allows leap seconds, but Python does not.
    return datetime.fromisoformat(at.upper().replace(":60", ":59"))


def key(project: Folder, file: str) -> str:
    """Return the path of a note in the log, which is the same for every path to the project."""
    return os.path.join(os.path.realpath(note.folder(project, "memory")), file)


def read(project: Folder) -> Log:
    path = project_paths.of_harness(project, FILE)
    data = state_file.read(path) or b""
    found: list[Access] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            problem = _problem_of(value)
        except (ValueError, RecursionError) as exc:
            problem = f"it is not JSON: {exc}"
        if problem:
            raise state_file.DamagedFile(path, data, f"line {number}: {problem}")
        found.append(Access(**value))
    return merge(found)


def merge(accesses: Iterable[Access]) -> Log:
    """Combine entries into one entry per path: add the counts, and keep the later read."""
    log: Log = {}
    for access in accesses:
        if known := log.get(access.path):
            last = max(known, access, key=lambda one: moment(one.last_accessed_ts))
            access = last._replace(access_count=known.access_count + access.access_count)
        log[access.path] = access
    return log


def observe(project: Folder, path: str, agent: str, at: str) -> bool:
    """Count one read of `path`. Return False, without writing, if `path` is not a memory note of this project, or if
    the project has no `.nexus/.gitignore` yet, so that git would see the log."""
    folder, file = os.path.split(os.path.join(os.path.abspath(project), path))
    try:
        is_note = os.path.realpath(folder) == os.path.realpath(note.folder(project, "memory"))
        is_note = is_note and note.find(project, "memory", file).name == file
    except (RolecallError, ValueError):  # a missing note, a link or an invalid path: no note was read
        return False
    if not is_note or not os.path.lexists(os.path.join(project_paths.nexus(project), ".gitignore")):
        return False
    seen = Access(key(project, file), at, 1, agent)
    if problem := _problem_of(_as_json(seen)):
        raise UsageError(f"the read cannot be recorded: {problem}", hint="Say who read it, and when.")
    with state_file.hold_lock(project):
        rewrite(project, lambda log: merge([*log.values(), seen]))
    return True


def rewrite(project: Folder, edit: Callable[[Log], Log]) -> None:
    """Change the log. The caller must hold the lock."""
    before = read(project)
    after = edit(dict(before))
    if after != before:
        lines = "".join(json.dumps(_as_json(access), ensure_ascii=False) + "\n" for access in after.values())
        state_file.make_folder(os.path.dirname(project_paths.of_harness(project, FILE)))
        # Losing a count in a power failure is better than waiting for the disk.
        state_file.replace(project, project_paths.of_harness(project, FILE), lines.encode(), must_last=False)


def follow(project: Folder, gone: Collection[str], into: str | None) -> None:
    """Add the reads of removed notes to the note into which they were merged. Drop the entries of all other missing
    notes, so that a new note with the same name starts at zero. The caller must hold the lock."""
    there = {key(project, each.name) for each in note.list_notes(project, "memory")}
    keys = {key(project, name) for name in gone}

    def edit(log: Log) -> Log:
        new = key(project, into) if into else ""
        moved = (each._replace(path=new) if new and each.path in keys else each for each in log.values())
        return {path: access for path, access in merge(moved).items() if path in there}

    rewrite(project, edit)


def _as_json(access: Access) -> JsonObject:
    return {name: value for name, value in access._asdict().items() if value is not None}


def _problem_of(value: Any) -> str:
    """Return why a value is not a log entry as defined by the contract, or an empty string if it is one."""
    if type(value) is not dict or not {*Access._fields[:4]} <= value.keys() <= {*Access._fields}:
        return f"an entry has the fields {', '.join(Access._fields[:4])}"
    for name, field in value.items():
        if name == "access_count":
            if type(field) is not int or field < 0:
                return f"access_count cannot be {field!r}"
        elif type(field) is not str or not field:
            return f"{name} must be text that is not empty"
        elif not note_name.is_utf8(field):
            return f"{name} is {field!r}, which holds bytes that are not UTF-8"
    if not re.fullmatch(r"[0-9]+\.[0-9]+", value.get("schema_version", "0.10")):
        return f"schema_version cannot be {value['schema_version']!r}"
    with suppress(ValueError):  # an invalid date
        if project_paths.is_time(at := value["last_accessed_ts"]) and moment(at):
            return ""
    return f"last_accessed_ts is {value['last_accessed_ts']!r}, not a time such as 2026-01-31T09:30:00.000Z"
