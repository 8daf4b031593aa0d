"""What an agent tells while it works on a prompt (`session/update`), and what its questions are answered.

A reader folds the updates of one prompt, as the agent sent them. They are not put through the types of the
protocol's package, because an update of a kind that is newer than the package must not disturb the others.

Permissions go by the kind of a tool call, which the protocol defines. What says no kind, or `other`, may be
anything, so every restriction denies it; only tools of servers that the role itself was given are let through.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolecall.agents.acp_presets import Preset
from rolecall.agents.program import Reader, count, mapping
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.agents.transcript import text_of
from rolecall.settings import capabilities

_EDITS = ("file_creation", "file_modification", "partial_file_edit", "structured_document_edit")
_COMMANDS = (*capabilities.SHELL, *capabilities.SHELL_WRITES)
_ANYTHING = (*capabilities.FILES, *_COMMANDS)

KINDS: Mapping[str, tuple[str, ...]] = {
    "read": (),
    "search": (),
    "think": (),
    "fetch": (),
    "edit": _EDITS,
    "delete": ("file_deletion",),
    "move": ("file_creation", "file_modification", "file_deletion"),
    "execute": _COMMANDS,
    "switch_mode": _ANYTHING,
    "other": _ANYTHING,
}
"""The kinds of tool calls, and the classes of actions each of them may be."""

ENDINGS: Mapping[str, Ending] = {
    "end_turn": "completed",
    "max_tokens": "limit",
    "max_turn_requests": "limit",
    "refusal": "refused",
    "cancelled": "interrupted",
}
"""How a prompt ended, by its stop reason."""

_CHANGING = ("edit", "delete", "move")
_MOST_TOOLS = 1000
_LONGEST_TITLE = 500
_ENDED = ("completed", "failed")
_COMMAND_KEYS = ("command", "cmd", "commands")
_RESULT_KEYS = ("formatted_output", "stdout", "output", "content", "message", "error", "detailedContent")


@dataclass
class _Tool:
    """A tool call, as far as it is known: agents tell it in pieces."""

    name: str = ""
    title: str = ""
    kind: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Until they are passed on; they may be as long as a file."""
    paths: dict[str, None] = field(default_factory=dict)
    server: str = ""
    """The tool server it belongs to, where the agent says so."""
    has_command: bool = False
    has_diff: bool = False
    is_seen: bool = False
    """Whether there was an update about it, and not only a question."""
    is_told: bool = False

    def learn(self, update: Mapping[str, Any], server_key: str = "") -> None:
        given, meta = mapping(update.get("rawInput")), mapping(update.get("_meta"))
        # Some agents give the tool's own name beside the title, which is for people.
        name = update.get("name") or meta.get("toolName") or mapping(meta.get("claudeCode")).get("toolName")
        self.name = name if name and isinstance(name, str) else self.name
        self.title = str(update.get("title") or self.title)[:_LONGEST_TITLE]
        self.kind = str(update.get("kind") or self.kind)
        self.arguments = {} if self.is_told else given or self.arguments
        self.has_command |= any(key in given for key in _COMMAND_KEYS)
        self.server = str(given.get(server_key) or self.server)
        for part in _mappings(update.get("content")):
            if part.get("type") == "diff" and part.get("path"):
                self.has_diff = True
                self.paths[str(part["path"])] = None
        if self.kind in _CHANGING:
            self.paths |= dict.fromkeys(
                str(place["path"]) for place in _mappings(update.get("locations")) if place.get("path")
            )

    @property
    def label(self) -> str:
        return self.name or self.kind or "tool"

    @property
    def is_changing(self) -> bool:
        return self.kind in _CHANGING or self.has_diff


@dataclass(frozen=True)
class Permission:
    what: str
    denied: tuple[str, ...]
    """The classes of actions that the role may not do, and that this would be."""


