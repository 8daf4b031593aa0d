"""How Claude Code is told to do what the bodies of skills ask for: with its own tools, by name.

The question tool is only there where somebody can be asked, and the progress list only in some releases, so both
are named as what may be missing.
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
"""Roles that are asked for by a name for which the host has an agent of its own."""

DOCS: Mapping[str, str] = {
    "resume_invocation": "To resume an ended agent in its session, use SendMessage with its agent id;"
    " the tool Agent always starts a new one.",
    "instruction_file": "Claude Code reads CLAUDE.md in the project's folder at every start.",
    "slash_command_display": "A skill is typed as its id behind a slash: `/nx-plan`.",
}
"""What skills refer to by name and leave to the host to say."""


def words(tags: Mapping[str, Tag]) -> Render:
    prose = macros.prose(tags)
    return {
        **prose,
        "skill_activation": _skill,
        "subagent_spawn": _spawn,
        "task_register": _progress,
        "user_question": lambda arguments: _question(arguments, prose),
    }


def _skill(arguments: Arguments) -> str:
    skill, mode = arguments["skill"], arguments.get("mode")
    with_mode = f" and args `{mode}`" if mode else ""
    return f"Call the tool Skill with skill `{skill}`{with_mode}."


def _spawn(arguments: Arguments) -> str:
    role = str(arguments["target_role"])
    about = spawn_words.named(arguments, ", description `{}`")
    call = f"Call the tool Agent with subagent_type `{_HOST_AGENTS.get(role, role)}`{about} and this prompt."
    # An agent that has ended goes on by a message to its id, in the same session.
    return spawn_words.started(arguments, call, "To resume one, SendMessage to its agent id instead.")


def _progress(arguments: Arguments) -> str:
    return f"(On a progress list, if you have a tool for one: `{arguments['label']}`, {arguments['state']}.)"


def _question(arguments: Arguments, prose: Render) -> str:
    asked = prose["user_question"](arguments)
    return f"Use the tool AskUserQuestion where you have it. {asked}"
