"""The interface of embedding models. Vectors are compared only within one model, identified by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rolecall.knowledge.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


class Embedder(Protocol):
    @property
    def name(self) -> str:
        """The model's name, available without loading anything."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return a vector of length 1 for each text, as the rows of a matrix."""


def add_title(title: str, text: str) -> str:
    """Return the text to embed for a passage: its title on a separate line, then the passage."""
    return f"{' '.join(title.split())}\n\n{text}" if title else text


def unit(rows: Matrix) -> Matrix:
    """Scale each row to length 1. A row of zeros stays unchanged."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Matrix = (rows / np.where(lengths == 0, 1, lengths)).astype(np.float32, copy=False)
    return found
