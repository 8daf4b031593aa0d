"""Answers a question from one or more indexes by gathering and ranking candidate passages.

An open index stays in memory, so a process that answers many questions loads it only once. Each answer says whether its
file has changed since it was indexed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rolecall.errors import Hint, UsageError
from rolecall.knowledge import chunk, files, index, search
from rolecall.knowledge.globs import Globs
from rolecall.knowledge.index import IndexReader, Stored
from rolecall.knowledge.lazy import np
from rolecall.knowledge.model import Embedder
from rolecall.knowledge.search import Candidate, Scale, SearchQuery, Weights
from rolecall.knowledge.settings import EMBEDDED, KnowledgeSettings
from rolecall.knowledge.words import terms

if TYPE_CHECKING:
    from rolecall.knowledge.model import Matrix

T = TypeVar("T")

_BY_WORDS = 100
_BY_VECTORS = 50
_QUOTES = 20
_DEFINITIONS = 50
_OF_FILES = 20
"""The number of passages that each method gathers. If more answers are wanted, the searches by words and by vectors
gather more."""
_READINGS, _READINGS_PER_PASSAGE = 15_000, 0.4
"""The number of word occurrences to look at: a fixed number, or a number for each passage in the index, whichever is
larger. Beyond that number, the commonest words of a question are left out, because they distinguish passages the least
and take the longest."""


@dataclass(frozen=True)
class FoundPassage:
    repository: str
    path: str
    start: int
    end: int
    trail: tuple[str, ...]
    text: str
    score: float
    is_stale: bool
    """Whether the file has changed since it was indexed."""

    @property
    def is_prose(self) -> bool:
        return chunk.is_prose(self.path)

    @property
    def heading(self) -> str:
        """The trail as one text, such as `Guide › Setup` or `Store.put`."""
        return (" › " if self.is_prose else ".").join(self.trail)


@dataclass(frozen=True)
class OpenIndex:
    """The index of one repository, open for questions."""

    root: str
    settings: KnowledgeSettings
    reader: IndexReader
    embedder: Embedder

    def check_model(self) -> None:
        """Raise an error if the index was built with a different model, because vectors of different models cannot be
        compared."""
        if self.reader.state.model != self.embedder.name:
            raise UsageError(
                f"the index of {self.root} was made with {self.reader.state.model}, and the settings name "
                f"{self.embedder.name}",
                hint=Hint("Embed everything again", "sync_knowledge"),
            )


def weights_of(settings: KnowledgeSettings, kind: str, *, by: str = "") -> Weights:
    """Return the weights of words and vectors. `by` can be `words` or `vectors`, to use only one of the two."""
    if by:
        return Weights(float(by == "words"), float(by == "vectors"))
    default = (search.EMBEDDED if settings.embedding.provider == EMBEDDED else search.STRONGER)[kind]
    given = settings.weights.get(kind, {})
    return Weights(given.get("words", default.words), given.get("vectors", default.vectors))


def ask(
    text: str, among: Sequence[OpenIndex], *, limit: int, path: str | None = None, by: str = ""
) -> list[FoundPassage]:
    """Return the best passages from all the repositories together."""
    asked = search.question(text)
    if not asked.terms:
        raise UsageError(
            "the question holds no word", hint="Ask with a few words, or with a name from the code."
        )
    fits = Globs([path]) if path else None
    weights = [weights_of(knowledge.settings, asked.kind, by=by) for knowledge in among]
    vectors: dict[str, Matrix] = {}  # each model embeds the question once
    found: list[Candidate] = []
    scales: list[Scale | None] = []
    common: dict[str, Scale] = {}
    for number, (knowledge, own) in enumerate(zip(among, weights, strict=True)):
        name = knowledge.embedder.name
        if own.vectors:
            knowledge.check_model()
            if name not in vectors:
                vectors[name] = knowledge.embedder.embed([text])
        vector = vectors[name] if own.vectors else None
        candidates, scale = _gather(number, knowledge.reader, asked, vector, fits, own, limit)
        found += candidates
        scales.append(scale)
        if scale is not None:
            known = common.get(name, scale)
            common[name] = Scale(min(known.usual, scale.usual), max(known.best, scale.best))
    # All indexes with the same model share one scale; otherwise, the best passage of each index would get the same
    # score.
    shared = [
        scale and common[knowledge.embedder.name] for knowledge, scale in zip(among, scales, strict=True)
    ]
    best = [
        (key, score) for key, score in search.rank(found, weights, shared, asked.kind)[:limit] if score > 0
    ]

    texts: dict[tuple[int, int], Stored] = {}
    stale: dict[tuple[int, str], bool] = {}
    for number, knowledge in enumerate(among):
        reader, largest = knowledge.reader, knowledge.settings.largest_file
        for each, passage in reader.load([each for (owner, each), _ in best if owner == number]).items():
            texts[number, each] = passage
            if (number, passage.path) not in stale:
                digest = reader.digest_of(passage.path)
                is_stale = files.has_changed(knowledge.root, passage.path, digest, largest=largest)
                stale[number, passage.path] = is_stale
    answers = []
    for key, score in best:
        _, where, start, end, trail, text = texts[key]
        is_stale = stale[key[0], where]
        answers.append(FoundPassage(among[key[0]].root, where, start, end, trail, text, score, is_stale))
    return answers


# -- gathering --


def _gather(
    number: int,
    reader: IndexReader,
    asked: SearchQuery,
    vector: Matrix | None,
    fits: Globs | None,
    weights: Weights,
    limit: int,
) -> tuple[list[Candidate], Scale | None]:
    """Return the passages of one index that could answer the question, and the scale of the index's vectors."""
    chosen = None if fits is None else list(reader.files_where(fits.has))
    if chosen == [] or not reader.state.passages:
        return [], None
    frequencies = reader.frequencies({*asked.terms, *asked.parts})
    # The files that the question names, with the lines that it names.
    named = reader.files_where(asked.is_file) if asked.files else {}
    lines = {file: asked.lines_of(path) for file, path in named.items() if chosen is None or file in chosen}
    by_words: dict[int, float] = {}
    read: dict[int, Stored] = {}
    at_lines: set[int] = set()
    if weights.words:
        by_words, read = _find_by_words(reader, asked, frequencies, chosen, lines, limit)
        at_lines = reader.at_lines(lines)
    near: dict[int, float] = {}
    scale: Scale | None = None
    if vector is not None:
        near, scale = _find_near(reader, vector, chosen, also={*by_words, *read, *at_lines}, limit=limit)
    ids = sorted({*by_words, *read, *at_lines, *near})
    outlines = reader.outlines(ids) if weights.words else dict.fromkeys(ids, ((), 1))
    share = search.weigh_words(asked, frequencies, reader.state.passages)
    return [
        Candidate(
            key=(number, each),
            file=each >> index.FILE_BITS,
            words=by_words.get(each, 0.0),
            trail=search.overlap(trail, share),
            name=search.overlap(trail[-1:], share),
            quotes=search.score_quotes(trail, read[each].text, asked) if each in read else 0.0,
            is_definition=each in read and search.defines(trail, read[each].text, asked),
            is_of_file=each >> index.FILE_BITS in lines,
            is_at_line=each in at_lines,
            lines=length,
            nearness=near.get(each, 0.0),
        )
        for each, (trail, length) in outlines.items()
    ], scale


