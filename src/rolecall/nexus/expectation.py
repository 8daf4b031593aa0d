"""Compares a JSON document with the expectations in a conformance fixture. Each expectation is a path into the
document, and a value or a matcher.

The paths are the part of JSONPath that fixtures use: `$`, `.name`, `[n]`, `[-1]`, and `.length` of an array. An
expected null means null or absent; a string, number or boolean must be equal; an object is a matcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rolecall.store.schema import pattern_test

ABSENT = object()
"""The result of a path that leads nowhere."""

_PATH = re.compile(r"\$(?:\.[^.\[\]\s]+|\[-?\d+\])*", re.ASCII)
_PART = re.compile(r"\.([^.\[\]]+)|\[(-?\d+)\]", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "iso8601": {},
    "string": {"minLength": float, "pattern": str},
    "number": {"min": float, "max": float},
    "boolean": {},
}
"""The options of each type of matcher."""


def value_at(document: Any, path: str) -> Any:
    """Return the value at the path, or ABSENT."""
    value = document
    for name, index in _PART.findall(path):
        if name == "length" and isinstance(value, list):
            value = len(value)
        elif name:
            value = value.get(name, ABSENT) if isinstance(value, dict) else ABSENT
        else:
            at = int(index)
            is_there = isinstance(value, list) and -len(value) <= at < len(value)
            value = value[at] if is_there else ABSENT
    return value


def fits(expected: Any, found: Any) -> bool:
    if expected is None:
        return found is None or found is ABSENT
    if not isinstance(expected, dict):
        # In Python `True == 1`, but in JSON they differ.
        return isinstance(expected, bool) == isinstance(found, bool) and bool(expected == found)
    match expected["type"]:
        case "boolean":
            return isinstance(found, bool)
        case "number":
            least, most = expected.get("min", found), expected.get("max", found)
            return _is_number(found) and bool(least <= found <= most)
        case "string":
            is_long = isinstance(found, str) and len(found) >= expected.get("minLength", 0)
            return is_long and pattern_test(expected.get("pattern", ""))(found)
    try:
        is_time = isinstance(found, str) and _TIME.fullmatch(found) is not None
        return is_time and bool(datetime.fromisoformat(found.upper()))
    except ValueError:  # an invalid date
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def problem_of(path: str, expected: Any) -> str:
    """Return why an expectation is invalid or would not check what was meant, or an empty string if it is valid."""
    if not _PATH.fullmatch(path):
        return f"{path!r} is not a path: a path is $ with .name, [n], [-1] or .length behind it"
    if isinstance(expected, list):
        return "an array is not expected as a whole: expect its .length and its entries"
    if not isinstance(expected, dict):
        return ""
    kind = expected.get("type")
    if not isinstance(kind, str) or kind not in _OPTIONS:
        return f"a matcher has the type {', '.join(_OPTIONS)}, not {kind!r}"
    for key in expected.keys() - {"type"}:
        option = _OPTIONS[kind].get(key)
        if option is None:
            return f"a matcher of the type {kind} has no {key!r}"
        if not (isinstance(expected[key], str) if option is str else _is_number(expected[key])):
            return f"{key} of a matcher cannot be {expected[key]!r}"
    try:
        pattern_test(expected.get("pattern", ""))
    except ValueError:
        return f"{expected['pattern']!r} is not a regular expression"
    return ""
