"""history_search and context: what they find, how it is cut short, and that they leave no trace."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from rolecall.errors import Hint, UsageError
from rolecall.nexus import dispatch, history, project_paths, tools
from rolecall.nexus.tool_error import ToolError


def search(project: Path, **arguments: Any) -> dict[str, Any]:
    reply: dict[str, Any] = call_tool(project, "history_search", arguments)
    return reply


def branches(reply: dict[str, Any]) -> list[str]:
    return [entry["branch"] for entry in reply["cycles"]]


# -- history_search --


def test_without_a_history_nothing_is_found_and_nothing_made(tmp_path: Path) -> None:
    assert search(tmp_path) == {"total": 0, "showing": 0, "cycles": []}
    assert search(tmp_path, query="x") == {"total": 0, "showing": 0, "cycles": []}
    assert files(tmp_path) == {}


def test_a_cycle_is_shown_in_short(tmp_path: Path) -> None:
    stored = plan(2, "A", "B", research_summary="Long.")
    stored["issues"][0] |= {"status": "decided", "decision": "So.", "how_agents": ["architect"]}
    write(
        tmp_path,
        HISTORY,
        {"cycles": [cycle(2, plan=stored, tasks=[task(1), task(2)]), cycle(None, schema_version="1.0")]},
    )
    before = files(tmp_path)
    assert search(tmp_path) == {
        "total": 2,
        "showing": 2,
        "cycles": [
            {
                "completed_at": "2026-04-12T00:00:02.000Z",
                "branch": "main",
                "topic": "Topic 2",
                "decisions": [{"title": "A", "decision": "So."}],
                "task_count": 2,
            },
            {"completed_at": "2026-04-12T00:00:00.000Z", "branch": "main", "task_count": 0},
        ],
    }
    assert files(tmp_path) == before


def test_the_last_ones_are_shown_ten_unless_told_and_all_are_counted(tmp_path: Path) -> None:
    write(tmp_path, HISTORY, {"cycles": [cycle(number, branch=f"b{number}") for number in range(1, 16)]})
    reply = search(tmp_path)
    assert (reply["total"], reply["showing"]) == (15, 10)
    assert branches(reply) == [f"b{number}" for number in range(6, 16)]
    assert branches(search(tmp_path, last_n=2)) == ["b14", "b15"]
    assert branches(search(tmp_path, last_n=2.0)) == ["b14", "b15"]
    assert search(tmp_path, last_n=0) == {"total": 15, "showing": 0, "cycles": []}
    assert search(tmp_path, last_n=100)["showing"] == 15


def test_the_limit_is_applied_to_what_matches(tmp_path: Path) -> None:
    cycles = [cycle(number, branch="odd" if number % 2 else "even") for number in range(1, 10)]
    write(tmp_path, HISTORY, {"cycles": cycles})
    reply = search(tmp_path, query="EVEN", last_n=3)
    assert (reply["total"], branches(reply)) == (4, ["even"] * 3)


@pytest.mark.parametrize("number", [-1, 2.5])
def test_a_limit_that_is_no_count_is_refused(tmp_path: Path, number: float) -> None:
    with pytest.raises(ToolError, match=f"last_n is {number}, not a whole number of 0 or more"):
        search(tmp_path, last_n=number)


@pytest.mark.parametrize(
    "number", [math.inf, -math.inf, math.nan, 1e300, 10**5000, True, "3"], ids=lambda _: ""
)
def test_a_limit_that_is_no_number_is_refused_from_python_as_from_outside(
    tmp_path: Path, number: Any
) -> None:
    for call in (tools.history_search, search):
        with pytest.raises(ToolError, match=r"^last_n must be a finite number below 1e300$"):
            call(tmp_path, last_n=number)


def test_a_limit_beyond_all_cycles_shows_them_all(tmp_path: Path) -> None:
    write(tmp_path, HISTORY, {"cycles": [cycle(1), cycle(2)]})
    assert search(tmp_path, last_n=1e299)["showing"] == search(tmp_path, last_n=10**299)["showing"] == 2


WORDS = [
    "Plan",
    "RÜCKEN",
    "straße",
    "漢字",
    "K",
    "\u212a",
    "\u0130",
    "i",
    "a b",
    "C:\\x",
    'say "no"',
    "tab\there",
    "é",
    "x/y",
]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("indent", [None, 1, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_query_is_looked_for_in_the_whole_json_of_a_cycle_whoever_wrote_it(
    tmp_path: Path, word: str, indent: int | None, ascii_only: bool
) -> None:
    cycles = [
        cycle(number, branch=text, tasks=[task(1, approach=text)]) for number, text in enumerate(WORDS, 1)
    ]
    write(tmp_path, HISTORY, json.dumps({"cycles": cycles}, indent=indent, ensure_ascii=ascii_only))
    for query in (word, word.upper(), word.lower(), word[:1]):
        expected = [entry["branch"] for entry in cycles if matches(entry, query)]
        assert branches(search(tmp_path, query=query, last_n=99)) == expected


@pytest.mark.parametrize(("letter", "query"), [("\u0130", "xqi"), ("\u212a", "xqk"), ("\u212a", "XQ\u212a")])
def test_the_two_letters_whose_lower_case_is_in_ascii_are_found_by_it(
    tmp_path: Path, letter: str, query: str
) -> None:
    cycles = [cycle(1, branch=f"xq{letter}xq"), cycle(2, branch="ä")]
    write(tmp_path, HISTORY, json.dumps({"cycles": cycles}, ensure_ascii=False))
    assert matches(cycles[0], query)
    assert branches(search(tmp_path, query=query)) == [f"xq{letter}xq"]


def matches(entry: dict[str, Any], query: str) -> bool:
    """The contract's own words, without any of our shortcuts."""
    return query.lower() in json.dumps(entry, ensure_ascii=False, separators=(",", ":")).lower()


