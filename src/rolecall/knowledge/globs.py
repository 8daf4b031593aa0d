"""Matches `.gitignore` patterns against paths separated by `/`. The functions have no side effects.

A pattern becomes a regular expression, and neighbouring patterns with the same verdict become one expression, because a
large repository is matched against many patterns. Patterns are untrusted, so the time to match each part of a path is
limited to the length of the pattern times the length of the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "\\x21-\\x7e", "lower": "a-z", "print": "\\x20-\\x7e", "punct": "!-/:-@\\[-`{-~",
    "space": " \\t-\\r", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_ANY, _DEEP, _SLASH, _ONE = "*", "**", "/", "[^/]"


class Globs:
    """An ordered list of patterns. The last pattern that matches decides, and a pattern with `!` excludes.

    A pattern that matches a folder also matches the folder's contents. With `is_exact` it matches only the folder
    itself, as in git, which then does not enter the folder.
    """

    def __init__(self, patterns: Iterable[str], *, is_exact: bool = False) -> None:
        read = [glob for pattern in patterns if (glob := _read(pattern))]
        groups = [(verdict, list(each)) for verdict, each in groupby(read, lambda glob: glob.verdict)]
        self._groups = [
            (verdict, re.compile("|".join(glob.regex(is_exact=is_exact) for glob in globs), re.DOTALL))
            for verdict, globs in reversed(groups)
        ]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def verdict(self, path: str) -> bool | None:
        """Return whether the deciding pattern includes or excludes `path`, or None if no pattern matches. The path of a
        folder ends in `/`."""
        return next((verdict for verdict, regex in self._groups if regex.match(path)), None)

    def has(self, path: str) -> bool:
        return self.verdict(path) is True


def problem(pattern: str) -> str:
    """Describe what is wrong with a pattern, or return an empty string."""
    if not pattern.strip():
        return "is empty"
    if re.search(r"\{[^{}/]*,[^{}/]*\}", pattern):
        return "has alternatives in braces, which these patterns do not know; write one pattern for each"
    if pattern.startswith("/") and pattern.strip("/") == "":
        return "names no file"
    if ".." in pattern.split("/"):
        return "leads out of the repository"
    return "" if _read(pattern) else "matches nothing; mind brackets, backslashes and a leading # or !"


# -- one pattern --


class _Glob(NamedTuple):
    verdict: bool
    is_folder: bool
    """Whether the pattern matches only folders."""
    body: str

    def regex(self, *, is_exact: bool) -> str:
        inner = "" if is_exact else ".*"
        return f"(?:{self.body}/{inner}\\Z)" if self.is_folder else f"(?:{self.body}(?:/{inner})?\\Z)"


def _read(pattern: str) -> _Glob | None:
    """Parse a pattern. Return None for lines that git skips: empty lines, comments, and patterns that cannot match."""
    text = re.sub(r"(?<!\\) +\Z", "", pattern)
    if text.startswith("#"):
        return None
    verdict = not text.startswith("!")
    text = text if verdict else text[1:]
    is_folder = text.endswith("/")
    text = text[:-1] if is_folder else text
    tokens = _tokens(text)
    if not tokens or tokens == [_SLASH]:
        return None
    if "/" not in text:  # a name at any depth; as in git, a slash in brackets counts too
        return _Glob(verdict, is_folder, f"(?:.*/)?{_part(tokens)}")
    parts = [list(part) for is_slash, part in groupby(tokens, lambda token: token == _SLASH) if not is_slash]
    first, *others = _split(["" if part == [_DEEP] else f"{_part(part)}/" for part in parts[:-1]])
    # As within a name, each part after `**` is matched only at its first occurrence, except for the last part.
    body = first + "".join(f"(?>(?:[^/]*/)*?{each})" for each in others[:-1])
    body += "".join(f"(?:.*/)?{each}" for each in others[-1:])
    return _Glob(verdict, is_folder, body + (".+" if parts[-1] == [_DEEP] else _part(parts[-1])))


def _tokens(text: str) -> list[str] | None:
    """Split a pattern into wildcards, slashes, and expressions for single characters. Return None if it cannot
    match."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if stars := re.compile(r"\*+").match(text, at):
            found.append(_ANY if len(stars[0]) == 1 else _DEEP)
            at = stars.end()
            continue
        if text[at] == "[":
            one, at = _set(text, at + 1)
        elif text[at] == "\\":
            one, at = re.escape(text[at + 1 : at + 2]), at + 2
        else:
            one, at = _ONE if text[at] == "?" else re.escape(text[at]), at + 1
        if not one:
            return None
        found.append(one)
    return found


def _part(tokens: list[str]) -> str:
    """Build the expression for one name. The part after a wildcard is matched only at its first occurrence: if the rest
    of the name does not match there, it matches nowhere, and backtracking would take too long."""
    first, *others = _split(["" if token in (_ANY, _DEEP) else token for token in tokens])
    if not others:
        return first
    begin = first or "(?=[^/])"  # a name has at least one character
    return begin + "".join(f"(?>[^/]*?{each})" for each in others[:-1]) + f"[^/]*{others[-1]}"


def _split(parts: list[str]) -> list[str]:
    """Join the parts, and start a new group at each empty part."""
    found = [""]
    for part in parts:
        if part:
            found[-1] += part
        else:
            found.append("")
    return found


def _set(text: str, at: int) -> tuple[str, int]:
    """Return the expression for the set `[…]` whose contents start at `at`, and the position after the set. The
    expression is empty if the set matches nothing."""
    is_not = text[at : at + 1] in ("!", "^") and at < len(text)
    at += is_not
    members, begin = "", at
    while at < len(text) and (text[at] != "]" or at == begin):
        if named := re.compile(r"\[:([^\]]*):\]").match(text, at):
            if named[1] not in _CLASSES:
                return "", at
            members, at = members + _CLASSES[named[1]], named.end()
            continue
        low, at = _member(text, at)
        high = low
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(text, at + 1)
        if not low or not high:
            return "", at
        members += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
    if at >= len(text):
        return "", at
    if is_not:
        return f"[^/{members}]", at + 1
    return (f"(?!/)[{members}]" if members else ""), at + 1


def _member(text: str, at: int) -> tuple[str, int]:
    """Return one character of a set, and the position of the next character."""
    return (text[at + 1 : at + 2], at + 2) if text[at] == "\\" else (text[at], at + 1)
