"""reStructuredText by its headings: a title over a line of one sign, the levels in the order they come up."""

from __future__ import annotations

import re

from rolecall.knowledge.chunk.section import Section, between

_ADORNMENT = re.compile(r"([!-/:-@[-`{-~])\1{2,}\s*$")


def outline(text: str) -> list[Section]:
    lines = text.split("\n")
    styles: list[str] = []
    trail: list[str] = []
    marks: list[tuple[int, tuple[str, ...]]] = []
    text_from = 0  # the line after the heading before, from 0
    for start, style, title, after in _headings(lines):
        if style not in styles:
            styles.append(style)
        level = styles.index(style)
        is_below = 0 < len(trail) <= level
        del trail[level:]
        trail.append(title)
        if is_below and marks and not any(line.strip() for line in lines[text_from : start - 1]):
            marks[-1] = (marks[-1][0], tuple(trail))  # a heading with nothing of its own opens its first part
        else:
            marks.append((start, tuple(trail)))
        text_from = after
    return between(marks, len(lines))


def _headings(lines: list[str]) -> list[tuple[int, str, str, int]]:
    """(first line, style, title, last line) of each."""
    found: list[tuple[int, str, str, int]] = []
    number = 1
    while number < len(lines):
        title, under = lines[number - 1], lines[number]
        mark = _ADORNMENT.match(under)
        if mark and _is_title(title) and len(under.rstrip()) >= len(title.rstrip()) - 1:
            is_boxed = number >= 2 and lines[number - 2].rstrip() == under.rstrip()
            start = number - 1 if is_boxed else number
            found.append((start, mark[1] * (2 if is_boxed else 1), title.strip(), number + 1))
            number += 2
        else:
            number += 1
    return found


def _is_title(line: str) -> bool:
    return (
        bool(line.strip())
        and (not line[0].isspace() or len(line) - len(line.lstrip()) < 3)
        and not _ADORNMENT.match(line)
    )
