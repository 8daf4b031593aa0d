"""Options of an adapter as they are written (in a configuration or a role's `agent`), as values of its fields.

An adapter is a dataclass; its fields are its options, by name and type. An option it does not have, or a
value that is no such thing, is an error that says which ones there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from rolecall.errors import UsageError


def typed(adapter: str, options: Mapping[str, Any]) -> dict[str, Any]:
    known = {item.name: str(item.type) for item in fields(kind_of(adapter)) if not item.name.startswith("_")}
    found = {}
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            close = get_close_matches(name, known, n=1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            raise UsageError(
                f"the agent {adapter!r} has no option {key!r}",
                hint=f"{guess}Its options: {', '.join(sorted(known))}.",
            )
        try:
            found[name] = _value(known[name], value)
        except (TypeError, ValueError, KeyError) as error:
            # The values of variables and tool servers may be secret.
            is_plain = known[name].startswith(("bool", "int", "float"))
            shown = f"cannot be {value!r}" if is_plain else "cannot be used"
            raise UsageError(f"the option {key!r} of the agent {adapter!r} {shown}: {error}") from error
    return found


def kind_of(adapter: str) -> Any:
    """The adapter's class, whose fields are its options."""
    module = import_module(f"rolecall.agents.{adapter}")
    return type(module.default)


def _value(kind: str, value: Any) -> Any:
    """`value` as a field of this type takes it; text is what a spec gives, anything a configuration."""
    if value is None or (value == "none" and "None" in kind):
        return None
    for mark, convert in _KINDS.items():
        if kind.startswith(mark):
            return convert(value)
    return str(value)


def _yes(value: Any) -> bool:
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


def _servers(value: Any) -> Any:
    """`{NAME: {command, args, env}}`"""
    from rolecall.agents.program import McpServer

    if not isinstance(value, Mapping):
        raise ValueError(
            "tool servers are written as a mapping in the configuration: NAME: {command, args, env}"
        )
    return tuple(
        McpServer(
            str(name),
            str(entry["command"]),
            tuple(map(str, entry.get("args") or ())),
            {str(key): str(text) for key, text in (entry.get("env") or {}).items()},
        )
        for name, entry in value.items()
    )


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("it must be a mapping")
    return {str(key): str(item) for key, item in value.items()}


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "bool": _yes,
    "int": int,
    "float": _amount,
    "tuple[McpServer": _servers,
    "tuple[str": _words,
    "Mapping[str, str]": _texts,
}
