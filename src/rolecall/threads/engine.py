"""The heart: advance one thread by one step.

A step is: take the thread, see where it goes, ask the role's agent, understand the answer, commit. The
thread's ref carries the lease, so the commit that moves the head is also the proof that nobody else ran
it. What an agent has said is written down before anything is done with it: whoever takes the thread up
after a crash goes on from the answer instead of paying for it again.

Nothing here reads the environment, prints or knows a provider; `workspace.py` hands all of that in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rolecall.agents import process, protocol
from rolecall.errors import (
    AgentError,
    ExtractError,
    NotFound,
    RolecallError,
    UsageError,
)
from rolecall.settings import capabilities
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import lease, nested, prompt, sessions
from rolecall.threads.lease import Held
from rolecall.threads.record import Answer, Recaller, Recorder, no_knowledge
from rolecall.threads.sessions import StoredMemory
from rolecall.threads.state import Status
from rolecall.threads.thread import Chain
from rolecall.threads.turn import Turn, contained, name_of, next_of, unless
from rolecall.workflow import reply
from rolecall.workflow.model import Role
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.route import Ended, Failed, Next, Route, Stuck, Suspended

HUMAN = "human"


@dataclass(frozen=True)
class Outcome:
    """How a step, or a run of them, left the thread."""

    thread: str
    head: str
    status: Status
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


def _no_workflows(name: str, _folder: str) -> str:
    raise NotFound(f"there is no workflow {name!r}", hint="This engine was given none to look in.")


async def _nothing_to_close() -> None:
    pass


@dataclass(frozen=True)
class Engine:
    store: Store
    playbook: Callable[[str], Playbook]
    """By the id of the stored workflow."""
    cast: Casting
    extract: Extract
    """The second layer: a model that finds the output where the frontmatter does not give it."""
    can_extract: Callable[[Role], bool]
    """Whether a model is there to read an answer of the role."""
    token: Callable[[], str]
    environment: Mapping[str, str]
    mask: Mask
    bind: Callable[[Playbook], Mapping[str, Any]] = lambda _book: {}
    """Binds agents to the roles of a new thread, for roles that a workflow plays."""
    keeps_agents: bool = True
    """Whether a thread is played by the agents that were bound when it started."""
    find_workflow: Callable[[str, str], str] = _no_workflows
    """(name, folder) -> the id of the stored workflow, for roles that a workflow plays."""
    work: str | None = None
    """The place for folders of those threads' own."""
    recall: Recaller = no_knowledge
    """Finds what the repository says about a task, for roles that want it."""
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    """End what agents keep open between the steps of a run."""
    watch: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _body: None
    lease_ms: int = holder.LEASE_MS
    """How long a thread is ours without our saying so again."""

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
        taken = lease.hold(self.store, name, self.token(), cancel, lease_ms=self.lease_ms)
        async with taken as (held, stop):
            return await self._advance(held, stop)

    async def _advance(self, held: Held, cancel: protocol.Cancel) -> Outcome:
        chain, state = Chain(self.store, held.head), held.ref().state
        playbook = self.playbook(chain.start.workflow)
        if self.keeps_agents and state.agents:
            playbook = replace(playbook, bound=state.agents)
        turn = Turn(held.thread, chain, playbook)
        way = next_of(turn)
        if not isinstance(way, Next):
            return self._settle(held, way)
        try:
            record = Recorder(
                self.store,
                held.thread,
                turn,
                way,
                mask=self.mask,
                watch=self.watch,
                fork=sessions.fork_of(self.store, state),
                origin=sessions.origin_of(self.store, state, way.role),
                recall=self.recall,
            )
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
            reason = f"{way.role} is played by a person"
            return self._settle(held, Suspended(reason), f"answer {held.thread} --run")
        try:
            found = await self.perform(record, cast, cancel=cancel)
        except (AgentError, ExtractError, NotFound, UsageError) as error:
            return self._give_up(held, record, error, cancel)
        return self._commit(held, record, found)

    async def _call(self, held: Held, record: Recorder, cancel: protocol.Cancel) -> Outcome:
        """A role written in Python: what it raises suspends the thread, a result of a wrong shape fails it."""
        function = record.turn.playbook.functions[record.role]
        await record.close_left_behind()
        record.asking(f"python:{name_of(function)}", run=self.token())
        try:
            found = await record.turn.call(record.role, function, workdir=record.workdir, cancel=cancel)
        except UsageError as error:
            record.failed(error.message, error)
            return self._settle(held, Failed(f"{record.role}: {error.message}"))
        except AgentError as error:
            return self._give_up(held, record, error, cancel)
        return self._commit(held, record, found)

    async def perform(self, record: Recorder, cast: Cast, *, cancel: protocol.Cancel) -> Mapping[str, Any]:
        """What the step will say. Frontmatter first, then one correction in the same session, then the
        extract model; whatever the agent gave is on record when this raises."""
        answer = await record.waiting_answer()
        if answer is None or (answer.is_unread and not self.can_extract(record.turn.role(record.role))):
            answer = await self._ask(record, cast, cancel)
        if answer.step is not None:
            with contained(f"reading the step of {cast.name!r}"):
                return record.adopted(answer.step)
        schema = record.turn.role(record.role).schema
        found = reply.parse(answer.text, schema)
        can_correct = answer.session and not answer.is_unread and getattr(cast.agent, "can_resume", False)
        if isinstance(found, reply.Problem) and can_correct:
            record.failed(f"the answer could not be read: {found.reason}")
            answer = await self._ask(record, cast, cancel, again=prompt.correction(found, schema))
            found = reply.parse(answer.text, schema)
        if isinstance(found, reply.Problem):
            found = await self._extracted(record, answer, found, cancel)
        return record.understood(found)

    async def _ask(
        self, record: Recorder, cast: Cast, cancel: protocol.Cancel, again: str | None = None
    ) -> Answer:
        """Call the agent; its answer is on record before anything is done with it."""
        if again is not None:
            record.correct()
        text = again if again is not None else await record.prompt_for(cast)
        try:
            return record.answered(await self._call_agent(record, cast, cancel, text))
        except AgentError as error:
            session = record.going_on.session
            if not error.is_session_lost or session is None:
                raise
            record.failed(error.message, error)
            record.forget_session(session)
        return await self._ask(record, cast, cancel)

    async def _call_agent(
        self, record: Recorder, cast: Cast, cancel: protocol.Cancel, text: str
    ) -> protocol.Reply:
        run, role, going_on = self.token(), record.turn.role(record.role), record.going_on
        words = tuple(dict.fromkeys((*role.capabilities, *self._restrictions_of(role))))
        deniable = getattr(cast.agent, "deniable", None)
        if deniable is not None:  # the role's own were checked before; those of our own process apply as well
            capabilities.check_supported(cast.name, words, deniable)
        record.asking(cast.name, run=run)
        context = protocol.Context(
            thread=record.thread, role=record.role, start=record.turn.task, workdir=Path(record.workdir), cancel=cancel,
            emit=record.sign, instruction=record.instruction, steps=record.turn.messages, session=going_on.session,
            is_fork=going_on.is_fork, session_total=going_on.total, schema=role.schema, attempt=record.tries,
            capabilities=words, env=process.marked(self._environment_of_agent(role, cast.agent), run),
            memory=StoredMemory(self.store, self.mask), play=partial(nested.play, self, record, cancel),
        )  # fmt: skip
        with contained(f"the agent {cast.name!r}"), _unchanged(record, words):  # an adapter is anybody's code
            return await protocol.ask(cast.agent, text, context=context)

    def _restrictions_of(self, role: Role) -> tuple[str, ...]:
        """The role's own restrictions and those of our own process."""
        inherited = filter(None, self.environment.get(capabilities.VARIABLE, "").split(","))
        return tuple(dict.fromkeys((*inherited, *capabilities.restrictions(role.capabilities))))

    def environment_of(self, role: Role) -> Mapping[str, str]:
        """Our environment with the role's restrictions, which our own verbs obey."""
        words = self._restrictions_of(role)
        return {**self.environment, capabilities.VARIABLE: ",".join(words)} if words else self.environment

    def _environment_of_agent(self, role: Role, agent: protocol.Agent) -> Mapping[str, str]:
        """The environment of an agent's processes. It leads to the store only if the agent puts its step itself
        or the role may start threads."""
        environment = {**self.environment_of(role)}
        environment.pop(capabilities.THREADS_VARIABLE, None)  # of the role whose agent started us
        if role.may_start_threads:
            environment[capabilities.THREADS_VARIABLE] = "1"
        elif not getattr(agent, "opens_store", False):
            for name in capabilities.STORE_VARIABLES:
                environment.pop(name, None)
        return environment

    async def _extracted(
        self, record: Recorder, answer: Answer, problem: reply.Problem, cancel: protocol.Cancel
    ) -> reply.Reply:
        role = record.turn.role(record.role)
        record.reading()
        try:
            reading = self.extract(answer.text, role.schema, role.extract)
            output, usage = await unless(cancel, "reading the answer", reading)
        except ExtractError as error:
            record.add_usage(error.usage)
            found = "; ".join([problem.reason, *problem.misfits])
            message = f"the answer could not be read ({found}), and {error.message}"
            raise ExtractError(
                message,
                raw=answer.text,
                attempts=error.attempts,
                usage=error.usage,
                hint=error.hint,
                is_outage=error.is_outage,
            ) from error
        record.add_usage(usage)
        return reply.Reply(output, answer.text)

    # -- endings of a step --

    def _commit(self, held: Held, record: Recorder, outputs: Mapping[str, Any]) -> Outcome:
        """Put the step and move the head, in one transaction with where the thread goes from there."""
        draft = self.store.draft()
        try:
            step, onward = record.put_step(draft, outputs, limits=held.limits)
        except UsageError as error:  # an output that cannot be stored, such as a number that is none
            return self._give_up(held, record, error, None)
        status, role, reason = self._status_after(onward)
        state = held.ref().state.moved(status, role=role, reason=reason, steps=record.number)
        draft.event(
            held.thread,
            "step",
            {"step": step, "role": record.role, "status": status, "next": role, "reason": reason},
        )
        record.settle(draft)
        held.commit(draft, step, state)
        self.watch(
            "step", {"step": step, "role": record.role, "status": status, "next": role, "reason": reason}
        )
        return Outcome(held.thread, step, status, role, reason, step)

    def _settle(self, held: Held, way: Route, onward: str = "") -> Outcome:
        """No step: the thread ends or waits as it is; `onward` is the verb that lets it go on."""
        status, role, reason = self._status_after(way)
        draft = self.store.draft()
        draft.event(held.thread, status, {"reason": reason})
        state = held.ref().state
        state = state.moved(status, role=role or state.role, reason=reason, onward=onward)
        held.commit(draft, held.head, state)
        self.watch(status, {"reason": reason})
        return Outcome(held.thread, held.head, status, role, reason)

    def _give_up(
        self, held: Held, record: Recorder, error: RolecallError, cancel: protocol.Cancel | None
    ) -> Outcome:
        """The attempt failed: everything it gave stays on record, and a person decides."""
        record.failed(error.message, error)
        if isinstance(error, ExtractError) and record.turn.playbook.moderator:
            return self._commit(held, record, record.unreadable(error))
        is_interrupted = isinstance(error, AgentError) and error.ending == "interrupted"
        if is_interrupted and cancel is not None and cancel.is_set():  # by us; an agent may only claim it
            held.ref()
            return Outcome(held.thread, held.head, Status.IDLE, record.role, "interrupted")
        hint = f". {error.hint}" if error.hint else ""
        reason = f"{record.role}: {error.message}{hint}"
        return self._settle(held, Suspended(reason), f"resume {held.thread} --run")

    def _status_after(self, way: Route) -> tuple[Status, str | None, str]:
        status, role, reason = status_after(way)
        return status, role, self.mask.text(reason)


@contextmanager
def _unchanged(record: Recorder, words: tuple[str, ...]) -> Iterator[None]:
    """Around a role that must not write: what is another way in its folder afterwards is said."""
    if not capabilities.must_not_write(words):
        yield
        return
    from rolecall.files import treestate

    before = treestate.take(record.workdir)
    try:
        yield
    finally:
        if changed := treestate.changes(before, treestate.take(record.workdir)):
            record.remark(
                f"{record.role} is read-only, yet the work folder has changed: {', '.join(changed)}"
            )


def status_after(way: Route) -> tuple[Status, str | None, str]:
    match way:
        case Next():
            return Status.IDLE, way.role, ""
        case Ended():
            return Status.COMPLETED, None, ""
        case Failed():
            return Status.FAILED, None, way.reason
        case Suspended() | Stuck():
            return Status.SUSPENDED, None, way.reason
