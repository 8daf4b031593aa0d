"""YAML 1.2 core values, places, and hostile text."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.settings import yaml12

VALUES = {
    "yes": "yes",
    "no": "no",
    "on": "on",
    "Off": "Off",
    "12:30": "12:30",
    "1_000": "1_000",
    "2026-01-31": "2026-01-31",
    "012": 12,
    "0o14": 12,
    "0x1F": 31,
    "-7": -7,
    "+.5": 0.5,
    "1e3": 1000.0,
    ".inf": math.inf,
    "-.Inf": -math.inf,
    "true": True,
    "FALSE": False,
    "null": None,
    "~": None,
    '"true"': "true",
    "'12'": "12",
    "!!str 12": "12",
    "!!float 3": 3.0,
    "0b1": "0b1",
    "0o8": "0o8",
    "1.2.3": "1.2.3",
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    loaded = yaml12.load(f"a: {text}")["a"]
    assert loaded == value
    assert type(loaded) is type(value)


def test_nan_is_read() -> None:
    assert math.isnan(yaml12.load(".NaN"))


def test_merge_keys_are_not_merged() -> None:
    assert yaml12.load("a: &a {x: 1}\nb:\n  <<: *a\n") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}


def test_keys_are_the_text_written() -> None:
    assert yaml12.load("{1: a, true: b, 012: c}") == {"1": "a", "true": "b", "012": "c"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_empty_text_is_null(text: str) -> None:
    assert yaml12.load(text) is None


def test_bom_and_crlf_are_tolerated() -> None:
    assert yaml12.load("\ufeffa: 1\r\nb: x\r\n") == {"a": 1, "b": "x"}


def test_duplicate_key_names_both_places() -> None:
    with pytest.raises(UsageError) as caught:
        yaml12.load("a: 1\nb:\n  c: 1\n  c: 2\n", source="w.yaml")
    assert caught.value.message == "w.yaml:4:3: the key 'c' is given twice; the first is at line 3, column 3"


BROKEN = {
    "a: b: c": ("1:5", "not valid YAML", "quotes"),
    "a:\n\t- b": ("2:1", "not valid YAML", "spaces"),
    "a: @b": ("1:4", "not valid YAML", "quotes"),
    "a: [1, 2": ("2:1", "not valid YAML", "indentation"),
    "é: [ü, \x07]": ("1:8", "control characters", ""),
    "a: x\ud800": ("1:5", "surrogate", ""),
    "--- a\n--- b\n": ("2:1", "second document", "one document"),
    "a: *b": ("1:4", "no anchor &b", ""),
    "a: &a [*a]": ("1:8", "inside its own anchor", ""),
    "a: !!python/object:os.system x": ("1:4", "'!!python/object:os.system' is not accepted", ""),
    "a: !thing {}": ("1:4", "'!thing' is not accepted", "core"),
    "a: !!set {x}": ("1:4", "'!!set' is not accepted", "core"),
    "a: !include x.md": ("1:4", "!include is not available", ""),
    "a: {{name}}": ("1:5", "a key must be text", "quotes"),
    "a: !!int x": ("1:4", "not of the type !!int", ""),
    "a: " + "9" * 5000: ("1:4", "5000 digits", ""),
    "[" * 9000: ("1:102", "deeper than 100", ""),
    "- " * 9000: ("1:203", "deeper than 100", ""),
}


@pytest.mark.parametrize(("text", "expected"), BROKEN.items(), ids=[text[:12] for text in BROKEN])
def test_broken_text_is_refused_with_its_place(text: str, expected: tuple[str, str, str]) -> None:
    place, message, hint = expected
    with pytest.raises(UsageError) as caught:
        yaml12.load(text, source="w.yaml")
    assert caught.value.message.startswith(f"w.yaml:{place}: ")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(UsageError, match="aliases expand to more than"):
        yaml12.load("\n".join(lines))


def test_long_text_repeated_by_alias_is_refused() -> None:
    with pytest.raises(UsageError, match="aliases expand to more than"):
        yaml12.load("a: &a " + "x" * 100_000 + "\nb: [*a, *a, *a]\n")


def test_aliases_cannot_build_depth() -> None:
    nested = "[" * 60 + "1" + "]" * 60
    with pytest.raises(UsageError, match=r"alias \*a nests the text deeper"):
        yaml12.load(f"a: &a {nested}\nb: {'[' * 60}*a{']' * 60}\n")


def test_modest_aliases_are_expanded() -> None:
    assert yaml12.load("a: &a {x: [1]}\nb: *a\n") == {"a": {"x": [1]}, "b": {"x": [1]}}


def test_text_beyond_the_limit_is_refused() -> None:
    assert yaml12.load("a" * 100, max_bytes=100) == "a" * 100
    with pytest.raises(UsageError, match="larger than 100 bytes"):
        yaml12.load("é" * 51, max_bytes=100)


def test_marks_find_keys_values_and_the_nearest_thing_around_what_is_absent() -> None:
    text = "a:\n  - x: 1\n    y: [é, {z: 2}]\n"
    node = yaml12.read(text, source="w.yaml").node
    assert node is not None
    marks = yaml12.Marks(node)
    assert node.value == {"a": [{"x": 1, "y": ["é", {"z": 2}]}]}
    assert marks.at(("a", 0, "y", 1, "z")) == ("w.yaml", 3, 16)
    assert marks.at(("a", 0, "y", 1, "z"), key=True) == ("w.yaml", 3, 13)
    assert marks.at(("a", 0, "nothing", "here")) == ("w.yaml", 2, 5)
    assert str(marks.at(())) == "w.yaml:1:1"


def make_includer(files: dict[str, str]) -> yaml12.Include:
    def include(path: str, written_in: str) -> tuple[str, str]:
        name = os.path.normpath(os.path.join(os.path.dirname(written_in), path))
        if name not in files:
            raise UsageError(f"there is no {name}")
        return name, files[name]

    return include


def test_includes_are_parsed_by_kind_and_nest_from_their_own_folder() -> None:
    files = {
        "parts/role.yaml": "goal: !include goal.md\nmeta: !include ../meta.json\n",
        "parts/goal.md": "Be *good*: always.\n",
        "meta.json": '{"type": "object", "n": 1}',
    }
    node = yaml12.read("role: !include parts/role.yaml\n", source="w.yaml", include=make_includer(files)).node
    assert node is not None
    marks = yaml12.Marks(node)
    assert node.value == {"role": {"goal": "Be *good*: always.\n", "meta": {"type": "object", "n": 1}}}
    assert marks.at(("role", "meta"), key=True) == ("parts/role.yaml", 2, 1)
    assert marks.at(("role", "goal")) == ("parts/goal.md", 1, 1)
    assert marks.at(("role", "meta", "n")).file == "meta.json"


INCLUDE_FAULTS = {
    "missing.md": "there is no missing.md",
    "circle.yaml": "circle: w.yaml -> circle.yaml -> circle.yaml",
    "twice.json": "'a' is given twice",
    "broken.json": "broken.json:1:6: not valid JSON",
    "nan.json": "NaN is not a JSON value",
    "deep.json": "not valid JSON",
    "surrogate.json": "surrogates not allowed",
}


@pytest.mark.parametrize(("path", "message"), INCLUDE_FAULTS.items())
def test_faulty_includes_are_reported_where_they_are_found(path: str, message: str) -> None:
    files = {
        "circle.yaml": "again: !include circle.yaml\n",
        "twice.json": '{"a": 1, "a": 2}',
        "broken.json": '{"a":}',
        "nan.json": "[NaN]",
        "deep.json": "[" * 100_000,
        "surrogate.json": '{"a": ["\\ud800"]}',
    }
    document = yaml12.read(f"x: !include {path}\ny: 2\n", source="w.yaml", include=make_includer(files))
    assert [message in problem.message for problem in document.problems] == [True]
    expected = ("circle.yaml", 1, 8) if path == "circle.yaml" else ("w.yaml", 1, 4)
    assert document.problems[0][2:5] == expected
    assert document.node is not None
    assert document.node.value["y"] == 2


def test_syntax_error_in_an_included_file_is_placed_in_that_file() -> None:
    document = yaml12.read(
        "x: !include y.yaml\n", source="w.yaml", include=make_includer({"y.yaml": "\na: b: c\n"})
    )
    assert [str(problem)[:12] for problem in document.problems] == ["y.yaml:2:5: "]


def test_includes_that_multiply_are_bounded_by_the_size_limit() -> None:
    files = {f"{i}.yaml": f"[!include {i + 1}.yaml, !include {i + 1}.yaml]" for i in range(15)}
    files["15.yaml"] = "x" * 1000
    document = yaml12.read("!include 0.yaml", include=make_includer(files), max_bytes=50_000)
    assert document.node is None
    assert "larger than 50,000 bytes" in document.problems[0].message


def test_several_faults_are_collected() -> None:
    document = yaml12.read("a: 1\na: 2\nb: !x 3\nc: !!int y\n", source="w.yaml")
    assert [problem.line for problem in document.problems] == [2, 3, 4]
    with pytest.raises(UsageError) as raised:
        yaml12.load("a: 1\na: 2\nb: !x 3\nc: !!int y\n", source="w.yaml")
    assert raised.value.message.splitlines()[1:] == [f"  {problem}" for problem in document.problems]


YAML_BITS = st.sampled_from(
    (
        *(
            "a",
            ": ",
            "\n",
            "  ",
            "- ",
            "[",
            "]",
            "{",
            "}",
            ",",
            "&x ",
            "*x",
            "!!int ",
            "!t ",
            "'",
            '"',
            "|\n",
            "? ",
        ),
        *(
            "#",
            "\t",
            "---\n",
            "...\n",
            "%YAML 1.2\n",
            "012",
            "~",
            "\\",
            "<<",
            "\x00",
            "\ud800",
            "é",
            "\u2028",
            "@",
        ),
        *("`", ">-\n "),
    )
)


@given(st.one_of(st.text(), st.lists(YAML_BITS, max_size=40).map("".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_gives_a_value_or_a_usage_error(text: str) -> None:
    try:
        yaml12.load(text, source="w.yaml")
    except UsageError as exc:
        assert re.match(r"w\.yaml(:| has \d+ problems:\n  w\.yaml:)\d+:\d+: ", exc.message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=8), part, max_size=4),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_json_written_as_yaml_comes_back_the_same(value: Any) -> None:
    import yaml

    assert yaml12.load(yaml.safe_dump(value, default_style='"')) == value


FLAT_LINES = st.from_regex(r"[$a-z-]{1,4}: {1,2}[a-z0-9.][a-z0-9 ./_-]{0,8}", fullmatch=True)


@given(
    st.lists(FLAT_LINES, min_size=1, max_size=3)
    .map("\n".join)
    .flatmap(lambda text: st.sampled_from((text, text + "\n")))
)
@settings(max_examples=500)
def test_a_flat_text_is_read_by_the_short_way_as_by_the_parser(text: str) -> None:
    document = yaml12.read(text)
    if document.problems:
        with pytest.raises(UsageError):
            yaml12.load(text)
    else:
        assert document.node is not None
        assert repr(yaml12.load(text)) == repr(document.node.value)


def test_a_json_file_with_many_keys_names_the_one_given_twice() -> None:
    pairs = ", ".join(f'"k{number}": 1' for number in range(60_000))
    text = "{" + pairs + ', "k59999": 2}'
    document = yaml12.read("!include x.json", include=lambda *_: ("x.json", text))
    assert "the key 'k59999' is given twice" in document.problems[0].message
