"""Answers as agents really write them: tolerated forms, ambiguous ones, hostile ones, arbitrary ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rolecall.store.schema import Type
from rolecall.workflow.reply import (
    MAX_FRONTMATTER,
    ParsedReply,
    ReplyProblem,
    Shape,
    Suspension,
    fit,
    from_words,
    parse,
    render,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"enum": ["done", "needs work"]},
        "summary": {"type": "string"},
        "count": {"type": "integer"},
    },
    "required": ["status", "summary"],
    "additionalProperties": False,
}
OPEN = {key: value for key, value in SCHEMA.items() if key != "additionalProperties"}
VARIANTS: dict[str, Any] = {
    "oneOf": [
        {"type": "object", "properties": {"$status": {"const": "approved"}}, "required": ["$status"]},
        {
            "type": "object",
            "properties": {
                "$status": {"const": "rejected"},
                "comments": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["$status", "comments"],
        },
    ]
}
OUTPUT = {"status": "done", "summary": "all well"}
FIELDS = "status: done\nsummary: all well\n"
ANSWER = f"---\n{FIELDS}---\n\n# Report\n\nIt works.\n"


def reply(text: str, schema: dict[str, Any] = SCHEMA) -> ParsedReply:
    result = parse(text, schema)
    assert isinstance(result, ParsedReply), result
    return result


def problem(text: str, schema: dict[str, Any] = SCHEMA) -> ReplyProblem:
    result = parse(text, schema)
    assert isinstance(result, ReplyProblem), result
    return result


# -- forms that are understood --


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        "\n\n  \n" + ANSWER,
        "\ufeff" + ANSWER,
        "\r\n\ufeff\t" + ANSWER,
        ANSWER.replace("\n", "\r\n"),
        ANSWER.replace("---\n\n", "...\n\n"),
        ANSWER.replace("---\n", "---  \n"),
        f"```yaml\n---\n{FIELDS}---\n```\n\n# Report\n\nIt works.",
        f"```yaml\n{FIELDS}```\n\n# Report\n\nIt works.",
        f"```yaml\n---\n{FIELDS}```\n\n# Report\n\nIt works.",
        f"```json\n{json.dumps(OUTPUT)}\n```\n\n# Report\n\nIt works.",
        f"```markdown\n{ANSWER}```\n",
        f"```\n{ANSWER}```",
        f"~~~~md\n{ANSWER}~~~~\n",
        "Here is my answer:\n\n" + ANSWER,
        "I looked at it.\n\n---\n\n" + ANSWER,
        f"Here it is:\n```markdown\n{ANSWER}```\n",
    ],
)
def test_tolerated_form_gives_the_same_output_and_body(text: str) -> None:
    result = reply(text)
    assert result.output == OUTPUT
    assert result.body == "# Report\n\nIt works."


def test_prose_after_a_fenced_answer_belongs_to_the_body() -> None:
    result = reply(f"Here it is:\n```markdown\n{ANSWER}```\nThat was all.")
    assert result.body == "# Report\n\nIt works.\nThat was all."


def test_code_fences_in_the_text_survive_an_outer_fence() -> None:
    assert reply(f"```markdown\n{ANSWER}\n```py\nx = 1\n```\nend\n```").body.endswith(
        "```py\nx = 1\n```\nend"
    )


def test_long_preamble_is_refused_with_the_line() -> None:
    assert "does not begin until line 41" in problem("prose\n" * 40 + ANSWER).reason


# -- forms that are refused --


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\ufeff\n", "empty"),
        ("I am done.", "no frontmatter"),
        (f"---\n{FIELDS}", "never closed"),
        (f"---\n{FIELDS}----\nbody", "never closed"),
        (f"---\n{FIELDS}  ---\nbody", "never closed"),
        ("---\ntitle: x\n---\nbody", "none of the expected fields"),
        ("---\n- status: done\n---\n", "none of the expected fields"),
        ("---\n[{status: done}]\n---\n", "not a mapping"),
        ("---\nstatus: done\ncount: [1\n---\n", "cannot be read"),
        ("---\nstatus: done\nstatus: done\nsummary: x\n---\n", "given twice"),
    ],
)
def test_text_without_a_readable_frontmatter_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in problem(text).reason


def test_every_misfit_is_listed() -> None:
    found = problem("---\nstatus: maybe\ncount: many\n---\n").misfits
    assert len(found) == 3
    assert any("/status" in misfit for misfit in found)
    assert any("/count" in misfit for misfit in found)
    assert any('"summary" is a required property' in misfit for misfit in found)


def test_misfits_of_a_variant_name_the_field_not_the_branches() -> None:
    assert problem("---\n$status: rejected\n---\n", VARIANTS).misfits == (
        '/: "comments" is a required property',
    )


# -- two blocks --


@pytest.mark.parametrize(
    "second",
    [
        "---\nstatus: needs work\nsummary: no\n---\n",
        "```yaml\nstatus: needs work\nsummary: no\n```\n",
        "```\n---\nstatus: needs work\nsummary: no\n---\n```\n",
        "---\nstatus: $SUSPEND\nreason: who decides?\n---\n",
    ],
)
def test_second_block_that_is_a_valid_answer_of_its_own_is_refused(second: str) -> None:
    assert "two blocks" in problem(f"{ANSWER}\n{second}").reason


@pytest.mark.parametrize(
    "more",
    [
        "---\n\nAfter a rule.\n\n---\n",
        "***\n---\n----\n",
        "```yaml\nname: other\nport: 80\n```\n",
        "```yaml\nstatus: running\n```\n",
        "---\nstatus: needs work\n---\n",
        "---\n" + FIELDS + "---\n",
        "---\nstatus: [\n---\n",
        "| a | b |\n|---|---|\n",
    ],
)
def test_rules_samples_and_repetitions_in_the_text_do_not_compete(more: str) -> None:
    result = reply(f"{ANSWER}\n{more}")
    assert result.output == OUTPUT
    assert result.body.endswith(more.rstrip("\n"))


def test_broken_frontmatter_is_not_replaced_by_a_sample_below_it() -> None:
    assert problem(f"---\nstatus: done\n---\ntext\n---\n{FIELDS}---\n").misfits == (
        '/: "summary" is a required property',
    )


# -- which fields enter the output --


def test_standard_fields_stay_with_the_body_where_the_schema_is_closed() -> None:
    extra = "next: reviewer\nconfidence: 0.9\nartifacts: [a.py]\nscope: role\n"
    result = reply(f"---\n{FIELDS}{extra}---\nbody")
    assert result.output == OUTPUT
    assert result.body == "next: reviewer\nconfidence: 0.9\nartifacts: [a.py]\nscope: role\n\nbody"


def test_standard_fields_enter_an_open_schema() -> None:
    result = reply(f"---\n{FIELDS}next: reviewer\n---\nbody", OPEN)
    assert result.output == {**OUTPUT, "next": "reviewer"}
    assert result.body == "body"


@pytest.mark.parametrize("schema", [SCHEMA, OPEN])
def test_unknown_fields_stay_with_the_body(schema: dict[str, Any]) -> None:
    result = reply(f"---\n{FIELDS}mood: [fine, 'it: is']\n---\nbody", schema)
    assert result.output == OUTPUT
    assert result.body == 'mood: [fine, "it: is"]\n\nbody'


def test_fields_of_every_branch_and_pattern_are_taken() -> None:
    schema = {
        "type": "object",
        "allOf": [{"properties": {"a": {"type": "integer"}}}, {"anyOf": [{"properties": {"b": {}}}]}],
        "patternProperties": {"^x-": {"type": "string"}},
    }
    result = reply("---\na: 1\nb: 2\nx-c: three\nd: 4\n---\n", schema)
    assert result.output == {"a": 1, "b": 2, "x-c": "three"}
    assert result.body == "d: 4"


def test_schema_of_additional_fields_takes_every_field() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert reply("---\nanything: 1\n---\n", schema).output == {"anything": 1}


def test_schema_without_fields_takes_the_whole_text_as_body() -> None:
    assert reply("Just text.\n", {}).body == "Just text."
    assert reply("---\ntitle: x\n---\ntext", {}).body == "---\ntitle: x\n---\ntext"
    assert reply("---\nstatus: done\n---\ntext", {}) == ParsedReply({"status": "done"}, "text")


# -- statuses and repairs --


def test_status_and_dollar_status_stand_for_each_other() -> None:
    assert reply("---\nstatus: approved\n---\n", VARIANTS).output == {"$status": "approved"}
    assert reply("---\n$status: done\nsummary: x\n---\n").output == {"status": "done", "summary": "x"}


def test_status_is_matched_without_case_and_says_so() -> None:
    result = reply("---\nstatus: ' Needs Work '\nsummary: x\n---\n")
    assert result.output["status"] == "needs work"
    assert result.repairs == ("status ' Needs Work ' is read as 'needs work'",)


def test_statuses_that_differ_only_by_case_are_matched_exactly() -> None:
    schema = {"type": "object", "properties": {"status": {"enum": ["Done", "done"]}}}
    assert reply("---\nstatus: done\n---\n", schema).output == {"status": "done"}
    assert problem("---\nstatus: DONE\n---\n", schema).misfits


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1.10", "1.10"),
        ("007", "007"),
        ("true", "true"),
        ("Fixed: the crash", "Fixed: the crash"),
        ("`code` first", "`code` first"),
        ("[x] ticked  # comment", "[x] ticked"),
        ('"1.10"', "1.10"),
        ("|\n  two\n  lines", "two\nlines\n"),
    ],
)
def test_string_field_is_the_text_as_written(written: str, read: str) -> None:
    assert reply(f"---\nstatus: done\nsummary: {written}\n---\n").output["summary"] == read


@pytest.mark.parametrize("written", ["", "null", "[a, b]", "{a: 1}"])
def test_string_field_given_something_else_fails(written: str) -> None:
    assert any(
        "/summary" in misfit for misfit in problem(f"---\nstatus: done\nsummary: {written}\n---\n").misfits
    )


def test_number_field_stays_a_number() -> None:
    assert reply(f"---\n{FIELDS}count: 3\n---\n").output["count"] == 3
    assert problem(f"---\n{FIELDS}count: '3'\n---\n").misfits


# -- suspension --


@pytest.mark.parametrize("schema", [SCHEMA, VARIANTS, {}])
@pytest.mark.parametrize("name", ["status", "$status"])
def test_suspension_is_accepted_whatever_the_schema(name: str, schema: dict[str, Any]) -> None:
    text = f"---\n{name}: $SUSPEND\nreason: 'Which one: A or B?'\nseen: 2\n---\nDetails."
    assert parse(text, schema) == Suspension("Which one: A or B?", "seen: 2\n\nDetails.")


def test_suspension_takes_its_reason_from_the_text_and_needs_one() -> None:
    assert parse("---\nstatus: $SUSPEND\n---\nWhich one?\n\nMore.", SCHEMA) == Suspension(
        "Which one?", "Which one?\n\nMore."
    )
    assert "needs a field `reason`" in problem("---\nstatus: $SUSPEND\n---\n").reason
    assert isinstance(fit({"status": "$SUSPEND"}, SCHEMA), ReplyProblem)


# -- hostile input --

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "fields",
    [
        BOMB + FIELDS,
        "status: !!python/object/apply:os.system [id]\n",
        "status: !include /etc/passwd\n",
        "status: " + "[" * 100_000 + "\n",
        "status: " + "{a: " * 50_000 + "\n",
        "status: &a [*a]\n",
        "status: \x00\x01\x02\n",
        "status: .nan\nsummary: x\n",
        'status: done\nsummary: "\\ud800"\n',
        "? [status]\n: done\nstatus: done\n",
        "summary: " + "9" * 100_000 + "\nstatus: 1" + "0" * 5000 + "\n",
        "summary: " + "x" * 10_000_000 + "\n",
        "status: done\n" * 20_000,
    ],
)
def test_hostile_frontmatter_is_refused_with_a_short_reason(fields: str) -> None:
    found = problem(f"---\n{fields}---\nbody")
    assert 0 < len(found.reason) < 500
    assert all(len(misfit) < 1000 for misfit in found.misfits)


@pytest.mark.parametrize(
    "text",
    [
        "---\n" * 200_000,
        "```\n" * 200_000,
        "\n" * 1_000_000,
        "\x00" * 1_000_000,
        "status: x\n---\n" * 50_000,
        "," * 500_000,
    ],
)
def test_flood_of_markers_is_refused(text: str) -> None:
    problem(text)


def test_flood_of_possible_answers_is_refused() -> None:
    assert "more than 64 blocks" in problem(ANSWER + "---\nsummary: x\n" * 1000).reason


def test_frontmatter_up_to_the_limit_is_read() -> None:
    long = "x" * (MAX_FRONTMATTER - 1000)
    assert reply(f"---\nstatus: done\nsummary: {long}\n---\n").output["summary"] == long
    assert "bytes" in problem(f"---\nstatus: done\nsummary: {long * 2}\n---\n").reason


def test_lone_surrogates_never_reach_the_body() -> None:
    assert reply(ANSWER + "\ud800").body.endswith("\ufffd")
    result = fit({**OUTPUT, "odd": "\ud800", "\udfff": 1}, SCHEMA)
    assert isinstance(result, ParsedReply)
    assert result.body.encode()


# -- arbitrary input --

PIECES = st.sampled_from(
    [
        "---",
        "...",
        "----",
        "```",
        "```yaml",
        "```markdown",
        "status: done",
        "status: $SUSPEND",
        "summary: x",
        "reason: y",
        "  ---",
        "\ufeff",
        "\r",
        "- a",
        "count: 1",
        "count: {",
        "&a",
        "*a",
        "# Title",
        "text",
        "",
        "mood: 'x'",
        "next: a",
    ]
)


def check(text: str, schema: dict[str, Any]) -> None:
    result = parse(text, schema)
    if isinstance(result, ReplyProblem):
        assert result.reason
    elif isinstance(result, Suspension):
        assert result.reason.strip()
    else:
        assert Type(schema).misfits(result.output) == []
        result.body.encode()


@settings(max_examples=300, deadline=None)
@given(st.text(), st.sampled_from([SCHEMA, OPEN, VARIANTS, {}]))
def test_arbitrary_text_gives_a_valid_output_or_a_reason(text: str, schema: dict[str, Any]) -> None:
    check(text, schema)
    check(f"---\n{text}\n---\n", schema)
    check(f"---\nstatus: done\nsummary: {text}\n---\n", schema)


@settings(max_examples=500, deadline=None)
@given(st.lists(PIECES, max_size=25), st.sampled_from([SCHEMA, OPEN, VARIANTS, {}]))
def test_arbitrary_lines_give_a_valid_output_or_a_reason(lines: list[str], schema: dict[str, Any]) -> None:
    check("\n".join(lines), schema)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_answer_gives_a_valid_output_or_a_reason(data: st.DataObject) -> None:
    text = f"Hello\n```markdown\n{ANSWER}```\n"
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    check(text[:start] + data.draw(st.text(max_size=5)) + text[end:], SCHEMA)


WORDS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=4), WORDS)
def test_rendered_answer_is_always_understood(fields: dict[str, Any], text: str) -> None:
    schema = {
        "type": "object",
        "properties": {name: {} for name in [*fields, "summary"]},
        "required": ["summary"],
    }
    output = {**fields, "summary": text}
    assume(not Shape(schema).misfits(output))
    assert reply(render(output, "Text."), schema) == ParsedReply(output, "Text.")


def test_patterns_of_properties_cannot_run_away() -> None:
    schema = {"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}}
    found = parse(f"---\n{'a' * 60}!: x\naaa: y\n---\n", schema)
    assert isinstance(found, ParsedReply) and found.output == {"aaa": "y"}


STATUS = {
    "type": "object",
    "properties": {"status": {"enum": ["approved", "needs work"]}},
    "required": ["status"],
}
MESSAGE = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
TALK: dict[str, Any] = {
    "oneOf": [
        {
            "properties": {"status": {"const": "said"}, "message": {"type": "string"}},
            "required": ["status", "message"],
        },
        {"properties": {"status": {"const": "over"}}, "required": ["status"]},
    ]
}


@pytest.mark.parametrize(
    ("words", "schema", "output", "body"),
    [
        ("Go on.", {"type": "object"}, {}, "Go on."),
        ("Go on: now.", MESSAGE, {"message": "Go on: now."}, ""),
        ("Approved.", STATUS, {"status": "approved"}, ""),
        ("needs work: the name\nis wrong", STATUS, {"status": "needs work"}, "the name\nis wrong"),
        ("approved\n\nWell done.", STATUS, {"status": "approved"}, "Well done."),
        ("said: What is next?", TALK, {"status": "said", "message": "What is next?"}, ""),
        ("over", TALK, {"status": "over"}, ""),
        ("done: all well", SCHEMA, OUTPUT, ""),
        ('{"status": "done", "summary": "all well"}', SCHEMA, OUTPUT, ""),
        (ANSWER, SCHEMA, OUTPUT, "# Report\n\nIt works."),
    ],
)
def test_words_of_a_person_become_an_output(words: str, schema: Any, output: Any, body: str) -> None:
    found = from_words(words, schema)
    assert isinstance(found, ParsedReply), found
    assert (found.output, found.body) == (output, body)


@pytest.mark.parametrize(
    ("words", "schema", "reason"),
    [
        ("I think so", STATUS, "it must begin with approved or needs work"),
        ("What is next?", TALK, "it must begin with said or over"),  # nobody's decision is guessed
        ("approved of by all", STATUS, "it must begin with approved or needs work"),
        ("rejected", VARIANTS, "'rejected' needs more than words"),
        (
            "all well",
            {"properties": {"count": {"type": "integer"}}, "required": ["count"]},
            "it needs more than words",
        ),
        ("done", SCHEMA, "'done' needs more than words"),
        ("{" * 100_000, SCHEMA, "it must begin with done or needs work"),
    ],
)
def test_words_that_leave_a_choice_open_are_refused(words: str, schema: Any, reason: str) -> None:
    found = from_words(words, schema)
    assert isinstance(found, ReplyProblem), found
    assert found.reason == reason and found.misfits
