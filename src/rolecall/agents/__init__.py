"""The agents a role can name. Each adapter is one module, imported when a role first asks for it.

A name is all of `name` or `name:argument`; what the argument means is the adapter's own affair. There
is no fallback: a name that is not in the table is an error before anything runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rolecall.errors import NotFound

if TYPE_CHECKING:
    from rolecall.agents.protocol import Agent

ADAPTERS = {
    "command": "rolecall.agents.command",
    "external": "rolecall.agents.external",
    "scripted": "rolecall.agents.scripted",
}
"""Adapter name -> the module whose `from_argument` makes the agent. `human` is no adapter: a role played by
a person suspends the thread until `thread answer` gives its output."""


def resolve(spec: str) -> Agent:
    """The agent a spec such as `command:prog --flag` names."""
    name, _, argument = spec.partition(":")
    if name not in ADAPTERS:
        raise _unknown(name)
    agent: Agent = import_module(ADAPTERS[name]).from_argument(argument)
    return agent


def _unknown(name: str) -> NotFound:
    from difflib import get_close_matches

    close = get_close_matches(name, ADAPTERS, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return NotFound(
        f"there is no agent {name!r}", hint=f"{guess}Known agents: {', '.join(sorted(ADAPTERS))}."
    )
