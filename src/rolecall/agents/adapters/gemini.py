"""Gemini CLI without a terminal: `gemini --output-format stream-json`, the prompt on stdin.

Restrictions are rules for its policy engine, passed with `--admin-policy`: a tool denied there is not offered to the
model or its subagents, whatever the user's settings and rules allow.

Tool servers are not supported. The program reads them only from settings files, and the variables that name another
file (such as `GEMINI_CLI_SYSTEM_SETTINGS_PATH`) work only for files owned by root in folders that only root can write
to; others are skipped with a warning. Use `acp:gemini` for tool servers.

It exits without waiting for its output to be read. We read immediately, but if an answer arrives together with a very
long prompt, which its events repeat, the answer can be lost, and the run counts as interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rolecall.agents.process import Exit
from rolecall.agents.program import Json, Program, ProgramCall, Reader, write_file
from rolecall.agents.protocol import Context, Ending, Reply, Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

_EDITING = ("write_file", "replace")
_OTHERS_TOOLS = "mcp_*"
"""The tools of servers that the user has set up, whose effects are unknown."""

DENIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(capabilities.FILES, (*_EDITING, _OTHERS_TOOLS)),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), ("run_shell_command", _OTHERS_TOOLS)),
}
"""The tools to deny for each class of actions."""

_ENDINGS: Mapping[str, Ending] = {"FatalTurnLimitedError": "limit", "FatalCancellationError": "interrupted"}
_API_ERROR = "[API Error"


def rule(tools: Sequence[str], decision: str, priority: int) -> str:
    """Return a rule for the policy engine. A list of plain names has the same form in JSON and TOML."""
    return f'[[rule]]\ntoolName = {json.dumps(tools)}\ndecision = "{decision}"\npriority = {priority}\n'


class GeminiReader(Reader):
    """A reader of Gemini's events: init, message (pieces of text), tool_use, tool_result, error (a warning), result
    (the last event)."""

    no_session = ("Error resuming session",)
    _result: Json | None = None
    _warning = ""
    _is_speaking = _is_turn = False
    _turns = 0

    def event(self, event: Json) -> None:
        kind, ident = event.get("type"), event.text("tool_id")
        is_message = kind == "message" and event.get("role") == "assistant"
        if is_message or kind == "tool_use":
            self._turns += not self._is_turn
            self._is_turn = True
        if kind == "init":
            self.transcript.in_session(event.text("session_id"))
        elif is_message:
            self.transcript.says(event.text("content"), is_continued=self._is_speaking)
        elif kind == "tool_use":
            self.transcript.calls(ident, event.text("tool_name"), event.get("parameters"))
        elif kind == "tool_result":
            self._is_turn = False
            result = event.get("output") or event.part("error").get("message")
            call = self.transcript.returns(ident, result)
            if call is not None and call.name in _EDITING and event.get("status") == "success":
                self.transcript.touches(Json(call.arguments).text("file_path"))
        elif kind == "error":
            self._warning = event.text("message")
        elif kind == "result":
            self._result = event
            self.transcript.uses(self.usage() or Usage())
        self._is_speaking = is_message

    def usage(self) -> Usage | None:
        if self._result is None:
            return None
        stats = self._result.part("stats")
        return stats.usage(["input_tokens"], ["output_tokens"], ["cached"], turns=self._turns)

    def finish(self, exit: Exit) -> Reply:
        if self._result is None:
            return self.no_answer(exit)
        if self._result.get("status") == "success":
            return self.answer(reason=self._warning)
        error = self._result.part("error")
        reason = error.text("message") or self._warning or exit.reason
        # The exit code is the HTTP status modulo 256, so only the error message identifies a failure of the endpoint.
        ending = _ENDINGS.get(error.text("type"), "api_failure" if _API_ERROR in reason else None)
        return self.answer(ending, reason) if ending else self.fail(reason)


@dataclass(frozen=True, kw_only=True)
class Gemini(Program):
    name = program = "gemini"
    reads = GeminiReader
    install = "npm install -g @google/gemini-cli"
    needed_flags = (
        "--output-format", "--approval-mode", "--skip-trust", "--admin-policy", "--resume", "--model",
    )  # fmt: skip
    deniable = frozenset(DENIES)
    mcp_tool = "mcp_rolecall_{}"
    signed_in = (
        "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "~/.gemini/oauth_creds.json",
        "~/.gemini/settings.json?", "~/.gemini/.env?", "GEMINI_CLI_HOME?",
    )  # fmt: skip
    system_policies: ClassVar[tuple[Path, ...]] = (
        Path("/etc/gemini-cli/policies"),
        Path("/Library/Application Support/GeminiCli/policies"),
    )
    """The folders of the machine's own rules. If there are such rules, Gemini ignores the rules passed to a run."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        # In an untrusted folder, Gemini silently resets the approval mode.
        argv = [self.command, "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust"]
        denied = set(capabilities.denied_tools(DENIES, context.capabilities, sandboxed=context.is_confined))
        if denied:
            self.check_policies()
            argv += ["--admin-policy", write_file(folder, "policy.toml", rule(sorted(denied), "deny", 999))]
        if context.session:
            argv += ["--resume", context.session]
        return ProgramCall([*argv, *self.last_arguments], stdin=prompt, env=self.env)

    @classmethod
    def check_policies(cls) -> None:
        """Raise an error if the machine's own rules would make Gemini ignore ours."""
        for place in cls.system_policies:
            if any(place.glob("*.toml")):
                raise UsageError(
                    f"gemini cannot be held to the role's restrictions here: beside the rules in {str(place)!r}"
                    " it ignores those of a run",
                    hint="Give the role another agent, or deny the tools there.",
                )


gemini = Gemini
