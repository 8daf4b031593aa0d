"""Pictures of workflows: every role and edge is in them, whatever the graph, and no text breaks out."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.workflow import draw
from rolecall.workflow.model import (
    END,
    FAIL,
    START,
    Condition,
    Edge,
    Group,
    Limits,
    StoredRole,
    StoredWorkflow,
)

SOLVE = StoredWorkflow(
    "solve-issue",
    description="End-to-end issue resolution",
    version="2",
    roles={
        "planner": StoredRole("Plans", agent="human"),
        "developer": StoredRole("Writes"),
        "reviewer": StoredRole("Reads"),
    },
    graph={
        START: (Edge("planner"),),
        "planner": (Edge("developer"),),
        "developer": (Edge("reviewer"),),
        "reviewer": (Edge("developer", condition="notApproved"), Edge(END)),
    },
    conditions={"notApproved": Condition("steps[-1].output.approved = false")},
    limits=Limits(steps=30),
)


def test_the_ways_a_thread_went_stand_out_in_the_picture() -> None:
    svg = draw.to_svg(SOLVE, taken={(START, "planner"), ("planner", "developer")})
    ElementTree.fromstring(svg)
    assert (svg.count('<g class="taken">'), svg.count('<g class="unused">')) == (5, 5)
    assert "taken" not in draw.to_svg(SOLVE)


def test_text_shows_the_way_the_loop_and_its_condition() -> None:
    assert draw.to_text(SOLVE) == (
        """\
solve-issue 2: End-to-end issue resolution

   $START
      │
┌─────▼─────┐
│  planner  │
└─────┬─────┘
      │
┌─────▼─────┐
│ developer │ ◀───────────────┐
└─────┬─────┘                 │
      │                       │
┌─────▼─────┐                 │
│ reviewer  ├─↺ notApproved ──┘
└─────┬─────┘
      │ otherwise
      ▼
    $END

notApproved  steps[-1].output.approved = false

Suspended after 30 steps.
"""
    )


def test_groups_show_who_plays_them() -> None:
    team = ("backend", "docs")
    workflow = StoredWorkflow(
        "do-work",
        roles={
            "reviewer": StoredRole(group=Group(each="steps[-1].output.files", agents=("claude", "codex"))),
            "judge": StoredRole(group=Group(times=3)),
            "team": StoredRole(group=Group(roles=team)),
            **dict.fromkeys(team, StoredRole()),
        },
        graph={
            START: (Edge("reviewer"),),
            "reviewer": (Edge("judge"),),
            "judge": (Edge("team"),),
            "team": (Edge(END),),
        },
    )
    assert draw.to_text(workflow) == (
        """\
do-work

         $START
           │
┌──────────▼───────────┐
│   reviewer × each    │
└──────────┬───────────┘
           │
┌──────────▼───────────┐
│      judge × 3       │
└──────────┬───────────┘
           │
┌──────────▼───────────┐
│ team: backend + docs │
└──────────┬───────────┘
           │
           ▼
          $END
"""
    )
    assert 'n1[["reviewer × each"]]' in draw.to_mermaid(workflow)
    svg = draw.to_svg(workflow)
    assert [
        text for text in ("× each claude, codex", "× 3", "backend + docs") if f">{text}<" not in svg
    ] == []
    assert svg.count('<rect class="box"') == 6


def test_rails_of_branches_cross_and_meet() -> None:
    workflow = StoredWorkflow(
        "sort-ticket",
        roles={"triage": StoredRole(), "coder": StoredRole(), "answerer": StoredRole()},
        graph={
            START: (Edge("triage"),),
            "triage": (Edge("coder", "bug"), Edge("answerer", "question"), Edge(FAIL, "spam")),
            "coder": (Edge(END, "done"), Edge("coder", "again")),
            "answerer": (Edge(END, "done"), Edge("triage", "unclear")),
        },
    )
    assert draw.to_text(workflow) == (
        """\
sort-ticket

   $START
     │
┌────▼─────┐
│  triage  │ ◀─────────────────────┐
│          ├── question ────────┐  │
│          ├── spam ────────────┼──┼──┐
└────┬─────┘                    │  │  │
     │ bug                      │  │  │
┌────▼─────┐                    │  │  │
│  coder   │ ◀────────────┐     │  │  │
│          ├── done ──────┼──┐  │  │  │
│          ├─↺ again ─────┘  │  │  │  │
└──────────┘                 │  │  │  │
                             │  │  │  │
┌──────────┐                 │  │  │  │
│ answerer │ ◀───────────────┼──┘  │  │
│          ├─↺ unclear ──────┼─────┘  │
└────┬─────┘                 │        │
     │ done                  │        │
     ▼                       │        │
    $END ◀───────────────────┘        │
                                      │
   $FAIL ◀────────────────────────────┘
