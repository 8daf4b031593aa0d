"""The wording of skill bodies for Claude Code, which refers to its own tools.

The question tool exists only in interactive sessions, and the progress list only in some releases, so the wording
allows for both to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolecall.hosts import spawn_words
from rolecall.nexus import macros
from rolecall.nexus.macros import Arguments, Render

if TYPE_CHECKING:
    from rolecall.nexus.tags import Tag

_HOST_AGENTS = {"explore": "Explore"}
"""Roles for which the host has its own agent."""

DOCS: Mapping[str, str] = {
    "resume_invocation": "To resume an ended agent in its session, use SendMessage with its agent id;"
    " the tool Agent always starts a new one.",
    "instruction_file": "Claude Code reads CLAUDE.md in the project's folder at every start.",
    "slash_command_display": "A skill is typed as its id behind a slash: `/nx-plan`.",
}
"""Subjects that skills refer to by name, and on which the host gives instructions."""


def render(tags: Mapping[str, Tag]) -> Render:
    prose = macros.prose(tags)

    def skill(arguments: Arguments) -> str:
        mode = f" and args `{arguments['mode']}`" if arguments.get("mode") else ""
        return f"Call the tool Skill with skill `{arguments['skill']}`{mode}."

    def spawn(arguments: Arguments) -> str:
        role = str(arguments["target_role"])
        about = spawn_words.name_words(arguments, ", description `{}`")
        call = (
            f"Call the tool Agent with subagent_type `{_HOST_AGENTS.get(role, role)}`{about} and this prompt."
        )
        return spawn_words.spawn(arguments, call, "To resume one, SendMessage to its agent id instead.")

    return {
        **prose,
        "skill_activation": skill,
        "subagent_spawn": spawn,
        "task_register": lambda arguments: (
            f"(On a progress list, if you have a tool for one: `{arguments['label']}`, {arguments['state']}.)"
        ),
        "user_question": lambda arguments: (
            f"Use the tool AskUserQuestion where you have it. {prose['user_question'](arguments)}"
        ),
    }
