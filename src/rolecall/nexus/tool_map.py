"""The names of our server's tools: those reserved for Lead, and how hosts spell them."""

from __future__ import annotations

from collections.abc import Mapping

from rolecall.nexus import dispatch

LEAD_ONLY = tuple(f"nx_{name}" for name, tool in dispatch.TOOLS.items() if tool.is_for_lead)
"""The tools that plan or decide, which no catalogue agent uses, regardless of its capabilities."""

TOOL_NAMES: Mapping[str, str] = {
    "claude": "mcp__rolecall__{}",
    "copilot": "rolecall({})",
    "gemini": "mcp_rolecall_{}",
    "opencode": "rolecall_{}",
    "qwen": "mcp__rolecall__{}",
}
"""The pattern by which each host names our server's tools, with `{}` for the tool."""
