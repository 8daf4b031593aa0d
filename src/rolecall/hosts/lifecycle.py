"""Finds and imports the function that handles an event in a host's session.

Events can arrive more than once, late, or not at all, and a hook can be killed at any point. Therefore an agent's start
is recorded in the session before the agent is listed, and its task is completed before the agent is marked as ended.
Inside a run of the engine, the caller plays a role of a thread, and only the gates and the log apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from rolecall.hosts import event as ours
from rolecall.hosts.event import Event, HostAnswer, PostToolUse, PreToolUse
from rolecall.hosts.hook_context import HookContext
from rolecall.nexus import project_paths

_FUNCTIONS: Mapping[type, tuple[str, str]] = {
    ours.SessionStart: ("on_session", "session_start"),
    ours.UserMessage: ("on_message", "user_message"),
    ours.SubagentSpawn: ("on_agent", "subagent_spawn"),
    ours.SubagentComplete: ("on_agent", "subagent_complete"),
    ours.PreToolUse: ("gate", "pre_tool_use"),
    ours.PostToolUse: ("on_tool", "post_tool_use"),
    ours.SessionEnd: ("on_session", "session_end"),
    ours.ContextCompact: ("on_session", "context_compact"),
}
EVENTS = tuple(name for _, name in _FUNCTIONS.values())
"""The names of the eight events."""


def handle(project: str, event: Event, hooks: HookContext, now: str) -> HostAnswer:
    if hooks.run and not isinstance(event, (PreToolUse, PostToolUse)):
        return HostAnswer()
    project_paths.use_harness(hooks.harness)
    module, function = _FUNCTIONS[type(event)]
    handler = getattr(import_module(f"rolecall.hosts.{module}"), function)
    answer: HostAnswer = handler(project, event, hooks, now)
    return answer
