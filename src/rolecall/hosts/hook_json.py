"""The events and answers of Claude Code's hooks as JSON, a format that Codex has adopted.

A tool is blocked by JSON with exit code 0, never by exit code 2, because a command that fails must not block. Context
for the model at the end of a turn, or at the end of an agent, would make the model continue, so the person is
shown the context instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from rolecall.hosts import event as ours
from rolecall.hosts.event import LEAD, Event, HostAnswer, HostCaller, HostToolCall
from rolecall.hosts.names import Output
from rolecall.hosts.payload import Payload, Reader, session, text

_ENDS = ("Stop", "SubagentStop", "SessionEnd")
_CUT = "…\n(cut here: the host takes no more from a hook. nx_context and nx_task_list show the state of the project.)"


session_of = partial(session, key="session_id")


def events(
    who: Callable[[Payload], HostCaller], message: Reader, tool_call: Callable[[Payload], HostToolCall]
) -> dict[str, Reader]:
    """Return the readers of the events of Claude Code and Codex, which differ only in these three functions."""

    def start(payload: Payload) -> Event:
        source = text(payload, "source")
        if source == "compact":
            return ours.ContextCompact(session_of(payload))
        return ours.SessionStart(session_of(payload), is_new=source != "resume", cwd=text(payload, "cwd"))

    def spawn(payload: Payload) -> Event | None:
        agent = who(payload)
        return ours.SubagentSpawn(session_of(payload), agent) if agent != LEAD else None

    def complete(payload: Payload) -> Event | None:
        # Compaction ends an agent that has no type and was never reported as started.
        agent, last = who(payload), text(payload, "last_assistant_message")
        return ours.SubagentComplete(session_of(payload), agent, last) if agent != LEAD else None

    return {
        "SessionStart": start,
        "UserPromptSubmit": message,
        "SubagentStart": spawn,
        "SubagentStop": complete,
        "PreToolUse": lambda payload: ours.PreToolUse(session_of(payload), who(payload), tool_call(payload)),
        "PostToolUse": lambda payload: ours.PostToolUse(
            session_of(payload), who(payload), tool_call(payload)
        ),
        "Stop": lambda payload: ours.SessionEnd(session_of(payload), is_over=False),
        "SessionEnd": lambda payload: ours.SessionEnd(session_of(payload)),
    }


NOT_INSTALLED: Mapping[str, Reader] = {
    "PostCompact": lambda payload: ours.ContextCompact(session_of(payload))
}
"""Events that we do not install: after a compaction, the model sees only the answer to SessionStart."""


class TextLimit(NamedTuple):
    """The limit on the length of a hook's text that a host shows the model."""

    bytes: int
    encoding: str
    """The encoding in which the bytes are counted."""


def output(name: str, answer: HostAnswer, limit: TextLimit) -> Output:
    reply: dict[str, object] = {"systemMessage": join(answer) if name in _ENDS else answer.notice}
    if name not in _ENDS:
        context = answer.context
        # No character takes more than four bytes, so short texts need not be encoded. A host would cut a longer text
        # without notice.
        data = context.encode(limit.encoding, errors="replace") if 4 * len(context) > limit.bytes else b""
        if len(data) > limit.bytes:
            room = limit.bytes - len(_CUT.encode(limit.encoding))
            context = data[:room].decode(limit.encoding, errors="ignore") + _CUT
        specific = {"additionalContext": context}
        if name == "PreToolUse" and answer.block:
            specific |= {"permissionDecision": "deny", "permissionDecisionReason": answer.block}
        if specific := {key: value for key, value in specific.items() if value}:
            reply["hookSpecificOutput"] = {"hookEventName": name, **specific}
    reply = {key: value for key, value in reply.items() if value}
    return Output(json.dumps(reply, ensure_ascii=False)) if reply else Output()


def join(answer: HostAnswer) -> str:
    """Return all texts of an answer, for the person."""
    return "\n".join(dict.fromkeys(filter(None, (answer.notice, answer.context))))
