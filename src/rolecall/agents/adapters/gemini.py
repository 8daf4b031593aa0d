"""Gemini CLI without a terminal: `gemini --output-format stream-json`, the prompt on stdin.

Restrictions are rules for its policy engine, passed with `--admin-policy`: a tool denied there is not offered to the
model or its subagents, whatever the user's settings and rules allow.

Tool servers are not supported. The program reads them only from settings files, and the variables that name another
file (such as `GEMINI_CLI_SYSTEM_SETTINGS_PATH`) work only for files owned by root in folders that only root can write;
others are skipped with a warning. Use `acp:gemini` for tool servers.

It exits without waiting for its output to be read. We read immediately, but if an answer arrives together with a very
long prompt, which its events repeat, the answer can get lost, and the run counts as interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.program import Call, Program, Reader, count, mapping
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.agents.transcript import text_of
from rolecall.errors import UsageError
from rolecall.settings import capabilities

_EDITING = ("write_file", "replace")
_OTHERS_TOOLS = "mcp_*"
"""Tools of servers that the user has set up, whose effects are unknown."""

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(capabilities.FILES, (*_EDITING, _OTHERS_TOOLS)),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), ("run_shell_command", _OTHERS_TOOLS)),
}
"""The tools to deny for each class of actions."""

_ENDINGS: Mapping[str, Ending] = {
    "FatalTurnLimitedError": "limit",
    "FatalCancellationError": "interrupted",
}
_API_ERROR = "[API Error"


@dataclass(frozen=True, kw_only=True)
class Gemini(Program):
    name: ClassVar[str] = "gemini"
    program: ClassVar[str] = "gemini"
    install: ClassVar[str] = "npm install -g @google/gemini-cli"
    needed_flags: ClassVar[tuple[str, ...]] = (
        "--output-format", "--approval-mode", "--skip-trust", "--admin-policy", "--resume", "--model",
    )  # fmt: skip
    deniable: ClassVar[frozenset[str]] = frozenset(DENIES)
    signed_in: ClassVar[tuple[str, ...]] = (
        "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "~/.gemini/oauth_creds.json",
        "~/.gemini/settings.json?", "~/.gemini/.env?", "GEMINI_CLI_HOME?",
    )  # fmt: skip
    system_policies: ClassVar[tuple[Path, ...]] = (
        Path("/etc/gemini-cli/policies"),
        Path("/Library/Application Support/GeminiCli/policies"),
    )
    """The machine's own rules; if they exist, the program ignores a run's rules."""

    def call(self, prompt: str, context: Context, folder: Path) -> Call:
        # In an untrusted folder the program silently resets the approval mode.
        argv = [self.command, "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust"]
        denied = {tool for name in capabilities.denied(context.capabilities) for tool in DENIES.get(name, ())}
        if denied:
            self.check_policies()
            policy = folder / "policy.toml"
            names = json.dumps(sorted(denied))  # a list of plain names looks the same in TOML
            policy.write_text(
                f'[[rule]]\ntoolName = {names}\ndecision = "deny"\npriority = 999\n', encoding="utf-8"
            )
            argv += ["--admin-policy", str(policy)]
        if context.session:
            argv += ["--resume", context.session]
        if self.model:
            argv += ["--model", self.model]
        return Call([*argv, *self.args], stdin=prompt, env=self.env)

    @classmethod
    def check_policies(cls) -> None:
        """Refuse to run if the machine's own rules would make the program ignore ours."""
        for place in cls.system_policies:
            if any(place.glob("*.toml")):
                raise UsageError(
                    f"gemini cannot be held to the role's restrictions here: beside the rules in {str(place)!r}"
                    " it ignores those of a run",
                    hint="Give the role another agent, or deny the tools there.",
                )

    def reader(self, context: Context) -> GeminiReader:
        return GeminiReader(context)


class GeminiReader(Reader):
    """Events: init, message (pieces of text), tool_use, tool_result, error (a warning), result (last)."""

    no_session: ClassVar[tuple[str, ...]] = ("Error resuming session",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._result: Mapping[str, Any] | None = None
        self._warning = ""
        self._is_speaking = False
        self._is_turn = False
        self._turns = 0

    def event(self, event: Mapping[str, Any]) -> None:
        kind, ident = event.get("type"), text_of(event.get("tool_id"))
        is_said = kind == "message" and event.get("role") == "assistant"
        if is_said or kind == "tool_use":
            self._turns += not self._is_turn
            self._is_turn = True
        if kind == "init":
            self.transcript.in_session(text_of(event.get("session_id")))
        elif is_said:
            self.transcript.says(text_of(event.get("content")), is_continued=self._is_speaking)
        elif kind == "tool_use":
            self.transcript.calls(ident, text_of(event.get("tool_name")), event.get("parameters"))
        elif kind == "tool_result":
            self._is_turn = False
            result = event.get("output") or mapping(event.get("error")).get("message")
            call = self.transcript.returns(ident, result)
            if call is not None and call.name in _EDITING and event.get("status") == "success":
                self.transcript.touches(text_of(call.arguments.get("file_path")))
        elif kind == "error":
            self._warning = text_of(event.get("message"))
        elif kind == "result":
            self._result = event
            self.transcript.uses(self.usage() or Usage())
        self._is_speaking = is_said

    def usage(self) -> Usage | None:
        if self._result is None:
            return None
        stats = mapping(self._result.get("stats"))
        return Usage(
            input_tokens=count(stats, "input_tokens"),
            output_tokens=count(stats, "output_tokens"),
            cached_tokens=count(stats, "cached"),
            turns=self._turns,
        )

    def finish(self, exit: process.Exit) -> Reply:
        result, text = self._result, self.transcript.answer
        if result is None:
            return self.no_answer(exit)
        if result.get("status") == "success":
            return self.reply(text, reason=self._warning)
        error = mapping(result.get("error"))
        reason = (text_of(error.get("message")) or self._warning or exit.reason)[:2000]
        # The exit code is the HTTP status modulo 256, so only the message identifies an endpoint failure.
        ending: Ending = "api_failure" if _API_ERROR in reason else "failed"
        return self.reply(text, _ENDINGS.get(text_of(error.get("type")), ending), reason)


gemini = Gemini
"""The adapter under the name that roles use: `gemini(model=…, timeout=600)`."""
default = gemini()
