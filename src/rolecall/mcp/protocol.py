"""The MCP protocol: how each decoded message is answered. This module does no I/O and has no tools of its own.

A `Session` receives messages in order. For each message it returns the frame of a reply, a `PendingCall` to carry out,
or None; the frames of notifications are passed to `send`. The SDK is not used, because hosts start a server for each
agent and importing the SDK takes longer than running a tool.

There are two kinds of protocol versions. Up to 2025-11-25, a client starts with `initialize` to agree on a version;
from 2026-07-28 on, each request names its version in `_meta`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rolecall import __version__
from rolecall.errors import RolecallError
from rolecall.mcp.tools import Caller, McpTool, McpToolbox, ToolResult, encode
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.mcp import resources, skills
    from rolecall.mcp.resources import Library
    from rolecall.store.canonical import JsonObject
else:
    resources = Module("rolecall.mcp.resources")
    skills = Module("rolecall.mcp.skills")

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions negotiated by `initialize`, oldest first. A client that asks for any other version is offered the last one.
All versions are dates, so they can be compared."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Versions in which each request names the version."""
_WITH_BATCHES = "2025-03-26"
_WITH_ANNOTATIONS = "2025-03-26"
_WITH_STRUCTURE = "2025-06-18"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32002
"""The error code for a resource that does not exist. From version 2026-07-28 on, this is an invalid parameter
instead."""
UNSUPPORTED_VERSION = -32022

CHUNK_SIZE = 64 * 1024
"""How many bytes of a long reply are written at once: as many as fit into a pipe."""
_META = "io.modelcontextprotocol/"
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair. JSON can express it, but no reply can contain it."""
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
_FIRST = ("tools/", "resources/", "prompts/")
"""Methods that require a known version: `initialize` must come first, or the request must name its version."""
SERVER = {"name": "rolecall", "title": "Rolecall", "version": __version__}

Ident: TypeAlias = "str | int | None"


class Refusal(Exception):
    """Raised to answer a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str, detail: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


class PendingCall(NamedTuple):
    """A valid request that has not been carried out yet. `run` carries out the request and returns the frame of the
    reply."""

    ident: Ident
    caller: Caller
    run: Callable[[], Iterable[bytes]]
    is_long: bool = False
    """Whether the call might take minutes, in which case other calls must not wait for it."""
    may_wait: bool = False
    """Whether the call might have to wait for another writer."""


