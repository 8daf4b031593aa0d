"""What an agent is to the engine: an async function of a prompt and a context.

An adapter gives its answer back as text or as a `Reply`; a plain `async def` is an adapter. Every
way an agent can end has a name (`Ending`). An agent that came to an end of its own accord, with
something to say (`completed`, `refused`, `limit`), is a `Reply`; one that did not (`interrupted`,
`api_failure`, `timeout`, `killed`, `suspended`, `failed`) is an `AgentError` that carries what there was.

Not here: how a prompt is put together, how an answer becomes a typed output, which adapter plays
which role. Adapters read neither the environment nor the store: all they may know is the context.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from rolecall.errors import AgentError
from rolecall.errors import Ending as Ending

ENDINGS: tuple[Ending, ...] = get_args(Ending)
ANSWERED: tuple[Ending, ...] = ("completed", "refused", "limit")
"""The endings that come as a Reply; each other one is raised as an AgentError."""

EventKind = Literal["text", "tool_call", "permission", "usage", "session", "process"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

Emit = Callable[[EventKind, Mapping[str, Any]], None]
"""Report a live sign of the agent. `session` comes as soon as its id is known, so that a crash in
mid-run resumes it; `process` names a child that was started, so that a crash can end it."""


class Memory(Protocol):
    """Keeps the sessions of agents that have no memory of their own; what is added is there after a crash."""

    def read(self, session: str) -> list[str]: ...

    def add(self, session: str, text: str) -> None: ...


class Forgetful:
    """A memory that lasts as long as the object."""

    def __init__(self) -> None:
        self._kept: dict[str, list[str]] = {}

    def read(self, session: str) -> list[str]:
        return list(self._kept.get(session, ()))

    def add(self, session: str, text: str) -> None:
        self._kept.setdefault(session, []).append(text)


@dataclass(frozen=True)
class Played:
    """How the thread of another workflow stands after it was let run."""

    thread: str
    status: str
    reason: str
    output: Mapping[str, Any]
    body: str
    usage: Usage


Play = Callable[[str, str, str | None], Awaitable[Played]]
"""(workflow, prompt, the thread to go on with or None) -> how that thread stands."""


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
    instruction: str = ""
    """The instruction of the edge that led to the role; the prompt contains it, too."""
    steps: Sequence[PastStep] = ()
    """The steps taken so far, oldest first. Reading is lazy: `reversed` starts at the newest."""
    session: str | None = None
    """The agent's own session to continue; None starts a new one."""
    is_fork: bool = False
    """The session is another thread's past: continue a copy of it."""
    session_total: Usage | None = None
    """What the session had used when it was left, where the agent counts over all of it."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The JSON Schema of what the role delivers, for agents that can be held to one."""
    attempt: int = 0
    """How often this step was asked before: corrections and retries count."""
    capabilities: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of children; nothing else is handed to them."""
    memory: Memory = field(default_factory=Forgetful)
    play: Play | None = None
    """Lets another workflow play the role; None without an engine."""


@dataclass(frozen=True)
class Usage:
    """What one call of the agent used: never a running total of its session."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In US dollars; None where the agent does not tell."""
    turns: int = 0

    def since(self, before: Usage | None) -> Usage:
        """What was used since `before`, where both are totals of one session."""
        if before is None:
            return self
        cost = None if self.cost is None else max(0.0, round(self.cost - (before.cost or 0.0), 10))
        return Usage(
            max(0, self.input_tokens - before.input_tokens),
            max(0, self.output_tokens - before.output_tokens),
            max(0, self.cached_tokens - before.cached_tokens),
            cost,
            max(0, self.turns - before.turns),
        )


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
    session_total: Usage | None = None
    """What the agent says that its whole session has used; the next call is given it back."""
    turns: tuple[Turn, ...] = ()
    files: tuple[str, ...] = ()
    """Files the agent touched, relative to the work folder."""
    ending: Ending = "completed"
    reason: str = ""
    """Why it ended, where `ending` alone does not say it."""
    step: str | None = None
    """The step itself, where an external agent has understood its answer and put it."""
    children: tuple[str, ...] = ()
    """Threads that did the work, where another workflow played the role."""
    hint: str = ""
    """What to do about an ending without an answer."""
    is_session_lost: bool = False
    """The agent does not know the session; a new one may help."""


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


def failure(reply: Reply) -> AgentError:
    """The error for a reply without an answer; it keeps all of the reply."""
    return AgentError(
        reply.reason or f"the agent ended with {reply.ending!r}",
        ending=reply.ending,
        text=reply.text,
        session=reply.session,
        usage=reply.usage,
        turns=reply.turns,
        hint=reply.hint,
        session_total=reply.session_total,
        is_session_lost=reply.is_session_lost,
        children=reply.children,
        files=reply.files,
    )


def with_frontmatter(output: Mapping[str, Any], body: str) -> str:
    """An output that is known already as the answer that says it."""
    return f"---\n{json.dumps(dict(output), ensure_ascii=False)}\n---\n{body}"
