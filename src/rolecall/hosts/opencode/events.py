"""OpenCode: what our plugin tells in our words, our answers as the JSON that it does. Facts in docs/hosts.md.

OpenCode runs no commands as hooks; `wiring/opencode_plugin.js` does, and names events as OpenCode's own hooks, or its
bus, name them. Every payload has `session` (that of the user, also where an agent acts), `child` and `agent` (the
session of that agent and its kind, where one acts) and `cwd`. A message to the session of an agent starts it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from rolecall.hosts.event import (
    LEAD,
    Answer,
    Caller,
    ContextCompact,
    Deed,
    Event,
    PostToolUse,
    PreToolUse,
    SessionEnd,
    SessionStart,
    SubagentComplete,
    SubagentSpawn,
    UserMessage,
)
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, fields, is_our_tool, paths, reader, session, text
from rolecall.settings.capabilities import FILES

HAS_SKILL_COMMANDS = True
"""Skills are commands there: `/nx-plan` has the host put the skill's body before the model."""
_ANY_AGENT = "general"


def event(name: str, payload: Payload) -> Event | None:
    """The event in our words; None where it is nothing of ours."""
    return reader(EVENTS, name, "OpenCode's plugin")(payload)


def _session(payload: Payload) -> str:
    return session(payload, "session")


def _who(payload: Payload) -> Caller:
    id = text(payload, "child")
    return Caller(text(payload, "agent") or _ANY_AGENT, id) if id else LEAD


def _message(payload: Payload) -> Event:
    who = _who(payload)
    if who != LEAD:
        return SubagentSpawn(_session(payload), who)
    return UserMessage(_session(payload), text(payload, "text"), text(payload, "message"))


_RESULT = re.compile(r"<task_result>\n?(.*?)\n?</task_result>", re.DOTALL)
_IN_BACKGROUND = re.compile(r'<task [^>]*state="running"')


def _complete(payload: Payload) -> Event | None:
    """An agent in the background has only begun when its call returns."""
    who, told = _who(payload), text(payload, "output")
    if who == LEAD or _IN_BACKGROUND.match(told):
        return None
    result = _RESULT.search(told)
    return SubagentComplete(_session(payload), who, result[1] if result else told)


def _compact(payload: Payload) -> Event | None:
    """What has to be said again is Lead's; an agent has its task in its prompt."""
    return ContextCompact(_session(payload)) if _who(payload) == LEAD else None


def _after_tool(payload: Payload) -> Event:
    return PostToolUse(_session(payload), _who(payload), deed(payload), text(payload, "error"))


def _over(payload: Payload) -> Event:
    return SessionEnd(_session(payload))


EVENTS: Mapping[str, Reader] = {
    "session.created": lambda payload: SessionStart(
        _session(payload), is_new=payload.get("isNew") is not False, cwd=text(payload, "cwd")
    ),
    "chat.message": _message,
    "tool.execute.before": lambda payload: PreToolUse(_session(payload), _who(payload), deed(payload)),
    "tool.execute.after": _after_tool,
    "subagent.completed": _complete,
    "experimental.session.compacting": _compact,
    "session.idle": lambda payload: SessionEnd(_session(payload), is_over=False),
    "session.deleted": _over,
    "dispose": _over,
}


# -- tools --

_EDITS: Mapping[str, tuple[str, ...]] = {
    "write": ("file_creation", "file_modification"),
    "edit": ("file_creation", "file_modification", "partial_file_edit"),
    "multiedit": ("file_creation", "file_modification", "partial_file_edit"),
}
"""What the tools do that edit the file their input names."""
_PATCHES = ("patch", "apply_patch")
_HARMLESS = frozenset((
    "codesearch", "glob", "grep", "invalid", "list", "lsp", "plan_enter", "plan_exit", "question", "skill",
    "todoread", "todowrite", "webfetch", "websearch",
))  # fmt: skip
"""Tools of the host that edit nothing, whatever their input looks like."""


def deed(payload: Payload) -> Deed:
    """What a tool is about to do, or did, by its name and its input."""
    tool, given = text(payload, "tool"), fields(payload, "args")
    cwd = text(payload, "cwd") or os.sep
    if tool in _EDITS:
        return Deed(tool, _EDITS[tool], writes=paths(given, "filePath", cwd))
    if tool == "read":
        return Deed(tool, reads=paths(given, "filePath", cwd))
    if tool == "skill":
        return Deed(tool, skill=text(given, "name"))
    if tool == "task":
        return Deed(tool, starts=text(given, "subagent_type") or _ANY_AGENT)
    if tool in _HARMLESS or is_our_tool(tool):
        return Deed(tool)
    from rolecall.hosts import shell_writes, tool_shape

    if tool in _PATCHES:
        patched = shell_writes.patched_files(text(given, "patchText"))
        return Deed(tool, FILES, writes=tuple(os.path.join(cwd, path) for path in patched))
    if tool == "bash":
        return tool_shape.shell(tool, text(given, "command"), os.path.join(cwd, text(given, "workdir")))
    return tool_shape.guessed(tool, given, cwd)


# -- answers --


def output(name: str, answer: Answer) -> Output:  # noqa: ARG001 -- the plugin knows what it asked
    told = {key: value for key, value in answer._asdict().items() if value}
    return Output(json.dumps(told, ensure_ascii=False)) if told else Output()
