"""JSON Schemas as node types: which schemas are accepted, whether a payload fits, and which ids it refers to.

The accepted keywords are those of the format shared with the predecessor, so a schema registered here can be registered
there, too. A schema is self-contained ($ref and $defs are not accepted). Validation uses jsonschema-rs with draft
2020-12. References are found by a walker compiled from the schema, which visits every branch: an extra reference only
keeps a node alive, but a missed one would lose a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import InvalidSchema
from rolecall.store.canonical import MAX_DEPTH, Schema
from rolecall.store.ids import is_node_id
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import jsonschema_rs
else:
    jsonschema_rs = Module("jsonschema_rs")  # read-only commands compile types only to find references

REF_FORMAT = "ocas_ref"
TYPE_NAMES = ("string", "number", "integer", "boolean", "object", "array", "null")

_SCHEMA = {"type": "object", "additionalProperties": False}
_SCHEMA_LIST = {"type": "array", "items": _SCHEMA}
_SCHEMA_MAP = {"type": "object", "additionalProperties": _SCHEMA}
_TYPE_NAME = {"type": "string", "enum": list(TYPE_NAMES)}

# The payload of the node that is the type of every schema. Its hash is part of the format, so the payload stays
# unchanged, although, read literally, it would allow only empty nested schemas. `problems_of` does the real check.
META_SCHEMA: Schema = {
    "type": "object",
    "additionalProperties": False,
    "description": "ocas JSON Schema meta-schema",
    "properties": {
        "type": {"anyOf": [_TYPE_NAME, {"type": "array", "items": _TYPE_NAME}]},
        "properties": _SCHEMA_MAP,
        "required": {"type": "array", "items": {"type": "string"}},
        "additionalProperties": {"anyOf": [{"type": "boolean"}, _SCHEMA]},
        "anyOf": _SCHEMA_LIST,
        "oneOf": _SCHEMA_LIST,
        "items": _SCHEMA,
        "format": {"type": "string"},
        "title": {"type": "string"},
        "enum": {"type": "array"},
        "const": {},
        "description": {"type": "string"},
        "minimum": {"type": "number"},
        "maximum": {"type": "number"},
        "exclusiveMinimum": {"type": "number"},
        "exclusiveMaximum": {"type": "number"},
        "minLength": {"type": "number"},
        "maxLength": {"type": "number"},
        "pattern": {"type": "string"},
        "minItems": {"type": "number"},
        "maxItems": {"type": "number"},
        "uniqueItems": {"type": "boolean"},
        "allOf": _SCHEMA_LIST,
        "if": _SCHEMA,
        "then": _SCHEMA,
        "else": _SCHEMA,
        "patternProperties": _SCHEMA_MAP,
        "prefixItems": _SCHEMA_LIST,
        "multipleOf": {"type": "number"},
        "minProperties": {"type": "number"},
        "maxProperties": {"type": "number"},
        "default": {},
        "not": _SCHEMA,
        "contains": _SCHEMA,
        "propertyNames": _SCHEMA,
        "examples": {"type": "array"},
        "readOnly": {"type": "boolean"},
        "writeOnly": {"type": "boolean"},
        "deprecated": {"type": "boolean"},
        "$comment": {"type": "string"},
    },
}

KEYWORDS = frozenset(META_SCHEMA["properties"])
_ONE_SCHEMA = ("items", "if", "then", "else", "not", "contains", "propertyNames")
_MANY_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", *_LENGTHS)
_PLAIN: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("format", "title", "description", "pattern", "$comment"), (_is_text, "a string")),
    **dict.fromkeys(
        ("uniqueItems", "readOnly", "writeOnly", "deprecated"),
        (lambda value: isinstance(value, bool), "true or false"),
    ),
    **dict.fromkeys(
        _NUMBERS, (lambda value: isinstance(value, (int, float)) and not isinstance(value, bool), "a number")
    ),
    "required": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of strings"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "examples": (lambda value: isinstance(value, list), "a list"),
}
"""For each keyword with a plain value, a test for the value and what the value must be. `const` and `default` accept
any value."""


# -- which schemas are accepted --


class SchemaProblem(NamedTuple):
    """A problem with a schema."""

    path: tuple[str | int, ...]
    message: str
    """What is wrong, beginning with the path."""
    unknown_keyword: str = ""
    """The keyword that is not accepted, if that is the problem."""


def refusal(messages: list[str]) -> InvalidSchema:
    """Return the error for a schema with these problems."""
    listed = "".join(f"\n  {message}" for message in messages)
    return InvalidSchema(
        f"the schema is not accepted:{listed}",
        messages,
        hint="Accepted keywords: " + ", ".join(sorted(KEYWORDS)) + ".",
    )


def problems_of(schema: Any) -> list[SchemaProblem]:
    """Return every problem with a schema. The list is empty if the schema is accepted."""
    problems = list(_problems(schema, (), 0))
    if problems or not _needs_compiler(schema):
        return problems
    try:
        _validator(schema)
    except ValueError as exc:  # names only the first problem, and no path for an invalid regular expression
        return list(_invalid_values(schema, ())) or [SchemaProblem((), str(exc))]
    return []


def _invalid_values(schema: Schema, path: tuple[str | int, ...]) -> Iterator[SchemaProblem]:
    """Yield the problems that only the validator finds, by giving each keyword alone to the validator."""
    for keyword, value in schema.items():
        alone: list[tuple[tuple[str, ...], Schema]] = []
        if keyword == "patternProperties":
            alone = [((keyword, pattern), {"pattern": pattern}) for pattern in value]
        elif keyword in _PLAIN or keyword == "type":
            alone = [((keyword,), {keyword: value})]
        for inner, one in alone:
            try:
                _validator(one)
            except ValueError as exc:
                place = (*path, *inner)
                yield SchemaProblem(place, f"{_pointer(place)}: {getattr(exc, 'message', exc)}")
    for where, part in _inner_schemas(schema):
        yield from _invalid_values(part, (*path, *where))


def _inner_schemas(schema: Schema) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the schemas directly inside a well-formed schema, each with its path."""
    for keyword, value in schema.items():
        if keyword in _MANY_SCHEMAS:
            yield from (((keyword, index), item) for index, item in enumerate(value))
        elif keyword in _NAMED_SCHEMAS:
            yield from (((keyword, name), item) for name, item in value.items())
        elif keyword in _ONE_SCHEMA or (keyword == "additionalProperties" and isinstance(value, dict)):
            yield (keyword,), value


