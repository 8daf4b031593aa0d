"""OpenCode without a terminal: `opencode run --format json`, the prompt on stdin.

The last step's reason tells how the run ended; there is no final event. A run that stops at a permission request exits
with 0, and so does an interrupted one. A session can be continued only in its original folder: elsewhere the run prints
nothing and does not end.

A restricted role is played by an agent of our own, defined in `OPENCODE_CONFIG_CONTENT`, which may use only the tools
it names, because the user's permissions for one agent override permissions for all agents. For the same reason it has
no subagents. The usage figures exclude subagents, whose steps send no events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.program import Call, McpServer, Program, Reader, amount, count, items, mapping
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.agents.transcript import text_of
from rolecall.errors import UsageError
from rolecall.settings import capabilities

_EDITING = ("write", "edit", "multiedit", "patch", "apply_patch")
_READING = (
    "read", "glob", "grep", "list", "lsp", "webfetch", "websearch", "codesearch", "skill", "todowrite",
    "todoread", "external_directory", "invalid",
)  # fmt: skip
_CONFIG = "OPENCODE_CONFIG_CONTENT"
_RESTRICTED = "rolecall"

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(capabilities.FILES, ("edit",)),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), ("bash",)),
}
"""The permissions to deny for each class of actions; `edit` covers every editing tool."""

_ERRORS: Mapping[str, Ending] = {
    "APIError": "api_failure",
    "ProviderAuthError": "api_failure",
    "MessageAbortedError": "interrupted",
    "MessageOutputLengthError": "limit",
}
_REASONS: Mapping[str, Ending] = {"stop": "completed", "length": "limit", "content-filter": "refused"}
_REJECTED = "rejected permission"


@dataclass(frozen=True, kw_only=True)
class OpenCode(Program):
    name: ClassVar[str] = "opencode"
    program: ClassVar[str] = "opencode"
    install: ClassVar[str] = "npm install -g opencode-ai"
    help_arguments: ClassVar[tuple[str, ...]] = ("run", "--help")
    needed_flags: ClassVar[tuple[str, ...]] = (
        "--format", "--auto", "--dir", "--session", "--fork", "--agent", "--model",
    )  # fmt: skip
    can_fork: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset(DENIES)
    signed_in: ClassVar[tuple[str, ...]] = (
        "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_API_KEY",
        "~/.local/share/opencode/auth.json", "~/.config/opencode/opencode.json?", "OPENCODE_CONFIG?",
    )  # fmt: skip

    mcp: tuple[McpServer, ...] = ()

    def call(self, prompt: str, context: Context, folder: Path) -> Call:  # noqa: ARG002 -- no file is needed
        # Without --dir it works in the folder named by PWD, which may differ from the current folder.
        argv = [self.command, "run", "--format", "json", "--auto", "--dir", str(context.workdir)]
        denied = {tool for name in capabilities.denied(context.capabilities) for tool in DENIES.get(name, ())}
        if denied:
            argv += ["--agent", _RESTRICTED]
        if context.session:
            argv += ["--session", context.session, *(["--fork"] if context.is_fork else [])]
        if self.model:
            argv += ["--model", self.model]
        env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", **self.env, **self._config(denied, context)}
        return Call([*argv, *self.args], stdin=prompt, env=env)

    def _config(self, denied: set[str], context: Context) -> dict[str, str]:
        """Return the configuration variable, merged with any value it already has."""
        if not denied and not self.mcp:
            return {}
        given = self.env.get(_CONFIG) or context.env.get(_CONFIG) or "{}"
        try:
            config = dict(json.loads(given))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"the variable {_CONFIG} is no JSON object: {error}", hint="Correct it, or unset it."
            ) from error
        servers = {
            server.name: {
                "type": "local",
                "command": [server.command, *server.args],
                "environment": dict(server.env),
                "enabled": True,
            }
            for server in self.mcp
        }
        config["mcp"] = {**mapping(config.get("mcp")), **servers}
        if denied:
            rules = permissions(denied, [server.name for server in self.mcp])
            agent = {"mode": "primary", "permission": rules}
            config["agent"] = {**mapping(config.get("agent")), _RESTRICTED: agent}
        return {_CONFIG: json.dumps(config)}

    def reader(self, context: Context) -> OpenCodeReader:
        return OpenCodeReader(context)


def permissions(denied: Iterable[str], servers: Iterable[str]) -> dict[str, str]:
    """Build the rules of a restricted role. The last matching pattern decides: all tools are denied except those
    named."""
    allowed = [*_READING, "edit", "bash", *(f"{server}_*" for server in servers)]
    return {"*": "deny", **dict.fromkeys(allowed, "allow"), **dict.fromkeys(sorted(denied), "deny")}


class OpenCodeReader(Reader):
    """Events: step_start, text, tool_use (after the call), step_finish, error; each names the session."""

    no_session: ClassVar[tuple[str, ...]] = ("Session not found",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._message = ""
        self._reason = ""
        self._steps = 0
        self._used = Usage(cost=0.0)
        self._error: Mapping[str, Any] | None = None
        self._rejected = ""

    def event(self, event: Mapping[str, Any]) -> None:
        kind, part = event.get("type"), mapping(event.get("part"))
        self.transcript.in_session(text_of(event.get("sessionID")))
        if kind == "step_start":
            self._reason = ""
        elif kind == "text":
            message = text_of(part.get("messageID"))
            is_same = bool(message) and message == self._message
            self.transcript.says(text_of(part.get("text")), is_continued=is_same)
            self._message = message
        elif kind == "tool_use":
            self._tool(part)
        elif kind == "step_finish":
            self._finish(part)
        elif kind == "error":
            self._error = mapping(event.get("error"))

    def _tool(self, part: Mapping[str, Any]) -> None:
        ident, name, state = (
            text_of(part.get("callID")),
            text_of(part.get("tool")),
            mapping(part.get("state")),
        )
        given, error = mapping(state.get("input")), text_of(state.get("error"))
        self.transcript.calls(ident, name, given)
        self.transcript.returns(ident, state.get("output") or error)
        if _REJECTED in error:
            self._rejected = name
            self.transcript.asks(name, is_allowed=False, reason=error)
        if name in _EDITING and state.get("status") == "completed":
            files = items(mapping(state.get("metadata")).get("files"))
            for file in (given, *map(mapping, files)):
                self.transcript.touches(text_of(file.get("filePath")))

    def _finish(self, part: Mapping[str, Any]) -> None:
        self._reason = text_of(part.get("reason"))
        tokens = mapping(part.get("tokens"))
        cache, before = mapping(tokens.get("cache")), self._used
        self._steps += 1
        self._used = Usage(
            input_tokens=before.input_tokens + count(tokens, "input") + count(cache, "read", "write"),
            output_tokens=before.output_tokens + count(tokens, "output", "reasoning"),
            cached_tokens=before.cached_tokens + count(cache, "read"),
            cost=round((before.cost or 0.0) + (amount(part.get("cost")) or 0.0), 10),
            turns=self._steps,
        )
        if self._reason in _REASONS:
            self.transcript.uses(self._used)

    def usage(self) -> Usage | None:
        return self._used if self._steps else None

    def finish(self, exit: process.Exit) -> Reply:
        text = self.transcript.answer
        if self._error is not None:
            name = text_of(self._error.get("name")) or "error"
            message = text_of(mapping(self._error.get("data")).get("message"))
            return self.reply(text, _ERRORS.get(name, "failed"), f"{name}: {message}"[:2000])
        if self._reason in _REASONS and exit.code == 0:
            return self.reply(text, _REASONS[self._reason], "" if self._reason == "stop" else self._reason)
        if self._rejected and exit.code == 0:
            reason = f"nobody was there to permit the tool {self._rejected!r}"
            return self.reply(text, "interrupted", reason)
        return self.no_answer(exit)


opencode = OpenCode
"""The adapter under the name that roles use: `opencode(model=…, timeout=600)`."""
default = opencode()
