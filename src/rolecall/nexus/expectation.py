"""Compare a JSON document with a conformance fixture's expectations: a path into it, and a value or a matcher.

The paths are the part of JSONPath that fixtures use: `$`, `.name`, `[n]`, `[-1]`, and `.length` of an array. Expected
null means null or absent; a string, number or boolean must be equal; an object is a matcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rolecall.store.schema import pattern_test

ABSENT = object()
"""The result of a path that leads nowhere."""

_PATH = re.compile(r"\$(?:\.[^.\[\]\s]+|\[-?\d+\])*", re.ASCII)
_PART = re.compile(r"\.([^.\[\]]+)|\[(-?\d+)\]", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


def value_at(document: Any, path: str) -> Any:
    """The value at the path, or ABSENT."""
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
    if isinstance(expected, dict):
        return _MATCHERS[expected["type"]](expected, found)
    # In Python `True == 1`, but in JSON they differ.
    return isinstance(expected, bool) == isinstance(found, bool) and bool(expected == found)


# -- matchers --


def _is_time(_: Mapping[str, Any], found: Any) -> bool:
    if not isinstance(found, str) or not _TIME.fullmatch(found):
        return False
    try:
        datetime.fromisoformat(found.upper())
    except ValueError:  # an invalid date
        return False
    return True


def _is_string(matcher: Mapping[str, Any], found: Any) -> bool:
    if not isinstance(found, str) or len(found) < matcher.get("minLength", 0):
        return False
    return pattern_test(matcher.get("pattern", ""))(found)


def _is_number(matcher: Mapping[str, Any], found: Any) -> bool:
    if not _is_plain_number(found):
        return False
    return bool(matcher.get("min", found) <= found <= matcher.get("max", found))


def _is_boolean(_: Mapping[str, Any], found: Any) -> bool:
    return isinstance(found, bool)


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_MATCHERS: Mapping[str, Callable[[Mapping[str, Any], Any], bool]] = {
    "iso8601": _is_time,
    "string": _is_string,
    "number": _is_number,
    "boolean": _is_boolean,
}
_LIMITS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "iso8601": {},
    "string": {"minLength": _is_plain_number, "pattern": lambda value: isinstance(value, str)},
    "number": {"min": _is_plain_number, "max": _is_plain_number},
    "boolean": {},
}
"""The options of each matcher besides its type, and the type each option must have."""


# -- mistakes in fixtures --


def problem_of(path: str, expected: Any) -> str:
    """Why this expectation is invalid or would not check what was meant; empty if it is valid."""
    if not _PATH.fullmatch(path):
        return f"{path!r} is not a path: a path is $ with .name, [n], [-1] or .length behind it"
    if isinstance(expected, list):
        return "an array is not expected as a whole: expect its .length and its entries"
    if not isinstance(expected, dict):
        return ""
    kind = expected.get("type")
    if not isinstance(kind, str) or kind not in _MATCHERS:
        return f"a matcher has the type {', '.join(_MATCHERS)}, not {kind!r}"
    for key in expected.keys() - {"type"}:
        if key not in _LIMITS[kind]:
            return f"a matcher of the type {kind} has no {key!r}"
        if not _LIMITS[kind][key](expected[key]):
            return f"{key} of a matcher cannot be {expected[key]!r}"
    try:
        pattern_test(expected.get("pattern", ""))
    except ValueError:
        return f"{expected['pattern']!r} is not a regular expression"
    return ""
