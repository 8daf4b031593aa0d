"""Texts as the words of the index. Names are taken whole and in their parts.

`getHTTPStatus`, `get_http_status` and "gets the HTTP status" have the words get, http and status in common; the whole
name is a word as well, so that a query for it finds it first. Common endings are cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

VERSION = 1
"""Of the way words are made: an index with another version is rebuilt."""
BYTES_PER_TOKEN = 3.5
"""An estimate: the tokenizers of models differ from each other more than from this."""

NAME = re.compile(r"\w+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
# These scripts put no space between words, so two neighbouring characters count as a word.
_UNSPACED = re.compile("[぀-ヿ㐀-䶿一-鿿가-힯฀-๿]+")
_LONGEST = 64
"""A longer word is a digest or data; its beginning is enough to find it by."""
_KNOWN_NAMES = 60_000


def tokens(text: str) -> int:
    """About how many tokens of a model a text is."""
    return int(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1


def terms(text: str) -> list[str]:
    """Every word in order as the index knows it; a name of several parts is followed by them."""
    found: list[str] = []
    for name in NAME.findall(text):
        found += terms_of(name)
    return found


def part_terms(texts: Iterable[str]) -> frozenset[str]:
    """The words that names are made of, as the index knows them."""
    return frozenset(part for text in texts for name in NAME.findall(text) for part in _part_terms_of(name))


def parts(text: str) -> list[str]:
    """Every word in order as it is written, but small; names only in their parts."""
    found: list[str] = []
    for name in NAME.findall(text):
        found += parts_of(name)
    return found


@lru_cache(_KNOWN_NAMES)
def terms_of(name: str) -> tuple[str, ...]:
    """The words of one name: itself and its parts."""
    whole = name.strip("_").lower()[:_LONGEST]
    found = parts_of(name)
    if not whole or found == (whole,):
        return tuple(map(stem, found))
    return (stem(whole), *map(stem, found))


@lru_cache(_KNOWN_NAMES)
def _part_terms_of(name: str) -> tuple[str, ...]:
    return tuple(map(stem, parts_of(name)))


@lru_cache(_KNOWN_NAMES)
def parts_of(name: str) -> tuple[str, ...]:
    found = (part.lower() for part in _PART.findall(name))
    return tuple(piece[:_LONGEST] for part in found for piece in _split_unspaced(part))


def stem(word: str) -> str:
    """A word without its commonest endings: `retries`, `retry` and `retried` are one, as are `cache` and `caching`."""
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return f"{word[:-3]}y"
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


def _split_unspaced(part: str) -> Iterator[str]:
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
