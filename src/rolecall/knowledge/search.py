"""Ranks passages by a question's kind, words and vector. The functions have no side effects.

Seven signals raise a passage's score:

- *Words*: the passage contains words of the question; rare words count most (BM25, from the index).
- *Names*: the passage's own name, or its whole trail, consists of words of the question.
- *Definitions*: the passage defines the requested name.
- *Files*: the question names the passage's file, or even a line in the passage.
- *Quotes*: the passage contains the question's words close together and in order, for example if the question is a
  message that a program printed.
- *Vectors*: the passage has a similar meaning.
- *Company*: other passages of the same file score well, too.

The weights depend on the kind of question, because a name is found by its letters and an idea by its meaning.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from rolecall.knowledge import chunk
from rolecall.knowledge.words import NAME, part_terms, terms, terms_of

Kind = Literal["identifier", "error", "prose"]

MOST_TERMS = 48
"""The maximum number of words used from a question. Of a longer question, such as a whole traceback, only the rarest
words are used."""
MOST_PAIRS = 48
_MOST_FILES = 20
_LONGEST_NAME = 200

_IDENTIFIER = re.compile(r"-{0,2}[\w$@]+(?:(?:\.|::|->|#|/|-)[\w$@]+)*(?:\([^()]*\))?")
_FILLED_IN = re.compile(r"""(?<!\w)(['"`]).{0,200}?\1(?!\w)""")
_PLACE = re.compile(r"""([\w./-]+)(?:(?:["']?,\ line\ |:|\()(\d{1,7}))?""", re.VERBOSE)
"""A path, optionally with a line number in the style of compilers, tracebacks or stack traces."""
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
"""The maximum number of words in an error message without a named exception; longer texts often contain such words."""
_TRACEBACK = re.compile(
    r"(?m)^(?:E +)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Warning)\b|^Traceback |^panic: |^[ \t]+at \S+ ?\("
)
_VALUE = re.compile(r"""['"`].*['"`]|\b\d+\b|\w\(\)|\w=|:\ \S""")
_TELLING = re.compile(
    r"""(?ix)(?:gets?|returns?|sets?|creates?|computes?|checks?|is|are|make|convert|parse|how|what|where|why|which|when
    |who|this|an?|whether|yields?|run|find|add|remove|helper|generate|build|apply|load|test|given|if)\b"""
)
_FILLING = part_terms(
    (
        "a an and are as at be by can do does for from given has have how if in into is it its not of on or that the",
        "their then there these this those to use used using was were what when where which who will with you your",
    )
)
"""Words that are typical of sentences. They are rare in source code, and would therefore seem important."""


@dataclass(frozen=True)
class Weights:
    words: float
    vectors: float


EMBEDDED: Mapping[str, Weights] = {
    "prose": Weights(1.0, 0.8),
    "identifier": Weights(1.0, 0.5),
    "error": Weights(1.0, 0.5),
}
"""Weights tuned for the embedded model, whose vectors are less reliable than words
(benchmarks/knowledge_quality.py)."""
STRONGER: Mapping[str, Weights] = {
    "prose": Weights(1.0, 2.0),
    "identifier": Weights(1.0, 0.5),
    "error": Weights(1.0, 0.4),
}
"""Weights for models that understand sentences."""
_QUOTE_FROM = {"error": 0.3, "prose": 0.7, "identifier": 0.6}
"""The share of a question's adjacent word pairs above which a passage counts as quoting it."""
_REACH = 3
"""The greatest distance at which words count as close: a value can be between them, or a word can be missing."""
_SAME_FILE, _COMPANY = 0.2, 3
"""The weight of a file's best passages in the score of each of its passages, and the number of these best passages."""


@dataclass(frozen=True)
class SearchQuery:
    text: str
    kind: Kind
    terms: tuple[str, ...]
    """The question's words in order, in the form the index uses."""
    telling: tuple[str, ...]
    """The words that are used to select passages."""
    parts: frozenset[str]
    """The question's words, with each name split into its parts."""
    pairs: frozenset[tuple[str, str]]
    """The pairs of adjacent words in the question."""
    name: str
    """The requested name without its outer names; empty if the question is not a name."""
    definition: re.Pattern[str] | None
    """A pattern for definitions of the requested name; None if the question is not a name."""
    files: tuple[tuple[str, int], ...]
    """Possible file names in the question, each with a line number, or 0 without a line number."""

    def is_file(self, path: str) -> bool:
        """Return whether the question names this file."""
        return any(_is_named(path, name) for name, _ in self.files)

    def lines_of(self, path: str) -> set[int]:
        """Return the lines of this file that the question names."""
        return {line for name, line in self.files if line and _is_named(path, name)}


def question(text: str) -> SearchQuery:
    kind, found = looks_like(text), tuple(terms(text))
    telling: tuple[str, ...] = found
    lasting: Sequence[str] = found
    if kind == "prose":
        telling = tuple(word for word in found if word not in _FILLING)
    elif kind == "error":  # printed messages have values filled in, and numbers that vary
        telling = tuple(word for word in terms(_FILLED_IN.sub(" ", text)) if not word.isdecimal())
        lasting = [word for word in found if not word.isdecimal()]
    stripped = text.strip()
    is_name = kind == "identifier" and not (
        "/" in stripped or chunk.is_structured(stripped) or len(stripped) > _LONGEST_NAME
    )
    name = _OUTER.split(stripped.partition("(")[0])[-1] if is_name else ""
    files: dict[tuple[str, int], None] = {}
    for place, line in _PLACE.findall(text):
        path = place.rstrip("./-").removeprefix("./")
        if "." in path and _SUFFIX.fullmatch(path, path.rindex(".")):
            files[path, int(line or 0)] = None
    return SearchQuery(
        text, kind, terms=found, telling=telling or found, parts=part_terms((text,)),
        pairs=frozenset(pairwise(lasting)), name=name, definition=_definition_of(name) if name else None,
        files=tuple(files)[:_MOST_FILES],
    )  # fmt: skip


def looks_like(text: str) -> Kind:
    """Classify a question as a name, a program's message, or a sentence."""
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


def _is_named(path: str, name: str) -> bool:
    """Return whether a name is the end of a path, or is absolute and ends with the path, as in tracebacks."""
    return name.endswith(f"/{path}") if name.startswith("/") else f"/{path}".endswith(f"/{name}")


def _definition_of(name: str) -> re.Pattern[str]:
    """Build a pattern for the definition of a name, which follows a word such as `def` or precedes a value."""
    plain = re.escape(name)
    quoted = rf"| ['\"`]{plain}['\"`= ]" if name.startswith("-") else ""  # a command-line option
    return re.compile(
        rf"""(?mx)
        \b(?:class|const|def|define|enum|fn|func|function\*?|interface|let|macro_rules!|mod|module|namespace|record
            |static|struct|trait|type|typedef|union|val|var)[ \t]+(?:\([^)\n]*\)[ \t]*)?{plain}(?![\w-])
        | ^[ \t]*(?:-[ ]+)?(?:[\w$.]+\.)?["']?{plain}["']?[ \t]*(?::(?!:)|=(?![=>]))
        | ^[ \t]*\[+[\w.-]*{plain}\]
        {quoted}"""
    )


def defines(trail: Sequence[str], text: str, asked: SearchQuery) -> bool:
    """Return whether a passage defines the name in a question. If a function was cut into passages, only the first one
    does."""
    if asked.definition is None:
        return False
    return (trail[-1:] == (asked.name,) and asked.name in text) or bool(asked.definition.search(text))


def any_of(words: Iterable[str]) -> str:
    """Build a full-text expression for passages that contain any of the words."""
    return " OR ".join(f'"{word}"' for word in words)


def any_pair_of(pairs: Iterable[tuple[str, str]]) -> str:
    return " OR ".join(f'"{first} {second}"' for first, second in pairs)


# -- scoring --


class Candidate(NamedTuple):
    key: tuple[int, int]
    """The number of the index, and the id of the passage in that index."""
    file: int
    """The file in that index."""
    words: float
    """The BM25 score."""
    trail: float
    """The overlap of the passage's trail with the question's words, from 0 to 1."""
    name: float
    """The overlap of the passage's own name with the question's words, from 0 to 1."""
    quotes: float
    """The share of the question that the passage contains word for word, from 0 to 1."""
    is_definition: bool
    """Whether the passage defines the requested name."""
    is_of_file: bool
    """Whether the question names the passage's file."""
    is_at_line: bool
    """Whether the question names a line in the passage."""
    lines: int
    nearness: float
    """The cosine similarity of the passage's vector and the question's."""

    def certainty(self, kind: Kind) -> float:
        """Return how certain it is from the words alone that the passage is wanted: it has the name, contains the exact
        text, defines the name or includes the line. Half of a printed message is enough, because its other half can be
        values filled in by the program."""
        if self.is_at_line:
            return 1.0
        if kind == "identifier":
            return float(self.is_definition)
        quoted = min(1.0, 2 * self.quotes) if kind == "error" else self.quotes**1.5
        return float(max(self.trail**4, quoted))

    def score(self, best: float, kind: Kind) -> float:
        """Return the score by words. A trail that matches the whole question counts more than several trails that match
        half of it, and a passage of a line or two seldom answers a sentence."""
        least = _QUOTE_FROM[kind]
        quote = max(0.0, (self.quotes - least) / (1 - least))
        called = 0.3 * self.trail + 0.6 * self.trail**4 + (0.5 if kind == "prose" else 0.3) * self.name
        length = 0.1 * min(math.log(max(self.lines, 1)), 3.0) if kind == "prose" else 0.0
        place = self.is_of_file + 3 * self.is_at_line  # a named place outweighs word matches
        return self.words / best + called + quote + self.is_definition + place + length


class Scale(NamedTuple):
    """The range of cosine similarities in an index; the range differs between models."""

    usual: float
    best: float


def weigh_words(asked: SearchQuery, frequencies: Mapping[str, int], passages: int) -> dict[str, float]:
    """Return each word's share of the question's information. A word that occurs everywhere carries almost none."""
    rare = {
        word: math.log(1 + (passages - frequencies[word] + 0.5) / (frequencies[word] + 0.5))
        for word in asked.parts
    }
    total = sum(rare.values())
    return {word: value / total if total else 1 / len(rare) for word, value in rare.items()}


def overlap(names: tuple[str, ...], share: Mapping[str, float]) -> float:
    """Return the overlap between the words of some names and those of a question, which is 1 if they are the same
    words."""
    words = part_terms(names)
    common = [word for word in words if word in share]
    return math.sqrt(len(common) / len(words) * sum(share[word] for word in common)) if common else 0.0


def score_quotes(trail: Sequence[str], text: str, asked: SearchQuery) -> float:
    """Return the share of a question's adjacent words that are also close together in a passage."""
    if not asked.pairs:
        return 0.0
    found = _near_pairs(terms(text), asked) | _near_pairs(terms(" ".join(trail)), asked)
    return len(asked.pairs & found) / len(asked.pairs)


def _near_pairs(words: Iterable[str], asked: SearchQuery) -> set[tuple[str, str]]:
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
    """Return keys and scores, best first, using the weights and scale of each index.

    The more certain the match by words is, the less the vectors and the other passages in the file count.
    """
    found = list(candidates)
    best = max((each.words for each in found), default=0.0) or 1.0
    doubt = 1.0 - max((each.certainty(kind) for each in found), default=0.0)
    scores: list[float] = []
    of_file: dict[tuple[int, int], list[float]] = defaultdict(list)
    for each in found:
        own, scale = weights[each.key[0]], scales[each.key[0]]
        # 0 for an average passage, 1 for the nearest.
        room = scale.best - scale.usual if scale else 0.0
        near = max(0.0, (each.nearness - scale.usual) / room) if scale and room > 0 else 0.0
        leave = doubt if own.words else 1.0
        scores.append(own.words * each.score(best, kind) + own.vectors * leave * near)
        of_file[each.key[0], each.file].append(scores[-1])
    about = {file: sum(sorted(those)[-_COMPANY:]) / _COMPANY for file, those in of_file.items()}
    scored = [
        (each.key, score + weights[each.key[0]].words * doubt * _SAME_FILE * about[each.key[0], each.file])
        for each, score in zip(found, scores, strict=True)
    ]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


# -- showing --


def find_marks(text: str, asked: str) -> list[tuple[int, int]]:
    """Return the positions of the question's words in a text."""
    wanted = set(terms(asked))
    return [found.span() for found in NAME.finditer(text) if wanted.intersection(terms_of(found[0]))]
