"""Conditions: what holds, what is refused before it can hurt, what is stopped."""

from __future__ import annotations

import resource
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.workflow import condition

START = {"workflow": "W", "prompt": "Fix it", "cwd": "/work"}
STEPS: list[dict[str, Any]] = [
    {"role": "planner", "output": {"plan": "p"}},
    {"role": "developer", "output": {"files": ["a.py", "b.py"], "n": 0}},
    {"role": "reviewer", "output": {"approved": False, "comments": "No <tests>", "none": None, "empty": []}},
]

TRUTHS = {
    "steps[-1].output.approved = false": True,
    "steps[-1].output.approved": False,
    "$not(steps[-1].output.approved)": True,
    "steps[-2].role = 'developer' and steps[-1].role = 'reviewer'": True,
    "$count(steps[role = 'developer']) >= 1": True,
    "'a.py' in steps[-2].output.files": True,
    "$contains(steps[-1].output.comments, 'tests')": True,
    "$contains(steps[-1].output.comments, /no <t/i)": True,
    "steps[-1].output.none = null": True,
    "steps[-1].output.empty": False,
    "steps[-2].output.n": False,
    "steps[-1].output.absent": False,
    "$exists(steps[-1].output.absent)": False,
    "start.prompt = 'Fix it'": True,
    "steps_count > 2": True,
    "steps[0].role = 'planner'": True,
    "steps[-1].output.approved ? false : true": True,
    "steps[output.approved = false].role = 'reviewer'": True,
    "3 in [1..5]": True,
    "$fromMillis(0, '[Y]-[M01]') = '1970-01'": True,
    "steps[-2].role & '!' = 'developer!'": True,
    "$join(steps.role, ',') = 'planner,developer,reviewer'": True,
    "$contains('the test has failed', /(error|failed|panic)$/)": True,
}


@pytest.mark.parametrize(("expression", "truth"), TRUTHS.items())
def test_conditions_are_evaluated(expression: str, truth: bool) -> None:
    assert condition.check(expression) is None
    assert condition.evaluate(expression, start=START, steps=STEPS) is truth


REFUSED = {
    "": "empty",
    "steps[": "not JSONata",
    "1 +": "not JSONata",
    "x" * 3000: "longer than 2,000",
    "(" * 900 + "1" + ")" * 900: "nests",
    "($f := function($x) { $f($x) }; $f(1))": "not accepted",
    "$map(steps, function($s) { $s.role })": "functions of one's own",
    "steps ~> |output|{'a': 1}|": "transform",
    "$eval('1')": "$eval",
    "$random() > 0.5": "$random",
    "$now() > 'x'": "$now",
    "$pad('x', 1000000000)": "$pad",
    "$replace('a', 'a', 'b')": "$replace",
    "[1..9000000]": "range",
    "[1..steps_count]": "range",
    "steps@$x": "variables",
    "$lenght('x')": "did you mean $length?",
    "$__evaluate_entry": "not a function",
    "output.approved = false": "did you mean steps[-1].output?",
    "approved = false": "did you mean steps[-1].output.approved?",
    "step[-1].output.x": "did you mean steps?",
    "steps[-1].outptu.x": "did you mean 'output'?",
    "start.promt": "did you mean 'prompt'?",
}


@pytest.mark.parametrize(("expression", "reason"), REFUSED.items(), ids=[text[:20] for text in REFUSED])
def test_dangerous_and_mistaken_forms_are_refused(expression: str, reason: str) -> None:
    problem = condition.check(expression)
    assert problem is not None
    assert reason in problem
    with pytest.raises(UsageError):
        condition.evaluate(expression, start=START, steps=STEPS)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a+", "caat"),
        ("[a*+]+x", "*x"),
        (r"\*\+a*", "*+"),
        ("err(or)? [0-9]{3}", "error 404"),
        ("^done$|^ok$", "ok"),
        (r"(\d+)\.(\d+)", "1.25"),
        ("(na)+ .*man", "nana batman"),
    ],
)
def test_regular_expressions_are_accepted(pattern: str, text: str) -> None:
    expression = f"$contains(steps[-1].output.text, /{pattern}/)"
    assert condition.check(expression) is None
    for value, truth in ((text, True), ("x", False)):
        steps = [{"role": "a", "output": {"text": value}}]
        assert condition.evaluate(expression, start=START, steps=steps, seconds=20.0) is truth


def test_the_window_is_what_the_expression_looks_at() -> None:
    assert condition.window("steps[-1].output.a = 1 or steps[-3].role = 'x'") == 3
    assert condition.window("steps_count > 3 and start.prompt = 'x'") == 0
    assert condition.window("$count(steps) > 3") is None
    assert condition.window("$$.steps[-1].role = 'x'") is None
    assert condition.window("steps[0].role = 'x'") is None


