"""Mustache without blanks: what renders, what is refused, what is reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.workflow import template

VIEW: dict[str, Any] = {
    "$status": "done",
    "plan": "a < b & c",
    "zero": 0,
    "no": False,
    "yes": True,
    "empty": "",
    "null": None,
    "half": 0.5,
    "whole": 2.0,
    "list": ["x", 1, 2.5],
    "none": [],
    "object": {"deep": {"er": "found"}, "n": None},
    "bare": {},
    "files": [{"path": "a.py", "why": "new"}, {"path": "b.py", "why": "old"}],
}

RENDERED = {
    "{{plan}} {{{plan}}} {{&plan}}": "a < b & c a < b & c a < b & c",
    "{{ plan }}|{{ $status }}": "a < b & c|done",
    "{{zero}} {{no}} {{yes}} [{{empty}}] {{half}} {{whole}}": "0 false true [] 0.5 2",
    "{{list}} {{none}}": "x, 1, 2.5 ",
    "{{object.deep}} {{object.deep.er}}": '{"er": "found"} found',
    "{{files.1.path}}": "b.py",
    "{{#files}}{{path}}:{{why}}:{{zero}};{{/files}}": "a.py:new:0;b.py:old:0;",
    "{{#list}}<{{.}}>{{/list}}": "<x><1><2.5>",
    "{{#object.deep}}{{er}}{{/object.deep}}": "found",
    "{{#absent}}x{{absent}}{{/absent}}{{^absent}}none{{/absent}}": "none",
    "{{#zero}}x{{/zero}}{{#no}}x{{/no}}{{#empty}}x{{/empty}}{{#none}}x{{/none}}{{#null}}x{{/null}}": "",
    "{{^zero}}a{{/zero}}{{^null}}b{{/null}}{{^plan}}c{{/plan}}": "ab",
    "{{#bare}}entered{{/bare}}": "entered",
    "a{{! a comment\nover lines }}b": "ab",
    "} }} { x": "} }} { x",
    "before\n  {{#files}}\n  - {{path}}\n  {{/files}}\nafter\n": "before\n  - a.py\n  - b.py\nafter\n",
}


@pytest.mark.parametrize(("text", "rendered"), RENDERED.items())
def test_templates_render(text: str, rendered: str) -> None:
    assert template.problems(text) == []
    assert template.render(text, VIEW) == rendered


def test_every_variable_without_value_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        template.render("{{plan}} {{absent}} {{object.deep.or}} {{null}} {{#files}}{{line}}{{/files}}", VIEW)
    assert caught.value.message == "{{absent}}, {{object.deep.or}}, {{null}}, {{line}} have no value"
    assert "plan" in caught.value.hint


def test_a_dotted_name_is_not_continued_in_an_outer_scope() -> None:
    with pytest.raises(UsageError, match=r"\{\{a\.b\}\} has no value"):
        template.render("{{#inner}}{{a.b}}{{/inner}}", {"a": {"b": 1}, "inner": {"a": {}}})


FLAWS = {
    "ab {{plan": [(1, 4, "a {{ is never closed by }}")],
    "{{{plan}}": [(1, 1, "a {{{ is never closed by }}}")],
    "{{": [(1, 1, "a {{ is never closed by }}")],
    "x\n {{ a {{b}}": [(2, 2, "a {{ is never closed by }}")],
    "{{#a}}\n{{#b}}{{/b}}": [(1, 1, "the section {{#a}} is never closed")],
    "{{/a}}": [(1, 1, "{{/a}} closes a section that was not opened")],
    "{{^a}}{{/b}}": [(1, 7, "{{/b}} stands where {{^a}} must be closed")],
    "{{}} {{ }}": [(1, 1, "a tag is empty: {{}}"), (1, 6, "a tag is empty: {{}}")],
    "{{>part}}": [(1, 1, "partials ({{>name}}) are not supported")],
    "{{=<% %>=}}": [(1, 1, "other delimiters ({{=<% %>=}}) are not supported")],
    "{{a b}}": [(1, 1, "'a b' is not a name")],
    "{{a..b}}": [(1, 1, "'a..b' is not a name")],
}


@pytest.mark.parametrize(("text", "flaws"), FLAWS.items())
def test_flaws_are_found_with_their_place(text: str, flaws: list[tuple[int, int, str]]) -> None:
    assert [(flaw.line, flaw.column, flaw.message) for flaw in template.problems(text)] == flaws
    with pytest.raises(UsageError, match="not valid"):
        template.render(text, VIEW)


def test_uses_carry_their_sections_and_places() -> None:
    uses = template.variables("{{a.b}}\n {{#xs}}{{n}}{{^m}}{{.}}{{/m}}{{/xs}}")
    assert [(use.name, use.kind, use.line, use.column, use.inside) for use in uses] == [
        ("a.b", "variable", 1, 1, ()),
        ("xs", "section", 2, 2, ()),
        ("n", "variable", 2, 9, (("xs",),)),
        ("m", "inverted", 2, 14, (("xs",),)),
        (".", "variable", 2, 20, (("xs",),)),
    ]


BITS = [
    "{{",
    "}}",
    "{{{",
    "}}}",
    "#",
    "/",
    "^",
    "!",
    ">",
    "=",
    "&",
    "a",
    "b.c",
    ".",
    " ",
    "\n",
    "{",
    "}",
    "x",
    "é",
]
TEMPLATES = st.lists(st.sampled_from(BITS), max_size=30).map("".join) | st.text(max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("abc"), part, max_size=3),
    max_leaves=8,
)


@given(TEMPLATES, st.dictionaries(st.sampled_from("abcx"), VALUES))
@settings(max_examples=400, deadline=None)
def test_any_text_renders_or_is_refused(text: str, view: dict[str, Any]) -> None:
    flaws = template.problems(text)
    for use in template.variables(text):
        assert use.line >= 1
        assert use.column >= 1
    try:
        rendered = template.render(text, view)
    except UsageError as exc:
        assert flaws or "no value" in exc.message
    else:
        assert not flaws
        assert isinstance(rendered, str)


@given(
    st.lists(st.sampled_from(["{{#a}}", "{{/a}}", "{{^b}}", "{{/b}}"]), min_size=200, max_size=400).map(
        "".join
    )
)
@settings(max_examples=20, deadline=None)
def test_deep_sections_do_not_exhaust_the_stack(text: str) -> None:
    try:
        template.render(text, {"a": True})
    except UsageError as exc:
        assert "not valid" in exc.message


def test_sections_nested_without_end_are_refused() -> None:
    text = "{{#a}}" * 2000 + "{{/a}}" * 2000
    assert any("nest deeper than 50" in flaw.message for flaw in template.problems(text))
    assert template.variables(text)


def test_sections_that_multiply_are_stopped() -> None:
    view = {"a": list(range(300))}
    for inner in ("x", "", "{{#absent}}x{{/absent}}", "{{absent}}"):
        with pytest.raises(UsageError, match="more than 200,000 parts") as caught:
            template.render("{{#a}}{{#a}}{{#a}}" + inner + "{{/a}}{{/a}}{{/a}}", view)
        assert "one list" in caught.value.hint
    with pytest.raises(UsageError, match="20,000,000 characters"):
        template.render("{{a}}" * 900, {"a": "x" * 1_000_000})
    assert template.render("{{#a}}{{#a}}x{{/a}}{{/a}}", view) == "x" * 90_000


@pytest.mark.parametrize(
    "text", ["{{" * 400_000, "{{a " * 200_000, "{{{}}" * 200_000, "{{#a}}{{/a}}" * 80_000], ids=len
)
def test_a_text_of_nothing_but_tags_is_refused(text: str) -> None:
    assert template.problems(text)[-1].message == "there are more than 1,000 tags"
