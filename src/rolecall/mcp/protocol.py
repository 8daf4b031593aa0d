"""MCP as a conversation: what each decoded message is answered with. No I/O, no tools of its own.

A `Session` takes messages in the order they came and gives for each the frame of a reply, a `Call` that is
to be carried out, or nothing. Written by hand because hosts start one server for each agent: the SDK's own
takes longer to import than everything a tool does.

Two eras are spoken. Up to 2025-11-25 a client opens with `initialize` and a version is agreed on; from
2026-07-28 on there is no opening and each request says its version in `_meta`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rolecall import __version__

if TYPE_CHECKING:
    from rolecall.mcp.tools import Tool

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Agreed on by `initialize`, oldest first; the last is offered to a client that asks for another one."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Said by each request for itself."""
_WITH_BATCHES = "2025-03-26"
_WITH_ANNOTATIONS = "2025-03-26"
_WITH_STRUCTURE = "2025-06-18"

_LARGEST_STRUCTURE = 64 * 1024
_LAST_TRIES = 5
"""How often a lock is tried for at least, by a call whose patience has ended."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022

_META = "io.modelcontextprotocol/"
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: JSON can say it, and no reply can."""
SERVER = {"name": "rolecall", "title": "Rolecall", "version": __version__}

Ident: TypeAlias = "str | int | None"


class Refusal(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, detail: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


class Outcome(NamedTuple):
    """What a tool gave: the JSON of its reply, or of `{"error": …}`, in one line without tabs."""

    json: bytes
    is_error: bool

    @property
    def is_sent_twice(self) -> bool:
        """Whether it also goes out as `structuredContent`, which no tool has to have that declares no schema of its
        output. All hosts take the text alone."""
        return len(self.json) <= _LARGEST_STRUCTURE


class Cancel:
    """Says that nobody waits for a result any more; whoever has something to stop says how."""

    def __init__(self) -> None:
        self.is_set = False
        self.patience_ends: float | None = None
        """When who waits for others gives up, on the clock of `time.monotonic`; None: never."""
        self._tries = 0
        self._stops: list[Callable[[], object]] = []
        self._lock = Lock()

    def set(self) -> None:
        self.is_set = True
        self._stop()

    def has_given_up(self) -> bool:
        """Asked again and again while others are waited for. What can be had at once is had also when patience
        has ended."""
        self._tries += 1
        is_late = self.patience_ends is not None and monotonic() > self.patience_ends
        return self.is_set or (is_late and self._tries > _LAST_TRIES)

    def on_set(self, stop: Callable[[], object]) -> None:
        """Have `stop` called when it is set; at once when it is set already."""
        with self._lock:
            self._stops.append(stop)
        if self.is_set:
            self._stop()

    def _stop(self) -> None:
        with self._lock:  # each is called once, whoever of two threads comes first
            stops, self._stops = self._stops, []
        for stop in stops:
            stop()


class Call:
    """A `tools/call` that was understood and not carried out yet."""

    def __init__(self, ident: Ident, tool: Tool, arguments: dict[str, Any], version: str) -> None:
        self.ident = ident
        self.tool = tool
        self.arguments = arguments
        self.version = version
        self.cancel = Cancel()

    def reply(self, outcome: Outcome) -> bytes:
        """The frame that answers it. The reply may be megabytes: it is JSON already, and put in as it is."""
        parts = [
            b'{"jsonrpc": "2.0", "id": ',
            encode(self.ident),
            b', "result": {"content": [{"type": "text"',
        ]
        parts += [b', "text": "', _escaped(outcome.json), b'"}]']
        if _is_since(self.version, _WITH_STRUCTURE) and outcome.is_sent_twice:
            parts += [b', "structuredContent": ', outcome.json]
        if outcome.is_error:
            parts.append(b', "isError": true')
        for key, value in _stamp(self.version).items():
            parts += [b", ", encode(key), b": ", encode(value)]
        return b"".join([*parts, b"}}"])


class Session:
    """One client: the version it speaks, and its calls that are under way."""

    def __init__(
        self,
        *,
        listed: Callable[[], Iterable[Tool]],
        find: Callable[[str], Tool | None],
        instructions: str = "",
    ) -> None:
        self._listed = listed
        self._find = find
        self._instructions = instructions
        self._version: str | None = None
        self._running: dict[Ident, Call] = {}

    @property
    def takes_batches(self) -> bool:
        return self._version == _WITH_BATCHES

    @property
    def running(self) -> list[Call]:
        return list(self._running.values())

    def done(self, call: Call) -> None:
        self._running.pop(call.ident, None)

    def receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | Call | None:
        """What a message leads to. Notifications, and answers to what was never asked, lead to nothing."""
        if not isinstance(message, dict):
            return failure(None, INVALID_REQUEST, "a message is a JSON object")
        method, ident = message.get("method"), ident_of(message)
        if not isinstance(method, str):
            if "result" in message or "error" in message:
                return None
            return failure(ident, INVALID_REQUEST, "a request names its method")
        if "id" not in message:
            self._notice(method, message.get("params"))
            return None
        try:
            _check_frame(message)
            if is_in_batch and method == "initialize":
                raise Refusal(INVALID_REQUEST, "initialize cannot be part of a batch")
            return self._answer(ident, method, message.get("params"))
        except Refusal as refusal:
            return failure(ident, refusal.code, refusal.message, refusal.detail)

    def _notice(self, method: str, params: Any) -> None:
        if method != "notifications/cancelled" or not isinstance(params, dict):
            return
        ident = params.get("requestId")
        call = self._running.get(ident) if _known(ident) is not None else None
        if call is not None:
            call.cancel.set()

    def _answer(self, ident: Ident, method: str, params: Any) -> bytes | Call:
        if params is None:
            params = {}
        if not isinstance(params, dict):
            raise Refusal(INVALID_PARAMS, "params must be an object")
        version = _said_version(params) if method != "initialize" else None
        is_stateless = version is not None
        if method not in _METHODS[is_stateless]:
            raise Refusal(METHOD_NOT_FOUND, f"Method not found: {method}")
        if not is_stateless and self._version is None and method not in ("initialize", "ping"):
            raise Refusal(INVALID_REQUEST, "initialize comes first")
        version = version or self._version or HANDSHAKE_VERSIONS[-1]
        if method == "tools/call":
            return self._call(ident, params, version)
        result = _METHODS[is_stateless][method](self, params, version)
        return _frame(ident, "result", encode({**result, **_stamp(version)}))

    # -- methods --

    def _initialize(self, params: Mapping[str, Any], _: str) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise Refusal(INVALID_PARAMS, "protocolVersion must be a string")
        self._version = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {"protocolVersion": self._version, "serverInfo": SERVER, **self._offer()}

    def _discover(self, _params: Mapping[str, Any], _version: str) -> dict[str, Any]:
        return {"supportedVersions": list(STATELESS_VERSIONS), **self._offer(), **_UNCACHED}

    def _offer(self) -> dict[str, Any]:
        said = {"instructions": self._instructions} if self._instructions else {}
        return {"capabilities": {"tools": {}}, **said}

    def _ping(self, _params: Mapping[str, Any], _version: str) -> dict[str, Any]:
        return {}

    def _tools(self, params: Mapping[str, Any], version: str) -> dict[str, Any]:
        # All tools are on the first page, so no cursor of ours is about.
        if params.get("cursor") is not None:
            raise Refusal(INVALID_PARAMS, "there is no page at this cursor")
        shown = [described(tool, version) for tool in self._listed()]
        return {"tools": shown, **(_UNCACHED if version in STATELESS_VERSIONS else {})}

    def _call(self, ident: Ident, params: Mapping[str, Any], version: str) -> Call:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise Refusal(INVALID_PARAMS, "name must be a string")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise Refusal(INVALID_PARAMS, "arguments must be an object")
        tool = self._find(name)
        if tool is None:
            raise Refusal(INVALID_PARAMS, f"Unknown tool: {name}")
        if ident in self._running:
            raise Refusal(INVALID_REQUEST, f"a request with the id {ident!r} is under way")
        self._running[ident] = call = Call(ident, tool, arguments, version)
        return call


_METHODS: Mapping[bool, Mapping[str, Callable[..., Any]]] = {
    False: {
        "initialize": Session._initialize,
        "ping": Session._ping,
        "tools/list": Session._tools,
        "tools/call": Session._call,
    },
    True: {
        "server/discover": Session._discover,
        "tools/list": Session._tools,
        "tools/call": Session._call,
    },
}
"""By whether requests say their version themselves."""

_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}


