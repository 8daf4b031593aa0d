"""Reads an agent's updates during a prompt (`session/update`) and answers its permission requests.

The types in the protocol's package are not used to validate updates, so that a kind of update that is newer than the
package does not affect the others.

Permissions depend on the kind of a tool call, which the protocol defines. A call without a kind, or of kind `other`,
could do anything, so any restriction of the role denies it. Only tools from the role's own servers are exempt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rolecall.agents.acp_presets import UNKNOWN, Preset
from rolecall.agents.program import Json, Reader
from rolecall.agents.protocol import Context, Ending, Reply, Usage
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
"""For each kind of tool call, the classes of actions that a call can involve."""

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
_COMMAND_KEYS = ("command", "cmd", "commands")
_RESULT_KEYS = ("formatted_output", "stdout", "output", "content", "message", "error", "detailedContent")


@dataclass
class _Tool:
    """The known details of a tool call, which agents report in pieces."""

    name: str = ""
    title: str = ""
    kind: str = ""
    arguments: Json = field(default_factory=Json)
    """The call's arguments, kept only until they are passed on, because they can be as long as a file."""
    paths: dict[str, None] = field(default_factory=dict)
    server: str = ""
    """The tool server that the call uses, if the agent names it."""
    has_command: bool = False
    has_diff: bool = False
    is_seen: bool = False
    """Whether an update has reported the call, not just a permission request."""
    is_passed_on: bool = False

    def learn(self, update: Json, server_key: str = "") -> None:
        arguments, meta = update.part("rawInput"), update.part("_meta")
        # Some agents send the tool's name in addition to a title, which is meant for people.
        name = update.get("name") or meta.get("toolName") or meta.part("claudeCode").get("toolName")
        self.name = name if name and isinstance(name, str) else self.name
        self.title = str(update.get("title") or self.title)[:_LONGEST_TITLE]
        self.kind = str(update.get("kind") or self.kind)
        self.arguments = Json() if self.is_passed_on else arguments or self.arguments
        self.has_command |= any(key in arguments for key in _COMMAND_KEYS)
        self.server = str(arguments.get(server_key) or self.server)
        for part in update.parts("content"):
            if part.get("type") == "diff" and part.get("path"):
                self.has_diff = True
                self.paths[str(part["path"])] = None
        if self.kind in _CHANGING:
            places = update.parts("locations")
            self.paths |= {str(place["path"]): None for place in places if place.get("path")}

    @property
    def label(self) -> str:
        return self.name or self.kind or "tool"

    @property
    def is_changing(self) -> bool:
        return self.kind in _CHANGING or self.has_diff


