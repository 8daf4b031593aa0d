"""What the state files may hold: closed shapes, checked by hand because every tool reads one. Values.

A check returns what is wrong as the end of a sentence (`.issues[2].status is 'done', …`), or nothing. The
shapes are those of 0.10.0, with what older and other harnesses are known to write taken in: cycles without
`schema_version`, archived plans with one, an empty goal, an empty branch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], str]

ISSUE_STATUSES = ("pending", "decided")
TASK_STATUSES = ("pending", "in_progress", "completed")
REUSE_POLICIES = ("fresh", "resume_if_same_artifact", "resume")

_TIME = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_VERSION = re.compile(r"\d+\.\d+", re.ASCII)
_LARGEST = 1e300
"""JSON can write numbers that Python reads as infinite; no id is one."""
A_NUMBER = "a finite number below 1e300"


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and -_LARGEST < value < _LARGEST


def is_text(value: Any) -> bool:
    return type(value) is str


def is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(fits, value))


def is_map_of_texts(value: Any) -> bool:
    return type(value) is dict and all(map(is_text, value.values()))


def _text(value: Any) -> str:
    return "" if type(value) is str else " is not a text"


def _name(value: Any) -> str:
    return "" if type(value) is str and value else " is not a text of at least one character"


def _number(value: Any) -> str:
    return "" if is_number(value) else " is not a number"


def _id(value: Any) -> str:
    return "" if is_number(value) and value >= 1 else " is not a number of 1 or more"


def _count(value: Any) -> str:
    return "" if type(value) is int and value >= 0 else " is not a whole number of 0 or more"


def _time(value: Any) -> str:
    fits = type(value) is str and _TIME.fullmatch(value)
    return "" if fits else f" is {value!r}, not a time such as 2026-01-31T09:30:00.000Z"


def _version(value: Any) -> str:
    return "" if type(value) is str and _VERSION.fullmatch(value) else f" is {value!r}, not a version"


def _one_of(words: tuple[str, ...]) -> Check:
    def check(value: Any) -> str:
        return "" if value in words else f" is {value!r}, not one of {', '.join(words)}"

    return check


def _list_of(entry: Check) -> Check:
    def check(value: Any) -> str:
        if type(value) is not list:
            return " is not a list"
        for number, item in enumerate(value):
            if problem := entry(item):
                return f"[{number}]{problem}"
        return ""

    return check


def _map_of(entry: Check) -> Check:
    def check(value: Any) -> str:
        if type(value) is not dict:
            return " is not an object"
        return next((f".{key}{problem}" for key, item in value.items() if (problem := entry(item))), "")

    return check


def _closed(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    fields = {**required, **optional}
    # Most of what is checked is a text, and a call for each of them would take half of the time.
    texts = {name for name, field in fields.items() if field is _text}

    def check(value: Any) -> str:
        if type(value) is not dict:
            return " is not an object"
        for key, item in value.items():
            if key in texts and type(item) is str:
                continue
            field = fields.get(key)
            if field is None:
                return f" has a field {key!r}, which is not known"
            if problem := field(item):
                return f".{key}{problem}"
        for key in required:
            if key not in value:
                return f" lacks {key}"
        return ""

    return check


def _or_null(present: Check) -> Check:
    def check(value: Any) -> str:
        return "" if value is None else present(value)

    return check


_TEXTS = _list_of(_text)
_MAP = _map_of(_text)

ISSUE = _closed(
    {"id": _id, "title": _name, "status": _one_of(ISSUE_STATUSES)},
    {"decision": _text, "how_agents": _TEXTS, "how_summary": _MAP, "how_agent_ids": _MAP},
)
PLAN = _closed(
    {"id": _id, "topic": _name, "issues": _list_of(ISSUE), "created_at": _time},
    {"research_summary": _text, "schema_version": _version},
)

TASK = _closed(
    {
        "id": _id,
        "title": _name,
        "context": _name,
        "status": _one_of(TASK_STATUSES),
        "deps": _list_of(_number),
    },
    {
        "approach": _text,
        "acceptance": _text,
        "risk": _text,
        "plan_issue": _number,
        "owner": _text,
        "owner_agent_id": _text,
        "owner_reuse_policy": _one_of(REUSE_POLICIES),
        "created_at": _time,
    },
)
TASKS_HEAD = _closed({"goal": _text, "decisions": _TEXTS}, {"schema_version": _version})
"""The tasks file without its tasks."""

CYCLE = _closed(
    {"completed_at": _time, "branch": _text, "plan": _or_null(PLAN), "tasks": _list_of(TASK)},
    {"schema_version": _version},
)
HISTORY_HEAD = _closed({}, {"schema_version": _version})
"""The history without its cycles."""

ACCESS = _closed(
    {"path": _name, "last_accessed_ts": _time, "access_count": _count, "last_agent": _name},
    {"schema_version": _version},
)
"""One line of the log of who read which memory note."""


def is_harness_id(value: Any) -> bool:
    """Lower-case letters, digits and hyphens, the first one a letter."""
    if type(value) is not str or not value.isascii() or not value[:1].isalpha():
        return False
    return value == value.lower() and value.replace("-", "").isalnum()


def _harness_id(value: Any) -> str:
    return "" if is_harness_id(value) else f" is {value!r}, not lower-case letters, digits and hyphens"


TRACKED = _list_of(
    _closed(
        {"harness_id": _harness_id, "started_at": _time},
        {
            "agent_name": _harness_id,
            "agent_id": _name,
            "last_resumed_at": _time,
            "resume_count": _count,
            "status": _one_of(("running", "completed")),
            "stopped_at": _time,
            "last_message": _text,
            "files_touched": _TEXTS,
        },
    )
)
"""The agents of a session."""
