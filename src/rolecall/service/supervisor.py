"""The service of one home: reads the store, decides which threads run, and runs each step in its own process.

The service's own process runs no agent and no user code. Its state is in the store: if it is killed at any moment and
started again, it continues with the threads that have slots and the threads that wait. In memory it keeps only which
slots have a busy worker.

The methods of `Supervisor`, from top to bottom: life cycle, looks at the store, steps, requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rolecall.errors import Damaged, RolecallError
from rolecall.service import queue, recovery
from rolecall.service.admission import Admission, Due, QueueState, decide
from rolecall.service.door import Door
from rolecall.service.policy import ServicePolicy
from rolecall.service.problems import Problems
from rolecall.service.queue import AgentOf, Slot
from rolecall.service.recovery import Settled
from rolecall.service.worker import StepOrder
from rolecall.service.workers import Workers
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads.state import read_thread

POLL_MS = 5_000
"""Milliseconds between two reads of the store if nothing reports a change."""
_LATER_MS = 1_000
"""Milliseconds until a thread is tried again if another process has it, or after a store error."""
_RESTART = 60.0
"""Seconds before a failed companion is started again."""

Log = Callable[[str], None]
Companion = Callable[["Supervisor"], Coroutine[Any, Any, None]]
"""A coroutine that runs as long as the service, for example to reload definitions or start threads."""


@dataclass
class _Held:
    """A thread that has a slot."""

    slot: Slot
    task: asyncio.Task[None] | None = None
    """The task that is working on the thread now."""
    head: str = ""
    """The head that the thread's next step extends, or empty if the store must be read before that step."""
    not_before: int = 0
    trouble: str = ""
    """Why the thread's next step is not being taken."""

    def rests(self, now: int) -> bool:
        """Return whether the thread takes no step for now."""
        return now < self.not_before <= now + _LATER_MS


