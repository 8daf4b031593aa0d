"""Codex's hook events converted to ours, and our answers to the JSON that Codex reads. See docs/hosts.md.

The events and the JSON are those of Claude Code, but the tools differ: files are edited by patches and read by
commands. A message from Lead to an agent looks like a user's prompt that carries the agent's id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial

from rolecall.hosts import hook_json
from rolecall.hosts.event import LEAD, Event, HostCaller, HostToolCall, UserMessage
from rolecall.hosts.hook_json import TextLimit, session_of
from rolecall.hosts.payload import Payload, Reader, fields, is_our_tool, paths, read_event, text, tool_shape
from rolecall.settings.capabilities import FILES

CONTEXT_TOKENS = 8_000
"""The number of tokens in a hook's text that we configure Codex to accept; Codex's default limit is 2,500."""
LIMIT = TextLimit(4 * CONTEXT_TOKENS - 1_000, "utf-8")
"""The limit on a hook's text. Codex counts four bytes as one token."""
SKILL_FILES = (".codex/skills/{}/SKILL.md", "~/.codex/skills/{}/SKILL.md")
"""The paths to which `install` writes skills, for the project and for the user."""
_ANY_AGENT = "default"
_GROUP = re.compile(r"^(?:multi_agent_v\d+|collaboration)_*")
"""The prefix of agent tools in some of Codex's modes."""
_STARTS: Mapping[str, str] = {
    "spawn_agent": "agent_type",
    "send_input": "target",
    "resume_agent": "id",
    "followup_task": "target",
}
"""For each tool that starts agents or sends them messages: the key in its input that identifies the agent."""
_HARMLESS = frozenset((
    "close_agent", "create_goal", "get_goal", "interrupt_agent", "list_agents", "list_mcp_resource_templates",
    "list_mcp_resources", "read_mcp_resource", "request_user_input", "request_user_input_async", "send_message",
    "sleep", "tool_search", "update_goal", "update_plan", "wait", "wait_agent", "web_search",
))  # fmt: skip
"""The host's tools that edit nothing, regardless of their input."""


def _who(payload: Payload) -> HostCaller:
    id = text(payload, "agent_id")
    return HostCaller(text(payload, "agent_type") or _ANY_AGENT, id) if id else LEAD


def _message(payload: Payload) -> Event | None:
    if _who(payload) != LEAD:
        return None
    return UserMessage(session_of(payload), text(payload, "prompt"), text(payload, "turn_id"))


def tool_call(payload: Payload) -> HostToolCall:
    """Classify a tool call by the tool's name and input."""
    tool, cwd = text(payload, "tool_name"), text(payload, "cwd") or os.sep
    given, name = fields(payload, "tool_input"), _GROUP.sub("", tool)
    if name in _STARTS:
        return HostToolCall(tool, starts=text(given, _STARTS[name]) or _ANY_AGENT)
    if name in _HARMLESS or is_our_tool(tool):
        return HostToolCall(tool)
    if tool == "view_image":
        return HostToolCall(tool, reads=paths(given, "path", cwd))
    command = text(given, "command")
    if tool == "apply_patch":
        files = tool_shape.find_patched_files(command)
        return HostToolCall(tool, FILES, writes=tuple(os.path.join(cwd, path) for path in files))
    if tool != "Bash":
        return tool_shape.guess(tool, given, cwd)
    call = tool_shape.shell(tool, command, cwd)
    skills = [path.split(os.sep)[-2] for path in call.reads if path.endswith("/SKILL.md")]
    return call._replace(skill=skills[-1]) if skills else call


EVENTS: Mapping[str, Reader] = hook_json.events(_who, _message, tool_call)
event = partial(read_event, {**EVENTS, **hook_json.NOT_INSTALLED}, "Codex")
output = partial(hook_json.output, limit=LIMIT)
