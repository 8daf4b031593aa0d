"""Markdown by its headings: `# …` and underlined ones; what stands in fences and front matter is no heading."""

from __future__ import annotations

import re

from rolecall.knowledge.chunk.section import Section, between

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NO_TITLE = re.compile(r"\s*$|\s{4}|\s*([-*+>|]|\d+[.)])\s|\s*[|<]")


def outline(text: str) -> list[Section]:
    lines = text.split("\n")
    trail: list[tuple[int, str]] = []
    marks: list[tuple[int, tuple[str, ...]]] = []
    text_from = 0  # the line after the heading before, from 0
    for start, level, title, after in _headings(lines):
        while trail and trail[-1][0] >= level:
            trail.pop()
        is_below = bool(trail)
        trail.append((level, title))
        names = tuple(name for _, name in trail)
        if is_below and marks and not any(line.strip() for line in lines[text_from : start - 1]):
            marks[-1] = (marks[-1][0], names)  # a heading with nothing of its own opens its first part
        else:
            marks.append((start, names))
        text_from = after
    return between(marks, len(lines))


def _headings(lines: list[str]) -> list[tuple[int, int, str, int]]:
    """(first line, level, title, last line) of each."""
    found: list[tuple[int, int, str, int]] = []
    number = _after_front_matter(lines)
    fence = ""
    while number < len(lines):
        line = lines[number]
        number += 1
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not line.strip(" \t" + fence[0]):
                fence = ""
            continue
        if fence:
            continue
        if heading := _HEADING.match(line):
            found.append((number, len(heading[1]), heading[2] or "", number))
        elif number < len(lines) and (under := _UNDERLINE.match(lines[number])) and not _NO_TITLE.match(line):
            found.append((number, 1 if under[1][0] == "=" else 2, line.strip(), number + 1))
            number += 1
    return found


def _after_front_matter(lines: list[str]) -> int:
    if lines[0].rstrip() != "---":
        return 0
    ends = (number for number, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "..."))
    return next(ends, -1) + 1