class Supervisor:
    def __init__(
        self,
        store: Store,
        policy: ServicePolicy,
        workers: Workers,
        *,
        host: str,
        log: Log,
        agent_of: AgentOf = lambda _state: "",
    ) -> None:
        self.store = store
        self.policy = policy
        self.log = log
        self.problems = Problems(log)
        self._workers = workers
        self._host = host
        self._agent_of = agent_of
        self._held: dict[str, _Held] = {}
        self._unreadable: set[str] = set()
        """Waiting threads that cannot be read from the store. They do not block others."""
        self._woken = asyncio.Event()
        self._has_news = True
        """Whether threads might have arrived or ended, or a slot might have become free."""
        self._read_at = 0
        """When to read the store next if nothing reports a change."""
        self._poked: set[str] = set()
        self._door = Door(
            poke=self.wake, stop=lambda finish: self.stop(finish=finish), answers={"status": self.status}
        )
        self._is_stopping = False
        self._is_finishing = False
        self._since = store.now()

    # -- life cycle --

    async def run(
        self,
        door: socket.socket,
        *,
        companions: Iterable[Companion] = (),
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve until `stop` is called. Other processes connect to `door`; `ready` is called once they can."""
        await self._workers.open()
        self._held = {slot.thread: _Held(slot) for slot in queue.slots(self.store)}
        if self._held:
            self.log(f"taking over the threads that were running: {', '.join(self._held)}")
        queue.forget_old_days(self.store, now=self.store.now())
        beside = [asyncio.create_task(self._accompany(companion)) for companion in companions]
        await self._door.open(door)
        ready()
        try:
            while not self._is_stopping:
                look_again_at = self._look()
                self._woken.clear()
                if not self._is_stopping and not self._has_news:
                    rest_ms = min(max(0, look_again_at - self.store.now()), POLL_MS)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(rest_ms / 1000):
                            await self._woken.wait()
            if tasks := [held.task for held in self._held.values() if held.task is not None]:
                how = "finished" if self._is_finishing else "interrupted"
                self.log(f"stopping; {len(tasks)} steps are {how} first")
                await asyncio.wait(tasks)
            self.log("stopped")
        finally:
            for task in beside:
                task.cancel()
            await self._workers.close()
            await self._door.close()

    def stop(self, *, finish: bool = False) -> None:
        """Stop taking steps. Running steps are interrupted, or allowed to finish if `finish` is true. A second call
        kills them, unless the first call had `finish`."""
        if self._is_stopping and not self._is_finishing:
            self._workers.kill()
        self._is_stopping, self._is_finishing = True, finish
        if not finish:
            self._workers.stop()
        self._door.tell_all()
        self.wake()

    def wake(self, name: str = "") -> None:
        """Read the store now, including the state of thread `name`, or of all threads if it is empty."""
        self._has_news = True
        self._poked.add(name)
        self._woken.set()

    async def _accompany(self, companion: Companion) -> None:
        """Run a companion, and start it again a minute after it fails. Its failure does not stop the service."""
        name = getattr(companion, "__name__", "a companion")
        while True:
            try:
                await companion(self)
                return
            except Exception as error:
                self.problems.note(name, f"{name} has failed and restarts in a minute: {_message(error)}")
            await asyncio.sleep(_RESTART)
            self.problems.note(name, "")

    # -- looks at the store --

    def _look(self) -> int:
        """Read the store, act on what it contains, and return the latest time at which to look again."""
        now = self.store.now()
        if not now < self._read_at <= now + POLL_MS:  # if the clock was set back, do not wait for hours
            self._has_news = True
        try:
            if self._has_news:
                self._read_at = now + POLL_MS
                self._stop_killed_threads()
                woken, deadline = queue.wake_parents(self.store, now=now, problems=self.problems)
                self._held |= {
                    ref.id: _Held(Slot(ref.state.name, ref.id, now), head=ref.head) for ref in woken
                }
                self._read_at = min(self._read_at, deadline or self._read_at)
            verdict = self._decide(now)
            self.problems.note("store", "")
        except Exception as error:  # the cause might pass, and running threads continue
            self.problems.note("store", f"no work is taken: {_message(error)}")
            self._read_at = now + _LATER_MS
            self._has_news = False  # do not read the store until then, but answer requests
            return self._read_at
        self._read_at = min(filter(None, (self._read_at, verdict.look_again_at)))
        resting = (held for held in self._held.values() if held.task is None and held.rests(now))
        return min([self._read_at, *(held.not_before for held in resting)])

    def _stop_killed_threads(self) -> None:
        is_for_all = not self._poked or "" in self._poked
        names = set(self._held) if is_for_all else self._poked & self._held.keys()
        self._poked.clear()
        for name in names & self._workers.running.keys():
            try:
                ref = read_thread(self.store, name)
                if ref is not None and ref.state.has_ended:
                    self._workers.running[name].stop()
            except Damaged as error:  # the thread's own step fails on this; no other thread is affected
                self.problems.note_unreadable(name, error)

    def _decide(self, now: int) -> Admission:
        due = []
        for held in self._held.values():
            if held.task is not None or held.rests(now):
                continue
            if not held.head:
                held.task = asyncio.create_task(self._take_up(held))
                continue
            agent = ""
            if self.policy.rates:
                with suppress(Damaged):  # the step itself reports the damage
                    ref = read_thread(self.store, held.slot.thread)
                    agent = self._agent_of(ref.state) if ref else ""
            due.append(Due(held.slot.thread, held.slot.since, agent))

        if self._has_news:
            state = queue.read_state(
                self.store,
                self.policy,
                now=now,
                due=due,
                agent_of=self._agent_of,
                without=self._unreadable,
            )
        else:  # nothing arrived and no slot became free, so only admitted threads can continue
            state = QueueState(due=due, calls=queue.calls(self.store, self.policy, now))
        self._has_news = False
        verdict = decide(self.policy, state, now)

        agents = {one.thread: one.agent for one in due}
        for name in verdict.step:
            if call := self.policy.meter(agents[name]):
                queue.count(self.store, call, now=now)
            held = self._held[name]
            held.task = asyncio.create_task(self._step(held))
        admitted = queue.carry_out(
            self.store,
            self.policy,
            verdict,
            state.waiting,
            now=now,
            log=self.log,
            problems=self.problems,
            unreadable=self._unreadable,
        )
        for ref in admitted:
            self._door.tell(ref.id)
            held = self._held[ref.id] = _Held(Slot(ref.state.name, ref.id, now), head=ref.head)
            held.task = asyncio.create_task(self._step(held))
        for name in verdict.discard:
            self._door.tell(name)
        if self._unreadable & {*verdict.admit, *verdict.discard}:
            self._has_news = True  # other threads can take their places
        return verdict

    # -- steps --

    async def _step(self, held: _Held) -> None:
        head, held.head = held.head, ""

        def hear(kind: str, value: Any) -> None:
            if kind == "event":
                self._door.tell(value)

        async def step() -> Settled:
            order = StepOrder(held.slot.thread, held.slot.workflow, self._host)
            ended = await self._workers.step(order, limits=self.policy.worker, heard=hear)
            return recovery.settle(self.store, held.slot, ended, head=head)

        await self._follow(held, step())

    async def _take_up(self, held: _Held) -> None:
        await self._follow(held, recovery.take_up(self.store, held.slot))

    async def _follow(self, held: _Held, work: Coroutine[Any, Any, Settled]) -> None:
        """Run `work` for a thread and act on its outcome."""
        name = held.slot.thread
        try:
            settled = await work
            if settled.is_trouble:
                return self._retry_later(held, settled.reason)
            held.head, held.trouble = settled.head, ""
            if settled.is_news:
                self.log(f"{name} {settled.line}")
            if settled.is_over:
                self._held.pop(name, None)
                self._has_news = True
            self._door.tell(name)
        except Exception as error:  # a problem with one thread must not stop the others
            self._retry_later(held, _message(error))
        finally:
            held.task = None
            self._woken.set()

    def _retry_later(self, held: _Held, trouble: str) -> None:
        if trouble != held.trouble:
            self.log(f"{held.slot.thread} is tried again: {trouble}")
        held.trouble = trouble
        held.not_before = self.store.now() + _LATER_MS

    # -- requests --

    async def status(self) -> JsonObject:
        """Return the status of the service, as plain values."""
        steps = {name: worker.pid for name, worker in self._workers.running.items()}
        threads = [
            {"thread": name, "workflow": held.slot.workflow, "since": held.slot.since, "pid": steps.get(name)}
            | ({"trouble": held.trouble} if held.trouble else {})
            for name, held in self._held.items()
        ]
        known: JsonObject = {"queued": {}, "waits": {}, "spent": 0.0}
        with suppress(RolecallError):  # store errors are among the problems
            known = queue.describe(self.store, self.policy, agent_of=self._agent_of, without=self._unreadable)
        return {
            **known,
            "since": self._since,
            "zygote": self._workers.zygote_pid,
            "stopping": self._is_stopping,
            "limit": self.policy.limit,
            "running": threads,
            "problems": dict(self.problems),
        }


def _message(error: Exception) -> str:
    return error.message if isinstance(error, RolecallError) else repr(error)
