"""Agents and skills as files of hosts (YAML frontmatter, then the body), and where hosts keep these files."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import UsageError
from rolecall.hosts.setup import SERVER, HostSetup
from rolecall.hosts.wording import Wording
from rolecall.settings import yaml12
from rolecall.store.canonical import JsonObject

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Catalog, CatalogAgent, Skill

TOOL_NAMES = f"The tools called `nx_…` here are those of the MCP server `{SERVER}`."
ONLY_PROJECTS = (
    "Hooks act in every git repository that you open, except your home: a session that begins in one creates its"
    " .nexus folder, and from then on edits need a task."
)
"""The note for people who install for all projects, in any host."""
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that JSON allows in strings, but that YAML parsers treat as line breaks or refuse."""
_HEAD = re.compile(r"---\r?\n(.*?)^---\r?$", re.DOTALL | re.MULTILINE)


def with_head(fields: JsonObject, body: str) -> str:
    """Return a text with YAML frontmatter. Values are written as JSON, which is valid YAML."""
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    head = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", "\n".join(lines))
    return f"---\n{head}\n---\n\n{body.strip()}\n"


def read_head(text: str) -> JsonObject:
    """Return the frontmatter of a text, which anyone could have written."""
    found = _HEAD.match(text)
    if found is None:
        raise UsageError("it has no frontmatter")
    fields = yaml12.load(found[1], source="frontmatter")
    if not isinstance(fields, Mapping):
        raise UsageError("its frontmatter has no fields")
    return fields


def summary(agent: CatalogAgent) -> str:
    return f"{agent.description}. {agent.task}." if agent.task else agent.description


def skill_file(skill: Skill, catalog: Catalog, wording: Wording, *, ending: str = "", **more: object) -> str:
    """Return a skill's file: the text in a host's wording, then the host's instructions on the skill's subjects."""
    head = {"name": skill.id, "description": skill.description, **more}
    body = catalog.write_body(skill, wording.render(catalog.vocabulary.tags))
    return with_head(head, "\n\n".join(filter(None, [body, wording.skill_docs(skill), TOOL_NAMES, ending])))


class Layout(NamedTuple):
    """The places where a host reads its files: below a folder in the project, or below the user's folder."""

    folder: str
    """The folder in a project."""
    variable: str
    """The environment variable that sets the location of the user's folder."""
    user: str
    """The user's folder, relative to the home folder."""
    inner: str
    """The host's folder below the user's folder."""
    ours: tuple[str, ...]
    """Patterns for files that are entirely ours: agents, skills."""

    def user_folder(self, setup: HostSetup) -> str:
        return os.path.join(setup.env.get(self.variable) or os.path.join(setup.home, self.user), self.inner)

    def path(self, setup: HostSetup, *names: str) -> str:
        is_project = setup.scope == "project"
        folder = os.path.join(setup.project, self.folder) if is_project else self.user_folder(setup)
        return os.path.join(folder, *names)

    def sweeps(self, setup: HostSetup) -> list[str]:
        folder = glob.escape(self.path(setup, ""))
        return [os.path.join(folder, pattern) for pattern in self.ours]

    def roots(self, setup: HostSetup) -> list[str]:
        return [setup.project or setup.home, *filter(None, [setup.env.get(self.variable)])]
