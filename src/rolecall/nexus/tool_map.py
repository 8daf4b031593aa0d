"""The names of our server's tools: those for Lead alone, and how hosts spell them."""

from __future__ import annotations

from collections.abc import Mapping

from rolecall.nexus import dispatch

LEAD_ONLY = tuple(f"nx_{name}" for name, tool in dispatch.TOOLS.items() if tool.is_for_lead)
"""No agent of the catalogue plans or decides; that is reserved for Lead, regardless of capabilities."""

TOOL_NAMES: Mapping[str, str] = {
    "claude": "mcp__rolecall__{}",
    "copilot": "rolecall({})",
    "gemini": "mcp_rolecall_{}",
    "opencode": "rolecall_{}",
    "qwen": "mcp__rolecall__{}",
}
"""How hosts name our server's tools, with `{}` for the tool."""
