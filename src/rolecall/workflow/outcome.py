"""Derive facts about a role's outputs from its schema: statuses, fields, and requirements that no output can meet. The
code is pure.

A schema is treated as a set of variants, the branches of its oneOf and anyOf. A variant is a tuple of schemas that all
apply at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

from rolecall.store.canonical import JsonObject
from rolecall.store.schema import pattern_test
from rolecall.workflow.model import STATUS_KEYS

Variant = tuple[JsonObject, ...]
Path = tuple[str | int, ...]

MOST_VARIANTS = 200
"""The maximum number of variants that are distinguished. A schema with this many variants is not checked."""


class Statuses(NamedTuple):
    key: str | None
    """The field that contains the status, or None if the schema declares no such field."""
    known: tuple[str, ...]
    """All statuses that the schema names, in the order in which they are written."""
    is_open: bool
    """Whether some variant allows other statuses as well."""
    is_optional: bool
    """Whether some variant allows an output without a status."""
    not_text: tuple[Any, ...]
    """The allowed values that can never be a status, because they are not text."""


class Resolved(NamedTuple):
    """A field of an output, with the possible variants of its value. `always` says whether the field always has a
    value."""

    variants: tuple[Variant, ...]
    always: bool


def variants_of(schema: JsonObject) -> tuple[Variant, ...]:
    """Return the schema's variants; a schema without branches has a single variant."""
    variants: list[Variant] = [(schema,)]
    if len(schema.get("allOf", ())) > MOST_VARIANTS:  # combining this many parts would take too long
        return tuple(variants * MOST_VARIANTS)
    groups = [[part] for part in schema.get("allOf", ())]
    groups += [schema[keyword] for keyword in ("oneOf", "anyOf") if schema.get(keyword)]
    branches = [[variant for part in group for variant in variants_of(part)] for group in groups]
    conditional = [
        part for keyword in ("then", "else") if keyword in schema for part in variants_of(schema[keyword])
    ]
    if conditional:
        # Either branch can apply, or neither if one of them is missing.
        branches.append(conditional if "then" in schema and "else" in schema else [*conditional, ()])
    for branch in branches:
        variants = [(*one, *other) for one, other in islice(product(variants, branch), MOST_VARIANTS)]
    return tuple(variants[:MOST_VARIANTS])


# -- statuses --


def statuses_of(schema: JsonObject) -> Statuses:
    """Return the statuses that outputs of this schema can have."""
    variants = variants_of(schema)
    key = _status_key(variants)
    if key is None:
        return Statuses(None, (), True, True, ())
    allowed = [_values_of(variant, key) for variant in variants]
    values = [value for some in allowed for value in some or ()]
    return Statuses(
        key,
        tuple(dict.fromkeys(value for value in values if isinstance(value, str))),
        any(some is None for some in allowed),
        not all(_requires(variant, key) for variant in variants),
        tuple(value for value in values if not isinstance(value, str)),
    )


def variants_with(schema: JsonObject, status: str | None) -> tuple[Variant, ...]:
    """Return the variants that an output with this status can have, or all variants if `status` is None."""
    variants = variants_of(schema)
    key = _status_key(variants)
    if status is None or key is None:
        return variants
    allowed = ((variant, _values_of(variant, key)) for variant in variants)
    return tuple(variant for variant, values in allowed if values is None or status in values)


def _status_key(variants: Sequence[Variant]) -> str | None:
    declared = set(names_in(variants))
    return next((key for key in STATUS_KEYS if key in declared), None)


def _requires(variant: Variant, name: str) -> bool:
    return any(name in schema.get("required", ()) for schema in variant)


def _values_of(variant: Variant, key: str) -> list[Any] | None:
    """Return the values that const and enum allow for the field, or None if they do not restrict it."""
    allowed: list[Any] | None = None
    for field in (schema["properties"][key] for schema in variant if key in schema.get("properties", {})):
        choices = [_constants(choice) for choice in variants_of(field)]
        if any(choice is None for choice in choices):
            continue
        values = [value for choice in choices for value in choice or ()]
        allowed = values if allowed is None else [value for value in allowed if value in values]
    return allowed


