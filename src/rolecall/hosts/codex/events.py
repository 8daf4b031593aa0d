"""Codex: its hook events in our words, our answers as the JSON it reads. Facts in docs/hosts.md.

The events and the JSON are those of Claude Code, the tools are not: files are edited by patches and read by commands.
A message of Lead's to an agent comes as a prompt of the user's with the agent's id, and is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from rolecall.hosts import hook_json
from rolecall.hosts.event import LEAD, Answer, Caller, Deed, Event, UserMessage
from rolecall.hosts.hook_json import Limit, session_of
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, fields, is_our_tool, paths, reader, text
from rolecall.settings.capabilities import FILES

CONTEXT_TOKENS = 8_000
"""What Codex is told to let through of a hook's words; without being told, it cuts them at 2,500 tokens."""
LIMIT = Limit(4 * CONTEXT_TOKENS - 1_000, "utf-8")
"""Codex takes four bytes for a token."""
SKILL_FILES = (".codex/skills/{}/SKILL.md", "~/.codex/skills/{}/SKILL.md")
"""Where `install` puts skills, for the project or for the user."""
_ANY_AGENT = "default"


def event(name: str, payload: Payload) -> Event | None:
    """The event in our words; None where it is nothing of ours."""
    return reader({**EVENTS, **hook_json.NOT_INSTALLED}, name, "Codex")(payload)


def _who(payload: Payload) -> Caller:
    """Agents are named in their own events and tool calls; without an id it is the main conversation."""
    id = text(payload, "agent_id")
    return Caller(text(payload, "agent_type") or _ANY_AGENT, id) if id else LEAD


def _message(payload: Payload) -> Event | None:
    if _who(payload) != LEAD:
        return None
    return UserMessage(session_of(payload), text(payload, "prompt"), text(payload, "turn_id"))


# -- tools --

_GROUP = re.compile(r"^(?:multi_agent_v\d+|collaboration)_*")
"""What Codex writes before the names of the tools that are about agents, in some of its ways to have agents."""
_STARTS: Mapping[str, str] = {
    "spawn_agent": "agent_type",
    "send_input": "target",
    "resume_agent": "id",
    "followup_task": "target",
}
"""For each tool that sets agents to work: where its input says which."""
_HARMLESS = frozenset((
    "close_agent", "create_goal", "get_goal", "interrupt_agent", "list_agents", "list_mcp_resource_templates",
    "list_mcp_resources", "read_mcp_resource", "request_user_input", "request_user_input_async", "send_message",
    "sleep", "tool_search", "update_goal", "update_plan", "wait", "wait_agent", "web_search",
))  # fmt: skip
"""Tools of the host that edit nothing, whatever their input looks like."""


def deed(payload: Payload) -> Deed:
    """What a tool is about to do, or did, by its name and its input."""
    tool, cwd = text(payload, "tool_name"), text(payload, "cwd") or os.sep
    given, name = fields(payload, "tool_input"), _GROUP.sub("", tool)
    if name in _STARTS:
        return Deed(tool, starts=text(given, _STARTS[name]) or _ANY_AGENT)
    if name in _HARMLESS or is_our_tool(tool):
        return Deed(tool)
    if tool == "view_image":
        return Deed(tool, reads=paths(given, "path", cwd))
    from rolecall.hosts import shell_writes, tool_shape

    command = text(given, "command")
    if tool == "apply_patch":
        return Deed(
            tool, FILES, writes=tuple(os.path.join(cwd, path) for path in shell_writes.patched_files(command))
        )
    if tool == "Bash":
        done = tool_shape.shell(tool, command, cwd)
        skills = [path.split(os.sep)[-2] for path in done.reads if path.endswith("/SKILL.md")]
        return done._replace(skill=skills[-1]) if skills else done
    return tool_shape.guessed(tool, given, cwd)


EVENTS: Mapping[str, Reader] = hook_json.events(_who, _message, deed)


def output(name: str, answer: Answer) -> Output:
    return hook_json.output(name, answer, LIMIT)