"""
    )


def test_mermaid_names_places_by_number_and_escapes_labels() -> None:
    workflow = StoredWorkflow(
        "ask-once",
        roles={"asker": StoredRole()},
        graph={START: (Edge("asker"),), "asker": (Edge(END, 'said "no" <b>#1'), Edge("asker", "again"))},
    )
    assert draw.to_mermaid(workflow) == (
        "flowchart TD\n"
        '    n0(["$START"])\n'
        '    n1["asker"]\n'
        '    n2(["$END"])\n'
        "    n0 --> n1\n"
        '    n1 -->|"said #34;no#34; #60;b#62;#35;1"| n2\n'
        '    n1 -.->|"again"| n1\n'
    )


def test_a_stored_workflow_without_order_is_drawn_like_its_file() -> None:
    shuffled = StoredWorkflow(
        SOLVE.name,
        SOLVE.description,
        SOLVE.version,
        dict(sorted(SOLVE.roles.items(), reverse=True)),
        dict(sorted(SOLVE.graph.items(), reverse=True)),
        SOLVE.conditions,
        SOLVE.limits,
    )
    for picture in (draw.to_text, draw.to_svg, draw.to_mermaid):
        assert picture(shuffled) == picture(SOLVE)


def test_svg_is_self_contained_and_follows_the_reader_between_light_and_dark() -> None:
    svg = draw.to_svg(SOLVE)
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts == [
        *("solve-issue 2", "End-to-end issue resolution", "notApproved", "otherwise"),
        *("$START", "planner", "human", "developer", "reviewer", "$END"),
    ]
    assert "prefers-color-scheme: dark" in svg
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|<script|url\(", svg)


def test_hostile_texts_stay_texts_in_svg() -> None:
    evil = "</text><script>alert(1)</script>&\x1b[31m\x00\ud800"
    workflow = StoredWorkflow(
        "draw-evil",
        description=evil,
        version=evil,
        roles={"one": StoredRole(evil, agent=evil)},
        graph={START: (Edge("one"),), "one": (Edge(END, evil),)},
    )
    svg = draw.to_svg(workflow)
    root = ElementTree.fromstring(svg.encode())
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert "\x1b" not in draw.to_text(workflow)


NAMES = [f"role{number}" for number in range(7)]


@st.composite
def workflows(draw_: st.DrawFn) -> StoredWorkflow:
    names = draw_(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    targets = st.lists(st.sampled_from([*names, END, FAIL]), min_size=1, max_size=4)
    graph = {name: tuple(Edge(to, f"s{i}") for i, to in enumerate(draw_(targets))) for name in names}
    first = draw_(st.sampled_from(names))
    return StoredWorkflow(
        "draw-any", roles={name: StoredRole() for name in names}, graph={START: (Edge(first),), **graph}
    )


@given(workflow=workflows())
@settings(max_examples=150, deadline=None)
def test_every_place_and_every_label_is_in_every_picture(workflow: StoredWorkflow) -> None:
    pictures = [draw.to_text(workflow), draw.to_svg(workflow), draw.to_mermaid(workflow)]
    lines = draw.picture(workflow).lines
    for shown in pictures:
        assert [name for name in (START, *workflow.roles) if name not in shown] == []
        assert [line.label for line in lines if line.label not in shown] == []


@given(workflow=workflows())
@settings(max_examples=150, deadline=None)
def test_boxes_and_labels_of_a_layer_never_overlap(workflow: StoredWorkflow) -> None:
    for layer in draw._Layout(draw.picture(workflow), workflow).layers:
        edges = [(cell.x - cell.width / 2, cell.x + cell.width / 2) for cell in layer]
        assert all(left[1] < right[0] for left, right in pairwise(edges))


@given(workflow=workflows())
@settings(max_examples=100, deadline=None)
def test_all_lines_but_loops_lead_to_a_later_layer(workflow: StoredWorkflow) -> None:
    shown = draw.picture(workflow)
    for line in shown.lines:
        if not line.is_loop:
            assert shown.layers[line.source] < shown.layers[line.target]


@pytest.mark.parametrize("count", [1, 60])
def test_a_long_chain_is_drawn_in_order(count: int) -> None:
    names = [f"step{number}" for number in range(count)]
    graph = {one: (Edge(other),) for one, other in zip([START, *names], [*names, END], strict=True)}
    text = draw.to_text(StoredWorkflow("walk-far", roles={name: StoredRole() for name in names}, graph=graph))
    assert re.findall(r"step\d+", text) == names
