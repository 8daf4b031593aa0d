"""External agents: programs that store the step themselves and print its id.

The program runs as `<command> <thread-id> <role>` in the work folder. An agent with `command` and `args` under `agents`
in the configuration runs as in uwf: `<command> <args> --thread <thread-id> --role <role> --prompt <instruction>`. The
whole prompt is also on stdin. The program opens the same store, adds a step and prints the step's id as the last line
of its stdout, either alone or as `stepHash` in a JSON object. `rolecall.agentkit` does all this for agents written in
Python; others store a node with uwf's fields (start, prev, role, output, detail, agent). The engine checks the step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rolecall.agents.adapters.command import Command, words_of
from rolecall.agents.program import parse_object
from rolecall.agents.protocol import Context, Reply
from rolecall.errors import AgentError
from rolecall.store.ids import is_node_id

_LONGEST_WORD = 131_000
"""The maximum length of an argument in bytes; Linux accepts no argument of 128 KiB or more."""


@dataclass(frozen=True)
class External(Command):
    opens_store: ClassVar[bool] = True

    has_flags: bool = False
    """Whether the program receives the thread, role and instruction as options, as in uwf."""

    def find_state(self, env: Mapping[str, str]) -> list[str]:
        """Return Rolecall's home and the folder of the store, because the program stores the step itself."""
        home = env.get("ROLECALL_HOME") or os.path.join(env.get("HOME", ""), ".rolecall")
        store = env.get("ROLECALL_STORE", "")
        return [home, *([] if not store or "://" in store else [os.path.dirname(store)])]

    async def __call__(self, prompt: str, context: Context) -> Reply:
        words = [context.thread, context.role]
        if self.has_flags:
            words = ["--thread", context.thread, "--role", context.role, "--prompt", context.instruction]
            if len(context.instruction.encode()) > _LONGEST_WORD:
                raise AgentError(
                    f"the instruction of {context.role} is too long for an argument of {self.program!r}",
                    hint=f"Name the agent `external:{self.program}`, which reads the prompt from standard input.",
                )
        ended = await self.complete((*self.argv, *words), prompt, context)
        last = (ended.stdout.strip().splitlines() or [""])[-1].strip()
        record = parse_object(last)
        step = last if record is None else record.get("stepHash")
        if isinstance(step, str) and is_node_id(step):
            return Reply("", step=step)
        printed = repr(last[:200]) if last else "nothing"
        raise AgentError(
            f"{self.program!r} printed {printed} where the id of its step was expected",
            text=ended.stdout,
            hint='The last line of its output must be the id of the step it stored, alone or as {"stepHash": "…"}.',
        )


def external(argv: str | Sequence[str], **options: Any) -> External:
    """Create an agent that runs `argv` with the thread and role as additional arguments."""
    return External(words_of(argv, "external"), **options)


from_argument = external