def _needs_compiler(schema: Schema) -> bool:
    """Return whether only the validator, which is slow to import, can tell if a well-formed schema is accepted."""
    for keyword, value in schema.items():
        if keyword in ("pattern", "patternProperties", "multipleOf"):
            return True
        if keyword in _LENGTHS and not (isinstance(value, int) and value >= 0):
            return True
        if keyword in _NUMBERS and not abs(value) < float("inf"):
            return True
        if keyword in ("required", "type") and isinstance(value, list) and len(set(value)) < len(value):
            return True
    return any(_needs_compiler(inner) for _, inner in _inner_schemas(schema))


def _problems(schema: Any, path: tuple[str | int, ...], depth: int) -> Iterator[SchemaProblem]:
    def problem(at: tuple[str | int, ...], message: str, **more: str) -> SchemaProblem:
        return SchemaProblem(at, f"{_pointer(at) if at else 'the schema'} {message}", **more)

    if not isinstance(schema, dict):
        yield problem(path, f"must be an object, not {_describe(schema)}")
        return
    if depth > MAX_DEPTH // 2:
        yield SchemaProblem(path, f"{_pointer(path)[:40]}… nests deeper than {MAX_DEPTH // 2} schemas")
        return
    for keyword, value in schema.items():
        here = (*path, keyword)
        if keyword not in KEYWORDS:
            yield problem(here, "is not an accepted keyword", unknown_keyword=keyword)
        elif keyword in _ONE_SCHEMA or (keyword == "additionalProperties" and not isinstance(value, bool)):
            yield from _problems(value, here, depth + 1)
        elif keyword in _MANY_SCHEMAS:
            if not isinstance(value, list) or not value:
                yield problem(here, f"must be a list of at least one schema, not {_describe(value)}")
                continue
            for index, item in enumerate(value):
                yield from _problems(item, (*here, index), depth + 1)
        elif keyword in _NAMED_SCHEMAS:
            if not isinstance(value, dict):
                yield problem(here, f"must be an object of schemas, not {_describe(value)}")
                continue
            for name, item in value.items():
                yield from _problems(item, (*here, name), depth + 1)
        elif keyword == "type":
            names = value if isinstance(value, list) else [value]
            if not names:
                yield problem(here, "must name at least one type")
            for name in names:
                if name not in TYPE_NAMES:
                    yield problem(here, f"must be one of {', '.join(TYPE_NAMES)}, not {_describe(name)}")
        elif keyword in _PLAIN:
            fits, expected = _PLAIN[keyword]
            if not fits(value):
                yield problem(here, f"must be {expected}, not {_describe(value)}")


