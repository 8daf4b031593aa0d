"""Python types as JSON Schemas, and values of a schema as instances of the type.

A dataclass is read from its type hints, a pydantic model (or anything else with `model_json_schema` and
`model_validate`) says its schema itself. What comes out uses only what `schema.py` accepts: references
are written out where they are used, so a type that contains itself has no schema here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeVar, Union

from rolecall.errors import UsageError

T = TypeVar("T")

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = (list, tuple, Sequence, Iterable)
_MAPPINGS = (dict, Mapping)
_MODEL_METHODS = ("model_json_schema", "model_validate")
_KINDS = "str, int, float, bool, None, list[T], dict[str, T], T | None, Literal, Enum, dataclasses"


def is_type(kind: Any) -> bool:
    """Whether `schema_of` knows what to do with it."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or _is_model(kind))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in _MODEL_METHODS)


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a dataclass or a pydantic model; `UsageError` says which part has none."""
    return _inlined(kind) if _is_model(kind) else _Reader().of_dataclass(kind)


def instance_of(kind: type[T], value: Mapping[str, Any]) -> T:
    """A value that fits the schema of `kind`, as an instance of it."""
    built: T = _built(kind, value)
    return built


# -- type hints to schemas --


class _Reader:
    def __init__(self) -> None:
        self._inside: list[type[Any]] = []

    def of_dataclass(self, kind: type[Any]) -> dict[str, Any]:
        if kind in self._inside:
            raise UsageError(f"{kind.__name__} contains itself, which a schema here cannot say")
        self._inside.append(kind)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        hints = _hints(kind)
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {field.name: self._field(kind, field, hints[field.name]) for field in fields},
        }
        self._inside.pop()
        if required := [field.name for field in fields if not _has_default(field)]:
            schema["required"] = required
        return schema

    def _field(self, kind: type[Any], field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
        schema = self.of_hint(hint, f"{kind.__name__}.{field.name}")
        if "description" in field.metadata:
            schema = {**schema, "description": field.metadata["description"]}
        if isinstance(field.default, (str, int, float, bool)) and not isinstance(field.default, Enum):
            schema = {**schema, "default": field.default}
        return schema

    def of_hint(self, hint: Any, place: str) -> dict[str, Any]:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any:
            return {}
        if hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        if origin is typing.Annotated:
            return self.of_hint(arguments[0], place)
        if origin in (Union, types.UnionType):
            return _either([self.of_hint(one, place) for one in arguments])
        if origin is Literal:
            return _one_of(arguments)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _one_of([member.value for member in hint])
        if is_type(hint):
            return schema_of(hint) if _is_model(hint) else self.of_dataclass(hint)
        return self._of_container(hint, origin or hint, arguments, place)

    def _of_container(self, hint: Any, origin: Any, arguments: tuple[Any, ...], place: str) -> dict[str, Any]:
        if origin in _MAPPINGS:
            if arguments and arguments[0] is not str:
                raise UsageError(f"{place} is {_shown(hint)}: the keys of a mapping must be str")
            return {
                "type": "object",
                **({"additionalProperties": self.of_hint(arguments[1], place)} if arguments else {}),
            }
        if origin in _LISTS and (origin is not tuple or not arguments or arguments[-1] is Ellipsis):
            return {"type": "array", **({"items": self.of_hint(arguments[0], place)} if arguments else {})}
        raise UsageError(
            f"{place} is {_shown(hint)}, which has no schema", hint=f"There is one for {_KINDS}."
        )


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception as exc:  # a hint is an expression of the user's, which may raise anything
        raise UsageError(f"the type hints of {kind.__name__} cannot be read: {exc}") from exc


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _either(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _one_of(values: Iterable[Any]) -> dict[str, Any]:
    found = list(values)
    kinds = {_PLAIN.get(type(value)) for value in found}
    if None in kinds:
        raise UsageError(f"{found!r} cannot be told apart in JSON", hint="Use texts, numbers or booleans.")
    return {"enum": found} if len(kinds) > 1 else {"type": kinds.pop(), "enum": found}


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


# -- a model's own schema --


def _inlined(model: type[Any]) -> dict[str, Any]:
    """The schema with its `$defs` written out where they are referred to."""
    schema: dict[str, Any] = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def inline(value: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [inline(item, inside) for item in value]
        if not isinstance(value, Mapping):
            return value
        # `discriminator` only names the field that tells the branches apart, for readers of OpenAPI.
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
            raise UsageError(
                f"the schema of {model.__name__} refers to {reference!r}, which it does not define"
            )
        return {**inline(definitions[target], (*inside, target)), **rest}

    whole: dict[str, Any] = inline(schema, ())
    return whole


# -- values to instances --


def _built(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _built(arguments[0], value)
    if origin in (Union, types.UnionType):
        return _built_union(arguments, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if _is_model(hint):
        return hint.model_validate(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        known = {field.name for field in dataclasses.fields(hint) if field.init}
        return hint(**{key: _built(hints[key], item) for key, item in value.items() if key in known})
    if arguments and origin in _MAPPINGS:
        return {key: _built(arguments[1], item) for key, item in value.items()}
    if arguments and origin in _LISTS:
        items = [_built(arguments[0], item) for item in value]
        return tuple(items) if origin is tuple else items
    return tuple(value) if hint is tuple else value


def _built_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """The first kind that takes the value; plain values are what they are."""
    if value is None:
        return None
    for kind in kinds:
        if kind in _PLAIN and type(value) is kind:
            return value
    for kind in kinds:
        if kind in _PLAIN:
            continue
        try:
            return _built(kind, value)
        except (TypeError, ValueError, AttributeError):
            continue
    return value
