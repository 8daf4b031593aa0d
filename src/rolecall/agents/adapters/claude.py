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
from typing import ClassVar

from rolecall.agents.process import Exit
from rolecall.agents.program import Json, McpServer, Program, ProgramCall, Reader, mcp_config, write_file
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.settings import capabilities
from rolecall.workflow.reply import render

_EDITING = ("Write", "Edit", "MultiEdit", "NotebookEdit")
_SHELL = ("Bash", "BashOutput", "KillShell", "KillBash", "Monitor")
_WORKTREES = ("EnterWorktree", "ExitWorktree")
_OTHERS = (
    "Read", "Glob", "Grep", "LS", "WebFetch", "WebSearch", "Task", "Agent", "Skill", "TodoWrite", "Workflow",
)  # fmt: skip

NEXUS_TOOLS: Mapping[str, tuple[str, ...]] = {
    "nexus_task_creation": ("mcp__rolecall__nx_task_add",),
    "nexus_task_state_transition": ("mcp__rolecall__nx_task_update", "mcp__rolecall__nx_task_close"),
    "nexus_task_metadata_modification": ("mcp__rolecall__nx_task_update",),
}
DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("file_creation", "file_modification", "file_deletion"), (*_EDITING, *_WORKTREES)),
    "partial_file_edit": ("Edit", "MultiEdit"),
    "structured_document_edit": ("NotebookEdit",),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), _SHELL),
    **NEXUS_TOOLS,
}
"""The tools to deny for each class of actions; they are denied to subagents, too."""

WITHOUT_SANDBOX = {"sandbox": {"enabled": False}}
"""Settings that turn off Claude Code's own sandbox, because it cannot be set up inside ours. A user could have turned
it on."""

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


class ClaudeReader(Reader):
    """A reader of Claude Code's events: system/init, assistant (one for each content block), user (tool results),
    result."""

    no_session: ClassVar[tuple[str, ...]] = ("No conversation found", "--resume requires a valid session")
    editing: ClassVar[tuple[str, ...]] = _EDITING
    """The tools that write files."""
    input: ClassVar[tuple[str, ...]] = (
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    )
    """The token counts that add up to the input in a message's usage."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._result: Json | None = None
        self._turns = 0
        self._blocked = ""
        self._resets = ""
        """When the account limit ends, as text added to a reason; empty if no limit is reached."""
        self._message = ""
        self._counted: set[str] = set()
        self._so_far = Usage()
        """The sum of the messages' usage, reported while the run has no result."""

    def event(self, event: Json) -> None:
        message = event.part("message")
        self.transcript.in_session(event.text("session_id"))
        match event.get("type"):
            case "assistant" if message.get("model") != _SYNTHETIC:
                used = message.part("usage")
                if used and message.text("id") not in self._counted:  # count each message only once
                    self._counted.add(message.text("id"))
                    self._so_far = self._so_far.plus(self.tokens_in(used))
                    self.transcript.uses(self._so_far)
                for block in message.parts("content"):
                    # A subagent's tool calls are recorded, but not its messages.
                    if block.get("type") == "text" and not event.get("parent_tool_use_id"):
                        ident = message.text("id")
                        is_continued = bool(ident) and ident == self._message
                        self.transcript.says(block.text("text"), is_continued=is_continued)
                        self._message = ident
                    elif block.get("type") == "tool_use":
                        self.transcript.calls(block.text("id"), block.text("name"), block.get("input"))
            case "user":
                for block in message.parts("content"):
                    if block.get("type") != "tool_result":
                        continue
                    call = self.transcript.returns(block.text("tool_use_id"), block.get("content"))
                    if call is not None and call.name in self.editing and not block.get("is_error"):
                        self.transcript.touches(Json(call.arguments).text("file_path", "notebook_path"))
            case "system" if event.get("subtype") == "permission_denied":
                reason = event.text("message")
                self.transcript.asks(event.text("tool_name"), is_allowed=False, reason=reason)
            case "system" if event.get("prevent_continuation"):
                self._blocked = event.text("content", "message") or "a hook stopped the prompt"
            case "rate_limit_event":
                limit = event.part("rate_limit_info")
                is_reached = limit.get("status") == "rejected" and limit.amount("resetsAt")
                self._resets = f" (limit reached, resets_at {limit.count('resetsAt')})" if is_reached else ""
            case "result":
                self._result = event
                self._turns += event.count("num_turns")
                self.transcript.uses(self.usage() or Usage())

    def tokens_in(self, used: Json) -> Usage:
        return used.usage(self.input, ["output_tokens"], ["cache_read_input_tokens"])

    def usage(self) -> Usage | None:
        used = super().usage()
        return replace(used, turns=self._turns) if used else None

    def total(self) -> Usage | None:
        """Return the session's usage so far, including subagents, which the `usage` field of the result leaves out."""
        if self._result is None:
            return None
        cost = self._result.amount("total_cost_usd")
        total = Usage(cost=None if cost is None else float(cost))
        for model in self._result.parts("modelUsage"):
            total = total.plus(model.usage(_INPUT, ["outputTokens"], ["cacheReadInputTokens"]))
        return total

    def finish(self, exit: Exit) -> Reply:
        result = self._result
        if result is None:
            return self.no_answer(exit)
        terminal = result.text("terminal_reason")
        reason = f"{terminal or 'error'}: {result.text('result', 'errors', 'subtype')}{self._resets}"
        if self._blocked:
            return self.answer("refused", self._blocked)
        if result.get("stop_reason") == "refusal":
            return self.answer("refused", "the model declined")
        if terminal in _ENDINGS:
            return self.answer(_ENDINGS[terminal], reason)
        if result.get("is_error"):
            return self.fail(reason, is_session_lost=self.is_lost(result.text("errors")))
        output = result.get("structured_output")
        if isinstance(output, Mapping):
            return self.answer(text=render(output, self.transcript.answer))
        return self.answer(text=result.text("result"))


