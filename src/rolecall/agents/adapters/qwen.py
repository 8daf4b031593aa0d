"""Qwen Code without a terminal: `qwen --output-format stream-json`, the prompt on stdin.

Its events are those of Claude Code, with important differences: `input_tokens` includes cached tokens, the figures of a
resumed session cover all of it, an error is in `error` instead of `terminal_reason`, and a limit ends the run with an
exit code and no result. Requests after the answer (for its memory) count toward the session's next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rolecall.agents.adapters.claude import NEXUS_TOOLS, ClaudeReader
from rolecall.agents.process import Exit
from rolecall.agents.program import Json, McpServer, Program, ProgramCall, mcp_config, write_file
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.settings import capabilities

_EDITING = ("write_file", "edit", "notebook_edit")
_FOLDERS = ("enter_worktree", "exit_worktree")
_SHELL = ("run_shell_command", "monitor")

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("file_creation", "file_modification", "file_deletion"), (*_EDITING, *_FOLDERS)),
    "partial_file_edit": ("edit",),
    "structured_document_edit": ("notebook_edit",),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), _SHELL),
    **NEXUS_TOOLS,
}
"""The tools to deny for each class of actions."""

_LIMIT_CODES = (53, 55)
"""Qwen's exit codes for its limits: 53 for turns, 55 for time or tool calls."""
_API_ERROR = "[API Error"


class QwenReader(ClaudeReader):
    no_session = ("No saved session found",)
    editing = _EDITING
    input = ("input_tokens",)

    def event(self, event: Json) -> None:
        super().event(event)
        if event.get("type") == "result":
            for denial in event.parts("permission_denials"):
                self.transcript.asks(denial.text("tool_name"), is_allowed=False)

    def total(self) -> Usage | None:
        return self.tokens_in(self._result.part("usage")) if self._result else None

    def finish(self, exit: Exit) -> Reply:
        result = self._result
        if result is None and exit.code in _LIMIT_CODES:
            return self.answer("limit", exit.stderr.strip()[-2000:])
        if result is None:
            return self.no_answer(exit)
        if not result.get("is_error"):
            return self.answer(text=result.text("result"))
        reason = result.part("error").text("message") or result.text("subtype")
        return self.answer("api_failure", reason) if _API_ERROR in reason else self.fail(reason)


@dataclass(frozen=True, kw_only=True)
class Qwen(Program):
    name = program = "qwen"
    reads = QwenReader
    install = "npm install -g @qwen-code/qwen-code"
    needed_flags = (
        "--output-format", "--approval-mode", "--resume", "--fork-session", "--exclude-tools", "--model",
        "--mcp-config", "--allowed-mcp-server-names",
    )  # fmt: skip
    can_fork = True
    deniable = frozenset(DENIES)
    mcp_tool = "mcp__rolecall__{}"
    signed_in = (
        "OPENAI_API_KEY", "DASHSCOPE_API_KEY", "BAILIAN_CODING_PLAN_API_KEY", "~/.qwen/oauth_creds.json",
        "~/.qwen/settings.json?", "~/.qwen/.env?",
    )  # fmt: skip

    mcp: tuple[McpServer, ...] = ()
    """Tool servers for the agent, by name: {command, args, env}."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        argv = [self.command, "--output-format", "stream-json", "--approval-mode", "yolo"]
        denied = set(capabilities.denied_tools(DENIES, context.capabilities, sandboxed=context.is_confined))
        if denied:
            argv += ["--exclude-tools", *sorted(denied)]
        if denied.intersection((*_EDITING, *_SHELL)):
            # The user's other servers are left out, because the effects of their tools are unknown.
            argv += ["--allowed-mcp-server-names", *([server.name for server in self.mcp] or [""])]
        if context.session:
            argv += ["--resume", context.session, *(["--fork-session"] if context.is_fork else [])]
        if self.mcp:
            argv += ["--mcp-config", write_file(folder, "mcp.json", mcp_config(self.mcp))]
        return ProgramCall([*argv, *self.last_arguments], stdin=prompt, env=self.env)


qwen = Qwen
