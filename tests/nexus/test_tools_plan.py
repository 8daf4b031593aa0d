"""plan_start, plan_status, plan_update, plan_decide: replies, effects and errors as the contract has them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from project_stage import HISTORY, PLAN, TASKS, call_tool, cycle, files, plan, read, task, tasks_file, write

from rolecall.nexus import project_paths, tools
from rolecall.nexus.tool_error import ToolError


def call(project: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    reply: dict[str, Any] = call_tool(project, tool, arguments)
    return reply


def start(project: Path, *issues: str, topic: str = "Storage", research: str = "Read.") -> dict[str, Any]:
    return call(project, "plan_start", topic=topic, issues=list(issues), research_summary=research)


def error(project: Path, tool: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        call(project, tool, **arguments)
    return caught.value.message


# -- plan_start --


def test_plan_start_writes_the_plan_and_tells_what_it_made(tmp_path: Path) -> None:
    reply = start(tmp_path, "Which format?", "Who migrates?")
    assert reply == {
        "created": True,
        "plan_id": 1,
        "topic": "Storage",
        "issueCount": 2,
        "previousArchived": False,
    }
    written = read(tmp_path, PLAN)
    assert project_paths.is_time(written.pop("created_at"))
    assert written == {
        "id": 1,
        "topic": "Storage",
        "issues": [
            {"id": 1, "title": "Which format?", "status": "pending"},
            {"id": 2, "title": "Who migrates?", "status": "pending"},
        ],
        "research_summary": "Read.",
    }
    assert read(tmp_path, HISTORY) is None
    assert read(tmp_path, TASKS) is None


def test_plan_start_accepts_an_empty_summary_and_no_issues(tmp_path: Path) -> None:
    assert start(tmp_path, research="")["issueCount"] == 0
    assert read(tmp_path, PLAN)["research_summary"] == ""


@pytest.mark.parametrize("arguments", [{}, {"research_summary": None}])
def test_plan_start_without_a_research_summary_is_an_error_and_leaves_nothing(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    text = error(tmp_path, "plan_start", topic="Storage", issues=["A"], **arguments)
    assert text == "research_summary is required for plan_start"
    assert files(tmp_path) == {}


def test_plan_start_puts_the_active_plan_into_the_history_without_tasks(tmp_path: Path) -> None:
    write(tmp_path, PLAN, plan(7, "A", schema_version="0.5"))
    write(tmp_path, TASKS, tasks_file(task(1)))
    before = read(tmp_path, TASKS)
    assert start(tmp_path, "B")["previousArchived"] is True
    (archived,) = read(tmp_path, HISTORY)["cycles"]
    assert project_paths.is_time(archived.pop("completed_at"))
    # The plan inside a cycle has no version of its own: the cycle has one.
    assert archived == {"schema_version": "0.10", "branch": "unknown", "plan": plan(7, "A"), "tasks": []}
    assert read(tmp_path, TASKS) == before
    assert read(tmp_path, PLAN)["id"] == 8


@pytest.mark.parametrize(
    ("cycles", "number"),
    [
        ([], 1),
        ([cycle(None), cycle(None)], 1),
        ([cycle(5), cycle(3)], 6),
        ([cycle(2), cycle(None)], 3),
    ],
)
def test_the_id_of_a_plan_is_one_more_than_the_highest_in_the_history(
    tmp_path: Path, cycles: list[dict[str, Any]], number: int
) -> None:
    write(tmp_path, HISTORY, {"cycles": cycles})
    assert start(tmp_path)["plan_id"] == number


def test_the_id_of_a_plan_counts_the_one_that_was_just_archived(tmp_path: Path) -> None:
    write(tmp_path, HISTORY, {"cycles": [cycle(3)]})
    write(tmp_path, PLAN, plan(12))
    assert start(tmp_path)["plan_id"] == 13


@pytest.mark.parametrize(("topic", "issues"), [("", ["A"]), ("Storage", ["A", ""])])
def test_plan_start_refuses_what_would_make_a_plan_nobody_could_read(
    tmp_path: Path, topic: str, issues: list[str]
) -> None:
    write(tmp_path, PLAN, plan(1, "A"))
    before = files(tmp_path)
    assert "is empty" in error(tmp_path, "plan_start", topic=topic, issues=issues, research_summary="x")
    assert files(tmp_path) == before


# -- plan_status --


def test_plan_status_without_a_plan_is_not_active_and_makes_nothing(tmp_path: Path) -> None:
    assert call(tmp_path, "plan_status") == {"active": False}
    assert files(tmp_path) == {}


def test_plan_status_shows_whole_issues_and_counts_them(tmp_path: Path) -> None:
    decided = {
        "id": 1,
        "title": "A",
        "status": "decided",
        "decision": "So.",
        "how_agents": ["architect"],
        "how_summary": {"architect": "Do."},
        "how_agent_ids": {"architect": "a-1"},
    }
    write(tmp_path, PLAN, {**plan(4, "A", "B", "C"), "research_summary": "Read."})
    stored = read(tmp_path, PLAN)
    stored["issues"][0] = decided
    write(tmp_path, PLAN, stored)
    before = files(tmp_path)
    assert call(tmp_path, "plan_status") == {
        "active": True,
        "plan_id": 4,
        "topic": "Topic 4",
        "issues": [decided, *stored["issues"][1:]],
        "research_summary": "Read.",
        "summary": {"total": 3, "pending": 2, "decided": 1},
    }
    assert files(tmp_path) == before


def test_plan_status_leaves_the_summary_out_when_the_file_has_none(tmp_path: Path) -> None:
    write(tmp_path, PLAN, plan(4, "A"))
    assert set(call(tmp_path, "plan_status")) == {"active", "plan_id", "topic", "issues", "summary"}


# -- plan_update --


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A plan whose issues are numbered 1, 2 and 5; the second is decided."""
    stored = plan(1, "A", "B", "C")
    stored["issues"][1] |= {"status": "decided", "decision": "So.", "how_agents": ["architect"]}
    stored["issues"][2]["id"] = 5
    write(tmp_path, PLAN, stored)
    return tmp_path


