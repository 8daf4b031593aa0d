"""One machine of a fleet: takes orders for steps that it can take, and lets each run in a process of its own.

Nothing on its loop asks the database. Threads do, and wait for a server that is away; the loop goes on meanwhile and
ends a step in time whose lease can no longer be renewed, before another machine may take the thread up. So no thread
is run by two, whichever of them was cut off.

Top to bottom: a life, taking, a step, leading, looking after, who asks.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from rolecall import thread
from rolecall.errors import Conflict, RolecallError
from rolecall.ids import THREAD_ID_LENGTH
from rolecall.service import queue
from rolecall.service.admission import Verdict, decide
from rolecall.service.fleet import machines
from rolecall.service.fleet.database import HUNG, Line, SharedBackend, with_timeouts
from rolecall.service.fleet.dispatch import Dispatcher
from rolecall.service.fleet.door import Door
from rolecall.service.fleet.needs import Here, Need, lacking_room
from rolecall.service.fleet.orders import Order, Orders
from rolecall.service.fleet.step import Step, Threaded, settle
from rolecall.service.gate import Gate
from rolecall.service.policy import ServicePolicy
from rolecall.service.queue import AgentOf, Slot
from rolecall.service.workers import GRACE, Workers
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store

_POLL = 2.0
"""Seconds between two looks for orders when nobody says that there are any."""
_AGAIN = 0.05
"""Seconds until a queue is tried again that another machine was just taking from."""
_SWEEP = 2.0
"""Seconds between two sweeps of whoever leads."""
_PATIENCE = 10.0
"""Seconds that a machine which is to stop waits for the database; others find what it could not say."""
_SILENCE = 10.0
"""Seconds without an answer after which the database counts as away."""
_GLANCE = 0.25
_CLEANING = 600.0
_CONNECTIONS = 4
_SHOWN = 50

T = TypeVar("T")
Log = Callable[[str], None]


@dataclass
class Settings:
    """What a machine is told about itself."""

    name: str
    executor: str
    """One life of the machine: told apart from those before and after it."""
    slots: int
    """Steps at once."""
    lease_ms: int
    folders: tuple[str, ...] = ()
    """Where steps write; a machine takes no work while there is no room in one of them."""

    @property
    def margin(self) -> float:
        """Seconds before the end of its lease in which a step is ended."""
        return min(10.0, self.lease_ms / 6000)


@dataclass
class _Throughput:
    """How many steps were taken, in all and lately."""

    total: int = 0
    _lately: deque[float] = field(default_factory=deque)

    def count(self) -> None:
        self.total += 1
        self._lately.append(time.monotonic())

    def per_minute(self) -> int:
        while self._lately and self._lately[0] < time.monotonic() - 60:
            self._lately.popleft()
        return len(self._lately)


class Machine:
    def __init__(
        self,
        url: str,
        settings: Settings,
        workers: Workers,
        *,
        policy: ServicePolicy | None,
        log: Log,
        agent_of: Callable[[Store], AgentOf],
    ) -> None:
        """`policy` becomes that of the fleet; None: the fleet's is used."""
        self._url = url
        self._settings = settings
        self._workers = workers
        self._own_policy = policy
        self.policy = ServicePolicy()
        self.log = log
        self._agent_of = agent_of
        self.problems: dict[str, str] = {}
        self._line = Line(url, silence=max(2.0, settings.lease_ms / 4000), heard=self._heard)
        self._shared = SharedBackend(url, size=_CONNECTIONS)
        self._store = Store(self._shared, now=self._line.now)
        self._threads = ThreadPoolExecutor(settings.slots + 8, thread_name_prefix="fleet-db")
        self._deciding = ThreadPoolExecutor(1, thread_name_prefix="fleet-decide")
        self._decides_since: float | None = None
        self._orders = Orders(url, executor=settings.executor, step=self.take_step, log=log)
        self._here = Here()
        self._lacking: dict[str, str] = {}
        self._checked: set[str] = set()
        self._steps: dict[str, Step] = {}
        self._expected: list[float] = []
        """When orders were taken that have not arrived at `take_step` yet."""
        self._throughput = _Throughput()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_orders = asyncio.Event()
        self._has_news = asyncio.Event()
        self._is_over = asyncio.Event()
        self._is_stopping = False
        self._is_finishing = False
        self._door = Door(poke=self._has_news.set, status=self.status, stop=self.stop)
        self._next_sweep = self._next_cleaning = self._next_look_at_disk = 0.0

    # -- a life --

    async def run(self, door: socket.socket, *, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop; `door` is where others ask, `ready` hears when they can."""
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as left:
            await self._open(left)
            await self._door.open(door)
            left.push_async_callback(self._door.close)
            rounds = [self._beat, self._lead, self._take, self._guard]
            tasks = [asyncio.create_task(self._again_and_again(one)) for one in rounds]
            left.push_async_callback(_ended, tasks)
            ready()
            await self._is_over.wait()
            await self._wind_down()
            await _ended(self._tasks)

    async def _open(self, left: AsyncExitStack) -> None:
        """Reach the database, say that we are there, and be ready to take and to decide."""
        settings = self._settings
        left.callback(self._close_threads)
        left.callback(self._line.close)
        await asyncio.to_thread(self._line.open)
        presence = machines.Presence(
            self._store, settings.name, settings.executor, lease_ms=settings.lease_ms
        )
        await self._db(presence.enter, self._facts())
        self._presence = presence
        left.push_async_callback(self._leave)
        left.push_async_callback(self._workers.close)
        await self._workers.open()
        left.callback(self._close_orders)
        await asyncio.to_thread(self._orders.open, self._loop)
        if self._own_policy is not None:
            await self._db(self._publish, self._own_policy)
        await self._db(self._read_policy)
        backend = await self._db(PostgresBackend, with_timeouts(self._url))
        left.callback(backend.close)
        self._dispatcher = Dispatcher(
            backend,
            self._orders,
            policy=self.policy,
            now=self._line.now,
            lease_ms=settings.lease_ms,
            log=self.log,
            agent_of=self._agent_of,
        )

    async def _leave(self) -> None:
        with suppress(RolecallError):
            if self._is_heard():
                await self._db(self._presence.leave)

    def _close_orders(self) -> None:
        if self._is_heard():  # else everything in there waits, and ends with the process
            self._orders.close()

    def _is_heard(self) -> bool:
        """Whether the database answers."""
        return time.monotonic() - self._line.contact < _SILENCE

    def _close_threads(self) -> None:
        self._shared.close()
        for pool in (self._threads, self._deciding):
            pool.shutdown(wait=False, cancel_futures=True)

    def stop(self, *, finish: bool = False) -> None:
        """Take no further step. Those that run are interrupted, or with `finish` waited for; asked for once more,
        they are ended at once."""
        if self._is_stopping and not self._is_finishing:
            for worker in self._workers.running.values():
                worker.kill()
            self._shared.close()  # a server that is away is waited for no longer
        self._is_stopping, self._is_finishing = True, finish
        self._has_orders.set()
        if not finish:
            for step in self._steps.values():
                self._end(step)
        self._is_over.set()

    async def _wind_down(self) -> None:
        if self._steps:
            how = "finished" if self._is_finishing else "interrupted"
            self.log(f"stopping; {len(self._steps)} steps are {how} first")
        patience = time.monotonic() + _PATIENCE
        while self._steps or self._tasks:
            await asyncio.sleep(_AGAIN)
            if self._workers.running:
                patience = time.monotonic() + _PATIENCE
            if time.monotonic() > patience:  # what is left waits for a server that does not answer
                self._shared.close()
                break
        self.log("stopped")

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        """What goes wrong in a round is told, and the next one begins."""
        name = work.__name__.strip("_")
        while True:
            try:
                await work()
            except (RolecallError, OSError) as error:
                self._trouble(name, f"{name}: {error}")
                await asyncio.sleep(1.0)
            else:
                self._trouble(name, "")

    async def _db(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """What asks the database, in a thread that may wait for it."""
        return await self._loop.run_in_executor(self._threads, partial(work, *args, **options))

    async def _decide(self, work: Callable[[], T]) -> T:
        """What the dispatcher does, one after the other; a line that is dead is given up by `_guard`."""

        def timed() -> T:
            self._decides_since = time.monotonic()
            self._dispatcher.policy = self.policy
            try:
                return work()
            finally:
                self._decides_since = None

        return await self._loop.run_in_executor(self._deciding, timed)

    # -- taking --

    async def _take(self) -> None:
        """Take orders as long as there are some that can be taken here."""
        self._has_orders.clear()
        is_refused = self._can_take() and await self._taken_some()
        # Whoever else was refused tries again at another moment.
        pause = _AGAIN * random.uniform(0.5, 1.5) if is_refused else _POLL  # noqa: S311 -- no secret
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._has_orders.wait()

    def _can_take(self) -> bool:
        return not (self._is_stopping or self._free() <= 0 or "disk" in self.problems)

    def _free(self) -> int:
        recent = time.monotonic() - 10
        self._expected = [at for at in self._expected if at > recent]
        return self._settings.slots - len(self._steps) - len(self._expected)

    async def _taken_some(self) -> bool:
        """Take what waits; whether something is left that could not be taken just now."""
        waiting = await self._db(self._waiting)
        is_refused = False
        for name in waiting:
            while self._can_take() and waiting[name]:
                limit = self.policy.of(Need.of(name).workflow).concurrency
                self._expected.append(time.monotonic())  # before it can arrive
                # One at a time, so that orders spread over the machines that are free.
                if not await self._db(self._orders.take, name, most=1, limit=limit):
                    self._expected.pop()
                    is_refused = True
                    break
                waiting[name] -= 1
        return is_refused and self._can_take()

    def _waiting(self) -> dict[str, int]:
        """The queues on which orders wait that this machine has everything for, and how many."""
        slots = {
            slot.state["order"]: slot.state["queue"]
            for slot in self._store.refs("slot/")
            if "order" in slot.state
        }
        standing = self._orders.standing(slots)
        found: dict[str, int] = {}
        lacking: dict[str, str] = {}
        for order, name in slots.items():
            if order not in standing or standing[order].status != "ENQUEUED":
                continue
            if why := self._here.lacks(Need.of(name)):
                lacking[name] = why
            else:
                found[name] = found.get(name, 0) + 1
        self._lacking = lacking
        return found

    # -- a step --

    async def take_step(self, order: Order) -> str:
        """Carry out an order, to its end; what became of it, in a word or two."""
        if self._expected:
            self._expected.pop()
        if order.thread in self._steps:
            return "is running here"
        step = self._steps[order.thread] = Step(order)
        pause = 0.0
        try:
            return await self._carried_out(step)
        except (RolecallError, OSError, TimeoutError) as error:
            self.log(f"{order.thread} is looked at again: {error}")
            pause = 1.0
            return "trouble"
        finally:
            del self._steps[order.thread]
            self._has_orders.set()  # there is room for another
            self._begin(self._go_on(order, pause))

    async def _carried_out(self, step: Step) -> str:
        order = step.order
        ref = await self._db(self._store.ref, thread.ref_name(order.thread))
        if ref is None or ref.state.get("status") != "idle" or ref.target != order.head:
            return "is not due"
        if self._is_stopping:
            return "was handed back"
        store = Store(self._shared, now=self._line.now)
        gate = Gate(
            store,
            Slot(order.workflow, order.thread, 0),
            host=self._settings.name,
            checked=self._checked,
            told=self._tell_from_thread,
            moved=partial(step.note_lease, now=self._line.now),
        )
        ended = await self._workers.step(
            order.thread,
            Threaded(gate, self._db),
            agent=ref.state.get("agent"),
            limits=self.policy.worker,
            timing={"lease_ms": self._settings.lease_ms, "clock_ahead_ms": self._line.clock_ahead_ms},
        )
        settled = await self._db(settle, store, step, ended)
        if settled.is_taken:
            self._throughput.count()
        if settled.reason or settled.is_over:
            self.log(f"{order.thread} {settled.became}{': ' if settled.reason else ''}{settled.reason}")
        self._door.tell(order.thread)
        return settled.became

    def _tell_from_thread(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self._door.tell, name)

    async def _go_on(self, order: Order, pause: float) -> None:
        """Order the next step. What goes wrong here is found by the next sweep."""
        await asyncio.sleep(pause)
        verdict = await self._decide(lambda: self._dispatcher.go_on(order))
        if verdict.wait:  # its agent was called as often as it may be
            self._next_sweep = min(self._next_sweep, self._at(verdict))
            self._has_news.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except RolecallError as error:
                self.log(str(error))

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, step: Step, *, grace: float = GRACE) -> None:
        """Ask a step to stop, and end it when it does not."""
        step.is_stopped = True
        worker = self._workers.running.get(step.order.thread)
        if worker is not None:
            worker.stop(grace=grace)

    # -- leading --

    async def _lead(self) -> None:
        """Decide for the fleet, if that is this machine's part; sweep, and now and then even if it is not."""
        self._has_news.clear()
        now, is_leading = time.monotonic(), self._line.is_leading
        again = now + _SWEEP
        if is_leading:
            again = min(again, self._at(await self._decide(self._dispatcher.look)))
        if now >= self._next_sweep:
            verdict = await self._decide(self._dispatcher.sweep)
            pause = _SWEEP if is_leading else self._settings.lease_ms / 2000
            self._next_sweep = min(now + pause, self._at(verdict))
        if is_leading and now >= self._next_cleaning:
            await self._decide(self._dispatcher.forget)
            self._next_cleaning = now + _CLEANING
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.02, min(again, self._next_sweep) - time.monotonic())):
                await self._has_news.wait()

    def _at(self, verdict: Verdict) -> float:
        """When to decide again because time alone changes the answer."""
        if verdict.look_again_at is None:
            return float("inf")
        return time.monotonic() + (verdict.look_again_at - self._line.now()) / 1000

    def now(self) -> int:
        """The fleet's time, in milliseconds."""
        return self._line.now()

    def adopt(self, policy: ServicePolicy) -> None:
        """From any thread: a policy that this machine's project says, which becomes that of the fleet."""
        self._loop.call_soon_threadsafe(lambda: self._begin(self._db(self._publish, policy)))

    def _publish(self, policy: ServicePolicy) -> None:
        if machines.publish(self._store, policy, machine=self._settings.name):
            self.log("the fleet has the policy of this machine's project")

    def _read_policy(self) -> None:
        found = machines.published(self._store)
        if found is not None:
            self.policy = found

    # -- looking after --

    async def _beat(self) -> None:
        """Say that this machine is there."""
        try:
            await self._db(self._presence.tell, self._facts())
        except Conflict as error:
            self.log(error.message)
            self.stop()
        await asyncio.sleep(self._settings.lease_ms / 6000)

    async def _guard(self) -> None:
        """What must be done in time, whether or not the database answers. Nothing here asks it."""
        now = time.monotonic()
        for step in self._steps.values():
            if step.ends_within(self._settings.margin) and not step.is_stopped:
                self.log(f"{step.order.thread} is ended: its lease could not be renewed")
                self._end(step, grace=self._settings.margin / 2)
        self._give_up_dead_lines(now)
        if now >= self._next_look_at_disk:
            self._next_look_at_disk = now + 5.0
            self._begin(self._look_at_disk())
        await asyncio.sleep(_GLANCE)

    async def _look_at_disk(self) -> None:
        self._trouble("disk", await asyncio.to_thread(lacking_room, self._settings.folders))

    def _give_up_dead_lines(self, now: float) -> None:
        silent = now - self._line.contact
        told = "" if self._is_heard() else f"the database does not answer since {silent:.0f} s"
        self._trouble("database", told, is_steady=True)
        if told:
            self._line.abort()
        self._shared.abort()
        since = self._decides_since
        if since is not None and now - since > HUNG:
            self._dispatcher.backend.abort()

    def _trouble(self, about: str, problem: str, *, is_steady: bool = False) -> None:
        """`is_steady`: only that it is so is news, not how it goes on."""
        known = self.problems.get(about)
        if problem and known != problem and not (is_steady and known):
            self.log(problem)
        if problem:
            self.problems[about] = problem
        elif self.problems.pop(about, None):
            self.log(f"{about.strip('_')}: all is well again")
            self._has_orders.set()

    def _facts(self) -> dict[str, Any]:
        return {
            "slots": self._settings.slots,
            "threads": sorted(self._steps),
            "steps": self._throughput.total,
            "per_minute": self._throughput.per_minute(),
            "leads": self._line.is_leading,
            "lacks": dict(list(self._lacking.items())[:_SHOWN]),
            "problems": dict(self.problems),
        }

    def _heard(self, news: str) -> None:
        """On the line's thread."""
        with suppress(RuntimeError):  # the loop is closing
            self._loop.call_soon_threadsafe(self._note, news)

    def _note(self, news: str) -> None:
        what, _, name = news.partition(" ")
        if what == "connected":  # who knows what was missed
            self._begin(self._db(self._read_policy))
            self._has_orders.set()
            self._has_news.set()
        elif name == machines.POLICY:
            self._begin(self._db(self._read_policy))
            self._has_news.set()
        elif what == "UPDATE":
            self._has_orders.set()
        elif what == "INSERT" or name.startswith("slot/"):
            self._has_news.set()
        ident = name[-THREAD_ID_LENGTH:]  # refs of the queue and of slots end in a thread's id
        self._door.tell(ident)
        if what == "DELETE" and ident in self._steps:
            self._begin(self._heed_ending(self._steps[ident]))

    async def _heed_ending(self, step: Step) -> None:
        """A thread that runs here has lost its slot: it has come to its end, or somebody has killed it."""
        ref = await self._db(self._store.ref, thread.ref_name(step.order.thread))
        if ref is not None and ref.state.get("status") == "killed":
            self._end(step)

    # -- who asks --

    def wake(self) -> None:
        """From any thread: look now."""
        self._loop.call_soon_threadsafe(self._has_news.set)

    async def status(self) -> dict[str, Any]:
        """How this machine stands, and the queue of the fleet."""
        try:
            async with asyncio.timeout(5):
                known = await self._db(self._queue_status)
        except (TimeoutError, RolecallError):
            known = {"queued": {}, "waits": {}, "spent": 0.0}
        running = self._workers.running
        threads = [
            {
                "thread": name,
                "workflow": step.order.workflow,
                "pid": running[name].pid if name in running else None,
            }
            for name, step in self._steps.items()
        ]
        return {
            **known,
            "machine": self._settings.name,
            "zygote": self._workers.zygote_pid,
            "stopping": self._is_stopping,
            "limit": self._settings.slots,
            "running": threads,
            "problems": dict(self.problems),
        }

    def _queue_status(self) -> dict[str, Any]:
        store = Store(self._shared, now=self._line.now)
        state = queue.standing(
            store, self.policy, now=store.now(), agent_of=self._agent_of(store), at_least=_SHOWN
        )
        waits = dict(list(decide(self.policy, state, store.now()).wait.items())[:_SHOWN])
        return {"queued": queue.lengths(store), "waits": waits, "spent": state.spent}


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
