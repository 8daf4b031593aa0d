"""Divides YAML at its outer keys and TOML at its tables, line by line, because a YAML template is not valid YAML."""

from __future__ import annotations

import re

from rolecall.knowledge.chunk.section import Section, between
from rolecall.knowledge.words import tokens

_LARGE = 120
"""A key with this many tokens is divided at the keys below it."""
_KEY = re.compile(r"""( *)(?:- +)?("[^"]+"|'[^']+'|[^\s#'"{}\[\]&*!|>%@`,-][^#:]*?)\s*:(?:\s|$)""")
_BLOCK = re.compile(r":\s*(?:[&!][^\s]+\s+)*[|>][-+0-9]*\s*(?:#.*)?$")
_TABLE = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_MULTILINE = re.compile(r'"""|\'\'\'')


def outline_yaml(text: str) -> list[Section]:
    lines = text.split("\n")
    keys = _find_keys(lines)
    marks = _with_comments(lines, [(start, (name,)) for start, indent, name in keys if indent == 0])
    found: list[Section] = []
    for section in between(marks, len(lines)):
        found += _divide(lines, section, keys)
    return found


def _divide(lines: list[str], section: Section, keys: list[tuple[int, int, str]]) -> list[Section]:
    if not section.trail or tokens("\n".join(lines[section.start - 1 : section.end])) < _LARGE:
        return [section]
    inner = [key for key in keys if section.start <= key[0] <= section.end and key[1] > 0]
    depth = min((indent for _, indent, _ in inner), default=0)
    below = [(start, (*section.trail, name)) for start, indent, name in inner if indent == depth]
    if not below:
        return [section]
    below = _with_comments(lines, below)
    below[0] = (section.start, below[0][1])  # the key's own line stays with its first subsection
    ends = [start - 1 for start, _ in below[1:]] + [section.end]
    return [Section(start, end, trail) for (start, trail), end in zip(below, ends, strict=True)]


def _find_keys(lines: list[str]) -> list[tuple[int, int, str]]:
    """Find every key outside blocks of text, as (line, indent, name)."""
    found: list[tuple[int, int, str]] = []
    block: int | None = None
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if block is not None:
            if not line.strip() or indent > block:
                continue
            block = None
        if key := _KEY.match(line):
            found.append((number, len(key[1]), key[2].strip("\"'")))
            block = len(key[1]) if _BLOCK.search(line) else None
    return found


def outline_toml(text: str) -> list[Section]:
    lines = text.split("\n")
    marks: list[tuple[int, tuple[str, ...]]] = []
    quotes = ""
    for number, line in enumerate(lines, 1):
        is_inside = bool(quotes)
        for mark in _MULTILINE.findall(line):
            quotes = "" if quotes == mark else quotes or mark
        if not is_inside and (table := _TABLE.match(line)):
            marks.append((number, (table[1],)))
    return between(_with_comments(lines, marks), len(lines))


def _with_comments(
    lines: list[str], marks: list[tuple[int, tuple[str, ...]]]
) -> list[tuple[int, tuple[str, ...]]]:
    """Move marks up above the comments directly before them."""
    moved: list[tuple[int, tuple[str, ...]]] = []
    for start, trail in marks:
        floor = moved[-1][0] + 1 if moved else 1
        while start > floor and lines[start - 2].lstrip().startswith("#"):
            start -= 1
        moved.append((start, trail))
    return moved
