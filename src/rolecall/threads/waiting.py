"""Threads whose agent has reached a usage limit of its provider. They wait until the time in their state.

A waiting thread needs no process, so the wait survives crashes and restarts. A run in this process sleeps here before
the next step; the service keeps the thread in its queue.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rolecall.agents.protocol import Cancel
from rolecall.agents.ratelimit import Limit, find_limit
from rolecall.errors import AgentError, RolecallError
from rolecall.store.store import Store
from rolecall.threads.attempt import Attempt
from rolecall.threads.commit import Outcome
from rolecall.threads.setup import Setup
from rolecall.threads.state import Status, ThreadRef, move, read_thread

LIMITED = "limited"
"""The event of a thread that begins to wait for a usage limit to end."""
_SHORTEST_MS, _LONGEST_MS = 250, 3_600_000
_GLANCE = 1.0
"""The number of seconds between two looks at the clock and at the thread, which somebody may have killed or resumed. A
single long sleep would last too long if the computer slept as well."""


def find_limit_of(store: Store, error: RolecallError) -> Limit | None:
    """Return the limit that an agent's provider has reported. For a role that another workflow plays, return the limit
    that the other workflow's thread waits for. Only the message of an `api_failure` is read, because texts of agents
    and commands can mention limits, too."""
    if not isinstance(error, AgentError):
        return None
    if error.ending == "suspended" and error.session:
        child = read_thread(store, error.session)
        return Limit(child.state.until) if child is not None and child.state.until else None
    return find_limit(error.message, now=store.now()) if error.ending == "api_failure" else None


def begin(setup: Setup, ref: ThreadRef, attempt: Attempt, until: int, reason: str) -> Outcome:
    """Let the thread wait until the limit ends. An agent that keeps reporting limits is asked at longer and longer
    intervals, up to one hour, even if the times that it reports are earlier."""
    store = setup.store
    pause = min(_SHORTEST_MS * 2 ** (attempt.tries - 1), _LONGEST_MS)
    until, reason = max(until, store.now() + pause), setup.mask.text(reason)
    body = {"role": attempt.role, "until": until, "reason": reason}
    draft = store.draft()
    draft.event(ref.id, LIMITED, body)
    move(draft, ref, ref.state.move_to(Status.IDLE, role=attempt.role, reason=reason, until=until))
    draft.commit(durable=True)
    setup.watch(LIMITED, body)
    return Outcome(ref.id, ref.head, Status.IDLE, attempt.role, reason, until=until)


async def wait(setup: Setup, outcome: Outcome, cancel: Cancel) -> bool:
    """Sleep until the thread can continue, or until somebody has moved it. Return False if `cancel` is set first."""
    about = {"role": outcome.role, "until": outcome.until, "reason": outcome.reason}
    setup.watch("waits", about)
    while not cancel.is_set():
        ref = read_thread(setup.store, outcome.thread)
        left = (outcome.until or 0) - setup.store.now()
        if left <= 0 or ref is None or ref.state.until != outcome.until:
            setup.watch("waited", about)
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left / 1000, _GLANCE)):
                await cancel.wait()
    return False