def _constants(choice: Variant) -> list[Any] | None:
    for schema in choice:
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return list(schema["enum"])
    return None


# -- fields --


def names_in(variants: Sequence[Variant]) -> list[str]:
    """Return all declared fields, in the order in which they are written."""
    schemas = (schema for variant in variants for schema in variant)
    return list(dict.fromkeys(name for schema in schemas for name in schema.get("properties", ())))


def find(variants: Sequence[Variant], path: Sequence[str], *, is_nested: bool = False) -> Resolved | None:
    """Return the field at a dotted path, or None if no variant has the field.

    At the top level of an output, only declared fields are kept. Deeper down (`is_nested`), an open object keeps all
    fields.
    """
    found = Resolved(tuple(variants), True)
    for depth, name in enumerate(path):
        is_top = depth == 0 and not is_nested
        results = [_find_in_variant(variant, name, is_top=is_top) for variant in found.variants]
        provided = [result for result in results if result is not None]
        if not provided:
            return None
        is_always = len(provided) == len(results) and all(result.always for result in provided)
        deeper = tuple(variant for result in provided for variant in result.variants)
        found = Resolved(deeper, found.always and is_always)
    return found


def may_be_list(variants: Sequence[Variant]) -> bool:
    """Return whether a value of these variants can be a list."""
    return any(
        all("array" in types for types in _types(variant))
        and any(isinstance(value, list) for value in _constants(variant) or [[]])
        for variant in variants
    )


