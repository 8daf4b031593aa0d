"""A command whose exit code is the answer: `run:make test`. Words may come from earlier steps (`workflow/command.py`).

Its output has the schema `command.SCHEMA`. An exit code other than 0 is an answer and not an error; a program that
cannot be started, or that takes too long, is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rolecall.agents.adapters.command import Command, words_of
from rolecall.agents.protocol import Context, Reply
from rolecall.agents.transcript import LiveText
from rolecall.errors import RolecallError
from rolecall.settings.settings import OUTSIDE
from rolecall.store.canonical import JsonObject
from rolecall.workflow import command
from rolecall.workflow.reply import render

_SHORT = 2000
"""The number of characters at the end of the command's output that become the `output` field."""
_LONG = 20_000
"""The number of bytes of the command's output that are kept; of a longer output, the middle is dropped."""


@dataclass(frozen=True)
class CheckedCommand(Command):
    """An agent that runs a program and answers with the exit code."""

    effects: ClassVar[str] = OUTSIDE
    """Marks the command as having outside effects. Its result is evidence, which is never reused: the command runs each
    time."""

    @property
    def program(self) -> str:
        """The program of the command; empty if an earlier step decides it."""
        return "" if "{{" in self.argv[0] else self.argv[0]

    async def __call__(self, _prompt: str, context: Context) -> Reply:
        def latest(role: str) -> JsonObject | None:
            return next((step.output for step in reversed(context.steps) if step.role == role), None)

        try:
            argv = command.expand(self.argv, latest)
            ended = await self.run(argv, context, on_text=LiveText(context.emit), max_output=_LONG)
            if ended.ending not in ("completed", "failed", "killed"):
                raise ended.error()
        except RolecallError as error:
            if source := command.source_of(self.argv):
                more = f"A message that resumes the thread goes to {source}, which named the command."
                error.hint = f"{error.hint} {more}".lstrip()
            raise
        printed = "\n".join(filter(None, (ended.stdout.strip(), ended.stderr.strip())))
        output = {
            "status": "failed" if ended.code else "passed",
            "command": list(argv),
            "exit_code": ended.code or 0,
            "output": printed[-_SHORT:],
        }
        return Reply(render(output, printed if len(printed) > _SHORT else ""))


def run(argv: str | Sequence[str], **options: Any) -> CheckedCommand:
    """Create an agent that runs `argv` in the work folder and answers with its exit code."""
    words = words_of(argv, "run")
    list(command.tags(words))
    return CheckedCommand(words, **options)


from_argument = run
