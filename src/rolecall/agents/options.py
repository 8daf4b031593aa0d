"""Converts an adapter's options, from a configuration or a role's `agent`, to values of its fields.

An adapter is a dataclass whose fields define the names and types of its options.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from rolecall.agents import ADAPTERS
from rolecall.agents.program import McpServer
from rolecall.errors import UsageError
from rolecall.settings.form import did_you_mean


def parse_words(name: str, argument: str) -> dict[str, str]:
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


def typed(adapter: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to the types of the adapter's fields. An unknown option or a value of the wrong type is an error
    that lists the options."""
    kind = type(import_module(ADAPTERS[adapter]).default)
    known = {item.name: str(item.type) for item in fields(kind) if not item.name.startswith("_")}
    found: dict[str, Any] = {}
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = did_you_mean(name, sorted(known), what="Its options")
            raise UsageError(f"the agent {adapter!r} has no option {key!r}", hint=hint)
        if value is None or (value == "none" and "None" in known[name]):
            found[name] = None
            continue
        convert = next((_CONVERT[mark] for mark in _CONVERT if known[name].startswith(mark)), str)
        try:
            found[name] = convert(value)
        except (TypeError, ValueError, KeyError) as error:
            # Variables and tool servers may contain secrets, so their values are not shown.
            is_plain = known[name].startswith(("bool", "int", "float"))
            shown = f"cannot be {value!r}" if is_plain else "cannot be used"
            raise UsageError(f"the option {key!r} of the agent {adapter!r} {shown}: {error}") from error
    return found


def _flag(value: Any) -> bool:
    words = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if str(value) not in words:
        raise ValueError("it must be true or false")
    return words[str(value)]


def _amount(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError("it must be a number above 0")
    return number


def _words(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    return tuple(str(item) for item in items if str(item))


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("it must be a mapping")
    return {str(key): str(item) for key, item in value.items()}


def _servers(value: Any) -> tuple[McpServer, ...]:
    if not isinstance(value, Mapping):
        raise ValueError(
            "tool servers are written as a mapping in the configuration: NAME: {command, args, env}"
        )
    return tuple(
        McpServer(
            str(name), str(entry["command"]), _words(entry.get("args") or ()), _texts(entry.get("env") or {})
        )
        for name, entry in value.items()
    )


_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "bool": _flag,
    "int": int,
    "float": _amount,
    "tuple[McpServer": _servers,
    "tuple[str": _words,
    "Mapping[str, str]": _texts,
}
"""A converter for each beginning of a field's type; other types are text."""
