"""Take up a thread that has a slot but whose state is unknown, when the service starts or after an error.

The store decides. If the process of the thread's step died, record that and end the step's leftover processes; the
thread can then continue. Its next step resumes the agent's session from the note of the attempt.
"""

from __future__ import annotations

from typing import Literal

from rolecall.agents.process import end_leftovers
from rolecall.service import queue
from rolecall.service.queue import Slot
from rolecall.store import holder
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads.state import read_note, read_thread

Finding = Literal["ready", "held", "gone"]
"""`ready`: the thread can take its next step. `held`: a living process runs the thread. `gone`: the thread no longer
needs its slot."""


async def take_up(store: Store, slot: Slot) -> Finding:
    ref = read_thread(store, slot.thread)
    status = ref.state.status if ref else ""
    if ref is None or status not in ("idle", "running"):
        queue.release(store, slot)
        return "gone"
    if status == "idle":
        return "ready"
    lease = ref.state.lease
    # Only one machine uses a SQLite file, so a process from before that machine's last boot is gone.
    is_of_the_past = isinstance(store.backend, SqliteBackend) and not holder.is_of_this_boot(lease)
    if holder.is_alive(lease, now=store.now()) and not is_of_the_past:
        return "held"
    await end_runs(store, slot.thread)
    reason = f"{holder.describe(lease)}, which ran it, is gone"
    moved = queue.count_crash(store, slot, reason, is_loss=True)
    return "ready" if moved is not None and moved.state.status == "idle" else "gone"


async def end_runs(store: Store, name: str) -> None:
    """End the processes that a thread's steps have left on this host, no matter which process started the steps."""
    known = read_note(store, name)
    runs = (known.note.run, *known.note.runs) if known else ()
    for run in (name, *filter(None, runs)):
        await end_leftovers(run)
