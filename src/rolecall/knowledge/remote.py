"""Vectors from an OpenAI-compatible `/embeddings` endpoint.

A temporary failure (429, 5xx, a timeout, a broken connection) is retried. Any other failure is an error with a hint.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rolecall.errors import Hint, StorageError
from rolecall.knowledge.lazy import http_client, model_request, np
from rolecall.knowledge.model import unit
from rolecall.settings.models import Endpoint

if TYPE_CHECKING:
    from rolecall.knowledge.model import Matrix

_MOST_TEXTS = 96
_MOST_CHARACTERS = 200_000
"""The maximum number of characters in one request; the usual endpoints accept 300,000 tokens."""
_MOST_BYTES = 64 * 1024 * 1024
_PAUSES = (0.5, 1.0, 2.0)
"""The number of seconds to wait before each retry."""
_LONGEST_PAUSE = 30.0
"""The longest pause, in seconds, that an endpoint can request."""
_SECONDS = 10.0
_SECONDS_PER_TEXT = 0.5
"""Additional seconds for each further text in a request."""
_HINTS = {
    401: "Check the key: `apiKeyEnv` of the provider names the variable it is in.",
    403: "Check the key: `apiKeyEnv` of the provider names the variable it is in.",
    404: "Check the base URL of the provider and the name of the model.",
    413: "Make passages smaller: `chunk: {tokens: …}` in knowledge.yaml.",
    **dict.fromkeys(
        range(300, 400),
        "Redirects are not followed. Set the base URL to the target of the redirect, if you trust that server "
        "with the key.",
    ),
}


class RemoteModel:
    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        dimensions: int | None = None,
        seconds: float = _SECONDS,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = Endpoint(base_url, model, key, seconds)
        url = model_request.check_endpoint(self._endpoint, "the embedding model")
        self._dimensions = dimensions
        self._wait = wait
        self._place = f"{url.scheme}://{url.netloc}{url.path}"
        self.name = f"{model} of {self._place}" + (f" with {dimensions} dimensions" if dimensions else "")

    def embed(self, texts: Sequence[str]) -> Matrix:
        batches: list[list[str]] = []
        room = 0
        for text in texts:
            room -= len(text)
            if not batches or room < 0 or len(batches[-1]) >= _MOST_TEXTS:
                batches.append([])
                room = _MOST_CHARACTERS - len(text)
            batches[-1].append(text)
        found: list[Matrix] = []
        for batch in batches:
            rows = self._read_vectors(self._ask(batch), len(batch))
            if found and rows.shape[1] != found[0].shape[1]:
                raise self._wrong(f"vectors of {found[0].shape[1]} numbers, then of {rows.shape[1]}")
            found.append(rows)
        return np.concatenate(found) if found else np.empty((0, self._dimensions or 0), np.float32)

    def _ask(self, texts: Sequence[str]) -> bytes:
        asked: dict[str, object] = {"model": self._endpoint.model, "input": list(texts)}
        if self._dimensions:
            asked["dimensions"] = self._dimensions
        body = json.dumps(asked).encode()
        seconds = self._endpoint.timeout + _SECONDS_PER_TEXT * (len(texts) - 1)
        endpoint, why, requested = self._endpoint._replace(timeout=seconds), "", 0.0
        for pause in (0.0, *_PAUSES):
            if why:
                self._wait(max(pause, requested))
            requested = 0.0
            request = model_request.ModelRequest(endpoint, "/embeddings", "the embedding model")
            try:
                status, data, headers = request.send(body, most=_MOST_BYTES)
            except TimeoutError:
                why = f"did not answer within {seconds:g} s"
                continue
            except (OSError, http_client.HTTPException) as error:
                why = f"cannot be reached ({self._excerpt(error)})"
                continue
            if status == 429 or status >= 500:
                why = f"answered HTTP {status}: {self._excerpt(data)}"
                after = headers.get("Retry-After", "")  # dates are not supported
                if re.fullmatch(r"\d{1,6}(\.\d+)?", after):
                    requested = min(float(after), _LONGEST_PAUSE)
                continue
            if status != 200:
                raise StorageError(
                    f"the embedding model at {self._place} refused with HTTP {status}: {self._excerpt(data)}",
                    hint=f"Nothing was changed. {_HINTS.get(status, '')}".strip(),
                )
            if len(data) > _MOST_BYTES:
                raise self._wrong(f"more than {_MOST_BYTES:,} bytes")
            return data
        raise StorageError(
            f"the embedding model at {self._place} {why}, {len(_PAUSES) + 1} times in a row",
            hint=Hint(
                "Until then, ask without the model",
                "query_words",
                before="Nothing was changed. Check the provider's base URL and make sure that the endpoint "
                "is up, then try again. The vectors computed so far have been kept.",
            ),
        )

    def _excerpt(self, said: bytes | Exception) -> str:
        return model_request.excerpt(said, self._endpoint.api_key)

    def _read_vectors(self, data: bytes, count: int) -> Matrix:
        """Return a vector of length 1 for each text, as the rows of a matrix. Raise an error for an invalid answer now,
        because a wrong vector cannot be recognised later."""
        try:
            entries = json.loads(data)["data"]
            by_number = {entry.get("index", at): entry["embedding"] for at, entry in enumerate(entries)}
            if sorted(by_number) != list(range(len(entries))):
                raise ValueError("the vectors are not numbered like the texts")
            matrix = np.array([by_number[number] for number in range(len(entries))], np.float32)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise self._wrong(f"something that is not a list of vectors ({self._excerpt(data)})") from error
        if len(entries) != count:
            raise self._wrong(f"{len(entries)} vectors for {count} texts")
        if matrix.ndim != 2 or not matrix.shape[1]:
            raise self._wrong("something that is not a list of vectors")
        if self._dimensions and matrix.shape[1] != self._dimensions:
            raise self._wrong(f"vectors of {matrix.shape[1]} numbers, but {self._dimensions} were requested")
        if not np.isfinite(np.linalg.norm(matrix, axis=1)).all():
            raise self._wrong("vectors that contain NaN or infinity")
        return unit(matrix)

    def _wrong(self, what: str) -> StorageError:
        return StorageError(
            f"the embedding model at {self._place} sent {what}",
            hint="Nothing was changed. Check that the model is an embedding model and that the base URL belongs to "
            "its provider.",
        )
