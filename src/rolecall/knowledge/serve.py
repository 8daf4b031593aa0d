"""The embedding service: an OpenAI-compatible endpoint before one model and the vectors that were computed before.

Several agents or machines share it, so that each text is computed once. It answers `POST /v1/embeddings` and
`GET /v1/models` and nothing else; `mcp/door.py` listens and `mcp/guard.py` says who is let in.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import RolecallError
from rolecall.knowledge.words import tokens

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from rolecall.knowledge.model import Embedder, Matrix

PATH = "/v1"
_MOST_BYTES = 32 * 1024 * 1024
_MOST_TEXTS = 2048
_SECONDS = 60
"""For a client to send its request."""


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Asked(NamedTuple):
    texts: list[str]
    is_base64: bool


class Service:
    """The application. `name` is what clients call the model."""

    def __init__(self, embedder: Embedder, name: str) -> None:
        self._embedder = embedder
        self._name = name
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        try:
            status, reply = 200, await self._reply(scope, receive)
        except _Refused as error:
            status, reply = error.status, _error(str(error), "invalid_request_error")
        except RolecallError as error:  # the model behind us: whoever asked may try again
            status, reply = 502, _error(f"{error.message}. {error.hint}".strip(), "server_error")
        body = json.dumps(reply).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _reply(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        asked = scope["method"], scope["path"].rstrip("/")
        if asked == ("GET", f"{PATH}/models"):
            return {"object": "list", "data": [{"id": self._name, "object": "model", "owned_by": "rolecall"}]}
        if asked == ("POST", f"{PATH}/embeddings"):
            return await self._embeddings(await _body(receive))
        raise _Refused(404, f"there is POST {PATH}/embeddings and GET {PATH}/models here, and nothing else")

    async def _embeddings(self, body: bytes) -> dict[str, Any]:
        asked = self._read(body)
        async with self._one_at_a_time:
            vectors = await asyncio.to_thread(self._embedder.embed, asked.texts)
        used = sum(map(tokens, asked.texts))
        return {
            "object": "list",
            "model": self._name,
            "data": [
                {"object": "embedding", "index": number, "embedding": row}
                for number, row in enumerate(_written(vectors, is_base64=asked.is_base64))
            ],
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }

    def _read(self, body: bytes) -> _Asked:
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "the request is not JSON") from error
        if not isinstance(asked, dict):
            raise _Refused(400, "the request is not an object")
        if asked.get("model") != self._name:
            raise _Refused(404, f"the model here is {self._name!r}, not {asked.get('model')!r}")
        if asked.get("dimensions") is not None:
            raise _Refused(400, "the size of the vectors is the model's own: leave out `dimensions`")
        form = asked.get("encoding_format") or "float"
        if form not in ("float", "base64"):
            raise _Refused(400, f"`encoding_format` is float or base64, not {form!r}")
        return _Asked(_texts(asked.get("input")), form == "base64")


def _texts(given: Any) -> list[str]:
    if _holds_numbers(given):
        raise _Refused(
            400, "`input` holds numbers of tokens, which mean something to one model alone: send texts"
        )
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise _Refused(400, "`input` must be a text or a list of texts, none of them empty")
    if len(texts) > _MOST_TEXTS:
        raise _Refused(400, f"`input` has {len(texts):,} texts; at most {_MOST_TEXTS:,} are taken at once")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise _Refused(400, "`input` holds half of a surrogate pair, which is no character") from error
    return texts


def _holds_numbers(given: Any) -> bool:
    first = given[0] if isinstance(given, list) and given else None
    return isinstance(first[0] if isinstance(first, list) and first else first, int)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refused(400, "the connection ended before the request")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > _MOST_BYTES:
                    raise _Refused(413, f"a request is at most {_MOST_BYTES:,} bytes")
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError as error:
        raise _Refused(408, f"the request did not come within {_SECONDS} s") from error


def _written(vectors: Matrix, *, is_base64: bool) -> list[Any]:
    if is_base64:
        return [b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    # Seven digits are all that a number of 32 bits has.
    return [[round(number, 7) for number in row] for row in vectors.tolist()]


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def _live(receive: Receive, send: Send) -> None:
    """What a server says about its own life; there is nothing to be done about it."""
    while (kind := (await receive())["type"]) != "lifespan.shutdown":
        await send({"type": f"{kind}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