def _describe(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, (str, int, float)) else "a " + type(value).__name__


# -- whether a payload fits --


class Type:
    """A schema that is ready for use. Validation and the search for references are compiled once."""

    def __init__(self, schema: Schema, *, is_checked: bool = False) -> None:
        # A store created elsewhere can contain any schema. A schema that is not fully understood could hide references,
        # so it is refused as a type.
        if not is_checked and (problems := list(_problems(schema, (), 0))):
            raise refusal([problem.message for problem in problems])
        self.schema = schema
        self.is_meta = schema == META_SCHEMA
        self._find_refs = _ref_finder(schema)
        self.has_refs = self._find_refs is not None
        self._compiled: Any = None

    def misfits(self, payload: Any) -> list[str]:
        """Return every way in which `payload` does not fit, each with its path. The list is empty if the payload
        fits."""
        if self.is_meta:
            return [problem.message for problem in problems_of(payload)]
        if self._compiled is None:
            try:
                self._compiled = _validator(self.schema)
            except ValueError as exc:
                return [f"/: the schema of the type cannot be used: {str(exc).splitlines()[0]}"]
        if self._compiled.is_valid(payload):
            return []
        misfits = []
        for error in self._compiled.iter_errors(payload):
            # the message quotes the value, so a long message is shortened to its beginning and end
            text = error.message
            if len(text) > 400:
                text = f"{text[:200]} … {text[-150:]}"
            misfits.append(f"{_pointer(error.instance_path)}: {text}")
        return misfits

    def refs(self, payload: Any) -> tuple[str, ...]:
        """Return the ids to which `payload` refers, each once, in the order in which they are found."""
        if self._find_refs is None:
            return ()
        found: dict[str, None] = {}
        self._find_refs(payload, found)
        return tuple(found)


def _validator(schema: Schema) -> Any:
    return jsonschema_rs.Draft202012Validator(schema, formats={REF_FORMAT: is_node_id}, validate_formats=True)


def _pointer(path: Iterable[str | int]) -> str:
    return "/" + "/".join(str(part) for part in path)


