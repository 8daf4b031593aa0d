"""Who may move a thread's head: one process at a time, told by the lease in the thread's ref.

Taking a thread is a compare-and-swap that puts our lease into its ref. A living holder is named, a dead one
is replaced. While a step runs the lease is renewed, and the step is told to stop once the thread is no
longer ours. `holder.py` knows processes; what a step does is the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rolecall.agents.protocol import Cancel
from rolecall.errors import Conflict, Hint, StorageError, UsageError
from rolecall.store import holder
from rolecall.store.store import Draft, Store
from rolecall.threads import state, thread
from rolecall.threads.state import Status, ThreadRef, ThreadState

_GLANCE = 2.0
"""Seconds between two looks at whether the thread is still ours; of a short lease, a tenth of it."""


@dataclass(frozen=True)
class Held:
    """A thread this process is running: nobody else moves its head as long as the lease is ours."""

    store: Store
    thread: str
    head: str
    token: str
    limits: Mapping[str, float]
    lease_ms: int

    def ref(self) -> ThreadRef:
        ref = state.read_thread(self.store, self.thread)
        if ref is None or ref.state.lease.get("token") != self.token or ref.head != self.head:
            raise Conflict(
                f"thread {self.thread} was taken over or ended while this step ran",
                hint=Hint("See it", "show_thread", before="Its answer is kept.", thread=self.thread),
            )
        return ref

    def commit(self, draft: Draft, head: str, after: ThreadState) -> None:
        """Commit `draft` together with the thread's new head and state; the lease goes with it."""
        state.move(draft, self.ref(), after, head=head)
        draft.commit(durable=True)


@asynccontextmanager
async def hold(
    store: Store, name: str, token: str, cancel: Cancel, *, lease_ms: int = holder.LEASE_MS
) -> AsyncIterator[tuple[Held, Cancel]]:
    """Take a thread for one step; with it comes the signal that ends the step when the caller cancels it
    or the thread is no longer ours, because it was killed or taken over."""
    held = take(store, name, token, lease_ms=lease_ms)
    stop = asyncio.Event()
    task = asyncio.create_task(_look_after(held, cancel, stop))
    try:
        yield held, stop
    finally:
        task.cancel()
        _let_go(held)


def take(store: Store, name: str, token: str, *, lease_ms: int = holder.LEASE_MS) -> Held:
    while True:
        ref = thread.find(store, name)
        try:
            return _taken(store, ref, token, lease_ms)
        except Conflict:
            # Whoever moved it first has left a trace that says more than the lost race does.
            if thread.find(store, name).ref.version == ref.ref.version:
                raise


def refuse_ended(ref: ThreadRef) -> None:
    if ref.state.has_ended:
        raise UsageError(
            f"thread {ref.id} is {ref.state.status}",
            hint=Hint("Fork it to continue from some step", "fork_thread", thread=ref.id),
        )


def _taken(store: Store, ref: ThreadRef, token: str, lease_ms: int) -> Held:
    refuse_ended(ref)
    ident, known = ref.id, ref.state
    if known.status == Status.SUSPENDED:
        raise UsageError(
            f"thread {ident} is suspended: {known.reason}",
            hint=thread.continuation(ref) or "",
        )
    lease, now = known.lease, store.now()
    if lease and holder.is_alive(lease, now=now):
        raise Conflict(
            f"thread {ident} is being run by {holder.describe(lease)}",
            hint=Hint("Follow it", "watch_thread", thread=ident),
        )
    mine = {**holder.me(token), "deadline": now + lease_ms}
    draft = store.draft()
    state.move(draft, ref, known._replace(status=Status.RUNNING, lease=mine))
    draft.commit(durable=False)
    return Held(store, ident, ref.head, token, known.limits, lease_ms)


def _let_go(held: Held) -> None:
    """Give up a lease that a step left behind: an interruption, or an error of ours."""
    ref = state.read_thread(held.store, held.thread)
    if ref is None or ref.state.lease.get("token") != held.token:
        return
    draft = held.store.draft()
    state.move(draft, ref, ref.state._replace(status=Status.IDLE, lease={}))
    draft.commit(durable=True)


async def _look_after(held: Held, cancel: Cancel, stop: asyncio.Event) -> None:
    while not await _within(min(_GLANCE, held.lease_ms / 10_000), cancel):
        try:
            _renew(held)
        except Conflict:
            break
        except StorageError:
            continue  # the step's own commit meets the same trouble, and can report it
    stop.set()


async def _within(seconds: float, cancel: Cancel) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await cancel.wait()
    except TimeoutError:
        return False
    return True


def _renew(held: Held) -> None:
    ref, now = held.ref(), held.store.now()
    lease = ref.state.lease
    if lease["deadline"] - now < held.lease_ms * 2 / 3:
        lease = {**lease, "deadline": now + held.lease_ms}
        draft = held.store.draft()
        state.move(draft, ref, ref.state._replace(lease=lease))
        draft.commit(durable=False)
