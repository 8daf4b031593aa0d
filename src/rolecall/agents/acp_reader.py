"""Reads an agent's updates during a prompt (`session/update`) and answers its permission requests.

A reader accumulates the updates of one prompt in their raw form. They are not validated with the types of the
protocol's package, because an update kind newer than the package must not affect the others.

Permissions depend on the kind of a tool call, which the protocol defines. A call without a kind, or of kind `other`,
may do anything, so every restriction denies it; only tools of the role's own servers are allowed.
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
"""The kinds of tool calls, and the classes of actions each may involve."""

ENDINGS: Mapping[str, Ending] = {
    "end_turn": "completed",
    "max_tokens": "limit",
    "max_turn_requests": "limit",
    "refusal": "refused",
    "cancelled": "interrupted",
}
"""The ending for each stop reason."""

_CHANGING = ("edit", "delete", "move")
_MOST_TOOLS = 1000
_LONGEST_TITLE = 500
_ENDED = ("completed", "failed")
_COMMAND_KEYS = ("command", "cmd", "commands")
_RESULT_KEYS = ("formatted_output", "stdout", "output", "content", "message", "error", "detailedContent")


@dataclass
class _Tool:
    """The known details of a tool call, which agents report in pieces."""

    name: str = ""
    title: str = ""
    kind: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Kept only until they are passed on, because they may be as long as a file."""
    paths: dict[str, None] = field(default_factory=dict)
    server: str = ""
    """The call's tool server, if the agent names it."""
    has_command: bool = False
    has_diff: bool = False
    is_seen: bool = False
    """Whether there was an update about it, not just a permission request."""
    is_told: bool = False

    def learn(self, update: Mapping[str, Any], server_key: str = "") -> None:
        given, meta = mapping(update.get("rawInput")), mapping(update.get("_meta"))
        # Some agents send the tool's own name besides the title, which is meant for people.
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
    """The forbidden classes of actions that this call involves."""


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
        """The usage that the process had reported for this session before the prompt."""
        self._refused = ""
        """The last action the agent was refused, until it sends another message."""

    # -- updates --

    def event(self, event: Mapping[str, Any]) -> None:
        """Process the `update` of a `session/update`; kinds that do not affect the answer are ignored."""
        match event.get("sessionUpdate"):
            case "agent_message_chunk":
                self._read_chunk(event)
            case "tool_call" | "tool_call_update":
                self._read_call(event)
            case "usage_update":
                used, cost = count(event, "used"), mapping(event.get("cost"))
                if self._preset and self._preset.is_used_per_request:
                    # An unchanged figure is not a new request: it is repeated when an account limit is reported.
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
        # A pending call is passed on once more is known: many agents send its arguments later.
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
        """Describe a permission request, and list the role's restrictions that forbid it."""
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
        elif tool.is_changing:  # some agents do not report the result of an edit they were allowed
            for path in tool.paths:
                self.transcript.touches(path)
        return found

    def _classes(self, tool: _Tool) -> set[str]:
        """Return the classes of actions that a call may involve. Titles and arguments are not trusted, because the
        model may have written them."""
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
            found |= set(capabilities.SHELL)  # some agents report `ls` as a search, though it is a command
        return found

    # -- the end --

    def finish_prompt(self, result: Mapping[str, Any]) -> Reply:
        """Return the reply to a prompt that the agent has finished."""
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
        """Build a reply from the answer so far and how it ended."""
        for ident, tool in self._tools.items():
            self._pass_on(ident, tool)
        return self.reply(self.transcript.answer, ending, reason, **more)

    def count_tokens(self) -> Usage | None:
        """Return the figures in the last result unchanged, or None if the agent reports none."""
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
        """Return the tokens used, from the most exact source; the context size is only a lower bound."""
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
        """Return the session's total, which has only the cost."""
        return None if self._cost is None else Usage(cost=self._cost)


def tokens_of(usage: Mapping[str, Any]) -> Usage:
    """Read token counts. The total shows whether the input includes cached tokens; agents differ in this."""
    read, output = count(usage, "inputTokens"), count(usage, "outputTokens")
    cached = count(usage, "cachedReadTokens", "cachedWriteTokens")
    is_apart = count(usage, "totalTokens") >= read + cached + output
    return Usage(read + cached if is_apart else read, output, count(usage, "cachedReadTokens"))


def chosen_option(options: Sequence[Mapping[str, Any]], *, is_allowed: bool) -> str | None:
    """Choose the answer to a permission request; one that applies once is preferred to one that applies always."""
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