# -- versions --


def _is_since(version: str, first: str) -> bool:
    return version >= first  # all of them are dates


def _said_version(params: Mapping[str, Any]) -> str | None:
    """The version a request says for itself; None when it says none."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or f"{_META}protocolVersion" not in meta:
        return None
    version = meta[f"{_META}protocolVersion"]
    if not isinstance(version, str):
        raise Refusal(INVALID_PARAMS, f"{_META}protocolVersion must be a string")
    if f"{_META}clientCapabilities" not in meta:
        raise Refusal(INVALID_PARAMS, f"_meta has no {_META}clientCapabilities")
    if version not in STATELESS_VERSIONS:
        known = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise Refusal(UNSUPPORTED_VERSION, "Unsupported protocol version", known)
    return version


def _stamp(version: str) -> dict[str, Any]:
    """What every result carries where there is no handshake."""
    if version not in STATELESS_VERSIONS:
        return {}
    return {"resultType": "complete", "_meta": {f"{_META}serverInfo": SERVER}}


def described(tool: Tool, version: str) -> dict[str, Any]:
    """A tool as `tools/list` of a version shows it."""
    shown = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    if _is_since(version, _WITH_ANNOTATIONS):
        shown["annotations"] = tool.annotations
    return shown


# -- frames --


def decode(line: bytes) -> Any:
    """The message of a line; `Refusal` when it is not JSON, by the standard and not by Python."""
    try:
        return json.loads(line.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(PARSE_ERROR, f"not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def encode(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # half of a pair: many clients would refuse the whole message for its escape
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def _escaped(line: bytes) -> bytes:
    """A line of JSON as it stands in a JSON string: nothing in it needs an escape but these two."""
    return line.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def failure(ident: Ident, code: int, message: str, detail: Any = None) -> bytes:
    error = {"code": code, "message": message}
    return _frame(ident, "error", encode(error if detail is None else {**error, "data": detail}))


def _frame(ident: Ident, key: str, body: bytes) -> bytes:
    return b'{"jsonrpc": "2.0", "id": %b, %b: %b}' % (encode(ident), encode(key), body)


def ident_of(message: Any) -> Ident:
    """The id under which a message is answered."""
    return _known(message.get("id")) if isinstance(message, dict) else None


def _known(ident: Any) -> Ident:
    """An id as it can be given back; None for what cannot be one."""
    if isinstance(ident, str):
        return None if _HALF.search(ident) else ident
    return ident if isinstance(ident, int) and not isinstance(ident, bool) else None


def _check_frame(message: Mapping[str, Any]) -> None:
    if message.get("jsonrpc") != "2.0":
        raise Refusal(INVALID_REQUEST, 'a message says "jsonrpc": "2.0"')
    if ident_of(message) is None:
        raise Refusal(INVALID_REQUEST, "an id is a string or an integer")
