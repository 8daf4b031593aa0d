"""How passages are ranked: what a question looks like, and what its words and its vector say together. Pure.

Four things speak for a passage. *Words*: it holds the words of the question, rare ones first (BM25, from the
index). *Names*: its own name, or its whole trail, is made of them. *Quotes*: it holds them side by side, as it
does when the question is a message that a program printed. *Vectors*: it is about the same. How much each counts
depends on what the question looks like, because a name is found by its letters and a thought by its meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from rolecall.knowledge.words import NAME, part_terms, terms, terms_of

Kind = Literal["identifier", "error", "prose"]

MOST_TERMS = 48
"""A longer question, such as a whole traceback, is asked by its rarest words."""
MOST_PAIRS = 48

_IDENTIFIER = re.compile(r"[\w$@]+(?:(?:\.|::|->|#|/|-)[\w$@]+)*(?:\(\))?")
_COMPLAINT = re.compile(
    r"""(?ix)\b(?:
    must | cannot | can't | can\ not | could\ ?n[o']t | invalid | unexpected | expected | unknown | failed | unable
    | missing | unsupported | unrecognized | is\ not | are\ not | does\ not | do\ not | did\ not | doesn't | don't
    | isn't | has\ no | have\ no | no\ such | already | required? | requires | should\ be | should\ not | got | error
    | exception | traceback | denied | refused | illegal | incompatible | mismatch | at\ least | at\ most | out\ of
    | only\ (?:one|be|support) | too\ (?:many|few|long|large|small)
    | not\ (?:found|supported|allowed|implemented|an?|be|in|valid|defined|exist|match|set|have|available|installed)
    )\b"""
)
_VALUE = re.compile(r"""['"`].*['"`]|\b\d+\b|\w\(\)|\w=|:\ \S""")
_TELLING = re.compile(
    r"""(?ix)(?:gets?|returns?|sets?|creates?|computes?|checks?|is|are|make|convert|parse|how|what|where|why|which|when
    |who|this|an?|the|whether|yields?|run|find|add|remove|helper|generate|build|apply|load|test|given|if)\b"""
)


@dataclass(frozen=True)
class Weights:
    words: float
    vectors: float


EMBEDDED: Mapping[str, Weights] = {
    "prose": Weights(1.0, 0.6),
    "identifier": Weights(1.0, 0.5),
    "error": Weights(1.0, 0.2),
}
"""Tuned with the embedded model, whose vectors know less than the words do (benchmarks/knowledge_quality.py)."""
STRONGER: Mapping[str, Weights] = {
    "prose": Weights(1.0, 2.0),
    "identifier": Weights(1.0, 0.5),
    "error": Weights(1.0, 0.4),
}
"""For models that read sentences, not words."""
_QUOTE_FROM = {"error": 0.3, "prose": 0.6, "identifier": 0.6}
"""The share of a question's neighbouring words from which on a passage quotes it."""


@dataclass(frozen=True)
class Question:
    text: str
    kind: Kind
    terms: tuple[str, ...]
    """Its words in order, as the index knows them."""
    parts: frozenset[str]
    """Its words without whole names."""
    pairs: frozenset[tuple[str, str]] = field(default=frozenset())


def question(text: str) -> Question:
    found = tuple(terms(text))
    return Question(text, looks_like(text), found, part_terms([text]), frozenset(pairwise(found)))


def looks_like(text: str) -> Kind:
    """What somebody who asks this has before them."""
    text = text.strip()
    if _IDENTIFIER.fullmatch(text):
        return "identifier"
    signs = 1.5 * min(len(_COMPLAINT.findall(text)), 2) + (0.8 if _VALUE.search(text) else 0)
    signs -= 1.5 if _TELLING.match(text) else 0
    signs -= 1.0 if text.endswith("?") else 0
    return "error" if signs >= 1.4 else "prose"


def any_of(words: Iterable[str]) -> str:
    """A full-text expression for passages with any of the words."""
    return " OR ".join(f'"{word}"' for word in words)


def any_pair_of(pairs: Iterable[tuple[str, str]]) -> str:
    return " OR ".join(f'"{first} {second}"' for first, second in pairs)


# -- what speaks for a passage --


class Candidate(NamedTuple):
    key: tuple[int, int]
    """Which index, and which passage of it."""
    words: float
    """BM25."""
    trail: float
    """How much of its trail and of the question are the same words, from 0 to 1."""
    name: float
    """The same of its own name."""
    quotes: float
    """How much of the question it says word for word, from 0 to 1."""
    nearness: float
    """The cosine of its vector and the question's."""


class Scale(NamedTuple):
    """What cosines mean in an index: models differ in where they begin."""

    usual: float
    best: float


def rarity(frequencies: Mapping[str, int], passages: int) -> dict[str, float]:
    """How much each word tells: one that is everywhere tells nothing."""
    return {
        word: math.log(1 + (passages - count + 0.5) / (count + 0.5)) for word, count in frequencies.items()
    }


def overlap(names: Sequence[str], asked: Question, rare: Mapping[str, float]) -> float:
    """1 when names and a question consist of the same words."""
    words = part_terms(names)
    common = words & asked.parts
    if not common:
        return 0.0
    total = sum(rare.get(word, 0.0) for word in asked.parts)
    share = sum(rare.get(word, 0.0) for word in common) / total if total else 1.0
    return math.sqrt(len(common) / len(words) * share)


def quotes(trail: Sequence[str], text: str, asked: Question) -> float:
    """The share of a question's neighbouring words that are neighbours in a passage, too."""
    found = {*pairwise(terms(text)), *pairwise(terms(" ".join(trail)))}
    return len(asked.pairs & found) / len(asked.pairs) if asked.pairs else 0.0


def ranked(
    candidates: Iterable[Candidate], weights: Sequence[Weights], scales: Sequence[Scale | None], kind: Kind
) -> list[tuple[tuple[int, int], float]]:
    """Keys and scores, best first, with the weights and scale of each index.

    Where a passage is called exactly what was asked, or says exactly that, words are certain of it, and the less
    vectors have to say. A name alone leaves that open: several things are called alike.
    """
    found = list(candidates)
    best = max((each.words for each in found), default=0.0) or 1.0
    certain = max((max(each.trail**4, each.quotes**1.5) for each in found), default=0.0)
    doubt = 1.0 if kind == "identifier" else 1.0 - certain
    scored = []
    for each in found:
        own, scale = weights[each.key[0]], scales[each.key[0]]
        near = _relative(each.nearness, scale) if scale else 0.0
        score = own.words * _said(each, best, kind) + own.vectors * (doubt if own.words else 1.0) * near
        scored.append((each.key, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


def _said(each: Candidate, best: float, kind: Kind) -> float:
    """What words say for a passage. A trail that is the whole question says more than many that are half of it."""
    least = _QUOTE_FROM[kind]
    quote = max(0.0, (each.quotes - least) / (1 - least))
    return each.words / best + 0.3 * each.trail + 0.8 * each.trail**4 + 0.3 * each.name + quote


def _relative(nearness: float, scale: Scale) -> float:
    """0 for a passage like any other, 1 for the nearest."""
    room = scale.best - scale.usual
    return max(0.0, (nearness - scale.usual) / room) if room > 0 else 0.0


# -- showing --


def marks(text: str, asked: str) -> list[tuple[int, int]]:
    """Where in a text words of the question stand."""
    wanted = set(terms(asked))
    return [found.span() for found in NAME.finditer(text) if wanted.intersection(terms_of(found[0]))]
