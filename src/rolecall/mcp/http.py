"""The HTTP interface: the official SDK's streamable HTTP for the same table of tools. The SDK supports every version.

Imported only for `--http`, because importing the SDK takes longer than running a tool.
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from rolecall import __version__
from rolecall.errors import UsageError
from rolecall.mcp import protocol
from rolecall.mcp.stdio import LONGEST
from rolecall.mcp.tools import Cancellation, Toolbox
from rolecall.service import http

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PATH = "/mcp"
IDLE_SECONDS = 1800.0
"""Seconds without a request or an open stream after which a session ends; its client gets 404 and opens another."""
MOST_SESSIONS = 1000
"""The most sessions open at once; a request for one more gets 503."""


def serve(toolbox: Toolbox, options: Namespace, instructions: str) -> None:
    """Answer clients until a signal ends the server."""
    http.serve(
        lambda: _make_app(toolbox, instructions, host=options.host or http.LOOPBACK),
        options,
        path=PATH,
        extra="mcp",
        tell=lambda address: print(address, flush=True),
    )


def _make_app(toolbox: Toolbox, instructions: str, *, host: str) -> ASGIApp:
    try:
        import mcp.types as types
        from anyio import get_cancelled_exc_class, to_thread
        from mcp.server.lowlevel import Server
        from mcp.server.transport_security import TransportSecuritySettings
        from mcp.shared.exceptions import MCPError
    except ImportError as error:
        raise UsageError(
            f"the HTTP door needs the MCP SDK, which is not installed ({error})",
            hint="Install it: pip install 'rolecall[mcp]'. Without --http nothing more is needed.",
        ) from error

    async def list_tools(_context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(code=protocol.INVALID_PARAMS, message="unknown cursor")
        newest = protocol.STATELESS_VERSIONS[-1]
        shown = [protocol.describe(tool, newest) for tool in toolbox.list_tools()]
        return types.ListToolsResult.model_validate({"tools": shown})

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = toolbox.find(params.name)
        if tool is None:
            raise MCPError(code=protocol.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        cancel = Cancellation()
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

    server: Server[Any] = Server(
        protocol.SERVER["name"],
        title=protocol.SERVER["title"],
        version=__version__,
        instructions=instructions or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        # The SDK compares Host headers literally; our guard has already compared them as host names.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=LONGEST,
        session_idle_timeout=IDLE_SECONDS,
        max_sessions=MOST_SESSIONS,
    )
    return app
