"""Every field that replies and state files have, as closed schemas: what a conformance run holds each of them to.

A fixture names the fields it looks at, so it cannot notice one that nobody documented. The tools do not read
this: they check by `shape`, and two descriptions that agree are worth more than one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rolecall.nexus import project_paths
from rolecall.store.schema import Type

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_NUMBER: Schema = {"type": "number"}
_ID: Schema = {"type": "number", "minimum": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TRUE: Schema = {"const": True}
_FLAG: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_VERSION: Schema = {"type": "string", "pattern": r"^\d+\.\d+$"}
_MAP: Schema = {"type": "object", "additionalProperties": _TEXT}


def _list(entry: Schema) -> Schema:
    return {"type": "array", "items": entry}


def _closed(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


_ISSUE_IN_SHORT = {"id": _ID, "title": _NAME, "status": {"enum": ["pending", "decided"]}}
_ISSUE = _closed(
    _ISSUE_IN_SHORT,
    {"decision": _TEXT, "how_agents": _list(_TEXT), "how_summary": _MAP, "how_agent_ids": _MAP},
)
_PLAN = {"id": _ID, "topic": _NAME, "issues": _list(_ISSUE), "created_at": _TIME}
_TASK = _closed(
    {
        "id": _ID,
        "title": _NAME,
        "context": _NAME,
        "status": {"enum": ["pending", "in_progress", "completed"]},
        "deps": _list(_NUMBER),
    },
    {
        "approach": _TEXT,
        "acceptance": _TEXT,
        "risk": _TEXT,
        "plan_issue": _NUMBER,
        "owner": _TEXT,
        "owner_agent_id": _TEXT,
        "owner_reuse_policy": {"enum": ["fresh", "resume_if_same_artifact", "resume"]},
        "created_at": _TIME,
    },
)
FILES: Mapping[str, Schema] = {
    f".nexus/state/{project_paths.PLAN}": _closed(
        _PLAN, {"research_summary": _TEXT, "schema_version": _VERSION}
    ),
    f".nexus/state/{project_paths.TASKS}": _closed(
        {"goal": _TEXT, "decisions": _list(_TEXT), "tasks": _list(_TASK)}, {"schema_version": _VERSION}
    ),
    # Cycles that older harnesses wrote lack a field or two, so only the one that was added is looked at.
    f".nexus/{project_paths.HISTORY}": _closed(
        {"cycles": {"type": "array", "minItems": 1}}, {"schema_version": _VERSION}
    ),
}
NEW_CYCLE = _closed(
    {
        "schema_version": _VERSION,
        "completed_at": _TIME,
        "branch": _NAME,
        "plan": {"anyOf": [{"type": "null"}, _closed(_PLAN, {"research_summary": _TEXT})]},
        "tasks": _list(_TASK),
    }
)

REPLIES: Mapping[str, Schema] = {
    "plan_start": _closed(
        {"created": _TRUE, "plan_id": _ID, "topic": _NAME, "issueCount": _COUNT, "previousArchived": _FLAG}
    ),
    "plan_status": {
        "if": {"properties": {"active": _TRUE}},
        "then": _closed(
            {
                "active": _TRUE,
                "plan_id": _ID,
                "topic": _NAME,
                "issues": _list(_ISSUE),
                "summary": _closed({"total": _COUNT, "pending": _COUNT, "decided": _COUNT}),
            },
            {"research_summary": _TEXT},
        ),
        "else": _closed({"active": _FLAG}),
    },
    "plan_update": {
        "oneOf": [
            _closed({"added": _TRUE, "issue": _closed(_ISSUE_IN_SHORT)}),
            _closed({"removed": _TRUE, "issue": _closed({"id": _ID})}),
            _closed({"edited": _TRUE, "issue": _closed({"id": _ID, "title": _NAME})}),
            _closed({"reopened": _TRUE, "issue": _closed(_ISSUE_IN_SHORT)}),
        ]
    },
    "plan_decide": {
        "if": {"properties": {"allComplete": _TRUE}},
        "then": _closed({"decided": _TRUE, "issue": _NAME, "allComplete": _TRUE, "message": _TEXT}),
        "else": _closed(
            {
                "decided": _TRUE,
                "issue": _NAME,
                "allComplete": _FLAG,
                "remaining": _list(_closed(_ISSUE_IN_SHORT)),
            }
        ),
    },
    "task_add": _closed({"task": _TASK}),
    "task_list": {
        "if": {"required": ["exists"]},
        "then": _closed({"exists": {"const": False}}),
        "else": _closed(
            {
                "goal": _TEXT,
                "tasks": _list(_TASK),
                "summary": _closed(
                    {
                        "total": _COUNT,
                        "completed": _COUNT,
                        "pending": _COUNT,
                        "blocked": _COUNT,
                        "ready": _list(_ID),
                    }
                ),
            }
        ),
    },
    "task_update": _closed({"task": _TASK}),
    "task_close": _closed(
        {
            "closed": _TRUE,
            "cycle": _TIME,
            "branch": _NAME,
            "archived": _closed({"plan": _FLAG, "decisions": _COUNT, "tasks": _COUNT}),
            "deleted": _list(_NAME),
            "total_cycles": {"type": "integer", "minimum": 1},
            "memoryHint": _closed(
                {"taskCount": _COUNT, "decisionCount": _COUNT, "cycleTopics": _list(_NAME)}
            ),
        }
    ),
    "history_search": _closed(
        {
            "total": _COUNT,
            "showing": _COUNT,
            "cycles": _list(
                _closed(
                    {"completed_at": _TIME, "branch": _TEXT},
                    {
                        "topic": _NAME,
                        "decisions": _list(_closed({"title": _NAME, "decision": _TEXT})),
                        "task_count": _COUNT,
                    },
                )
            ),
        }
    ),
    "context": {
        "if": {"properties": {"activeMode": {"type": "null"}}},
        "then": _closed({"branch": _NAME, "activeMode": {"type": "null"}, "decisions": _list(_TEXT)}),
        "else": _closed(
            {"branch": _NAME, "activeMode": {"const": "team"}, "decisions": _list(_TEXT)},
            {
                "goal": _TEXT,
                "tasksSummary": _closed({"total": _COUNT, "completed": _COUNT, "pending": _COUNT}),
            },
        ),
    },
    "artifact_write": _closed({"success": _TRUE, "path": {"type": "string", "pattern": "^/"}}),
}
ERROR = _closed({"error": _NAME})
READERS = ("plan_status", "task_list", "history_search", "context")
"""Tools that leave everything as it is."""


def reply_misfits(tool: str, reply: Any) -> list[str]:
    """What a reply has that it should not, or lacks, each with its place."""
    is_error = isinstance(reply, dict) and "error" in reply
    return (_error_type() if is_error else _reply_type(tool)).misfits(reply)


def file_misfits(path: str, content: Any) -> list[str]:
    """The same of a state file that a tool has just written."""
    misfits = _file_type(path).misfits(content)
    if misfits or path != f".nexus/{project_paths.HISTORY}":
        return misfits
    return [f"/cycles/-1{misfit}" for misfit in _new_cycle_type().misfits(content["cycles"][-1])]


@cache
def _reply_type(tool: str) -> Type:
    return Type(REPLIES[tool])


@cache
def _file_type(path: str) -> Type:
    return Type(FILES[path])


@cache
def _new_cycle_type() -> Type:
    return Type(NEW_CYCLE)


@cache
def _error_type() -> Type:
    return Type(ERROR)
