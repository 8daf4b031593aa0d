"""What a schema says about outputs: statuses and fields through every kind of branch."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.workflow import outcome, yaml


def variant(status: Any, **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"$status": {"const": status}, **fields},
        "required": ["$status", *fields],
    }


STATUSES: dict[str, tuple[dict[str, Any], tuple[str, ...], bool]] = {
    "enum": ({"properties": {"status": {"enum": ["a", "b"]}}}, ("a", "b"), False),
    "const": ({"properties": {"status": {"const": "a"}}}, ("a",), False),
    "choice of constants": (
        {"properties": {"status": {"anyOf": [{"const": "a"}, {"const": "b"}]}}},
        ("a", "b"),
        False,
    ),
    "choice with an open branch": ({"properties": {"status": {"anyOf": [{"const": "a"}, {}]}}}, (), True),
    "any text": ({"properties": {"status": {"type": "string"}}}, (), True),
    "variants": ({"oneOf": [variant("a"), variant("b")]}, ("a", "b"), False),
    "variants in variants": (
        {"anyOf": [{"oneOf": [variant("a"), variant("b")]}, variant("c")]},
        ("a", "b", "c"),
        False,
    ),
    "narrowed": (
        {"properties": {"$status": {"enum": ["a", "b", "c"]}}, "allOf": [variant("b")]},
        ("b",),
        False,
    ),
    "a variant without": ({"oneOf": [variant("a"), {"type": "object"}]}, ("a",), True),
}


@pytest.mark.parametrize(("schema", "known", "is_open"), STATUSES.values(), ids=STATUSES)
def test_statuses_are_found(schema: dict[str, Any], known: tuple[str, ...], is_open: bool) -> None:
    statuses = outcome.statuses_of(schema)
    assert (statuses.known, statuses.is_open) == (known, is_open)


def test_the_dollar_status_decides_when_both_are_declared() -> None:
    schema = {"properties": {"status": {"enum": ["x"]}, "$status": {"enum": ["y"]}}, "required": ["$status"]}
    statuses = outcome.statuses_of(schema)
    assert (statuses.key, statuses.known, statuses.is_optional) == ("$status", ("y",), False)


def test_only_the_variants_of_a_status_are_given() -> None:
    schema = {"oneOf": [variant("a", x={}), variant("b", y={}), {"properties": {"z": {}}}]}
    assert outcome.names_in(outcome.variants_with(schema, "a")) == ["$status", "x", "z"]
    assert len(outcome.variants_with(schema, None)) == 3


FIELDS: dict[str, tuple[dict[str, Any], tuple[str, ...], bool | None]] = {
    "required": ({"properties": {"x": {}}, "required": ["x"]}, ("x",), True),
    "optional": ({"properties": {"x": {}}}, ("x",), False),
    "nullable": ({"properties": {"x": {"type": ["string", "null"]}}, "required": ["x"]}, ("x",), False),
    "undeclared": ({"properties": {"x": {}}, "additionalProperties": True}, ("y",), None),
    "in one variant": ({"oneOf": [variant("a", x={}), variant("b")]}, ("x",), False),
    "in every variant": ({"oneOf": [variant("a", x={}), variant("b", x={})]}, ("x",), True),
    "beside the variants": (
        {"properties": {"x": {}}, "required": ["x"], "oneOf": [variant("a"), variant("b")]},
        ("x",),
        True,
    ),
    "by then": ({"if": {}, "then": {"properties": {"x": {}}, "required": ["x"]}}, ("x",), False),
    "nested": ({"properties": {"x": variant("a", y={})}, "required": ["x"]}, ("x", "y"), True),
    "nested open": ({"properties": {"x": {"type": "object"}}, "required": ["x"]}, ("x", "y"), False),
    "nested closed": (
        {"properties": {"x": {"type": "object", "additionalProperties": False}}},
        ("x", "y"),
        None,
    ),
    "nested in text": ({"properties": {"x": {"type": "string"}}}, ("x", "y"), None),
    "any name": ({"properties": {"x": {"additionalProperties": {"type": "string"}}}}, ("x", "y"), False),
    "name by pattern": ({"properties": {"x": {"patternProperties": {"^y": {}}}}}, ("x", "yes"), False),
    "item of a list": ({"properties": {"x": {"type": "array", "items": {}}}}, ("x", "0"), False),
    "name in a list": ({"properties": {"x": {"type": "array", "items": {}}}}, ("x", "y"), None),
}


@pytest.mark.parametrize(("schema", "path", "always"), FIELDS.values(), ids=FIELDS)
def test_fields_are_found(schema: dict[str, Any], path: tuple[str, ...], always: bool | None) -> None:
    found = outcome.find(outcome.variants_of(schema), path)
    assert (None if found is None else found.always) is always


def test_a_schema_with_countless_variants_is_not_judged_and_says_so() -> None:
    choices = ", ".join("{anyOf: [{minProperties: 0}, {minProperties: 0}]}" for _ in range(20))
    text = (
        f"name: do-it\nroles:\n  a: {{goal: g, meta: {{type: object, allOf: [{choices}]}}}}\n"
        "graph: {$START: a, a: {done: $END}}\n"
    )
    (problem,) = yaml.parse(text, source="w.yaml").problems
    assert (problem.severity, problem.line, problem.column) == ("warning", 3, 22)
    assert "more than 200 variants" in problem.message


def test_patterns_of_properties_cannot_run_away() -> None:
    schema = {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False}
    variants = outcome.variants_of(schema)
    assert outcome.find(variants, ["a" * 60 + "!"], is_nested=True) is None
    assert outcome.find(variants, ["aaa"], is_nested=True) is not None


def test_a_schema_of_too_many_parts_is_not_told_apart() -> None:
    parts: list[Any] = [
        {"anyOf": [{"properties": {f"a{n}": {}}}, {"properties": {f"b{n}": {}}}]} for n in range(3_000)
    ]
    assert len(outcome.variants_of({"allOf": parts})) == outcome.MOST_VARIANTS
