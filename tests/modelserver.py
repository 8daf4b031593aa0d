"""A model endpoint on loopback that answers from a script, for tests over real HTTP.

Each request takes the next item of the script. Text (or `Says`) and a tool call (`Calls`) are wrapped in the
form of the endpoint that was asked, streamed where the request wants a stream (modelforms.py). Every request
is recorded in `requests`; one beyond the script is answered with HTTP 599.

With `is_agent=True` a request that offers no tools is a side request (a title, a classifier): it gets a short
fixed answer and takes nothing from the script. `turns` holds the requests that did take something.

By hand: `python tests/modelserver.py script.json [requests.jsonl]` prints its port and serves until its
stdin ends; the items of the script are as `item_from` reads them.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from modelforms import Calls, Says, encoded, fixed_answer, form_for

__all__ = [
    "SIDE_ANSWER",
    "Calls",
    "Closes",
    "Hangs",
    "Item",
    "ModelServer",
    "Request",
    "Says",
    "Sends",
    "When",
]

SIDE_ANSWER = "A short title"


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


Plain = str | Says | Calls | Sends | Closes | Hangs


@dataclass(frozen=True)
class When:
    """The answer to the first request (or every one) whose body holds a text, wherever it comes."""

    substring: str
    item: Plain
    is_once: bool = True
    without: str = ""
    """A text that the body must not hold."""

    def fits(self, text: str) -> bool:
        return self.substring in text and not (self.without and self.without in text)


Item = Plain | When


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Any
    method: str = "POST"

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the request offers, in whichever form."""
        return sorted(_tool_names(self.body)) if isinstance(self.body, dict) else []

    @property
    def text(self) -> str:
        return json.dumps(self.body, ensure_ascii=False)


class ModelServer:
    """`with ModelServer(["first answer", Sends(b"no", 500)]) as server: ... server.base_url`"""

    def __init__(self, script: Sequence[Item], *, is_agent: bool = False, log: IO[str] | None = None) -> None:
        self._next = [item for item in script if not isinstance(item, When)]
        self._matched = [item for item in script if isinstance(item, When)]
        self._is_agent = is_agent
        self._log = log
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self.requests: list[Request] = []
        self.turns: list[Request] = []
        """The requests that took an item of the script, or came after its end."""
        self.arrived = threading.Event()
        """Set once a request has come in whole."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    @property
    def port(self) -> int:
        return self._http.server_port

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

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

    def add(self, *items: Item) -> None:
        """Go on with the script, for a test that knows what comes next only later."""
        with self._changed:
            self._next += [item for item in items if not isinstance(item, When)]
            self._matched += [item for item in items if isinstance(item, When)]

    def wait_for_turn(self, number: int, timeout: float = 60.0) -> bool:
        """Wait until the `number`-th request that takes an item has come; False when it did not."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.turns) >= number, timeout)

    def take(self, request: Request) -> tuple[Plain, int]:
        """The answer to a request, and the number of the turn."""
        with self._changed:
            self.requests.append(request)
            if self._log is not None:
                print(json.dumps(asdict(request)), file=self._log, flush=True)
            is_side = self._is_agent and not request.tools
            item: Plain = SIDE_ANSWER if is_side else self._item(request)
            if not is_side:
                self.turns.append(request)
                self._changed.notify_all()
            number = len(self.requests)
        self.arrived.set()
        return item, number

    def note(self, request: Request) -> None:
        """Record a request that is no model's turn."""
        with self._changed:
            self.requests.append(request)

    def _item(self, request: Request) -> Plain:
        found = next((item for item in self._matched if item.fits(request.text)), None)
        if found is not None:
            if found.is_once:
                self._matched.remove(found)
            return found.item
        return self._next.pop(0) if self._next else Sends(b"the script is over", 599)

    def wait_for_end(self) -> None:
        self._ended.wait(60)


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, _parsed(raw))
            with suppress(BrokenPipeError, ConnectionResetError):  # an agent that was ended does not wait
                self._answer(request)

        def do_GET(self) -> None:
            request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, None, self.command)
            server.note(request)
            answer = fixed_answer(request.path)
            self._send(Sends(b"no such endpoint", 404) if answer is None else _wrapped(answer))

        do_HEAD = do_GET

        def _answer(self, request: Request) -> None:
            self.close_connection = True
            answer, form = fixed_answer(request.path), form_for(request.path)
            if answer is not None or form is None:
                server.note(request)
                self._send(Sends(b"no such endpoint", 404) if answer is None else _wrapped(answer))
                return
            item, number = server.take(request)
            if isinstance(item, (Hangs, Closes)):
                self.wfile.write(item.after)
                if isinstance(item, Hangs):
                    server.wait_for_end()
            elif isinstance(item, Sends):
                self._send(item)
            else:
                self._send(
                    _wrapped(form(Says(item) if isinstance(item, str) else item, request.body, number))
                )

        def _send(self, item: Sends) -> None:
            self.send_response(item.status)
            size = {"Content-Length": str(len(item.body)), "Connection": "close"}
            for name, value in {**size, **item.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(item.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tests read `requests`."""

    return Handler


def _tool_names(group: dict[str, Any]) -> set[str]:
    """Tools stand in a list, and some of them are groups again; the Responses form may add lists as input."""
    found: set[str] = set()
    added = group["input"] if isinstance(group.get("input"), list) else []
    for tool in [*group.get("tools", ()), *(item for item in added if "tools" in item)]:
        inner = tool.get("functionDeclarations") or tool.get("function_declarations")
        if inner or "tools" in tool:
            found |= _tool_names({"tools": inner or tool["tools"]})
        else:
            found.add(str(tool.get("function", tool).get("name") or tool.get("type")))
    return found


def _wrapped(answer: Any) -> Sends:
    kind, body = encoded(answer)
    return Sends(body, headers={"Content-Type": kind})


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")


def item_from(value: Any) -> Item:
    """An item as JSON: "text", {"says": …}, {"calls": name, "arguments": …}, {"sends": text, "status": 500},
    {"closes": ""}, {"hangs": ""}, {"when": substring, "item": …}."""
    if isinstance(value, str):
        return value
    more = dict(value)
    kind, first = next(iter(value.items()))
    del more[kind]
    if kind == "when":
        item = item_from(more.pop("item"))
        assert not isinstance(item, When)
        return When(first, item, **more)
    kinds: dict[str, Callable[..., Item]] = {
        "says": Says,
        "calls": Calls,
        "sends": Sends,
        "closes": Closes,
        "hangs": Hangs,
    }
    return kinds[kind](first if kind in ("says", "calls") else first.encode(), **more)


def _serve(script: str, log: str = "/dev/null") -> None:
    items = [item_from(value) for value in json.loads(Path(script).read_text(encoding="utf-8"))]
    with open(log, "a", encoding="utf-8") as file, ModelServer(items, is_agent=True, log=file) as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
