"""Texts for any host: how to start and resume an agent, and the subjects that a skill leaves to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolecall.nexus import macros
from rolecall.nexus.macros import Arguments

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Skill


def started(arguments: Arguments, call: str, again: str) -> str:
    """`again` is left out where an agent is asked for that is never resumed."""
    is_once = arguments.get("resume_tier_hint") == "ephemeral"
    return f"{call}{'' if is_once else f' {again}'}\n\n{macros.fenced(str(arguments['prompt']))}"


def named(arguments: Arguments, words: str) -> str:
    """`words` with the name that the agent is to have; empty where it has none."""
    return words.format(arguments["name"]) if "name" in arguments else ""


def docs(skill: Skill, known: Mapping[str, str]) -> str:
    """The host's instructions on the subjects of a skill, as a section after its body; empty if it refers to none."""
    lines = [f"- {known[ref]}" for ref in skill.harness_docs_refs if ref in known]
    return "\n".join(["## In this host", "", *lines]) if lines else ""
