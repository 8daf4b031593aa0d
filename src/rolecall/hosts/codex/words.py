"""The wording of skill bodies for Codex, which refers to its own tools.

Codex starts agents only if it is explicitly asked to, so the wording does so. It has no tool for skills; it lists their
files for the model to read. Questions are asked in prose, because only one of its modes has a tool for them.
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
"""Roles for which the host has its own agent."""

DOCS: Mapping[str, str] = {
    "resume_invocation": "To resume an ended agent in its session, give its id to send_input or followup_task;"
    " spawn_agent always starts a new one.",
    "instruction_file": "Codex reads AGENTS.md in the project's folder at every start.",
    "slash_command_display": "Users type a skill as a dollar sign and its id: `$nx-plan`.",
}
"""Subjects that skills refer to by name, and on which the host gives instructions."""


def render(tags: Mapping[str, Tag]) -> Render:
    def skill(arguments: Arguments) -> str:
        mode = f", in its mode `{arguments['mode']}`" if arguments.get("mode") else ""
        name = arguments["skill"]
        return (
            f"Continue with the skill `{name}`{mode}: read its SKILL.md, and follow it in place of this one."
        )

    def spawn(arguments: Arguments) -> str:
        role = str(arguments["target_role"])
        about = spawn_words.name_words(arguments, " and task_name `{}`, if it takes one").replace("-", "_")
        call = (
            f"Start a sub-agent: call the tool spawn_agent with agent_type `{_HOST_AGENTS.get(role, role)}`{about},"
            " and with this message. Wait for its answer with wait_agent."
        )
        resume = "To resume one, give its id to the tool send_input or followup_task instead."
        return spawn_words.spawn(arguments, call, resume)

    return {**macros.prose(tags), "skill_activation": skill, "subagent_spawn": spawn}
