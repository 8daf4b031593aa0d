"""task_add, task_list, task_update, task_close: replies, effects and errors as the contract has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from project_stage import (
    HISTORY,
    PLAN,
    TASKS,
    call_tool,
    cycle,
    files,
    git,
    plan,
    read,
    task,
    tasks_file,
    write,
)

from rolecall.errors import Hint
from rolecall.nexus import dispatch, overview, project_paths, tools
from rolecall.nexus.tool_error import NotThere, ToolError


def call(project: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    reply: Any = dispatch.call(project, dispatch.TOOLS[tool].run, arguments)
    if dispatch.TOOLS[tool].is_reader:
        assert call_tool(project, tool, arguments) == reply
    return dict(reply)


def add(project: Path, title: str = "Write", **fields: Any) -> dict[str, Any]:
    added: dict[str, Any] = call(project, "task_add", title=title, context="Why.", **fields)["task"]
    return added


def error(project: Path, tool: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        call(project, tool, **arguments)
    return caught.value.message


# -- task_add --


def test_the_first_task_makes_the_file_with_its_title_as_the_goal(tmp_path: Path) -> None:
    reply = call(tmp_path, "task_add", title="Write", context="Why.")
    assert project_paths.is_time(reply["task"]["created_at"])
    assert reply == {
        "task": {
            "id": 1,
            "title": "Write",
            "context": "Why.",
            "status": "pending",
            "deps": [],
            "created_at": reply["task"]["created_at"],
        }
    }
    assert read(tmp_path, TASKS) == {"goal": "Write", "decisions": [], "tasks": [reply["task"]]}
    assert read(tmp_path, PLAN) is None and read(tmp_path, HISTORY) is None


def test_a_task_keeps_every_field_it_is_given(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "deps": [2, 9],
        "approach": "Small steps.",
        "acceptance": "Tests pass.",
        "risk": "Time.",
        "plan_issue": 3,
        "owner": "engineer",
        "owner_agent_id": "uuid 1",
        "owner_reuse_policy": "resume_if_same_artifact",
    }
    added = add(tmp_path, **given)
    assert {key: added[key] for key in given} == given
    assert set(added) == {*given, "id", "title", "context", "status", "created_at"}
    assert read(tmp_path, TASKS)["tasks"] == [added]


def test_the_id_of_a_task_is_one_more_than_the_highest(tmp_path: Path) -> None:
    write(tmp_path, TASKS, tasks_file(task(7), task(2)))
    assert add(tmp_path)["id"] == 8
    assert add(tmp_path)["id"] == 9
    assert [entry["id"] for entry in read(tmp_path, TASKS)["tasks"]] == [7, 2, 8, 9]


def test_a_goal_replaces_the_goal_and_decisions_are_added_to_the_others(tmp_path: Path) -> None:
    write(tmp_path, TASKS, tasks_file(task(1), goal="Old", decisions=("First.",)))
    add(tmp_path, goal="New", decisions=["Second.", "Third."])
    add(tmp_path, decisions=["Fourth."])
    add(tmp_path, goal="")
    stored = read(tmp_path, TASKS)
    assert (stored["goal"], stored["decisions"]) == ("New", ["First.", "Second.", "Third.", "Fourth."])
    assert [entry["id"] for entry in stored["tasks"]] == [1, 2, 3, 4]


def test_without_a_goal_the_old_one_stays(tmp_path: Path) -> None:
    write(tmp_path, TASKS, tasks_file(goal="Old"))
    add(tmp_path)
    assert read(tmp_path, TASKS)["goal"] == "Old"


@pytest.mark.parametrize("goal", ["", None])
def test_the_goal_is_the_topic_of_the_plan_and_never_empty(tmp_path: Path, goal: str | None) -> None:
    write(tmp_path, PLAN, plan(1))
    if goal is not None:
        write(tmp_path, TASKS, tasks_file(goal=goal))
    add(tmp_path, title="Write")
    assert read(tmp_path, TASKS)["goal"] == "Topic 1"
    (tmp_path / TASKS).unlink()
    add(tmp_path, goal="Ship it")
    assert read(tmp_path, TASKS)["goal"] == "Ship it"
    write(tmp_path, PLAN, "{")
    (tmp_path / TASKS).unlink()
    add(tmp_path, title="Write")
    assert read(tmp_path, TASKS)["goal"] == "Write"


def test_dependencies_on_tasks_that_do_not_exist_are_taken(tmp_path: Path) -> None:
    assert add(tmp_path, deps=[99])["deps"] == [99]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"title": "", "context": "x"}, "title is empty"),
        ({"title": "x", "context": ""}, "context is empty"),
        ({"title": "x"}, "context is required for task_add"),
        ({"context": "x"}, "title is required for task_add"),
        (
            {"title": "x", "context": "y", "owner_reuse_policy": "always"},
            "owner_reuse_policy must be one of fresh, resume_if_same_artifact, resume",
        ),
    ],
)
def test_task_add_refuses_what_would_make_a_file_nobody_could_read(
    tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    assert error(tmp_path, "task_add", **fields) == text
    assert files(tmp_path) == {}


def test_texts_of_every_kind_come_back_as_they_were_given(tmp_path: Path) -> None:
    texts = [
        'quotes " and \\ and \n',
        "größer ↗ 漢字 🎲",
        "\u2028\u0000\u001f",
        "\\u0041",
    ]
    for text in texts:
        add(tmp_path, text, approach=text)
    assert [entry["title"] for entry in call(tmp_path, "task_list")["tasks"]] == texts
    call(tmp_path, "task_update", id=2, status="completed")
    assert [entry["approach"] for entry in read(tmp_path, TASKS)["tasks"]] == texts


# -- task_list --


def test_task_list_without_a_file_says_that_there_is_none_and_makes_nothing(tmp_path: Path) -> None:
    assert call(tmp_path, "task_list") == {"exists": False}
    assert files(tmp_path) == {}


def test_task_list_counts_tasks_in_progress_as_blocked(tmp_path: Path) -> None:
    tasks = [
        task(1, status="completed"),
        task(2, status="in_progress"),
        task(3, status="in_progress"),
        task(4),
        task(5, status="completed"),
        task(6, status="completed"),
        task(7, deps=[2]),
    ]
    write(tmp_path, TASKS, tasks_file(*tasks))
    before = files(tmp_path)
    assert call(tmp_path, "task_list") == {
        "goal": "Ship it",
        "tasks": tasks,
        "summary": {"total": 7, "completed": 3, "pending": 2, "blocked": 2, "ready": [4]},
    }
    assert files(tmp_path) == before


def test_a_task_is_ready_when_it_is_pending_and_all_it_depends_on_exists_and_is_completed(
    tmp_path: Path,
) -> None:
    write(
        tmp_path,
        TASKS,
        tasks_file(
            task(9, deps=[1]),
            task(1, status="completed"),
            task(2, status="completed"),
            task(3, deps=[1, 2]),
            task(4, deps=[1, 5]),
            task(5),
            task(6, deps=[99]),
            task(7, deps=[1, 99]),
            task(8, status="in_progress", deps=[1]),
            task(10, deps=[10]),
        ),
    )
    assert call(tmp_path, "task_list")["summary"]["ready"] == [9, 3, 5]


def test_a_file_without_tasks_exists_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, TASKS, tasks_file())
    assert call(tmp_path, "task_list") == {
        "goal": "Ship it",
        "tasks": [],
        "summary": {"total": 0, "completed": 0, "pending": 0, "blocked": 0, "ready": []},
    }


# -- task_update --


@pytest.mark.parametrize("before", overview.TASK_STATUSES)
@pytest.mark.parametrize("after", overview.TASK_STATUSES)
def test_every_change_of_status_is_allowed_and_changes_nothing_else(
    tmp_path: Path, before: str, after: str
) -> None:
    others = [task(1), task(3, approach="x")]
    changing = task(2, status=before, owner="engineer")
    write(tmp_path, TASKS, tasks_file(others[0], changing, others[1], decisions=("So.",)))
    reply = call(tmp_path, "task_update", id=2, status=after)
    assert reply == {"task": {**changing, "status": after}}
    assert read(tmp_path, TASKS) == tasks_file(others[0], reply["task"], others[1], decisions=("So.",))


def test_a_task_is_found_by_its_id_and_not_by_its_place(tmp_path: Path) -> None:
    write(tmp_path, TASKS, tasks_file(task(3), task(1), task(2)))
    call(tmp_path, "task_update", id=1, status="completed")
    assert [entry["status"] for entry in read(tmp_path, TASKS)["tasks"]] == [
        "pending",
        "completed",
        "pending",
    ]


def test_a_task_that_was_changed_after_it_was_read_keeps_the_change(tmp_path: Path) -> None:
    write(tmp_path, TASKS, tasks_file(task(1), task(2)))
    first, second = read(tmp_path, TASKS)["tasks"]
    call(tmp_path, "task_update", id=1, status="in_progress")
    assert not tools.update_as_read(str(tmp_path), first, "completed")
    assert tools.update_as_read(str(tmp_path), second, "completed")
    third: Any = {**second, "id": 3}
    assert not tools.update_as_read(str(tmp_path), third, "completed")
    assert [entry["status"] for entry in read(tmp_path, TASKS)["tasks"]] == ["in_progress", "completed"]


def test_task_update_says_what_is_not_there(tmp_path: Path) -> None:
    assert error(tmp_path, "task_update", id=1, status="completed") == "tasks.json not found"
    with pytest.raises(NotThere) as raised:
        call(tmp_path, "task_update", id=1, status="completed")
    assert isinstance(raised.value.hint, Hint)
    assert raised.value.hint.code == "add_task"
    assert files(tmp_path) == {}
    write(tmp_path, TASKS, tasks_file(task(1), task(2)))
    for missing in (0, 3, 999, -1, 1.5):
        assert (
            error(tmp_path, "task_update", id=missing, status="completed") == f"Task id {missing} not found"
        )
    assert error(tmp_path, "task_update", id=1, status="done").startswith("status must be one of pending")
    assert error(tmp_path, "task_update", id=1) == "status is required for task_update"
    assert [entry["status"] for entry in read(tmp_path, TASKS)["tasks"]] == ["pending", "pending"]


# -- task_close --


def test_closing_moves_plan_and_tasks_into_the_history_and_removes_them(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "feature/x")
    stored = plan(4, "A", "B", schema_version="0.5", research_summary="Read.")
    stored["issues"][0] |= {"status": "decided", "decision": "So."}
    tasks = [task(1, status="completed"), task(2, deps=[1])]
    write(tmp_path, PLAN, stored)
    write(
        tmp_path, TASKS, {**tasks_file(*tasks, goal="Ship it", decisions=("So.",)), "schema_version": "0.5"}
    )
    write(tmp_path, HISTORY, {"cycles": [cycle(3)]})
    artifact = write(tmp_path, ".nexus/state/artifacts/kept.md", "kept")
    other = write(tmp_path, ".nexus/state/other-harness/agent-tracker.json", [])
    tracker = write(tmp_path, ".nexus/state/edit-tracker.json", {})

    reply = call(tmp_path, "task_close")

    assert project_paths.is_time(reply["cycle"])
    assert reply == {
        "closed": True,
        "cycle": reply["cycle"],
        "branch": "feature/x",
        "archived": {"plan": True, "decisions": 1, "tasks": 2},
        "deleted": ["plan.json", "tasks.json"],
        "total_cycles": 2,
        "memoryHint": {"taskCount": 2, "decisionCount": 1, "cycleTopics": ["Topic 4", "Ship it"]},
    }
    assert not (tmp_path / PLAN).exists() and not (tmp_path / TASKS).exists()
    assert artifact.exists() and other.exists() and tracker.exists()
    # The goal and the decisions of the tasks file are not archived, and the plan leaves its version behind.
    assert read(tmp_path, HISTORY) == {
        "cycles": [
            cycle(3),
            {
                "schema_version": "0.10",
                "completed_at": reply["cycle"],
                "branch": "feature/x",
                "plan": {key: value for key, value in stored.items() if key != "schema_version"},
                "tasks": tasks,
            },
        ]
    }


def test_closing_nothing_is_a_cycle_too(tmp_path: Path) -> None:
    assert call(tmp_path, "task_close")["total_cycles"] == 1
    reply = call(tmp_path, "task_close")
    assert reply == {
        "closed": True,
        "cycle": reply["cycle"],
        "branch": "unknown",
        "archived": {"plan": False, "decisions": 0, "tasks": 0},
        "deleted": [],
        "total_cycles": 2,
        "memoryHint": {"taskCount": 0, "decisionCount": 0, "cycleTopics": []},
    }
    assert [(entry["plan"], entry["tasks"]) for entry in read(tmp_path, HISTORY)["cycles"]] == [
        (None, []),
        (None, []),
    ]


@pytest.mark.parametrize(
    ("plan_there", "goal", "deleted", "topics"),
    [
        (True, None, ["plan.json"], ["Topic 1"]),
        (False, "Ship it", ["tasks.json"], ["Ship it"]),
        (True, "", ["plan.json", "tasks.json"], ["Topic 1"]),
        (True, "Ship it", ["plan.json", "tasks.json"], ["Topic 1", "Ship it"]),
    ],
)
def test_closing_names_the_files_that_were_there_and_the_topics_that_are_not_empty(
    tmp_path: Path, plan_there: bool, goal: str | None, deleted: list[str], topics: list[str]
) -> None:
    if plan_there:
        write(tmp_path, PLAN, plan(1))
    if goal is not None:
        write(tmp_path, TASKS, tasks_file(goal=goal))
    reply = call(tmp_path, "task_close")
    assert (reply["deleted"], reply["memoryHint"]["cycleTopics"]) == (deleted, topics)
    assert reply["archived"]["plan"] is plan_there


def test_task_ids_begin_anew_in_the_next_cycle_and_plan_ids_go_on(tmp_path: Path) -> None:
    for round_ in (1, 2, 3):
        arguments = {"topic": "T", "issues": [], "research_summary": ""}
        assert call(tmp_path, "plan_start", **arguments)["plan_id"] == round_
        assert [add(tmp_path)["id"], add(tmp_path)["id"]] == [1, 2]
        assert call(tmp_path, "task_close")["total_cycles"] == round_
    assert [entry["plan"]["id"] for entry in read(tmp_path, HISTORY)["cycles"]] == [1, 2, 3]


# -- arguments of Python --


def test_ids_are_written_as_whole_numbers_and_named_so(tmp_path: Path) -> None:
    added = tools.task_add(tmp_path, title="T", context="C", deps=(1.0, 2.5), plan_issue=3.0)["task"]
    assert (added["deps"], added["plan_issue"]) == ([1, 2.5], 3)
    assert '"deps":[1,2.5]' in (tmp_path / TASKS).read_text()
    with pytest.raises(ToolError, match=r"^Task id 9 not found$"):
        tools.task_update(tmp_path, id=9.0, status="completed")


@pytest.mark.parametrize("field", ["deps", "decisions"])
def test_a_text_is_no_list_of_its_letters(tmp_path: Path, field: str) -> None:
    with pytest.raises(ToolError, match=f"^{field} is not a list$"):
        tools.task_add(tmp_path, title="T", context="C", **{field: "12"})  # type: ignore[arg-type]
    assert files(tmp_path) == {}
