"""External agents: programs that put the step themselves and print its id.

The program is run as `<command> <thread-id> <role>` in the work folder, with the prompt on its stdin as
well. It opens the same store, puts a step and prints the step's id as the last line of its stdout: bare,
or as a JSON object with the id under `stepHash`. `rolecall.agentkit` does all of that for agents written
in Python. Whether the step is the one that was asked for is the engine's to check.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rolecall.agents.command import DEFAULT_TIMEOUT, Command, words_of
from rolecall.agents.protocol import Context, Reply
from rolecall.errors import AgentError
from rolecall.ids import is_node_id

_EXPECTED = 'Its last line must be the id of the step it put, bare or as {"stepHash": "…"}.'


@dataclass(frozen=True)
class External(Command):
    opens_store: ClassVar[bool] = True

    async def __call__(self, prompt: str, context: Context) -> Reply:
        ended = await self.run((*self.argv, context.thread, context.role), prompt, context)
        return Reply("", step=_step_id(ended.stdout, program=self.program))


def external(argv: Sequence[str], *, timeout: float | None = DEFAULT_TIMEOUT) -> External:
    """An agent that runs `argv` with the thread and the role as further arguments."""
    return External(words_of(argv, "external"), timeout)


def from_argument(argument: str, **options: Any) -> External:
    return external(words_of(argument, "external"), **options)


def _step_id(stdout: str, *, program: str) -> str:
    lines = stdout.strip().splitlines()
    last = lines[-1].strip() if lines else ""
    found = _step_hash(last) if last.startswith("{") else last
    if isinstance(found, str) and is_node_id(found):
        return found
    printed = f"printed {last[:200]!r}" if last else "printed nothing"
    raise AgentError(
        f"{program!r} {printed} where the id of its step was expected",
        ending="failed",
        text=stdout,
        hint=_EXPECTED,
    )


def _step_hash(line: str) -> object:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record.get("stepHash") if isinstance(record, dict) else None