def test_an_issue_that_is_added_gets_the_highest_id_and_one_and_comes_last(planned: Path) -> None:
    reply = call(planned, "plan_update", action="add", title="D")
    assert reply == {"added": True, "issue": {"id": 6, "title": "D", "status": "pending"}}
    assert [issue["id"] for issue in read(planned, PLAN)["issues"]] == [1, 2, 5, 6]
    assert read(planned, PLAN)["issues"][-1] == reply["issue"]


def test_the_first_issue_of_a_plan_without_any_is_the_first(tmp_path: Path) -> None:
    start(tmp_path)
    assert call(tmp_path, "plan_update", action="add", title="A")["issue"]["id"] == 1


def test_an_issue_that_is_removed_is_gone_and_the_others_keep_their_ids(planned: Path) -> None:
    assert call(planned, "plan_update", action="remove", issue_id=2) == {"removed": True, "issue": {"id": 2}}
    assert [issue["id"] for issue in read(planned, PLAN)["issues"]] == [1, 5]


def test_an_issue_that_is_edited_has_another_title_and_nothing_else(planned: Path) -> None:
    before = read(planned, PLAN)["issues"][1]
    reply = call(planned, "plan_update", action="edit", issue_id=2, title="B, but how?")
    assert reply == {"edited": True, "issue": {"id": 2, "title": "B, but how?"}}
    assert read(planned, PLAN)["issues"][1] == {**before, "title": "B, but how?"}


def test_an_issue_that_is_reopened_is_pending_and_has_no_decision_but_its_advice(planned: Path) -> None:
    reply = call(planned, "plan_update", action="reopen", issue_id=2)
    assert reply == {"reopened": True, "issue": {"id": 2, "title": "B", "status": "pending"}}
    assert read(planned, PLAN)["issues"][1] == {
        "id": 2,
        "title": "B",
        "status": "pending",
        "how_agents": ["architect"],
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"action": "add"}, "title is required for add"),
        ({"action": "add", "title": ""}, "title is required for add"),
        ({"action": "remove"}, "issue_id is required for remove"),
        ({"action": "reopen", "title": "x"}, "issue_id is required for reopen"),
        ({"action": "edit", "title": "x"}, "issue_id and title are required for edit"),
        ({"action": "edit", "issue_id": 1}, "issue_id and title are required for edit"),
        ({"action": "remove", "issue_id": 999}, "Issue 999 not found"),
        ({"action": "edit", "issue_id": 3, "title": "x"}, "Issue 3 not found"),
        ({"action": "reopen", "issue_id": 3.0}, "Issue 3 not found"),
    ],
)
def test_plan_update_says_what_is_missing_and_changes_nothing(
    planned: Path, arguments: dict[str, Any], text: str
) -> None:
    before = read(planned, PLAN)
    assert error(planned, "plan_update", **arguments) == text
    assert read(planned, PLAN) == before


def test_plan_update_does_not_know_every_action(planned: Path) -> None:
    assert error(planned, "plan_update", action="close", issue_id=1) == "Unknown action"


def test_an_unknown_action_is_told_before_what_is_wrong_with_the_rest(planned: Path) -> None:
    assert error(planned, "plan_update", issue_id="x", title=5, action="bogus") == "Unknown action"
    assert error(planned, "plan_update", action="edit", issue_id="x", title="t").startswith(
        "issue_id must be"
    )


