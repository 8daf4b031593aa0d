"""Claude Code in print mode: `claude -p --output-format stream-json`, the prompt on stdin.

A role without restrictions may use every tool without permission, because there is nobody to ask. The last result's
`is_error` and `terminal_reason` tell how a run ended: its `subtype` is "success" even after an API failure, and an
interrupted run exits with 0. A run has several results if a background task finishes later: each counts its own turns,
but the tokens of the whole session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.program import (
    Call,
    McpServer,
    Program,
    Reader,
    amount,
    count,
    items,
    mapping,
    mcp_file,
)
from rolecall.agents.protocol import Context, Ending, Reply, Usage, with_frontmatter
from rolecall.agents.transcript import text_of
from rolecall.settings import capabilities

_EDITING = ("Write", "Edit", "MultiEdit", "NotebookEdit")
_SHELL = ("Bash", "BashOutput", "KillShell", "KillBash", "Monitor")
_WORKTREES = ("EnterWorktree", "ExitWorktree")
_OTHERS = (
    "Read", "Glob", "Grep", "LS", "WebFetch", "WebSearch", "Task", "Agent", "Skill", "TodoWrite", "Workflow",
)  # fmt: skip

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("file_creation", "file_modification", "file_deletion"), (*_EDITING, *_WORKTREES)),
    "partial_file_edit": ("Edit", "MultiEdit"),
    "structured_document_edit": ("NotebookEdit",),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), _SHELL),
    "nexus_task_creation": ("mcp__rolecall__nx_task_add",),
    "nexus_task_state_transition": ("mcp__rolecall__nx_task_update", "mcp__rolecall__nx_task_close"),
    "nexus_task_metadata_modification": ("mcp__rolecall__nx_task_update",),
}
"""The tools to deny for each class of actions, for subagents too."""

_ENDINGS: Mapping[str, Ending] = {
    "api_error": "api_failure",
    "max_turns": "limit",
    "budget_exhausted": "limit",
    "aborted_streaming": "interrupted",
    "hook_stopped": "refused",
    "tool_deferred": "refused",
}
_INPUT = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_SYNTHETIC = "<synthetic>"
"""The model name in messages that the program itself writes, such as the text of an API error."""


@dataclass(frozen=True, kw_only=True)
class Claude(Program):
    name: ClassVar[str] = "claude"
    program: ClassVar[str] = "claude"
    install: ClassVar[str] = "npm install -g @anthropic-ai/claude-code"
    needed_flags: ClassVar[tuple[str, ...]] = (
        "--print", "--output-format", "--verbose", "--resume", "--fork-session", "--disallowedTools",
        "--allowedTools", "--tools", "--mcp-config", "--strict-mcp-config", "--append-system-prompt",
        "--json-schema", "--model", "--permission-mode",
    )  # fmt: skip
    can_fork: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset(DENIES)
    signed_in: ClassVar[tuple[str, ...]] = (
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX", "~/.claude/.credentials.json", "~/.claude/settings.json?", "CLAUDE_CONFIG_DIR?",
    )  # fmt: skip

    tools: tuple[str, ...] = ()
    """The only tools to offer; all if empty."""
    system: str = ""
    """Added to the system prompt."""
    mcp: tuple[McpServer, ...] = ()
    max_turns: int | None = None
    max_cost: float | None = None
    is_typed: bool = False
    """Enforce the role's schema with the agent's own option instead of frontmatter."""

    def call(self, prompt: str, context: Context, folder: Path) -> Call:
        denied = {tool for name in capabilities.denied(context.capabilities) for tool in DENIES[name]}
        allowed = [tool for tool in (*_EDITING, *_SHELL, *_OTHERS) if tool not in denied]
        allowed += [f"mcp__{server.name}" for server in self.mcp]
        argv = [self.command, "--print", "--output-format", "stream-json", "--verbose"]
        argv += ["--permission-mode", "default", "--allowedTools", ",".join(allowed)]
        if denied:
            argv += ["--disallowedTools", ",".join(sorted(denied))]
        if self.tools:
            argv += ["--tools", ",".join(tool for tool in self.tools if tool not in denied)]
        if context.session:
            argv += ["--resume", context.session, *(["--fork-session"] if context.is_fork else [])]
        if self.mcp:
            argv += ["--mcp-config", str(mcp_file(self.mcp, folder))]
        # Unknown servers' tools cannot be denied by name, so the servers are left out.
        if self.mcp or denied.intersection((*_EDITING, *_SHELL)):
            argv += ["--strict-mcp-config"]
        if self.is_typed and context.schema:
            argv += ["--json-schema", json.dumps(dict(context.schema))]
        for flag, value in (
            ("--model", self.model),
            ("--append-system-prompt", self.system),
            ("--max-turns", self.max_turns),
            ("--max-budget-usd", self.max_cost),
        ):
            argv += [flag, str(value)] if value else []
        return Call([*argv, *self.args], stdin=prompt, env={"DISABLE_AUTOUPDATER": "1", **self.env})

    def reader(self, context: Context) -> ClaudeReader:
        return ClaudeReader(context)


class ClaudeReader(Reader):
    """Events: system/init, assistant (one per content block), user (tool results), result."""

    no_session: ClassVar[tuple[str, ...]] = ("No conversation found", "--resume requires a valid session")
    editing: ClassVar[tuple[str, ...]] = _EDITING
    """The tools that write files."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._result: Mapping[str, Any] | None = None
        self._turns = 0
        self._blocked = ""
        self._message = ""

    def event(self, event: Mapping[str, Any]) -> None:
        message = mapping(event.get("message"))
        self.transcript.in_session(text_of(event.get("session_id")))
        match event.get("type"):
            case "assistant" if message.get("model") != _SYNTHETIC:
                # A subagent's actions count, but not its messages.
                self._read_message(message, is_own=not event.get("parent_tool_use_id"))
            case "user":
                self._read_results(message.get("content"))
            case "system" if event.get("subtype") == "permission_denied":
                what, reason = text_of(event.get("tool_name")), text_of(event.get("message"))
                self.transcript.asks(what, is_allowed=False, reason=reason)
            case "system" if event.get("prevent_continuation"):
                said = text_of(event.get("content") or event.get("message"))
                self._blocked = said or "a hook stopped the prompt"
            case "result":
                self._result = event
                self._turns += count(event, "num_turns")
                self.transcript.uses(self.usage() or Usage())

    def _read_message(self, message: Mapping[str, Any], *, is_own: bool) -> None:
        for block in map(mapping, items(message.get("content"))):
            if block.get("type") == "text" and is_own:
                ident = text_of(message.get("id"))
                is_continued = bool(ident) and ident == self._message
                self.transcript.says(text_of(block.get("text")), is_continued=is_continued)
                self._message = ident
            elif block.get("type") == "tool_use":
                name, given = text_of(block.get("name")), block.get("input")
                self.transcript.calls(text_of(block.get("id")), name, given)

    def _read_results(self, content: Any) -> None:
        for block in map(mapping, items(content)):
            if block.get("type") != "tool_result":
                continue
            call = self.transcript.returns(text_of(block.get("tool_use_id")), block.get("content"))
            if call is not None and call.name in self.editing and not block.get("is_error"):
                given = call.arguments
                self.transcript.touches(text_of(given.get("file_path") or given.get("notebook_path")))

    def usage(self) -> Usage | None:
        total = self.total()
        return replace(total.since(self.context.session_total), turns=self._turns) if total else None

    def total(self) -> Usage | None:
        """Return the session's usage so far, including subagents, which `usage` in the result leaves out."""
        if self._result is None:
            return None
        models = [mapping(model) for model in mapping(self._result.get("modelUsage")).values()]
        cost = amount(self._result.get("total_cost_usd"))
        return Usage(
            input_tokens=sum(count(model, *_INPUT) for model in models),
            output_tokens=sum(count(model, "outputTokens") for model in models),
            cached_tokens=sum(count(model, "cacheReadInputTokens") for model in models),
            cost=None if cost is None else float(cost),
        )

    def finish(self, exit: process.Exit) -> Reply:
        result = self._result
        if result is None:
            return self.no_answer(exit)
        text, terminal = self.transcript.answer, text_of(result.get("terminal_reason"))
        if self._blocked:
            return self.reply(text, "refused", self._blocked)
        if result.get("stop_reason") == "refusal":
            return self.reply(text, "refused", "the model declined")
        if terminal in _ENDINGS:
            return self.reply(text, _ENDINGS[terminal], _reason(result, terminal))
        if result.get("is_error"):
            is_lost = self.is_lost(text_of(result.get("errors")))
            return self.reply(text, "failed", _reason(result, terminal), is_session_lost=is_lost)
        typed = result.get("structured_output")
        if isinstance(typed, Mapping):
            return self.reply(with_frontmatter(typed, text))
        return self.reply(text_of(result.get("result")) or text)


def _reason(result: Mapping[str, Any], terminal: str) -> str:
    told = (text_of(result.get(key)) for key in ("result", "errors", "subtype"))
    return f"{terminal or 'error'}: {next(filter(None, told), '')}"[:2000]


claude = Claude
"""The adapter under the name that roles use: `claude(model=…, timeout=600)`."""
default = claude()
