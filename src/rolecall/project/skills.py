"""Which skill is active: what starts one, what replaces it, what ends it. Values.

A skill is active until another one is activated, until it has done its work, or until the session ends. Typed
tags and slash commands activate any skill; what is guessed from a user's words may only be one of `offered`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import UsageError
from rolecall.project.tags import ANY_VARIANT, Action, Activation, Tag

if TYPE_CHECKING:
    from rolecall.project.catalog import Catalog, Skill


class Active(NamedTuple):
    skill: str
    mode: str = ""


def offered(catalog: Catalog) -> tuple[Skill, ...]:
    """The skills that may be activated without having been named: all but the manual ones."""
    return tuple(skill for skill in catalog.skills.values() if not skill.manual_only)


def guessed(catalog: Catalog, skill: str) -> Activation:
    """The activation of a skill that was made out of a user's words."""
    if catalog.skill(skill).manual_only:
        raise UsageError(f"{skill} is only activated by the user", hint=f"Type /{skill} to activate it.")
    return Activation(skill)


def slash(message: str, skills: Collection[str], tags: Mapping[str, Tag]) -> Activation | None:
    """The activation by `/skill words`, when the message begins so; a first word that is a mode of the skill is one."""
    first, _, rest = message.strip().partition("\n")
    command, _, words = first.partition(" ")
    skill = command.removeprefix("/")
    if not command.startswith("/") or skill not in skills:
        return None
    mode, _, others = words.strip().partition(" ")
    if mode not in _modes(tags, skill):
        mode, others = "", words
    return Activation(skill, mode, f"{others.strip()}\n{rest}".strip())


def _modes(tags: Mapping[str, Tag], skill: str) -> set[str]:
    return {mode for tag in tags.values() if tag.skill == skill for mode in tag.variants} - {ANY_VARIANT}


def after(active: Active | None, found: Iterable[Activation | Action]) -> Active | None:
    """What is active once these were typed: the last skill called for, else the one that was."""
    for one in found:
        if isinstance(one, Activation):
            active = Active(one.skill, one.mode)
    return active


def ended(active: Active | None, skill: str) -> Active | None:
    """What is active once `skill` has done its work: a skill that was replaced meanwhile ends nothing."""
    return None if active and active.skill == skill else active
