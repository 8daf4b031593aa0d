"""Who checks a task, and why."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rolecall.nexus import catalog
from rolecall.nexus.reply import ProjectTask
from rolecall.plan_run.pairing import pair


def task(title: str = "Add a counter", **fields: Any) -> ProjectTask:
    made = {"id": 1, "title": title, "context": "Why.", "acceptance": "count() returns 4", **fields}
    return cast(ProjectTask, made)


@pytest.mark.parametrize(
    ("owner", "fields", "checker", "reason"),
    [
        ("engineer", {}, "tester", "its acceptance says how the result behaves"),
        ("writer", {}, "reviewer", "its acceptance says what a reader finds"),
        ("researcher", {}, "", "work of the researcher is not checked by another agent"),
        ("architect", {}, "", "work of the architect is not checked by another agent"),
        ("tester", {}, "", "work of the tester is not checked by another agent"),
        ("engineer", {"acceptance": " "}, "", "it has no acceptance to check"),
        ("writer", {"acceptance": ""}, "", "it has no acceptance to check"),
        ("engineer", {"title": "Refactor the parser"}, "", "it keeps the behaviour as it is"),
        ("engineer", {"title": "Refactor the parser and support lists"}, "tester", "its acceptance says how"),
        (
            "engineer",
            {"approach": "A pure refactoring: split it."},
            "",
            "it keeps the behaviour as it is",
        ),
        ("engineer", {"acceptance": "The behaviour is unchanged."}, "", "it keeps the behaviour as it is"),
        ("engineer", {"title": "Add type hints to the parser"}, "", "it changes types only"),
        ("engineer", {"title": "Fix a typo in a comment"}, "", "it changes text beside the code"),
        ("engineer", {"title": "Update the README"}, "", "it changes text beside the code"),
        ("engineer", {"context": "docs_only.coherent"}, "", "docs_only.coherent: it contains no code to run"),
        (
            "writer",
            {"context": "docs_only.independent: own subject"},
            "reviewer",
            "docs_only.independent: a reviewer",
        ),
        ("writer", {"title": "Fix typos in the guide"}, "", "it is a small change of text"),
        ("engineer", {"context": "same_file_bundle: two drafts"}, "tester", "its acceptance says how"),
        ("engineer", {"title": "Move the storage to files"}, "tester", "its acceptance says how"),
    ],
)
def test_the_pair_follows_from_the_owner_and_the_text(
    owner: str, fields: dict[str, Any], checker: str, reason: str
) -> None:
    found = pair(task(**fields), owner=owner)
    assert found.checker == checker
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    "title",
    [
        "Add comments to posts",
        "Parse comments in the lexer",
        "Fix comment deletion",
        "Show type annotations on hover",
        "Support type hints in the completion",
        "Annotate images with boxes",
        "Rename uploaded files to their hash",
        "Restructure the menu by frequency of use",
        "Render the README in the sidebar",
        "Generate the changelog from commits",
        "Fix spelling suggestions",
        "Fix typo tolerance of the search",
        "Strip licence headers while bundling",
    ],
)
def test_a_word_that_only_sounds_like_text_or_types_does_not_spare_the_check(title: str) -> None:
    assert pair(task(title), owner="engineer").checker == "tester"


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("Fix the typos in lexer.py", "it changes text beside the code"),
        ("Correct spelling in docstrings", "it changes text beside the code"),
        ("Add docstrings to the parser", "it changes text beside the code"),
        ("Update outdated code comments", "it changes text beside the code"),
        ("Update README.md and the changelog", "it changes text beside the code"),
        ("Add licence headers", "it changes text beside the code"),
        ("Annotate the parser with types", "it changes types only"),
        ("Fix type annotations of the parser", "it changes types only"),
        ("Types only: the parser", "it changes types only"),
        ("Refactoring of the parser", "it keeps the behaviour as it is"),
        ("Pure refactor: split the parser", "it keeps the behaviour as it is"),
    ],
)
def test_what_cannot_change_how_it_runs_is_not_tested(title: str, reason: str) -> None:
    assert pair(task(title), owner="engineer") == ("", reason)


@pytest.mark.parametrize(
    ("acceptance", "is_checked"),
    [
        ("--json prints one object. Without it the behaviour is unchanged.", True),
        ("- no change in behaviour for old files\n- new files have a header", True),
        ("- behaviour stays the same\n- all tests pass\n", False),
        ("No change of behaviour; the test suite stays green.", False),
        ("The tests pass.", True),
    ],
)
def test_behaviour_that_is_kept_spares_the_check_only_if_nothing_else_is_asked_for(
    acceptance: str, is_checked: bool
) -> None:
    assert (pair(task(acceptance=acceptance), owner="engineer").checker == "tester") is is_checked


def test_a_text_about_spelling_is_no_small_change_of_text() -> None:
    assert pair(task("Write a guide to our spelling"), owner="writer").checker == "reviewer"


def test_a_check_that_is_on_the_list_already_is_enough() -> None:
    assert pair(task(), owner="engineer", checks=[9, 7]) == ("", "task 7 checks it")


def test_every_exception_of_the_catalogue_is_known_here() -> None:
    from rolecall.plan_run.pairing import _EXCEPTION

    for name in catalog.load().vocabulary.task_exceptions:
        assert _EXCEPTION.findall(f"By {name}.") == [name]