@dataclass(frozen=True, kw_only=True)
class Claude(Program):
    name = program = "claude"
    reads = ClaudeReader
    install = "npm install -g @anthropic-ai/claude-code"
    needed_flags = (
        "--print", "--output-format", "--verbose", "--resume", "--fork-session", "--disallowedTools",
        "--allowedTools", "--tools", "--mcp-config", "--strict-mcp-config", "--append-system-prompt",
        "--json-schema", "--model", "--permission-mode", "--settings",
    )  # fmt: skip
    can_fork = True
    deniable = frozenset(DENIES)
    mcp_tool = "mcp__rolecall__{}"
    signed_in: ClassVar[tuple[str, ...]] = (
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX", "~/.claude/.credentials.json", "~/.claude/settings.json?", "CLAUDE_CONFIG_DIR?",
    )  # fmt: skip

    tools: tuple[str, ...] = ()
    """The only tools to offer to the agent; if empty, all tools are offered."""
    system: str = ""
    """Text added to the system prompt."""
    mcp: tuple[McpServer, ...] = ()
    """Tool servers for the agent, by name: {command, args, env}."""
    max_turns: int | None = None
    """The maximum number of turns in one call; None for no limit."""
    max_cost: float | None = None
    """The maximum cost of one call in US dollars; None for no limit."""
    is_typed: bool = False
    """Whether Claude Code enforces the role's schema with its own option, so that no frontmatter is needed."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        denied = set(capabilities.denied_tools(DENIES, context.capabilities, sandboxed=context.is_confined))
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
            argv += ["--mcp-config", write_file(folder, "mcp.json", mcp_config(self.mcp))]
        # The tools of unknown servers cannot be denied by name, so the servers themselves are left out.
        if self.mcp or denied.intersection((*_EDITING, *_SHELL)):
            argv += ["--strict-mcp-config"]
        if context.is_confined:
            argv += ["--settings", json.dumps(WITHOUT_SANDBOX)]
        if self.is_typed and context.schema:
            argv += ["--json-schema", json.dumps(dict(context.schema))]
        for flag, value in (
            ("--append-system-prompt", self.system),
            ("--max-turns", self.max_turns),
            ("--max-budget-usd", self.max_cost),
        ):
            argv += [flag, str(value)] if value else []
        env = {"DISABLE_AUTOUPDATER": "1", **self.env}
        if context.is_confined:  # Claude Code ignores TMPDIR
            env["CLAUDE_CODE_TMPDIR"] = str(folder)
        return ProgramCall([*argv, *self.last_arguments], stdin=prompt, env=env)


claude = Claude
