"""Prompts: the skills of the catalogue, worded for hosts that do not support skills themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rolecall.errors import NotFound, UsageError
from rolecall.nexus import catalog, macros
from rolecall.nexus.catalog import Skill
from rolecall.nexus.tags import ANY_VARIANT
from rolecall.settings import config
from rolecall.store.canonical import JsonObject

_REQUEST = {"name": "request", "description": "What the user wants from it.", "required": False}


def list_prompts() -> list[JsonObject]:
    found: list[JsonObject] = []
    for skill in _catalog().skills.values():
        modes = _modes(skill)
        mode = {"name": "mode", "description": f"How to work: {' or '.join(modes)}.", "required": False}
        arguments = [_REQUEST, *([mode] if modes else [])]
        found.append({"name": skill.id, "description": skill.description, "arguments": arguments})
    return found


def get_prompt(name: str, arguments: Mapping[str, str]) -> JsonObject:
    """Return the text of a skill with its arguments, as a message from the user."""
    known = _catalog()
    skill = known.skills.get(name)
    if skill is None:
        raise NotFound(f"there is no skill {name!r}; there are {', '.join(known.skills)}")
    modes = _modes(skill)
    mode, request = arguments.get("mode", ""), arguments.get("request", "").strip()
    if unknown := sorted(arguments.keys() - {"mode", "request"}):
        raise UsageError(f"the skill {name} has no argument {unknown[0]!r}")
    if mode and mode not in modes:
        has = f"; it has {', '.join(modes)}" if modes else ""
        raise UsageError(f"the skill {name} has no mode {mode!r}{has}")
    head = f"Work by the skill {name}{f' in the mode {mode}' if mode else ''} until it is done:"
    words = [head, known.write_body(skill, macros.prose(known.vocabulary.tags))]
    text = "\n\n".join([*words, *([f"What the user wants: {request}"] if request else [])])
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"description": skill.description, "messages": [message]}


@cache
def _catalog() -> catalog.Catalog:
    return catalog.load(config.catalog_folder())


def _modes(skill: Skill) -> list[str]:
    """Return the variants of the tags that activate a skill."""
    tags = _catalog().vocabulary.tags
    found = (tags[tag].variants for tag in skill.triggers if tag in tags)
    return [one for variants in found for one in variants if one != ANY_VARIANT]
