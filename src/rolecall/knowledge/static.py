"""The embedded model: a vector for each word, computed from weights that come with the package `wordllama`.

Only the package's files are used. Its code takes longer to import than a query takes, looks for the tokenizer on the
network, and averages over all characters of a text, although in source code the names carry the meaning. Here, a text
consists of its words: each distinct word counts once, with more weight if it is frequent, and the title counts
separately.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from rolecall.errors import Damaged, UsageError
from rolecall.knowledge.lazy import np, tokenizers
from rolecall.knowledge.model import unit
from rolecall.knowledge.words import parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rolecall.knowledge.model import Matrix

DIMENSIONS = 256
_TITLE = 0.3
"""The weight of the title. A higher weight finds names better but contents worse."""
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_MOST_WORDS = 50_000
"""The maximum number of word vectors kept in memory, which take at most 50 MB."""


class StaticModel:
    name = "wordllama-l2-supercat-256/1"

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._known: Matrix | None = None
        self._weights: NDArray[np.float16] | None = None
        self._tokenizer: tokenizers.Tokenizer | None = None

    def embed(self, texts: Sequence[str]) -> Matrix:
        titles: list[str] = []
        bodies: list[str] = []
        for text in texts:
            title, gap, body = text.partition("\n\n")
            has_title = bool(gap) and "\n" not in title
            titles.append(title if has_title else "")
            bodies.append(body if has_title else text)
        return unit(self._bags(bodies) + _TITLE * self._bags(titles))

    def _bags(self, texts: Sequence[str]) -> Matrix:
        """Return a row of length 1 for each text, or a row of zeros for a text without words."""
        bags = [Counter(parts(text)) for text in texts]
        self._learn({word for bag in bags for word in bag})
        assert self._known is not None  # noqa: S101 -- set by _learn
        sizes = np.array([len(bag) for bag in bags], np.int64)
        rows = np.fromiter((self._rows[word] for bag in bags for word in bag), np.int64, int(sizes.sum()))
        counts = np.fromiter(chain.from_iterable(bag.values() for bag in bags), np.float32, len(rows))
        weighted = self._known[rows] * (1 + np.log(counts))[:, None]
        found = np.zeros((len(texts), DIMENSIONS), np.float32)
        if len(rows):
            filled = np.flatnonzero(sizes)
            found[filled] = np.add.reduceat(weighted, (np.cumsum(sizes) - sizes)[filled])
        return unit(found)

    def _learn(self, words: set[str]) -> None:
        if len(self._rows) + len(words) > _MOST_WORDS:
            self._rows, self._known = {}, None
        new = sorted(words - self._rows.keys())
        if self._known is None:
            self._known = np.empty((0, DIMENSIONS), np.float32)
        if not new:
            return
        if self._tokenizer is None or self._weights is None:
            self._tokenizer, self._weights = _load()
        found = np.zeros((len(new), DIMENSIONS), np.float32)
        for row, encoded in enumerate(self._tokenizer.encode_batch_fast(new, add_special_tokens=False)):
            found[row] = self._weights[encoded.ids].sum(axis=0, dtype=np.float32)
        self._rows.update(zip(new, range(len(self._known), len(self._known) + len(new)), strict=True))
        self._known = np.concatenate([self._known, found])


def _load() -> tuple[tokenizers.Tokenizer, NDArray[np.float16]]:
    found = find_spec("wordllama")  # the package is only located, never imported
    folder = os.path.dirname(found.origin) if found and found.origin else ""
    weights, tokenizer = (os.path.join(folder, file) for file in (_WEIGHTS, _TOKENIZER))
    for path in (weights, tokenizer):
        if not folder or not os.path.isfile(path):
            raise UsageError(
                f"the package wordllama has no {path}" if folder else "the embedded model is not installed",
                hint="`pip install 'wordllama>=0.2.2,<0.4'`: later versions come without it. Or name another model "
                "as `embedding` in knowledge.yaml.",
            )
    # Map the only table in the safetensors file into memory, so that a row is read only when it is used.
    with open(weights, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(min(size, 1 << 20)))["embedding.weight"]
    if table["dtype"] != "F16" or table["shape"][1] != DIMENSIONS:
        raise Damaged(f"{weights} has unexpected weights", hint="Install wordllama 0.3.9 again.")
    rows = np.memmap(weights, np.float16, "r", 8 + size + table["data_offsets"][0], tuple(table["shape"]))
    return tokenizers.Tokenizer.from_file(tokenizer), rows
