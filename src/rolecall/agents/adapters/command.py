"""Any command as an agent: the prompt goes to its stdin, its stdout is the answer.

The command is a list of arguments and never passes through a shell. If it exits with a status other than 0, its output
is kept in the error. Status 75 means that its provider has reached a limit.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rolecall.agents.process import Exit
from rolecall.agents.process import run as run_process
from rolecall.agents.protocol import DEFAULT_TIMEOUT, Context, Reply
from rolecall.agents.transcript import LiveText
from rolecall.errors import AgentError, UsageError
from rolecall.store.lazy import Module

if TYPE_CHECKING:  # most roles have no sandbox
    import rolecall.agents.needs as needs
else:
    needs = Module("rolecall.agents.needs")

_LIMITED = 75
"""The exit status for a temporary failure in sysexits.h; the error output then says when to try again."""

_MAX_QUOTE = 300


@dataclass(frozen=True)
class Command:
    """An agent that is a program: it reads the prompt from standard input and prints the answer."""

    argv: tuple[str, ...]
    timeout: float | None = DEFAULT_TIMEOUT
    """The maximum number of seconds for one call; None for no limit."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables added for the program."""

    deniable: ClassVar[frozenset[str]] = frozenset()
    """The classes of actions that can be denied: none, because the adapter cannot restrict an arbitrary program. In a
    sandbox, the kernel can restrict the program."""
    runs_in_sandbox: ClassVar[bool] = True

    @property
    def program(self) -> str:
        return self.argv[0]

    async def __call__(self, prompt: str, context: Context) -> Reply:
        ended = await self.complete(self.argv, prompt, context, on_text=LiveText(context.emit))
        return Reply(ended.stdout)

    async def run(self, argv: Sequence[str], context: Context, **more: Any) -> Exit:
        """Run a command in the work folder. `more` are further arguments of `process.run`."""
        env, policy = {**context.env, **self.env}, context.sandbox
        if policy is not None:
            policy = needs.confine(
                policy, "", argv[0],
                env=env, folder=context.workdir, own=self.env, write=self.find_state(env),
            )  # fmt: skip
        return await run_process(
            argv,
            cwd=context.workdir,
            env=env,
            timeout=self.timeout,
            cancel=context.cancel,
            on_start=lambda child: context.emit("process", child._asdict()),
            sandbox=policy,
            **more,
        )

    async def complete(
        self, argv: Sequence[str], prompt: str, context: Context, on_text: LiveText | None = None
    ) -> Exit:
        """Run a command with a prompt. Raise AgentError unless the command exits with status 0."""
        ended = await self.run(argv, context, prompt=prompt, on_text=on_text)
        if ended.code == _LIMITED:
            raise AgentError(ended.reason, ending="api_failure", text=ended.stdout)
        if ended.ending == "failed" and not ended.stderr.strip() and (said := ended.stdout.strip()):
            # Without error output, the last line of the answer is the best explanation.
            ended = ended._replace(reason=f"{ended.reason}: {said.splitlines()[-1][-_MAX_QUOTE:]}")
        if ended.ending != "completed":
            raise ended.error()
        return ended

    def find_state(self, env: Mapping[str, str]) -> list[str]:  # noqa: ARG002 -- for subclasses
        """Return the places that the program can write to in every role."""
        return []


def command(
    argv: str | Sequence[str],
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> Command:
    """Create an agent that runs `argv` in the work folder."""
    return Command(words_of(argv, "command"), timeout, env or {})


from_argument = command


def words_of(written: str | Sequence[str], kind: str) -> tuple[str, ...]:
    """Split a command given as one string; return a sequence of words unchanged."""
    hint = f"Write it as `{kind}:program argument argument`; quotes group words, no shell is involved."
    try:
        words = tuple(shlex.split(written) if isinstance(written, str) else written)
    except ValueError as error:
        raise UsageError(f"the agent command {written!r} cannot be split: {error}", hint=hint) from error
    if not words or not words[0]:
        raise UsageError(f"the agent {kind!r} needs a program", hint=hint)
    return words
