"""How any host is told to start an agent: by which call, with which prompt, and how one goes on that has ended."""

from __future__ import annotations

from rolecall.project import macros
from rolecall.project.macros import Arguments


def started(arguments: Arguments, call: str, again: str) -> str:
    """`again` is left out where an agent is asked for that is never resumed."""
    is_once = arguments.get("resume_tier_hint") == "ephemeral"
    return f"{call}{'' if is_once else f' {again}'}\n\n{macros.fenced(str(arguments['prompt']))}"


def named(arguments: Arguments, words: str) -> str:
    """`words` with the name that the agent is to have; empty where it has none."""
    return words.format(arguments["name"]) if "name" in arguments else ""
