"""Tools called by name: arguments nobody has checked, restricted callers, and the schemas that doors show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from project_stage import TASKS, call_tool, files, task, tasks_file, write

from rolecall.errors import Hint
from rolecall.nexus import dispatch, tools
from rolecall.nexus.tool_error import ToolError, WrongCall
from rolecall.settings.capabilities import RESTRICTIONS

NAMES = (
    *("plan_start", "plan_status", "plan_update", "plan_decide", "task_add", "task_list", "task_update"),
    *("task_close", "history_search", "context", "artifact_write"),
)
GOOD: dict[str, dict[str, Any]] = {
    "plan_start": {"topic": "T", "issues": ["A"], "research_summary": "R"},
    "plan_update": {"action": "edit", "issue_id": 1, "title": "B"},
    "plan_decide": {
        "issue_id": 1, "decision": "So.", "how_agents": ["a"], "how_summary": {"a": "b"}, "how_agent_ids": {"a": "b"},
    },
    "task_add": {
        "title": "T", "context": "C", "deps": [1], "approach": "a", "acceptance": "b", "risk": "c", "plan_issue": 1,
        "goal": "g", "decisions": ["d"], "owner": "lead", "owner_agent_id": "x", "owner_reuse_policy": "fresh",
    },
    "task_update": {"id": 1, "status": "completed"},
    "history_search": {"query": "x", "last_n": 3},
    "artifact_write": {"filename": "a.md", "content": "x"},
}  # fmt: skip


def with_plan(project: Path, name: str) -> dict[str, bytes]:
    """The files of a project in which a tool looks at its arguments: two want a plan before that."""
    if name in ("plan_update", "plan_decide"):
        dispatch.call(project, tools.plan_start, GOOD["plan_start"])
    return files(project)


def test_there_are_eleven_tools_with_the_parameters_of_the_contract() -> None:
    assert tuple(dispatch.TOOLS) == NAMES
    for name, tool in dispatch.TOOLS.items():
        assert set(tool.parameters) == set(GOOD.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_of_a_tool_takes_what_the_tool_takes_and_nothing_else(name: str) -> None:
    tool = dispatch.TOOLS[name]
    schema = dispatch.input_schema(tool)
    judge = jsonschema_rs.validator_for(schema)
    good = GOOD.get(name, {})
    assert judge.is_valid(good)
    assert not judge.is_valid({**good, "surprise": 1})
    for key in good:
        assert not judge.is_valid({**good, key: None})
        rest = {other: value for other, value in good.items() if other != key}
        assert judge.is_valid(rest) is not tool.parameters[key].is_required
    assert tool.description
    assert all(entry["description"] for entry in schema["properties"].values())
    json.dumps(schema)


def test_an_unknown_action_passes_the_schema_so_that_the_tool_can_answer_it() -> None:
    schema = dispatch.input_schema(dispatch.TOOLS["plan_update"])
    assert schema["properties"]["action"]["type"] == "string"
    assert "enum" not in schema["properties"]["action"]
    assert jsonschema_rs.validator_for(schema).is_valid({"action": "frobnicate"})


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "wrong", [True, [], {}, 1, "x", ["x"], [1], {"a": 1}, [None], float("nan"), float("inf"), -1e300, ("x",)]
)
def test_an_argument_of_the_wrong_kind_is_refused_before_anything_happens(
    tmp_path: Path, name: str, wrong: Any
) -> None:
    judge = jsonschema_rs.validator_for(dispatch.input_schema(dispatch.TOOLS[name]))
    before = with_plan(tmp_path, name)
    for key in GOOD[name]:
        arguments = {**GOOD[name], key: wrong}
        is_finite = not isinstance(wrong, float)
        if key not in ("status", "owner_reuse_policy") and is_finite and judge.is_valid(arguments):
            continue
        with pytest.raises(WrongCall, match=f"^{key} must be "):
            call_tool(tmp_path, name, arguments)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_missing_arguments_are_named(tmp_path: Path, name: str) -> None:
    before = with_plan(tmp_path, name)
    with pytest.raises(WrongCall, match=f"^{name} has no parameter 'surprise'; it has "):
        call_tool(tmp_path, name, {**GOOD.get(name, {}), "surprise": 1})
    for key, parameter in dispatch.TOOLS[name].parameters.items():
        if parameter.is_required:
            for arguments in ({**GOOD[name], key: None}, {k: v for k, v in GOOD[name].items() if k != key}):
                with pytest.raises(WrongCall, match=f"^{key} is required for {name}$"):
                    call_tool(tmp_path, name, arguments)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["plan_update", "plan_decide"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"action": 5}, {"action": "frob"}, {"issue_id": "x"}, {"issue_id": None}, {"surprise": 1}, [], "x"],
)
def test_without_a_plan_that_is_the_answer_whatever_the_arguments(
    tmp_path: Path, name: str, arguments: Any
) -> None:
    with pytest.raises(ToolError) as raised:
        call_tool(tmp_path, name, arguments)
    assert raised.value.message == "No active plan session"
    assert isinstance(raised.value.hint, Hint)
    assert raised.value.hint.code == "start_plan"
    assert files(tmp_path) == {}


@pytest.mark.parametrize("arguments", [[], "x", 1, False])
def test_arguments_that_are_no_object_are_refused(tmp_path: Path, arguments: Any) -> None:
    with pytest.raises(WrongCall, match="arguments of context are not an object"):
        call_tool(tmp_path, "context", arguments)


def test_null_stands_for_an_argument_that_is_left_out(tmp_path: Path) -> None:
    optional = {key: None for key in GOOD["task_add"] if key not in ("title", "context")}
    added = dispatch.call(tmp_path, tools.task_add, {"title": "T", "context": "C", **optional})["task"]
    assert set(added) == {"id", "title", "context", "status", "deps", "created_at"}


def test_a_whole_number_is_written_as_one_however_it_was_sent(tmp_path: Path) -> None:
    dispatch.call(
        tmp_path, tools.task_add, {"title": "T", "context": "C", "deps": [2.0, 2.5], "plan_issue": 3.0}
    )
    text = (tmp_path / TASKS).read_text()
    assert '"deps":[2,2.5]' in text and '"plan_issue":3,' in text
    assert dispatch.call(tmp_path, tools.task_update, {"id": 1.0, "status": "completed"})["task"]["id"] == 1


def test_an_unknown_tool_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        ToolError, match="the tool 'plan_stop' is not known; the tools are plan_start, plan_status"
    ):
        call_tool(tmp_path, "plan_stop", {})


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_as_json_is_the_reply(tmp_path: Path, name: str) -> None:
    for project in (tmp_path / "a", tmp_path / "b"):
        project.mkdir()
        dispatch.call(project, tools.plan_start, GOOD["plan_start"])
        dispatch.call(project, tools.task_add, {"title": "größer ↗", "context": "C"})
    reply: Any = dispatch.call(tmp_path / "a", dispatch.TOOLS[name].run, GOOD.get(name))
    again = call_tool(tmp_path / "b", name, GOOD.get(name))
    assert again.keys() == reply.keys()
    assert type(again) is dict


def test_a_long_task_list_as_json_is_the_same_list(tmp_path: Path) -> None:
    content = tasks_file(*(task(number, deps=[number - 1] * (number > 1)) for number in range(1, 1500)))
    write(tmp_path, TASKS, content)
    assert call_tool(tmp_path, "task_list") == dispatch.call(tmp_path, tools.task_list)
    dispatch.call(tmp_path, tools.task_add, {"title": "größer ↗", "context": "C", "goal": "ü"})
    assert call_tool(tmp_path, "task_list") == dispatch.call(tmp_path, tools.task_list)


# -- restrictions --


DENIED = {"no_task_create": {"task_add"}, "no_task_update": {"task_update", "task_close"}}
FOR_LEAD = {"plan_start", "plan_update", "plan_decide"}


@pytest.mark.parametrize("word", RESTRICTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_restriction_denies_its_tools_and_no_others(tmp_path: Path, word: str, name: str) -> None:
    dispatch.call(tmp_path, tools.plan_start, GOOD["plan_start"])
    write(tmp_path, TASKS, tasks_file(task(1)))
    before = files(tmp_path)
    if name in DENIED.get(word, ()) or name in FOR_LEAD:
        message = f"is denied to this role by {word}"
        if name in FOR_LEAD:
            message = f"is for the lead, and this role is held to {word}"
        with pytest.raises(ToolError) as raised:
            call_tool(tmp_path, name, GOOD.get(name), restrictions=["coding", word])
        assert raised.value.message == f"{name} {message}"
        assert files(tmp_path) == before
    else:
        assert call_tool(tmp_path, name, GOOD.get(name), restrictions=["coding", word])


def test_a_capability_that_restricts_nothing_leaves_the_lead_the_lead(tmp_path: Path) -> None:
    for name in FOR_LEAD:
        dispatch.call(tmp_path, tools.plan_start, GOOD["plan_start"])
        assert call_tool(tmp_path, name, GOOD[name], restrictions=["coding"])


@pytest.mark.parametrize("name", sorted(FOR_LEAD | {"task_add"}))
def test_a_denied_tool_says_so_whatever_the_arguments(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolError, match=f"^{name} is (denied to this role|for the lead)"):
        dispatch.call_json(tmp_path, name, {"nonsense": 1}, restrictions=["no_task_create"])


def test_the_tools_for_the_lead_are_those_that_hosts_are_told() -> None:
    assert {name for name, tool in dispatch.TOOLS.items() if tool.is_for_lead} == FOR_LEAD
    assert set(dispatch.LEAD_ONLY) == {f"nx_{name}" for name in FOR_LEAD}