class Session:
    """The connection of one client: its protocol version, its running calls and its subscriptions."""

    def __init__(
        self,
        toolbox: McpToolbox,
        instructions: str = "",
        *,
        send: Callable[[bytes], object] = lambda _frame: None,
    ) -> None:
        self._toolbox = toolbox
        self._send = send
        self._offer = {
            "capabilities": toolbox.capabilities,
            **({"instructions": instructions} if instructions else {}),
        }
        self._version: str | None = None
        self.running: dict[Ident, PendingCall] = {}
        self._library: Library | None = None
        self._opening = Lock()
        self._subscribed: dict[str, Callable[[], None]] = {}
        """The functions that end the subscriptions, keyed by the addresses of the resources."""

    @property
    def takes_batches(self) -> bool:
        return self._version == _WITH_BATCHES

    def receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | PendingCall | None:
        """Process a message. Notifications and unexpected responses return None."""
        if not isinstance(message, dict):
            return failure(None, INVALID_REQUEST, "a message is a JSON object")
        method, ident, params = message.get("method"), ident_of(message), message.get("params")
        if not isinstance(method, str):
            is_answer = "result" in message or "error" in message
            return None if is_answer else failure(ident, INVALID_REQUEST, "a request names its method")
        if "id" not in message:
            if method == "notifications/cancelled" and isinstance(params, dict):
                call = self.running.get(_check_ident(params.get("requestId")))
                if call is not None:
                    call.caller.set()
            return None
        try:
            if message.get("jsonrpc") != "2.0":
                raise Refusal(INVALID_REQUEST, 'a message says "jsonrpc": "2.0"')
            if ident is None:
                raise Refusal(INVALID_REQUEST, "an id is a string or an integer")
            if is_in_batch and method == "initialize":
                raise Refusal(INVALID_REQUEST, "initialize cannot be part of a batch")
            return self._answer(ident, method, {} if params is None else params)
        except Refusal as refusal:
            return failure(ident, refusal.code, refusal.message, refusal.detail)

    def _answer(self, ident: Ident, method: str, params: Any) -> bytes | PendingCall:
        if not isinstance(params, dict):
            raise Refusal(INVALID_PARAMS, "params must be an object")
        said = _read_version(params) if method != "initialize" else None
        version = said or self._version or HANDSHAKE_VERSIONS[-1]
        is_open = self._version is not None
        result: JsonObject
        match method:
            case "initialize":
                wanted = params.get("protocolVersion")
                if not isinstance(wanted, str):
                    raise Refusal(INVALID_PARAMS, "protocolVersion must be a string")
                self._version = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
                result = {"protocolVersion": self._version, "serverInfo": SERVER, **self._offer}
            case "ping" if said is None:
                result = {}
            case "server/discover" if said is not None:
                result = {"supportedVersions": list(STATELESS_VERSIONS), **self._offer, **_UNCACHED}
            case _ if said is None and not is_open and method.startswith(_FIRST):
                raise Refusal(INVALID_REQUEST, "initialize comes first")
            case _ if method.endswith("/list") and params.get("cursor") is not None:
                raise Refusal(INVALID_PARAMS, "unknown cursor")  # everything is on the first page
            case "tools/list":
                shown = [describe(tool, version) for tool in self._toolbox.list_tools()]
                result = {"tools": shown, **(_UNCACHED if said else {})}
            case "tools/call":
                return self._call(ident, params, version)
            case "resources/subscribe" | "resources/unsubscribe" if said is not None:
                raise Refusal(METHOD_NOT_FOUND, f"{method} is subscriptions/listen in version {said}")
            case "subscriptions/listen" if said and "resources" in self._toolbox.capabilities:
                return self._add(
                    ident,
                    lambda caller: self._reply(ident, version, lambda: self._listen(ident, params, caller)),
                    is_long=True,
                )
            case _ if method in _DEFERRED and method.split("/")[0] in self._toolbox.capabilities:
                return self._add(
                    ident,
                    lambda _: self._reply(ident, version, lambda: self._look_up(method, params, version)),
                )
            case _:
                raise Refusal(METHOD_NOT_FOUND, f"Method not found: {method}")
        return _frame(ident, "result", encode({**result, **_stamp(version)}))

    def _add(
        self,
        ident: Ident,
        run: Callable[[Caller], Iterable[bytes]],
        *,
        report: Callable[[JsonObject], object] | None = None,
        **more: bool,
    ) -> PendingCall:
        if ident in self.running:
            raise Refusal(INVALID_REQUEST, f"a request with the id {ident!r} is under way")
        caller = Caller(report)
        self.running[ident] = call = PendingCall(ident, caller, lambda: run(caller), **more)
        return call

    def _call(self, ident: Ident, params: JsonObject, version: str) -> PendingCall:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise Refusal(INVALID_PARAMS, "name must be a string")
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise Refusal(INVALID_PARAMS, "arguments must be an object")
        tool = self._toolbox.find(name)
        if tool is None:
            raise Refusal(INVALID_PARAMS, f"Unknown tool: {name}")
        meta = params.get("_meta")
        token = _check_ident(meta.get("progressToken")) if isinstance(meta, dict) else None

        def report(fields: JsonObject) -> None:
            self._notify("progress", {"progressToken": token, **fields})

        return self._add(
            ident,
            lambda caller: _reply_of_tool(ident, version, self._toolbox.run(tool, arguments, caller)),
            report=None if token is None else report,
            is_long=tool.is_long,
            may_wait=tool.may_wait,
        )

    def _notify(self, method: str, params: JsonObject) -> None:
        message = {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}
        self._send(encode(message))

    def _reply(self, ident: Ident, version: str, work: Callable[[], JsonObject]) -> list[bytes]:
        """Return the frame of the reply to a request that reads files or the store."""
        try:
            return [_frame(ident, "result", encode({**work(), **_stamp(version)}))]
        except Refusal as refusal:
            return [failure(ident, refusal.code, refusal.message, refusal.detail)]
        except RolecallError as error:
            return [failure(ident, INVALID_PARAMS, error.message)]

    # -- resources and prompts; their modules are imported at the first request --

    @property
    def library(self) -> Library:
        with self._opening:
            if self._library is None:
                self._library = resources.Library(self._toolbox)
            return self._library

    def _look_up(self, method: str, params: JsonObject, version: str) -> JsonObject:
        uncached = _UNCACHED if version in STATELESS_VERSIONS else {}
        match method:
            case "resources/list":
                return {"resources": self.library.list_resources(), **uncached}
            case "resources/templates/list":
                return {"resourceTemplates": self.library.list_templates(), **uncached}
            case "prompts/list":
                return {"prompts": skills.list_prompts(), **uncached}
            case "prompts/get":
                given = params.get("arguments") or {}
                if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
                    raise Refusal(INVALID_PARAMS, "arguments must be an object of strings")
                name = _text(params, "name")
                return skills.get_prompt(name, given)
        uri = _text(params, "uri")
        match method:
            case "resources/subscribe":
                if uri not in self._subscribed:
                    tell = lambda changed: self._notify("resources/updated", {"uri": changed})  # noqa: E731
                    self._subscribed[uri] = self.library.subscribe([uri], tell)
                return {}
            case "resources/unsubscribe":
                self._subscribed.pop(uri, lambda: None)()
                return {}
        try:
            return {"contents": [self.library.read(uri)], **uncached}
        except RolecallError as error:
            code = INVALID_PARAMS if version in STATELESS_VERSIONS else NOT_FOUND
            raise Refusal(code, error.message, {"uri": uri}) from error

    def _listen(self, ident: Ident, params: JsonObject, caller: Caller) -> JsonObject:
        """Tell the client about changes until the client cancels its request."""
        asked = params.get("notifications")
        uris = asked.get("resourceSubscriptions") if isinstance(asked, dict) else None
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            uris = []
        meta = {"_meta": {f"{_META}subscriptionId": ident}}
        acknowledging, cancelled = Lock(), Event()
        caller.on_set(cancelled.set)

        def tell(uri: str) -> None:
            with acknowledging:  # the acknowledgement must be the first message
                self._notify("resources/updated", {"uri": uri, **meta})

        with acknowledging:
            end = self.library.subscribe(uris, tell)
            honoured = {"resourceSubscriptions": uris} if uris else {}
            self._notify("subscriptions/acknowledged", {"notifications": honoured, **meta})
        cancelled.wait()
        end()
        return meta


