"""End a thread for good: first in the store, then the process that runs it, then the processes of its agents. Then end
the members of its group in the same way."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from rolecall.agents.process import end_leftovers
from rolecall.errors import UsageError
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads import lifecycle
from rolecall.threads.state import ThreadRef, check_run, group_name, read_members, read_note, read_thread

_STOP_SECONDS = 5.0
"""The number of seconds that a process is given to stop; the process gives its agent 2 of these seconds."""


class Killed(NamedTuple):
    ref: ThreadRef
    process: int | None
    """The id of the process that ran the thread on this machine, if any."""
    was_stuck: bool
    """Whether the process failed to stop when asked."""


def kill(store: Store, ref: ThreadRef, reason: str, *, mask: Mask) -> Killed:
    ref, lease = lifecycle.kill(store, ref, reason, mask=mask)
    # A process that runs other threads too, or is this one, gets no signal; it sees the kill when it checks its leases.
    is_shared = lease.get("shared") or lease.get("pid") == os.getpid()
    process = ask_to_stop(lease) if lease and not is_shared else None
    lifecycle.tell_service(ref)  # only now: the service might end the process before we can report it

    was_stuck, deadline = False, monotonic() + _STOP_SECONDS
    while process is not None and holder.is_alive(lease, now=0):
        if monotonic() > deadline:  # code that never returns to the interpreter does not handle signals
            was_stuck = True
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            break
        sleep(0.02)
    if not lease or process is not None:  # no other process will end the agents
        with ThreadPoolExecutor(1) as other:  # the caller's thread might have a running event loop
            for run in _runs_of(store, ref):
                other.submit(asyncio.run, end_leftovers(run)).result()
    for member in read_members(store, ref.id):
        if not member.state.has_ended:
            with suppress(UsageError):  # the member has ended in the meantime
                kill(store, member, f"its group was killed: {reason}", mask=mask)
    return Killed(ref, process, was_stuck)


def ask_to_stop(lease: JsonObject) -> int | None:
    """Send SIGTERM to the process that runs the thread and return its id, even if the process has already ended. Return
    None for a process of another host or user; such a process learns from its lease that it must stop."""
    if lease.get("host") != holder.identify_self("")["host"]:
        return None
    try:
        with suppress(ProcessLookupError):
            os.kill(lease["pid"], signal.SIGTERM)
    except PermissionError:
        return None
    return int(lease["pid"])


def _runs_of(store: Store, ref: ThreadRef) -> list[str]:
    """Return the run ids of the agents that work for a thread, of the check of its group, and of the agents of the
    child thread that plays its role."""
    runs, known = [check_run(ref.id)] if store.ref(group_name(ref.id)) else [], read_note(store, ref.id)
    if known is None:
        return runs
    runs += filter(None, (known.note.run, *known.note.runs))
    child = read_thread(store, known.note.session) if known.note.session else None
    if child is not None and child.state.parent == ref.id:
        for below in (child, *read_members(store, child.id)):
            runs += _runs_of(store, below)
    return runs
