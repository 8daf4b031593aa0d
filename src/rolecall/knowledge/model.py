"""What turns texts into vectors: one protocol, and the choice of its implementation.

Vectors are compared only with vectors of a model with the same name, so a name says everything that makes a
difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rolecall.errors import UsageError
from rolecall.knowledge.settings import EMBEDDED, TRANSFORMERS, Embedding

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


def choose(embedding: Embedding, settings: Mapping[str, Any], environment: Mapping[str, str]) -> Embedder:
    """The model that the settings of a repository name, with the user's own `settings` and `environment`."""
    if embedding.provider == EMBEDDED:
        from rolecall.knowledge.static import StaticModel

        return StaticModel()
    if embedding.provider == TRANSFORMERS:
        from rolecall.knowledge.transformer import Transformer

        return Transformer(embedding.model)
    from rolecall.knowledge.remote import Remote
    from rolecall.settings.settings import model_endpoint

    place = model_endpoint(settings, environment, f"{embedding.provider}/{embedding.model}")
    if place["protocol"] != "openai":
        raise UsageError(
            f"the provider {embedding.provider!r} speaks {place['protocol']}, which has no embeddings",
            hint="Name one that speaks the protocol `openai`, or use the embedded model.",
        )
    return Remote(place["base_url"], place["model"], key=place["api_key"], dimensions=embedding.dimensions)
