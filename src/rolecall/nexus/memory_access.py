"""Who read which memory note when, and how often: `state/rolecall/memory-access.jsonl`, a line for each note.

Counted are reads of a note's content: by `memory read`, and by agents whose reads a hook reports. Written as
a whole under the project's lock, so that no count is lost between two readers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from rolecall.errors import RolecallError, UsageError
from rolecall.nexus import note, note_name, project_paths, shape, state_file
from rolecall.nexus.project_paths import Folder

FILE = "memory-access.jsonl"
LEAD = "lead"
"""Who reads when nobody else is named."""


class Access(NamedTuple):
    path: str
    last_accessed_ts: str
    access_count: int
    last_agent: str
    schema_version: str | None = None

    def plus(self, other: Access) -> Access:
        """Both taken together: the counts added, the last reader of the two."""
        last = max(self, other, key=lambda access: moment(access.last_accessed_ts))
        return last._replace(access_count=self.access_count + other.access_count)


Log: TypeAlias = dict[str, Access]


def moment(at: str) -> datetime:
    # A leap second is a time for RFC 3339 and none for Python.
    return datetime.fromisoformat(at.upper().replace(":60", ":59"))


def key(project: Folder, file: str) -> str:
    """The path that a note is known by in the log, however the project was reached."""
    return os.path.join(os.path.realpath(note.folder(project, "memory")), file)


def read(project: Folder) -> Log:
    return merged(_lines(project_paths.of_harness(project, FILE)))


def merged(accesses: Iterable[Access]) -> Log:
    """One entry for each path, of one log or of several."""
    log: Log = {}
    for access in accesses:
        log[access.path] = log[access.path].plus(access) if access.path in log else access
    return log


def observe(project: Folder, path: str, agent: str, at: str) -> bool:
    """Count one read of `path`. False when it is no memory note of this project, or git would see the log of a
    project that has only been read so far; then nothing is written."""
    file = _note_at(project, path)
    if file is None or not os.path.lexists(os.path.join(project_paths.nexus(project), ".gitignore")):
        return False
    seen = Access(key(project, file), at, 1, agent)
    if problem := _problem(_as_json(seen)):
        raise UsageError(f"the read cannot be recorded: it{problem}", hint="Say who read it, and when.")
    change(project, lambda log: merged([*log.values(), seen]))
    return True


def _note_at(project: Folder, path: str) -> str | None:
    """The file name of the memory note that a path leads to."""
    folder, file = os.path.split(os.path.join(os.path.abspath(project), path))
    ours = os.path.realpath(note.folder(project, "memory"))
    try:
        is_note = os.path.realpath(folder) == ours and note.find(project, "memory", file).name == file
    except (RolecallError, ValueError):  # gone again, a link, no path at all: nothing of ours was read
        return None
    return file if is_note else None


def change(project: Folder, edit: Callable[[Log], Log]) -> None:
    with state_file.locked(project):
        rewrite(project, edit)


def rewrite(project: Folder, edit: Callable[[Log], Log]) -> None:
    """The same for those who hold the lock already."""
    before = read(project)
    after = edit(dict(before))
    if after != before:
        lines = "".join(json.dumps(_as_json(access), ensure_ascii=False) + "\n" for access in after.values())
        state_file.make_folder(os.path.dirname(project_paths.of_harness(project, FILE)))
        # A count that a power failure takes back is worth no wait for the disk.
        state_file.replace(project, project_paths.of_harness(project, FILE), lines.encode(), must_last=False)


def follow(project: Folder, gone: Collection[str], into: str | None) -> None:
    """The reads of notes that are gone are reads of the note they went into. What else is not there has none: a
    new note of that name begins at nothing. For those who hold the lock."""
    there = {key(project, each.name) for each in note.listed(project, "memory")}
    keys = {key(project, name) for name in gone}

    def edit(log: Log) -> Log:
        new = key(project, into) if into else ""
        moved = (each._replace(path=new) if new and each.path in keys else each for each in log.values())
        return {path: access for path, access in merged(moved).items() if path in there}

    rewrite(project, edit)


def _as_json(access: Access) -> Mapping[str, Any]:
    return {name: value for name, value in access._asdict().items() if value is not None}


def _lines(path: str) -> Iterable[Access]:
    data = state_file.read(path) or b""
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise state_file.DamagedFile(path, data, f"line {number} is not JSON: {exc}") from exc
        if problem := _problem(value):
            raise state_file.DamagedFile(path, data, f"line {number}{problem}")
        yield Access(**value)


def _problem(value: Any) -> str:
    problem = shape.ACCESS(value)
    if problem:
        return problem
    for name, field in value.items():
        if isinstance(field, str) and not note_name.is_utf8(field):
            return f".{name} is {field!r}, which holds bytes that are not UTF-8"
    try:
        moment(value["last_accessed_ts"])
    except ValueError:
        return f".last_accessed_ts is {value['last_accessed_ts']!r}, a day that does not exist"
    return ""
