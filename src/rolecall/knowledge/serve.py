"""The embedding service: an OpenAI-compatible endpoint in front of one model and its cached vectors.

Several agents or machines share the service, so that each text is embedded only once. It answers only `POST
/v1/embeddings` and `GET /v1/models`; `service/http.py` listens for connections and controls access.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from rolecall.errors import RolecallError
from rolecall.knowledge.words import tokens
from rolecall.store.canonical import JsonObject

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from rolecall.knowledge.model import Embedder

PATH = "/v1"
_MOST_BYTES = 32 * 1024 * 1024
_MOST_TEXTS = 2048
_SECONDS = 60
"""The maximum number of seconds for a client to send its request."""


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """The ASGI application. `name` is the model's name for clients."""

    def __init__(self, embedder: Embedder, name: str) -> None:
        self._embedder = embedder
        self._name = name
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # nothing to start or stop
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        try:
            status, reply = 200, await self._reply(Request(scope, receive))
        except _Refused as error:
            status, reply = error.status, _error(str(error), "invalid_request_error")
        except RolecallError as error:  # the underlying model failed, so the client can try again
            status, reply = 502, _error(f"{error.message}. {error.hint}".strip(), "server_error")
        await JSONResponse(reply, status)(scope, receive, send)

    async def _reply(self, request: Request) -> JsonObject:
        asked = request.method, request.url.path.rstrip("/")
        if asked == ("GET", f"{PATH}/models"):
            return {"object": "list", "data": [{"id": self._name, "object": "model", "owned_by": "rolecall"}]}
        if asked != ("POST", f"{PATH}/embeddings"):
            raise _Refused(404, f"only POST {PATH}/embeddings and GET {PATH}/models are served here")
        body = bytearray()
        try:
            async with asyncio.timeout(_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise _Refused(413, f"a request is at most {_MOST_BYTES:,} bytes")
        except ClientDisconnect as error:
            raise _Refused(400, "the connection ended before the request") from error
        except TimeoutError as error:
            raise _Refused(408, f"the request did not come within {_SECONDS} s") from error
        texts, is_base64 = self._parse(bytes(body))
        async with self._one_at_a_time:
            vectors = await asyncio.to_thread(self._embedder.embed, texts)
        rows: list[Any]
        if is_base64:
            rows = [b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
        else:  # a 32-bit number has only seven digits
            rows = [[round(number, 7) for number in row] for row in vectors.tolist()]
        used = sum(map(tokens, texts))
        return {
            "object": "list",
            "model": self._name,
            "data": [
                {"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(rows)
            ],
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }

    def _parse(self, body: bytes) -> tuple[list[str], bool]:
        """Return the texts of a request, and whether to encode their vectors in base64."""
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

        texts = asked.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if isinstance(texts, list) and texts and isinstance(texts[0], (int, list)):
            raise _Refused(
                400, "`input` holds numbers of tokens, which only one model understands: send texts"
            )
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(each, str) and each for each in texts)
        ):
            raise _Refused(400, "`input` must be a text or a list of texts, none of them empty")
        if len(texts) > _MOST_TEXTS:
            raise _Refused(
                400, f"`input` has {len(texts):,} texts; at most {_MOST_TEXTS:,} are taken at once"
            )
        try:
            "".join(texts).encode()
        except UnicodeEncodeError as error:
            raise _Refused(400, "`input` holds half of a surrogate pair, which is not a character") from error
        return texts, form == "base64"


def _error(message: str, kind: str) -> JsonObject:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
