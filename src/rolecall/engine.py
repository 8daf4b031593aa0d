"""The heart: advance one thread by one step.

A step is: take the thread, see where it goes, ask the role's agent, understand the answer, commit. The
thread's ref carries the lease, so the commit that moves the head is also the proof that nobody else ran
it. What an agent has said is written down before anything is done with it: whoever takes the thread up
after a crash goes on from the answer instead of paying for it again.

Nothing here reads the environment, prints or knows a provider; `workspace.py` hands all of that in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecall import lease, prompt, reply
from rolecall.agents import process, protocol
from rolecall.errors import (
    AgentError,
    ExtractError,
    NotFound,
    RolecallError,
    UsageError,
)
from rolecall.lease import Held
from rolecall.mask import Mask
from rolecall.playbook import Playbook
from rolecall.record import Answer, Recorder
from rolecall.route import Ended, Failed, Next, Route, Stuck, Suspended
from rolecall.store.store import Store
from rolecall.thread import Chain
from rolecall.turn import Turn, crashed, name_of, next_of

HUMAN = "human"


@dataclass(frozen=True)
class Outcome:
    """How a step, or a run of them, left the thread."""

    thread: str
    head: str
    status: str
    role: str | None
    """The role that comes next."""
    reason: str = ""
    took: str | None = None
    """The step that was committed, if one was."""


@dataclass(frozen=True)
class Cast:
    """The agent that plays a role, by the name it is recorded under."""

    name: str
    agent: protocol.Agent


Casting = Callable[[Playbook, str], Cast]
Extract = Callable[
    [str, Mapping[str, Any], Mapping[str, Any] | None], Awaitable[tuple[Mapping[str, Any], Mapping[str, Any]]]
]
"""(answer, schema, the role's overrides) -> (output, usage); raises ExtractError."""


@dataclass(frozen=True)
class Engine:
    store: Store
    playbook: Callable[[str], Playbook]
    """By the id of the stored workflow."""
    cast: Casting
    extract: Extract
    """The second layer: a model that finds the output where the frontmatter does not give it."""
    token: Callable[[], str]
    environment: Mapping[str, str]
    mask: Mask
    watch: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _body: None

    async def run(
        self, name: str, *, cancel: protocol.Cancel, steps: int | None = None
    ) -> AsyncIterator[Outcome]:
        """Step until the thread ends, is suspended, is interrupted, or `steps` were taken."""
        taken = 0
        while steps is None or taken < steps:
            outcome = await self.step(name, cancel=cancel)
            yield outcome
            taken += 1
            if outcome.status != "idle" or outcome.took is None or cancel.is_set():
                return

    async def step(self, name: str, *, cancel: protocol.Cancel) -> Outcome:
        """Take exactly one step."""
        async with lease.hold(self.store, name, self.token(), cancel) as (held, stop):
            return await self._advance(held, stop)

    async def _advance(self, held: Held, cancel: protocol.Cancel) -> Outcome:
        chain = Chain(self.store, held.head)
        turn = Turn(held.thread, chain, self.playbook(chain.start.workflow))
        way = next_of(turn)
        if not isinstance(way, Next):
            return self._settle(held, way)
        try:
            record = Recorder(self.store, held.thread, turn, way, mask=self.mask, watch=self.watch)
        except UsageError as error:  # there is no folder to work in
            reason = f"{way.role}: {error.message}"
            return self._settle(held, Suspended(reason), f"resume {held.thread} --run")
        limit = turn.over_limit(way.role, held.limits, record.totals())
        if limit:
            return self._settle(
                held, Suspended(limit.reason), f"resume {held.thread} --limit {limit.more} --run"
            )
        if way.role in turn.playbook.functions:
            return await self._call(held, record, cancel)
        cast = self.cast(turn.playbook, way.role)
        if cast.name == HUMAN:
            reason = f"{way.role} is played by a person: answer with `rolecall thread answer {held.thread}`"
            return self._settle(held, Suspended(reason), f"answer {held.thread}")
        try:
            found = await self.perform(record, cast, cancel=cancel)
        except (AgentError, ExtractError, NotFound, UsageError) as error:
            return self._give_up(held, record, error)
        return self._commit(held, record, found)

    async def _call(self, held: Held, record: Recorder, cancel: protocol.Cancel) -> Outcome:
        """A role written in Python: what it raises suspends the thread, a result of a wrong shape fails it."""
        function = record.turn.playbook.functions[record.role]
        await record.close_left_behind()
        record.asking(f"python:{name_of(function)}", run=self.token())
        try:
            found = await record.turn.call(record.role, function, cancel=cancel)
        except UsageError as error:
            record.failed(error.message, error)
            return self._settle(held, Failed(f"{record.role}: {error.message}"))
        except AgentError as error:
            return self._give_up(held, record, error)
        return self._commit(held, record, found)

    async def perform(self, record: Recorder, cast: Cast, *, cancel: protocol.Cancel) -> Mapping[str, Any]:
        """What the step will say. Frontmatter first, then one correction in the same session, then the
        extract model; whatever the agent gave is on record when this raises."""
        answer = await record.waiting_answer() or await self._ask(record, cast, cancel)
        if answer.step is not None:
            return record.adopted(answer.step)
        schema = record.turn.role(record.role).schema
        found = reply.parse(answer.text, schema)
        if isinstance(found, reply.Problem) and answer.session and getattr(cast.agent, "can_resume", False):
            record.failed(f"the answer could not be read: {found.reason}")
            answer = await self._ask(record, cast, cancel, again=prompt.correction(found, schema))
            found = reply.parse(answer.text, schema)
        if isinstance(found, reply.Problem):
            found = await self._extracted(record, answer, found)
        return record.understood(found)

    async def _ask(
        self, record: Recorder, cast: Cast, cancel: protocol.Cancel, again: str | None = None
    ) -> Answer:
        """Call the agent; its answer is on record before anything is done with it."""
        text, session = await record.prompt_for(cast) if again is None else (again, record.session)
        run = self.token()
        record.asking(cast.name, run=run)
        context = protocol.Context(
            thread=record.thread, role=record.role, start=record.turn.task, workdir=Path(record.workdir), cancel=cancel,
            emit=record.sign, steps=record.turn.messages, session=session, attempt=record.tries,
            capabilities=record.turn.role(record.role).capabilities, env=process.marked(self.environment, run),
        )  # fmt: skip
        try:
            return record.answered(await protocol.ask(cast.agent, text, context=context))
        except RolecallError:
            raise
        except Exception as error:  # an adapter is anybody's code, and its step is where its faults end
            raise crashed(f"the agent {cast.name!r}", error) from error

    async def _extracted(self, record: Recorder, answer: Answer, problem: reply.Problem) -> reply.Reply:
        role = record.turn.role(record.role)
        try:
            output, usage = await self.extract(answer.text, role.schema, role.extract)
        except ExtractError as error:
            record.add_usage(error.usage)
            found = "; ".join([problem.reason, *problem.misfits])
            message = f"the answer could not be read ({found}), and {error.message}"
            raise ExtractError(
                message, raw=answer.text, attempts=error.attempts, usage=error.usage, hint=error.hint
            ) from error
        record.add_usage(usage)
        return reply.Reply(output, answer.text)

    # -- endings of a step --

    def _commit(self, held: Held, record: Recorder, outputs: Mapping[str, Any]) -> Outcome:
        """Put the step and move the head, in one transaction with where the thread goes from there."""
        draft = self.store.draft()
        try:
            step, onward = record.put_step(draft, outputs)
        except UsageError as error:  # an output that cannot be stored, such as a number that is none
            return self._give_up(held, record, error)
        status, role, reason = self._status_after(onward)
        state = {
            **held.state(),
            "status": status,
            "role": role,
            "reason": reason,
            "steps": record.number,
        }
        draft.event(
            held.thread,
            "step",
            {"step": step, "role": record.role, "status": status, "next": role, "reason": reason},
        )
        record.settle(draft)
        held.move(draft, step, state)
        self.watch(
            "step", {"step": step, "role": record.role, "status": status, "next": role, "reason": reason}
        )
        return Outcome(held.thread, step, status, role, reason, step)

    def _settle(self, held: Held, way: Route, onward: str = "") -> Outcome:
        """No step: the thread ends or waits as it is; `onward` is the verb that lets it go on."""
        status, role, reason = self._status_after(way)
        draft = self.store.draft()
        draft.event(held.thread, status, {"reason": reason})
        state = held.state()
        held.move(
            draft,
            held.head,
            {
                **state,
                "status": status,
                "role": role or state.get("role"),
                "reason": reason,
                "onward": onward,
            },
        )
        self.watch(status, {"reason": reason})
        return Outcome(held.thread, held.head, status, role, reason)

    def _give_up(self, held: Held, record: Recorder, error: RolecallError) -> Outcome:
        """The attempt failed: everything it gave stays on record, and a person decides."""
        record.failed(error.message, error)
        if isinstance(error, ExtractError) and record.turn.playbook.moderator:
            return self._commit(held, record, record.unreadable(error))
        if isinstance(error, AgentError) and error.ending == "interrupted":
            held.ref()
            return Outcome(held.thread, held.head, "idle", record.role, "interrupted")
        reason = f"{record.role}: {error.message}"
        return self._settle(held, Suspended(reason), f"resume {held.thread} --run")

    def _status_after(self, way: Route) -> tuple[str, str | None, str]:
        status, role, reason = status_after(way)
        return status, role, self.mask.text(reason)


def status_after(way: Route) -> tuple[str, str | None, str]:
    match way:
        case Next():
            return "idle", way.role, ""
        case Ended():
            return "completed", None, ""
        case Failed():
            return "failed", None, way.reason
        case Suspended() | Stuck():
            return "suspended", None, way.reason
