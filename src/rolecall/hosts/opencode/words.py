"""The wording of skill bodies for OpenCode, which refers to its own tools.

The question tool exists only in interactive sessions, so the wording allows for it to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolecall.hosts import spawn_words
from rolecall.nexus import macros
from rolecall.nexus.macros import Arguments, Render

if TYPE_CHECKING:
    from rolecall.nexus.tags import Tag

DOCS: Mapping[str, str] = {
    "resume_invocation": "To resume an ended agent, call the tool task with the id of its session as task_id;"
    " without task_id, task starts a new one.",
    "instruction_file": "OpenCode reads AGENTS.md in the project's folder at every start.",
    "slash_command_display": "A skill is typed as its id behind a slash: `/nx-plan`.",
}
"""Subjects that skills refer to by name, and on which the host gives instructions."""


def render(tags: Mapping[str, Tag]) -> Render:
    prose = macros.prose(tags)

    def skill(arguments: Arguments) -> str:
        mode = f", and follow it in its mode `{arguments['mode']}`" if arguments.get("mode") else ""
        return f"Call the tool skill with name `{arguments['skill']}`{mode}."

    def spawn(arguments: Arguments) -> str:
        about = spawn_words.name_words(arguments, ", description `{}`")
        call = f"Call the tool task with subagent_type `{arguments['target_role']}`{about} and this prompt."
        return spawn_words.spawn(arguments, call, "To resume one, also give the id of its task as task_id.")

    return {
        **prose,
        "skill_activation": skill,
        "subagent_spawn": spawn,
        "task_register": lambda arguments: (
            f"(On the list of the tool todowrite: `{arguments['label']}`, {arguments['state']}.)"
        ),
        "user_question": lambda arguments: (
            f"Use the tool question where you have it. {prose['user_question'](arguments)}"
        ),
    }
