"""Qwen Code without a terminal: `qwen --output-format stream-json`, the prompt on stdin.

Its events are those of Claude Code, with important differences: `input_tokens` includes cached tokens, the figures of a
resumed session cover all of it, an error is in `error` instead of `terminal_reason`, and a limit ends the run with an
exit code and no result. Requests after the answer (for its memory) count toward the session's next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.adapters.claude import ClaudeReader
from rolecall.agents.program import Call, McpServer, Program, count, items, mapping, mcp_file
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.agents.transcript import text_of
from rolecall.settings import capabilities

_EDITING = ("write_file", "edit", "notebook_edit")
_FOLDERS = ("enter_worktree", "exit_worktree")
_SHELL = ("run_shell_command", "monitor")

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("file_creation", "file_modification", "file_deletion"), (*_EDITING, *_FOLDERS)),
    "partial_file_edit": ("edit",),
    "structured_document_edit": ("notebook_edit",),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), _SHELL),
    "nexus_task_creation": ("mcp__rolecall__nx_task_add",),
    "nexus_task_state_transition": ("mcp__rolecall__nx_task_update", "mcp__rolecall__nx_task_close"),
    "nexus_task_metadata_modification": ("mcp__rolecall__nx_task_update",),
}
"""The tools to deny for each class of actions."""

_LIMIT_CODES = (53, 55)
"""The exit codes for its limits: turns, and time or tool calls."""
_API_ERROR = "[API Error"


@dataclass(frozen=True, kw_only=True)
class Qwen(Program):
    name: ClassVar[str] = "qwen"
    program: ClassVar[str] = "qwen"
    install: ClassVar[str] = "npm install -g @qwen-code/qwen-code"
    needed_flags: ClassVar[tuple[str, ...]] = (
        "--output-format", "--approval-mode", "--resume", "--fork-session", "--exclude-tools", "--model",
        "--mcp-config", "--allowed-mcp-server-names",
    )  # fmt: skip
    can_fork: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset(DENIES)
    signed_in: ClassVar[tuple[str, ...]] = (
        "OPENAI_API_KEY", "DASHSCOPE_API_KEY", "BAILIAN_CODING_PLAN_API_KEY", "~/.qwen/oauth_creds.json",
        "~/.qwen/settings.json?", "~/.qwen/.env?",
    )  # fmt: skip

    mcp: tuple[McpServer, ...] = ()

    def call(self, prompt: str, context: Context, folder: Path) -> Call:
        argv = [self.command, "--output-format", "stream-json", "--approval-mode", "yolo"]
        denied = {tool for name in capabilities.denied(context.capabilities) for tool in DENIES[name]}
        if denied:
            argv += ["--exclude-tools", *sorted(denied)]
        if denied.intersection((*_EDITING, *_SHELL)):
            # The effects of tools from the user's other servers are unknown.
            argv += ["--allowed-mcp-server-names", *([server.name for server in self.mcp] or [""])]
        if context.session:
            argv += ["--resume", context.session, *(["--fork-session"] if context.is_fork else [])]
        if self.mcp:
            argv += ["--mcp-config", str(mcp_file(self.mcp, folder))]
        if self.model:
            argv += ["--model", self.model]
        return Call([*argv, *self.args], stdin=prompt, env=self.env)

    def reader(self, context: Context) -> QwenReader:
        return QwenReader(context)


class QwenReader(ClaudeReader):
    no_session: ClassVar[tuple[str, ...]] = ("No saved session found",)
    editing: ClassVar[tuple[str, ...]] = _EDITING

    def event(self, event: Mapping[str, Any]) -> None:
        super().event(event)
        if event.get("type") == "result":
            for denial in items(event.get("permission_denials")):
                self.transcript.asks(text_of(mapping(denial).get("tool_name")), is_allowed=False)

    def total(self) -> Usage | None:
        if self._result is None:
            return None
        tokens = mapping(self._result.get("usage"))
        return Usage(
            input_tokens=count(tokens, "input_tokens"),
            output_tokens=count(tokens, "output_tokens"),
            cached_tokens=count(tokens, "cache_read_input_tokens"),
        )

    def finish(self, exit: process.Exit) -> Reply:
        result, text = self._result, self.transcript.answer
        if result is None and exit.code in _LIMIT_CODES:
            return self.reply(text, "limit", exit.stderr.strip()[-2000:])
        if result is None:
            return self.no_answer(exit)
        if not result.get("is_error"):
            return self.reply(text_of(result.get("result")) or text)
        reason = text_of(mapping(result.get("error")).get("message")) or text_of(result.get("subtype"))
        return self.reply(text, "api_failure" if _API_ERROR in reason else "failed", reason[:2000])


qwen = Qwen
"""The adapter under the name that roles use: `qwen(model=…, timeout=600)`."""
default = qwen()
