"""Readers in a hurry give the replies of the tools, or leave odd files to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from project_stage import PLAN, TASKS, plan, task, tasks_file, write

from rolecall.nexus import dispatch, overview, tools

DECIDED = {"id": 2, "title": "B", "status": "decided", "decision": "So."}


def test_without_files_there_is_nothing(tmp_path: Path) -> None:
    assert overview.plan_status(tmp_path) == dispatch.call(tmp_path, tools.plan_status) == {"active": False}
    assert overview.task_list(tmp_path) == dispatch.call(tmp_path, tools.task_list) == {"exists": False}


@pytest.mark.parametrize("fields", [{}, {"research_summary": "R"}, {"research_summary": ""}])
def test_a_plain_plan_is_told_as_the_tool_tells_it(tmp_path: Path, fields: dict[str, Any]) -> None:
    content = {**plan(3, "A", "B"), **fields}
    content["issues"][1] = DECIDED
    write(tmp_path, PLAN, content)
    found = overview.plan_status(tmp_path)
    assert found == dispatch.call(tmp_path, tools.plan_status)
    assert found is not None
    assert found["summary"] == {"total": 2, "pending": 1, "decided": 1}


def test_plain_tasks_are_told_as_the_tool_tells_them(tmp_path: Path) -> None:
    tasks = [
        task(1, status="completed"),
        task(2, deps=[1]),
        task(3, deps=[2, 9]),
        task(4, status="in_progress"),
    ]
    write(tmp_path, TASKS, tasks_file(*tasks))
    found = overview.task_list(tmp_path)
    assert found == dispatch.call(tmp_path, tools.task_list)
    assert found is not None
    assert found["summary"] == {"total": 4, "completed": 1, "pending": 2, "blocked": 1, "ready": [2]}


ODD_PLANS = {
    "no JSON": "{",
    "a list": [],
    "an unknown status": {**plan(1), "issues": [{**DECIDED, "status": "open"}]},
    "a title that is no text": {**plan(1), "issues": [{**DECIDED, "title": 5}]},
    "no title": {**plan(1), "issues": [{"id": 1, "status": "pending"}]},
    "no issues": {"id": 1, "topic": "T"},
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("content", ODD_PLANS.values(), ids=ODD_PLANS)
def test_an_odd_plan_is_left_to_the_tool(tmp_path: Path, content: Any) -> None:
    write(tmp_path, PLAN, content)
    assert overview.plan_status(tmp_path) is None


@pytest.mark.parametrize(
    "odd",
    [{"status": "open"}, {"title": None}, {"deps": 1}, {"deps": [[]]}],
    ids=["status", "title", "deps", "ids"],
)
def test_odd_tasks_are_left_to_the_tool(tmp_path: Path, odd: dict[str, Any]) -> None:
    write(tmp_path, TASKS, tasks_file(task(1), {**task(2), **odd}))
    assert overview.task_list(tmp_path) is None
