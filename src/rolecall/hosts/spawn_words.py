"""Wording shared by all hosts: how to start and resume an agent, and the subjects that a skill leaves to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolecall.nexus import macros
from rolecall.nexus.macros import Arguments

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Skill


def spawn(arguments: Arguments, call: str, resume: str) -> str:
    """The instruction to start an agent; `resume` is left out for an agent that is never resumed."""
    is_once = arguments.get("resume_tier_hint") == "ephemeral"
    return f"{call}{'' if is_once else f' {resume}'}\n\n{macros.fenced(str(arguments['prompt']))}"


def name_words(arguments: Arguments, words: str) -> str:
    """`words` with the agent's name filled in; empty if it has no name."""
    return words.format(arguments["name"]) if "name" in arguments else ""


def skill_docs(skill: Skill, docs: Mapping[str, str]) -> str:
    """The host's instructions on the subjects of a skill, as a section after its body; empty if it refers to none."""
    lines = [f"- {docs[ref]}" for ref in skill.harness_docs_refs if ref in docs]
    return "\n".join(["## In this host", "", *lines]) if lines else ""
