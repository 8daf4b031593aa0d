"""Claude Code's hook events converted to ours, and our answers to its JSON. See docs/hosts.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from rolecall.hosts import hook_json
from rolecall.hosts.event import LEAD, Event, HostAnswer, HostCaller, HostToolCall, PostToolUse, UserMessage
from rolecall.hosts.hook_json import TextLimit, session_of
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, fields, is_our_tool, paths, read_event, text, tool_shape

HAS_SKILL_COMMANDS = True
"""Whether the host itself shows the model a skill's body when a user types `/nx-plan`."""
SKILL_FILES = (".claude/skills/{}/SKILL.md", "~/.claude/skills/{}/SKILL.md")
"""The paths to which `install` writes skills, for the project and for the user."""
LIMIT = TextLimit(2 * 9_900, "utf-16-le")
"""The limit on a hook's text. Of a text over 10,000 characters, the host shows the model only the first 2,000."""
_NOTIFICATION = "<task-notification>"
"""The start of the message that the host itself writes when a background agent has ended."""
_EDITS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Write": ("file_path", ("file_creation", "file_modification")),
    "Edit": ("file_path", ("file_modification", "partial_file_edit")),
    "MultiEdit": ("file_path", ("file_modification", "partial_file_edit")),
    "NotebookEdit": ("notebook_path", ("file_modification", "structured_document_edit")),
}
"""For each editing tool: the key of the path in its input, and its classes of actions."""
_SHELLS = ("Bash", "Monitor")
_STARTS: Mapping[str, str] = {
    "Agent": "subagent_type",
    "Task": "subagent_type",
    "Workflow": "name",
    "SendMessage": "to",
}
"""For each tool that starts agents or sends them messages: the key in its input that identifies the agent."""
_ANY_AGENT = "general-purpose"
_HARMLESS = frozenset((
    "AskUserQuestion", "BashOutput", "CronCreate", "CronDelete", "CronList", "EnterPlanMode", "ExitPlanMode",
    "EnterWorktree", "ExitWorktree", "Glob", "Grep", "KillShell", "ListAgents", "LS", "ReportFindings",
    "ScheduleWakeup", "Skill", "StructuredOutput", "TaskCreate", "TaskGet", "TaskList", "TaskOutput",
    "TaskStop", "TaskUpdate", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch",
))  # fmt: skip
"""The host's tools that edit nothing, regardless of their input."""


def _who(payload: Payload) -> HostCaller:
    kind = text(payload, "agent_type")
    return HostCaller(kind, text(payload, "agent_id")) if kind else LEAD


def _message(payload: Payload) -> Event:
    prompt = text(payload, "prompt")
    if prompt.startswith(_NOTIFICATION):  # the message is an agent's answer, whose tags are not the user's
        prompt = ""
    return UserMessage(session_of(payload), prompt, text(payload, "prompt_id"))


def tool_call(payload: Payload) -> HostToolCall:
    """Classify a tool call by the tool's name and input."""
    tool, cwd = text(payload, "tool_name"), text(payload, "cwd") or os.sep
    given = fields(payload, "tool_input")
    if tool in _EDITS:
        key, classes = _EDITS[tool]
        return HostToolCall(tool, classes, writes=paths(given, key, cwd))
    if tool == "Read":
        return HostToolCall(tool, reads=paths(given, "file_path", cwd))
    if tool == "Skill":
        return HostToolCall(tool, skill=text(given, "skill"), words=text(given, "args"))
    if tool in _STARTS:
        return HostToolCall(tool, starts=text(given, _STARTS[tool]) or _ANY_AGENT)
    if tool in _HARMLESS or is_our_tool(tool):
        return HostToolCall(tool)
    if tool in _SHELLS:
        return tool_shape.shell(tool, text(given, "command"), cwd)
    return tool_shape.guess(tool, given, cwd)


EVENTS: Mapping[str, Reader] = {
    **hook_json.events(_who, _message, tool_call),
    "PostToolUseFailure": lambda payload: PostToolUse(
        session_of(payload), _who(payload), tool_call(payload), text(payload, "error") or "it failed"
    ),
}
event = partial(read_event, {**EVENTS, **hook_json.NOT_INSTALLED}, "Claude Code")


def output(name: str, answer: HostAnswer) -> Output:
    """Format an answer. At SessionEnd, only a person sees a hook's output, and only if the hook fails."""
    if name != "SessionEnd":
        return hook_json.output(name, answer, LIMIT)
    words = hook_json.join(answer)
    return Output(stderr=words, code=1) if words else Output()
