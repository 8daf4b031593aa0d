"""Leases ensure that only one process at a time moves a thread's head; the thread's ref names that process.

Taking a thread is a compare-and-swap that writes our lease into the thread's ref. If a live process holds the thread,
taking it is an error; the lease of a dead process is replaced. The lease is renewed while a step runs, and the step
stops if the thread is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from rolecall.agents.protocol import Cancel
from rolecall.errors import Conflict, Hint, StorageError, UsageError
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import Status, ThreadRef, ThreadState, move, read_thread

_GLANCE = 2.0
"""The maximum number of seconds between two checks that the thread is still ours. For a short lease, the interval is a
tenth of the lease."""


class Waits(Exception):
    """The thread is waiting until a time that has not come yet. `ref` is the thread's ref as it was read."""

    def __init__(self, ref: ThreadRef) -> None:
        self.ref = ref


class Held(NamedTuple):
    """A thread that this process runs. No other process moves the thread's head as long as the lease is ours."""

    store: Store
    thread: str
    head: str
    token: str
    lease_ms: int

    def ref(self) -> ThreadRef:
        """Read the thread's current ref. Raise `Conflict` if this process has lost the thread."""
        ref = read_thread(self.store, self.thread)
        if ref is None or ref.state.lease.get("token") != self.token or ref.head != self.head:
            raise Conflict(
                f"thread {self.thread} was taken over or ended while this step ran",
                hint=Hint("See it", "show_thread", before="Its answer is kept.", thread=self.thread),
            )
        return ref


@asynccontextmanager
async def hold(
    store: Store, name: str, token: str, cancel: Cancel, *, lease_ms: int, is_shared: bool
) -> AsyncIterator[tuple[Held, Cancel]]:
    """Take a thread for one step. Raise `Waits` if the thread cannot continue yet. The yielded event is set when the
    caller cancels, or when the thread is killed or taken over."""
    held = take(store, name, token, lease_ms=lease_ms, is_shared=is_shared)
    stop = asyncio.Event()
    task = asyncio.create_task(_keep(held, cancel, stop))
    try:
        yield held, stop
    finally:
        task.cancel()
        # After an interruption or an unexpected error, the ref still contains the lease.
        ref = read_thread(store, held.thread)
        if ref is not None and ref.state.lease.get("token") == token:
            _move(store, ref, ref.state._replace(status=Status.IDLE, lease={}), durable=True)


def take(
    store: Store, name: str, token: str, *, lease_ms: int = holder.LEASE_MS, is_shared: bool = False
) -> Held:
    while True:
        ref = thread.find(store, name)
        refuse_ended(ref)
        if ref.state.status == Status.SUSPENDED:
            raise UsageError(
                f"thread {ref.id} is suspended: {ref.state.reason}", hint=thread.continuation(ref) or ""
            )
        lease, now = ref.state.lease, store.now()
        if lease and holder.is_alive(lease, now=now):
            raise Conflict(
                f"thread {ref.id} is being run by {holder.describe(lease)}",
                hint=Hint("Follow it", "watch_thread", thread=ref.id),
            )
        state = ref.state
        if state.until is not None:
            if now < state.until:
                raise Waits(ref)
            state = state._replace(until=None, reason="")
        mine = {**holder.identify_self(token), "deadline": now + lease_ms} | (
            {"shared": True} if is_shared else {}
        )
        try:
            _move(store, ref, state._replace(status=Status.RUNNING, lease=mine), durable=False)
        except Conflict:
            # Reading the thread again gives a better error message than the lost race does.
            if thread.find(store, name).ref.version == ref.ref.version:
                raise
            continue
        return Held(store, ref.id, ref.head, token, lease_ms)


def refuse_ended(ref: ThreadRef) -> None:
    if ref.state.has_ended:
        raise UsageError(
            f"thread {ref.id} is {ref.state.status}",
            hint=Hint("Fork it to continue from some step", "fork_thread", thread=ref.id),
        )


async def _keep(held: Held, cancel: Cancel, stop: asyncio.Event) -> None:
    """Renew the lease until the caller cancels or the thread is lost, and then tell the step to stop."""
    while not cancel.is_set():
        try:
            async with asyncio.timeout(min(_GLANCE, held.lease_ms / 10_000)):
                await cancel.wait()
        except TimeoutError:
            try:
                ref, now = held.ref(), held.store.now()
                if ref.state.lease["deadline"] - now < held.lease_ms * 2 / 3:
                    lease = {**ref.state.lease, "deadline": now + held.lease_ms}
                    _move(held.store, ref, ref.state._replace(lease=lease), durable=False)
            except Conflict:
                break
            except StorageError:
                continue  # the step's own commit fails in the same way and reports the error
    stop.set()


def _move(store: Store, ref: ThreadRef, state: ThreadState, *, durable: bool) -> None:
    draft = store.draft()
    move(draft, ref, state)
    draft.commit(durable=durable)
