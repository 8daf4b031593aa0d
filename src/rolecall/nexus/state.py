"""Plan, tasks and cycles as typed values, and functions that read and write their files.

The types are those of the contract at 0.10.0, and they are closed: an unknown field makes a file unusable. Known
deviations of older and other harnesses are accepted: cycles without `schema_version`, archived plans with one, an empty
goal, an empty branch. Importing msgspec takes longer than most hooks are allowed to run, so only code that reads or
writes project state imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, convert, to_builtins
from msgspec.structs import replace

from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.tool_error import WrongCall

__all__ = ["UNSET", "convert", "replace", "to_builtins"]

T = TypeVar("T")

Number = int | float
Id = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1, le=1e300)]
Name = Annotated[str, Meta(min_length=1)]
Version = Annotated[str, Meta(pattern=r"\A[0-9]+\.[0-9]+\Z")]


class Issue(Struct, forbid_unknown_fields=True):
    id: Id
    title: Name
    status: Literal["pending", "decided"]
    decision: str | UnsetType = UNSET
    how_agents: list[str] | UnsetType = UNSET
    how_summary: dict[str, str] | UnsetType = UNSET
    how_agent_ids: dict[str, str] | UnsetType = UNSET


class Plan(Struct, forbid_unknown_fields=True, kw_only=True):
    id: Id
    topic: Name
    issues: list[Issue]
    research_summary: str | UnsetType = UNSET
    created_at: str
    schema_version: Version | UnsetType = UNSET

    @property
    def decided(self) -> list[Issue]:
        return [issue for issue in self.issues if issue.status == "decided"]


class Task(Struct, forbid_unknown_fields=True, kw_only=True):
    id: Id
    title: Name
    context: Name
    approach: str | UnsetType = UNSET
    acceptance: str | UnsetType = UNSET
    risk: str | UnsetType = UNSET
    status: Literal["pending", "in_progress", "completed"]
    deps: list[Number]
    plan_issue: Number | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    owner_agent_id: str | UnsetType = UNSET
    owner_reuse_policy: Literal["fresh", "resume_if_same_artifact", "resume"] | UnsetType = UNSET
    created_at: str | UnsetType = UNSET


class TaskFile(Struct, forbid_unknown_fields=True, kw_only=True):
    goal: str
    decisions: list[str]
    schema_version: Version | UnsetType = UNSET
    tasks: list[Task]


class Cycle(Struct, forbid_unknown_fields=True, kw_only=True):
    schema_version: Version | UnsetType = UNSET
    completed_at: str
    branch: str
    plan: Plan | None
    tasks: list[Task]


CYCLE = msgspec.json.Decoder(Cycle)
_PLAN = msgspec.json.Decoder(Plan)
_TASK_FILE = msgspec.json.Decoder(TaskFile)


def _decode(decoder: msgspec.json.Decoder[T], name: str, data: bytes) -> T:
    refuse_repeats(data, name)
    return decoder.decode(data)


def refuse_repeats(data: bytes, name: str) -> None:
    """Raise an error for a file that has its list twice, perhaps after a merge: the next change would lose one list."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if [key for key, _ in pairs].count(name) > 1:
            raise ValueError(f"the field {name} stands twice")

    if data.count(f'"{name}"'.encode()) > 1:
        json.loads(data, object_pairs_hook=check)


_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Encode JSON as JavaScript does: without spaces, and with characters unescaped."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as exc:
        raise _half_a_pair() from exc


def encode_lines(items: list[Any]) -> bytes:
    """Return the entries of a JSON list, one per line, without the list's brackets."""
    try:
        # Line breaks within texts are escaped, so every line break ends an entry.
        return _encoder.encode_lines(items)[:-1].replace(b"\n", b",\n")
    except UnicodeEncodeError as exc:
        raise _half_a_pair() from exc


def _half_a_pair() -> WrongCall:
    return WrongCall("a text holds half of a surrogate pair, which is not a character")


# -- files --


class _Known(NamedTuple):
    stamp: state_file.Stamp
    value: Any
    lines: Sequence[bytes] = ()
    """The entries of the value's list as JSON, in parts; empty until they are encoded."""


_known: dict[str, _Known] = {}
"""The values of the large files that this process has read or written, by path. These values are never changed."""
_MOST_KNOWN = 4
_MOST_PARTS = 100


def load(path: str, parse: Callable[[bytes], T]) -> T | None:
    """Load a file's value, or None if it does not exist. A large file that has not changed is not read again."""
    known = _known.get(path)
    found = state_file.read_unless(path, known.stamp if known else None)
    if found is None:
        return None
    if found.data is None and known:
        known_value: T = known.value
        return known_value
    value = _parse(path, found.data or b"", parse)
    remember(path, found.stamp, value)
    return value


def _parse(path: str, data: bytes, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(data)
    except (ValueError, RecursionError) as exc:
        raise state_file.DamagedFile(path, data, str(exc)) from exc


def remember(path: str, stamp: state_file.Stamp | None, value: Any, lines: Sequence[bytes] = ()) -> None:
    """Keep the value of a large file for the next call."""
    global _known
    others = [each for each in _known.items() if each[0] != path][1 - _MOST_KNOWN :]
    # Replace the dictionary instead of changing it, because other threads could be reading it.
    _known = dict([*others, (path, _Known(stamp, value, lines))] if stamp else others)


def load_plan(project: Folder) -> Plan | None:
    """Return the active plan as a new value, which the caller is allowed to change."""
    path = project_paths.state(project, project_paths.PLAN)
    data = state_file.read(path)
    return None if data is None else _parse(path, data, partial(_decode, _PLAN, "issues"))


def save_plan(project: Folder, plan: Plan) -> None:
    state_file.replace(project, project_paths.state(project, project_paths.PLAN), encode(plan) + b"\n")


def load_tasks(project: Folder) -> TaskFile | None:
    """Return the tasks of the running cycle. The caller must not change the value."""
    path = project_paths.state(project, project_paths.TASKS)
    return load(path, partial(_decode, _TASK_FILE, "tasks"))


def save_tasks(project: Folder, file: TaskFile, *, longer_than: TaskFile | None = None) -> None:
    """Write the tasks. If they are the tasks of `longer_than` followed by more, only the added tasks are encoded."""
    path = project_paths.state(project, project_paths.TASKS)
    known = _known.get(path)
    if longer_than and known and known.value is longer_than and known.lines:
        lines = [*known.lines, b",\n" + encode_lines(file.tasks[len(longer_than.tasks) :])]
    else:
        lines = [encode_lines(file.tasks)]
    if len(lines) > _MOST_PARTS:
        lines = [b"".join(lines)]
    opening = encode(replace(file, tasks=[])).removesuffix(b"]}")
    stamp = state_file.replace(project, path, opening, b"\n", *lines, b"\n]}\n")
    remember(path, stamp, file, lines)


def encode_tasks(project: Folder, file: TaskFile) -> Sequence[bytes]:
    """Return the loaded tasks as entries of a JSON list, in parts. A large file is encoded only once."""
    path = project_paths.state(project, project_paths.TASKS)
    known = _known.get(path)
    if known is None or known.value is not file:
        return [encode_lines(file.tasks)]
    if not known.lines:
        known = known._replace(lines=[encode_lines(file.tasks)])
        remember(path, *known)
    return known.lines


def digest_of(project: Folder, name: str) -> str:
    """Return the digest of a state file's bytes, or an empty string if the file does not exist."""
    data = state_file.read(project_paths.state(project, name))
    return "" if data is None else state_file.digest(data)
