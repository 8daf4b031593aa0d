"""Writes the files for `knowledge init`: a `knowledge.yaml` for the repository's kinds of files, and a line for git."""

from __future__ import annotations

import os
from collections import Counter
from typing import NamedTuple

from rolecall.errors import Hint, UsageError
from rolecall.knowledge import chunk, files, place
from rolecall.knowledge.settings import FILE, INDEX, KnowledgeSettings

_SUFFIXES = """
.txt .sh .bash .zsh .fish .sql .rb .php .cs .kt .kts .swift .scala .lua .r .jl .pl .pm .ex .exs .erl .hs .clj
.proto .graphql .tf .vue .svelte .css .scss .html .cmake .gradle .ini .cfg .conf .adoc .org .tex .nix .zig .dart
.m .mm .ps1 .bat .mk .xml
"""
_PLAIN = frozenset(_SUFFIXES.split())
"""The suffixes of text files without a known structure, which are cut at lines."""
_EXCLUDED = (
    "node_modules/", "vendor/", "third_party/", "dist/", "build/", ".venv/", "*.min.js", "*.min.css", "*.lock",
    "package-lock.json", "pnpm-lock.yaml", "*.snap", "*.svg",
)  # fmt: skip
_TEXT = """\
# What `rolecall knowledge` indexes. Patterns are as in a .gitignore; what git ignores is left out.
include:
{include}
exclude:
{exclude}
"""


class InitReport(NamedTuple):
    path: str
    include: list[str]
    ignored_in: str | None
    """The .gitignore file to which a line for the index was added, or None if it was not needed."""


def init(root: str) -> InitReport:
    """Write the settings for a repository that has none."""
    place.check_installed()
    path, ignore = os.path.join(root, FILE), os.path.join(root, ".gitignore")
    existing = path if os.path.lexists(path) else place.project_file(root) or ""
    if os.path.dirname(existing) == root:
        raise UsageError(
            f"{existing} already exists and says what to index",
            hint=Hint("Edit it, then index the repository", "sync_knowledge"),
        )
    is_ignored = files.is_index_ignored(root)
    # Writing through a link would change a file outside the repository.
    if not is_ignored and os.path.lexists(ignore) and (os.path.islink(ignore) or not os.path.isfile(ignore)):
        raise UsageError(
            f"{ignore} is a link or not a file, so the index cannot be added to it",
            hint=f"Have git ignore `{INDEX}*` in another way, for example in .git/info/exclude; then try again.",
        )

    # One pattern for each kind of text file found, the commonest kind first.
    everything = KnowledgeSettings(include=("*",), exclude=_EXCLUDED)
    found = Counter(chunk.suffix_of(each) for each in files.list_files(root, everything).paths)
    known = [
        suffix for suffix, _ in found.most_common() if chunk.is_structured(f"x{suffix}") or suffix in _PLAIN
    ]
    include = [f"*{suffix}" for suffix in known] or ["*.md"]
    lists = {"include": include, "exclude": _EXCLUDED}
    lines = {name: "\n".join(f'  - "{each}"' for each in patterns) for name, patterns in lists.items()}
    with open(path, "x", encoding="utf-8") as file:
        file.write(_TEXT.format(**lines))
    if is_ignored:
        return InitReport(path, include, None)
    files.append_line(ignore, f"{INDEX}*")
    return InitReport(path, include, ignore)
