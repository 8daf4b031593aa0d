"""GitHub Copilot CLI without a terminal: `copilot --output-format json`, the prompt on stdin.

Its events name the session only at the end, so we choose the id of a new session. Usage figures come from the
`--usage-output-file` and cover the whole session, in tokens and not in dollars.

A role without restrictions may use every tool, path and address. A restricted role may use the remaining kinds of tools
and the adapter's own servers, but not the user's servers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.program import Call, McpServer, Program, Reader, count, items, mapping, mcp_file
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.agents.transcript import text_of
from rolecall.settings import capabilities

_KINDS = ("write", "shell")

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(capabilities.FILES, ("write",)),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), ("shell",)),
    "nexus_task_creation": ("rolecall(nx_task_add)",),
    "nexus_task_state_transition": ("rolecall(nx_task_update)", "rolecall(nx_task_close)"),
    "nexus_task_metadata_modification": ("rolecall(nx_task_update)",),
}
"""The kinds of tools, as its permissions name them, to deny for each class of actions."""

_USAGE = "usage.json"


@dataclass(frozen=True, kw_only=True)
class Copilot(Program):
    name: ClassVar[str] = "copilot"
    program: ClassVar[str] = "copilot"
    install: ClassVar[str] = "npm install -g @github/copilot"
    needed_flags: ClassVar[tuple[str, ...]] = (
        "--output-format", "--no-auto-update", "--allow-all-tools", "--allow-all-paths", "--allow-all-urls",
        "--allow-tool", "--deny-tool", "--session-id", "--resume", "--additional-mcp-config",
        "--usage-output-file", "--model",
    )  # fmt: skip
    deniable: ClassVar[frozenset[str]] = frozenset(DENIES)
    signed_in: ClassVar[tuple[str, ...]] = (
        "COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_PROVIDER_BASE_URL",
        "~/.copilot/config.json?", "~/.config/gh/hosts.yml?",
    )  # fmt: skip

    mcp: tuple[McpServer, ...] = ()

    def call(self, prompt: str, context: Context, folder: Path) -> Call:
        new = "" if context.session else str(uuid.uuid4())
        denied = {kind for name in capabilities.denied(context.capabilities) for kind in DENIES[name]}
        allowed = ["--allow-all-tools"]
        if denied.intersection(_KINDS):
            left = [kind for kind in _KINDS if kind not in denied]
            allowed = [f"--allow-tool={name}" for name in (*left, *(server.name for server in self.mcp))]
        argv = [self.command, "--output-format", "json", "--no-auto-update"]
        argv += ["--allow-all-paths", "--allow-all-urls", *allowed]
        argv += [f"--deny-tool={kind}" for kind in sorted(denied)]
        # A resumed session would otherwise work in the folder it was started in.
        argv += ["-C", str(context.workdir)]
        argv += ["--usage-output-file", str(folder / _USAGE)]
        argv += [f"--resume={context.session}"] if context.session else [f"--session-id={new}"]
        if self.mcp:
            argv += ["--additional-mcp-config", f"@{mcp_file(self.mcp, folder, tools=['*'])}"]
        if self.model:
            argv += ["--model", self.model]
        return Call([*argv, *self.args], stdin=prompt, env=self.env, session=new)

    def reader(self, context: Context) -> CopilotReader:
        return CopilotReader(context)


class CopilotReader(Reader):
    """Events have dotted names; the last is `result`. A subagent's events name the call that started it."""

    no_session: ClassVar[tuple[str, ...]] = ("No session, task, or name matched",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._result: Mapping[str, Any] | None = None
        self._error: Mapping[str, Any] | None = None
        self._is_aborted = False

    def event(self, event: Mapping[str, Any]) -> None:
        kind, told = event.get("type"), mapping(event.get("data"))
        if kind == "assistant.message" and not told.get("parentToolCallId"):
            self.transcript.says(text_of(told.get("content")))
        elif kind == "tool.execution_start":
            ident, name = text_of(told.get("toolCallId")), text_of(told.get("toolName"))
            self.transcript.calls(ident, name, told.get("arguments"))
        elif kind == "tool.execution_complete":
            error = mapping(told.get("error"))
            said = mapping(told.get("result")).get("content") or error.get("message")
            call = self.transcript.returns(text_of(told.get("toolCallId")), said)
            if call is not None and error.get("code") == "denied":
                self.transcript.asks(call.name, is_allowed=False, reason=call.result)
            for edit in items(told.get("fileEdits")):
                self.transcript.touches(text_of(mapping(edit).get("path")))
        elif kind == "session.error":
            self._error = told
        elif kind == "abort":
            self._is_aborted = True
        elif kind == "result":
            self._result = event
            self.transcript.in_session(text_of(event.get("sessionId")))

    def usage(self) -> Usage | None:
        total = self.total()
        return total.since(self.context.session_total) if total else None

    def total(self) -> Usage | None:
        try:
            figures = mapping(json.loads((self.folder / _USAGE).read_bytes()))
        except (OSError, ValueError):  # written at the end of a run, and missing if it was ended early
            return None
        models = mapping(figures.get("modelMetrics"))
        used = [mapping(mapping(model).get("usage")) for model in models.values()]
        if not used:
            return None
        return Usage(
            input_tokens=sum(count(one, "inputTokens") for one in used),
            output_tokens=sum(count(one, "outputTokens") for one in used),
            cached_tokens=sum(count(one, "cacheReadTokens") for one in used),
            turns=sum(count(mapping(model).get("requests"), "count") for model in models.values()),
        )

    def finish(self, exit: process.Exit) -> Reply:
        # An interrupted run also reports a result, with exit code 0.
        if self._result is None or self._is_aborted:
            return self.no_answer(exit)
        if used := self.usage():
            self.transcript.uses(used)
        if self._error is None and not self._result.get("exitCode"):
            return self.reply(self.transcript.answer)
        error = self._error or {}
        ending: Ending = "api_failure" if "statusCode" in error else "failed"
        reason = text_of(error.get("message")) or exit.reason
        return self.reply(self.transcript.answer, ending, reason[:2000])


copilot = Copilot
"""The adapter under the name that roles use: `copilot(model=…, timeout=600)`."""
default = copilot()
