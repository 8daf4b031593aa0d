"""The HTTP interface: the official SDK's streamable HTTP with the same table of tools. The SDK supports every protocol
version.

This module is imported only for `--http`, because importing the SDK takes longer than running a tool.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mcp.types as types
from anyio import from_thread, get_cancelled_exc_class, lowlevel, to_thread
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

from rolecall import __version__
from rolecall.errors import RolecallError
from rolecall.mcp import protocol, skills
from rolecall.mcp.resources import Library
from rolecall.mcp.stdio import LONGEST
from rolecall.mcp.tools import Caller, McpToolbox
from rolecall.service import http

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from rolecall.store.canonical import JsonObject

PATH = "/mcp"
IDLE_SECONDS = 1800.0
"""A session ends after this many seconds without a request or an open stream. Its client then gets a 404 and opens
another session."""
MOST_SESSIONS = 1000
"""The maximum number of open sessions. A request to open another session is answered with 503."""


def serve(toolbox: McpToolbox, options: Namespace, instructions: str) -> None:
    """Answer clients until a signal ends the server."""
    http.serve(
        lambda: _make_app(toolbox, instructions, host=options.host or http.LOOPBACK),
        options,
        path=PATH,
        extra="mcp",
        tell=lambda address: print(address, flush=True),
    )


def _make_app(toolbox: McpToolbox, instructions: str, *, host: str) -> ASGIApp:
    capabilities, library = toolbox.capabilities, Library(toolbox)

    async def work(run: Callable[..., Any], *given: Any) -> Any:
        """Run a function in a worker thread, because it reads files or the store. A missing resource is reported as an
        invalid parameter."""
        try:
            return await to_thread.run_sync(run, *given)
        except RolecallError as error:
            raise MCPError(code=protocol.INVALID_PARAMS, message=error.message) from error

    def lister(result: type[Any], key: str, read: Callable[[], Any]) -> Callable[..., Any]:
        async def reply(_context: Any, params: types.PaginatedRequestParams | None) -> Any:
            if params is not None and params.cursor is not None:
                raise MCPError(code=protocol.INVALID_PARAMS, message="unknown cursor")
            return result.model_validate({key: await work(read)})

        return reply

    def list_tools() -> list[JsonObject]:
        return [protocol.describe(tool, protocol.STATELESS_VERSIONS[-1]) for tool in toolbox.list_tools()]

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = toolbox.find(params.name)
        if tool is None:
            raise MCPError(code=protocol.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        loop = lowlevel.current_token()

        def report(fields: JsonObject) -> None:
            progress = (fields["progress"], fields.get("total"), fields["message"])
            from_thread.run(context.session.report_progress, *progress, token=loop)

        caller = Caller(report)
        try:
            outcome = await to_thread.run_sync(
                toolbox.run, tool, params.arguments or {}, caller, abandon_on_cancel=True
            )
        except get_cancelled_exc_class():
            caller.set()
            raise
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=outcome.json.decode())]
        structure = json.loads(outcome.json) if outcome.is_sent_twice else None
        return types.CallToolResult(content=content, structured_content=structure, is_error=outcome.is_error)

    async def read(_context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return types.ReadResourceResult.model_validate(
            {"contents": [await work(library.read, str(params.uri))]}
        )

    async def get_prompt(_context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        found = await work(skills.get_prompt, params.name, params.arguments or {})
        return types.GetPromptResult.model_validate(found)

    bus = InMemorySubscriptionBus()

    class Listen(ListenHandler):
        """A handler that watches the resources of a stream while the stream is open."""

        async def __call__(self, ctx: Any, params: types.SubscriptionsListenRequestParams) -> Any:
            loop = lowlevel.current_token()

            def tell(uri: str) -> None:
                from_thread.run(bus.publish, ResourceUpdated(uri), token=loop)

            end = await work(library.subscribe, params.notifications.resource_subscriptions or [], tell)
            try:
                return await super().__call__(ctx, params)
            finally:
                end()

    offered: dict[str, Any] = {}
    if "resources" in capabilities:
        templates = lister(types.ListResourceTemplatesResult, "resourceTemplates", library.list_templates)
        offered["on_list_resources"] = lister(types.ListResourcesResult, "resources", library.list_resources)
        offered["on_list_resource_templates"] = templates
        offered |= {"on_read_resource": read, "on_subscriptions_listen": Listen(bus)}
    if "prompts" in capabilities:
        offered["on_list_prompts"] = lister(types.ListPromptsResult, "prompts", skills.list_prompts)
        offered["on_get_prompt"] = get_prompt
    server: Server[Any] = Server(
        protocol.SERVER["name"],
        title=protocol.SERVER["title"],
        version=__version__,
        instructions=instructions or None,
        on_list_tools=lister(types.ListToolsResult, "tools", list_tools),
        on_call_tool=call_tool,
        **offered,
    )
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        # The SDK compares Host headers literally, but `service/http.py` has already compared them as host names.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=LONGEST,
        session_idle_timeout=IDLE_SECONDS,
        max_sessions=MOST_SESSIONS,
    )
    return app
