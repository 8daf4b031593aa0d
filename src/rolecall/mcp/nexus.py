"""The eleven tools of a project, under the names from the project vocabulary, such as `nx_plan_start`."""

from __future__ import annotations

from typing import Any

from rolecall.api import Project
from rolecall.errors import RolecallError
from rolecall.mcp.tools import Caller, Effect, McpTool, ToolContext
from rolecall.nexus.dispatch import TOOLS as CONTRACT
from rolecall.nexus.dispatch import Tool, input_schema
from rolecall.nexus.tool_error import ToolError

PREFIX = "nx_"
_REPLACING = ("plan_update", "artifact_write")
"""Tools that can discard information that is stored nowhere else."""


def _make_tool(name: str, tool: Tool) -> McpTool:
    def run(place: ToolContext, _caller: Caller, /, **arguments: Any) -> bytes:
        try:
            return Project(place.project).call_tool(name, arguments, restrictions=place.restrictions)
        except ToolError as error:
            # The message is a fixed part of the contract, so no hint is added.
            raise RolecallError(error.message) from error

    effect: Effect = "reads" if tool.is_reader else "changes" if name in _REPLACING else "adds"
    return McpTool(
        PREFIX + name,
        tool.description,
        input_schema(tool),
        run,
        effect,
        classes=tool.denied_as,
        is_for_lead=tool.is_for_lead,
    )


TOOLS = tuple(_make_tool(name, tool) for name, tool in CONTRACT.items())
