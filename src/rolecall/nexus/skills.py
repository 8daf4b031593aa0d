"""Skills that a user activates by name: `/skill words`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rolecall.nexus.tags import ANY_VARIANT, Activation, Tag


def slash(message: str, skills: Collection[str], tags: Mapping[str, Tag]) -> Activation | None:
    """The skill that a message starting with `/skill words` activates; the first word may be a mode of the skill."""
    first, _, rest = message.strip().partition("\n")
    command, _, words = first.partition(" ")
    skill = command.removeprefix("/")
    if not command.startswith("/") or skill not in skills:
        return None
    modes = {mode for tag in tags.values() if tag.skill == skill for mode in tag.variants} - {ANY_VARIANT}
    mode, _, others = words.strip().partition(" ")
    if mode not in modes:
        mode, others = "", words
    return Activation(skill, mode, f"{others.strip()}\n{rest}".strip())
