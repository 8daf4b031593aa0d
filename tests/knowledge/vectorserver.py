"""An OpenAI-compatible `/embeddings` endpoint on loopback, for tests over real HTTP.

A vector is made of the words of its text, so that texts with words in common are near each other. Faults are taken
from a list, one for each request; then it answers rightly. `hold` keeps every request that has a word back until
`release` is set.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from zlib import crc32

PATIENCE = 120


@dataclass(frozen=True)
class Fault:
    """What a request is answered with instead of vectors."""

    status: int = 200
    body: bytes = b"no"
    headers: dict[str, str] = field(default_factory=dict)
    is_hanging: bool = False
    is_closing: bool = False


def vector(text: str, size: int) -> list[float]:
    row = [0.0] * size
    for word in text.lower().split():
        row[crc32(word.encode()) % size] += 1.0
    return row


class VectorServer:
    """`with VectorServer([Fault(429)]) as server: ... server.base_url`"""

    def __init__(self, faults: list[Fault] | None = None, *, size: int = 64) -> None:
        self.faults = list(faults or [])
        self.size = size
        self.hold = ""
        """A word whose requests wait for `release`."""
        self.held = threading.Event()
        self.release = threading.Event()
        self.batches: list[list[str]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def texts(self) -> list[str]:
        """Every text that was asked for, in order."""
        return [text for batch in self.batches for text in batch]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, headers: dict[str, str], body: dict[str, Any]) -> Fault | None:
        with self._lock:
            self.headers.append(headers)
            self.bodies.append(body)
            self.batches.append(body["input"])
        if self.hold and any(self.hold in text for text in body["input"]):
            self.held.set()
            self.release.wait(PATIENCE)
        with self._lock:
            fault = self.faults.pop(0) if self.faults else None
        if fault and fault.is_hanging:
            self._ended.wait(PATIENCE)
        return fault

    def answer(self, texts: list[str]) -> bytes:
        rows = [{"index": at, "embedding": vector(text, self.size)} for at, text in enumerate(texts)]
        return json.dumps({"data": rows[::-1]}).encode()  # the numbers say the order, not the place


def _handler(server: VectorServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fault = server.take({name.lower(): value for name, value in self.headers.items()}, body)
            if self.path != "/v1/embeddings":
                fault = Fault(404, b"no such endpoint")
            if fault and fault.is_closing:
                return
            with suppress(BrokenPipeError, ConnectionResetError):  # whoever was killed does not wait
                self._send(fault, server.answer(body["input"]) if fault is None else fault.body)

        def _send(self, fault: Fault | None, body: bytes) -> None:
            self.send_response(fault.status if fault else 200)
            for name, value in {"Content-Length": str(len(body)), **(fault.headers if fault else {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tests read `batches`."""

    return Handler
