"""The engine, which advances one thread by one step.

To take a step, the engine takes the thread, finds the next role, asks that role's agent, parses the answer and commits
the step. The lease is part of the thread's ref, so the commit that moves the head also proves that no other process ran
the thread. `perform.py` asks the agent and parses its answer; `commit.py` writes the step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rolecall.agents.protocol import Cancel
from rolecall.errors import AgentError, ExtractError, NotFound, RolecallError, UsageError
from rolecall.settings.settings import OUTSIDE
from rolecall.store.lazy import Module
from rolecall.threads import lease, nested, reuse
from rolecall.threads.attempt import Attempt, StepResult
from rolecall.threads.commit import Outcome as Outcome
from rolecall.threads.commit import commit, settle
from rolecall.threads.key_parts import find_parts_of_call
from rolecall.threads.lease import Held
from rolecall.threads.loaded_thread import LoadedThread, name_of, next_of
from rolecall.threads.perform import perform
from rolecall.threads.setup import HUMAN as HUMAN
from rolecall.threads.setup import Cast as Cast
from rolecall.threads.setup import Setup, Watch
from rolecall.threads.shared_files import fetch_files
from rolecall.threads.state import RESUME, Status, raise_limit
from rolecall.threads.thread import Chain
from rolecall.workflow.route import Failed, Next, Suspended

if TYPE_CHECKING:
    from rolecall.threads import members, waiting
else:  # a step that is not played by a group, and whose agent answers, needs neither module
    members = Module("rolecall.threads.members")
    waiting = Module("rolecall.threads.waiting")


class Engine(Setup):
    """An engine that takes the steps of threads."""

    async def run(
        self, name: str, *, cancel: Cancel, steps: int | None = None, waits: bool = True
    ) -> AsyncIterator[Outcome]:
        """Take steps until the thread ends, is suspended or is interrupted, or until `steps` steps have been taken. If
        the thread's agent has reached a usage limit, wait for the limit to end if `waits` is true; otherwise return."""
        taken = 0
        while steps is None or taken < steps:
            outcome = await self.step(name, cancel=cancel)
            yield outcome
            if outcome.until is not None and waits:
                if await waiting.wait(self, outcome, cancel):
                    continue
                return
            taken += 1
            if outcome.status != Status.IDLE or outcome.took is None or cancel.is_set():
                return

    async def step(self, name: str, *, cancel: Cancel) -> Outcome:
        """Take exactly one step, or no step if the thread cannot continue yet."""
        taken = lease.hold(
            self.store, name, self.token(), cancel, lease_ms=self.lease_ms, is_shared=self.shares_process
        )
        try:
            async with taken as (held, stop):
                return await self._advance(held, stop)
        except lease.Waits as waits:
            ref, state = waits.ref, waits.ref.state
            return Outcome(ref.id, ref.head, state.status, state.role, state.reason, until=state.until)

    async def _advance(self, held: Held, cancel: Cancel) -> Outcome:
        chain, state = Chain(self.store, held.head), held.ref().state
        playbook = self.playbook(chain.start.workflow)
        if self.keeps_agents and state.agents:
            playbook = playbook._replace(bound=state.agents)
        loaded = LoadedThread(held.thread, chain, playbook, state.folders)
        playbook, way = loaded.playbook, next_of(loaded)
        if not isinstance(way, Next):
            return settle(self, held.ref(), way)
        try:
            shared, fetched = await fetch_files(self.store, loaded, way.role, self.trees)
            attempt = Attempt(
                self.store,
                loaded,
                way,
                mask=self.mask,
                setup=self,
                state=state,
                shared=shared,
                fetched=fetched,
            )
        except UsageError as error:  # the role's work folder is missing
            return settle(self, held.ref(), Suspended(f"{way.role}: {error.message}"), RESUME)
        if limit := loaded.over_limit(way.role, state.limits, attempt.totals()):
            return settle(self, held.ref(), Suspended(limit.reason), raise_limit(limit.more))

        if loaded.role(way.role).group is not None:
            return await members.play(self, self.run_member, held, attempt, cancel)
        if way.role in playbook.functions:
            return await self._call_function(held, attempt, cancel)
        cast = self.cast(playbook, way.role)
        if cast.name == HUMAN:
            return settle(self, held.ref(), Suspended(f"{way.role} is played by a person"))
        try:
            play = partial(nested.play, self, self.run_child)
            result = await perform(self, attempt, cast, cancel=cancel, play=play)
        except (AgentError, ExtractError, NotFound, UsageError) as error:
            return self._give_up(held, attempt, error, cancel)
        return self._commit(held, attempt, result)

    async def _call_function(self, held: Held, attempt: Attempt, cancel: Cancel) -> Outcome:
        """Play a role written in Python. If the function raises `AgentError`, suspend the thread; if its result has the
        wrong shape, the thread fails."""
        function = attempt.loaded.playbook.functions[attempt.role]
        agent = f"python:{name_of(function)}"
        if taken := await reuse.finish_begun(attempt):
            return self._commit(held, attempt, taken)
        await attempt.close_left_behind()
        await attempt.start_over()
        await attempt.find_files()
        attempt.parts = find_parts_of_call(self, attempt.question, function)
        is_outside = getattr(function, "effects", "") == OUTSIDE
        if taken := await reuse.take_over(attempt, has_effects=is_outside):
            return self._commit(held, attempt, taken)
        if attempt.note.reused:  # not taken over, because the files have just changed
            await attempt.find_files()
            attempt.parts = find_parts_of_call(self, attempt.question, function)
        attempt.note_asking(agent, run=self.token())
        try:
            given = await attempt.loaded.call(attempt.role, function, workdir=attempt.workdir, cancel=cancel)
            await attempt.leave_files()
        except UsageError as error:
            await attempt.leave_files()
            attempt.fail(error.message, error)
            return settle(self, held.ref(), Failed(f"{attempt.role}: {error.message}"))
        except AgentError as error:
            await attempt.leave_files()
            return self._give_up(held, attempt, error, cancel)
        return self._commit(
            held, attempt, StepResult(dict(given.output), given.body, raw=given.body, agent=agent)
        )

    async def run_child(self, attempt: Attempt, child: str, watch: Watch, cancel: Cancel) -> None:
        """Run the child thread that plays a role, under that role's restrictions."""
        environment = self.environment_of(attempt.loaded.role(attempt.role))
        engine = replace(self, watch=watch, environment=environment, queues_members=False)
        async for _ in engine.run(child, cancel=cancel, waits=False):  # the parent waits for the same limit
            pass

    async def run_member(self, member: str, watch: Watch, cancel: Cancel) -> None:
        """Run a member of a group alongside other members in this process."""
        async for _ in replace(self, watch=watch, shares_process=True).run(member, cancel=cancel):
            pass

    # -- endings of a step --

    def _commit(self, held: Held, attempt: Attempt, result: StepResult) -> Outcome:
        try:
            return commit(attempt, result, held.ref())
        except UsageError as error:  # an output that cannot be stored, such as NaN
            return self._give_up(held, attempt, error, None)

    def _give_up(self, held: Held, attempt: Attempt, error: RolecallError, cancel: Cancel | None) -> Outcome:
        """Record the failed attempt. Then let the moderator decide, wait if the agent says when its usage limit ends,
        or suspend the thread for a person."""
        attempt.fail(error.message, error)
        loaded = attempt.loaded
        if (
            isinstance(error, ExtractError)
            and loaded.playbook.moderator
            and loaded.chain.start.member is None
        ):
            return self._commit(held, attempt, attempt.unreadable(error))
        is_interrupted = isinstance(error, AgentError) and error.ending == "interrupted"
        if is_interrupted and cancel is not None and cancel.is_set():  # not merely reported by the agent
            held.ref()
            return Outcome(held.thread, held.head, Status.IDLE, attempt.role, "interrupted")
        if isinstance(error, AgentError):
            limit = waiting.find_limit_of(self.store, error)
            if limit is not None and limit.until is not None:
                reason = f"{attempt.role}: {error.message}"
                return waiting.begin(self, held.ref(), attempt, limit.until, reason)
        asks = ""
        if isinstance(error, AgentError) and error.ending == "suspended":
            asks = nested.find_asking(self.store, error.session or "")
        return settle(self, held.ref(), Suspended(f"{attempt.role}: {error.explain()}"), RESUME, asks=asks)
