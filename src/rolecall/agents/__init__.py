"""The agents a role can name. Each adapter is one module, imported when a role first asks for it.

A name is all of `name` or `name:argument`. For `command`, `external`, `scripted` and `acp` the argument is
theirs to read; the other adapters take options: `claude:model=opus timeout=600`, or a model alone,
`claude:opus`. There is no fallback: a name that is not in the table is an error before anything runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rolecall.errors import NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rolecall.agents.protocol import Agent

SPOKEN = {
    "acp": "rolecall.agents.acp",
    "command": "rolecall.agents.command",
    "external": "rolecall.agents.external",
    "scripted": "rolecall.agents.scripted",
    "workflow": "rolecall.agents.subworkflow",
}
"""Adapters whose module makes the agent from the argument as it is written, by `from_argument`."""

PROGRAMS = ("claude", "codex", "copilot", "cursor", "gemini", "hermes", "opencode", "qwen")
"""Coding agents that are programs of their own: `rolecall.agents.NAME` has the factory NAME."""

ADAPTERS = {
    **SPOKEN,
    **{name: f"rolecall.agents.{name}" for name in (*PROGRAMS, "builtin")},
}
"""Adapter name -> its module. `human` is no adapter: a role played by a person suspends the thread until
`thread answer` gives its output."""


def resolve(spec: str, options: Mapping[str, Any] | None = None) -> Agent:
    """The agent a spec such as `command:prog --flag` or `claude:opus` names; `options` come from the
    configuration, and what the spec says goes before them."""
    name, _, argument = spec.partition(":")
    if name not in ADAPTERS:
        raise _unknown(name)
    module = import_module(ADAPTERS[name])
    if name in SPOKEN:
        agent: Agent = module.from_argument(argument, **(options or {}))
        return agent
    made: Agent = make(name, {**(options or {}), **written(name, argument)})
    return made


def make(name: str, options: Mapping[str, Any]) -> Any:
    """An adapter from options as they are written in a configuration or a spec."""
    from rolecall.agents.options import typed

    factory = getattr(import_module(ADAPTERS[name]), name)
    return factory(**typed(name, options))


def written(name: str, argument: str) -> dict[str, str]:
    """`key=value` words; a word without `=` is the model."""
    if not argument.strip():
        return {}
    import shlex

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


def _unknown(name: str) -> NotFound:
    from difflib import get_close_matches

    close = get_close_matches(name, ADAPTERS, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return NotFound(
        f"there is no agent {name!r}", hint=f"{guess}Known agents: {', '.join(sorted(ADAPTERS))}."
    )
