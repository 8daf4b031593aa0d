"""MCP as a conversation: what each decoded message is answered with. No I/O, no tools of its own.

A `Session` takes messages in order and gives for each the frame of a reply, a `Call` to carry out, or nothing.
Written by hand because hosts start one server for each agent: the SDK's own takes longer to import than everything a
tool does.

Two eras are spoken. Up to 2025-11-25 a client opens with `initialize` and a version is agreed on; from 2026-07-28 on
each request says its version in `_meta`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from rolecall import __version__
from rolecall.mcp.tools import Cancel, Outcome, Tool, Toolbox, encode

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Agreed on by `initialize`, oldest first; the last is offered to a client that asks for another one. All are dates, so
they compare."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Said by each request for itself."""
_WITH_BATCHES = "2025-03-26"
_WITH_ANNOTATIONS = "2025-03-26"
_WITH_STRUCTURE = "2025-06-18"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022

_META = "io.modelcontextprotocol/"
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: JSON can say it, and no reply can."""
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
SERVER = {"name": "rolecall", "title": "Rolecall", "version": __version__}

Ident: TypeAlias = "str | int | None"


class Refusal(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, detail: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


class Call:
    """A `tools/call` that was understood and not carried out yet."""

    def __init__(self, ident: Ident, tool: Tool, arguments: dict[str, Any], version: str) -> None:
        self.ident = ident
        self.tool = tool
        self.arguments = arguments
        self.version = version
        self.cancel = Cancel()

    def reply(self, outcome: Outcome) -> bytes:
        """The frame that answers it. The reply may be megabytes, so its JSON is put in as it is."""
        # In a line of JSON nothing needs an escape inside a JSON string but these two.
        text = outcome.json.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        parts = [b'{"jsonrpc": "2.0", "id": ', encode(self.ident)]
        parts += [b', "result": {"content": [{"type": "text", "text": "', text, b'"}]']
        if self.version >= _WITH_STRUCTURE and outcome.is_sent_twice:
            parts += [b', "structuredContent": ', outcome.json]
        if outcome.is_error:
            parts.append(b', "isError": true')
        for key, value in _stamp(self.version).items():
            parts += [b", ", encode(key), b": ", encode(value)]
        return b"".join([*parts, b"}}"])


class Session:
    """One client: the version it speaks, and its calls that are under way."""

    def __init__(self, toolbox: Toolbox, instructions: str = "") -> None:
        self._toolbox = toolbox
        self._offer = {
            "capabilities": {"tools": {}},
            **({"instructions": instructions} if instructions else {}),
        }
        self._version: str | None = None
        self.running: dict[Ident, Call] = {}

    @property
    def takes_batches(self) -> bool:
        return self._version == _WITH_BATCHES

    def receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | Call | None:
        """What a message leads to. Notifications, and answers to what was never asked, lead to nothing."""
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
                    call.cancel.set()
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

    def _answer(self, ident: Ident, method: str, params: Any) -> bytes | Call:
        if not isinstance(params, dict):
            raise Refusal(INVALID_PARAMS, "params must be an object")
        said = _read_version(params) if method != "initialize" else None
        version = said or self._version or HANDSHAKE_VERSIONS[-1]
        is_open = self._version is not None
        match method:
            case "initialize":
                result = self._initialize(params)
            case "ping" if said is None:
                result = {}
            case "server/discover" if said is not None:
                result = {"supportedVersions": list(STATELESS_VERSIONS), **self._offer, **_UNCACHED}
            case "tools/list" | "tools/call" if said is None and not is_open:
                raise Refusal(INVALID_REQUEST, "initialize comes first")
            case "tools/list":
                if params.get("cursor") is not None:  # all tools are on the first page
                    raise Refusal(INVALID_PARAMS, "there is no page at this cursor")
                shown = [describe(tool, version) for tool in self._toolbox.list_tools()]
                result = {"tools": shown, **(_UNCACHED if version in STATELESS_VERSIONS else {})}
            case "tools/call":
                return self._call(ident, params, version)
            case _:
                raise Refusal(METHOD_NOT_FOUND, f"Method not found: {method}")
        return _frame(ident, "result", encode({**result, **_stamp(version)}))

    def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise Refusal(INVALID_PARAMS, "protocolVersion must be a string")
        self._version = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {"protocolVersion": self._version, "serverInfo": SERVER, **self._offer}

    def _call(self, ident: Ident, params: Mapping[str, Any], version: str) -> Call:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise Refusal(INVALID_PARAMS, "name must be a string")
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise Refusal(INVALID_PARAMS, "arguments must be an object")
        tool = self._toolbox.find(name)
        if tool is None:
            raise Refusal(INVALID_PARAMS, f"Unknown tool: {name}")
        if ident in self.running:
            raise Refusal(INVALID_REQUEST, f"a request with the id {ident!r} is under way")
        self.running[ident] = call = Call(ident, tool, arguments, version)
        return call


def _read_version(params: Mapping[str, Any]) -> str | None:
    """The version that a request says for itself, if it does."""
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
    """What every result carries in versions without a handshake."""
    if version not in STATELESS_VERSIONS:
        return {}
    return {"resultType": "complete", "_meta": {f"{_META}serverInfo": SERVER}}


def describe(tool: Tool, version: str) -> dict[str, Any]:
    """A tool as `tools/list` of a version shows it."""
    shown = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    return shown | ({"annotations": tool.annotations} if version >= _WITH_ANNOTATIONS else {})


# -- frames --


def decode(line: bytes) -> Any:
    """The message of a line; `Refusal` when it is not JSON by the standard, which is stricter than Python."""

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
    """The id under which a message is answered."""
    return _check_ident(message.get("id")) if isinstance(message, dict) else None


def _check_ident(ident: Any) -> Ident:
    """An id that can be given back; None for anything else."""
    if isinstance(ident, str):
        return None if _HALF.search(ident) else ident
    return ident if isinstance(ident, int) and not isinstance(ident, bool) else None
