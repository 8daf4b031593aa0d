"""Splits texts into the words used by the index. A name counts as a whole and in parts.

`getHTTPStatus`, `get_http_status` and "gets the HTTP status" have the words get, http and status in common. The whole
name is a word as well, so that a query for the name ranks it first. Common endings are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

VERSION = 1
"""The version of the word rules; an index with another version is rebuilt."""
BYTES_PER_TOKEN = 3.5
"""An estimated number of bytes per token. Models' tokenizers differ more from each other than from this estimate."""

NAME = re.compile(r"\w+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
# These scripts have no spaces between words, so two adjacent characters count as a word.
_UNSPACED = re.compile("[぀-ヿ㐀-䶿一-鿿가-힯฀-๿]+")
_LONGEST = 64
"""The maximum length of a word. A longer word is a digest or data, and its beginning is enough to find it."""
_KNOWN_NAMES = 60_000


def tokens(text: str) -> int:
    """Estimate the number of tokens in a text."""
    return int(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1


def terms(text: str) -> list[str]:
    """Return every word in order, in the form used by the index. A compound name is followed by its parts."""
    found: list[str] = []
    for name in NAME.findall(text):
        found += terms_of(name)
    return found


@lru_cache(20_000)
def part_terms(texts: tuple[str, ...]) -> frozenset[str]:
    """Return the words of which names consist, in the form used by the index."""
    return frozenset(stem(part) for text in texts for part in parts(text))


def parts(text: str) -> list[str]:
    """Return every word in order, unstemmed but in lower case. A name is given only as its parts."""
    found: list[str] = []
    for name in NAME.findall(text):
        found += parts_of(name)
    return found


@lru_cache(_KNOWN_NAMES)
def terms_of(name: str) -> tuple[str, ...]:
    """Return the words of one name: the whole name and its parts."""
    whole = name.strip("_").lower()[:_LONGEST]
    found = parts_of(name)
    if not whole or found == (whole,):
        return tuple(map(stem, found))
    return (stem(whole), *map(stem, found))


@lru_cache(_KNOWN_NAMES)
def parts_of(name: str) -> tuple[str, ...]:
    found = (part.lower() for part in _PART.findall(name))
    return tuple(word[:_LONGEST] for part in found for word in split_unspaced(part))


def stem(word: str) -> str:
    """Remove a word's commonest endings, so that `retries`, `retry` and `retried` become the same word, as do `cache`
    and `caching`."""
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return f"{word[:-3]}y"
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


def split_unspaced(part: str) -> Iterator[str]:
    """Split a word where a script without spaces between words begins or ends. In such a script, each pair of adjacent
    characters counts as a word."""
    if part.isascii() or not _UNSPACED.search(part):
        yield part
        return
    at = 0
    for run in _UNSPACED.finditer(part):
        if run.start() > at:
            yield part[at : run.start()]
        yield from (a + b for a, b in pairwise(run[0])) if len(run[0]) > 1 else run[0]
        at = run.end()
    if at < len(part):
        yield part[at:]
