"""The list of a project's knowledge files: those in its `memory/`, `context/` and `rules/`. Their contents are not
read.

Agents are given the list and read what they need. The list is limited because it is part of prompts: if a folder has
more files, the list contains only the number of the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rolecall.errors import UsageError
from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder

KINDS = ("memory", "context", "rules")
MOST = 100
"""The maximum number of files listed for each kind."""


def index(project: Folder, most: int = MOST) -> dict[str, list[str]]:
    """Return the files of each kind, as paths relative to the project's folder, at most `most` each."""
    return {kind: [f".nexus/{kind}/{name}" for name in _names(project, kind)[:most]] for kind in KINDS}


def counts(project: Folder) -> dict[str, int]:
    """Return the number of files of each kind."""
    return {kind: len(_names(project, kind)) for kind in KINDS}


def as_text(project: Folder, most: int = MOST) -> str:
    """Return the list as text for an agent, or an empty string if there are no files."""
    lines = []
    for kind in KINDS:
        if names := _names(project, kind):
            rest = f" and {len(names) - most} more" if len(names) > most else ""
            lines.append(f".nexus/{kind}/: {', '.join(names[:most])}{rest}")
    return "\n".join(lines)


def format_counts(counts: Mapping[str, int]) -> str:
    """Format counts as in `3 memory, 1 rules`, or return an empty string if all counts are zero."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _names(project: Folder, kind: str) -> list[str]:
    """Return the regular Markdown files of a kind, excluding links, hidden files, and folders behind a link."""
    folder = os.path.join(project_paths.nexus(project), kind)
    try:
        state_file.refuse_links(folder)
        with os.scandir(folder) as found:
            notes = (one for one in found if one.name.endswith(".md") and not one.name.startswith("."))
            return sorted(note.name for note in notes if note.is_file(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError, UsageError):
        return []
