"""Hooks as Claude Code has them and Codex took them over: the same events in the same JSON, and the same answers.

Blocking is said in JSON with exit 0, never by exit 2: a command that fails for whatever reason must not block. What
is put before the model where it or an agent ends would make it go on, so there the person is told instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
)
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, session, text

_ENDS = ("Stop", "SubagentStop", "SessionEnd")


def session_of(payload: Payload) -> str:
    return session(payload, "session_id")


def events(
    who: Callable[[Payload], Caller], message: Reader, deed: Callable[[Payload], Deed]
) -> dict[str, Reader]:
    """The events that both hosts have. What differs is how they say who acts, what a message of the user is, and
    what tools do."""

    def start(payload: Payload) -> Event:
        source = text(payload, "source")
        if source == "compact":
            return ContextCompact(session_of(payload))
        return SessionStart(session_of(payload), is_new=source != "resume", cwd=text(payload, "cwd"))

    def spawn(payload: Payload) -> Event | None:
        agent = who(payload)
        return SubagentSpawn(session_of(payload), agent) if agent != LEAD else None

    def complete(payload: Payload) -> Event | None:
        """Compaction ends an agent without a kind that nobody was told of: nothing of ours."""
        agent, last = who(payload), text(payload, "last_assistant_message")
        return SubagentComplete(session_of(payload), agent, last) if agent != LEAD else None

    return {
        "SessionStart": start,
        "UserPromptSubmit": message,
        "SubagentStart": spawn,
        "SubagentStop": complete,
        "PreToolUse": lambda payload: PreToolUse(session_of(payload), who(payload), deed(payload)),
        "PostToolUse": lambda payload: PostToolUse(session_of(payload), who(payload), deed(payload)),
        "Stop": lambda payload: SessionEnd(session_of(payload), is_over=False),
        "SessionEnd": lambda payload: SessionEnd(session_of(payload)),
    }


NOT_INSTALLED: Mapping[str, Reader] = {"PostCompact": lambda payload: ContextCompact(session_of(payload))}
"""Events that are understood but not installed: after a compaction SessionStart fires, too, and its answer reaches the
model."""


# -- answers --


class Limit(NamedTuple):
    """How much of a hook's words a host puts before the model."""

    bytes: int
    encoding: str
    """In which they are counted."""


def output(name: str, answer: Answer, limit: Limit) -> Output:
    if name in _ENDS:
        return _said({"systemMessage": joined(answer)})
    specific = {"additionalContext": _fitted(answer.context, limit)}
    if name == "PreToolUse" and answer.block:
        specific |= {"permissionDecision": "deny", "permissionDecisionReason": answer.block}
    specific = {key: value for key, value in specific.items() if value}
    said: dict[str, Any] = {"systemMessage": answer.notice}
    if specific:
        said["hookSpecificOutput"] = {"hookEventName": name, **specific}
    return _said(said)


def joined(answer: Answer) -> str:
    """Everything an answer says, for the person."""
    return "\n".join(dict.fromkeys(filter(None, (answer.notice, answer.context))))


def _said(answer: Mapping[str, Any]) -> Output:
    told = {key: value for key, value in answer.items() if value}
    return Output(json.dumps(told, ensure_ascii=False)) if told else Output()


_CUT = "…\n(cut here: the host takes no more from a hook. nx_context and nx_task_list tell how things stand.)"


def _fitted(context: str, limit: Limit) -> str:
    """What a host would cut is cut here, where it can be said."""
    if len(context) * 4 <= limit.bytes:  # no letter takes more in any encoding
        return context
    data = context.encode(limit.encoding, errors="replace")
    if len(data) <= limit.bytes:
        return context
    room = limit.bytes - len(_CUT.encode(limit.encoding))
    return data[:room].decode(limit.encoding, errors="ignore") + _CUT
