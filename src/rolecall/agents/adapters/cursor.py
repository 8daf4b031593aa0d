"""Cursor's agent in print mode: `cursor-agent --print --output-format stream-json`, the prompt on stdin.

Based on its documentation: a failed run ends with an exit code and a message on stderr, without a final event, so an
endpoint failure looks like any other. Only recent versions report usage.

A restricted role runs in `--mode ask`, in which the agent only reads and answers. The shell alone cannot be denied.
Finer rules and tool servers are read only from the user's and the project's files, which we do not change. In a
sandbox, the kernel restricts the agent instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rolecall.agents.process import Exit
from rolecall.agents.program import Json, Program, ProgramCall, Reader
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.settings import capabilities

_EDITING = ("write", "edit", "delete")

DENIES: Mapping[str, str] = dict.fromkeys((*capabilities.FILES, *capabilities.SHELL_WRITES), "ask")
"""The mode that prevents each class of actions."""


class CursorReader(Reader):
    """A reader of Cursor's events: system/init, user, assistant (a whole message), tool_call started and completed,
    result."""

    _result: Json | None = None
    _turns = 0

    def event(self, event: Json) -> None:
        kind = event.get("type")
        self.transcript.in_session(event.text("session_id"))
        if kind == "assistant":
            self._turns += 1
            self.transcript.says(event.part("message").text("content"))
        elif kind == "result":
            self._result = event
            self.transcript.uses(self.usage() or Usage())
        if kind != "tool_call":
            return

        # A call has the form `{"readToolCall": {…}}` or `{"function": {"name": …}}`.
        ident, calls = event.text("call_id"), event.part("tool_call")
        key = next(iter(calls), "")
        call = calls.part(key)
        if event.get("subtype") == "started":
            name = call.text("name") if key == "function" else key.removesuffix("ToolCall")
            self.transcript.calls(ident, name, call.get("args") or call.get("arguments"))
            return
        result = call.part("result")
        outcome = next((key for key in ("success", "error", "rejected") if key in result), "")
        printed = result.part(outcome).get("stdout") or (result[outcome] if outcome else result)
        done = self.transcript.returns(ident, printed)
        if done is not None and outcome == "rejected":
            self.transcript.asks(done.name, is_allowed=False, reason=done.result)
        if done is not None and done.name in _EDITING and outcome == "success":
            self.transcript.touches(Json(done.arguments).text("path"))

    def usage(self) -> Usage | None:
        tokens = self._result.part("usage") if self._result else None
        if not tokens:
            return None
        read = ["inputTokens", "cacheReadTokens", "cacheWriteTokens"]
        return tokens.usage(read, ["outputTokens"], ["cacheReadTokens"], turns=self._turns)

    def finish(self, exit: Exit) -> Reply:
        if self._result is None:
            return self.no_answer(exit)
        # The result joins all messages; the answer is only the last message.
        joined = self._result.text("result")
        text = self.transcript.answer or joined
        if self._result.get("is_error") or exit.code:
            return self.answer("failed", joined or exit.reason, text=text)
        return self.answer(text=text)


@dataclass(frozen=True, kw_only=True)
class Cursor(Program):
    name = "cursor"
    reads = CursorReader
    program = "cursor-agent"
    install = "curl https://cursor.com/install -fsS | bash"
    needed_flags = (
        "--print", "--output-format", "--trust", "--force", "--approve-mcps", "--mode", "--resume", "--model",
    )  # fmt: skip
    deniable = frozenset(DENIES)
    signed_in = ("CURSOR_API_KEY", "~/.config/cursor/auth.json", "~/.cursor/cli-config.json?")

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:  # noqa: ARG002 -- no file is needed
        argv = [self.command, "--print", "--output-format", "stream-json", "--trust"]
        denied = () if context.is_confined else capabilities.denied_classes(context.capabilities)
        modes = {DENIES[name] for name in denied if name in DENIES}
        argv += [f"--mode={mode}" for mode in modes] or ["--force", "--approve-mcps"]
        if context.session:
            argv += [f"--resume={context.session}"]
        return ProgramCall([*argv, *self.last_arguments], stdin=prompt, env=self.env)


cursor = Cursor
