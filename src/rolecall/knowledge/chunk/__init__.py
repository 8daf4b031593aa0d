"""Cuts a file's text into passages that follow its structure.

Each kind of structure has a function that divides a text into sections. This module applies the size limit of a passage
to all of them. A grammar is loaded when its language is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from rolecall.knowledge.chunk import code, outline
from rolecall.knowledge.chunk.outline import OutlineSection
from rolecall.knowledge.words import BYTES_PER_TOKEN, tokens

VERSION = 1
"""The version of the cutting rules; an index with another version is rebuilt."""

_OUTLINES: dict[str, Callable[[str], list[OutlineSection]]] = {
    **dict.fromkeys(
        (".md", ".markdown", ".mdx", ".mkd"), partial(outline.outline_headings, outline.find_in_markdown)
    ),
    **dict.fromkeys((".rst", ".rest"), partial(outline.outline_headings, outline.find_in_rst)),
    **dict.fromkeys((".yaml", ".yml"), outline.outline_yaml),
    ".toml": outline.outline_toml,
}
_TEXTS = frozenset((".md", ".markdown", ".mdx", ".mkd", ".rst", ".rest", ".txt", ".adoc"))
_WORD = re.compile(r"\w")


class Passage(NamedTuple):
    """A piece of a file. Line numbers start at 1, and the end line is included."""

    start: int
    end: int
    trail: tuple[str, ...]
    """The enclosing classes and functions, headings or keys, outermost first."""
    text: str


def is_prose(path: str) -> bool:
    """Return whether a file's trails are headings rather than names in code."""
    return suffix_of(path) in _TEXTS


def is_structured(path: str) -> bool:
    suffix = suffix_of(path)
    return suffix in _OUTLINES or suffix in code.LANGUAGES


def suffix_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2].lower()}" if "." in name else ""


def passages(path: str, text: str, *, limit: int) -> list[Passage]:
    """Cut a file into passages of at most `limit` tokens, in order. Parts without words are left out."""
    lines = text.split("\n")
    suffix = suffix_of(path)
    sections = [OutlineSection(1, len(lines), ())]
    if suffix in code.LANGUAGES:
        sections = code.outline(text, suffix)
    elif suffix in _OUTLINES:
        sections = _OUTLINES[suffix](text)
    found: list[Passage] = []
    room = int(limit * BYTES_PER_TOKEN)
    for section in sections:
        for start, end in _split(lines, section.start, section.end, limit):
            while start < end and not lines[start - 1].strip():
                start += 1
            while end > start and not lines[end - 1].strip():
                end -= 1
            part = "\n".join(lines[start - 1 : end])
            texts = [part]
            if len(part) > room * 2:  # a single line that is too long, such as data or minified code
                texts = [part[at : at + room] for at in range(0, len(part), room)]
            found += [Passage(start, end, section.trail, each) for each in texts if _WORD.search(each)]
    return found


def _split(lines: list[str], start: int, end: int, limit: int) -> Iterator[tuple[int, int]]:
    """Divide lines `start` to `end` into parts that fit, at natural breaks in the text if possible."""

    def indent(number: int) -> int:
        following = lines[number]
        return len(following) - len(following.lstrip()) if following.strip() else -1

    sizes = [tokens(line) for line in lines[start - 1 : end]]
    left = sum(sizes)
    while left > limit and start < end:
        used, cut = 0, start
        for number, size in enumerate(sizes, start):
            if used + size > limit and number > start:
                break
            used, cut = used + size, number
        if cut - start >= 4 and cut < end:
            # Cut before an empty line or the least indented line, as late as possible in the second half of what fits.
            cut = min(reversed(range(start + (cut - start) // 2, cut + 1)), key=indent)
        yield start, cut
        left -= sum(sizes[: cut - start + 1])
        del sizes[: cut - start + 1]
        start = cut + 1
    if start <= end:
        yield start, end