class AcpReader(Reader):
    def __init__(self, context: Context, preset: Preset | None = None, servers: Collection[str] = ()) -> None:
        super().__init__(context)
        self._preset = preset
        self._servers = frozenset(servers)
        self._denied = frozenset(capabilities.denied(context.capabilities))
        self._tools: dict[str, _Tool] = {}
        self._message: str | None = None
        self._has_break = True
        self._failure = ""
        self._result: Mapping[str, Any] = {}
        self._told_beside = Usage()
        self._used = 0
        self._used_last: int | None = None
        self._cost: float | None = None
        self.counted_before: Usage | None = None
        """What the process had counted for this session before the prompt."""
        self._refused = ""
        """What the agent asked for last and was not given, as long as it has said nothing since."""

    # -- updates --

    def event(self, event: Mapping[str, Any]) -> None:
        """One `update` of a `session/update`; kinds that say nothing about the answer are ignored."""
        match event.get("sessionUpdate"):
            case "agent_message_chunk":
                self._read_chunk(event)
            case "tool_call" | "tool_call_update":
                self._read_call(event)
            case "usage_update":
                used, cost = count(event, "used"), mapping(event.get("cost"))
                if self._preset and self._preset.is_used_per_request:
                    # The same figure again is the old one, repeated beside a limit of the account.
                    self._used += used if used != self._used_last else 0
                else:
                    self._used = used
                self._used_last = used
                if isinstance(cost.get("amount"), (int, float)) and cost.get("currency") == "USD":
                    self._cost = float(cost["amount"])

    def _read_chunk(self, event: Mapping[str, Any]) -> None:
        if usage := mapping(mapping(event.get("_meta")).get("usage")):
            before, more = self._told_beside, tokens_of(usage)
            self._told_beside = Usage(
                before.input_tokens + more.input_tokens,
                before.output_tokens + more.output_tokens,
                before.cached_tokens + more.cached_tokens,
            )
        text, preset = mapping(event.get("content")).get("text"), self._preset
        if not isinstance(text, str) or not text:
            return
        is_failure = bool(preset and preset.failures and preset.failures.fullmatch(text))
        self._failure = text if is_failure else ""
        if is_failure or (preset and preset.notices and preset.notices.fullmatch(text)):
            self.context.emit("text", {"text": f"{text}\n"})
            self._has_break = True
            return
        self._refused = ""
        message = event.get("messageId")
        is_new = self._has_break or (message is not None and message != self._message)
        self._message, self._has_break = message, is_new and not text.strip("\n")
        self.transcript.says(text.lstrip("\n") if is_new else text, is_continued=not is_new)

    def _read_call(self, event: Mapping[str, Any]) -> None:
        ident, status = str(event.get("toolCallId", "")), event.get("status")
        tool = self._find_tool(ident)
        # A pending call is passed on when more of it is known: many agents send its arguments afterwards.
        is_waiting = not tool.is_seen and status == "pending"
        self._has_break |= not tool.is_seen
        tool.is_seen = True
        tool.learn(event)
        if not is_waiting:
            self._pass_on(ident, tool)
        if status in _ENDED:
            self.transcript.returns(ident, _result_text(event))
        if status == "completed" and tool.is_changing:
            for path in tool.paths:
                self.transcript.touches(path)

    def _find_tool(self, ident: str) -> _Tool:
        if ident not in self._tools and len(self._tools) >= _MOST_TOOLS:
            del self._tools[next(iter(self._tools))]
        return self._tools.setdefault(ident, _Tool())

    def _pass_on(self, ident: str, tool: _Tool) -> None:
        if tool.is_seen and not tool.is_told:
            arguments = tool.arguments or ({"title": tool.title} if tool.title else {})
            self.transcript.calls(ident, tool.label, arguments)
            tool.is_told, tool.arguments = True, {}

    # -- questions --

    def permission(self, call: Mapping[str, Any]) -> Permission:
        """What a question is about, and which of the role's restrictions forbid it."""
        ident = str(call.get("toolCallId", ""))
        tool = self._find_tool(ident)
        tool.learn(call, self._preset.server_key if self._preset else "")
        self._pass_on(ident, tool)
        denied = tuple(sorted(self._classes(tool) & self._denied))
        found = Permission(f"{tool.label}: {tool.title}" if tool.title else tool.label, denied)
        reason = f"the role may not do this: {', '.join(denied)}" if denied else ""
        self.transcript.asks(found.what, is_allowed=not denied, reason=reason)
        if denied:
            self._refused = found.what
        elif tool.is_changing:  # not every agent says how an edit that it was allowed ended
            for path in tool.paths:
                self.transcript.touches(path)
        return found

    def _classes(self, tool: _Tool) -> set[str]:
        """The classes of actions that a call may be. What a title or an argument says may be the model's own words, and
        is not believed."""
        is_other = tool.kind in ("", "other") and not tool.has_diff
        is_of_own_server = tool.server in self._servers or any(
            re.fullmatch(rf"mcp__{re.escape(server)}__.+", tool.name) for server in self._servers
        )
        if is_other and (is_of_own_server or (self._preset and self._preset.is_other_harmless)):
            return set()
        found = set(KINDS.get(tool.kind or "other", _ANYTHING))
        if tool.has_diff:
            found |= set(_EDITS)
        if tool.has_command:
            found |= set(capabilities.SHELL)  # `ls` is a search to some agents, and is a command
        return found

    # -- the end --

    def finish_prompt(self, result: Mapping[str, Any]) -> Reply:
        """The reply to a prompt that the agent has brought to an end."""
        self._result = result
        self.transcript.uses(self.usage() or Usage())
        stop = str(result.get("stopReason", ""))
        ending = ENDINGS.get(stop)
        if ending is None:
            return self.answer("failed", f"the agent stopped for a reason that is not known: {stop!r}")
        if self._refused and ending in ("completed", "interrupted"):
            return self.answer("refused", f"the agent stopped where it was not allowed: {self._refused}")
        if self._failure:
            return self.answer("api_failure", self._failure)
        reason = "" if ending == "completed" else f"the agent stopped: {stop}"
        return self.answer(ending, reason)

    def answer(self, ending: Ending, reason: str = "", **more: Any) -> Reply:
        """What there is of an answer, and how it came to its end."""
        for ident, tool in self._tools.items():
            self._pass_on(ident, tool)
        return self.reply(self.transcript.answer, ending, reason, **more)

    def count_tokens(self) -> Usage | None:
        """The figures of the last result as they are, where the agent gives them."""
        usage = mapping(self._result.get("usage"))
        return tokens_of(usage) if usage else None

    def usage(self) -> Usage | None:
        tokens = self._tokens()
        total = self.total()
        if tokens is None and total is None:
            return None
        found = tokens or Usage()
        cost = total.since(self.context.session_total).cost if total else None
        return Usage(
            found.input_tokens, found.output_tokens, found.cached_tokens, cost, self.transcript.count
        )

    def _tokens(self) -> Usage | None:
        """From what tells most to what tells least; the size of the context is at least what was read."""
        if (counted := self.count_tokens()) is not None:
            is_total = self._preset is not None and self._preset.is_usage_total
            return counted.since(self.counted_before) if is_total else counted
        quota = mapping(mapping(mapping(self._result.get("_meta")).get("quota")).get("token_count"))
        if quota:
            return Usage(count(quota, "input_tokens"), count(quota, "output_tokens"))
        if self._told_beside != Usage():
            return self._told_beside
        return Usage(self._used) if self._used else None

    def total(self) -> Usage | None:
        """Only the cost is counted over the whole session."""
        return None if self._cost is None else Usage(cost=self._cost)


def tokens_of(usage: Mapping[str, Any]) -> Usage:
    """Agents differ in whether the input includes what came from the cache; the total tells."""
    read, output = count(usage, "inputTokens"), count(usage, "outputTokens")
    cached = count(usage, "cachedReadTokens", "cachedWriteTokens")
    is_apart = count(usage, "totalTokens") >= read + cached + output
    return Usage(read + cached if is_apart else read, output, count(usage, "cachedReadTokens"))


def chosen_option(options: Sequence[Mapping[str, Any]], *, is_allowed: bool) -> str | None:
    """The answer to a question, never one that holds for longer where there is one for this time."""
    kinds = ("allow_once", "allow_always") if is_allowed else ("reject_once", "reject_always")
    for kind in kinds:
        for option in options:
            if option.get("kind") == kind:
                return str(option.get("optionId"))
    return None


def _result_text(update: Mapping[str, Any]) -> str:
    told = [part.get("content") for part in _mappings(update.get("content")) if part.get("type") == "content"]
    if told:
        return text_of(told)
    output = update.get("rawOutput")
    if isinstance(output, Mapping):
        found = next((output[key] for key in _RESULT_KEYS if output.get(key)), None)
        return text_of(found if found is not None else output)
    return text_of(output)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
