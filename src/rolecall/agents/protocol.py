"""What an agent is to the engine: an async function of a prompt and a context.

An adapter gives its answer back as text or as a `Reply`; a plain `async def` is an adapter. Every
way an agent can end has a name (`Ending`). An agent that came to an end of its own accord, with
something to say (`completed`, `refused`, `limit`), is a `Reply`; one that did not (`interrupted`,
`api_failure`, `timeout`, `killed`, `failed`) is an `AgentError` that carries what there was.

Not here: how a prompt is put together, how an answer becomes a typed output, which adapter plays
which role. Adapters read neither the environment nor the store: all they may know is the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from rolecall.errors import AgentError

Ending = Literal[
    "completed",  # the agent answered
    "refused",  # the agent declined to do it
    "limit",  # the agent reached a limit of turns, tokens or cost
    "interrupted",  # the caller's cancel signal ended it
    "api_failure",  # the model's endpoint failed
    "timeout",  # the adapter's timeout ended it
    "killed",  # a signal that did not come from us ended it
    "failed",  # the program is missing, cannot be run, or gave up with an error
]
ENDINGS: tuple[Ending, ...] = get_args(Ending)
ANSWERED: tuple[Ending, ...] = ("completed", "refused", "limit")
"""The endings that come as a Reply; each other one is raised as an AgentError."""

EventKind = Literal["text", "tool_call", "permission", "usage", "session", "process"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

Emit = Callable[[EventKind, Mapping[str, Any]], None]
"""Report a live sign of the agent. `session` comes as soon as its id is known, so that a crash in
mid-run resumes it; `process` names a child that was started, so that a crash can end it."""


class Cancel(Protocol):
    """The caller's wish that the agent stop; an asyncio.Event is one."""

    def is_set(self) -> bool: ...

    async def wait(self) -> Any: ...


class PastStep(Protocol):
    """What an adapter may see of a step that was taken."""

    @property
    def role(self) -> str: ...

    @property
    def output(self) -> Mapping[str, Any]: ...

    @property
    def body(self) -> str: ...


@dataclass(frozen=True)
class Context:
    """All an adapter knows besides the prompt."""

    thread: str
    role: str
    start: str
    """The prompt the thread was started with."""
    workdir: Path
    cancel: Cancel
    emit: Emit
    steps: Sequence[PastStep] = ()
    """The steps taken so far, oldest first. Reading is lazy: `reversed` starts at the newest."""
    session: str | None = None
    """The agent's own session to continue; None starts a new one."""
    attempt: int = 0
    """How often this step was asked before: corrections and retries count."""
    capabilities: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of children; nothing else is handed to them."""


@dataclass(frozen=True)
class Usage:
    """What one call of the agent used: never a running total of its session."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In US dollars; None where the agent does not tell."""
    turns: int = 0


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""


@dataclass(frozen=True)
class Turn:
    role: str
    """Who spoke: `assistant`, `user` or `system`."""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Reply:
    text: str
    session: str | None = None
    usage: Usage | None = None
    turns: tuple[Turn, ...] = ()
    files: tuple[str, ...] = ()
    """Files the agent touched, relative to the work folder."""
    ending: Ending = "completed"
    reason: str = ""
    """Why it ended, where `ending` alone does not say it."""
    step: str | None = None
    """The step itself, where an external agent has understood its answer and put it."""


class Agent(Protocol):
    def __call__(self, prompt: str, context: Context, /) -> Awaitable[str | Reply]: ...


async def ask(agent: Agent, prompt: str, *, context: Context) -> Reply:
    """Call an adapter and hold it to the protocol: a Reply that ended, or an AgentError."""
    answer = await agent(prompt, context)
    if isinstance(answer, str):
        return Reply(answer)
    if not isinstance(answer, Reply):
        raise AgentError(
            f"the agent of role {context.role!r} returned {type(answer).__name__}, not text or a Reply",
            ending="failed",
            hint="An adapter is `async def agent(prompt, context) -> str | Reply`.",
        )
    if answer.ending not in ANSWERED:
        raise failure(answer)
    return answer


def failure(reply: Reply, *, hint: str = "") -> AgentError:
    """A reply that is no answer, as the error that keeps all of it."""
    return AgentError(
        reply.reason or f"the agent ended with {reply.ending!r}",
        ending=reply.ending,
        text=reply.text,
        session=reply.session,
        usage=reply.usage,
        turns=reply.turns,
        hint=hint,
    )
