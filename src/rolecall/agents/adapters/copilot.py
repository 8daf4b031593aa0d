"""GitHub Copilot CLI without a terminal: `copilot --output-format json`, the prompt on stdin.

Its events name the session only at the end, so we choose the id of a new session. Usage figures come from the
`--usage-output-file` and cover the whole session, in tokens and not in dollars.

A role without restrictions may use every tool, path and address. A restricted role may use the remaining kinds of tools
and the adapter's own servers, but not the user's servers.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rolecall.agents.process import Exit
from rolecall.agents.program import (
    Json,
    McpServer,
    Program,
    ProgramCall,
    Reader,
    mcp_config,
    read_object,
    write_file,
)
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.settings import capabilities

_KINDS = ("write", "shell")

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(capabilities.FILES, ("write",)),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), ("shell",)),
    "nexus_task_creation": ("rolecall(nx_task_add)",),
    "nexus_task_state_transition": ("rolecall(nx_task_update)", "rolecall(nx_task_close)"),
    "nexus_task_metadata_modification": ("rolecall(nx_task_update)",),
}
"""The tools to deny for each class of actions, under the names that Copilot's permissions use."""

_USAGE = "usage.json"


class CopilotReader(Reader):
    """A reader of Copilot's events. They have dotted names, and the last event is `result`. An event from a subagent
    names the tool call that started the subagent."""

    no_session = ("No session, task, or name matched",)
    _result: Json | None = None
    _error: Json | None = None
    _is_aborted = False

    def event(self, event: Json) -> None:
        kind, data = event.get("type"), event.part("data")
        if kind == "assistant.message" and not data.get("parentToolCallId"):
            self.transcript.says(data.text("content"))
        elif kind == "tool.execution_start":
            self.transcript.calls(data.text("toolCallId"), data.text("toolName"), data.get("arguments"))
        elif kind == "tool.execution_complete":
            error = data.part("error")
            result = data.part("result").get("content") or error.get("message")
            call = self.transcript.returns(data.text("toolCallId"), result)
            if call is not None and error.get("code") == "denied":
                self.transcript.asks(call.name, is_allowed=False, reason=call.result)
            for edit in data.parts("fileEdits"):
                self.transcript.touches(edit.text("path"))
        elif kind == "session.error":
            self._error = data
        elif kind == "abort":
            self._is_aborted = True
        elif kind == "result":
            self._result = event
            self.transcript.in_session(event.text("sessionId"))

    def total(self) -> Usage | None:
        # Copilot writes the file at the end of a run; there is no file if the run was ended early.
        models = read_object(self.folder / _USAGE).parts("modelMetrics")
        total = Usage()
        for model in models:
            used, turns = model.part("usage"), model.part("requests").count("count")
            total = total.plus(
                used.usage(["inputTokens"], ["outputTokens"], ["cacheReadTokens"], turns=turns)
            )
        return total if models else None

    def finish(self, exit: Exit) -> Reply:
        # An interrupted run also reports a result, with exit code 0.
        if self._result is None or self._is_aborted:
            return self.no_answer(exit)
        if used := self.usage():
            self.transcript.uses(used)
        if self._error is None and not self._result.get("exitCode"):
            return self.answer()
        error = self._error or Json()
        reason = error.text("message") or exit.reason
        return self.answer("api_failure", reason) if "statusCode" in error else self.fail(reason)


@dataclass(frozen=True, kw_only=True)
class Copilot(Program):
    name = program = "copilot"
    reads = CopilotReader
    install = "npm install -g @github/copilot"
    needed_flags = (
        "--output-format", "--no-auto-update", "--allow-all-tools", "--allow-all-paths", "--allow-all-urls",
        "--allow-tool", "--deny-tool", "--session-id", "--resume", "--additional-mcp-config",
        "--usage-output-file", "--model",
    )  # fmt: skip
    deniable = frozenset(DENIES)
    mcp_tool = "rolecall({})"
    signed_in = (
        "COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_PROVIDER_BASE_URL",
        "~/.copilot/config.json?", "~/.config/gh/hosts.yml?",
    )  # fmt: skip

    mcp: tuple[McpServer, ...] = ()
    """Tool servers for the agent, by name: {command, args, env}."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        new = "" if context.session else str(uuid.uuid4())
        denied = set(capabilities.denied_tools(DENIES, context.capabilities, sandboxed=context.is_confined))
        allowed = ["--allow-all-tools"]
        if denied.intersection(_KINDS):
            left = [kind for kind in _KINDS if kind not in denied]
            allowed = [f"--allow-tool={name}" for name in (*left, *(server.name for server in self.mcp))]
        argv = [self.command, "--output-format", "json", "--no-auto-update"]
        argv += ["--allow-all-paths", "--allow-all-urls", *allowed]
        argv += [f"--deny-tool={kind}" for kind in sorted(denied)]
        # Without this option, a resumed session would work in the folder in which it was started.
        argv += ["-C", str(context.workdir)]
        argv += ["--usage-output-file", str(folder / _USAGE)]
        argv += [f"--resume={context.session}"] if context.session else [f"--session-id={new}"]
        if self.mcp:
            path = write_file(folder, "mcp.json", mcp_config(self.mcp, tools=["*"]))
            argv += ["--additional-mcp-config", f"@{path}"]
        env = {**context.env, **self.env}
        own, cache = {**self.env}, env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME", ""), ".cache")
        if context.is_confined and not os.path.isdir(os.path.join(cache, "copilot")):
            # Copilot unpacks its code into this cache and runs the code later, so a program in a sandbox must not write
            # to it.
            own["COPILOT_CACHE_HOME"] = str(folder)
        return ProgramCall([*argv, *self.last_arguments], stdin=prompt, env=own, session=new)


copilot = Copilot
