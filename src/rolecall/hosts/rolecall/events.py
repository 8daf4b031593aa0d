"""Our own format for hosts that have no module of their own: the eight events by name, each a JSON object.

docs/hooks.md lists the fields. A tool call is judged by its input (`tool_shape`). The answer is an object with those of
the keys "block", "context" and "notice" that have a value, and the exit code is 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial

from rolecall.errors import UsageError
from rolecall.hosts import event as ours
from rolecall.hosts.event import LEAD, HostAnswer, HostCaller, HostToolCall
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, read_event
from rolecall.hosts.tool_shape import guess


def output(name: str, answer: HostAnswer) -> Output:  # noqa: ARG001 -- all events have the same answer format
    filled = {key: text for key, text in answer._asdict().items() if text}
    return Output(json.dumps(filled, ensure_ascii=False) + "\n")


def _text(payload: Payload, key: str, *, is_needed: bool = False) -> str:
    value = payload.get(key, "")
    if not isinstance(value, str) or (is_needed and not value):
        raise UsageError(f"the event's {key!r} is {value!r}, not a text", hint=f"Give {key} as a string.")
    return value


def _flag(payload: Payload, key: str) -> bool:
    value = payload.get(key, True)
    if not isinstance(value, bool):
        raise UsageError(f"the event's {key!r} is {value!r}, not true or false")
    return value


_session = partial(_text, key="session", is_needed=True)


def _who(payload: Payload) -> HostCaller:
    who = HostCaller(_text(payload, "agent"), _text(payload, "agent_id"))
    return who if any(who) else LEAD


def _tool_call(payload: Payload) -> HostToolCall:
    arguments = payload.get("input", {})
    if not isinstance(arguments, dict):
        hint = "Give the tool's arguments as an object."
        raise UsageError("the event's 'input' is not an object", hint=hint)
    cwd = _text(payload, "cwd") or os.getcwd()
    starts, skill, words = (_text(payload, key) for key in ("starts", "skill", "words"))
    call = guess(_text(payload, "tool", is_needed=True), arguments, cwd)
    return call._replace(starts=starts, skill=skill, words=words)


EVENTS: Mapping[str, Reader] = {
    "session_start": lambda payload: ours.SessionStart(
        _session(payload), _flag(payload, "is_new"), _text(payload, "cwd")
    ),
    "user_message": lambda payload: ours.UserMessage(
        _session(payload), _text(payload, "text"), _text(payload, "id")
    ),
    "subagent_spawn": lambda payload: ours.SubagentSpawn(_session(payload), _who(payload)),
    "subagent_complete": lambda payload: ours.SubagentComplete(
        _session(payload), _who(payload), _text(payload, "last_message")
    ),
    "pre_tool_use": lambda payload: ours.PreToolUse(_session(payload), _who(payload), _tool_call(payload)),
    "post_tool_use": lambda payload: ours.PostToolUse(
        _session(payload), _who(payload), _tool_call(payload), _text(payload, "error")
    ),
    "session_end": lambda payload: ours.SessionEnd(_session(payload), _flag(payload, "is_over")),
    "context_compact": lambda payload: ours.ContextCompact(_session(payload)),
}
event = partial(read_event, EVENTS, "Rolecall")
