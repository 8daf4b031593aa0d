"""Our OpenCode plugin's events converted to ours, and our answers to the JSON that the plugin reads. See docs/hosts.md.

OpenCode does not run commands as hooks. `plugin.js` does, and names its events after OpenCode's own hooks or the events
on OpenCode's bus. Every payload has `session` (the user's session, even if an agent acts), `child` and `agent` (the
session and kind of the acting agent, if there is one) and `cwd`. A message to an agent's session starts the agent.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import partial

from rolecall.hosts import event as ours
from rolecall.hosts.event import LEAD, Event, HostAnswer, HostCaller, HostToolCall
from rolecall.hosts.names import Output
from rolecall.hosts.payload import (
    Payload,
    Reader,
    fields,
    is_our_tool,
    paths,
    read_event,
    session,
    text,
    tool_shape,
)
from rolecall.settings.capabilities import FILES

HAS_SKILL_COMMANDS = True
"""Whether the host itself shows the model a skill's body when a user types `/nx-plan`."""
_ANY_AGENT = "general"
_RESULT = re.compile(r"<task_result>\n?(.*?)\n?</task_result>", re.DOTALL)
_IN_BACKGROUND = re.compile(r'<task [^>]*state="running"')
_EDITS: Mapping[str, tuple[str, ...]] = {
    "write": ("file_creation", "file_modification"),
    "edit": ("file_creation", "file_modification", "partial_file_edit"),
    "multiedit": ("file_creation", "file_modification", "partial_file_edit"),
}
"""For each tool that edits the file named in its input: the tool's classes of actions."""
_HARMLESS = frozenset((
    "codesearch", "glob", "grep", "invalid", "list", "lsp", "plan_enter", "plan_exit", "question", "skill",
    "todoread", "todowrite", "webfetch", "websearch",
))  # fmt: skip
"""The host's tools that edit nothing, regardless of their input."""


_session = partial(session, key="session")


def _who(payload: Payload) -> HostCaller:
    id = text(payload, "child")
    return HostCaller(text(payload, "agent") or _ANY_AGENT, id) if id else LEAD


def _message(payload: Payload) -> Event:
    who = _who(payload)
    if who != LEAD:
        return ours.SubagentSpawn(_session(payload), who)
    return ours.UserMessage(_session(payload), text(payload, "text"), text(payload, "message"))


def _complete(payload: Payload) -> Event | None:
    """Convert the end of an agent. The call that starts a background agent returns before the agent ends."""
    who, output = _who(payload), text(payload, "output")
    if who == LEAD or _IN_BACKGROUND.match(output):
        return None
    result = _RESULT.search(output)
    return ours.SubagentComplete(_session(payload), who, result[1] if result else output)


EVENTS: Mapping[str, Reader] = {
    "session.created": lambda payload: ours.SessionStart(
        _session(payload), is_new=payload.get("isNew") is not False, cwd=text(payload, "cwd")
    ),
    "chat.message": _message,
    "tool.execute.before": lambda payload: ours.PreToolUse(
        _session(payload), _who(payload), tool_call(payload)
    ),
    "tool.execute.after": lambda payload: ours.PostToolUse(
        _session(payload), _who(payload), tool_call(payload), text(payload, "error")
    ),
    "subagent.completed": _complete,
    # Only Lead has to be reminded; an agent has its task in its prompt.
    "experimental.session.compacting": lambda payload: (
        ours.ContextCompact(_session(payload)) if _who(payload) == LEAD else None
    ),
    "session.idle": lambda payload: ours.SessionEnd(_session(payload), is_over=False),
    "session.deleted": lambda payload: ours.SessionEnd(_session(payload)),
    "dispose": lambda payload: ours.SessionEnd(_session(payload)),
}
event = partial(read_event, EVENTS, "OpenCode's plugin")


def tool_call(payload: Payload) -> HostToolCall:
    """Classify a tool call by the tool's name and input."""
    tool, given = text(payload, "tool"), fields(payload, "args")
    cwd = text(payload, "cwd") or os.sep
    if tool in _EDITS:
        return HostToolCall(tool, _EDITS[tool], writes=paths(given, "filePath", cwd))
    if tool == "read":
        return HostToolCall(tool, reads=paths(given, "filePath", cwd))
    if tool == "skill":
        return HostToolCall(tool, skill=text(given, "name"))
    if tool == "task":
        return HostToolCall(tool, starts=text(given, "subagent_type") or _ANY_AGENT)
    if tool in _HARMLESS or is_our_tool(tool):
        return HostToolCall(tool)
    if tool in ("patch", "apply_patch"):
        files = tool_shape.find_patched_files(text(given, "patchText"))
        return HostToolCall(tool, FILES, writes=tuple(os.path.join(cwd, path) for path in files))
    if tool == "bash":
        return tool_shape.shell(tool, text(given, "command"), os.path.join(cwd, text(given, "workdir")))
    return tool_shape.guess(tool, given, cwd)


def output(name: str, answer: HostAnswer) -> Output:  # noqa: ARG001 -- the plugin knows what it asked
    filled = {key: value for key, value in answer._asdict().items() if value}
    return Output(json.dumps(filled, ensure_ascii=False)) if filled else Output()
