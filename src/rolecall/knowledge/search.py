"""How passages are ranked by what a question looks like, its words and its vector. Pure.

Seven things speak for a passage. *Words*: it holds the words of the question, rare ones first (BM25, from the
index). *Names*: its own name, or its whole trail, is made of them. *Definitions*: it defines the name that was
asked for. *Files*: the question names its file, or even its line. *Quotes*: it holds the words near each other and
in order, as it does when the question is a message that a program printed. *Vectors*: it is about the same thing.
*Company*: its file holds others for which all this speaks. How much each counts depends on what the question looks
like, because a name is found by its letters and a thought by its meaning.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from rolecall.knowledge import chunk
from rolecall.knowledge.words import NAME, part_terms, terms, terms_of

Kind = Literal["identifier", "error", "prose"]

MOST_TERMS = 48
"""Of a longer question, such as a whole traceback, only the rarest words are used."""
MOST_PAIRS = 48
_MOST_FILES = 20
_LONGEST_NAME = 200

_IDENTIFIER = re.compile(r"-{0,2}[\w$@]+(?:(?:\.|::|->|#|/|-)[\w$@]+)*(?:\([^()]*\))?")
_FILLED_IN = re.compile(r"""(?<!\w)(['"`]).{0,200}?\1(?!\w)""")
_PLACE = re.compile(r"""([\w./-]+)(?:(?:["']?,\ line\ |:|\()(\d{1,7}))?""", re.VERBOSE)
"""A path, and a line of it as compilers, tracebacks and stack traces write them."""
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,4}")
_OUTER = re.compile(r"\.|::|->|#|/")
_COMPLAINT = re.compile(
    r"""(?ix)\b(?:
    must | cannot | can't | can\ not | could\ ?n[o']t | invalid | unexpected | expected | unknown | failed | unable
    | missing | unsupported | unrecognized | is\ not | are\ not | does\ not | do\ not | did\ not | doesn't | don't
    | isn't | has\ no | have\ no | no\ such | already | required? | requires | should\ be | should\ not | got | error
    | exception | traceback | denied | refused | illegal | incompatible | mismatch | at\ least | at\ most | out\ of
    | malformed | incorrect | forbidden | conflict(?:ing)? | exceed(?:s|ed) | exclusive | timed\ out
    | only\ (?:one|be|support) | too\ (?:many|few|long|large|small)
    | not\ (?:found|supported|allowed|implemented|an?|be|in|valid|defined|exist|match|set|have|available|installed)
    )\b"""
)
_RAISED = re.compile(r"(?:E +)?(?:[\w.]+\.)?(?:[A-Z]\w+|(?i:error|warning|fatal|panic)[^:]{0,12}): ")
_LONGEST_MESSAGE = 40
"""A text of more words is sure to hold some that complain; then only a named exception makes it a message."""
_TRACEBACK = re.compile(
    r"(?m)^(?:E +)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Warning)\b|^Traceback |^panic: |^[ \t]+at \S+ ?\("
)
_VALUE = re.compile(r"""['"`].*['"`]|\b\d+\b|\w\(\)|\w=|:\ \S""")
_TELLING = re.compile(
    r"""(?ix)(?:gets?|returns?|sets?|creates?|computes?|checks?|is|are|make|convert|parse|how|what|where|why|which|when
    |who|this|an?|whether|yields?|run|find|add|remove|helper|generate|build|apply|load|test|given|if)\b"""
)
_FILLING = part_terms(
    [
        "a an and are as at be by can do does for from given has have how if in into is it its not of on or that the",
        "their then there these this those to use used using was were what when where which who will with you your",
    ]
)
"""Words of sentences. Source code has few of them, so they would seem rare and important."""


@dataclass(frozen=True)
class Weights:
    words: float
    vectors: float


EMBEDDED: Mapping[str, Weights] = {
    "prose": Weights(1.0, 0.8),
    "identifier": Weights(1.0, 0.5),
    "error": Weights(1.0, 0.5),
}
"""Tuned with the embedded model, whose vectors know less than the words do (benchmarks/knowledge_quality.py)."""
STRONGER: Mapping[str, Weights] = {
    "prose": Weights(1.0, 2.0),
    "identifier": Weights(1.0, 0.5),
    "error": Weights(1.0, 0.4),
}
"""For models that read sentences, not words."""
_QUOTE_FROM = {"error": 0.3, "prose": 0.7, "identifier": 0.6}
"""The share of a question's neighbouring words from which on a passage quotes it."""
_REACH = 3
"""Words this far from each other are still near: a value may stand between them, or one was left out."""
_SAME_FILE, _COMPANY = 0.2, 3
"""What the best few passages of a file count for each of its passages: a file is about something, too."""


@dataclass(frozen=True)
class Question:
    text: str
    kind: Kind
    terms: tuple[str, ...]
    """Its words in order, as the index knows them."""
    telling: tuple[str, ...]
    """Those of them that select passages."""
    parts: frozenset[str]
    """Its words without whole names."""
    pairs: frozenset[tuple[str, str]]
    """Words that stand side by side in it."""
    name: str
    """The name that is asked for, without outer ones; empty if the question is not a name."""
    definition: re.Pattern[str] | None
    """How a text defines that name."""
    files: tuple[tuple[str, int], ...]
    """What may be names of files in it, each with a line, or 0."""

    def is_file(self, path: str) -> bool:
        """Whether it names this file."""
        return any(_is_named(path, name) for name, _ in self.files)

    def lines_of(self, path: str) -> set[int]:
        """The lines of this file that it names."""
        return {line for name, line in self.files if line and _is_named(path, name)}


def question(text: str) -> Question:
    kind, found = looks_like(text), tuple(terms(text))
    telling: tuple[str, ...] = found
    lasting: Sequence[str] = found
    if kind == "prose":
        telling = tuple(word for word in found if word not in _FILLING)
    elif kind == "error":  # values were filled in when it was printed, and numbers differ each time
        telling = tuple(word for word in terms(_FILLED_IN.sub(" ", text)) if not word.isdecimal())
        lasting = [word for word in found if not word.isdecimal()]
    stripped = text.strip()
    is_name = kind == "identifier" and not (
        "/" in stripped or chunk.is_structured(stripped) or len(stripped) > _LONGEST_NAME
    )
    name = _OUTER.split(stripped.partition("(")[0])[-1] if is_name else ""
    return Question(
        text, kind, terms=found, telling=telling or found, parts=part_terms([text]),
        pairs=frozenset(pairwise(lasting)), name=name, definition=_definition_of(name) if name else None,
        files=tuple(dict.fromkeys(_files_in(text)))[:_MOST_FILES],
    )  # fmt: skip


def looks_like(text: str) -> Kind:
    """Whether a question is a name, a message of a program, or a sentence."""
    text = text.strip()
    if _IDENTIFIER.fullmatch(text):
        return "identifier"
    if len(text.split(None, _LONGEST_MESSAGE)) > _LONGEST_MESSAGE:
        return "error" if _TRACEBACK.search(text) else "prose"
    signs = 1.5 * min(len(_COMPLAINT.findall(text)), 2) + (0.8 if _VALUE.search(text) else 0)
    signs += 1.5 if _RAISED.match(text) else 0
    signs -= 1.5 if _TELLING.match(text) else 0
    signs -= 1.0 if text.endswith("?") else 0
    return "error" if signs >= 1.4 else "prose"


def _files_in(text: str) -> Iterator[tuple[str, int]]:
    for found, line in _PLACE.findall(text):
        path = found.rstrip("./-").removeprefix("./")
        if "." in path and _SUFFIX.fullmatch(path, path.rindex(".")):
            yield path, int(line or 0)


def _is_named(path: str, name: str) -> bool:
    """Whether a name is the end of a path, or an absolute name ends with the path, as in tracebacks."""
    return name.endswith(f"/{path}") if name.startswith("/") else f"/{path}".endswith(f"/{name}")


def _definition_of(name: str) -> re.Pattern[str]:
    """A pattern for the definition of a name: after a word such as `def`, or at the start of a line with a value."""
    plain = re.escape(name)
    quoted = rf"| ['\"`]{plain}['\"`= ]" if name.startswith("-") else ""  # an option of a command
    return re.compile(
        rf"""(?mx)
        \b(?:class|const|def|define|enum|fn|func|function\*?|interface|let|macro_rules!|mod|module|namespace|record
            |static|struct|trait|type|typedef|union|val|var)[ \t]+(?:\([^)\n]*\)[ \t]*)?{plain}(?![\w-])
        | ^[ \t]*(?:-[ ]+)?(?:[\w$.]+\.)?["']?{plain}["']?[ \t]*(?::(?!:)|=(?![=>]))
        | ^[ \t]*\[+[\w.-]*{plain}\]
        {quoted}"""
    )


def defines(trail: Sequence[str], text: str, asked: Question) -> bool:
    """Whether a passage defines the name in a question: of a function that is cut into several, the first does."""
    if asked.definition is None:
        return False
    return (trail[-1:] == (asked.name,) and asked.name in text) or bool(asked.definition.search(text))


def any_of(words: Iterable[str]) -> str:
    """A full-text expression for passages with any of the words."""
    return " OR ".join(f'"{word}"' for word in words)


def any_pair_of(pairs: Iterable[tuple[str, str]]) -> str:
    return " OR ".join(f'"{first} {second}"' for first, second in pairs)


# -- what speaks for a passage --


class Candidate(NamedTuple):
    key: tuple[int, int]
    """Which index, and which passage of it."""
    file: int
    """Which file of that index."""
    words: float
    """BM25."""
    trail: float
    """How much of its trail and of the question are the same words, from 0 to 1."""
    name: float
    """The same of its own name."""
    quotes: float
    """How much of the question it says word for word, from 0 to 1."""
    is_definition: bool
    """The name that was asked for is defined in it."""
    is_of_file: bool
    """Its file is named in the question."""
    is_at_line: bool
    """So is a line that it holds."""
    lines: int
    nearness: float
    """The cosine of its vector and the question's."""


class Scale(NamedTuple):
    """What cosines mean in an index: models differ in where they begin."""

    usual: float
    best: float


def shares(asked: Question, frequencies: Mapping[str, int], passages: int) -> dict[str, float]:
    """How much each word says of what a question says: a word that is everywhere says nothing."""
    rare = {
        word: math.log(1 + (passages - frequencies[word] + 0.5) / (frequencies[word] + 0.5))
        for word in asked.parts
    }
    total = sum(rare.values())
    return {word: value / total if total else 1 / len(rare) for word, value in rare.items()}


def overlap(names: tuple[str, ...], share: Mapping[str, float]) -> float:
    """1 when names and a question consist of the same words."""
    words = _cached_terms(names)
    common = [word for word in words if word in share]
    return math.sqrt(len(common) / len(words) * sum(share[word] for word in common)) if common else 0.0


@lru_cache(20_000)
def _cached_terms(names: tuple[str, ...]) -> frozenset[str]:
    return part_terms(names)


def quotes(trail: Sequence[str], text: str, asked: Question) -> float:
    """The share of a question's neighbouring words that are near each other in a passage, too."""
    if not asked.pairs:
        return 0.0
    found = _near_pairs(terms(text), asked) | _near_pairs(terms(" ".join(trail)), asked)
    return len(asked.pairs & found) / len(asked.pairs)


def _near_pairs(words: Iterable[str], asked: Question) -> set[tuple[str, str]]:
    wanted = set(asked.terms)
    found: set[tuple[str, str]] = set()
    recent: list[tuple[int, str]] = []
    for place, word in enumerate(words):
        if word in wanted:
            recent = [(before, earlier) for before, earlier in recent if place - before <= _REACH]
            found.update((earlier, word) for _, earlier in recent)
            recent.append((place, word))
    return found


def rank(
    candidates: Iterable[Candidate], weights: Sequence[Weights], scales: Sequence[Scale | None], kind: Kind
) -> list[tuple[tuple[int, int], float]]:
    """Keys and scores, best first, with the weights and scale of each index.

    The surer the words are of a passage, the less vectors and the other passages of its file count.
    """
    found = list(candidates)
    best = max((each.words for each in found), default=0.0) or 1.0
    doubt = 1.0 - max((_certainty(each, kind) for each in found), default=0.0)
    scores: list[float] = []
    of_file: dict[tuple[int, int], list[float]] = defaultdict(list)
    for each in found:
        own, scale = weights[each.key[0]], scales[each.key[0]]
        # 0 for a passage like any other, 1 for the nearest.
        room = scale.best - scale.usual if scale else 0.0
        near = max(0.0, (each.nearness - scale.usual) / room) if scale and room > 0 else 0.0
        leave = doubt if own.words else 1.0
        scores.append(own.words * _score_words(each, best, kind) + own.vectors * leave * near)
        of_file[each.key[0], each.file].append(scores[-1])
    about = {file: sum(sorted(those)[-_COMPANY:]) / _COMPANY for file, those in of_file.items()}
    scored = [
        (each.key, score + weights[each.key[0]].words * doubt * _SAME_FILE * about[each.key[0], each.file])
        for each, score in zip(found, scores, strict=True)
    ]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


def _certainty(each: Candidate, kind: Kind) -> float:
    """How sure the words are that a passage is meant: it has that name, says exactly that, defines it or holds the
    line. Half of a message is enough: the rest was filled in."""
    if each.is_at_line:
        return 1.0
    if kind == "identifier":
        return float(each.is_definition)
    quoted = min(1.0, 2 * each.quotes) if kind == "error" else each.quotes**1.5
    return float(max(each.trail**4, quoted))


def _score_words(each: Candidate, best: float, kind: Kind) -> float:
    """The score by words. A trail that is the whole question counts more than many that are half of it, and a passage
    of a line or two is seldom the answer to a sentence."""
    least = _QUOTE_FROM[kind]
    quote = max(0.0, (each.quotes - least) / (1 - least))
    called = 0.3 * each.trail + 0.6 * each.trail**4 + (0.5 if kind == "prose" else 0.3) * each.name
    length = 0.1 * min(math.log(max(each.lines, 1)), 3.0) if kind == "prose" else 0.0
    place = each.is_of_file + 3 * each.is_at_line  # more than words may say for another passage of the file
    return each.words / best + called + quote + each.is_definition + place + length


# -- showing --


def marks(text: str, asked: str) -> list[tuple[int, int]]:
    """Where words of the question stand in a text."""
    wanted = set(terms(asked))
    return [found.span() for found in NAME.finditer(text) if wanted.intersection(terms_of(found[0]))]
