"""Whose turn it is: a thread's chain seen through its workflow. Pure but for lazy reads of the chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

from rolecall import condition, route, thread
from rolecall.errors import ExtractError, UsageError
from rolecall.playbook import Message, Moderator, Playbook, RoleFunction, RoleResult, ThreadContext
from rolecall.route import Ended, Failed, Next, Route, Stuck, Suspended
from rolecall.thread import FORK, PERSON, Chain, Step
from rolecall.workflow import END, START, SUSPEND, Role

MOST_STEPS = 1_000
"""How many of the latest steps a condition can see that asks about all of them."""
ERROR = "$ERROR"


class Turn:
    """One thread at its head, together with the workflow that says what comes next."""

    def __init__(self, name: str, chain: Chain, playbook: Playbook) -> None:
        self.thread = name
        self.chain = chain
        self.playbook = playbook
        self.workflow = playbook.workflow

    @property
    def task(self) -> str:
        return self.chain.start.prompt

    @cached_property
    def last(self) -> Step | None:
        return self.chain.last

    @cached_property
    def messages(self) -> Messages:
        return Messages(self.chain)

    @property
    def totals(self) -> Mapping[str, Any]:
        return self.last.payload["totals"] if self.last else {}

    def role(self, name: str) -> Role:
        return self.workflow.roles[name]

    def over_limit(self, role: str, raised: Mapping[str, float]) -> str | None:
        """The limit that forbids another step, in words."""
        of_thread = {**_given(self.workflow.limits), **self.chain.start.limits, **raised}
        used_by_role = self.totals.get("roles", {}).get(role, {})
        reason = thread.over_limit(of_thread, self.totals, "the thread") or thread.over_limit(
            _given(self.role(role).limits), used_by_role, f"the role {role}"
        )
        if reason is None:
            return None
        key = reason.rpartition(" ")[2]
        return (
            f"limit reached: {reason}; raise it with `rolecall thread resume {self.thread} --limit {key}=…`"
        )

    def context(self, error: ExtractError | None = None) -> ThreadContext:
        return ThreadContext(self.thread, self.task, self.messages, self.chain.start.cwd, error)

    async def call(self, function: RoleFunction) -> dict[str, Any]:
        """A hand-written role: its result, checked."""
        result = await function(self.context())
        content, meta = (
            (result.content, result.meta)
            if isinstance(result, RoleResult)
            else (result.get("content"), result.get("meta"))
        )
        if not isinstance(content, str) or not isinstance(meta, Mapping):
            raise UsageError("a role function must return `content` (a string) and `meta` (an object)")
        return {
            "output": dict(meta),
            "text": content,
            "agent": f"python:{getattr(function, '__name__', 'role')}",
        }


def _given(limits: Any) -> dict[str, float]:
    return {key: value for key, value in asdict(limits).items() if value is not None}


# -- where to --


def next_of(turn: Turn) -> Route:
    """Where the thread goes from its head."""
    step = turn.last
    while step is not None and step.role == FORK:
        previous = step.payload["prev"]
        step = Chain(turn.chain._store, previous).last if previous else None
    if step is None:
        return way_on(turn, START, {}, "", ())
    if step.role == PERSON:
        said = step.output
        return Next(said["role"], said["answer"], None)
    return way_on(turn, step.role, step.output, step.body, None)


def way_on(turn: Turn, role: str, output: Any, body: str, added: Sequence[Mapping[str, Any]] | None) -> Route:
    """Where the thread goes after `role` said `output`; `added` are steps not in the chain yet."""
    if route.status_of(output) == SUSPEND:
        return Suspended(str(output.get("reason", "")))
    if turn.playbook.moderator is not None:
        return _moderated(turn, turn.playbook.moderator, role, output, body, is_new=bool(added))
    count = turn.last.number if turn.last else 0
    new = list(added or ())
    return route.route(
        turn.workflow,
        role=role,
        output=output,
        start={"workflow": turn.workflow.name, "prompt": turn.task, "cwd": turn.chain.start.cwd},
        steps=[*turn.messages.recent(_steps_asked_about(turn, role)), *new],
        steps_count=count + len(new),
        thread=turn.thread,
        body=body,
    )


def _steps_asked_about(turn: Turn, role: str) -> int:
    """How many past steps the conditions of a role look at: most look at the last, most roles have none."""
    names = {edge.condition for edge in turn.workflow.graph.get(role, ()) if edge.condition}
    known = [turn.workflow.conditions[name].expression for name in names if name in turn.workflow.conditions]
    windows = [condition.window(expression) for expression in known]
    return max((MOST_STEPS if window is None else window for window in windows), default=0)


def _moderated(turn: Turn, moderator: Moderator, role: str, output: Any, body: str, *, is_new: bool) -> Route:
    steps = [*turn.messages, Message(role, body, output)] if is_new else turn.messages
    error = ExtractError(str(output.get("reason", "")), raw=body) if _is_error(output) else None
    context = ThreadContext(turn.thread, turn.task, steps, turn.chain.start.cwd, error)
    try:
        chosen = moderator(context)
    except Exception as exc:
        return Stuck(f"the moderator failed: {type(exc).__name__}: {exc}")
    if chosen == END:
        return Ended()
    if chosen not in turn.workflow.roles:
        return Failed(
            f"the moderator named {chosen!r}, which is no role (roles: {', '.join(turn.workflow.roles)})"
        )
    return Next(chosen, "", None)


def _is_error(output: Any) -> bool:
    return isinstance(output, Mapping) and output.get("$status") == ERROR


class Messages(Sequence[Message]):
    """The steps of a chain as Python code sees them, oldest first; read from the newest on demand."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._newest_first: list[Message] = []
        self._steps = (step for step in chain if step.role != FORK)
        self._is_complete = False

    def __len__(self) -> int:
        self._read(None)
        return len(self._newest_first)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index < 0:
            self._read(-index)
            return self._newest_first[-index - 1]
        self._read(None)
        return self._newest_first[::-1][index]

    def __reversed__(self) -> Iterator[Message]:
        at = 0
        while True:
            self._read(at + 1)
            if at >= len(self._newest_first):
                return
            yield self._newest_first[at]
            at += 1

    def recent(self, count: int) -> list[dict[str, Any]]:
        """The latest steps, oldest first, as conditions see them."""
        self._read(count)
        return [
            {"role": message.role, "output": message.meta} for message in reversed(self._newest_first[:count])
        ]

    def _read(self, count: int | None) -> None:
        while not self._is_complete and (count is None or len(self._newest_first) < count):
            step = next(self._steps, None)
            if step is None:
                self._is_complete = True
            else:
                self._newest_first.append(
                    Message(step.role, partial(getattr, step, "body"), partial(getattr, step, "output"))
                )
