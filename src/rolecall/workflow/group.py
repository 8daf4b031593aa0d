"""Groups: the items of the members, the role that each member plays, and the output of the step that joins their
results. The code is pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject
from rolecall.workflow import condition, template
from rolecall.workflow.model import Group, StoredRole, StoredWorkflow, member_roles, record_schema

STATUSES = ("done", "partly", "failed")
"""The statuses of a group: enough members are done; some members are done, but not enough; no member is done."""
MEMBER_STATUSES = ("done", "failed", "stopped", "set_aside")
"""The statuses of a member that has ended. A member that is set aside was done, but its files could not be merged."""

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}

_LIST = {"type": "array", "items": _TEXT}
_CHANGE = {"type": "object", "properties": dict.fromkeys(("commit", "title", "thread"), _TEXT)}
_CONFLICTING_FILE = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("path", "kind", "message"), _TEXT),
        "hunks": _LIST,
        "changed_by": {"type": "array", "items": _CHANGE},
    },
}
_CONFLICT = {
    "type": "object",
    "properties": {
        "files": {"type": "array", "items": _CONFLICTING_FILE},
        "check": {"type": "object", "properties": {"command": _LIST, "output": _TEXT}},
        "left": _TEXT,
    },
}
"""The schema of the conflict that caused a member to be set aside, as `files/merge.py` reports it."""


def output_schema(workflow: StoredWorkflow, role: str) -> JsonObject:
    """Return the schema of a step's output: the role's schema or, for a group, the schema of the members' joined
    results."""
    group = workflow.roles[role].group
    if group is None:
        return workflow.roles[role].schema
    names = [name for name in dict.fromkeys(member_roles(workflow, role)) if name in workflow.roles]
    outputs = [dict(workflow.roles[name].schema) for name in names]
    member = {
        "number": {"type": "integer", "minimum": 1},
        "status": {"type": "string", "enum": list(MEMBER_STATUSES)},
        "output": {"anyOf": [*outputs, {"type": "null"}]},
        "id": _TEXT,
        "reason": _TEXT,
        "branch": _TEXT,
        "conflict": _CONFLICT,
        **({"item": {}} if group.each is not None else {}),
        **({"role": {"type": "string", "enum": list(group.roles)}} if group.roles else {}),
    }
    joined = {
        "status": {"type": "string", "enum": list(STATUSES)},
        "members": {"type": "array", "items": record_schema(member, ["number", "status", "output", "id"])},
        **dict.fromkeys(("count", *MEMBER_STATUSES), _COUNT),
    }
    return {"title": f"{workflow.name}.{role}.group", **record_schema(joined, joined)}


def status_of(group: Group, *, count: int, done: int, set_aside: int = 0) -> str:
    """Return the status of a group whose members have all ended. `done` of `count` members have a result that was kept.
    A group that has set members aside is never done, so that an edge can send their work on."""
    if set_aside:
        return "partly"
    least = {"all": count, "any": min(1, count), "first": min(1, count)}
    enough = group.join if isinstance(group.join, int) else least[group.join]
    if done >= enough or not count:
        return "done"
    return "partly" if done else "failed"


def items_of(group: Group, *, start: JsonObject, steps: Sequence[JsonObject], steps_count: int) -> list[Any]:
    """Return one item for each member, in order: the items of the list, the roles of a team, or None for each of
    `times` members.

    The arguments are those of `condition.evaluate`. Raise `UsageError` if `each` does not give a list.
    """
    if group.each is not None:
        return condition.select(group.each, start=start, steps=steps, steps_count=steps_count)
    return list(group.roles) if group.roles else [None] * (group.times or 0)


def role_of(
    workflow: StoredWorkflow, role: str, *, number: int, count: int, item: Any
) -> tuple[str, StoredRole]:
    """Return the name and the definition of the role that a member plays. The texts of the role contain the member's
    item, and its agent is chosen from the list of agents.

    `number` counts from 1. Raise `UsageError` if a text uses a field that the item does not have.
    """
    group = workflow.roles[role].group
    if group is None or group.roles:
        name = role if group is None else group.roles[number - 1]
        return name, workflow.roles[name]
    found = workflow.roles[role]
    view = {"number": number, "count": count, **({"item": item} if group.each is not None else {})}
    texts = {}
    for key, text in (("prompt", found.prompt), ("procedure", found.procedure)):
        try:
            texts[key] = template.render(text, view)
        except UsageError as exc:
            message = f"the {key} of {role!r} cannot be written for member {number}: {exc.message}"
            raise UsageError(message, hint=exc.hint) from None
    agent = group.agents[(number - 1) % len(group.agents)] if group.agents else found.agent
    return role, found._replace(prompt=texts["prompt"], procedure=texts["procedure"], agent=agent, group=None)
