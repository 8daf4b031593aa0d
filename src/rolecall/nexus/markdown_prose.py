"""Where a user speaks in a message: everything but code, quotations, links and mentions. Values.

Messages are Markdown, read as far as that question goes and no further: a parser of the whole language would
take longer to import than a hook may run. Whatever the message is, the time taken follows its length.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_MARKERS = r"(?:(?:[-*+]|\d{1,9}[.)])\s+)*"
_QUOTATION = re.compile(rf"\s*{_MARKERS}>")
_FENCE = re.compile(rf"\s*{_MARKERS}(`{{3,}}(?=[^`]*$)|~{{3,}})")
_ELEMENT = re.compile(rf"\s*{_MARKERS}<(?:(pre|code)(?=[\s>])|!--)", re.IGNORECASE)
_ENDS = {
    "pre": re.compile(r"</pre\s*>", re.IGNORECASE),
    "code": re.compile(r"</code\s*>", re.IGNORECASE),
    "": re.compile("-->"),
}
"""What ends an element, and a comment."""
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?:( +)|$)")
_INDENT = 4
"""So many columns further in than the text around it, a line is code."""

_INLINE = re.compile(r"`+|<(/?)(pre|code)(?:\s[^<>]*)?>|<!--|-->", re.IGNORECASE)
_BRACKET = re.compile(r"\\.|[\[\]]", re.DOTALL)
_DESTINATION = re.compile(
    r"""\(\s*+(?:<[^<>\n]*>|(?:[^\s()<]|\([^\s()]*\))*+)"""
    r"""(?:\s++(?:"[^"]*"|'[^']*'|\([^()]*\)))?+\s*+\)"""
)
_QUOTED = re.compile(
    r"""(?<!\w)"(?=\S)[^"]*+(?<=\S)"(?!\w)|(?<!\w)'(?=\S)[^']*+(?<=\S)'(?!\w)"""
    "|\u201c[^\u201c\u201d]*+\u201d|\u201e[^\u201e\u201c\u201d]*+[\u201c\u201d]|\u2018[^\u2018\u2019]*+\u2019"
    "|\u00ab[^\u00ab\u00bb]*+\u00bb|\u300c[^\u300c\u300d]*+\u300d"
)
"""What stands in quotation marks; those of inches and apostrophes quote nothing."""
_PARENTHESES = re.compile(r"\(([^()]*+)\)")
_LAST_BRACKETS_BACKWARDS = re.compile(r"(?:[\s.,;:!?/|\u2026]*+\][^\[\]\n]*+\[)+")
_ADDRESS = re.compile(r"://[^\s<>]*")
_DEFINITION = re.compile(
    r""" {0,3}\[([^\[\]]{1,999})\]:[ \t]*(<[^<>]*>|\S+)(?:[ \t]+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\Z"""
)
_LONGEST_LABEL = 999

Span = tuple[int, int]


class Line(NamedTuple):
    """A line, or a part of one where code ends within it."""

    start: int
    text: str
    is_ignored: bool
    """Whether it is code or a quotation."""
    is_break: bool
    """Whether it is blank and ends a paragraph."""


def lines(message: str) -> list[Line]:
    """The whole message in its order."""
    found: list[Line] = []
    blocks = _Blocks(message)
    start = 0
    for text in message.splitlines(keepends=True):
        ignored = blocks.ignored(text, start)
        if ignored:
            found.append(Line(start, text[:ignored], True, False))
        if ignored < len(text):
            rest = text[ignored:]
            found.append(Line(start + ignored, rest, False, not ignored and not rest.strip()))
        start += len(text)
    return found


def speech(found: list[Line], is_tag: Callable[[str], bool]) -> str:
    """The message with line breaks in the place of everything that is not spoken, so that what is spoken stands where
    it stood. Brackets side by side are a link, unless `is_tag` holds for what is in each of them."""
    defined = {line.start: match[1] for line in found if (match := _definition(line))}
    labels = {_label(label) for label in defined.values()}
    parts: list[str] = []
    paragraph: list[str] = []
    for line in found:
        if line.is_ignored or line.is_break or line.start in defined:
            parts += [_spoken("".join(paragraph), is_tag, labels), "\n" * len(line.text)]
            paragraph = []
        else:
            paragraph.append(line.text)
    return "".join([*parts, _spoken("".join(paragraph), is_tag, labels)])


def backslashes(text: str, end: int) -> int:
    """How many backslashes stand right before a place."""
    start = end
    while start and text[start - 1] == "\\":
        start -= 1
    return end - start


# -- blocks --


class _Blocks:
    """Goes from line to line and knows what is open."""

    def __init__(self, message: str) -> None:
        self._last_code_end = max((end.start() for end in _ENDS["code"].finditer(message)), default=-1)
        self._fence = ""
        self._element: re.Pattern[str] | None = None
        """What ends the element that is open."""
        self._items: list[int] = []
        """The columns at which the text of each open list item begins."""
        self._is_paragraph = False
        """Whether the line before is text: whatever is indented then belongs to it."""

    def ignored(self, text: str, start: int) -> int:
        """How many characters of a line are not spoken, counted from its beginning."""
        if self._fence:
            self._end_fence(text)
            return len(text)
        if self._element:
            return self._in_element(self._element, text, 0)
        if not text.strip():
            self._is_paragraph = False
            return 0
        if self._is_indented(text):
            return len(text)
        self._is_paragraph = True
        if _QUOTATION.match(text):
            return len(text)
        if opening := _FENCE.match(text):
            self._fence, self._is_paragraph = opening[1], False
            return len(text)
        if opening := self._opened(text, start):
            return self._in_element(_ENDS[(opening[1] or "").lower()], text, opening.end())
        return 0

    def _end_fence(self, text: str) -> None:
        stripped = text.strip()
        if len(stripped) >= len(self._fence) and set(stripped) == {self._fence[0]}:
            self._fence = ""

    def _opened(self, text: str, start: int) -> re.Match[str] | None:
        """An element that begins a line. Code that is never closed is somebody's talk about the element; what else is
        never closed goes to the end, as a fence does."""
        opening = _ELEMENT.match(text)
        is_talk = opening and (opening[1] or "").lower() == "code" and start > self._last_code_end
        return None if is_talk else opening

    def _in_element(self, closing: re.Pattern[str], text: str, at: int) -> int:
        end = closing.search(text, at)
        self._element = None if end else closing
        if end is None:
            return len(text)
        self._is_paragraph = bool(text[end.end() :].strip())
        return end.end() if self._is_paragraph else len(text)

    def _is_indented(self, text: str) -> bool:
        """Whether a line is code by its indentation, which counts from the text of the list item it is in."""
        flat = text.expandtabs(_INDENT).rstrip()
        column = len(flat) - len(flat.lstrip())
        item = _ITEM.match(flat, column)
        if item or not self._is_paragraph:
            while self._items and column < self._items[-1]:
                self._items.pop()
        is_further_in = column >= _INDENT + (self._items[-1] if self._items else 0)
        if is_further_in:
            return not self._is_paragraph
        while item:
            is_code_within = len(item[1] or "") > _INDENT
            self._items.append(item.start(1) + 1 if is_code_within else item.end())
            if is_code_within:
                return True
            item = _ITEM.match(flat, item.end())
        return False


# -- within a paragraph --


def _spoken(paragraph: str, is_tag: Callable[[str], bool], labels: set[str]) -> str:
    text = _blanked(paragraph, _code(paragraph))
    text = _blanked(text, (match.span() for match in _ADDRESS.finditer(text)))
    text = _blanked(text, _links(text, is_tag, labels))
    text = _blanked(text, (match.span() for match in _QUOTED.finditer(text) if "[" in match[0][1:]))
    return _blanked(text, _mentioned(text))


def _mentioned(text: str) -> Iterator[Span]:
    """Brackets that end what stands in parentheses (such as [d]): who speaks of a tag writes it so."""
    for found in _PARENTHESES.finditer(text):
        if last := _LAST_BRACKETS_BACKWARDS.match(found[1][::-1]):
            yield found.end(1) - last.end(), found.end(1)


def _blanked(text: str, spans: Iterable[Span]) -> str:
    parts, done = [], 0
    for start, end in sorted(spans):
        if end > done:
            start = max(start, done)
            parts += [text[done:start], "\n" * (end - start)]
            done = end
    return "".join([*parts, text[done:]])


def _code(paragraph: str) -> Iterator[Span]:
    """Inline code, code in HTML and comments. What is not closed opens nothing."""
    tokens = list(_INLINE.finditer(paragraph))
    closing = defaultdict(list)
    for index, token in enumerate(tokens):
        closing[_closes(token)].append(index)
    index = 0
    while index < len(tokens):
        is_escaped = backslashes(paragraph, tokens[index].start()) % 2 == 1
        ends = closing.get(_opens(tokens[index], is_escaped), [])
        position = bisect_right(ends, index)
        if position < len(ends):
            start = tokens[index].start() + is_escaped
            index = ends[position]
            yield start, tokens[index].end()
        index += 1


def _opens(token: re.Match[str], is_escaped: bool) -> str:
    """By what a token is closed; an escaped one opens nothing, a row of backticks is one shorter."""
    if token[0].startswith("`"):
        return token[0][is_escaped:] or "nothing"
    if is_escaped or token[1] or token[0] == "-->":
        return "nothing"
    return (token[2] or "-->").lower()


def _closes(token: re.Match[str]) -> str:
    if token[1]:
        return token[2].lower()
    return token[0] if token[0] == "-->" or token[0].startswith("`") else ""


def _definition(line: Line) -> re.Match[str] | None:
    """`[label]: address`, which is not spoken; `[d]: yes` is, though Markdown would take it for a definition."""
    if line.is_ignored or "]:" not in line.text:
        return None
    match = _DEFINITION.match(line.text)
    return match if match and _is_address(match[2]) else None


def _is_address(word: str) -> bool:
    has_beginning = word.startswith(("<", "./", "../", "mailto:", "www."))
    folder, _, name = word.rpartition("/")
    return has_beginning or "://" in word or ("." in name and bool(folder))


def _label(text: str) -> str:
    return " ".join(text.split()).casefold()


def _links(text: str, is_tag: Callable[[str], bool], labels: set[str]) -> Iterator[Span]:
    for chain in _chains(text):
        end = chain[-1][1]
        words = [text[start + 1 : stop - 1] for start, stop in chain if stop - start <= _LONGEST_LABEL + 2]
        is_reference = len(chain) > 1 and not (len(words) == len(chain) and all(map(is_tag, words)))
        if is_reference or not labels.isdisjoint(map(_label, words)):
            yield chain[0][0], end
        if text.startswith("(", end):
            found = _DESTINATION.match(text, end)
            yield chain[-1][0], found.end() if found else end


def _chains(text: str) -> Iterable[list[Span]]:
    """Pairs of brackets, those side by side together."""
    opened: list[int] = []
    chains: dict[int, list[Span]] = {}
    for match in _BRACKET.finditer(text):
        if match[0] == "[":
            opened.append(match.start())
        elif match[0] == "]" and opened:
            start = opened.pop()
            chain = chains.pop(start, [])
            chain.append((start, match.end()))
            chains[match.end()] = chain
    return chains.values()
