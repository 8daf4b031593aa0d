"""Divides Markdown and reStructuredText at their headings, YAML at its outer keys and TOML at its tables.

YAML is read line by line, because a YAML template is not valid YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rolecall.knowledge.words import tokens

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NO_TITLE = re.compile(r"\s*$|\s{4}|\s*([-*+>|]|\d+[.)])\s|\s*[|<]")
_ADORNMENT = re.compile(r"([!-/:-@[-`{-~])\1{2,}\s*$")

_Heading = tuple[int, int, str, int]
"""A heading: its first line, level, title and last line."""
_Mark = tuple[int, tuple[str, ...]]
"""The start of a section: its first line and its trail."""

_LARGE = 120
"""The minimum number of tokens at which the text of a key is divided at the keys below it."""
_KEY = re.compile(r"""( *)(?:- +)?("[^"]+"|'[^']+'|[^\s#'"{}\[\]&*!|>%@`,-][^#:]*?)\s*:(?:\s|$)""")
_BLOCK = re.compile(r":\s*(?:[&!][^\s]+\s+)*[|>][-+0-9]*\s*(?:#.*)?$")
_TABLE = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_MULTILINE = re.compile(r'"""|\'\'\'')


class OutlineSection(NamedTuple):
    """A part of a file. The sections of a file are in order, without overlaps, and cover every line."""

    start: int
    """The first line, counted from 1."""
    end: int
    """The last line, counted from 1."""
    trail: tuple[str, ...]
    """The enclosing names, outermost first, ending with the section's own name."""


def between(marks: list[_Mark], count: int) -> list[OutlineSection]:
    """Divide a file of `count` lines at the marked lines. Lines before the first mark have no trail."""
    if not marks or marks[0][0] > 1:
        marks = [(1, ()), *marks]
    ends = [start - 1 for start, _ in marks[1:]] + [count]
    return [
        OutlineSection(start, end, trail)
        for (start, trail), end in zip(marks, ends, strict=True)
        if start <= end
    ]


def outline_headings(find: Callable[[list[str]], Iterator[_Heading]], text: str) -> list[OutlineSection]:
    """Divide a text at the headings that `find` finds in its lines."""
    lines = text.split("\n")
    trail: list[tuple[int, str]] = []
    marks: list[_Mark] = []
    text_from = 0  # the line after the previous heading, counted from 0
    for start, level, title, after in find(lines):
        while trail and trail[-1][0] >= level:
            trail.pop()
        is_below = bool(trail)
        trail.append((level, title))
        names = tuple(name for _, name in trail)
        if is_below and marks and not any(line.strip() for line in lines[text_from : start - 1]):
            marks[-1] = (marks[-1][0], names)  # an empty heading is joined to its first subsection
        else:
            marks.append((start, names))
        text_from = after
    return between(marks, len(lines))


def find_in_markdown(lines: list[str]) -> Iterator[_Heading]:
    """Find `#` headings and underlined headings, outside code fences and front matter."""
    number = 0
    if lines[0].rstrip() == "---":
        ends = (at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "..."))
        number = next(ends, -1) + 1
    fence = ""
    while number < len(lines):
        line = lines[number]
        number += 1
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not line.strip(" \t" + fence[0]):
                fence = ""
        elif fence:
            continue
        elif heading := _HEADING.match(line):
            yield number, len(heading[1]), heading[2] or "", number
        elif number < len(lines) and (under := _UNDERLINE.match(lines[number])) and not _NO_TITLE.match(line):
            yield number, 1 if under[1][0] == "=" else 2, line.strip(), number + 1
            number += 1


def find_in_rst(lines: list[str]) -> Iterator[_Heading]:
    """Find underlined titles. A title's level is given by the order in which the underline characters first appear."""
    styles: list[str] = []
    number = 1
    while number < len(lines):
        title, under = lines[number - 1], lines[number]
        mark = _ADORNMENT.match(under)
        is_title = title.strip() and len(title) - len(title.lstrip()) < 3 and not _ADORNMENT.match(title)
        if not mark or not is_title or len(under.rstrip()) < len(title.rstrip()) - 1:
            number += 1
            continue
        is_boxed = number >= 2 and lines[number - 2].rstrip() == under.rstrip()
        style = mark[1] * (2 if is_boxed else 1)
        if style not in styles:
            styles.append(style)
        yield number - is_boxed, styles.index(style), title.strip(), number + 1
        number += 2


def outline_yaml(text: str) -> list[OutlineSection]:
    lines = text.split("\n")
    keys: list[tuple[int, int, str]] = []  # the line, indent and name of every key outside blocks of text
    block: int | None = None
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if block is not None:
            if not line.strip() or indent > block:
                continue
            block = None
        if key := _KEY.match(line):
            keys.append((number, len(key[1]), key[2].strip("\"'")))
            block = len(key[1]) if _BLOCK.search(line) else None
    marks = _with_comments(lines, [(start, (name,)) for start, indent, name in keys if indent == 0])
    found: list[OutlineSection] = []
    for section in between(marks, len(lines)):
        below: list[_Mark] = []
        if section.trail and tokens("\n".join(lines[section.start - 1 : section.end])) >= _LARGE:
            inner = [key for key in keys if section.start <= key[0] <= section.end and key[1] > 0]
            depth = min((indent for _, indent, _ in inner), default=0)
            below = [(start, (*section.trail, name)) for start, indent, name in inner if indent == depth]
        if not below:
            found.append(section)
            continue
        below = _with_comments(lines, below)
        below[0] = (section.start, below[0][1])  # the line of the key itself stays with its first subsection
        ends = [start - 1 for start, _ in below[1:]] + [section.end]
        found += [OutlineSection(start, end, trail) for (start, trail), end in zip(below, ends, strict=True)]
    return found


def outline_toml(text: str) -> list[OutlineSection]:
    lines = text.split("\n")
    marks: list[_Mark] = []
    quotes = ""
    for number, line in enumerate(lines, 1):
        is_inside = bool(quotes)
        for mark in _MULTILINE.findall(line):
            quotes = "" if quotes == mark else quotes or mark
        if not is_inside and (table := _TABLE.match(line)):
            marks.append((number, (table[1],)))
    return between(_with_comments(lines, marks), len(lines))


def _with_comments(lines: list[str], marks: list[_Mark]) -> list[_Mark]:
    """Move each mark up above the comments directly before it."""
    moved: list[_Mark] = []
    for start, trail in marks:
        floor = moved[-1][0] + 1 if moved else 1
        while start > floor and lines[start - 2].lstrip().startswith("#"):
            start -= 1
        moved.append((start, trail))
    return moved
