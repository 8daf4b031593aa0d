"""What a project knows, as a list of files: its `memory/`, `context/` and `rules/`. Nothing of them is read.

Agents are given the list and read what they need. It is bounded, because it stands in prompts: a folder with more
files than that is named with how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rolecall.errors import UsageError
from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder

KINDS = ("memory", "context", "rules")
MOST = 100
"""Files of a kind that are listed."""


def index(project: Folder, most: int = MOST) -> dict[str, list[str]]:
    """The files of each kind by name, as paths from the project's folder; at most so many of a kind."""
    return {kind: [f".nexus/{kind}/{name}" for name in _names(project, kind)[:most]] for kind in KINDS}


def counts(project: Folder) -> dict[str, int]:
    """How many files there are of each kind."""
    return {kind: len(_names(project, kind)) for kind in KINDS}


def as_text(project: Folder, most: int = MOST) -> str:
    """The list as it is put before an agent; empty when there is nothing."""
    lines = []
    for kind in KINDS:
        if names := _names(project, kind):
            rest = f" and {len(names) - most} more" if len(names) > most else ""
            lines.append(f".nexus/{kind}/: {', '.join(names[:most])}{rest}")
    return "\n".join(lines)


def counted(counts: Mapping[str, int]) -> str:
    """`3 memory, 1 rules`; empty when there is nothing."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _names(project: Folder, kind: str) -> list[str]:
    """The plain Markdown files of a kind, without links, hidden files and anything behind a link."""
    folder = os.path.join(project_paths.nexus(project), kind)
    try:
        state_file.refuse_links(folder)
        with os.scandir(folder) as found:
            return sorted(
                entry.name
                for entry in found
                if entry.name.endswith(".md")
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError, UsageError):
        return []
