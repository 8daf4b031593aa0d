"""What `knowledge init` writes: a `knowledge.yaml` for the kinds of files that are there, and a line for git."""

from __future__ import annotations

import os
from collections import Counter
from typing import NamedTuple

from rolecall.errors import Hint, UsageError
from rolecall.knowledge import chunk, files, place
from rolecall.knowledge.extra import check_installed
from rolecall.knowledge.settings import FILE, INDEX, Settings
from rolecall.settings import repository

_SUFFIXES = """
.txt .sh .bash .zsh .fish .sql .rb .php .cs .kt .kts .swift .scala .lua .r .jl .pl .pm .ex .exs .erl .hs .clj
.proto .graphql .tf .vue .svelte .css .scss .html .cmake .gradle .ini .cfg .conf .adoc .org .tex .nix .zig .dart
.m .mm .ps1 .bat .mk .xml
"""
_PLAIN = frozenset(_SUFFIXES.split())
"""Texts of no structure that is known here, cut by lines."""
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


class Started(NamedTuple):
    path: str
    include: list[str]
    ignored_in: str | None
    """The .gitignore that got a line for the index, if it needed one."""


def init(root: str) -> Started:
    """Write the settings of a repository that has none."""
    check_installed()
    path = os.path.join(root, FILE)
    said = path if os.path.lexists(path) else place.project_file(root) or ""
    if os.path.dirname(said) == root:
        raise UsageError(
            f"{said} is already there and says what to index",
            hint=Hint("Edit it, then index the repository", "sync_knowledge"),
        )
    is_ignored = repository.root_around(root) is None or files.is_ignored(root, INDEX)
    if not is_ignored:
        _check_own_file(_ignore_file(root))
    include = _suffixes(root)
    lines = {name: "\n".join(f'  - "{each}"' for each in patterns) for name, patterns in _lists(include)}
    with open(path, "x", encoding="utf-8") as file:
        file.write(_TEXT.format(**lines))
    return Started(path, include, None if is_ignored else _ignore(_ignore_file(root)))


def _lists(include: list[str]) -> list[tuple[str, list[str]]]:
    return [("include", include), ("exclude", list(_EXCLUDED))]


def _suffixes(root: str) -> list[str]:
    """A pattern for each kind of text there is, the commonest first."""
    everything = Settings(include=("*",), exclude=_EXCLUDED)
    found = Counter(chunk.suffix_of(path) for path in files.listed(root, everything).paths)
    known = [
        suffix for suffix, _ in found.most_common() if chunk.is_structured(f"x{suffix}") or suffix in _PLAIN
    ]
    return [f"*{suffix}" for suffix in known] or ["*.md"]


def _ignore_file(root: str) -> str:
    return os.path.join(root, ".gitignore")


def _check_own_file(path: str) -> None:
    """Through a link something outside the repository would be written."""
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        raise UsageError(
            f"{path} is a link or no file, so the index cannot be added to it",
            hint=f"Have git ignore `{INDEX}*` in another way, for example in .git/info/exclude; then try again.",
        )


def _ignore(path: str) -> str:
    with open(path, "a+b") as file:
        file.seek(0)
        is_ended = file.read()[-1:] in (b"\n", b"")
        file.write(f"{'' if is_ended else os.linesep}{INDEX}*\n".encode())
    return path
