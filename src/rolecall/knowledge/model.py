"""The interface of embedding models. Vectors are compared only within one model, identified by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


class Embedder(Protocol):
    @property
    def name(self) -> str:
        """The model's name, available without loading anything."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return a row of length 1 for each text."""


def titled(title: str, text: str) -> str:
    """Return the text to embed for a passage: its title on a separate line, then the passage."""
    return f"{' '.join(title.split())}\n\n{text}" if title else text