class AcpReader(Reader):
    def __init__(self, context: Context, preset: Preset = UNKNOWN, servers: Collection[str] = ()) -> None:
        super().__init__(context)
        self._preset = preset
        self._servers = frozenset(servers)
        denied = capabilities.denied_classes(context.capabilities, sandboxed=context.is_confined)
        self._denied = frozenset(denied)
        self._tools: dict[str, _Tool] = {}
        self._message: str | None = None
        self._has_break = True
        self._failure = ""
        self._result = Json()
        self._message_usage = Usage()
        self._used = 0
        self._used_last: int | None = None
        self._cost: float | None = None
        self.counted_before: Usage | None = None
        """The usage that the agent's process reported for this session before the prompt."""
        self._refused = ""
        """The last action that the agent was refused; empty again after the agent's next message."""

    # -- updates --

    def event(self, event: Json) -> None:
        """Process the `update` of a `session/update`; kinds that do not affect the answer are ignored."""
        match event.get("sessionUpdate"):
            case "tool_call" | "tool_call_update":
                self._read_call(event)
            case "usage_update":
                used, cost = event.count("used"), event.part("cost")
                if self._preset.is_used_per_request:
                    # An unchanged figure is not a new request: agents repeat the figure when they report an account
                    # limit.
                    self._used += used if used != self._used_last else 0
                else:
                    self._used = used
                self._used_last = used
                if isinstance(cost.get("amount"), (int, float)) and cost.get("currency") == "USD":
                    self._cost = float(cost["amount"])
        if event.get("sessionUpdate") != "agent_message_chunk":
            return

        if usage := event.part("_meta").part("usage"):
            self._message_usage = self._message_usage.plus(tokens_of(usage))
        text, preset = event.part("content").get("text"), self._preset
        if not isinstance(text, str) or not text:
            return
        is_failure = bool(preset.failures and preset.failures.fullmatch(text))
        self._failure = text if is_failure else ""
        if is_failure or (preset.notices and preset.notices.fullmatch(text)):
            self.context.emit("text", {"text": f"{text}\n"})
            self._has_break = True
            return
        self._refused = ""
        message = event.get("messageId")
        is_new = self._has_break or (message is not None and message != self._message)
        self._message, self._has_break = message, is_new and not text.strip("\n")
        self.transcript.says(text.lstrip("\n") if is_new else text, is_continued=not is_new)

    def _read_call(self, event: Json) -> None:
        ident, status = str(event.get("toolCallId", "")), event.get("status")
        tool = self._find_tool(ident)
        # A pending call is passed on when the next update arrives, because many agents send its arguments later.
        is_waiting = not tool.is_seen and status == "pending"
        self._has_break |= not tool.is_seen
        tool.is_seen = True
        tool.learn(event)
        if not is_waiting:
            self._pass_on(ident, tool)
        if status in ("completed", "failed"):
            content = [
                part.get("content") for part in event.parts("content") if part.get("type") == "content"
            ]
            output = event.part("rawOutput")
            found = next((output[key] for key in _RESULT_KEYS if output.get(key)), event.get("rawOutput"))
            self.transcript.returns(ident, content or found)
        if status == "completed" and tool.is_changing:
            for path in tool.paths:
                self.transcript.touches(path)

    def _find_tool(self, ident: str) -> _Tool:
        if ident not in self._tools and len(self._tools) >= _MOST_TOOLS:
            del self._tools[next(iter(self._tools))]
        return self._tools.setdefault(ident, _Tool())

    def _pass_on(self, ident: str, tool: _Tool) -> None:
        if tool.is_seen and not tool.is_passed_on:
            self.transcript.calls(
                ident, tool.label, tool.arguments or ({"title": tool.title} if tool.title else {})
            )
            tool.is_passed_on, tool.arguments = True, Json()

    # -- questions --

    def find_denied(self, call: Json) -> tuple[str, ...]:
        """Return the classes of actions that a permission request involves and that the role forbids."""
        ident = str(call.get("toolCallId", ""))
        tool = self._find_tool(ident)
        tool.learn(call, self._preset.server_key)
        self._pass_on(ident, tool)

        # Titles and arguments are not trusted, because the model could have written them.
        is_other = tool.kind in ("", "other") and not tool.has_diff
        is_of_own_server = tool.server in self._servers or any(
            re.fullmatch(rf"mcp__{re.escape(server)}__.+", tool.name) for server in self._servers
        )
        classes = set(KINDS.get(tool.kind or "other", _ANYTHING))
        if is_other and (is_of_own_server or self._preset.is_other_harmless):
            classes = set()
        elif tool.has_command:
            classes |= set(capabilities.SHELL)  # some agents report the command `ls` as a search
        if tool.has_diff:
            classes |= set(_EDITS)
        denied = tuple(sorted(classes & self._denied))

        what = f"{tool.label}: {tool.title}" if tool.title else tool.label
        reason = f"the role may not do this: {', '.join(denied)}" if denied else ""
        self.transcript.asks(what, is_allowed=not denied, reason=reason)
        if denied:
            self._refused = what
        elif tool.is_changing:  # some agents do not report the result of an edit that was permitted
            for path in tool.paths:
                self.transcript.touches(path)
        return denied

    # -- the end --

    def finish_prompt(self, result: Json) -> Reply:
        """Return the reply to a prompt that the agent has finished."""
        self._result = result
        self.transcript.uses(self.usage() or Usage())
        stop = str(result.get("stopReason", ""))
        ending = ENDINGS.get(stop)
        if ending is None:
            return self.answer("failed", f"the agent stopped for an unknown reason: {stop!r}")
        if self._refused and ending in ("completed", "interrupted"):
            return self.answer("refused", f"the agent stopped where it was not allowed: {self._refused}")
        if self._failure:
            return self.answer("api_failure", self._failure)
        return self.answer(ending, "" if ending == "completed" else f"the agent stopped: {stop}")

    def answer(self, ending: Ending = "completed", reason: str = "", *, text: str = "", **more: Any) -> Reply:
        for ident, tool in self._tools.items():
            self._pass_on(ident, tool)
        return super().answer(ending, reason, text=text, **more)

    def count_tokens(self) -> Usage | None:
        """Return the token counts in the last result unchanged, or None if the agent reports none."""
        usage = self._result.part("usage")
        return tokens_of(usage) if usage else None

    def usage(self) -> Usage | None:
        """Return the usage. The tokens come from the most exact source; the context size is only a lower bound."""
        quota = self._result.part("_meta").part("quota").part("token_count")
        tokens: Usage | None = None
        if (counted := self.count_tokens()) is not None:
            tokens = counted.since(self.counted_before) if self._preset.is_usage_total else counted
        elif quota:
            tokens = Usage(quota.count("input_tokens"), quota.count("output_tokens"))
        elif self._message_usage != Usage():
            tokens = self._message_usage
        elif self._used:
            tokens = Usage(self._used)
        spent = super().usage()
        if tokens is None and spent is None:
            return None
        return replace(tokens or Usage(), cost=spent.cost if spent else None, turns=self.transcript.count)

    def total(self) -> Usage | None:
        """Return the session's total usage, of which only the cost is known."""
        return None if self._cost is None else Usage(cost=self._cost)


def tokens_of(usage: Json) -> Usage:
    """Read token counts. Agents differ in whether the input includes cached tokens; the reported total shows which
    applies."""
    read, output = usage.count("inputTokens"), usage.count("outputTokens")
    cached = usage.count("cachedReadTokens", "cachedWriteTokens")
    is_apart = usage.count("totalTokens") >= read + cached + output
    return Usage(read + cached if is_apart else read, output, usage.count("cachedReadTokens"))


def choose_option(kinds: Iterable[tuple[str, str]], *, is_allowed: bool) -> str | None:
    """Choose the id of the option that answers a permission request. `kinds` gives the kind and id of each option. An
    option that applies once is preferred to an option that applies always."""
    options = dict(reversed(list(kinds)))
    once, always = ("allow_once", "allow_always") if is_allowed else ("reject_once", "reject_always")
    return options.get(once) or options.get(always)
