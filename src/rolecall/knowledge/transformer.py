"""Vectors from a local sentence-transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rolecall.errors import StorageError, UsageError
from rolecall.knowledge.lazy import np

if TYPE_CHECKING:
    from rolecall.knowledge.model import Matrix


class Transformer:
    def __init__(self, model: str) -> None:
        self._model = model
        self._loaded: Any = None

    @property
    def name(self) -> str:
        return f"sentence-transformers/{self._model}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        if self._loaded is None:
            try:
                library = import_module("sentence_transformers")
            except ImportError as error:
                raise UsageError(
                    f"the model {self._model!r} needs the package sentence-transformers, which is not installed"
                    f" ({error})",
                    hint="`pip install 'rolecall[transformers]'`, or take the embedded model.",
                ) from error
            try:
                self._loaded = library.SentenceTransformer(self._model)
            except Exception as error:  # missing files, the network, incompatible weights
                raise StorageError(
                    f"sentence-transformers cannot load {self._model!r}: {error}",
                    hint="The model is a folder, or a name that can be downloaded. Nothing was changed.",
                ) from error
        try:
            rows = self._loaded.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        except Exception as error:  # out of memory, a device error, a text that the model cannot read
            raise StorageError(
                f"sentence-transformers cannot embed with {self._model!r}: {error}",
                hint="Nothing was changed.",
            ) from error
        return np.asarray(rows, np.float32).reshape(len(texts), -1)