@lru_cache(maxsize=2_000)
def pattern_test(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a text contains a match of a regular expression. Raise `ValueError` if the
    expression is invalid.

    The function is safe for untrusted patterns: unlike Python's `re`, the validator's engine has no catastrophic
    backtracking.
    """
    is_valid = _validator({"pattern": pattern}).is_valid

    def matches(text: str) -> bool:
        return bool(is_valid(text.encode("utf-8", "replace").decode()))  # lone surrogates are not text

    return matches


@lru_cache(maxsize=64)
def glob_test(*globs: str) -> Callable[[str], bool]:
    """Return a function that tests whether a path matches at least one of the file name patterns. Raise `ValueError` if
    a pattern is invalid. `*` and `?` stay within a name, `**/` matches any number of folders, `[…]` matches one of the
    characters, and `[!…]` any other character."""
    wildcards = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}

    def translate(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith("[") and len(token) > 2:
            # These characters have a meaning of their own in a class.
            inner = re.sub(r"[\\\[&~]", r"\\\g<0>", token[1:-1])
            return f"[{inner.replace('!', '^', token.startswith('[!'))}]"
        return wildcards.get(token) or re.escape(token)

    found = (re.sub(r"(?s)\*\*/|\*\*|\*|\?|\[!?.[^\]]*\]|.", translate, glob) for glob in globs)
    return pattern_test(f"^(?s:{'|'.join(found)})$")


# -- which ids a payload refers to --

_Finder = Callable[[Any, dict[str, None]], None]


def _ref_finder(schema: Any) -> _Finder | None:
    """Return a function that collects the references of a payload, or None if the schema has no references."""
    if not isinstance(schema, dict):
        return None
    is_ref = schema.get("format") == REF_FORMAT
    inner = [branch for keyword in ("anyOf", "oneOf", "allOf") for branch in schema.get(keyword, ())]
    inner += [schema[keyword] for keyword in ("if", "then", "else", "not") if keyword in schema]
    branches = [finder for branch in inner if (finder := _ref_finder(branch))]

    first = [_ref_finder(item) for item in schema.get("prefixItems", ())]
    rest, some = _ref_finder(schema.get("items")), _ref_finder(schema.get("contains"))
    has_items = any(first) or rest or some

    named = {name: _ref_finder(item) for name, item in schema.get("properties", {}).items()}
    patterns = [
        (_literal(text), _ref_finder(item)) for text, item in schema.get("patternProperties", {}).items()
    ]
    others, keys = _ref_finder(schema.get("additionalProperties")), _ref_finder(schema.get("propertyNames"))
    has_fields = keys or others or any(named.values()) or any(finder for _, finder in patterns)
    if not (has_items or has_fields or (is_ref and branches) or len(branches) > 1):
        # Most schemas need only one function, which is returned without a wrapper.
        return _add_ref if is_ref else branches[0] if branches else None

    def find(value: Any, found: dict[str, None]) -> None:
        if is_ref:
            _add_ref(value, found)
        for branch in branches:
            branch(value, found)
        if has_items and isinstance(value, (list, tuple)):  # a tuple has the same canonical bytes as a list
            for index, item in enumerate(value):
                if finder := first[index] if index < len(first) else rest:
                    finder(item, found)
                if some:
                    some(item, found)
        if has_fields and isinstance(value, dict):
            for key, item in value.items():
                if keys:
                    keys(key, found)
                is_extra = key not in named
                for matches, finder in patterns:
                    if not matches or matches(key):
                        is_extra = is_extra and not matches
                        if finder:
                            finder(item, found)
                if finder := others if is_extra else named.get(key):
                    finder(item, found)

    return find


def _add_ref(value: Any, found: dict[str, None]) -> None:
    if isinstance(value, str) and is_node_id(value):
        found[value] = None


# A pattern without other metacharacters means the same in every regex engine.
_LITERAL = r"(\^?)([^\\.^$|?*+()\[\]{}]*)(\$?)"


def _literal(pattern: str) -> Callable[[str], bool] | None:
    """Return a test for keys, or None for a pattern that only the validator can evaluate.

    With None, a key is treated as both matching and not matching the pattern. At worst this keeps an unneeded node.
    """
    parts = re.fullmatch(_LITERAL, pattern)
    if parts is None:
        return None
    start, text, end = parts.groups()
    if start and end:
        return lambda key: key == text
    if start:
        return lambda key: key.startswith(text)
    return (lambda key: key.endswith(text)) if end else (lambda key: text in key)
