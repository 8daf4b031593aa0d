from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal

import pytest

from rolecall.errors import UsageError
from rolecall.store.schema import problems_of
from rolecall.workflow.typed import instance_of, is_type, schema_of


class Level(Enum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True)
class Place:
    file: str
    line: int = 1


@dataclass
class Finding:
    title: str
    level: Level
    score: float
    is_certain: bool
    kind: Literal["bug", "style"]
    places: list[Place]
    labels: dict[str, str] = field(default_factory=dict)
    note: str | None = None
    about: Place | None = None
    tags: tuple[str, ...] = ()
    extra: Any = None
    status: str = field(default="done", metadata={"description": "How it went"})


VALUE = {
    "title": "t",
    "level": "high",
    "score": 0.5,
    "is_certain": True,
    "kind": "bug",
    "places": [{"file": "a.py"}, {"file": "b.py", "line": 7}],
    "labels": {"a": "b"},
    "note": None,
    "about": {"file": "c.py", "line": 2},
    "tags": ["x", "y"],
}


def test_a_dataclass_becomes_an_accepted_schema_of_its_type_hints() -> None:
    schema = schema_of(Finding)
    place = {
        "type": "object",
        "properties": {"file": {"type": "string"}, "line": {"type": "integer", "default": 1}},
        "required": ["file"],
    }
    assert problems_of(schema) == []
    assert schema["required"] == ["title", "level", "score", "is_certain", "kind", "places"]
    assert schema["properties"] == {
        "title": {"type": "string"},
        "level": {"type": "string", "enum": ["low", "high"]},
        "score": {"type": "number"},
        "is_certain": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["bug", "style"]},
        "places": {"type": "array", "items": place},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "note": {"type": ["string", "null"]},
        "about": {"anyOf": [place, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "extra": {},
        "status": {"type": "string", "description": "How it went", "default": "done"},
    }


def test_a_value_becomes_an_instance_with_everything_nested_in_it() -> None:
    found = instance_of(Finding, {**VALUE, "unknown": 1})
    assert found == Finding(
        title="t",
        level=Level.HIGH,
        score=0.5,
        is_certain=True,
        kind="bug",
        places=[Place("a.py"), Place("b.py", 7)],
        labels={"a": "b"},
        about=Place("c.py", 2),
        tags=("x", "y"),
    )


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Keyed:
    by_number: dict[int, str]


@dataclass
class Odd:
    value: complex


@dataclass
class Pair:
    value: tuple[int, str]


@dataclass
class Unresolved:
    value: NoSuchType  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Tree, "Tree contains itself"),
        (Keyed, r"Keyed.by_number .* keys of a mapping must be str"),
        (Odd, "Odd.value is complex, which has no schema"),
        (Pair, r"Pair.value is tuple\[int, str\], which has no schema"),
        (Unresolved, "type hints of Unresolved cannot be read.*NoSuchType"),
    ],
)
def test_a_type_without_a_schema_is_refused_by_the_name_of_the_part(kind: type[Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        schema_of(kind)


class Model:
    """What pydantic makes of a model with a nested one, a tagged union and a described field."""

    schema: ClassVar[dict[str, Any]] = {
        "$defs": {
            "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "title": "Cat"},
            "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "title": "Dog"},
        },
        "title": "Model",
        "type": "object",
        "properties": {
            "pet": {
                "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            },
            "best": {"$ref": "#/$defs/Cat", "description": "the best one"},
            "discriminator": {"type": "string"},
        },
    }

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return cls.schema

    @classmethod
    def model_validate(cls, value: Any) -> Any:
        return ("validated", value)


class SelfContained(Model):
    schema: ClassVar[dict[str, Any]] = {
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        "$ref": "#/$defs/Node",
    }


def test_references_of_a_model_are_written_out_where_they_are_used() -> None:
    schema = schema_of(Model)
    cat, dog = Model.schema["$defs"]["Cat"], Model.schema["$defs"]["Dog"]
    assert problems_of(schema) == []
    assert schema["properties"] == {
        "pet": {"oneOf": [cat, dog]},
        "best": {**cat, "description": "the best one"},
        "discriminator": {"type": "string"},
    }


def test_a_model_that_contains_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="Node contains itself"):
        schema_of(SelfContained)


def test_a_model_makes_its_own_instances() -> None:
    assert instance_of(Model, {"a": 1}) == ("validated", {"a": 1})  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("kind", [{}, "text", int, dict, Place("a"), None])
def test_other_things_are_no_types_of_an_output(kind: Any) -> None:
    assert not is_type(kind)


def test_a_model_of_pydantic_itself_gives_an_accepted_schema() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", line=(int, 1))
    outer = pydantic.create_model("Outer", inner=(inner, ...), note=(str | None, None))
    schema = schema_of(outer)
    assert problems_of(schema) == []
    assert schema["properties"]["inner"]["properties"]["line"]["type"] == "integer"
    assert instance_of(outer, {"inner": {"line": 3}}).inner.line == 3
