"""Patterns as in a .gitignore, matched against paths with `/` between their parts.

`pathspec` knows what the patterns mean; here they are matched. It tries one after the other, which for the
files of a large repository takes longer than reading them, so patterns that mean the same are tried at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby


class Globs:
    """Some patterns in order: the last one that matches decides, and one with `!` decides against."""

    def __init__(self, patterns: Iterable[str]) -> None:
        from pathspec import GitIgnoreSpec

        read = [
            (bool(pattern.include), pattern.regex.pattern)
            for pattern in GitIgnoreSpec.from_lines(patterns).patterns
            if pattern.include is not None and pattern.regex is not None
        ]
        groups = [
            (verdict, [regex for _, regex in each]) for verdict, each in groupby(read, lambda pair: pair[0])
        ]
        self._groups = [
            (verdict, re.compile("|".join(_NAMED.sub("(?:", regex) for regex in regexes)))
            for verdict, regexes in reversed(groups)
        ]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def verdict(self, path: str) -> bool | None:
        """Whether `path` is matched; None when no pattern has anything to say. A folder's path ends in `/`."""
        return next((verdict for verdict, regex in self._groups if regex.match(path)), None)

    def has(self, path: str) -> bool:
        return self.verdict(path) is True


_NAMED = re.compile(r"\(\?P<\w+>")


def problem(pattern: str) -> str:
    """What is wrong with a pattern; empty when nothing is."""
    if not pattern.strip():
        return "is empty"
    if re.search(r"\{[^{}/]*,[^{}/]*\}", pattern):
        return "has alternatives in braces, which these patterns do not know; write one pattern for each"
    if pattern.startswith("/") and pattern.strip("/") == "":
        return "names no file"
    if ".." in pattern.split("/"):
        return "leads out of the repository"
    return "" if is_readable(pattern) else "matches nothing; mind brackets, backslashes and a leading # or !"


def is_readable(pattern: str) -> bool:
    """Whether git could match anything with it; it passes over others without a word."""
    from pathspec import GitIgnoreSpec

    try:
        read = list(GitIgnoreSpec.from_lines([pattern]).patterns)
    except (ValueError, re.error):
        return False
    return bool(read) and read[0].include is not None
