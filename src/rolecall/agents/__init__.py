"""The agents a role can name. Each adapter is one module, imported when a role first asks for it.

A name is all of `name` or `name:argument`; what the argument means is the adapter's own affair. There
is no fallback: a name that is not in the table is an error before anything runs.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from rolecall.errors import NotFound

if TYPE_CHECKING:
    from rolecall.agents.protocol import Agent

ADAPTERS = {
    "command": "rolecall.agents.command",
    "scripted": "rolecall.agents.scripted",
}
"""Adapter name -> the module whose `from_argument` makes the agent."""


def resolve(spec: str) -> Agent:
    """The agent a spec such as `command:prog --flag` names."""
    name, _, argument = spec.partition(":")
    if name not in ADAPTERS:
        raise _unknown(name)
    agent: Agent = import_module(ADAPTERS[name]).from_argument(argument)
    return agent


def _unknown(name: str) -> NotFound:
    close = get_close_matches(name, ADAPTERS, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return NotFound(
        f"there is no agent {name!r}", hint=f"{guess}Known agents: {', '.join(sorted(ADAPTERS))}."
    )
