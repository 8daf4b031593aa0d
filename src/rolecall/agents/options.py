"""Reads an adapter's options from a configuration or a spec. The fields of the adapter define their names and types."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Any, get_type_hints

from rolecall.agents.adapter_table import ADAPTERS, WITH_ARGUMENT
from rolecall.agents.program import McpServer
from rolecall.errors import NotFound, UsageError
from rolecall.settings import form
from rolecall.settings.form import (
    AnyText,
    Converted,
    Field,
    Flag,
    Form,
    ListOf,
    MapOf,
    Number,
    Record,
    Section,
)
from rolecall.store.canonical import JsonObject


def resolve(name: str, argument: str, options: JsonObject) -> Any:
    """Create an agent from the name and argument of a spec, and the options in the configuration."""
    if name not in ADAPTERS:
        hint = form.did_you_mean(name, sorted(ADAPTERS), what="Known agents")
        raise NotFound(f"unknown agent {name!r}", hint=hint)
    if name in WITH_ARGUMENT:
        return import_module(ADAPTERS[name]).from_argument(argument, **read_options(name, options))
    return make(name, {**options, **parse_argument(name, argument)})


def make(name: str, options: JsonObject) -> Any:
    """Create an adapter from the options in a configuration or a spec."""
    return getattr(import_module(ADAPTERS[name]), name)(**read_options(name, options))


def parse_argument(name: str, argument: str) -> dict[str, str]:
    """Parse `key=value` words; a word without `=` is the model."""
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"the agent {name}:{argument} cannot be split: {error}") from error
    found = dict(word.partition("=")[::2] for word in words if "=" in word)
    models = [word for word in words if "=" not in word]
    if len(models) > 1:
        raise UsageError(
            f"the agent {name}:{argument} names {len(models)} models",
            hint=f"Write options as key=value: `{name}:model=NAME timeout=600`.",
        )
    return {**found, **({"model": models[0]} if models else {})}


def read_options(adapter: str, options: JsonObject) -> JsonObject:
    """Read options according to the types of the adapter's fields, or raise `UsageError` with every problem."""
    module = import_module(ADAPTERS[adapter])
    is_parsed = adapter in WITH_ARGUMENT
    kind = get_type_hints(module.from_argument)["return"] if is_parsed else getattr(module, adapter)
    known = {
        field.name: str(field.type)
        for field in (fields(kind) if is_dataclass(kind) else ())
        if field.init and (field.default is not MISSING or field.default_factory is not MISSING)
    }
    values = {key.replace("-", "_"): value for key, value in options.items()}
    wrong = list[tuple[str, str]]()
    for name in [name for name in values if name not in known]:
        hint = form.did_you_mean(name, sorted(known), what="Its options")
        wrong.append((f"the agent {adapter!r} has no option {name!r}", hint))
        del values[name]
    forms = {}
    for name, written in known.items():
        marks = (_FORMS[mark] for mark in _FORMS if written.startswith(mark))
        expected, parse = next(marks, (AnyText(), str))
        is_optional = "None" in written
        forms[name] = Field(_Option(expected, parse, optional=is_optional), nullable=not is_optional)
    record = Section(f"the agent {adapter!r}", forms)
    # Environment variables and tool servers can contain secrets, so error messages show no values.
    read = form.load_value(record, values, hides_texts=True)
    wrong += [(f"the agent {adapter!r}: {problem.message}", problem.hint) for problem in read.problems]
    if wrong[1:]:
        lines = "".join(f"\n  {message}{'. ' if hint else ''}{hint}" for message, hint in wrong)
        raise UsageError(f"the agent {adapter!r} has {len(wrong)} wrong options:{lines}")
    if wrong:
        raise UsageError(wrong[0][0], hint=wrong[0][1])
    return read.require()


class _Option(Form[Any]):
    """A value that can also be written as text, as in `claude:timeout=600`."""

    def __init__(
        self, inner: Form[Any], parse: Callable[[str], Any] = str, *, optional: bool = False
    ) -> None:
        self.inner, self.parse, self.optional = inner, parse, optional

    def read(self, value: Any, at: form.At) -> Any:
        if self.optional and value in (None, "none"):
            return None
        try:
            return self.inner.read(self.parse(value) if isinstance(value, str) else value, at)
        except ValueError:  # the form's own error explains what it expects
            return self.inner.read(value, at)


_WORDS = _Option(ListOf(AnyText()), lambda text: [word for word in text.split(",") if word])
# Other keys, such as the `type` that most programs write, are ignored.
_SERVER: Record[Callable[[str], McpServer]] = Record(
    lambda command, args=(), env=None, **_: lambda name: McpServer(name, command, args, env or {}),
    "a tool server",
    {"command": Field(AnyText(), required=True), "args": _WORDS, "env": MapOf(AnyText())},
    others=form.Anything(),
)
_SERVERS = MapOf(_SERVER, "a mapping such as NAME: {command, args, env}")
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
_FORMS: Mapping[str, tuple[Form[Any], Callable[[str], Any]]] = {
    "bool": (Flag(), lambda text: _FLAGS.get(text, text)),
    "int": (Number(whole=True), int),
    "float": (Converted(Number(above=0), float), float),
    "tuple[McpServer": (
        Converted(_SERVERS, lambda servers: tuple(make(name) for name, make in servers.items())),
        str,
    ),
    "tuple[str": (_WORDS, str),
    "Mapping[str, str]": (MapOf(AnyText()), str),
}
"""For types that begin with each of these texts, the form, and the function that parses a value from text. All other
types are text."""
