"""Agents and skills in the format of hosts' files: YAML frontmatter, then the body in the host's wording."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rolecall.errors import UsageError
from rolecall.hosts.setup import SERVER
from rolecall.nexus import macros
from rolecall.settings import yaml12

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Agent, Catalog, Skill
    from rolecall.nexus.macros import Render

TOOL_NAMES = f"The tools called `nx_…` here are those of the MCP server `{SERVER}`."
ONLY_PROJECTS = (
    "Hooks act in every git repository that you open, except your home: a session that begins in one creates its"
    " .nexus folder, and from then on edits need a task."
)
"""What everyone who installs for all projects must know, for any host."""
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that JSON allows in strings, but YAML parsers treat as line breaks or refuse."""
_HEAD = re.compile(r"---\r?\n(.*?)^---\r?$", re.DOTALL | re.MULTILINE)


def with_head(fields: Mapping[str, Any], body: str) -> str:
    """A text with YAML frontmatter. Values are written as JSON, which is valid YAML."""
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    head = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", "\n".join(lines))
    return f"---\n{head}\n---\n\n{body.strip()}\n"


def read_head(text: str) -> Mapping[str, Any]:
    """The frontmatter of a text, which may be written by anyone."""
    found = _HEAD.match(text)
    if found is None:
        raise UsageError("it has no frontmatter")
    fields = yaml12.load(found[1], source="frontmatter")
    if not isinstance(fields, Mapping):
        raise UsageError("its frontmatter has no fields")
    return fields


def summary(agent: Agent) -> str:
    return f"{agent.description}. {agent.task}." if agent.task else agent.description


def skill_body(skill: Skill, catalog: Catalog, words: Render, docs: str) -> str:
    """The text of a skill in a host's wording, with the host's instructions on its subjects."""
    body = macros.expand(
        skill.body,
        words,
        invocations=catalog.vocabulary.invocations,
        choices=catalog.choices,
        source=f"skill {skill.id}",
    )
    return "\n\n".join(filter(None, [body.strip(), docs, TOOL_NAMES])) + "\n"