def test_a_missing_plan_is_told_before_an_unknown_action_and_that_before_what_is_missing(
    tmp_path: Path, planned: Path
) -> None:
    assert error(planned, "plan_update", action="close") == "Unknown action"
    (planned / PLAN).unlink()
    assert error(planned, "plan_update", action="close") == "No active plan session"
    assert error(planned, "plan_update", action="add") == "No active plan session"


# -- plan_decide --


def test_a_decision_is_recorded_and_the_issues_left_are_listed(planned: Path) -> None:
    reply = call(planned, "plan_decide", issue_id=1, decision="Lines.")
    assert reply == {
        "decided": True,
        "issue": "A",
        "allComplete": False,
        "remaining": [{"id": 5, "title": "C", "status": "pending"}],
    }
    assert read(planned, PLAN)["issues"][0] == {
        "id": 1,
        "title": "A",
        "status": "decided",
        "decision": "Lines.",
    }


def test_the_last_decision_completes_the_plan_with_a_message_instead_of_what_is_left(planned: Path) -> None:
    call(planned, "plan_decide", issue_id=1, decision="Lines.")
    reply = call(planned, "plan_decide", issue_id=5, decision="Later.")
    assert reply.pop("message")
    assert reply == {"decided": True, "issue": "C", "allComplete": True}


def test_who_was_asked_is_recorded_only_as_far_as_it_is_told(planned: Path) -> None:
    how = {
        "how_agents": ["architect"],
        "how_summary": {"architect": "Do."},
        "how_agent_ids": {"architect": "a-1"},
    }
    call(planned, "plan_decide", issue_id=1, decision="Lines.", **how)
    issue = read(planned, PLAN)["issues"][0]
    assert {key: issue[key] for key in how} == how
    call(planned, "plan_decide", issue_id=5, decision="Later.", how_agents=[])
    assert set(read(planned, PLAN)["issues"][2]) == {"id", "title", "status", "decision", "how_agents"}


def test_a_decided_issue_may_be_decided_anew_and_keeps_whom_it_was_asked(planned: Path) -> None:
    assert call(planned, "plan_decide", issue_id=2, decision="Not so.")["decided"] is True
    issue = read(planned, PLAN)["issues"][1]
    assert issue == {
        "id": 2,
        "title": "B",
        "status": "decided",
        "decision": "Not so.",
        "how_agents": ["architect"],
    }


def test_plan_decide_without_a_plan_or_issue_says_so_and_makes_nothing(tmp_path: Path) -> None:
    assert error(tmp_path, "plan_decide", issue_id=1, decision="x") == "No active plan session"
    assert files(tmp_path) == {}
    write(tmp_path, PLAN, plan(1, "A"))
    assert error(tmp_path, "plan_decide", issue_id=999, decision="x") == "Issue 999 not found"
    assert error(tmp_path, "plan_decide", issue_id=1, summary="x").startswith(
        "plan_decide has no parameter 'summary'"
    )


# -- arguments of Python --


def test_lists_may_be_tuples_and_numbers_whole_floats(tmp_path: Path) -> None:
    tools.plan_start(tmp_path, topic="T", issues=("A", "B"), research_summary="")
    advice = MappingProxyType({"architect": "Go."})
    tools.plan_decide(
        tmp_path,
        issue_id=2.0,
        decision="So.",
        how_agents=("architect",),
        how_summary=advice,
        how_agent_ids=advice,
    )
    decided = read(tmp_path, PLAN)["issues"][1]
    assert decided["how_agents"] == ["architect"]
    assert decided["how_summary"] == decided["how_agent_ids"] == {"architect": "Go."}
    assert tools.plan_update(tmp_path, action="reopen", issue_id=2.0)["issue"]["id"] == 2


@pytest.mark.parametrize(("number", "told"), [(7.0, "7"), (7.5, "7.5"), (math.nan, "nan"), (math.inf, "inf")])
def test_an_issue_that_is_not_there_is_named_as_a_whole_number_if_it_is_one(
    tmp_path: Path, number: float, told: str
) -> None:
    tools.plan_start(tmp_path, topic="T", issues=["A"], research_summary="")
    for call in (
        partial(tools.plan_update, action="remove"),
        partial(tools.plan_decide, decision="So."),
    ):
        with pytest.raises(ToolError, match=f"^Issue {told} not found$"):
            call(tmp_path, issue_id=number)


def test_a_text_is_no_list_of_its_letters(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"^issues is not a list$"):
        tools.plan_start(tmp_path, topic="T", issues="AB", research_summary="")
    assert files(tmp_path) == {}
    tools.plan_start(tmp_path, topic="T", issues=["A"], research_summary="")
    before = files(tmp_path)
    with pytest.raises(ToolError, match=r"^how_agents is not a list$"):
        tools.plan_decide(tmp_path, issue_id=1, decision="So.", how_agents="architect")
    assert files(tmp_path) == before
