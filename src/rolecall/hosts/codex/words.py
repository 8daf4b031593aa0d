"""How Codex is told to do what the bodies of skills ask for: with its own tools, by name.

Codex starts no agents unless it is asked to in so many words, so that the words say it. It has no tool for skills;
their files are listed before the model, which reads them. Questions go in prose: it has a tool for them in one of its
modes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolecall.hosts import spawn_words
from rolecall.nexus import macros
from rolecall.nexus.macros import Arguments, Render

if TYPE_CHECKING:
    from rolecall.nexus.tags import Tag

_HOST_AGENTS = {"explore": "explorer"}
"""Roles that are asked for by a name for which the host has an agent of its own."""

DOCS: Mapping[str, str] = {
    "resume_invocation": "To resume an ended agent in its session, give its id to send_input or followup_task;"
    " spawn_agent always starts a new one.",
    "instruction_file": "Codex reads AGENTS.md in the project's folder at every start.",
    "slash_command_display": "Users type a skill as a dollar sign and its id: `$nx-plan`.",
}
"""What skills refer to by name and leave to the host to say."""


def words(tags: Mapping[str, Tag]) -> Render:
    return {**macros.prose(tags), "skill_activation": _skill, "subagent_spawn": _spawn}


def _skill(arguments: Arguments) -> str:
    skill, mode = arguments["skill"], arguments.get("mode")
    with_mode = f", in its mode `{mode}`" if mode else ""
    return (
        f"Go on with the skill `{skill}`{with_mode}: read its SKILL.md, and follow it in place of this one."
    )


def _spawn(arguments: Arguments) -> str:
    role = str(arguments["target_role"])
    about = spawn_words.named(arguments, " and task_name `{}`, if it takes one").replace("-", "_")
    call = (
        f"Start a sub-agent: call the tool spawn_agent with agent_type `{_HOST_AGENTS.get(role, role)}`{about},"
        " and with this message. Wait for its answer with wait_agent."
    )
    return spawn_words.started(
        arguments, call, "To resume one, give its id to the tool send_input or followup_task instead."
    )
