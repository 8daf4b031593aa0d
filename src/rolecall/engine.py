"""The heart: advance one thread by one step.

A step is: take the thread, see where it goes, ask the role's agent, understand the answer, commit. The
thread's ref carries the lease, so the commit that moves the head is also the proof that nobody else ran
it. What an agent has said is written down before anything is done with it: whoever takes the thread up
after a crash goes on from the answer instead of paying for it again.

Nothing here reads the environment, prints or knows a provider; `workspace.py` hands all of that in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecall import holder, prompt, reply, thread
from rolecall.agents import protocol
from rolecall.errors import AgentError, Conflict, ExtractError, RolecallError, StorageError, UsageError
from rolecall.mask import Mask
from rolecall.playbook import Playbook
from rolecall.record import Answer, Recorder
from rolecall.route import Ended, Failed, Next, Route, Stuck, Suspended
from rolecall.store.backend import Ref
from rolecall.store.store import Store
from rolecall.thread import Chain
from rolecall.turn import Turn, next_of

HUMAN = "human"
_GLANCE = 2.0
"""Seconds between two looks at whether the thread is still ours."""


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
            if outcome.status != "idle" or cancel.is_set():
                return

    async def step(self, name: str, *, cancel: protocol.Cancel) -> Outcome:
        """Take exactly one step."""
        held = _take(self.store, name, self.token())
        try:
            async with _looked_after(self.store, held, cancel) as stop:
                return await self._advance(held, stop)
        finally:
            _let_go(self.store, held)

    async def _advance(self, held: _Held, cancel: protocol.Cancel) -> Outcome:
        chain = Chain(self.store, held.head)
        turn = Turn(held.thread, chain, self.playbook(chain.start.workflow))
        way = next_of(turn)
        if not isinstance(way, Next):
            return self._settle(held, way)
        record = Recorder(self.store, held.thread, turn, way, mask=self.mask, watch=self.watch)
        limit = turn.over_limit(way.role, held.limits, record.totals())
        if limit:
            return self._settle(held, Suspended(limit.reason), f"resume {held.thread} --limit {limit.more} --run")
        function = turn.playbook.functions.get(way.role)
        if function is not None:
            return self._commit(held, record, await turn.call(function))
        cast = self.cast(turn.playbook, way.role)
        if cast.name == HUMAN:
            reason = f"{way.role} is played by a person: answer with `rolecall thread answer {held.thread}`"
            return self._settle(held, Suspended(reason), f"answer {held.thread}")
        answer = record.waiting_answer() or await self._ask(record, cast, cancel)
        return await self._understand(held, record, cast, answer, cancel)

    async def _ask(
        self, record: Recorder, cast: Cast, cancel: protocol.Cancel, again: str | None = None
    ) -> Answer | RolecallError:
        """Call the agent; its answer, or the error that kept it from giving one, already on record."""
        text, session = await record.prompt_for(cast) if again is None else (again, record.session)
        record.asking(cast.name)
        context = protocol.Context(
            thread=record.thread, role=record.role, start=record.turn.task, workdir=Path(record.workdir), cancel=cancel,
            emit=record.sign, steps=record.turn.messages, session=session, attempt=record.tries,
            capabilities=record.turn.role(record.role).capabilities, env=self.environment,
        )  # fmt: skip
        try:
            return record.answered(await protocol.ask(cast.agent, text, context=context))
        except RolecallError as error:
            return error
        except Exception as error:  # an adapter is anybody's code, and its step is where its faults end
            return AgentError(f"the agent {cast.name!r} failed: {type(error).__name__}: {error}", ending="failed")

    async def _understand(
        self,
        held: _Held,
        record: Recorder,
        cast: Cast,
        answer: Answer | RolecallError,
        cancel: protocol.Cancel,
    ) -> Outcome:
        """Frontmatter first, then one correction in the same session, then the extract model."""
        if isinstance(answer, RolecallError):
            return self._give_up(held, record, answer)
        if answer.step is not None:
            return self._commit(held, record, record.adopted(answer.step))
        schema = record.turn.role(record.role).schema
        found = reply.parse(answer.text, schema)
        if isinstance(found, reply.Problem) and answer.session and getattr(cast.agent, "can_resume", False):
            record.failed(f"the answer could not be read: {found.reason}")
            corrected = await self._ask(record, cast, cancel, again=prompt.correction(found, schema))
            if isinstance(corrected, RolecallError):
                return self._give_up(held, record, corrected)
            answer, found = corrected, reply.parse(corrected.text, schema)
        if isinstance(found, reply.Problem):
            try:
                found = await self._extracted(record, answer, found)
            except RolecallError as error:
                return self._give_up(held, record, error)
        return self._commit(held, record, record.understood(found))

    async def _extracted(self, record: Recorder, answer: Answer, problem: reply.Problem) -> reply.Reply:
        role = record.turn.role(record.role)
        try:
            output, usage = await self.extract(answer.text, role.schema, role.extract)
        except ExtractError as error:
            found = "; ".join([problem.reason, *problem.misfits])
            message = f"the answer could not be read ({found}), and {error.message}"
            raise ExtractError(
                message, raw=answer.text, attempts=error.attempts, usage=error.usage, hint=error.hint
            ) from error
        record.add_usage(usage)
        return reply.Reply(output, answer.text)

    # -- endings of a step --

    def _commit(self, held: _Held, record: Recorder, outputs: Mapping[str, Any]) -> Outcome:
        """Put the step and move the head, in one transaction with where the thread goes from there."""
        draft = self.store.draft()
        step, onward = record.put_step(draft, outputs)
        status, role, reason = status_after(onward)
        state = {
            **held.state(self.store),
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
        held.move(self.store, draft, step, state)
        self.watch(
            "step", {"step": step, "role": record.role, "status": status, "next": role, "reason": reason}
        )
        return Outcome(held.thread, step, status, role, reason, step)

    def _settle(self, held: _Held, way: Route, onward: str = "") -> Outcome:
        """No step: the thread ends or waits as it is; `onward` is the verb that lets it go on."""
        status, role, reason = status_after(way)
        draft = self.store.draft()
        draft.event(held.thread, status, {"reason": reason})
        state = held.state(self.store)
        held.move(
            self.store,
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

    def _give_up(self, held: _Held, record: Recorder, error: RolecallError) -> Outcome:
        """The attempt failed: everything it gave stays on record, and a person decides."""
        record.failed(error.message, error)
        if isinstance(error, ExtractError) and record.turn.playbook.moderator:
            return self._commit(held, record, record.unreadable(error))
        if isinstance(error, AgentError) and error.ending == "interrupted":
            held.ref(self.store)
            return Outcome(held.thread, held.head, "idle", record.role, "interrupted")
        reason = f"{record.role}: {error.message}"
        return self._settle(held, Suspended(reason), f"resume {held.thread} --run")


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


# -- the lease --


@dataclass
class _Held:
    """A thread this engine is running: nobody else moves its head as long as the lease is ours."""

    thread: str
    head: str
    token: str
    limits: Mapping[str, float]

    def ref(self, store: Store) -> Ref:
        ref = store.ref(thread.ref_name(self.thread))
        if ref is None or ref.state.get("lease", {}).get("token") != self.token or ref.target != self.head:
            raise Conflict(
                f"thread {self.thread} was taken over or ended while this step ran",
                hint=f"Its answer is kept. See `rolecall thread show {self.thread}`.",
            )
        return ref

    def state(self, store: Store) -> dict[str, Any]:
        return thread.lasting(self.ref(store).state)

    def move(self, store: Store, draft: Any, target: str, state: Mapping[str, Any]) -> None:
        ref = self.ref(store)
        draft.move(
            ref.name, ref, target, {key: value for key, value in state.items() if value not in (None, "")}
        )
        draft.commit(durable=True)


def _take(store: Store, name: str, token: str) -> _Held:
    while True:
        ref = thread.find(store, name)
        try:
            return _taken(store, ref, token)
        except Conflict:
            # Whoever moved it first has left a trace that says more than the lost race does.
            if thread.find(store, name).version == ref.version:
                raise


def _taken(store: Store, ref: Ref, token: str) -> _Held:
    ident, state = ref.name[7:], ref.state
    status = state.get("status", "idle")
    if status in thread.ENDED:
        raise UsageError(
            f"thread {ident} is {status}",
            hint=f"Fork it to go on from some step: `rolecall thread fork {ident}`.",
        )
    if status == "suspended":
        raise UsageError(
            f"thread {ident} is suspended: {state.get('reason', '')}",
            hint=f"Go on with `rolecall thread resume {ident} -p '…'`.",
        )
    lease, now = state.get("lease"), store.now()
    if lease and holder.is_alive(lease, now=now):
        raise Conflict(
            f"thread {ident} is being run by {holder.describe(lease)}",
            hint=f"Follow it: `rolecall thread watch {ident}`.",
        )
    mine = {**holder.me(token), "deadline": now + holder.LEASE_MS}
    store.move(ref.name, ref, ref.target, {**state, "status": "running", "lease": mine}, durable=False)
    return _Held(ident, ref.target or "", token, state.get("limits", {}))


def _let_go(store: Store, held: _Held) -> None:
    """Give up a lease that a step left behind: an interruption, or an error of ours."""
    ref = store.ref(thread.ref_name(held.thread))
    if ref is None or ref.state.get("lease", {}).get("token") != held.token:
        return
    state = {key: value for key, value in ref.state.items() if key != "lease"}
    store.move(ref.name, ref, ref.target, {**state, "status": "idle"})


@asynccontextmanager
async def _looked_after(store: Store, held: _Held, cancel: protocol.Cancel) -> AsyncIterator[protocol.Cancel]:
    """Keep the lease fresh while a step runs; the signal that ends the step when the caller cancels it or
    the thread is no longer ours, because it was killed or taken over."""
    stop = asyncio.Event()

    async def look() -> None:
        while not await _within(_GLANCE, cancel):
            try:
                _renew(store, held)
            except Conflict:
                break
            except StorageError:
                continue  # the step's own commit meets the same trouble, and can report it
        stop.set()

    task = asyncio.create_task(look())
    try:
        yield stop
    finally:
        task.cancel()


async def _within(seconds: float, cancel: protocol.Cancel) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await cancel.wait()
    except TimeoutError:
        return False
    return True


def _renew(store: Store, held: _Held) -> None:
    ref = held.ref(store)
    lease = ref.state["lease"]
    if lease["deadline"] - store.now() < holder.LEASE_MS * 2 / 3:
        lease = {**lease, "deadline": store.now() + holder.LEASE_MS}
        store.move(ref.name, ref, ref.target, {**ref.state, "lease": lease}, durable=False)
