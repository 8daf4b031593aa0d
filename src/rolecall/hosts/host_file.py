"""Texts of agents and skills as the files of hosts have them: a head in YAML, the body in the host's words. Values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rolecall.errors import UsageError
from rolecall.hosts.setup import SERVER
from rolecall.nexus import macros

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Agent, Catalog, Skill
    from rolecall.nexus.macros import Render

TOOL_NAMES = f"The tools called `nx_…` here are those of the MCP server `{SERVER}`."
ONLY_PROJECTS = (
    "Hooks act in every git repository that you open, except your home: a session that begins in one creates its"
    " .nexus folder, and from then on edits need a task."
)
"""What whoever installs for all projects has to know, whatever the host."""
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that JSON has in a text as they are, and readers of YAML take for line ends or refuse."""
_HEAD = re.compile(r"---\r?\n(.*?)^---\r?$", re.DOTALL | re.MULTILINE)


def headed(fields: Mapping[str, Any], body: str) -> str:
    """A text with fields before it. Their values are JSON, which YAML reads as what it is."""
    lines = [f"{key}: {_written(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---", "", f"{body.strip()}\n"])


def _written(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def head_of(text: str) -> Mapping[str, Any]:
    """The fields before a text, whoever wrote it; `UsageError` where they cannot be read."""
    from rolecall.settings import yaml12

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
    """The text of a skill in a host's words, with the host's instructions on its subjects."""
    body = macros.expand(
        skill.body,
        words,
        invocations=catalog.vocabulary.invocations,
        choices=catalog.choices,
        source=f"skill {skill.id}",
    )
    return "\n\n".join(filter(None, [body.strip(), docs, TOOL_NAMES])) + "\n"
