"""Mustache templates for edge prompts and locations: parse, list what they use, render. Pure.

Text is never HTML-escaped, and a variable that does not resolve is an error, never a blank. A section
over a name that is absent is simply skipped, because that is how a template asks whether it is there.
Partials, lambdas and other delimiters are not part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from rolecall.errors import UsageError

MAX_NESTING = 50
MAX_TAGS = 1_000
MAX_PIECES = 200_000
"""How many texts and values one rendering may join."""
MAX_RENDERED = 20_000_000
"""Characters of a rendered text."""
_REFUSED = {">": "partials ({{>name}})", "=": "other delimiters ({{=<% %>=}})"}
_SIGILS = ("#", "^", "/", "!", ">", "=", "&")
_OPEN = re.compile(r"\{\{")


class Use(NamedTuple):
    """One place where a template uses a name."""

    path: tuple[str, ...]
    """The dotted name, split; ('.',) is the item itself."""
    kind: Literal["variable", "section", "inverted"]
    line: int
    column: int
    inside: tuple[tuple[str, ...], ...]
    """The sections around it, outermost first; inverted ones are left out, for they change no context."""

    @property
    def name(self) -> str:
        return ".".join(self.path) if self.path != (".",) else "."


class Flaw(NamedTuple):
    """Something that keeps a text from being a template."""

    message: str
    line: int
    column: int


class _Variable(NamedTuple):
    path: tuple[str, ...]
    at: int


class _Section(NamedTuple):
    path: tuple[str, ...]
    at: int
    inverted: bool
    parts: list[Any]


_Part = str | _Variable | _Section


def problems(template: str) -> list[Flaw]:
    """Everything that keeps the text from being a template; empty when it is one."""
    return [Flaw(message, *_line_column(template, at)) for message, at in _parsed(template)[1]]


def variables(template: str) -> list[Use]:
    """Every name the template uses, in the order written."""
    return list(_uses(_parsed(template)[0], template, ()))


def render(template: str, view: Mapping[str, Any]) -> str:
    """The text of a template over `view`; `UsageError` names every variable that does not resolve."""
    parts, flaws = _parsed(template)
    if flaws:
        raise UsageError(f"the template is not valid: {flaws[0][0]}")
    unresolved: dict[str, None] = {}
    pieces: list[str] = []
    size = 0
    for piece in _rendered(parts, [view], unresolved):
        pieces.append(piece)
        size += len(piece)
        if len(pieces) > MAX_PIECES or size > MAX_RENDERED:
            raise UsageError(
                f"the text would have more than {MAX_PIECES:,} parts or {MAX_RENDERED:,} characters",
                hint="Nested sections over lists multiply; use one list.",
            )
    text = "".join(pieces)
    if unresolved:
        names = ", ".join("{{" + name + "}}" for name in unresolved)
        raise UsageError(
            f"{names} has no value" if len(unresolved) == 1 else f"{names} have no value",
            hint=f"Available: {', '.join(sorted(view)) or 'nothing'}.",
        )
    return text


def show(value: Any) -> str:
    """A value as a template shows it: text as it is, a list of plain values joined by commas, else JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
        return ", ".join(show(item) for item in value)
    if isinstance(value, (int, float)):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else str(value)


# -- parsing --


@lru_cache(maxsize=256)
def _parsed(template: str) -> tuple[list[_Part], list[tuple[str, int]]]:
    root: list[_Part] = []
    flaws: list[tuple[str, int]] = []
    stack: list[tuple[_Section | None, list[_Part]]] = [(None, root)]
    for token in _tokens(template, flaws):
        if isinstance(token, str):
            stack[-1][1].append(token)
        else:
            _place_tag(*token, stack, flaws)
    for section, _ in stack[1:]:
        if section is not None:
            flaws.append((f"the section {_tag(section)} is never closed", section.at))
    flaws.sort(key=lambda flaw: flaw[1])
    return root, flaws


def _place_tag(sigil: str, name: str, at: int, stack: list[Any], flaws: list[tuple[str, int]]) -> None:
    if sigil == "!":
        return
    if sigil in _REFUSED:
        flaws.append((f"{_REFUSED[sigil]} are not supported", at))
        return
    path = (".",) if name == "." else tuple(name.split("."))
    if not name or not all(path) or any(char.isspace() or char in "{}" for char in name):
        flaws.append((f"{name!r} is not a name" if name else "a tag is empty: {{}}", at))
        return
    if sigil in ("#", "^"):
        section = _Section(path, at, sigil == "^", [])
        if len(stack) <= MAX_NESTING:
            stack[-1][1].append(section)
        stack.append((section, section.parts))
        if len(stack) == MAX_NESTING + 2:
            flaws.append((f"sections nest deeper than {MAX_NESTING}", at))
    elif sigil == "/":
        _close(path, at, stack, flaws)
    else:
        stack[-1][1].append(_Variable(path, at))


