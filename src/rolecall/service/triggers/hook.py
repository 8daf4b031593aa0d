"""Receive signals as requests: POST /hooks/<workflow>/<trigger>, from callers who know the trigger's secret.

The server is small, and listens on loopback unless the project sets another host. h11 parses HTTP. The size of the head
and of the body, the time that a request takes to arrive, and the number of connections are limited. A connection serves
one request. The secret is checked before the request's content is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from rolecall.service.triggers.trigger import Hook
from rolecall.store.canonical import JsonObject

with suppress(ImportError):  # comes with an extra; `Server.open` reports that it is missing
    import h11

MAX_BODY = 1_000_000
_MAX_HEAD = 32 * 1024
_PATIENCE = 10.0
"""Seconds within which a request must arrive, and within which an answer must be sent."""
_LINGER = 1.0
"""Seconds spent reading the rest of a refused request, whose caller would otherwise lose the answer."""
_AT_ONCE = 64
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-rolecall-secret"})


class HookAnswer(NamedTuple):
    status: int
    body: JsonObject


@dataclass(frozen=True)
class Guarded:
    """The hook at a path, with its secret."""

    hook: Hook
    secret: str
    deliver: Callable[[JsonObject, str], Awaitable[HookAnswer]]
    """Called with the values for the prompt, and with the digest of the body if the request is signed."""


Find = Callable[[str], Guarded | None]


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.answer = HookAnswer(status, {"error": reason})


class Server:
    def __init__(self, find: Find) -> None:
        self._find = find
        self._server: asyncio.Server | None = None
        self._open = 0

    async def open(self, host: str, port: int) -> int:
        """Start to listen, and return the port. Raise `OSError` if the port is not available."""
        if find_spec("h11") is None:
            raise OSError("pip install 'rolecall[service]'")
        self._server = await asyncio.start_server(self._meet, host, port, limit=_MAX_HEAD)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        try:
            try:
                if self._open > _AT_ONCE:
                    raise _Refused(503, "too many requests at once")
                async with asyncio.timeout(_PATIENCE):
                    guarded, data, digest = await self._receive(connection, reader, writer)
                answer = await guarded.deliver(data, digest)
            except _Refused as refused:
                answer = refused.answer
            except h11.RemoteProtocolError as error:
                answer = HookAnswer(error.error_status_hint, {"error": "the request cannot be understood"})
            except (TimeoutError, OSError, EOFError):
                answer = HookAnswer(408, {"error": "the request did not arrive in time"})

            body = json.dumps(answer.body).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            head = h11.Response(status_code=answer.status, headers=[*headers, ("Connection", "close")])
            with suppress(OSError, TimeoutError, h11.LocalProtocolError):
                async with asyncio.timeout(_PATIENCE):
                    for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                        writer.write(connection.send(event) or b"")
                    await writer.drain()
                    writer.write_eof()
                async with asyncio.timeout(_LINGER):
                    left = MAX_BODY
                    while left > 0 and (chunk := await reader.read(65_536)):
                        left -= len(chunk)
        finally:
            self._open -= 1
            writer.close()

    async def _receive(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Guarded, JsonObject, str]:
        """Read a request and return its hook, the values for the prompt, and the digest of a signed body."""

        async def read_event() -> Any:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(65_536))
            return event

        request = await read_event()
        if not isinstance(request, h11.Request):
            raise EOFError
        try:
            url = urlsplit(request.target.decode("ascii"))
        except ValueError:
            raise _Refused(400, "the address cannot be read") from None
        guarded = self._find(url.path)
        if guarded is None:
            raise _Refused(404, "no hook has this address")
        if request.method != b"POST":
            raise _Refused(405, "a hook is called with POST")
        if not guarded.secret:  # an empty secret would let everyone in
            raise _Refused(401, "the hook has no secret yet")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        signature = guarded.hook.signature.lower()
        if not signature:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            given = given.strip() if scheme.lower() == "bearer" else headers.get("x-rolecall-secret", "")
            if not _is_same(given, guarded.secret):
                raise _Refused(401, "the secret is missing or wrong")

        if connection.they_are_waiting_for_100_continue:  # some clients would wait for this forever
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = bytearray()
        while isinstance(event := await read_event(), h11.Data):
            body += event.data
            if len(body) > MAX_BODY:
                raise _Refused(413, f"the body has more than {MAX_BODY:,} bytes")
        if not isinstance(event, h11.EndOfMessage):
            raise EOFError
        digest = ""
        if signature:
            wanted = hmac.new(guarded.secret.encode(), body, hashlib.sha256).hexdigest()
            given = headers.get(signature, "").strip().removeprefix("sha256=").lower()
            if not _is_same(given, wanted):
                raise _Refused(401, "the signature is missing or wrong")
            digest = hashlib.sha256(body).hexdigest()

        content: Any = body.decode("utf-8", "replace")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json" or kind.endswith("+json"):
            try:
                content = json.loads(content)
            except (ValueError, RecursionError):
                raise _Refused(400, "the body is not the JSON it says it is") from None
        hidden = {*_SECRET_HEADERS, signature}
        shown = {name: value for name, value in headers.items() if name not in hidden}
        return guarded, {"body": content, "headers": shown, "query": dict(parse_qsl(url.query))}, digest


def _is_same(given: str, wanted: str) -> bool:
    """Compare two secrets in constant time. Hashing the secrets also hides their lengths."""
    one, other = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, wanted))
    return hmac.compare_digest(one, other)