_DEFERRED = frozenset((
    "resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
    "prompts/list", "prompts/get",
))  # fmt: skip
"""Requests that read files or the store. They are carried out in the same queue as calls that only read."""


def _text(params: JsonObject, key: str) -> str:
    found = params.get(key)
    if not isinstance(found, str):
        raise Refusal(INVALID_PARAMS, f"{key} must be a string")
    return found


def _reply_of_tool(ident: Ident, version: str, outcome: ToolResult) -> Iterator[bytes]:
    """Yield the frame in pieces, because the frame can be megabytes long. The JSON of the tool's reply is inserted
    without parsing it."""
    yield b'{"jsonrpc": "2.0", "id": %b, "result": {"content": [{"type": "text", "text": "' % encode(ident)
    for at in range(0, len(outcome.json), CHUNK_SIZE):
        # Only these two characters need escaping when a line of JSON becomes a JSON string.
        yield outcome.json[at : at + CHUNK_SIZE].replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    yield b'"}]'
    if version >= _WITH_STRUCTURE and outcome.is_sent_twice:
        yield b', "structuredContent": ' + outcome.json
    if outcome.is_error:
        yield b', "isError": true'
    for key, value in _stamp(version).items():
        yield b", %b: %b" % (encode(key), encode(value))
    yield b"}}"


def _read_version(params: JsonObject) -> str | None:
    """Return the version that a request names, or None if it names none."""
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


def _stamp(version: str) -> JsonObject:
    """Return the fields that every result has in versions without a handshake."""
    if version not in STATELESS_VERSIONS:
        return {}
    return {"resultType": "complete", "_meta": {f"{_META}serverInfo": SERVER}}


def describe(tool: McpTool, version: str) -> JsonObject:
    """Describe a tool for `tools/list` in a protocol version."""
    shown = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    return shown | ({"annotations": tool.annotations} if version >= _WITH_ANNOTATIONS else {})


# -- frames --


def decode(line: bytes) -> Any:
    """Decode a line. Raise `Refusal` if the line is not standard JSON, which is stricter than Python's JSON."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON value")

    try:
        return json.loads(line.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal(PARSE_ERROR, f"not JSON: {error}") from error


def failure(ident: Ident, code: int, message: str, detail: Any = None) -> bytes:
    error = {"code": code, "message": message}
    return _frame(ident, "error", encode(error if detail is None else {**error, "data": detail}))


def _frame(ident: Ident, key: str, body: bytes) -> bytes:
    return b'{"jsonrpc": "2.0", "id": %b, %b: %b}' % (encode(ident), encode(key), body)


def ident_of(message: Any) -> Ident:
    """Return the id with which a message is answered."""
    return _check_ident(message.get("id")) if isinstance(message, dict) else None


def _check_ident(ident: Any) -> Ident:
    """Return the id if it can be sent back, otherwise None."""
    if isinstance(ident, str):
        return None if _HALF.search(ident) else ident
    return ident if isinstance(ident, int) and not isinstance(ident, bool) else None