def items_of(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return the context inside a template section over this value: the items of a list, or otherwise the value itself.

    Null has no context, because the section is then left out.
    """
    contexts: list[Variant] = []
    for variant in variants:
        if {"null"} in _types(variant):
            continue
        items = [schema["items"] for schema in variant if "items" in schema]
        if items:
            contexts += [deeper for item in items for deeper in variants_of(item)]
        else:
            contexts.append(() if _is_list(variant) else variant)
    return tuple(contexts)


def _find_in_variant(variant: Variant, name: str, *, is_top: bool) -> Resolved | None:
    fields = [part for schema in variant for part in _schemas_of(schema, name)]
    if fields:
        variants = tuple(choice for part in fields for choice in variants_of(part))
        may_be_null = any(
            _constants(choice) == [None] or any("null" in types for types in _types(choice))
            for choice in variants
        )
        return Resolved(variants, _requires(variant, name) and not may_be_null)
    is_scalar = any(not types & {"array", "object"} for types in _types(variant))
    if is_top or is_scalar or _is_list(variant) or names_in([variant]) or any(map(_is_closed, variant)):
        return None
    return Resolved(((),), False)


def _schemas_of(schema: JsonObject, name: str) -> Iterator[JsonObject]:
    """Yield the schemas of a field. Yield nothing if the schema does not declare the field."""
    if name in schema.get("properties", {}):
        yield schema["properties"][name]
        return
    for pattern, part in schema.get("patternProperties", {}).items():
        if pattern_test(pattern)(name):
            yield part
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield schema["additionalProperties"]
    if name.isdecimal() and "items" in schema:
        yield schema["items"]


def _types(variant: Variant) -> list[set[str]]:
    given = [schema["type"] for schema in variant if "type" in schema]
    return [set(types) if isinstance(types, list) else {types} for types in given]


def _is_list(variant: Variant) -> bool:
    return any("array" in types and "object" not in types for types in _types(variant))


def _is_closed(schema: JsonObject) -> bool:
    return schema.get("additionalProperties") is False


# -- requirements that no output can meet --


class Unmet(NamedTuple):
    """A field that is required but not declared by its variant."""

    path: Path
    """The path of the field's name in `required`."""
    name: str
    known: tuple[str, ...]
    """The fields that are declared."""
    where: str
    """The outputs for which the field is required, or empty if it is required for all."""
    is_top: bool
    """Whether the field is a field of the output itself, where only declared fields are kept."""
    is_closed: bool
    """Whether undeclared fields are forbidden in the object that requires the field."""


def find_unmet(schema: JsonObject) -> Iterator[Unmet]:
    """Yield required fields that are declared nowhere, so that no agent knows about them."""
    parts = list(_parts(schema, (), is_value=True))
    places = {id(part.schema): part.path for part in reversed(parts)}
    for part in (part for part in parts if part.is_value):
        variants = variants_of(part.schema)
        lacking: dict[Path, tuple[str, list[Variant]]] = {}
        for variant in variants:
            for owner, index, name in _requirements(variant):
                if not any(_admits(other, name) for other in variant):
                    path = (*places[id(owner)], "required", index)
                    lacking.setdefault(path, (name, []))[1].append(variant)
        names: dict[tuple[int, ...], tuple[str, ...]] = {}  # many fields share the same variants
        for path, (name, some) in lacking.items():
            which = tuple(map(id, some))
            known = names[which] = names[which] if which in names else tuple(names_in(some))
            is_top, is_closed = not part.path, any(map(_is_closed, some[0]))
            # An inner object without declared fields accepts any field.
            if is_top or is_closed or known:
                where = ""
                if len(some) < len(variants):
                    key = _status_key(variants)
                    values = (_values_of(some[0], key) if key else None) or ()
                    one = f"where {key!r} is {values[0]!r}" if len(values) == 1 else "in one of the variants"
                    where = f" {one}"
                yield Unmet(path, name, known, where, is_top, is_closed)


def find_forbidden(schema: JsonObject) -> Iterator[tuple[Path, list[str]]]:
    """Yield the parts of a schema that forbid fields required by another part of the same variant."""
    parts = list(_parts(schema, (), is_value=True))
    places = {id(part.schema): part.path for part in reversed(parts)}
    found: dict[Path, dict[str, None]] = {}
    for variant in (variant for part in parts if part.is_value for variant in variants_of(part.schema)):
        closed = [part for part in variant if _is_closed(part)]
        for _, _, name in _requirements(variant) if closed else ():
            if any(_admits(one, name) for one in variant):
                for part in (part for part in closed if not _admits(part, name)):
                    found.setdefault((*places[id(part)], "additionalProperties"), {})[name] = None
    for path, names in found.items():
        yield path, list(names)


def find_contradictions(schema: JsonObject) -> Iterator[tuple[Path, str]]:
    """Yield the path of the upper bound, and a message, for each pair of bounds that no value can meet."""
    for part in _parts(schema, (), is_value=True):
        for low, high, may_be_equal in _BOUNDS:
            lowest, highest = part.schema.get(low), part.schema.get(high)
            if lowest is None or highest is None:
                continue
            if lowest > highest or (lowest == highest and not may_be_equal):
                yield (*part.path, high), f"{low} {lowest} and {high} {highest} leave no value"


_BOUNDS = (
    ("minimum", "maximum", True),
    ("minimum", "exclusiveMaximum", False),
    ("exclusiveMinimum", "maximum", False),
    ("exclusiveMinimum", "exclusiveMaximum", False),
    ("minLength", "maxLength", True),
    ("minItems", "maxItems", True),
    ("minProperties", "maxProperties", True),
)


class _Part(NamedTuple):
    path: Path
    schema: JsonObject
    is_value: bool
    """Whether the part describes a separate value, rather than adding to the schema around it."""


def _parts(schema: JsonObject, path: Path, *, is_value: bool) -> Iterator[_Part]:
    """Yield a schema and all its parts that an output may have to fit, except those under `not` and `if`."""
    yield _Part(path, schema, is_value)
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        for index, part in enumerate(schema.get(keyword, ())):
            yield from _parts(part, (*path, keyword, index), is_value=keyword == "prefixItems")
    for keyword in ("then", "else", "items", "contains", "additionalProperties"):
        if isinstance(schema.get(keyword), Mapping):
            yield from _parts(schema[keyword], (*path, keyword), is_value=keyword not in ("then", "else"))
    for keyword in ("properties", "patternProperties"):
        for name, part in schema.get(keyword, {}).items():
            yield from _parts(part, (*path, keyword, name), is_value=True)


def _requirements(variant: Variant) -> Iterator[tuple[JsonObject, int, str]]:
    for part in variant:
        for index, name in enumerate(part.get("required", ())):
            yield part, index, name


def _admits(schema: JsonObject, name: str) -> bool:
    return any(True for _ in _schemas_of(schema, name))
