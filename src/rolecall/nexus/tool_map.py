"""The tools that perform the actions an agent is denied: in our own server, and in the hosts we know.

A map goes from a class of actions to tool names. A class that is missing from a map is an error, because a denial that
reaches no tool denies nothing; an empty class means that the host has no such tools. Adapters handle agents that are
restricted by settings (a sandbox, a mode) rather than by tool names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module

from rolecall.errors import NotFound, UsageError
from rolecall.nexus import dispatch
from rolecall.nexus.catalog import CatalogAgent, effective
from rolecall.settings import capabilities

ToolMap = Mapping[str, tuple[str, ...]]

SERVER: ToolMap = {
    **dict.fromkeys((*capabilities.FILES, *capabilities.SHELL, *capabilities.SHELL_WRITES), ()),
    "nexus_task_creation": ("nx_task_add",),
    "nexus_task_state_transition": ("nx_task_update", "nx_task_close"),
    "nexus_task_metadata_modification": ("nx_task_update",),
}
"""The tools of our own server. Artifacts are not project files, so no class denies writing them."""

LEAD_ONLY = tuple(f"nx_{name}" for name, tool in dispatch.TOOLS.items() if tool.is_for_lead)
"""No agent of the catalogue plans or decides; that is reserved for Lead, whatever the capabilities are."""

_HOSTS: Mapping[str, str] = {
    "claude": "mcp__rolecall__{}",
    "copilot": "rolecall({})",
    "gemini": "mcp_rolecall_{}",
    "opencode": "rolecall_{}",
    "qwen": "mcp__rolecall__{}",
}
"""Hosts whose tools are denied by name, and how each names our server's tools."""
HOSTS = tuple(_HOSTS)


def tool_name(host: str) -> str:
    """How a host names our server's tools, with `{}` for the tool; empty if that is not known."""
    return _HOSTS.get(host, "")


def host_map(host: str) -> ToolMap:
    """The tools of a host: its own, from its adapter, and ours under the names it gives them."""
    if host not in _HOSTS:
        raise NotFound(
            f"the tools of {host!r} are not known", hint=f"Hosts with a table of tools: {', '.join(HOSTS)}."
        )
    own: ToolMap = import_module(f"rolecall.agents.adapters.{host}").DENIES
    ours = {
        name: tuple(_HOSTS[host].format(tool) for tool in SERVER[name]) for name in capabilities.BY_OURSELVES
    }
    return {**own, **ours}


def denied_tools(agent: CatalogAgent, tools: ToolMap, additions: Collection[str] = ()) -> tuple[str, ...]:
    """The tools an agent may not use because they perform denied actions, sorted by name."""
    denied: set[str] = set()
    for name in capabilities.denied_classes(effective(agent, additions)):
        if name not in tools:
            raise UsageError(
                f"{agent.id} is denied {name}, and no tool is known that does it",
                hint="Name the host's tools for this class, or none if it has none.",
            )
        denied.update(tools[name])
    return tuple(sorted(denied))
