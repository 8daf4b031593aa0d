"""Divides Markdown and reStructuredText at their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rolecall.knowledge.chunk.section import Section, between

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NO_TITLE = re.compile(r"\s*$|\s{4}|\s*([-*+>|]|\d+[.)])\s|\s*[|<]")
_ADORNMENT = re.compile(r"([!-/:-@[-`{-~])\1{2,}\s*$")

_Heading = tuple[int, int, str, int]
"""First line, level, title, last line."""


def outline_markdown(text: str) -> list[Section]:
    lines = text.split("\n")
    return _outline(lines, _find_in_markdown(lines))


def outline_rst(text: str) -> list[Section]:
    lines = text.split("\n")
    return _outline(lines, _find_in_rst(lines))


def _outline(lines: list[str], headings: Iterator[_Heading]) -> list[Section]:
    trail: list[tuple[int, str]] = []
    marks: list[tuple[int, tuple[str, ...]]] = []
    text_from = 0  # the line after the previous heading, counted from 0
    for start, level, title, after in headings:
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


def _find_in_markdown(lines: list[str]) -> Iterator[_Heading]:
    """Find `#` headings and underlined ones, outside code fences and front matter."""
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


def _find_in_rst(lines: list[str]) -> Iterator[_Heading]:
    """Find underlined titles; a title's level is the order in which its underline character first appears."""
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
