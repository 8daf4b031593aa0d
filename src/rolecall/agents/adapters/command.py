"""Any command as an agent: the prompt goes to its stdin, its stdout is the answer.

The command is a list of arguments and never passes through a shell. A command that exits with
anything but 0 gave no answer, whatever it printed; what it printed is kept in the error.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.protocol import Context, Reply
from rolecall.agents.transcript import LiveText
from rolecall.errors import UsageError

DEFAULT_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    timeout: float | None = DEFAULT_TIMEOUT
    env: Mapping[str, str] = field(default_factory=dict)
    """Laid over the context's variables."""

    deniable: ClassVar[frozenset[str]] = frozenset()
    """Nothing: what a program of anybody's does cannot be held back from here."""

    @property
    def program(self) -> str:
        return self.argv[0]

    async def __call__(self, prompt: str, context: Context) -> Reply:
        ended = await self.run(self.argv, prompt, context, on_text=LiveText(context.emit))
        return Reply(ended.stdout)

    async def run(
        self, argv: Sequence[str], prompt: str, context: Context, on_text: LiveText | None = None
    ) -> process.Exit:
        """Run it in the work folder until it ends well; any other end is an AgentError."""
        ended = await process.run(
            argv,
            cwd=context.workdir,
            env={**context.env, **self.env},
            prompt=prompt,
            timeout=self.timeout,
            cancel=context.cancel,
            on_start=lambda child: context.emit("process", {"pid": child.pid, "run": child.run}),
            on_text=on_text,
        )
        if ended.ending != "completed":
            raise ended.error()
        return ended


def command(
    argv: Sequence[str], *, timeout: float | None = DEFAULT_TIMEOUT, env: Mapping[str, str] | None = None
) -> Command:
    """An agent that runs `argv` in the work folder."""
    return Command(words_of(argv, "command"), timeout, env or {})


def from_argument(argument: str, **options: Any) -> Command:
    return command(words_of(argument, "command"), **options)


def words_of(written: str | Sequence[str], kind: str) -> tuple[str, ...]:
    """The words of a command that is written in one string, or given as they are."""
    hint = f"Write it as `{kind}:program argument argument`; quotes group words, no shell is involved."
    try:
        words = tuple(shlex.split(written) if isinstance(written, str) else written)
    except ValueError as error:
        raise UsageError(f"the agent command {written!r} cannot be split: {error}", hint=hint) from error
    if not words or not words[0]:
        raise UsageError(f"the agent {kind!r} needs a program", hint=hint)
    return words
