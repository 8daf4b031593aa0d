"""Any command as an agent: the prompt goes to its stdin, its stdout is the answer.

The command is a list of arguments and never passes through a shell. A command that exits with
anything but 0 gave no answer, whatever it printed; what it printed is kept in the error.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rolecall.agents import process
from rolecall.agents.protocol import Agent, Context, Emit, Reply
from rolecall.errors import UsageError

DEFAULT_TIMEOUT = 3600.0
_LIVE_CHARACTERS = 256 * 1024
_SPEC_HINT = "Write it as `command:program argument argument`; quotes group words, no shell is involved."


def command(
    argv: Sequence[str], *, timeout: float | None = DEFAULT_TIMEOUT, env: Mapping[str, str] | None = None
) -> Agent:
    """An agent that runs `argv` in the work folder. `env` is laid over the context's variables."""
    words = tuple(argv)
    if not words or not words[0]:
        raise UsageError("an agent command needs a program", hint=_SPEC_HINT)

    async def run_command(prompt: str, context: Context) -> Reply:
        ended = await process.run(
            words,
            cwd=context.workdir,
            env={**context.env, **(env or {})},
            prompt=prompt,
            timeout=timeout,
            cancel=context.cancel,
            on_start=lambda child: context.emit("process", {"pid": child.pid, "run": child.run}),
            on_text=_LiveText(context.emit),
        )
        if ended.ending != "completed":
            raise ended.error()
        return Reply(ended.stdout)

    return run_command


def from_argument(argument: str) -> Agent:
    try:
        return command(shlex.split(argument))
    except ValueError as error:
        raise UsageError(
            f"the agent command {argument!r} cannot be split: {error}", hint=_SPEC_HINT
        ) from error


class _LiveText:
    """Passes text on as events, up to a size, because every event is stored; the answer is kept whole."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._room = _LIVE_CHARACTERS

    def __call__(self, text: str) -> None:
        if self._room <= 0:
            return
        shown = text[: self._room]
        self._room -= len(shown)
        self._emit("text", {"text": shown, "more": True} if self._room <= 0 else {"text": shown})
