"""Test that the types of the replies name exactly the keys that the replies have."""

from __future__ import annotations

import inspect
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pytest
from pytest import param

from rolecall.api import Project
from rolecall.nexus import dispatch, documented, reply, state, tracker

TOOL_REPLIES: dict[str, Any] = {
    "plan_start": reply.StartedPlan,
    "plan_status": reply.PlanReply,
    "plan_update": reply.IssueChange,
    "plan_decide": reply.RecordedDecision,
    "task_add": reply.TaskReply,
    "task_list": reply.TaskListReply,
    "task_update": reply.TaskReply,
    "task_close": reply.ClosedCycle,
    "history_search": reply.FoundCycles,
    "context": reply.ProjectContext,
    "artifact_write": reply.WrittenArtifact,
}

ALWAYS_GIVEN = {"history_search.cycles": {"task_count"}}
"""The keys that our tools always give, although the contract lets them be absent."""


def is_optional(form: Any) -> bool:
    return get_origin(form) is NotRequired


def keys_of(form: Any) -> dict[str, Any]:
    """Return each key of a type with its form, in order. The form of a key that can be absent is `NotRequired`."""
    if is_typeddict(form):
        return get_type_hints(form, include_extras=True)
    hints = get_type_hints(form, include_extras=True)
    fields = msgspec.structs.fields(form)
    return {
        field.name: hints[field.name] if field.required else NotRequired[hints[field.name]]
        for field in fields
    }


def objects_in(form: Any) -> list[Any]:
    """Return the object types in a form: the form itself, or those in its list or union."""
    if is_typeddict(form) or (isinstance(form, type) and issubclass(form, msgspec.Struct)):
        return [form]
    return [found for part in get_args(form) for found in objects_in(part)]


def check_same_keys(ours: Any, documented: list[Any], place: str) -> None:
    """Check that the documented forms of an object together have the keys of our type, and that our type requires the
    keys that all these forms require."""
    forms = [keys_of(form) for form in documented]
    every = {key for form in forms for key in form}
    always = {key for key in every if all(key in form and not is_optional(form[key]) for form in forms)}
    mine = keys_of(ours)
    assert set(mine) == every, place
    always |= ALWAYS_GIVEN.get(place, set())
    assert {key for key, form in mine.items() if not is_optional(form)} == always, place
    for key, form in mine.items():
        theirs = [found for each in forms if key in each for found in objects_in(each[key])]
        inner = objects_in(form)
        assert len(inner) == bool(theirs), f"{place}.{key}"
        if inner:
            check_same_keys(inner[0], theirs, f"{place}.{key}")


def test_every_tool_has_a_type_of_reply() -> None:
    assert TOOL_REPLIES.keys() == dispatch.TOOLS.keys()
    for name, tool in dispatch.TOOLS.items():
        assert inspect.signature(tool.run).return_annotation == TOOL_REPLIES[name].__name__


@pytest.mark.parametrize("tool", TOOL_REPLIES)
def test_the_type_of_a_reply_has_the_keys_of_the_contract(tool: str) -> None:
    check_same_keys(TOOL_REPLIES[tool], list(documented.REPLIES[tool]), tool)


@pytest.mark.parametrize(
    ("ours", "stored"), [param(reply.ProjectTask, state.Task), param(reply.PlanIssue, state.Issue)]
)
def test_a_task_and_an_issue_have_the_keys_in_the_order_of_the_file(ours: Any, stored: Any) -> None:
    assert list(keys_of(ours)) == list(keys_of(stored))


def test_a_tracked_agent_has_the_fields_that_its_file_may_have() -> None:
    assert keys_of(reply.TrackedAgent).keys() == tracker._FIELDS.keys()


def test_every_verb_of_a_project_has_a_reply_with_known_keys() -> None:
    for name, verb in inspect.getmembers(Project, inspect.isfunction):
        if not name.startswith("_"):
            returned = str(inspect.signature(verb).return_annotation)
            assert "Any" not in returned and "dict[str, object]" not in returned, name
    assert get_type_hints(Project.memories)["return"] == list[reply.NoteEntry]
