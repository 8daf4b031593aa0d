"""External agents: programs that put the step themselves and print its id.

The program is run as `<command> <thread-id> <role>` in the work folder, with the prompt on its stdin as
well. It opens the same store, puts a step and prints the step's id as the last line of its stdout: bare,
or as a JSON object with the id under `stepHash`. `rolecall.agentkit` does all of that for agents written
in Python. Whether the step is the one that was asked for is the engine's to check.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from rolecall.agents import process
from rolecall.agents.command import DEFAULT_TIMEOUT
from rolecall.agents.protocol import Agent, Context, Reply
from rolecall.errors import AgentError, UsageError
from rolecall.ids import is_node_id

_SPEC_HINT = "Write it as `external:program argument argument`; thread and role are added to it."
_EXPECTED = 'Its last line must be the id of the step it put, bare or as {"stepHash": "…"}.'


def external(argv: Sequence[str], *, timeout: float | None = DEFAULT_TIMEOUT) -> Agent:
    """An agent that runs `argv` with the thread and the role as further arguments."""
    words = tuple(argv)
    if not words or not words[0]:
        raise UsageError("an external agent needs a program", hint=_SPEC_HINT)

    async def run_external(prompt: str, context: Context) -> Reply:
        ended = await process.run(
            (*words, context.thread, context.role),
            cwd=context.workdir,
            env=context.env,
            prompt=prompt,
            timeout=timeout,
            cancel=context.cancel,
            on_start=lambda child: context.emit("process", {"pid": child.pid, "run": child.run}),
        )
        if ended.ending != "completed":
            raise ended.error()
        return Reply("", step=_step_id(ended.stdout, program=words[0]))

    return run_external


def from_argument(argument: str) -> Agent:
    try:
        return external(shlex.split(argument))
    except ValueError as error:
        raise UsageError(
            f"the agent command {argument!r} cannot be split: {error}", hint=_SPEC_HINT
        ) from error


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
