"""Convert Python types to JSON Schemas, and values that fit such a schema to instances of the type.

A dataclass is converted from its type hints. A pydantic model, or anything else with `model_json_schema` and
`model_validate`, provides its own schema. The resulting schema uses only features that `schema.py` accepts: references
are replaced by their definitions, so a type that contains itself has no schema here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Literal, TypeVar, Union

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject, Schema

T = TypeVar("T")

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = (list, tuple, Sequence, Iterable)
_MAPPINGS = (dict, Mapping)
_MODEL_METHODS = ("model_json_schema", "model_validate")
_KINDS = "str, int, float, bool, None, list[T], dict[str, T], T | None, Literal, Enum, dataclasses"


def is_type(kind: Any) -> bool:
    """Return whether `schema_of` can convert `kind`."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or _is_model(kind))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in _MODEL_METHODS)


def schema_of(kind: type[Any]) -> Schema:
    """Return the JSON Schema of a dataclass or a pydantic model. Raise `UsageError` and name the part that has no
    schema."""
    return _model_schema(kind) if _is_model(kind) else _dataclass_schema(kind, ())


def instance_of(kind: type[T], value: JsonObject) -> T:
    """Convert a value that fits the schema of `kind` to an instance of `kind`."""
    built: T = _build(kind, value)
    return built


# -- type hints to schemas --


def _dataclass_schema(kind: type[Any], inside: tuple[type[Any], ...]) -> Schema:
    """Return the schema of a dataclass. `inside` are the dataclasses that contain it."""
    if kind in inside:
        raise UsageError(f"{kind.__name__} contains itself, which a schema here cannot say")
    hints = _hints(kind)
    properties, required = {}, []
    for field in (field for field in dataclasses.fields(kind) if field.init):
        schema = _hint_schema(hints[field.name], f"{kind.__name__}.{field.name}", (*inside, kind))
        if "description" in field.metadata:
            schema = {**schema, "description": field.metadata["description"]}
        if isinstance(field.default, (str, int, float, bool)) and not isinstance(field.default, Enum):
            schema = {**schema, "default": field.default}
        properties[field.name] = schema
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    found = {"type": "object", "properties": properties}
    return {**found, "required": required} if required else found


def _hint_schema(hint: Any, place: str, inside: tuple[type[Any], ...]) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is typing.Annotated:
        return _hint_schema(arguments[0], place, inside)
    if origin in (Union, types.UnionType):
        schemas = [_hint_schema(one, place, inside) for one in arguments]
        if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in schemas):
            return {"type": [schema["type"] for schema in schemas]}
        return {"anyOf": schemas}
    if origin is Literal:
        return _one_of(arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of([member.value for member in hint])
    if is_type(hint):
        return _model_schema(hint) if _is_model(hint) else _dataclass_schema(hint, inside)
    kind = origin or hint
    shown = hint.__name__ if isinstance(hint, type) and not arguments else str(hint)
    if kind in _MAPPINGS:
        if arguments and arguments[0] is not str:
            raise UsageError(f"{place} is {shown}: the keys of a mapping must be str")
        inner = {"additionalProperties": _hint_schema(arguments[1], place, inside)} if arguments else {}
        return {"type": "object", **inner}
    if kind in _LISTS and (kind is not tuple or not arguments or arguments[-1] is Ellipsis):
        inner = {"items": _hint_schema(arguments[0], place, inside)} if arguments else {}
        return {"type": "array", **inner}
    raise UsageError(f"{place} is {shown}, which has no schema", hint=f"There is one for {_KINDS}.")


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception as exc:  # a type hint is user code and can raise anything
        raise UsageError(f"the type hints of {kind.__name__} cannot be read: {exc}") from exc


def _one_of(values: Iterable[Any]) -> Schema:
    found = list(values)
    kinds = {_PLAIN.get(type(value)) for value in found}
    if None in kinds:
        raise UsageError(f"{found!r} cannot be told apart in JSON", hint="Use texts, numbers or booleans.")
    return {"enum": found} if len(kinds) > 1 else {"type": kinds.pop(), "enum": found}


# -- a model's own schema --


def _model_schema(model: type[Any]) -> Schema:
    """Return the model's schema, with references to `$defs` replaced by the definitions."""
    schema: Schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def inline(value: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [inline(item, inside) for item in value]
        if not isinstance(value, Mapping):
            return value
        # `discriminator` is for OpenAPI, and only names the field that distinguishes the branches.
        rest = {
            key: inline(item, inside)
            for key, item in value.items()
            if key not in ("$ref", "$defs") and not (key == "discriminator" and "oneOf" in value)
        }
        if not isinstance(reference := value.get("$ref"), str):
            return rest
        target = reference.removeprefix("#/$defs/")
        if target in inside:
            raise UsageError(f"{target} contains itself, which a schema here cannot say")
        if target not in definitions:
            what = f"refers to {reference!r}, which it does not define"
            raise UsageError(f"the schema of {model.__name__} {what}")
        return {**inline(definitions[target], (*inside, target)), **rest}

    whole: Schema = inline(schema, ())
    return whole


# -- values to instances --


def _build(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _build(arguments[0], value)
    if origin in (Union, types.UnionType):
        if value is None or (type(value) in arguments and type(value) in _PLAIN):
            return value
        for kind in (kind for kind in arguments if kind not in _PLAIN):
            with suppress(TypeError, ValueError, AttributeError):  # the value may fit the next kind
                return _build(kind, value)
        return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if _is_model(hint):
        return hint.model_validate(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        known = {field.name for field in dataclasses.fields(hint) if field.init}
        return hint(**{key: _build(hints[key], item) for key, item in value.items() if key in known})
    if arguments and origin in _MAPPINGS:
        return {key: _build(arguments[1], item) for key, item in value.items()}
    if arguments and origin in _LISTS:
        items = [_build(arguments[0], item) for item in value]
        return tuple(items) if origin is tuple else items
    return tuple(value) if hint is tuple else value
