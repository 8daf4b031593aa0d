"""Types: which schemas are accepted, which payloads fit, which references are found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.errors import InvalidSchema
from rolecall.store.canonical import encode
from rolecall.store.ids import node_from_number, node_id
from rolecall.store.schema import KEYWORDS, META_SCHEMA, Type, problems_of

REF = {"type": "string", "format": "ocas_ref"}
A, B, C = (node_from_number(number) for number in (1, 2**63 + 5, 12345678901234567890))


# -- which schemas are accepted --

SAMPLES: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": {"type": "integer"},
    "anyOf": [{"type": "string"}],
    "oneOf": [{"type": "string"}, {}],
    "items": {"type": "string"},
    "format": "ocas_ref",
    "title": "A title",
    "enum": [1, "a", None],
    "const": {"any": ["value"]},
    "description": "what it is",
    "minimum": -1.5,
    "maximum": 3,
    "exclusiveMinimum": 0,
    "exclusiveMaximum": 10,
    "minLength": 1,
    "maxLength": 2.0,
    "pattern": "^a+$",
    "minItems": 0,
    "maxItems": 3,
    "uniqueItems": True,
    "allOf": [{}],
    "if": {"type": "string"},
    "then": {"minLength": 1},
    "else": {},
    "patternProperties": {"^x-": {"type": "string"}},
    "prefixItems": [{"type": "string"}],
    "multipleOf": 0.5,
    "minProperties": 1,
    "maxProperties": 2,
    "default": [],
    "not": {"type": "null"},
    "contains": {"type": "string"},
    "propertyNames": {"pattern": "^[a-z]+$"},
    "examples": ["one", 2],
    "readOnly": True,
    "writeOnly": False,
    "deprecated": False,
    "$comment": "a note",
}


def test_there_is_a_sample_of_every_accepted_keyword() -> None:
    assert set(SAMPLES) == KEYWORDS
    assert len(KEYWORDS) == 40


@pytest.mark.parametrize("keyword", SAMPLES)
def test_every_keyword_of_the_format_is_accepted(keyword: str) -> None:
    assert problems_of({keyword: SAMPLES[keyword]}) == []
    assert problems_of({"properties": {"inner": {keyword: SAMPLES[keyword]}}}) == []


def test_the_meta_schema_has_the_id_the_format_fixes() -> None:
    assert node_id("", encode(META_SCHEMA)) == "CTS5P6RD8HMCS"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("text", "the schema must be an object, not 'text'"),
        (True, "the schema must be an object, not true"),
        (None, "the schema must be an object, not null"),
        ([], "the schema must be an object, not a list"),
        ({"$ref": "#/x"}, "/$ref is not an accepted keyword"),
        ({"$defs": {}}, "/$defs is not an accepted keyword"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "/$schema is not an accepted keyword"),
        ({"$id": "x"}, "/$id is not an accepted keyword"),
        ({"dependentRequired": {}}, "/dependentRequired is not an accepted keyword"),
        ({"properties": {"a": {"nullable": True}}}, "/properties/a/nullable is not an accepted keyword"),
        ({"properties": []}, "/properties must be an object of schemas, not a list"),
        ({"properties": {"a": True}}, "/properties/a must be an object, not true"),
        ({"patternProperties": {"^a": 1}}, "/patternProperties/^a must be an object, not 1"),
        ({"items": True}, "/items must be an object, not true"),
        ({"items": [{}]}, "/items must be an object, not a list"),
        ({"additionalProperties": "no"}, "/additionalProperties must be an object, not 'no'"),
        ({"anyOf": []}, "/anyOf must be a list of at least one schema, not a list"),
        ({"oneOf": {}}, "/oneOf must be a list of at least one schema, not a dict"),
        ({"allOf": [{}, 5]}, "/allOf/1 must be an object, not 5"),
        ({"prefixItems": []}, "/prefixItems must be a list of at least one schema, not a list"),
        ({"if": False}, "/if must be an object, not false"),
        ({"then": 1}, "/then must be an object, not 1"),
        ({"else": "x"}, "/else must be an object, not 'x'"),
        ({"not": None}, "/not must be an object, not null"),
        ({"contains": False}, "/contains must be an object, not false"),
        ({"propertyNames": 3}, "/propertyNames must be an object, not 3"),
        ({"type": "strin"}, "not 'strin'"),
        ({"type": []}, "/type must name at least one type"),
        ({"type": ["string", {"type": "null"}]}, "/type must be one of"),
        ({"enum": []}, "/enum must be a list of at least one value"),
        ({"enum": "a"}, "/enum must be a list of at least one value"),
        ({"required": "a"}, "/required must be a list of strings"),
        ({"required": [1]}, "/required must be a list of strings"),
        ({"examples": {}}, "/examples must be a list"),
        ({"title": 1}, "/title must be a string, not 1"),
        ({"format": None}, "/format must be a string, not null"),
        ({"description": []}, "/description must be a string"),
        ({"pattern": 1}, "/pattern must be a string"),
        ({"$comment": 1}, "/$comment must be a string"),
        ({"uniqueItems": 1}, "/uniqueItems must be true or false, not 1"),
        ({"readOnly": "yes"}, "/readOnly must be true or false"),
        ({"minimum": "1"}, "/minimum must be a number, not '1'"),
        ({"maximum": True}, "/maximum must be a number, not true"),
        ({"minLength": "1"}, "/minLength must be a number"),
        ({"minLength": 1.5}, "/minLength: 1.5"),
        ({"maxItems": -1}, "/maxItems: -1"),
        ({"multipleOf": 0}, "/multipleOf: 0"),
        ({"properties": {"a": {"pattern": "("}}}, '/properties/a/pattern: "("'),
    ],
)
def test_schema_outside_the_set_is_refused_with_the_path(schema: Any, problem: str) -> None:
    found = problems_of(schema)
    assert any(problem in one.message for one in found), found


def test_all_problems_of_a_schema_come_at_once() -> None:
    schema = {
        "$ref": "#/x",
        "type": "strin",
        "properties": {"a": True, "b": {"items": [{}], "enum": []}},
        "anyOf": [],
    }
    assert len(problems_of(schema)) == 6
    with pytest.raises(InvalidSchema) as caught:
        Type(schema)
    assert caught.value.problems == tuple(problem.message for problem in problems_of(schema))
    assert all(problem in caught.value.message for problem in caught.value.problems)
    assert "Accepted keywords: $comment, additionalProperties" in caught.value.hint


def test_schema_that_nests_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    assert problems_of(schema) == []
    assert "nests deeper than 100 schemas" in problems_of({"items": schema})[0].message


def test_all_problems_that_only_the_validator_finds_come_at_once_with_their_paths() -> None:
    schema = {
        "properties": {
            "a/b c": {"pattern": "("},
            "d": {"patternProperties": {"[": {"type": "string"}}},
            "e": {"items": {"minLength": -1, "required": ["x", "x"]}},
        }
    }
    assert [problem.path for problem in problems_of(schema)] == [
        ("properties", "a/b c", "pattern"),
        ("properties", "d", "patternProperties", "["),
        ("properties", "e", "items", "minLength"),
        ("properties", "e", "items", "required"),
    ]


@pytest.mark.parametrize("schema", [{"anyOf": 5}, {"$ref": "#"}, "text", {"properties": {"a": []}}])
def test_schema_that_is_not_understood_is_no_type(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        Type(schema)


def test_payload_of_a_type_whose_schema_cannot_be_compiled_fits_never() -> None:
    assert "cannot be used" in Type({"pattern": "("}).misfits("text")[0]


# -- does a payload fit --


def test_all_misfits_come_at_once_with_their_paths() -> None:
    kind = Type(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "age": {"type": "integer", "minimum": 0},
            },
            "required": ["name", "email"],
            "additionalProperties": False,
        }
    )
    assert kind.misfits({"name": "a", "email": 1}) != []
    misfits = kind.misfits({"name": 1, "tags": ["a", 2, None], "age": -1, "more": True})
    assert len(misfits) == 6
    for beginning in ("/name: 1 ", "/tags/1: 2 ", "/tags/2: null ", "/age: -1 "):
        assert any(line.startswith(beginning) for line in misfits), (beginning, misfits)
    assert any('"email"' in line for line in misfits)
    assert any("'more'" in line for line in misfits)


def test_payload_that_fits_has_no_misfits() -> None:
    kind = Type({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert kind.misfits({"n": 1.0}) == []
    assert kind.misfits({"n": 2**60, "other": None}) == []


@pytest.mark.parametrize("value", ["95st8mz0qtkp9", "", A + "0", A[:-1], "I" * 13, "hello"])
def test_a_reference_must_look_like_an_id(value: str) -> None:
    assert Type(REF).misfits(A) == []
    assert len(Type(REF).misfits(value)) == 1


def test_prefix_items_and_other_formats_are_checked() -> None:
    assert Type({"prefixItems": [{"type": "string"}]}).misfits([1]) != []
    assert Type({"format": "date-time"}).misfits("2026-01-01T00:00:00Z") == []
    assert Type({"format": "date-time"}).misfits("yesterday") != []
    assert Type({"format": "something-of-ours"}).misfits("anything") == []


def test_a_huge_value_is_quoted_by_its_ends() -> None:
    (misfit,) = Type({"type": "integer"}).misfits("x" * 1_000_000)
    assert len(misfit) < 500
    assert "…" in misfit


def test_the_meta_type_takes_schemas_that_nest() -> None:
    meta = Type(META_SCHEMA)
    assert meta.misfits({"properties": {"a": {"items": {"type": "string"}}}}) == []
    assert meta.misfits({"properties": {"a": {"$ref": "#"}}}) == [
        "/properties/a/$ref is not an accepted keyword"
    ]


# -- which ids does a payload refer to --


@pytest.mark.parametrize(
    ("schema", "payload", "refs"),
    [
        (REF, A, [A]),
        ({"type": "string"}, A, []),
        (REF, "not an id", []),
        (REF, None, []),
        ({"properties": {"a": REF, "b": {}}}, {"a": A, "b": B}, [A]),
        ({"items": REF}, [A, B, A, 5, None], [A, B]),
        ({"items": REF}, (A, B), [A, B]),
        ({"prefixItems": [REF, {}]}, [A, B, C], [A]),
        ({"prefixItems": [{}], "items": REF}, [A, B, C], [B, C]),
        ({"contains": REF}, [5, A, B], [A, B]),
        ({"additionalProperties": REF, "properties": {"a": {}}}, {"a": A, "b": B}, [B]),
        ({"additionalProperties": True, "properties": {"a": REF}}, {"a": A, "b": B}, [A]),
        ({"additionalProperties": REF, "patternProperties": {"^x": {}}}, {"xa": A, "b": B}, [B]),
        ({"patternProperties": {"^r_": REF}}, {"r_a": A, "b": B}, [A]),
        ({"patternProperties": {"^r_": REF}, "properties": {"r_a": {}}}, {"r_a": A}, [A]),
        ({"patternProperties": {"_r$": REF, "mid": REF}}, {"a_r": A, "amidb": B, "_ra": C}, [A, B]),
        ({"patternProperties": {"^a/b c$": REF}}, {"a/b c": A, "a/b c\n": B}, [A]),
        ({"patternProperties": {"^[a-c]$": REF}}, {"b": A}, [A]),
        ({"patternProperties": {"^a++a$": REF}}, {"aaa": A}, [A]),
        ({"patternProperties": {r"^\p{Lu}": REF}}, {"Ä": A}, [A]),
        ({"patternProperties": {r"^\D$": REF}}, {"\u0663": A}, [A]),
        ({"patternProperties": {"^[[:alpha:]]+$": REF}}, {"abc": A}, [A]),
        ({"patternProperties": {"^(a|b)$": REF}}, {"a": A}, [A]),
        ({"patternProperties": {"^x{2}$": REF}}, {"xx": A}, [A]),
        ({"propertyNames": REF}, {A: 1}, [A]),
        ({"anyOf": [REF, {"type": "null"}]}, A, [A]),
        ({"anyOf": [REF, {"type": "null"}]}, None, []),
        ({"oneOf": [{"properties": {"a": REF}}, {"properties": {"b": REF}}]}, {"a": A, "b": B}, [A, B]),
        ({"oneOf": [{"type": "integer"}, REF]}, A, [A]),
        ({"allOf": [{"properties": {"a": REF}}, {"required": ["a"]}]}, {"a": A}, [A]),
        ({"if": {"properties": {"k": {"const": 1}}}, "then": {"properties": {"a": REF}}}, {"k": 1, "a": A}, [A]),
        ({"if": {}, "then": {}, "else": {"properties": {"a": REF}}}, {"a": A}, [A]),
        ({"if": {"properties": {"a": REF}}}, {"a": A}, [A]),
        ({"type": ["array", "null"], "items": REF}, [A], [A]),
        ({"type": ["array", "null"], "items": REF}, None, []),
        ({"type": ["object", "null"], "properties": {"a": REF}}, {"a": A}, [A]),
        ({"type": ["string", "null"], "format": "ocas_ref"}, A, [A]),
        (
            {"properties": {"a": {"items": {"anyOf": [{"type": "null"}, {"properties": {"b": REF}}]}}}},
            {"a": [None, {"b": A}, {"b": B, "c": C}]},
            [A, B],
        ),
        ({"properties": {"a": REF, "b": REF}, "anyOf": [{"properties": {"c": REF}}]}, {"a": A, "b": B, "c": C}, None),
        ({"items": {"items": {"items": REF}}}, [[[A], [B]], [[C]]], [A, B, C]),
        ({"enum": [A]}, A, []),
        ({"default": A, "const": A}, A, []),
    ],
)  # fmt: skip
def test_references_are_found(schema: dict[str, Any], payload: Any, refs: list[str] | None) -> None:
    assert problems_of(schema) == []
    found = Type(schema).refs(payload)
    assert sorted(found) == sorted(refs if refs is not None else [A, B, C])
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("^a$", "a\n"),
        ("^.$", "\n"),
        (r"^\d+$", "x"),
        ("^(a|b)$", "c"),
        ("^[a-c]$", "d"),
        ("x", "y"),
        ("^x", "ax"),
    ],
)
def test_a_key_that_no_pattern_matches_is_an_additional_property(pattern: str, key: str) -> None:
    schema = {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": REF}
    kind = Type(schema)
    assert kind.misfits({key: A}) == []
    assert kind.refs({key: A}) == (A,)


def test_references_come_in_the_order_met() -> None:
    assert Type({"items": REF}).refs([C, A, B, A]) == (C, A, B)


def test_a_pattern_cannot_hang_the_search_for_references() -> None:
    kind = Type({"patternProperties": {"^(a+)+$": REF}})
    assert kind.refs({"a" * 60 + "!": A}) == (A,)


Planted = tuple[dict[str, Any], Any, frozenset[str]]
IDS = st.integers(0, 2**64 - 1).map(node_from_number)
NAMES = st.text("abcxyz", min_size=1, max_size=4)


def _reference(node: str) -> Planted:
    return dict(REF), node, frozenset({node})


PLAIN = st.sampled_from(
    [({"type": "integer"}, 7), ({"type": "string"}, "text"), ({"type": "null"}, None), ({}, [1, {"a": 2}])]
).map(lambda pair: (dict(pair[0]), pair[1], frozenset[str]()))


def _object(parts: dict[str, Planted], how: str) -> Planted:
    payload = {name: part[1] for name, part in parts.items()}
    found = frozenset().union(*(part[2] for part in parts.values()))
    if how == "patternProperties":
        return {"patternProperties": {f"^{name}$": part[0] for name, part in parts.items()}}, payload, found
    return {"type": "object", "properties": {name: part[0] for name, part in parts.items()}}, payload, found


def _array(parts: list[Planted]) -> Planted:
    found = frozenset().union(*(part[2] for part in parts))
    return {"prefixItems": [part[0] for part in parts] or [{}]}, [part[1] for part in parts], found


def _uniform(part: Planted, how: str) -> Planted:
    schema, payload, found = part
    wrapped: dict[str, Planted] = {
        "items": ({"type": ["array", "null"], "items": schema}, [payload, payload], found),
        "contains": ({"contains": schema}, [payload], found),
        "additionalProperties": ({"additionalProperties": schema}, {"k": payload}, found),
        "anyOf": ({"anyOf": [{"type": "null"}, schema]}, payload, found),
        "oneOf": ({"oneOf": [{"const": "never this"}, schema]}, payload, found),
        "allOf": ({"allOf": [schema, {}]}, payload, found),
        "then": ({"if": {}, "then": schema}, payload, found),
        "else": ({"if": {"const": "never this"}, "else": schema}, payload, found),
    }
    return wrapped[how]


WAYS = ["items", "contains", "additionalProperties", "anyOf", "oneOf", "allOf", "then", "else"]
PLANTED: st.SearchStrategy[Planted] = st.recursive(
    st.one_of(IDS.map(_reference), PLAIN),
    lambda inner: st.one_of(
        st.builds(
            _object,
            st.dictionaries(NAMES, inner, max_size=4),
            st.sampled_from(["properties", "patternProperties"]),
        ),
        st.lists(inner, max_size=4).map(_array),
        st.builds(_uniform, inner, st.sampled_from(WAYS)),
    ),
    max_leaves=12,
)


@given(PLANTED)
def test_exactly_the_planted_references_are_found(planted: Planted) -> None:
    schema, payload, refs = planted
    assert problems_of(schema) == []
    kind = Type(schema)
    assert set(kind.refs(payload)) == refs
    assert kind.refs(json.loads(json.dumps(payload))) == kind.refs(payload)
