"""The engine's view of an agent: an async function of a prompt and a context.

An adapter returns its answer as text or as a `Reply`; a plain `async def` is an adapter. Every way an agent can end has
a name (`Ending`). `ask` returns a `Reply` if the agent ended by itself with an answer (`completed`, `refused`,
`limit`), and raises any other ending as an `AgentError` that keeps the partial answer. Adapters read neither the
environment nor the store, only the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

from rolecall.errors import AgentError
from rolecall.errors import Ending as Ending
from rolecall.store.canonical import JsonObject

if TYPE_CHECKING:  # most roles have no sandbox
    from rolecall.agents.sandbox import Policy

ENDINGS: tuple[Ending, ...] = get_args(Ending)
ANSWERED: tuple[Ending, ...] = ("completed", "refused", "limit")
"""The endings that `ask` returns; it raises all other endings."""

DEFAULT_TIMEOUT = 3600.0
"""The maximum number of seconds for one answer, if the adapter sets no other timeout."""

EventKind = Literal["text", "tool_call", "permission", "usage", "session", "process"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

Emit = Callable[[EventKind, JsonObject], None]
"""A function that reports a live event of the agent. An agent sends `session` as soon as it knows the session id, so
that a run can be resumed after a crash. It sends `process` when it starts a child process, so that the process can be
ended after a crash."""


class Memory(Protocol):
    """The sessions of agents that store none themselves; entries survive a crash."""

    def read(self, session: str) -> list[str]: ...

    def add(self, session: str, text: str) -> None: ...


class Forgetful:
    """A memory that lasts only as long as the object."""

    def __init__(self) -> None:
        self._kept: dict[str, list[str]] = {}

    def read(self, session: str) -> list[str]:
        return list(self._kept.get(session, ()))

    def add(self, session: str, text: str) -> None:
        self._kept.setdefault(session, []).append(text)


class Played(NamedTuple):
    """The state of another workflow's thread after it ran."""

    thread: str
    status: str
    """The thread's status, or `limited` if it waits for its agent's limit to end."""
    reason: str
    output: JsonObject
    body: str
    usage: Usage


Play = Callable[[str, str, str | None], Awaitable[Played]]
"""A function that takes a workflow, a prompt, and the thread to continue (or None), runs the workflow, and returns the
state of its thread."""


class Cancel(Protocol):
    """A signal that the agent should stop; an asyncio.Event can be used."""

    def is_set(self) -> bool: ...

    async def wait(self) -> Any: ...


class PastStep(Protocol):
    """The parts of a finished step that an adapter can see."""

    @property
    def role(self) -> str: ...

    @property
    def output(self) -> JsonObject: ...

    @property
    def body(self) -> str: ...


@dataclass(frozen=True, eq=False, repr=False)  # `eq` and `repr` would slow down every start
class Context:
    """Everything an adapter knows except the prompt."""

    thread: str
    role: str
    start: str
    """The prompt the thread was started with."""
    workdir: Path
    cancel: Cancel
    emit: Emit
    instruction: str = ""
    """The instruction of the edge that led to the role; the prompt contains it too."""
    steps: Sequence[PastStep] = ()
    """The steps taken so far, oldest first. Steps are read on demand; `reversed` starts with the newest."""
    session: str | None = None
    """The id of the agent's own session to continue; None starts a new session."""
    is_fork: bool = False
    """Whether `session` belongs to the thread that this thread was forked from, so that the agent must continue a
    copy."""
    session_total: Usage | None = None
    """The session's usage after its previous call, if the agent reports totals."""
    schema: JsonObject = field(default_factory=dict)
    """The JSON Schema of the role's output, for agents that can enforce one."""
    attempt: int = 0
    """The number of times the agent was asked before for this step, including corrections and retries."""
    capabilities: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The complete environment for child processes."""
    memory: Memory = field(default_factory=Forgetful)
    play: Play | None = None
    """A function that runs another workflow as the role's agent; None without an engine."""
    sandbox: Policy | None = None
    """The limits on the agent's processes; None if there are none. Only adapters that start their processes in a
    sandbox (`runs_in_sandbox`) receive a policy."""

    @property
    def is_confined(self) -> bool:
        """Whether the kernel limits what the agent's processes can write and execute, so that the agent need not
        enforce these limits itself."""
        return self.sandbox is not None and self.sandbox.layers.can_restrict_files


@dataclass(frozen=True)
class Usage:
    """The usage of one call of the agent, never a running total of its session."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """Cost in US dollars; None if the agent does not report it."""
    turns: int = 0

    def plus(self, more: Usage) -> Usage:
        costs = [cost for cost in (self.cost, more.cost) if cost is not None]
        return Usage(
            self.input_tokens + more.input_tokens,
            self.output_tokens + more.output_tokens,
            self.cached_tokens + more.cached_tokens,
            round(sum(costs), 10) if costs else None,
            self.turns + more.turns,
        )

    def since(self, before: Usage | None) -> Usage:
        """Return the usage since `before`, if both are totals of one session."""
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
    """One use of a tool by an agent."""

    name: str
    arguments: JsonObject = field(default_factory=dict)
    result: str = ""
    started_at: int | None = field(default=None, compare=False)
    """The time when the call was reported, in milliseconds."""
    ended_at: int | None = field(default=None, compare=False)
    """The time when the result was reported, in milliseconds."""


@dataclass(frozen=True)
class Turn:
    """One turn of an agent's conversation."""

    role: str
    """Who spoke: `assistant`, `user` or `system`."""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The result of one call of an agent."""

    text: str
    session: str | None = None
    usage: Usage | None = None
    session_total: Usage | None = None
    """The usage that the agent reports for its whole session; the next call receives it."""
    turns: tuple[Turn, ...] = ()
    files: tuple[str, ...] = ()
    """The files that the agent changed, relative to the work folder."""
    ending: Ending = "completed"
    reason: str = ""
    """Why the agent ended, if `ending` does not say enough."""
    step: str | None = None
    """The step that an external agent stored itself; None for any other agent."""
    children: tuple[str, ...] = ()
    """The threads that did the work, if another workflow played the role."""
    hint: str = ""
    """Advice about an ending without an answer."""
    is_session_lost: bool = False
    """Whether the agent does not know the session, so that a new session could help."""


class Agent(Protocol):
    def __call__(self, prompt: str, context: Context, /) -> Awaitable[str | Reply]: ...


async def ask(agent: Agent, prompt: str, *, context: Context) -> Reply:
    """Call an adapter and enforce the protocol: return a Reply that ended, or raise an AgentError."""
    hint = "An adapter is `async def agent(prompt, context) -> str | Reply`."
    asked = agent(prompt, context)
    if not hasattr(asked, "__await__"):
        raise AgentError(
            f"the agent of role {context.role!r} is a plain function, not an async one", hint=hint
        )
    answer = await asked
    if isinstance(answer, str):
        return Reply(answer)
    if not isinstance(answer, Reply):
        raise AgentError(
            f"the agent of role {context.role!r} returned {type(answer).__name__}, not text or a Reply",
            hint=hint,
        )
    if answer.ending in ANSWERED:
        return answer
    raise AgentError(
        answer.reason or f"the agent ended with {answer.ending!r}",
        ending=answer.ending,
        text=answer.text,
        session=answer.session,
        usage=answer.usage,
        turns=answer.turns,
        hint=answer.hint,
        session_total=answer.session_total,
        is_session_lost=answer.is_session_lost,
        children=answer.children,
        files=answer.files,
    )
