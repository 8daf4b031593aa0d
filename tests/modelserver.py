"""A model endpoint on loopback that answers from a script, for tests over real HTTP.

Each request takes the next item of the script. An item that is text (or `Says`) is wrapped in the form
of the endpoint asked for; a new kind of endpoint is one more function in `_FORMS`. Every request is
recorded in `requests`; a request beyond the script is answered with HTTP 599.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Says:
    """The model's text, in a well-formed response."""

    text: str
    prompt_tokens: int = 10
    completion_tokens: int = 5


@dataclass(frozen=True)
class Sends:
    """Exactly these bytes."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Closes:
    """The connection ends without a response, or in the middle of one."""

    after: bytes = b""


@dataclass(frozen=True)
class Hangs:
    """Nothing (more) comes until the server ends."""

    after: bytes = b""


Item = str | Says | Sends | Closes | Hangs


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Any


def _chat_completion(says: Says, request: Any) -> Any:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": request.get("model"),
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": says.text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": says.prompt_tokens, "completion_tokens": says.completion_tokens},
    }


_FORMS: dict[str, Callable[[Says, Any], Any]] = {"/chat/completions": _chat_completion}


class ModelServer:
    """`with ModelServer(["first answer", Sends(b"no", 500)]) as server: ... server.base_url`"""

    def __init__(self, script: Sequence[Item]) -> None:
        self._script = list(script)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.requests: list[Request] = []
        self.arrived = threading.Event()
        """Set once a request has come in whole."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, request: Request) -> Item:
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
        self.arrived.set()
        return self._script[number - 1] if number <= len(self._script) else Sends(b"the script is over", 599)

    def wait_for_end(self) -> None:
        self._ended.wait(30)


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.close_connection = True
            raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
            item = server.take(request)
            if isinstance(item, (Hangs, Closes)):
                self.wfile.write(item.after)
                if isinstance(item, Hangs):
                    server.wait_for_end()
            else:
                self._send(_as_bytes(item, request))

        def _send(self, item: Sends) -> None:
            self.send_response(item.status)
            for name, value in {"Content-Length": str(len(item.body)), **item.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(item.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tests read `requests`."""

    return Handler


def _as_bytes(item: str | Says | Sends, request: Request) -> Sends:
    if isinstance(item, Sends):
        return item
    says = Says(item) if isinstance(item, str) else item
    form = next((form for end, form in _FORMS.items() if request.path.partition("?")[0].endswith(end)), None)
    if form is None:
        return Sends(b"no such endpoint", 404)
    return Sends(json.dumps(form(says, request.body)).encode(), headers={"Content-Type": "application/json"})
