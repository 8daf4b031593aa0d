"""A run as an HTML page: what it shows, what it never lets through, and how large it gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from evalstage import store_run

import rolecall.api as api
from rolecall.errors import UsageError
from rolecall.evals import html
from rolecall.evals.records import EvalRun
from rolecall.evals.results import Report
from rolecall.evals.tasks import EvalTask
from rolecall.settings.mask import MASKED, Mask
from rolecall.store.store import Store

HOSTILE = "</table><script>alert(1)</script> & \"quoted' <img src=x onerror=y> [x](javascript:z)"


@pytest.fixture
def store() -> Iterator[Store]:
    with api.open(":memory:") as rolecall:
        yield rolecall.store


class Page(HTMLParser):
    """The page as a browser would see it: tags with their attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.cells: list[tuple[str, str]] = []
        """The kind and the text of each cell of the table of tasks."""
        self._is_table = self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self._is_table |= given.get("class") == "cells"
        if self._is_table and tag == "td":
            self.cells.append((given.get("class") or "", ""))
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_table &= tag != "table"
        self._is_cell &= tag != "td"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._is_cell:
            kind, text = self.cells[-1]
            self.cells[-1] = kind, text + data


def show(store: Store, run: EvalRun, mask: Mask | None = None, base: str = "") -> Page:
    page = html.make_page(store, Report(run), mask=mask or Mask([]), base=base)
    return Page(page)


def test_each_cell_says_in_words_and_colour_how_often_its_threads_passed(store: Store) -> None:
    outcomes = {
        0: ("passed", "passed", "passed"),
        1: ("failed", "failed", "failed"),
        2: ("passed", "failed", "passed"),
        3: ("infrastructure", "infrastructure", "infrastructure"),
        4: ("passed", "infrastructure", ""),
        5: ("", "", ""),
    }
    run = store_run(
        store, ["only"], tasks=6, repeat=3, outcome=lambda _variant, task, repeat: outcomes[task][repeat]
    )
    assert show(store, run).cells == [
        ("pass", "3/3✓✓✓"),
        ("fail", "0/3✗✗✗"),
        ("part s7", "2/3✓✗✓"),
        ("none", "⚠⚠⚠"),
        ("pass", "1/1✓⚠"),
        ("", ""),
    ]


def test_each_sign_leads_to_the_row_of_its_thread(store: Store) -> None:
    run = store_run(store, tasks=3, repeat=2)
    page = show(store, run)
    links = [given["href"] for tag, given in page.tags if tag == "a"]
    rows = [f"#{given['id']}" for tag, given in page.tags if tag == "tr" and "id" in given]
    assert len(links) == 12
    assert sorted(map(str, links)) == sorted(rows)
    for cell in run.cells:
        assert re.search(rf"<tr id=c{cell.number}>[^\n]*?<td>{cell.thread}<td>", page.source)


def test_the_page_says_what_was_run(store: Store) -> None:
    run = store_run(store, costs={"base": 0.1, "new": 0.2}, repeat=2)
    text = show(store, run).text
    for said in (
        f"fix-bug ({run.suite.node})",
        f"{run.id} ({run.node})",
        "16: variants × tasks × repeats = 2 × 4 × 2",
        "worker: scripted:a.yaml 1.2.3",
        run.suite.variants[0].workflow,
        "tests: command python3 test.py, decides",
        "16 passed",
        "pass^2",
        "cost per pass",
    ):
        assert said in text


def test_texts_are_escaped_and_secrets_are_masked(store: Store) -> None:
    run = store_run(
        store,
        tasks=[EvalTask("one", f"{HOSTILE} my-secret-word")],
        outcome=lambda *_: "failed",
        reason=f"{HOSTILE} my-secret-word",
        agent=f"scripted:{HOSTILE} my-secret-word",
        name=HOSTILE,
    )
    page = show(store, run, Mask(["my-secret-word"]))
    assert "my-secret-word" not in page.source
    assert MASKED in page.text
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "form"}
    for tag, given in page.tags:
        assert not [name for name in given if name.startswith("on") or name in ("style", "src")], (tag, given)
        assert (given.get("href") or "#").startswith("#")
    assert page.text.count("<script>alert(1)</script>") >= 4


def test_two_variants_are_compared_and_more_only_with_a_base(store: Store) -> None:
    two = store_run(store, tasks=8, outcome=lambda variant, *_: "passed" if variant == "new" else "failed")
    text = show(store, two).text
    assert "Differences from base" in text
    assert "+100 points" in text
    assert "task-0, task-1, task-2" in text
    assert "−100 points" in show(store, two, base="new").text
    three = store_run(store, ["a", "b", "c"])
    assert "Differences" not in show(store, three).text
    assert "Differences from b" in show(store, three, base="b").text
    with pytest.raises(UsageError, match="no variant 'd'") as raised:
        show(store, three, base="d")
    assert raised.value.hint == "It has a, b, c."


@pytest.mark.parametrize("outcome", ["", "infrastructure"])
def test_a_run_without_verdicts_has_a_page(store: Store, outcome: str) -> None:
    page = show(store, store_run(store, outcome=lambda *_: outcome, reason="the agent is missing"))
    assert len(page.cells) == 8
    assert "No task has a verdict in both." in page.text
    assert "Cost and quality" not in page.text
    assert page.text.count("the agent is missing") == (8 if outcome else 0)


def test_one_variant_and_no_cost_show_tokens(store: Store) -> None:
    page = show(store, store_run(store, ["only"], tasks=1))
    assert "Differences" not in page.text
    assert "tokens per thread" in page.text
    assert page.cells == [("pass", "✓")]


def test_names_beside_the_points_do_not_overlap(store: Store) -> None:
    names = [f"variant-{number}" for number in range(8)]
    run = store_run(store, names, costs=dict.fromkeys(names, 0.1))  # every point is at the same place
    page = show(store, run)
    places = [
        float(str(given["y"])) for tag, given in page.tags if tag == "text" and given.get("class") == "name"
    ]
    assert len(places) == 8
    assert all(below - above >= 17 for above, below in pairwise(places))
    height = next(str(given["viewbox"]) for tag, given in page.tags if given.get("class") == "plot")
    assert max(places) < float(height.split()[-1])


def test_a_large_run_fits_into_a_megabyte(store: Store) -> None:
    tasks = [EvalTask(f"task-{number:03}", "Mend the <parser> & the tests. " * 200) for number in range(200)]
    names = [f"variant-{number}" for number in range(6)]
    run = store_run(
        store,
        names,
        tasks=tasks,
        repeat=3,
        outcome=lambda _variant, task, repeat: "failed" if (task + repeat) % 2 else "passed",
        costs=dict.fromkeys(names, 0.1),
        reason="AssertionError: 2 != 3, and much more. " * 50,
    )
    page = html.make_page(store, Report(run), mask=Mask([]))
    assert len(page.encode()) < 1_000_000
    assert page.count('href="#c') == 3600