def _close(path: tuple[str, ...], at: int, stack: list[Any], flaws: list[tuple[str, int]]) -> None:
    written = "{{/" + ".".join(path) + "}}"
    section = stack[-1][0]
    if section is None:
        flaws.append((f"{written} closes a section that was not opened", at))
    elif section.path == path:
        stack.pop()
    else:
        flaws.append((f"{written} stands where {_tag(section)} must be closed", at))
        stack.pop()


def _tag(section: _Section) -> str:
    return "{{" + ("^" if section.inverted else "#") + ".".join(section.path) + "}}"


def _tokens(template: str, flaws: list[tuple[str, int]]) -> Iterator[str | tuple[str, str, int]]:
    """Text and (sigil, name, offset) of tags; a tag that stands alone on its line takes the line with it."""
    position = tags = 0
    while opening := _OPEN.search(template, position):
        start = opening.start()
        tags += 1
        if tags > MAX_TAGS:  # each tag scans its line, and a template may be one long line
            flaws.append((f"there are more than {MAX_TAGS:,} tags", start))
            return
        triple = template.startswith("{{{", start)
        closing = "}}}" if triple else "}}"
        body_start = start + len(closing)
        end = template.find(closing, body_start)
        following = template.find("{{", body_start)
        if end < 0 or 0 <= following < end:
            flaws.append((f"a {'{{{' if triple else '{{'} is never closed by {closing}", start))
            yield template[position:body_start]
            position = body_start
            continue
        body = template[body_start:end]
        sigil = "&" if triple else (body[:1] if body.startswith(_SIGILS) else "")
        name = (body if triple else body[len(sigil) :]).strip()
        end += len(closing)
        before, after = start, end
        if sigil in ("#", "^", "/", "!"):
            before, after = _line_around(template, start, end)
        yield template[position : max(before, position)]
        yield sigil, name, start
        position = after
    yield template[position:]


def _line_around(template: str, start: int, end: int) -> tuple[int, int]:
    """The whole line of a tag that stands alone on it, else just the tag."""
    line_start = template.rfind("\n", 0, start) + 1
    line_end = template.find("\n", end)
    line_end = len(template) if line_end < 0 else line_end + 1
    alone = not (template[line_start:start] + template[end:line_end]).strip()
    return (line_start, line_end) if alone else (start, end)


def _line_column(template: str, at: int) -> tuple[int, int]:
    return template.count("\n", 0, at) + 1, at - template.rfind("\n", 0, at)


def _uses(parts: list[_Part], template: str, inside: tuple[tuple[str, ...], ...]) -> Iterator[Use]:
    for part in parts:
        if isinstance(part, str):
            continue
        line, column = _line_column(template, part.at)
        if isinstance(part, _Variable):
            yield Use(part.path, "variable", line, column, inside)
            continue
        yield Use(part.path, "inverted" if part.inverted else "section", line, column, inside)
        yield from _uses(part.parts, template, inside if part.inverted else (*inside, part.path))


# -- rendering --

_MISSING: Any = object()


def _rendered(parts: list[_Part], scopes: list[Any], unresolved: dict[str, None]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        value = _found(part.path, scopes)
        if isinstance(part, _Variable):
            if value is _MISSING or value is None:
                unresolved[".".join(part.path) if part.path != (".",) else "."] = None
            else:
                yield show(value)
        elif part.inverted:
            if not _holds(value):
                yield from _rendered(part.parts, scopes, unresolved)
        elif _holds(value):
            for item in value if isinstance(value, list) else [value]:
                yield from _rendered(part.parts, [*scopes, item], unresolved)


def _holds(value: Any) -> bool:
    """Whether a section is entered: not for what is absent, null, false, 0, empty text or an empty list."""
    return value is not _MISSING and (bool(value) or isinstance(value, Mapping))


def _found(path: tuple[str, ...], scopes: list[Any]) -> Any:
    """The innermost scope that knows the first name decides; the rest is looked up inside it alone."""
    if path == (".",):
        return scopes[-1]
    for scope in reversed(scopes):
        value = _part(scope, path[0])
        if value is not _MISSING:
            for name in path[1:]:
                value = _part(value, name)
            return value
    return _MISSING


def _part(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    if isinstance(value, list) and name.isdecimal() and len(name) < 9 and int(name) < len(value):
        return value[int(name)]
    return _MISSING
