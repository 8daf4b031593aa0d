"""OpenCode without a terminal: `opencode run --format json`, the prompt on stdin.

There is no final event: the reason of the last step says how the run ended. A run that stops at a permission request
exits with 0, and so does an interrupted one. A session can be continued only in its original folder: elsewhere the run
prints nothing and does not end.

A restricted role is played by an agent that we define in `OPENCODE_CONFIG_CONTENT` and that may use only the tools
named there, because the user's permissions for one agent override permissions for all agents. For the same reason, it
has no subagents. The usage figures exclude subagents, whose steps send no events.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolecall.agents.process import Exit
from rolecall.agents.program import Json, McpServer, Program, ProgramCall, Reader
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

_EDITING = ("write", "edit", "multiedit", "patch", "apply_patch")
_READING = (
    "read", "glob", "grep", "list", "lsp", "webfetch", "websearch", "codesearch", "skill", "todowrite",
    "todoread", "external_directory", "invalid",
)  # fmt: skip
CONFIG = "OPENCODE_CONFIG_CONTENT"
RESTRICTED = "rolecall"
"""The name of the agent, defined by Rolecall, that plays restricted roles."""

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


def build_config(
    env: Mapping[str, str], denied: Collection[str], servers: Sequence[McpServer], *, is_acp: bool = False
) -> str:
    """Return the value of the configuration variable, merged with the variable's value in `env`. With `is_acp`, the
    restricted agent is the default, and the tool servers are left out, because they are named when a session is
    opened."""
    try:
        config = Json(json.loads(env.get(CONFIG) or "{}"))
    except (ValueError, TypeError) as error:
        hint = "Correct it, or unset it."
        raise UsageError(f"the variable {CONFIG} is not a JSON object: {error}", hint=hint) from error
    if denied:
        # The last matching pattern decides, so all tools are denied except those named after the first pattern.
        allowed = [*_READING, "edit", "bash", *(f"{server.name}_*" for server in servers)]
        rules = {"*": "deny", **dict.fromkeys(allowed, "allow"), **dict.fromkeys(sorted(denied), "deny")}
        agent = {"mode": "primary", "permission": rules}
        config["agent"] = {**config.part("agent"), RESTRICTED: agent}
    if is_acp:
        return json.dumps({**config, "default_agent": RESTRICTED})
    entries = {
        server.name: {
            "type": "local",
            "command": [server.command, *server.args],
            "environment": dict(server.env),
            "enabled": True,
        }
        for server in servers
    }
    return json.dumps({**config, "mcp": {**config.part("mcp"), **entries}})


class OpenCodeReader(Reader):
    """A reader of OpenCode's events: step_start, text, tool_use (sent after the call), step_finish, error. Each event
    names the session."""

    no_session = ("Session not found",)
    _message = _reason = _rejected = ""
    _used: Usage | None = None
    _error: Json | None = None

    def event(self, event: Json) -> None:
        kind, part = event.get("type"), event.part("part")
        self.transcript.in_session(event.text("sessionID"))
        if kind == "step_start":
            self._reason = ""
        elif kind == "text":
            message = part.text("messageID")
            is_same = bool(message) and message == self._message
            self.transcript.says(part.text("text"), is_continued=is_same)
            self._message = message
        elif kind == "tool_use":
            ident, name, state = part.text("callID"), part.text("tool"), part.part("state")
            arguments, error = state.part("input"), state.text("error")
            self.transcript.calls(ident, name, arguments)
            self.transcript.returns(ident, state.get("output") or error)
            if _REJECTED in error:
                self._rejected = name
                self.transcript.asks(name, is_allowed=False, reason=error)
            if name in _EDITING and state.get("status") == "completed":
                for file in (arguments, *state.part("metadata").parts("files")):
                    self.transcript.touches(file.text("filePath"))
        elif kind == "step_finish":
            tokens, cache = part.part("tokens"), part.part("tokens").part("cache")
            self._reason = part.text("reason")
            read, written = tokens.count("input") + cache.count("read", "write"), ("output", "reasoning")
            cost = part.amount("cost") or 0.0
            step = Usage(read, tokens.count(*written), cache.count("read"), cost, turns=1)
            self._used = step if self._used is None else self._used.plus(step)
            if self._reason in _REASONS:
                self.transcript.uses(self._used)
        elif kind == "error":
            self._error = event.part("error")

    def usage(self) -> Usage | None:
        return self._used

    def finish(self, exit: Exit) -> Reply:
        if self._error is not None:
            name = self._error.text("name") or "error"
            reason = f"{name}: {self._error.part('data').text('message')}"
            return self.answer(_ERRORS[name], reason) if name in _ERRORS else self.fail(reason)
        if self._reason in _REASONS and exit.code == 0:
            return self.answer(_REASONS[self._reason], "" if self._reason == "stop" else self._reason)
        if self._rejected and exit.code == 0:
            return self.answer("interrupted", f"nobody could permit the tool {self._rejected!r}")
        return self.no_answer(exit)


@dataclass(frozen=True, kw_only=True)
class OpenCode(Program):
    name = program = "opencode"
    reads = OpenCodeReader
    install = "npm install -g opencode-ai"
    help_arguments = ("run", "--help")
    needed_flags = ("--format", "--auto", "--dir", "--session", "--fork", "--agent", "--model")
    can_fork = True
    deniable = frozenset(DENIES)
    mcp_tool = "rolecall_{}"
    signed_in = (
        "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_API_KEY",
        "~/.local/share/opencode/auth.json", "~/.config/opencode/opencode.json?", "OPENCODE_CONFIG?",
    )  # fmt: skip

    mcp: tuple[McpServer, ...] = ()
    """Tool servers for the agent, by name: {command, args, env}."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:  # noqa: ARG002 -- no file is needed
        # Without --dir, OpenCode works in the folder named by PWD, which can differ from the working directory.
        argv = [self.command, "run", "--format", "json", "--auto", "--dir", str(context.workdir)]
        denied = set(capabilities.denied_tools(DENIES, context.capabilities, sandboxed=context.is_confined))
        if denied:
            argv += ["--agent", RESTRICTED]
        if context.session:
            argv += ["--session", context.session, *(["--fork"] if context.is_fork else [])]
        env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", **self.env}
        if denied or self.mcp:
            env[CONFIG] = build_config({**context.env, **self.env}, denied, self.mcp)
        return ProgramCall([*argv, *self.last_arguments], stdin=prompt, env=env)


opencode = OpenCode
