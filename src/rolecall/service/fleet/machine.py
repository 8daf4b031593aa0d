"""One machine of a fleet: carries out the orders on its queue, each step in its own process.

The event loop never queries the database itself. Threads do (`reach.py`), and they wait while the server is
unavailable. Meanwhile the loop ends any step whose lease can no longer be renewed, before the lease expires, so that
two machines never run the same thread, even if one of them was cut off.

One machine leads: it admits threads and sweeps for abandoned ones. The others sweep too, but less often, so that
nothing depends on the leader.

The methods of `Machine`, from top to bottom: life cycle, steps, deciding, upkeep, notifications, requests.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from rolecall.errors import Conflict, RolecallError
from rolecall.service import queue
from rolecall.service.door import Door
from rolecall.service.fleet import machines
from rolecall.service.fleet.dispatch import Dispatcher
from rolecall.service.fleet.machines import MachineSettings
from rolecall.service.fleet.needs import Here, Need, find_full_disk
from rolecall.service.fleet.orders import Order, Orders
from rolecall.service.fleet.reach import SILENCE, Reach
from rolecall.service.fleet.step import Steps
from rolecall.service.policy import ServicePolicy
from rolecall.service.problems import Problems
from rolecall.service.queue import AgentOf
from rolecall.service.workers import Workers
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import THREAD_ID_LENGTH
from rolecall.store.store import Store
from rolecall.threads.state import read_thread

_PATIENCE = 10.0
"""Seconds that a stopping machine waits for the database. Other machines settle what it could not record."""
_ANSWER = 5.0
"""Seconds that a status request waits for the database."""
_GLANCE, _REST = 0.25, 1.0
"""Seconds between two checks for time-critical work, while steps run and while none do."""
_DISK = 5.0
_LOOK = 10.0
"""Seconds between two looks at the queue if nothing reports a change."""
_SWEEP = 2.0
"""Seconds between two sweeps by the leader while threads run."""
_SOON = 0.05
_CLEANING = 600.0

Log = Callable[[str], None]
T = TypeVar("T")


class Machine:
    def __init__(
        self,
        url: str,
        settings: MachineSettings,
        workers: Workers,
        *,
        policy: ServicePolicy | None,
        log: Log,
        agent_of: Callable[[Store], AgentOf],
    ) -> None:
        """`policy` replaces the fleet's policy; with None, the fleet keeps the policy that it has."""
        self._settings = settings
        self._workers = workers
        self._own_policy = policy
        self.policy = ServicePolicy()
        self.log = log
        self._agent_of = agent_of
        self.problems = Problems(self._log_problem)
        self._reach = Reach(url, lease_ms=settings.lease_ms, threads=settings.slots + 8, heard=self._hear)
        self._orders = Orders(
            url,
            settings,
            step=self.take_step,
            over=lambda order: self._begin(self._go_on(order)),
            log=log,
        )
        self._steps = Steps(
            self._reach,
            workers,
            settings,
            policy=lambda: self.policy,
            log=log,
            tell=lambda name: self._loop.call_soon_threadsafe(self._door.tell, name),
        )
        self._here = Here()
        self._agents: list[str] = []
        self._lacking: dict[str, str] = {}
        """The needs of orders that this machine could not take, with what is missing for each."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_news, self._has_facts = asyncio.Event(), asyncio.Event()
        self._is_over = asyncio.Event()
        self._is_finishing = False
        self._next_sweep = self._next_cleaning = 0.0
        self._pauses: dict[Order, float] = {}
        """For each order that this machine has taken, the seconds to wait before ordering the thread's next step."""
        self._door = Door(
            poke=lambda _name: self.wake(),
            stop=lambda finish: self.stop(finish=finish),
            answers={
                "status": self.status,
                "fleet": lambda: self._answer(lambda: machines.status(self._reach.store)),
            },
        )

    # -- life cycle --

    async def run(self, door: socket.socket, *, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is called. Other processes connect to `door`; `ready` is called once they can."""
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as left:
            await self._open(left)
            await self._door.open(door)
            left.push_async_callback(self._door.close)
            rounds = {
                "beat": self._beat,
                "lead": self._lead,
                "guard": self._guard,
                "look around": self._look_around,
            }
            tasks = [asyncio.create_task(self._repeat(*one)) for one in rounds.items()]
            left.push_async_callback(_cancel_all, tasks)
            ready()
            await self._is_over.wait()

            if self._steps.running:
                how = "finished" if self._is_finishing else "interrupted"
                self.log(f"stopping; {len(self._steps.running)} steps are {how} first")
            patience = self._loop.time() + _PATIENCE
            while self._pauses or self._tasks:
                await asyncio.sleep(0.05)
                if self._workers.running:
                    patience = self._loop.time() + _PATIENCE
                if self._loop.time() > patience:  # the remaining work waits for a server that does not answer
                    self._reach.stop_waiting()
                    break
            self.log("stopped")
            await _cancel_all(self._tasks)

    async def _open(self, left: AsyncExitStack) -> None:
        settings, reach = self._settings, self._reach

        async def leave() -> None:
            with suppress(RolecallError):
                if reach.is_heard():
                    await reach.ask(self._presence.leave)

        def close_orders() -> None:
            if reach.is_heard():  # otherwise closing would wait for the database
                self._orders.close()

        left.callback(reach.close)
        backend = await reach.open()
        self._presence = machines.Presence(
            reach.store, settings.name, settings.executor, lease_ms=settings.lease_ms
        )
        self._agents = await reach.ask(self._here.list_agents)
        await reach.ask(self._presence.enter, self._facts())
        left.push_async_callback(leave)
        left.push_async_callback(self._workers.close)
        await self._workers.open()
        if self._own_policy is not None:
            await reach.ask(self._publish, self._own_policy)
        await reach.ask(self._read_policy)
        store = Store(backend, now=reach.now)
        self._dispatcher = Dispatcher(
            backend,
            store,
            self._orders,
            settings.lease_ms,
            self.log,
            self.problems,
            self._agent_of(store),
            running_here=self._steps.running,
        )
        # Last, because an order from an earlier run of this machine can be over at once; its thread then continues.
        left.callback(close_orders)
        await asyncio.to_thread(self._orders.open, self._loop)

    def stop(self, *, finish: bool = False) -> None:
        """Stop taking steps. Running steps are interrupted, or allowed to finish if `finish` is true. A second call
        kills them, unless the first call had `finish`."""
        if self._steps.is_stopping and not self._is_finishing:
            self._workers.kill()
            self._reach.stop_waiting()
        self._is_finishing = finish
        self._steps.stop(finish=finish)
        self._has_facts.set()
        self._is_over.set()

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in a loop, and log any error before the next round."""
        while True:
            try:
                await work()
            except Exception as error:  # the loop must survive every error
                why = error if isinstance(error, RolecallError | OSError) else repr(error)
                self.problems.note(name, f"{name}: {why}")
                await asyncio.sleep(1.0)
            else:
                self.problems.note(name, "")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except RolecallError as error:
                self.log(str(error))

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- steps --

    async def take_step(self, order: Order) -> str:
        """Carry out an order, and describe the outcome in a few words."""
        self._pauses[order] = 0.0
        lacking = await self._reach.ask(self._here.lacks, Need.of(order.need))
        if lacking or not self._is_open():
            self._lacking |= {order.need: lacking} if lacking else {}
            # Publish what is missing before the order is over, so that the order goes to another machine.
            await self._reach.ask(self._presence.tell, self._facts())
            return "was handed back"
        settled = await self._steps.take(order)
        self._pauses[order] = 1.0 if settled.is_trouble else 0.0
        return settled.became

    async def _go_on(self, order: Order) -> None:
        """Order the next step of a thread whose order is over. If this fails, the next sweep makes up for it."""
        await asyncio.sleep(self._pauses.pop(order, 0.0))
        verdict = await self._decide(lambda: self._dispatcher.go_on(order))
        if verdict.wait:  # the agent of the next step has reached its rate limit
            self._next_sweep = min(self._next_sweep, self._at(verdict.look_again_at))
            self._has_news.set()

    def _is_open(self) -> bool:
        return not self._steps.is_stopping and "disk" not in self.problems

    async def _look_around(self) -> None:
        """Check the disk, and check which of the unmet needs are still unmet and still required by a slot."""
        self.problems.note("disk", await asyncio.to_thread(find_full_disk, self._settings.folders))
        await asyncio.sleep(_DISK)
        if not self._lacking:
            return

        def look() -> dict[str, str]:
            slots = queue.read_refs(self._reach.store, "slot/")
            wanted = {slot.state.get(key) for slot in slots for key in ("need", "instead_of")}
            known = {need: self._here.lacks(Need.of(need)) for need in self._lacking if need in wanted}
            return {need: why for need, why in known.items() if why}

        found = await self._reach.ask(look)
        if found != self._lacking:
            self._lacking = found
            self._agents = await self._reach.ask(self._here.list_agents)
            self._has_facts.set()

    # -- deciding --

    async def _lead(self) -> None:
        """Decide for the fleet if this machine leads. Sweep when a sweep is due, even if this machine does not lead."""
        self._has_news.clear()
        dispatcher, now, leads = self._dispatcher, time.monotonic(), self._reach.line.is_leading
        again = now + _LOOK
        if leads:
            verdict = await self._decide(dispatcher.look)
            again = min(again, self._at(verdict.look_again_at))
            self._next_sweep = min(self._next_sweep, now + _SWEEP)
        if now >= self._next_sweep:
            verdict = await self._decide(dispatcher.sweep)
            pause = _SWEEP if dispatcher.has_slots else _LOOK
            if not leads:
                pause = self._settings.lease_ms / 2000
            # Leases are renewed long before they end, unless the machine is gone.
            lost = self._at(dispatcher.lease_ends_at) + _SOON
            self._next_sweep = min(now + pause, self._at(verdict.look_again_at), lost)
        if leads and now >= self._next_cleaning:
            await self._decide(dispatcher.forget)
            self._next_cleaning = now + _CLEANING
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.02, min(again, self._next_sweep) - time.monotonic())):
                await self._has_news.wait()

    async def _decide(self, work: Callable[[], T]) -> T:
        def decide() -> T:
            self._dispatcher.policy = self.policy
            return work()

        return await self._reach.decide(decide)

    def _at(self, moment: int | None) -> float:
        """Convert the fleet's time to this process's monotonic clock. None means never."""
        if moment is None:
            return float("inf")
        return time.monotonic() + (moment - self._reach.now()) / 1000

    # -- upkeep --

    async def _beat(self) -> None:
        """Publish this machine's state, which also shows that the machine is alive."""
        self._has_facts.clear()
        try:
            await self._reach.ask(self._presence.tell, self._facts())
        except Conflict as error:
            self.log(error.message)
            self.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.lease_ms / 6000):
                await self._has_facts.wait()

    async def _guard(self) -> None:
        """Do the time-critical work, which does not need the database."""
        self._steps.end_what_is_over()
        reach = self._reach
        silence = "" if reach.is_heard() else f"the database has not answered for {SILENCE:.0f} s"
        self.problems.note("database", silence)
        reach.give_up_dead_lines()
        await asyncio.sleep(_GLANCE if self._steps.running else _REST)

    def _log_problem(self, text: str) -> None:
        """Log a problem and publish it. This method can be called from any thread."""
        self.log(text)
        with suppress(RuntimeError):  # the loop is closing
            self._loop.call_soon_threadsafe(self._has_facts.set)

    def _facts(self) -> machines.Facts:
        return machines.Facts(
            slots=self._settings.slots,
            threads=sorted(self._steps.running),
            steps=self._steps.total,
            per_minute=self._steps.per_minute(),
            leads=self._reach.line.is_leading,
            open=self._is_open(),
            agents=self._agents,
            lacks=dict(self._lacking),
            problems=dict(self.problems),
        )

    # -- notifications --

    def _hear(self, news: str) -> None:
        """Handle a notification. This method is called on the thread of `ServerLine`."""
        what, _, name = news.partition(" ")

        def handle() -> None:
            is_new = what == "connected"  # notifications might have been missed
            if is_new or name == machines.POLICY:
                self._begin(self._reach.ask(self._read_policy))
            change = (what, name.partition("/")[0])
            # A deleted slot frees capacity. An updated queue entry means that its folders are ready.
            if is_new or what in ("leads", "INSERT") or change in (("DELETE", "slot"), ("UPDATE", "queue")):
                self.wake()
            ident = name[-THREAD_ID_LENGTH:]  # the refs of the queue and of slots end in a thread's id
            self._door.tell(ident)
            if what == "DELETE" and ident in self._workers.running:
                self._begin(end_if_killed(ident))

        async def end_if_killed(ident: str) -> None:
            ref = await self._reach.ask(read_thread, self._reach.store, ident)
            if ref is not None and ref.state.status == "killed" and ident in self._workers.running:
                self._workers.running[ident].stop()

        with suppress(RuntimeError):  # the loop is closing
            self._loop.call_soon_threadsafe(handle)

    # -- requests --

    def now(self) -> int:
        """Return the fleet's time, in milliseconds."""
        return self._reach.now()

    def wake(self) -> None:
        """Look at the queue now. This method can be called from any thread."""
        self._loop.call_soon_threadsafe(self._has_news.set)

    def adopt(self, policy: ServicePolicy) -> None:
        """Make this project's policy the policy of the fleet. This method can be called from any thread."""
        self._loop.call_soon_threadsafe(lambda: self._begin(self._reach.ask(self._publish, policy)))

    def _publish(self, policy: ServicePolicy) -> None:
        if machines.publish(self._reach.store, policy, machine=self._settings.name):
            self.log("the fleet has the policy of this machine's project")

    def _read_policy(self) -> None:
        found = machines.read_policy(self._reach.store)
        if found is not None and found != self.policy:
            self.policy = found
            self.wake()

    async def status(self) -> JsonObject:
        """Return the status of this machine, with the fleet's queue."""

        def describe() -> JsonObject:
            store = self._reach.new_store()
            return queue.describe(
                store, self.policy, agent_of=self._agent_of(store), without=self._dispatcher.unreadable
            )

        return {
            "queued": {},
            "waits": {},
            "spent": 0.0,
            **await self._answer(describe),
            "machine": self._settings.name,
            "zygote": self._workers.zygote_pid,
            "stopping": self._steps.is_stopping,
            "limit": self._settings.slots,
            "running": self._steps.describe(),
            "problems": dict(self.problems),
        }

    async def _answer(self, work: Callable[[], JsonObject]) -> JsonObject:
        """Return the result of `work`, or an empty dictionary if the database does not answer."""
        with suppress(TimeoutError, RolecallError):
            async with asyncio.timeout(_ANSWER):
                return await self._reach.ask(work)
        return {}


async def _cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
