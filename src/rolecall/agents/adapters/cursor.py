"""Cursor's agent in print mode: `cursor-agent --print --output-format stream-json`, the prompt on stdin.

Based on its documentation: a failed run ends with an exit code and a message on stderr, without a final event, so an
endpoint failure looks like any other. Only recent versions report usage.

Restrictions: `--mode ask`, which reads and answers. It cannot deny only the shell. Finer rules and tool servers are
read only from the user's and the project's files, which we do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.program import Call, Program, Reader, count, mapping
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.agents.transcript import text_of
from rolecall.settings import capabilities

_EDITING = ("write", "edit", "delete")

DENIES: Mapping[str, str] = dict.fromkeys((*capabilities.FILES, *capabilities.SHELL_WRITES), "ask")
"""The mode that prevents each class of actions."""


@dataclass(frozen=True, kw_only=True)
class Cursor(Program):
    name: ClassVar[str] = "cursor"
    program: ClassVar[str] = "cursor-agent"
    install: ClassVar[str] = "curl https://cursor.com/install -fsS | bash"
    needed_flags: ClassVar[tuple[str, ...]] = (
        "--print", "--output-format", "--trust", "--force", "--approve-mcps", "--mode", "--resume", "--model",
    )  # fmt: skip
    deniable: ClassVar[frozenset[str]] = frozenset(DENIES)
    signed_in: ClassVar[tuple[str, ...]] = (
        "CURSOR_API_KEY", "~/.config/cursor/auth.json", "~/.cursor/cli-config.json?",
    )  # fmt: skip

    def call(self, prompt: str, context: Context, folder: Path) -> Call:  # noqa: ARG002 -- no file is needed
        argv = [self.command, "--print", "--output-format", "stream-json", "--trust"]
        modes = {DENIES[name] for name in capabilities.denied(context.capabilities) if name in DENIES}
        argv += [f"--mode={mode}" for mode in modes] or ["--force", "--approve-mcps"]
        if context.session:
            argv += [f"--resume={context.session}"]
        if self.model:
            argv += ["--model", self.model]
        return Call([*argv, *self.args], stdin=prompt, env=self.env)

    def reader(self, context: Context) -> CursorReader:
        return CursorReader(context)


class CursorReader(Reader):
    """Events: system/init, user, assistant (a whole message), tool_call started and completed, result."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._result: Mapping[str, Any] | None = None
        self._turns = 0

    def event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        self.transcript.in_session(text_of(event.get("session_id")))
        if kind == "assistant":
            self._turns += 1
            self.transcript.says(text_of(mapping(event.get("message")).get("content")))
        elif kind == "tool_call":
            self._read_call(event)
        elif kind == "result":
            self._result = event
            self.transcript.uses(self.usage() or Usage())

    def _read_call(self, event: Mapping[str, Any]) -> None:
        """Read a call in the form `{"readToolCall": {…}}` or `{"function": {"name": …}}`."""
        ident = text_of(event.get("call_id"))
        key, told = next(iter(mapping(event.get("tool_call")).items()), ("", None))
        call = mapping(told)
        name = text_of(call.get("name")) if key == "function" else key.removesuffix("ToolCall")
        if event.get("subtype") == "started":
            self.transcript.calls(ident, name, call.get("args") or call.get("arguments"))
            return
        result = mapping(call.get("result"))
        said = next((result[key] for key in ("success", "error", "rejected") if key in result), result)
        done = self.transcript.returns(ident, mapping(said).get("stdout") or said)
        if done is not None and "rejected" in result:
            self.transcript.asks(done.name, is_allowed=False, reason=done.result)
        if done is not None and done.name in _EDITING and "success" in result:
            self.transcript.touches(text_of(done.arguments.get("path")))

    def usage(self) -> Usage | None:
        tokens = mapping(self._result.get("usage")) if self._result else {}
        if not tokens:
            return None
        return Usage(
            input_tokens=count(tokens, "inputTokens", "cacheReadTokens", "cacheWriteTokens"),
            output_tokens=count(tokens, "outputTokens"),
            cached_tokens=count(tokens, "cacheReadTokens"),
            turns=self._turns,
        )

    def finish(self, exit: process.Exit) -> Reply:
        if self._result is None:
            return self.no_answer(exit)
        # The result joins all messages; the answer is the last one.
        text = self.transcript.answer or text_of(self._result.get("result"))
        if self._result.get("is_error") or exit.code:
            reason = text_of(self._result.get("result")) or exit.reason
            return self.reply(text, "failed", reason[:2000])
        return self.reply(text)


cursor = Cursor
"""The adapter under the name that roles use: `cursor(model=…, timeout=600)`."""
default = cursor()
