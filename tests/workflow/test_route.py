"""Routing: every ending is a value, whatever the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from definitions import require
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.workflow import yaml
from rolecall.workflow.model import END, FAIL, START, Condition, Edge, StoredRole, StoredWorkflow
from rolecall.workflow.route import Ended, Failed, Next, Route, Stuck, Suspended, route, status_of

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK = {"workflow": "W", "prompt": "Fix the login", "cwd": "/work"}


def follow(
    workflow: StoredWorkflow, role: str, output: Any, *, count: int = 1, body: str = "the body"
) -> Route:
    steps = [{"role": role, "output": output}]
    return route(
        workflow, role=role, output=output, start=TASK, steps=steps, steps_count=count, thread="T1", body=body
    )


def of(*edges: Edge, **conditions: str) -> StoredWorkflow:
    return StoredWorkflow(
        name="do-it",
        roles={"a": StoredRole(), "b": StoredRole()},
        graph={"a": edges},
        conditions={name: Condition(expression) for name, expression in conditions.items()},
    )


class Unread(Mapping[str, Any]):
    """Outputs that nobody may look at."""

    def __getitem__(self, role: str) -> Any:
        raise AssertionError(role)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("iterated")

    def __len__(self) -> int:
        raise AssertionError("counted")


def test_outputs_of_earlier_roles_are_read_only_where_a_template_names_them() -> None:
    workflow = of(Edge("b", prompt="Go on with {{ note }}."))
    output = {"note": "it"}
    found = route(
        workflow, role="a", output=output, start=TASK, steps=[], steps_count=1, thread="T1", outputs=Unread()
    )
    assert found == Next("b", "Go on with it.", None)


def test_the_example_with_conditions_goes_round_until_approved() -> None:
    workflow = require(yaml.load_file(EXAMPLES / "solve-issue.yaml"))
    assert follow(workflow, START, {}, count=0) == Next("planner", "", None)
    assert follow(workflow, "planner", {"plan": "p", "steps": []}) == Next("developer", "", None)
    assert follow(workflow, "developer", {"filesChanged": [], "summary": ""}) == Next("reviewer", "", None)
    assert follow(workflow, "reviewer", {"approved": False, "comments": "no"}) == Next("developer", "", None)
    assert follow(workflow, "reviewer", {"approved": True, "comments": "yes"}) == Ended()


def test_the_same_example_as_a_status_map_goes_the_same_way_and_tells_why() -> None:
    workflow = require(yaml.load_file(EXAMPLES / "fix-issue.yaml"))
    assert follow(workflow, START, {}, count=0) == Next("planner", "", None)
    plan = follow(workflow, "planner", {"plan": "p & q", "steps": ["one", "two"]})
    assert plan == Next("developer", "Carry out this plan: p & q\n- one\n- two\n", None)
    done = {"$status": "done", "filesChanged": ["a.py", "b.py"], "summary": "Done."}
    assert follow(workflow, "developer", done) == Next(
        "reviewer", "Review the change in a.py, b.py. Done.", None
    )
    rejected = {"$status": "rejected", "comments": "Add a test."}
    assert follow(workflow, "reviewer", rejected) == Next(
        "developer", "The reviewer asks for changes: Add a test.", None
    )
    assert follow(workflow, "reviewer", {"$status": "approved", "comments": ""}) == Ended()
    blocked = {"$status": "blocked", "reason": "no access"}
    assert follow(workflow, "developer", blocked) == Failed("The developer is blocked: no access")


def test_templates_see_the_output_the_task_and_the_thread() -> None:
    edge = Edge(
        "b", prompt="{{x}} {{start.prompt}} {{thread}} {{steps_count}} {{body}}", location="/work/{{x}}"
    )
    assert follow(of(edge), "a", {"x": 0}) == Next("b", "0 Fix the login T1 1 the body", "/work/0")


def test_a_field_of_the_output_goes_before_what_is_always_there() -> None:
    assert follow(of(Edge("b", prompt="{{body}}")), "a", {"body": "mine"}) == Next("b", "mine", None)


def test_the_dollar_status_is_preferred() -> None:
    assert status_of({"status": "x", "$status": "y"}) == "y"
    assert status_of({"status": "x", "$status": 3}) == "x"
    assert status_of({"other": "x"}) is None
    assert status_of(None) is None


def test_fail_without_prompt_names_the_role() -> None:
    assert follow(of(Edge(FAIL)), "a", {}) == Failed("a led to $FAIL")


def test_a_suspending_role_is_suspended_with_its_reason_before_any_edge() -> None:
    workflow = of(Edge(END))
    assert follow(workflow, "a", {"$status": "$SUSPEND", "reason": "Which one?"}) == Suspended("Which one?")
    assert follow(workflow, "a", {"status": "$SUSPEND"}) == Suspended("a gave no reason")


STUCK = {
    "unknown status": (of(Edge(END, "done")), {"$status": "dome"}, ["'dome'", "it has: done"]),
    "no status": (of(Edge(END, "done")), {"x": 1}, ["no status", "it has: done"]),
    "no condition holds": (
        of(Edge(END, condition="never"), never="false"),
        {},
        ["none of the conditions", "never"],
    ),
    "condition fails": (
        of(Edge(END, condition="odd"), odd="'a' * 2 = 1"),
        {},
        ["odd:", "must evaluate to a number"],
    ),
    "condition unknown": (of(Edge(END, condition="gone")), {}, ["'gone' is not defined"]),
    "variable missing": (
        of(Edge("b", prompt="{{x}} {{y}}")),
        {"x": 1},
        ["a -> b", "{{y}} has no value", "Available"],
    ),
    "prompt blank": (of(Edge("b", prompt=" {{x}} ")), {"x": " "}, ["the prompt", "is blank", "{{x}}"]),
    "location blank": (of(Edge("b", location="{{x}}")), {"x": ""}, ["the location", "is blank"]),
    "template broken": (of(Edge("b", prompt="{{x")), {}, ["never closed"]),
    "target unknown": (of(Edge("gone")), {}, ["'gone'", "not a role"]),
    "no edges": (of(), {}, ["'a' has no edge"]),
    "output is no object": (of(Edge("b", prompt="{{x}}")), ["x"], ["{{x}} has no value"]),
}


@pytest.mark.parametrize(("workflow", "output", "words"), STUCK.values(), ids=STUCK)
def test_no_way_on_is_stuck_with_the_reason_and_what_to_do(
    workflow: StoredWorkflow, output: Any, words: list[str]
) -> None:
    result = follow(workflow, "a", output)
    assert isinstance(result, Stuck)
    assert [word for word in words if word not in result.reason] == []
    assert "Answer the thread" in result.reason


NAMES = st.sampled_from(["a", "b", START, END, FAIL, "$SUSPEND", "gone", "", "done"])
TEXTS = st.sampled_from(
    ["", " ", "{{x}}", "{{#x}}{{y}}{{/x}}", "{{", "{{start.prompt}}", "text", "{{start.prompt.x}}"]
)
EDGES = st.builds(
    Edge,
    role=NAMES,
    status=st.none() | st.sampled_from(["done", "failed", "$SUSPEND"]),
    condition=st.none() | st.sampled_from(["c", "d", "e", "gone"]),
    prompt=TEXTS,
    location=st.none() | TEXTS,
)
OUTPUTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("done"),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "$status", "status", "reason"]), part, max_size=4)
    ),
    max_leaves=10,
)


@given(st.lists(EDGES, max_size=4), NAMES, OUTPUTS)
@settings(max_examples=400, deadline=None)
def test_routing_is_total(edges: list[Edge], role: str, output: Any) -> None:
    workflow = StoredWorkflow(
        name="do-it",
        roles={"a": StoredRole(), "b": StoredRole()},
        graph={"a": tuple(edges)},
        conditions={
            "c": Condition("steps[-1].output.x = 1"),
            "d": Condition("steps["),
            "e": Condition("1 < 'a'"),
        },
    )
    assert isinstance(follow(workflow, role, output), (Next, Ended, Failed, Suspended, Stuck))
