"""Measures how similar two notes are in a way that can be explained: by the words and word pairs they share.

Every meaningful word counts 1, a word in the note's name counts 2, and every pair of adjacent words counts 1 more, so
that notes match by what they say and not by common words. The score of two notes is the share of the shorter note that
is found in the other. It depends only on the two notes, so it never changes. The functions have no side effects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from rolecall.knowledge.words import split_unspaced, stem

OVERLAP = 0.35
"""The minimum score of two notes on the same subject. In one project, notes on different subjects scored below 0.25."""
CONTAINED = 0.7
"""The minimum share at which a note adds little to another note."""

_NAME_WEIGHT = 2.0
_WORD = re.compile(r"[^\W_]+")
_EVERYWHERE = """
a about after all also an and any are as at be because been before being but by can could did do does each either
else every for from get gets got had has have having he her here his how however i if in into is it its itself just
like may me might more most much must my never no nor not now of off on once one only or other our out over own same
shall she should since so some still such than that the their them then there these they this those through to too
under until up upon us use used uses using very via was we were what when where whether which while who whose why
will with within without would yet you your
"""
_EMPTY_WORDS = frozenset(_EVERYWHERE.split())


class Profile(NamedTuple):
    """The features by which notes are compared: words and word pairs with their weights, and spellings."""

    weights: dict[str, float]
    written: dict[str, str]

    pairs: frozenset[str]
    """The keys in `weights` that are word pairs, each of which counts 1."""
    size: float
    """The sum of the weights."""


class Likeness(NamedTuple):
    score: float
    shared: tuple[str, ...]
    """The words that both notes contain, as spelled in the first note, in its order."""


def profile(topic: str, text: str) -> Profile:
    """Return the features of a note; `topic` is the subject in the note's name."""
    written: dict[str, str] = {}
    weights: dict[str, float] = {}
    for root, word in _words(topic):
        weights[root], written[root] = _NAME_WEIGHT, word
    stems = []
    for root, word in _words(text):
        weights.setdefault(root, 1.0)
        written.setdefault(root, word)
        stems.append(root)
    pairs = frozenset(f"{first} {second}" for first, second in pairwise(stems))
    weights.update(dict.fromkeys(pairs, 1.0))
    return Profile(weights, written, pairs, sum(weights.values()))


def measure_likeness(one: Profile, other: Profile) -> Likeness:
    """Return the share of the shorter note that is in the other."""
    return _share(one, other, of=min(one.size, other.size))


def find_telling_words(text: str) -> list[str]:
    """Return the meaningful words of a text as written, each once."""
    return list(dict.fromkeys(word for _, word in _words(text)))


def measure_containment(one: Profile, other: Profile) -> Likeness:
    """Return the share of `one` that is in `other`."""
    return _share(one, other, of=one.size)


def find_similar(profiles: Mapping[str, Profile], share: float = CONTAINED) -> dict[str, list[str]]:
    """For each note, return the other notes that share enough word pairs with it that they could contain most of it.
    Comparing all pairs of notes in full would take a minute for a thousand notes."""
    having: dict[str, list[str]] = {}
    for name, each in profiles.items():
        for pair in each.pairs:
            having.setdefault(pair, []).append(name)
    shared: dict[str, Counter[str]] = {name: Counter() for name in profiles}
    for names in having.values():
        if len(names) > 1:
            for name in names:
                shared[name].update(names)
    found: dict[str, list[str]] = {}
    for name, counts in shared.items():
        one = profiles[name]
        words = one.size - len(one.pairs)
        alike = {other for other, count in counts.items() if count + words >= share * one.size}
        found[name] = sorted(alike - {name})
    return found


def _share(one: Profile, other: Profile, *, of: float) -> Likeness:
    common = [term for term in one.weights if term in other.weights]
    weight = sum(min(one.weights[term], other.weights[term]) for term in common)
    shared = tuple(one.written[term] for term in common if term in one.written)
    return Likeness(round(weight / of, 2) if of else 0.0, shared)


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield the meaningful words of a text, each preceded by its stem."""
    for match in _WORD.finditer(text.lower()):
        for word in split_unspaced(match[0]):
            if len(word) > 1 and word not in _EMPTY_WORDS:
                yield stem(word), word
