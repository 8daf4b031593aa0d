"""Forms: one declaration reads a text, reports every problem at its place, and gives editors a JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.settings import form
from rolecall.settings.form import (
    At,
    Choice,
    Converted,
    Either,
    Field,
    Flag,
    ListOf,
    MapOf,
    Number,
    Record,
    RefusedKey,
    Text,
)


@dataclass(frozen=True)
class Rate:
    count: int


@dataclass(frozen=True)
class Job:
    name: str
    retries: int = 3
    mode: str = "fast"
    tags: tuple[str, ...] = ()
    rate: Rate | None = None
    is_on: bool = True


def rate(text: str) -> Rate:
    if not text.isdecimal():
        raise UsageError(f"is not a rate: {text!r}", hint="Write 30.")
    return Rate(int(text))


def no_slow_retries(job: Job, at: At) -> None:
    if job.mode == "slow" and job.retries > 5:
        (at / "retries").report("a slow job has at most 5 retries")


JOB = Record(
    Job,
    "a job",
    {
        "name": Field(Text(pattern="[a-z]+"), required=True, aliases=("title",)),
        "retries": Number(whole=True, least=0, most=9),
        "mode": Choice("fast", "slow"),
        "tags": ListOf(Text(least=1), allow_single=True),
        "rate": Either(
            "a rate", {str: Converted(Text(), rate), dict: Record(Rate, "a rate", {"count": Number()})}
        ),
        "on": Field(Flag(), to="is_on"),
        "secret": RefusedKey("a secret does not belong here", "Name a variable."),
    },
    check=no_slow_retries,
)
JOBS: Record[dict[str, Any]] = Record(
    dict, "the file", {"jobs": Field(MapOf(JOB, key="[a-z]+"), required=True)}
)


def problems(text: str) -> list[str]:
    return [str(one) for one in form.load(JOBS, text, source="j.yaml").problems]


def test_values_become_what_the_record_makes_and_the_rest_has_its_defaults() -> None:
    text = "jobs:\n  a: {name: x, tags: one, rate: '7', on: false}\n  b: {name: y, retries: null}\n"
    found = form.load(JOBS, text, source="j.yaml").require()
    assert found == {"jobs": {"a": Job("x", tags=("one",), rate=Rate(7), is_on=False), "b": Job("y")}}


def test_every_problem_is_reported_at_its_place() -> None:
    text = (
        "jobs:\n"
        "  a: {name: X, retries: 10, mode: fats}\n"
        "  b: {naem: y, tags: [1], rate: often}\n"
        "  c: {name: z, mode: slow, retries: 9, secret: s}\n"
        "  D: 3\n"
        "more: 1\n"
    )
    assert problems(text) == [
        "j.yaml:2:13: error: jobs.a.name must be text that matches [a-z]+, not 'X'",
        "j.yaml:2:25: error: jobs.a.retries must be a whole number from 0 to 9, not 10",
        "j.yaml:2:35: error: jobs.a.mode must be one of fast, slow, not 'fats'. Did you mean 'fast'?",
        "j.yaml:3:3: error: 'name' is missing in jobs.b. Keys of a job: name, retries, mode, tags, rate, on.",
        "j.yaml:3:7: error: 'naem' is not a key of a job. Did you mean 'name'? "
        "Keys: name, retries, mode, tags, rate, on.",
        "j.yaml:3:23: error: jobs.b.tags.0 must be text, not 1",
        "j.yaml:3:33: error: jobs.b.rate is not a rate: 'often'. Write 30.",
        "j.yaml:4:37: error: a slow job has at most 5 retries",
        "j.yaml:4:40: error: a secret does not belong here. Name a variable.",
        "j.yaml:5:3: error: the name 'D' is not accepted",
        "j.yaml:5:6: error: jobs.D must be a mapping, not 3",
        "j.yaml:6:1: error: 'more' is not a key of the file. Keys: jobs.",
    ]
    with pytest.raises(UsageError, match=r"j\.yaml cannot be used:\n  j\.yaml:2:13"):
        form.load(JOBS, text, source="j.yaml").require()


def test_an_older_word_is_read_and_not_accepted_beside_the_new_one() -> None:
    assert form.load(JOBS, "jobs: {a: {title: x}}", source="j").require() == {"jobs": {"a": Job("x")}}
    [problem] = problems("jobs: {a: {name: x, title: y}}")
    assert problem.startswith("j.yaml:1:21: error: 'title' means the same as 'name', so a job has it twice")


def test_a_part_that_is_not_yaml_has_one_problem() -> None:
    assert problems("jobs: {a: {name: !!int x}}") == ["j.yaml:1:18: error: 'x' is not of the type !!int"]


def test_problems_of_json_have_lines_and_columns_and_come_at_once() -> None:
    text = '{"jobs": {\n\t"a": {"name": "\\ud83d\\ude00", "naem": 1},\n  "b": 5}, "x": 1, "x": 2}'
    found = form.load_json(JOBS, text, source="j.json").problems
    assert [(one.line, one.column) for one in found] == [(2, 16), (2, 32), (3, 8), (3, 12), (3, 20)]
    assert "given twice" in found[4].message
    (broken,) = form.load_json(JOBS, '{\n "jobs": NaN, }', source="j.json").problems
    assert str(broken) == "j.json: error: not valid JSON: NaN is not a JSON value"
    (broken,) = form.load_json(JOBS, '{\n "jobs": }', source="j.json").problems
    assert str(broken) == "j.json:2:10: error: not valid JSON: Expecting value"


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        form.check_value(Text("the name of a variable", pattern="[A-Z]+", is_secret=True), "sk-1", ("key",))
    assert caught.value.message == "key must be the name of a variable"


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 11) | st.sampled_from(["x", "X", "fast", "7", ""]),
    lambda part: (
        st.lists(part, max_size=2) | st.dictionaries(st.sampled_from(["count", "x"]), part, max_size=2)
    ),
    max_leaves=4,
)


@example({"name": "x", "tags": ""})
@given(st.dictionaries(st.sampled_from(["name", "title", "retries", "mode", "tags", "on", "x"]), VALUES))
@settings(max_examples=300, deadline=None)
def test_the_json_schema_accepts_what_the_form_accepts(job: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(form.json_schema(JOB, "A job"))
    loaded = form.load_value(JOB, job)
    is_slow = any("at most 5 retries" in problem.message for problem in loaded.problems)
    if not is_slow:
        assert validator.is_valid(job) == (loaded.problems == ()), loaded.problems


def test_marks_of_a_value_in_an_included_file_are_those_of_that_file() -> None:
    def include(path: str, _: str) -> tuple[str, str]:
        return path, "name: X\n"

    loaded = form.load(JOBS, "jobs: {a: !include a.yaml}\n", source="j.yaml", include=include)
    assert [(one.file, one.line, one.column) for one in loaded.problems] == [("a.yaml", 1, 7)]
