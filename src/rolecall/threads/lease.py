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
from typing import Any

from rolecall.agents.protocol import Cancel
from rolecall.errors import Conflict, StorageError, UsageError
from rolecall.store import holder
from rolecall.store.backend import Ref
from rolecall.store.store import Draft, Store
from rolecall.threads import thread

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

    def ref(self) -> Ref:
        ref = self.store.ref(thread.ref_name(self.thread))
        if ref is None or _token_of(ref) != self.token or ref.target != self.head:
            raise Conflict(
                f"thread {self.thread} was taken over or ended while this step ran",
                hint=f"Its answer is kept. See `rolecall thread show {self.thread}`.",
            )
        return ref

    def state(self) -> dict[str, Any]:
        return thread.lasting(self.ref().state)

    def move(self, draft: Draft, target: str, state: Mapping[str, Any]) -> None:
        """Commit `draft` together with the thread's new head and state; the lease goes with it."""
        ref = self.ref()
        draft.move(
            ref.name, ref, target, {key: value for key, value in state.items() if value not in (None, "")}
        )
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
            if thread.find(store, name).version == ref.version:
                raise


def refuse_ended(ref: Ref) -> None:
    ident, status = thread.id_of(ref), ref.state.get("status", "idle")
    if status in thread.ENDED:
        raise UsageError(
            f"thread {ident} is {status}",
            hint=f"Fork it to go on from some step: `rolecall thread fork {ident}`.",
        )


def _taken(store: Store, ref: Ref, token: str, lease_ms: int) -> Held:
    ident, state = thread.id_of(ref), ref.state
    status = state.get("status", "idle")
    refuse_ended(ref)
    if status == "suspended":
        raise UsageError(
            f"thread {ident} is suspended: {state.get('reason', '')}",
            hint=f"Go on with `{thread.continuation(ref)}`.",
        )
    lease, now = state.get("lease"), store.now()
    if lease and holder.is_alive(lease, now=now):
        raise Conflict(
            f"thread {ident} is being run by {holder.describe(lease)}",
            hint=f"Follow it: `rolecall thread watch {ident}`.",
        )
    mine = {**holder.me(token), "deadline": now + lease_ms}
    store.move(ref.name, ref, ref.target, {**state, "status": "running", "lease": mine}, durable=False)
    return Held(store, ident, ref.target or "", token, state.get("limits", {}), lease_ms)


def _let_go(held: Held) -> None:
    """Give up a lease that a step left behind: an interruption, or an error of ours."""
    ref = held.store.ref(thread.ref_name(held.thread))
    if ref is None or _token_of(ref) != held.token:
        return
    state = {key: value for key, value in ref.state.items() if key != "lease"}
    held.store.move(ref.name, ref, ref.target, {**state, "status": "idle"})


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
    lease = ref.state["lease"]
    if lease["deadline"] - now < held.lease_ms * 2 / 3:
        lease = {**lease, "deadline": now + held.lease_ms}
        held.store.move(ref.name, ref, ref.target, {**ref.state, "lease": lease}, durable=False)


def _token_of(ref: Ref) -> str | None:
    token: str | None = ref.state.get("lease", {}).get("token")
    return token