def _find_by_words(
    reader: IndexReader,
    asked: SearchQuery,
    frequencies: Mapping[str, int],
    chosen: Sequence[int] | None,
    files: Collection[int],
    limit: int,
) -> tuple[dict[int, float], dict[int, Stored]]:
    """Find passages by words, and read those that could quote the question or define the name."""
    most = max(_READINGS, int(_READINGS_PER_PASSAGE * reader.state.passages))
    costs = {word: frequencies[word] for word in asked.terms if frequencies[word]}
    telling = {word: costs[word] for word in asked.telling if word in costs}
    words = _rarest(telling, most, least=2)[: search.MOST_TERMS]
    expression = search.any_of(words)
    found = reader.by_words(expression, limit=max(_BY_WORDS, limit), files=chosen) if words else {}
    if files and words:
        found |= reader.by_words(expression, limit=_OF_FILES, files=files)
    both = {
        pair: costs[pair[0]] + costs[pair[1]] for pair in sorted(asked.pairs) if costs.keys() >= set(pair)
    }
    pairs = _rarest(both, most, least=1)[: search.MOST_PAIRS]
    sides = reader.by_words(search.any_pair_of(pairs), limit=_QUOTES, files=chosen) if pairs else {}
    whole = terms(asked.name)[:1] if "-" not in asked.name else []  # names with dashes are several words
    named = reader.by_words(search.any_of(whole), limit=_DEFINITIONS, files=chosen) if whole else {}
    return found, reader.load({*sides, *named})


def _rarest(costs: Mapping[T, int], most: int, *, least: int) -> list[T]:
    """Return the cheapest items whose total cost is at most `most`, but at least `least` items."""
    kept: list[T] = []
    spent = 0
    for each in sorted(costs, key=lambda each: costs[each]):
        spent += costs[each]
        if len(kept) >= least and spent > most:
            break
        kept.append(each)
    return kept


def _find_near(
    reader: IndexReader, vector: Matrix, chosen: Sequence[int] | None, *, also: Iterable[int], limit: int
) -> tuple[dict[int, float], Scale]:
    """Return the similarity to a vector of the nearest passages and of those in `also`, and the scale of the index."""
    ids, matrix = reader.vectors()
    if matrix.shape[1] != vector.shape[1]:
        raise UsageError(
            f"the model gives vectors of {vector.shape[1]} numbers, and those of {reader.path} have {matrix.shape[1]}",
            hint=Hint("Embed everything again", "rebuild_index"),
        )
    scores = matrix @ vector[0]
    if chosen is not None:
        rows = np.flatnonzero(np.isin(ids >> index.FILE_BITS, chosen))
        ids, scores = ids[rows], scores[rows]
    count = min(max(_BY_VECTORS, limit), len(scores))
    top = np.argpartition(-scores, count - 1)[:count]
    rows = np.concatenate([top, np.searchsorted(ids, np.fromiter(also, np.int64))])
    scale = Scale(float(scores.mean()), float(scores.max()))
    return {int(ids[row]): float(scores[row]) for row in rows}, scale
