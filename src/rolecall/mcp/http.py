"""The HTTP door: streamable HTTP of the official SDK over the same table of tools.

The SDK speaks every version; `door.py` listens and `guard.py` says who is let in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rolecall import __version__
from rolecall.errors import UsageError
from rolecall.mcp import door, protocol
from rolecall.mcp.stdio import LONGEST
from rolecall.mcp.tools import Toolbox

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.types import ASGIApp

PATH = "/mcp"
IDLE_SECONDS = 1800.0
"""Seconds without a request or an open stream after which a session ends; its client gets 404 and opens another."""
MOST_SESSIONS = 1000
"""Sessions that may be open at once; a request for one more gets 503."""


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
    """Answer clients until a signal ends it; see `door.serve`."""

    def make() -> ASGIApp:
        _check_sdk()
        app: ASGIApp = _server(toolbox, instructions).streamable_http_app(
            streamable_http_path=PATH,
            host=host,
            transport_security=_unchecked(),
            max_request_body_size=LONGEST,
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=MOST_SESSIONS,
        )
        return app

    door.serve(make, host=host, port=port, token=token, path=PATH, names=names, extra="mcp", tell=tell)


def _check_sdk() -> None:
    """An error that can be acted on when the SDK is not installed."""
    from importlib import import_module

    try:
        import_module("mcp.server.lowlevel")
    except ImportError as error:
        raise UsageError(
            f"the HTTP door needs the MCP SDK, which is not installed ({error})",
            hint="Install it: pip install 'rolecall[mcp]'. Without --http nothing more is needed.",
        ) from error


def _unchecked() -> TransportSecuritySettings:
    """The SDK compares Host headers letter by letter; the guard has compared them as names."""
    from mcp.server.transport_security import TransportSecuritySettings

    return TransportSecuritySettings(enable_dns_rebinding_protection=False)


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
        structure = json.loads(outcome.json) if outcome.is_sent_twice else None
        return types.CallToolResult(content=content, structured_content=structure, is_error=outcome.is_error)

    return Server(
        protocol.SERVER["name"],
        title=protocol.SERVER["title"],
        version=__version__,
        instructions=instructions or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
