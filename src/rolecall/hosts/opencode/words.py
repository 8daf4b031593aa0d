"""How OpenCode is told to do what the bodies of skills ask for: with its own tools, by name.

The question tool is only there where somebody can be asked, so it is named as what may be missing.
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
"""What skills refer to by name and leave to the host to say."""


def words(tags: Mapping[str, Tag]) -> Render:
    prose = macros.prose(tags)
    return {
        **prose,
        "skill_activation": _skill,
        "subagent_spawn": _spawn,
        "task_register": _progress,
        "user_question": lambda arguments: (
            f"Use the tool question where you have it. {prose['user_question'](arguments)}"
        ),
    }


def _skill(arguments: Arguments) -> str:
    skill, mode = arguments["skill"], arguments.get("mode")
    with_mode = f", and follow it in its mode `{mode}`" if mode else ""
    return f"Call the tool skill with name `{skill}`{with_mode}."


def _spawn(arguments: Arguments) -> str:
    about = spawn_words.named(arguments, ", description `{}`")
    call = f"Call the tool task with subagent_type `{arguments['target_role']}`{about} and this prompt."
    return spawn_words.started(arguments, call, "To resume one, give the id of its task as task_id, too.")


def _progress(arguments: Arguments) -> str:
    return f"(On the list of the tool todowrite: `{arguments['label']}`, {arguments['state']}.)"
