"""The HTTP door: streamable HTTP of the official SDK over the same table of tools.

The SDK speaks every version and checks Host and Origin, so that a page in a browser cannot reach a server
on loopback under another name. Off loopback a token is required as well.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable
from hmac import compare_digest
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from rolecall import __version__
from rolecall.errors import StorageError, UsageError
from rolecall.mcp import protocol
from rolecall.mcp.stdio import LONGEST
from rolecall.mcp.tools import Toolbox

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_GRACE = 1
"""Seconds that open streams get when the server ends; clients may hold one for ever."""


def serve(
    toolbox: Toolbox,
    *,
    host: str,
    port: int,
    token: str | None,
    names: Iterable[str] = (),
    instructions: str = "",
    tell: Callable[[str], None],
) -> None:
    """Answer clients until a signal ends it. `tell` is given the address once it can be reached; `names` are
    further names of this machine that a client may call it by."""
    if not token and not is_loopback(host):
        raise UsageError(
            f"a server on {host} can be reached by others, so it needs a token",
            hint="Put one into a variable and name it: --token-env NAME. Or leave out --host.",
        )
    with _listening(host, port) as listener:
        uvicorn = _sdk()
        port = listener.getsockname()[1]
        app: ASGIApp = _server(toolbox, instructions).streamable_http_app(
            streamable_http_path=PATH,
            host=host,
            transport_security=_trusted(host, port, names),
            max_request_body_size=LONGEST,
        )
        if token:
            app = _Guard(app, token)
        tell(f"http://{_written(host)}:{port}{PATH}")
        settings = uvicorn.Config(
            app, log_level="warning", ws="none", access_log=False, timeout_graceful_shutdown=_GRACE
        )
        uvicorn.Server(settings).run(sockets=[listener])


def _sdk() -> Any:
    """The server that the SDK runs on; an error that can be acted on when it is not installed."""
    from importlib import import_module

    try:
        import_module("mcp.server.lowlevel")
        return import_module("uvicorn")
    except ImportError as error:
        raise UsageError(
            f"the HTTP door needs the MCP SDK, which is not installed ({error})",
            hint="Install it: pip install 'rolecall[mcp]'. Without --http nothing more is needed.",
        ) from error


def _server(toolbox: Toolbox, instructions: str) -> Server[Any]:
    import mcp.types as types
    from anyio import get_cancelled_exc_class, to_thread
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError

    async def list_tools(_context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(code=protocol.INVALID_PARAMS, message="there is no page at this cursor")
        newest = protocol.STATELESS_VERSIONS[-1]
        shown = [protocol.described(tool, newest) for tool in toolbox.listed()]
        return types.ListToolsResult.model_validate({"tools": shown})

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = toolbox.find(params.name)
        if tool is None:
            raise MCPError(code=protocol.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        cancel = protocol.Cancel()
        try:
            outcome = await to_thread.run_sync(
                toolbox.run, tool, params.arguments or {}, cancel, abandon_on_cancel=True
            )
        except get_cancelled_exc_class():
            cancel.set()
            raise
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=outcome.json.decode())]
        return types.CallToolResult(
            content=content, structured_content=json.loads(outcome.json), is_error=outcome.is_error
        )

    return Server(
        protocol.SERVER["name"],
        title=protocol.SERVER["title"],
        version=__version__,
        instructions=instructions or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


# -- who may connect --


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name, which may lead anywhere
        return False


def _trusted(host: str, port: int, names: Iterable[str]) -> TransportSecuritySettings:
    """The Host and Origin headers that are let in. On loopback pages of other local servers are, too."""
    from mcp.server.transport_security import TransportSecuritySettings

    hosts = {f"{_written(name)}:{port}" for name in (host, *names)} | set(names)
    origins = {f"{scheme}://{name}" for scheme in ("http", "https") for name in hosts}
    if is_loopback(host):
        hosts |= {f"{name}:{port}" for name in _LOOPBACK}
        origins |= {f"http://{name}:*" for name in _LOOPBACK}
    return TransportSecuritySettings(allowed_hosts=sorted(hosts), allowed_origins=sorted(origins))


def _written(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


class _Guard:
    """Lets in who knows the token; how long the comparison takes says nothing about it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_let_in(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"a bearer token is needed\n"})

    def _is_let_in(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, secret = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and compare_digest(secret.strip(), self._token)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StorageError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}",
            hint="Another process may have the port; --port 0 takes a free one.",
        ) from error
