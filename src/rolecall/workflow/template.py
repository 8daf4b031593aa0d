"""Mustache templates for edge prompts and locations: parse a template, list the names that it uses, and render it. The
code is pure.

Text is never HTML-escaped, and a variable that cannot be resolved is an error rather than an empty text. A section over
a missing name is skipped, because that is how a template tests whether the name exists. Partials, lambdas and other
delimiters are not supported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject

MAX_NESTING = 50
MAX_TAGS = 1_000
MAX_PARTS = 200_000
"""The maximum number of texts and values in one rendering."""
MAX_RENDERED = 20_000_000
"""The maximum length of a rendered text, in characters."""
_REFUSED = {">": "partials ({{>name}})", "=": "other delimiters ({{=<% %>=}})"}
_SIGILS = ("#", "^", "/", "!", ">", "=", "&")


class Use(NamedTuple):
    """One place where a template uses a name."""

    path: tuple[str, ...]
    """The dotted name, split at the dots; `(".",)` is the current item itself."""
    kind: Literal["variable", "section", "inverted"]
    line: int
    column: int
    inside: tuple[tuple[str, ...], ...]
    """The sections around the name, outermost first. Inverted sections are left out, because they do not change the
    context."""

    @property
    def name(self) -> str:
        return _join(self.path)


class Flaw(NamedTuple):
    """A syntax error in a template."""

    message: str
    line: int
    column: int


class _Section(NamedTuple):
    path: tuple[str, ...]
    at: int
    kind: Literal["variable", "section", "inverted"]
    parts: list[Any]
    """The texts and sections inside the section; empty for a variable."""

    def __str__(self) -> str:
        return "{{" + ("^" if self.kind == "inverted" else "#") + _join(self.path) + "}}"


_Part = str | _Section


def problems(template: str) -> list[Flaw]:
    """Return all syntax errors in a template; the list is empty if the template is valid."""
    return [Flaw(message, *_line_column(template, at)) for message, at in _parse(template)[1]]


def variables(template: str) -> list[Use]:
    """Return all uses of names in the template, in the order in which they are written."""
    return list(_uses(_parse(template)[0], template, ()))


def render(template: str, view: JsonObject) -> str:
    """Render a template with the values in `view`. Raise `UsageError` with all variables that cannot be resolved."""
    parts, flaws = _parse(template)
    if flaws:
        raise UsageError(f"the template is not valid: {flaws[0][0]}")
    unresolved: dict[str, None] = {}
    rendered: list[str] = []
    size = 0
    for text in _render(parts, [view], unresolved):
        rendered.append(text)
        size += len(text)
        if len(rendered) > MAX_PARTS or size > MAX_RENDERED:
            raise UsageError(
                f"the text would have more than {MAX_PARTS:,} parts or {MAX_RENDERED:,} characters",
                hint="Nested sections over lists multiply; use one list.",
            )
    if unresolved:
        names = ", ".join("{{" + name + "}}" for name in unresolved)
        hint = f"Available: {', '.join(sorted(view)) or 'nothing'}."
        raise UsageError(f"{names} {'has' if len(unresolved) == 1 else 'have'} no value", hint=hint)
    return "".join(rendered)


def show(value: Any) -> str:
    """Return a value as templates show it: text unchanged, a list of plain values joined by commas, anything else as
    JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
        return ", ".join(show(item) for item in value)
    return json.dumps(value, ensure_ascii=False, default=dict)


def _join(path: tuple[str, ...]) -> str:
    return "." if path == (".",) else ".".join(path)


# -- parsing --


@lru_cache(maxsize=256)
def _parse(template: str) -> tuple[list[_Part], list[tuple[str, int]]]:
    """Return the parts of a template, and its syntax errors with their offsets."""
    flaws: list[tuple[str, int]] = []
    root = _Section((".",), 0, "section", [])
    open_sections = [root]
    for token in _tokens(template, flaws):
        section = open_sections[-1]
        if isinstance(token, str):
            section.parts.append(token)
            continue
        sigil, name, at = token
        path = (".",) if name == "." else tuple(name.split("."))
        if sigil == "!":
            continue
        if sigil in _REFUSED:
            flaws.append((f"{_REFUSED[sigil]} are not supported", at))
        elif not all(path) or any(char.isspace() or char in "{}" for char in name):
            flaws.append((f"{name!r} is not a name" if name else "a tag is empty: {{}}", at))
        elif sigil in ("#", "^"):
            inner = _Section(path, at, "inverted" if sigil == "^" else "section", [])
            if len(open_sections) <= MAX_NESTING:
                section.parts.append(inner)
            open_sections.append(inner)
            if len(open_sections) == MAX_NESTING + 2:
                flaws.append((f"sections nest deeper than {MAX_NESTING}", at))
        elif sigil != "/":
            section.parts.append(_Section(path, at, "variable", []))
        elif section is root:
            flaws.append(("{{/" + name + "}} closes a section that was not opened", at))
        else:
            if section.path != path:
                flaws.append(("{{/" + name + "}} stands where " + f"{section} must be closed", at))
            open_sections.pop()
    flaws += [(f"the section {section} is never closed", section.at) for section in open_sections[1:]]
    return root.parts, sorted(flaws, key=lambda flaw: flaw[1])


def _tokens(template: str, flaws: list[tuple[str, int]]) -> Iterator[str | tuple[str, str, int]]:
    """Yield texts, and tags as (sigil, name, offset). A tag that is alone on its line removes the whole line."""
    position = tags = 0
    while (start := template.find("{{", position)) >= 0:
        tags += 1
        if tags > MAX_TAGS:  # finding a tag scans its line, which can be the whole template
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
            line_start, line_end = template.rfind("\n", 0, start) + 1, template.find("\n", end)
            line_end = len(template) if line_end < 0 else line_end + 1
            if not (template[line_start:start] + template[end:line_end]).strip():
                before, after = line_start, line_end
        yield template[position : max(before, position)]
        yield sigil, name, start
        position = after
    yield template[position:]


def _line_column(template: str, at: int) -> tuple[int, int]:
    return template.count("\n", 0, at) + 1, at - template.rfind("\n", 0, at)


def _uses(parts: list[_Part], template: str, inside: tuple[tuple[str, ...], ...]) -> Iterator[Use]:
    for part in parts:
        if isinstance(part, _Section):
            yield Use(part.path, part.kind, *_line_column(template, part.at), inside)
            yield from _uses(part.parts, template, (*inside, part.path) if part.kind == "section" else inside)


# -- rendering --

_MISSING: Any = object()


def _render(parts: list[_Part], scopes: list[Any], unresolved: dict[str, None]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        value = _find(part.path, scopes)
        if part.kind == "variable":
            if value is _MISSING or value is None:
                unresolved[_join(part.path)] = None
            else:
                yield show(value)
        elif part.kind == "inverted":
            if not _holds(value):
                yield from _render(part.parts, scopes, unresolved)
        elif _holds(value):
            for item in value if isinstance(value, list) else [value]:
                yield from _render(part.parts, [*scopes, item], unresolved)


def _holds(value: Any) -> bool:
    """Return whether a section is rendered. A section is left out if its value is missing, null, false, 0, an empty
    text or an empty list."""
    return value is not _MISSING and (bool(value) or isinstance(value, Mapping))


def _find(path: tuple[str, ...], scopes: list[Any]) -> Any:
    """Look up the first name of a path in the innermost scope that contains it, and the rest of the path only inside
    that value."""
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
