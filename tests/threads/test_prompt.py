"""What an agent is told, compared with the files in snapshots/.

`python tests/test_prompt.py --update` writes the files anew; read the difference before keeping it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecall.threads.prompt import NEWEST_STEP_LIMIT, Prompt, ShownStep, assemble, correction, deliverable
from rolecall.workflow.model import StoredRole
from rolecall.workflow.reply import ParsedReply, ReplyProblem, Suspension, parse

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
COMMAND = "rolecall thread read 06GB0000000000000000000000"

PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "plan": {"type": "string", "minLength": 10, "description": "The plan in one sentence."},
        "steps": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "risk": {"enum": ["low", "high"]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "owner": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "team": {"type": ["string", "null"]}},
            "required": ["name"],
        },
        "extra": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    },
    "required": ["plan", "steps", "risk", "owner"],
    "additionalProperties": False,
}
VARIANTS: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"$status": {"const": "approved"}, "note": {"type": "string"}},
            "required": ["$status"],
        },
        {
            "type": "object",
            "properties": {
                "$status": {"const": "rejected"},
                "comments": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "What has to change.",
                },
            },
            "required": ["$status", "comments"],
        },
    ]
}
PLANNER = StoredRole(
    description="Plans the work.",
    prompt="Turn the task into steps that can be checked.",
    capabilities=("issue-analysis", "planning"),
    procedure="Read the code first.\nThen write the plan.",
    output="The plan and its steps.",
    schema=PLAIN,
)
REVIEWER = StoredRole(prompt="Judge the change.", schema=VARIANTS)
STEPS = [
    ShownStep(
        4,
        "reviewer",
        {"$status": "rejected", "comments": ["no test"]},
        "# Findings\n\nA test is missing.",
        "codex",
    ),
    ShownStep(3, "developer", {"status": "done"}, "Changed `a.py`.", "claude-code"),
    ShownStep(2, "reviewer", {"$status": "rejected", "comments": ["naïve"]}, "", "codex"),
    ShownStep(1, "planner", {"plan": "x"}, "Plan " * 100, "claude-code"),
]


def ask(role: StoredRole = REVIEWER, *, name: str = "reviewer", **changes: Any) -> Prompt:
    asked: dict[str, Any] = {
        "task": "Fix the login.\n\nIt redirects twice.",
        "newest_first": STEPS,
        "instruction": "Review step 4 again.",
        "show_command": COMMAND,
        **changes,
    }
    return assemble(role, name=name, **asked)


def snapshots() -> dict[str, str]:
    return {
        "first-role": ask(PLANNER, name="planner", newest_first=[], instruction="Plan the work.").text,
        "later-role": ask().text,
        "later-role-within-quota": ask(quota=400).text,
        "session-goes-on": ask(newest_first=STEPS[:2], last_turn=2).text,
        "role-without-schema": ask(
            StoredRole(prompt="Say hello."), name="greeter", newest_first=[], instruction=""
        ).text,
        "correction": correction(
            ReplyProblem("the fields do not fit the schema", ("/: one", "/a: two")), VARIANTS
        ),
    }


@pytest.mark.parametrize("name", snapshots())
def test_prompt_is_exactly_the_kept_one(name: str) -> None:
    assert snapshots()[name] == (SNAPSHOTS / f"{name}.md").read_text(encoding="utf-8")


def test_every_kept_prompt_is_compared() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.md")} == set(snapshots())


def test_parts_come_in_the_fixed_order() -> None:
    names = list(dict.fromkeys(part.name for part in ask().parts))
    assert names == ["deliver", "scope", "role", "task", "happened", "step", "instruction"]
    names = list(dict.fromkeys(part.name for part in ask(last_turn=2).parts))
    assert names == ["happened", "step", "instruction", "reminder"]


def test_what_does_not_change_is_the_same_prefix_at_every_step() -> None:
    first, second = ask(newest_first=STEPS[2:], instruction="Go.").text, ask().text
    start = first.index("# What happened")
    assert first[:start] == second[:start]
    assert first[:start].endswith("It redirects twice.\n\n")


def test_task_of_a_megabyte_is_never_cut() -> None:
    task = "word " * 250_000
    assert task in ask(task=task).text


def test_history_is_read_only_as_far_as_it_is_shown() -> None:
    def steps() -> Iterator[ShownStep]:
        yield ShownStep(1000, "a", {}, "x" * 3000)
        yield ShownStep(999, "b", {}, "y" * 3000)
        yield ShownStep(998, "c", {}, "z" * 3000)
        raise AssertionError("a step was read that cannot be shown")

    text = ask(newest_first=steps()).text
    assert "## Step 999: b" in text
    assert "z" * 3000 not in text
    assert f"Steps 1 to 998 (998 steps) are not shown here. To read more: `{COMMAND}`" in text
    assert text.index("## Step 999") < text.index("## Step 1000")


def test_newest_step_is_shown_whatever_the_quota() -> None:
    text = ask(newest_first=[ShownStep(2, "a", {"n": 1}, "x" * 9000), ShownStep(1, "b", {})], quota=1).text
    assert "x" * 9000 in text
    assert "Step 1 is not shown here" in text
    text = ask(newest_first=[ShownStep(2, "a", {}, "x" * 9000), ShownStep(1, "b", {}, "the plan")]).text
    assert "the plan" in text


def test_newest_step_without_bound_is_cut_and_says_so() -> None:
    text = ask(newest_first=[ShownStep(1, "a", {"n": 1}, "x" * (NEWEST_STEP_LIMIT + 1234))]).text
    assert len(text) < NEWEST_STEP_LIMIT + 5000
    assert "[1,234 more characters. To read them:" in text


def test_a_group_too_large_to_show_is_cut_between_members_and_says_so() -> None:
    members = [{"number": number, "output": "x" * 1000} for number in range(1, 201)]
    output = {"status": "done", "members": members, "count": 200}
    prompt = ask(newest_first=[ShownStep(1, "a", output, "", "group")])
    assert '"number": 90' in prompt.text
    assert '"number": 110' not in prompt.text
    assert re.search(r"\[10\d more members. To read them: `rolecall", prompt.text)
    # Its text is kept whole: rendered again without the command it would be another.
    assert [part.step for part in prompt.parts if part.name == "step"] == [None]
    small = ask(newest_first=[ShownStep(1, "a", {**output, "members": members[:5]}, "", "group")])
    assert [part.step for part in small.parts if part.name == "step"] == [1]
    assert "more members" not in small.text


def test_session_that_goes_on_gets_only_steps_after_its_last_turn() -> None:
    text = ask(last_turn=3).text
    assert "## Step 4" in text
    assert "## Step 3" not in text
    assert "not shown" not in text
    assert "redirects twice" not in text


def test_session_that_goes_on_without_news_still_gets_its_instruction() -> None:
    assert [part.name for part in ask(newest_first=STEPS, last_turn=4).parts] == ["instruction", "reminder"]


@pytest.mark.parametrize("schema", [PLAIN, *(branch for branch in VARIANTS["oneOf"])])
def test_example_in_the_prompt_is_itself_a_valid_answer(schema: dict[str, Any]) -> None:
    text = deliverable(schema)
    example = text[text.index("For example:\n\n") + 14 : text.index("\n\nUse no other fields")]
    result = parse(example, schema)
    assert isinstance(result, ParsedReply), result
    assert result.body == "Your report."


def test_branches_that_no_status_tells_apart_are_shown_as_the_schema() -> None:
    assert '"anyOf": [{"required": ["a"]}' in deliverable(
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        }
    )


@pytest.mark.parametrize("schema", [PLAIN, VARIANTS, {}])
def test_suspension_in_the_prompt_is_understood(schema: dict[str, Any]) -> None:
    text = deliverable(schema)
    assert isinstance(parse(text[text.rindex("---\n$status") :], schema), Suspension)


def test_correction_names_the_reason_every_misfit_and_the_form() -> None:
    found = parse("---\n$status: rejected\n---\n", VARIANTS)
    assert isinstance(found, ReplyProblem)
    text = correction(found, VARIANTS)
    assert '- /: "comments" is a required property' in text
    assert "Send only the corrected answer" in text
    assert deliverable(VARIANTS) in text


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    for name, text in snapshots().items():
        (SNAPSHOTS / f"{name}.md").write_text(text, encoding="utf-8")
