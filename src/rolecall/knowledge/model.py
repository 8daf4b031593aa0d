"""What turns texts into vectors. Vectors are compared only within one model, whose name says all that matters."""

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
        """Known without loading anything."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of length 1 for each text."""


def titled(title: str, text: str) -> str:
    """A passage as it is embedded: what it is about in a line of its own, then itself."""
    return f"{' '.join(title.split())}\n\n{text}" if title else text