def test_recent_steps_are_enough_for_an_expression_that_looks_at_them() -> None:
    assert condition.evaluate(
        "steps[-1].output.approved = false and steps_count = 900", start=START, steps=STEPS, steps_count=900
    )


def test_an_expression_over_all_steps_is_never_answered_from_some() -> None:
    with pytest.raises(UsageError) as caught:
        condition.evaluate("$count(steps) > 5", start=START, steps=STEPS, steps_count=900)
    assert "the last 3 of 900" in caught.value.message
    assert "steps[-1]" in caught.value.hint
    many = [STEPS[0]] * (condition.MAX_STEPS + 1)
    with pytest.raises(UsageError, match=r"the last 1000 of 1001"):
        condition.evaluate("$count(steps) > 5", start=START, steps=many)


def test_a_failing_evaluation_says_why() -> None:
    with pytest.raises(UsageError, match="must evaluate to a number"):
        condition.evaluate("steps[-1].role * 2 = 1", start=START, steps=STEPS)


def test_an_evaluation_that_hangs_is_stopped() -> None:
    expression = "$count(steps.($$.steps.($$.steps.($$.steps.role)))) > 0"
    with pytest.raises(UsageError, match=r"stopped after 0\.05 s"):
        condition.evaluate(expression, start=START, steps=STEPS * 30, seconds=0.05)


UNBOUNDED = {
    "$fromMillis(0, '[Y,999999999-*]') = 'x'": "stopped after",
    "$fromMillis(0, steps[-1].output.picture) = 'x'": "stopped after",
    "$formatInteger(steps[-1].output.n, 'I') = 'x'": "stopped after|failed",
    "$length($string([1..1000].($$.steps[-1].output.text))) > 1": "stopped after|failed",
    "$join([1..1000].($$.steps[-1].output.text)) = 'x'": "stopped after|failed",
    "$contains(steps[-1].output.text, /(a+)+b/)": "stopped after",
    "$contains(steps[-1].output.text, /(a|aa)+b/)": "stopped after",
    "$contains(steps[-1].output.text, /a*a*b/)": "stopped after",
    "$contains(steps[-1].output.text, /" + "(aa|a)" * 30 + "x/)": "stopped after",
    "$contains(steps[-1].output.text, /a?a?a?a?a?.*x/)": "stopped after",
    "$contains(steps[-1].output.text, /" + "[ab]" * 400 + "x/)": "stopped after",
}


@pytest.mark.parametrize(("expression", "reason"), UNBOUNDED.items(), ids=[text[:30] for text in UNBOUNDED])
def test_a_function_that_outgrows_its_limits_is_stopped(expression: str, reason: str) -> None:
    output = {"picture": "[Y,999999999-*]", "n": 10**14, "text": "a" * 2_000_000}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=reason):
        condition.evaluate(expression, start=START, steps=[{"role": "a", "output": output}], seconds=0.5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_a_function_may_take_a_second_unless_told_otherwise() -> None:
    with pytest.raises(UsageError, match=r"stopped after 1 s"):
        condition.evaluate("$fromMillis(0, '[Y,999999999-*]') = 'x'", start=START, steps=STEPS)


@pytest.mark.parametrize("expression", ["$sum", "[{'a': $sum}]", "[$string]"])
def test_a_list_of_functions_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="it gives a function"):
        condition.select(expression, start=START, steps=STEPS)


def test_plain_conditions_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/absent")
    assert condition.evaluate(
        "$count(steps[role = 'developer']) = 1 and $contains(steps[-1].output.comments, /no .tests/i)",
        start=START,
        steps=STEPS,
    )


def test_fields_of_outputs_are_listed() -> None:
    fields = condition.output_fields("steps[-1].output.a = 1 and steps[role='x'].output.b.c = 2")
    assert fields == (("a", 1, None), ("b", None, None))
    assert condition.output_fields("steps[-2].output.a.b") == (("a", 2, ("b",)),)
    assert condition.output_fields("steps[-2].output.a[b = 1].c") == (("a", 2, None),)


BITS = [
    "steps",
    "[-1]",
    "[",
    "]",
    "(",
    ")",
    ".",
    "output",
    "start",
    "$",
    "$count",
    "=",
    " and ",
    "'a'",
    "1",
    "..",
    "/a/",
]
BITS += [
    ":=",
    "function($x){",
    "}",
    "{",
    "|",
    "~>",
    "*",
    "**",
    "%",
    "@$i",
    "#$i",
    "^(",
    "?",
    ":",
    ",",
    "`",
    '"',
    "null",
]


@given(st.lists(st.sampled_from(BITS), max_size=12).map("".join) | st.text(max_size=30))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_condition_or_has_a_problem(expression: str) -> None:
    problem = condition.check(expression)
    try:
        result = condition.evaluate(expression, start=START, steps=STEPS)
    except UsageError as exc:
        assert problem is None or problem in exc.message
    else:
        assert problem is None
        assert isinstance(result, bool)
