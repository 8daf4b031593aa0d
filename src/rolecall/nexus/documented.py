"""Closed types for every field of replies and state files, against which a conformance run checks them.

A fixture names the fields it checks, so it cannot notice an undocumented field. The tools do not use these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rolecall.nexus import project_paths, state
from rolecall.nexus.state import Id, Issue, Name, Task, Version

Form: TypeAlias = Any
"""A type that msgspec supports."""

_COUNT = Annotated[int, Meta(ge=0)]
_MOMENT = Annotated[datetime, Meta(tz=True)]
_OPTIONAL_TEXT = str | UnsetType


def _object(**fields: Form) -> Form:
    """Return the type of an object with these fields and no others. A field whose type allows UNSET is optional."""
    optional = {name for name, form in fields.items() if UnsetType in get_args(form)}
    given = [(name, form, UNSET) if name in optional else (name, form) for name, form in fields.items()]
    return msgspec.defstruct("Closed", given, forbid_unknown_fields=True, kw_only=True)


def _list(form: Form) -> Form:
    return GenericAlias(list, (form,))


_BRIEF_ISSUE = _object(id=Id, title=Name, status=Literal["pending", "decided"])
_DECIDED = {"decided": bool, "issue": Name, "allComplete": bool}
_CONTEXT = {"branch": Name, "decisions": list[str]}
_CYCLE = _object(
    completed_at=_MOMENT,
    branch=str,
    topic=Name | UnsetType,
    decisions=_list(_object(title=Name, decision=str)) | UnsetType,
    task_count=_COUNT | UnsetType,
)

REPLIES: Mapping[str, Sequence[Form]] = {
    "plan_start": [_object(created=bool, plan_id=Id, topic=Name, issueCount=_COUNT, previousArchived=bool)],
    "plan_status": [
        _object(
            active=bool,
            plan_id=Id,
            topic=Name,
            issues=list[Issue],
            research_summary=_OPTIONAL_TEXT,
            summary=_object(total=_COUNT, pending=_COUNT, decided=_COUNT),
        ),
        _object(active=bool),
    ],
    "plan_update": [
        _object(added=bool, issue=_BRIEF_ISSUE),
        _object(removed=bool, issue=_object(id=Id)),
        _object(edited=bool, issue=_object(id=Id, title=Name)),
        _object(reopened=bool, issue=_BRIEF_ISSUE),
    ],
    "plan_decide": [_object(**_DECIDED, message=str), _object(**_DECIDED, remaining=_list(_BRIEF_ISSUE))],
    "task_add": [_object(task=Task)],
    "task_list": [
        _object(
            goal=str,
            tasks=list[Task],
            summary=_object(total=_COUNT, completed=_COUNT, pending=_COUNT, blocked=_COUNT, ready=_list(Id)),
        ),
        _object(exists=bool),
    ],
    "task_update": [_object(task=Task)],
    "task_close": [
        _object(
            closed=bool,
            cycle=_MOMENT,
            branch=Name,
            archived=_object(plan=bool, decisions=_COUNT, tasks=_COUNT),
            deleted=_list(Name),
            total_cycles=Annotated[int, Meta(ge=1)],
            memoryHint=_object(taskCount=_COUNT, decisionCount=_COUNT, cycleTopics=_list(Name)),
        )
    ],
    "history_search": [_object(total=_COUNT, showing=_COUNT, cycles=_list(_CYCLE))],
    "context": [
        _object(**_CONTEXT, activeMode=None),
        _object(
            **_CONTEXT,
            activeMode=Literal["team"],
            goal=_OPTIONAL_TEXT,
            tasksSummary=_object(total=_COUNT, completed=_COUNT, pending=_COUNT) | UnsetType,
        ),
    ],
    "artifact_write": [_object(success=bool, path=Annotated[str, Meta(pattern="^/")])],
}
"""The possible forms of the reply of each tool."""
ERROR = _object(error=Name)
FILES: Mapping[str, Form] = {
    f".nexus/state/{project_paths.PLAN}": state.Plan,
    f".nexus/state/{project_paths.TASKS}": state.TaskFile,
    # Cycles written by older harnesses lack some fields, so only the newly added cycle is checked.
    f".nexus/{project_paths.HISTORY}": _object(
        cycles=Annotated[list[Any], Meta(min_length=1)], schema_version=Version | UnsetType
    ),
}
NEW_CYCLE = _object(
    schema_version=Version,
    completed_at=_MOMENT,
    branch=Name,
    plan=_object(id=Id, topic=Name, issues=list[Issue], created_at=_MOMENT, research_summary=_OPTIONAL_TEXT)
    | None,
    tasks=list[Task],
)
READERS = ("plan_status", "task_list", "history_search", "context")
"""The tools that change nothing."""


def reply_misfit(tool: str, reply: Any) -> str:
    """Return why a reply matches none of its tool's forms, judged by the first form; empty if it matches one."""
    is_error = isinstance(reply, dict) and "error" in reply
    problems = [_problem_of(form, reply) for form in ([ERROR] if is_error else REPLIES[tool])]
    return "" if "" in problems else problems[0]


def file_misfit(path: str, content: Any) -> str:
    """Return why a state file that a tool has just written does not match its form; empty if it matches."""
    problem = _problem_of(FILES[path], content)
    if not problem and path.endswith(project_paths.HISTORY):
        problem = _problem_of(NEW_CYCLE, content["cycles"][-1])
    return problem


def _problem_of(form: Form, value: Any) -> str:
    try:
        msgspec.convert(value, form)
    except ValueError as exc:
        return str(exc)
    return ""