QUERIES = [
    '"id":4', '"tasks":[]', "main", '"branch":"main","plan"', "}", '"id": 4', "topic 4", "topic  4", " ", ": ", ",",
    "null", '"plan":null', "00:00:04", "\\", "\\n", "cycles", "schema_version", '4","created', "4, 5", "[4,5]",
]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_query_of_json_is_looked_for_in_json_without_spaces_between_its_parts(
    tmp_path: Path, query: str, indent: int | None
) -> None:
    cycles = [cycle(number or None, tasks=[task(1, deps=[4, 5])] * (number % 2)) for number in range(8)]
    content = {"schema_version": "0.5", "cycles": cycles}
    write(tmp_path, HISTORY, content, indent=indent)
    dispatch.call(
        tmp_path, tools.plan_start, {"topic": "topic  4 \n, ", "issues": ["a"], "research_summary": ""}
    )
    dispatch.call(tmp_path, tools.task_close)
    cycles = read(tmp_path, HISTORY)["cycles"]
    reply = search(tmp_path, query=query, last_n=99)
    expected = [entry["completed_at"] for entry in cycles if matches(entry, query)]
    assert [entry["completed_at"] for entry in reply["cycles"]] == expected


texts = st.text(
    st.sampled_from('ab AB\\/"\n:,{}[]äÄ\u0130\u212akKi') | st.characters(codec="utf-8"), max_size=8
)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=5), texts, st.sampled_from([None, 0, 3]), st.booleans())
def test_a_search_finds_what_a_plain_reading_finds(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[str],
    query: str,
    indent: int | None,
    ascii_only: bool,
) -> None:
    project = tmp_path_factory.mktemp("project")
    cycles = [cycle(1, branch=text) for text in written]
    write(project, HISTORY, json.dumps({"cycles": cycles}, indent=indent, ensure_ascii=ascii_only))
    found = history.load(project).search(query)
    assert list(found) == [number for number, entry in enumerate(cycles) if matches(entry, query)]


def test_many_cycles_are_searched_at_once(tmp_path: Path) -> None:
    cycles = [cycle(number, branch=f"b{number}x") for number in range(1, 1001)]
    write(tmp_path, HISTORY, {"cycles": cycles})
    for query in ("B200X", "b201x", "b1000x", "b1x", "main", "zzz", "topic"):
        reply = search(tmp_path, query=query, last_n=2000)
        assert branches(reply) == [entry["branch"] for entry in cycles if matches(entry, query)]


# -- context --


def test_context_without_tasks_is_a_branch_and_no_mode(tmp_path: Path) -> None:
    assert dispatch.call(tmp_path, tools.context) == {
        "branch": "unknown",
        "activeMode": None,
        "decisions": [],
    }
    write(tmp_path, PLAN, plan(1, "A"))
    assert dispatch.call(tmp_path, tools.context) == {
        "branch": "unknown",
        "activeMode": None,
        "decisions": [],
    }
    write(tmp_path, ".nexus/state/decisions.json", ["not ours"])
    assert dispatch.call(tmp_path, tools.context)["decisions"] == []


def test_context_tells_the_goal_and_counts_while_there_are_tasks(tmp_path: Path) -> None:
    tasks = [task(1, status="completed"), task(2, status="in_progress"), task(3), task(4), task(5)]
    write(tmp_path, TASKS, tasks_file(*tasks, decisions=("One.", "Two.")))
    before = files(tmp_path)
    assert dispatch.call(tmp_path, tools.context) == {
        "branch": "unknown",
        "activeMode": "team",
        "goal": "Ship it",
        "tasksSummary": {"total": 5, "completed": 1, "pending": 3},
        "decisions": ["One.", "Two."],
    }
    assert files(tmp_path) == before


@pytest.mark.parametrize("content", ["{", "[]", '{"tasks": 3}', ""])
def test_context_goes_without_tasks_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    write(tmp_path, TASKS, content)
    assert dispatch.call(tmp_path, tools.context) == {
        "branch": "unknown",
        "activeMode": "team",
        "decisions": [],
    }


# -- the branch and the time --


def test_the_branch_is_the_whole_name_of_what_is_checked_out(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "feature/deep/name")
    (tmp_path / "sub").mkdir()
    assert project_paths.branch(tmp_path) == project_paths.branch(tmp_path / "sub") == "feature/deep/name"
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    assert project_paths.branch(tmp_path / "tree") == "other"
    assert project_paths.find(tmp_path / "tree") == str(tmp_path / "tree")
    assert project_paths.find(tmp_path / "sub") == str(tmp_path)
    git(tmp_path, "checkout", "-q", "--detach")
    assert project_paths.branch(tmp_path) == "detached"


def test_a_folder_outside_of_every_repository_is_in_no_project(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not in a git repository") as raised:
        project_paths.find(tmp_path)
    assert isinstance(raised.value.hint, Hint)
    assert raised.value.hint.code == "name_project"


def test_a_repository_that_cannot_be_read_has_an_unknown_branch(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert project_paths.branch(tmp_path) == "unknown"
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/.invalid\n", encoding="ascii")
    assert project_paths.branch(tmp_path) == "unknown"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".git").write_text(
        "gitdir: ../gone\n", encoding="ascii"
    )  # a worktree of what is deleted
    assert project_paths.branch(tmp_path / "tree") == "unknown"


def test_a_cycle_closed_on_a_detached_head_names_no_empty_branch(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "checkout", "-q", "--detach")
    assert dispatch.call(tmp_path, tools.task_close)["branch"] == "detached"
    assert read(tmp_path, HISTORY)["cycles"][0]["branch"] == "detached"
