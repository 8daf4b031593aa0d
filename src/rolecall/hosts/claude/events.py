"""Claude Code: its hook events in our words, our answers as the JSON it reads. Facts in docs/hosts.md.

At SessionEnd nobody reads but a person who is shown the words of a hook that failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rolecall.hosts import hook_json
from rolecall.hosts.event import LEAD, Answer, Caller, Deed, Event, PostToolUse, UserMessage
from rolecall.hosts.hook_json import Limit, session_of
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, fields, is_our_tool, paths, reader, text

HAS_SKILL_COMMANDS = True
"""Skills are installed as such, so `/nx-plan` has the host put the skill's body before the model."""
SKILL_FILES = (".claude/skills/{}/SKILL.md", "~/.claude/skills/{}/SKILL.md")
"""Where `install` puts skills, for the project or for the user."""
LIMIT = Limit(2 * 9_900, "utf-16-le")
"""Of more than 10,000 characters the host shows the model the first 2,000 and the path of a file with the rest."""
_NOTIFICATION = "<task-notification>"
"""How the words begin that the host itself writes when an agent in the background has ended."""


def event(name: str, payload: Payload) -> Event | None:
    """The event in our words; None where it is nothing of ours."""
    return reader({**EVENTS, **hook_json.NOT_INSTALLED}, name, "Claude Code")(payload)


def _who(payload: Payload) -> Caller:
    """Agents are named in their own events and tool calls; without a kind it is the main conversation."""
    kind = text(payload, "agent_type")
    return Caller(kind, text(payload, "agent_id")) if kind else LEAD


def _message(payload: Payload) -> Event:
    said = text(payload, "prompt")
    if said.startswith(_NOTIFICATION):  # what an agent answered is no word of the user's, tags in it neither
        said = ""
    return UserMessage(session_of(payload), said, text(payload, "prompt_id"))


def _failure(payload: Payload) -> Event:
    error = text(payload, "error") or "it failed"
    return PostToolUse(session_of(payload), _who(payload), deed(payload), error)


# -- tools --

_EDITS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Write": ("file_path", ("file_creation", "file_modification")),
    "Edit": ("file_path", ("file_modification", "partial_file_edit")),
    "MultiEdit": ("file_path", ("file_modification", "partial_file_edit")),
    "NotebookEdit": ("notebook_path", ("file_modification", "structured_document_edit")),
}
"""For each tool that edits: where its input has the path, and what it does."""
_SHELLS = ("Bash", "Monitor")
_STARTS: Mapping[str, str] = {
    "Agent": "subagent_type",
    "Task": "subagent_type",
    "Workflow": "name",
    "SendMessage": "to",
}
"""For each tool that sets agents to work: where its input says which."""
_ANY_AGENT = "general-purpose"
_HARMLESS = frozenset((
    "AskUserQuestion", "BashOutput", "CronCreate", "CronDelete", "CronList", "EnterPlanMode", "ExitPlanMode",
    "EnterWorktree", "ExitWorktree", "Glob", "Grep", "KillShell", "ListAgents", "LS", "ReportFindings",
    "ScheduleWakeup", "Skill", "StructuredOutput", "TaskCreate", "TaskGet", "TaskList", "TaskOutput",
    "TaskStop", "TaskUpdate", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch",
))  # fmt: skip
"""Tools of the host that edit nothing, whatever their input looks like."""


def deed(payload: Payload) -> Deed:
    """What a tool is about to do, or did, by its name and its input."""
    tool, cwd = text(payload, "tool_name"), text(payload, "cwd") or os.sep
    given = fields(payload, "tool_input")
    if tool in _EDITS:
        key, classes = _EDITS[tool]
        return Deed(tool, classes, writes=paths(given, key, cwd))
    if tool == "Read":
        return Deed(tool, reads=paths(given, "file_path", cwd))
    if tool == "Skill":
        return Deed(tool, skill=text(given, "skill"), words=text(given, "args"))
    if tool in _STARTS:
        return Deed(tool, starts=text(given, _STARTS[tool]) or _ANY_AGENT)
    if tool in _HARMLESS or is_our_tool(tool):
        return Deed(tool)
    return _looked_at(tool, given, cwd)


def _looked_at(tool: str, given: Mapping[str, Any], cwd: str) -> Deed:
    from rolecall.hosts import tool_shape

    if tool in _SHELLS:
        return tool_shape.shell(tool, text(given, "command"), cwd)
    return tool_shape.guessed(tool, given, cwd)


EVENTS: Mapping[str, Reader] = {
    **hook_json.events(_who, _message, deed),
    "PostToolUseFailure": _failure,
}


def output(name: str, answer: Answer) -> Output:
    if name != "SessionEnd":
        return hook_json.output(name, answer, LIMIT)
    words = hook_json.joined(answer)
    return Output(stderr=words, code=1) if words else Output()
