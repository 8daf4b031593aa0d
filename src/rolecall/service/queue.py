"""The queue and the slots, as refs in the store next to those of their threads.

The ref `queue/<workflow>/…` is a waiting thread. `slot/<workflow>/<thread>` is an admitted thread that has neither
ended nor begun to wait for a person. `rate/<agent>` keeps the times of recent calls, and `spend/<day>/<host>` the cost
of a day. Every function here changes these refs and the thread's own ref in one transaction, so a crash never leaves a
thread in two places or in none.

The number of reads depends on how many threads can run, not on how many wait. `admission.py` decides which threads are
admitted. `lifecycle.py`, which carries out everything that people do to threads, puts threads into the queue.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from rolecall.errors import Conflict, Damaged
from rolecall.service.admission import (
    DAY_MS,
    MEMBERS,
    Admission,
    Due,
    QueueState,
    Waiting,
    decide,
    select_recent,
)
from rolecall.service.policy import MeteredCall, ServicePolicy, StartRate
from rolecall.service.problems import Problems
from rolecall.store import holder
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Draft, Store
from rolecall.threads import thread
from rolecall.threads.state import RESUME, QueuePlace, Status, ThreadRef, ThreadState, load, move, read_thread

CRASHES = {"crashes": 3, "losses": 10}
"""How often a step can crash, or be lost with the service or machine, before its thread waits for a person. The limit
for losses is higher because losses are rarely the thread's fault."""
BY_SERVICE = {"by": "service"}
"""Included in the body of every event that the service, not the engine, records."""
_SHOWN = 50
"""The number of waiting threads for which the status gives a reason."""
_LOOK_AHEAD = 50
"""How many waiting threads to read beyond the number of free slots, because a rate can hold up the first ones."""
_ENTRY = re.compile(r"queue/([^/]+)/([0-9])([0-9]{13})([0-9A-Z]{26})")

AgentOf = Callable[[ThreadState], str]
"""Names the agent that a thread's next step calls, given the thread's state."""


class Slot(NamedTuple):
    workflow: str
    thread: str
    since: int


# -- reading --


def read_state(
    store: Store,
    policy: ServicePolicy,
    *,
    now: int,
    due: Sequence[Due] = (),
    agent_of: AgentOf = lambda _state: "",
    at_least: int = 0,
    without: Container[str] = (),
) -> QueueState:
    """Return the input for admission, without the waiting threads in `without`. If a workflow's queue might overflow,
    all its waiting threads are read; otherwise, a few more than can be admitted and not fewer than `at_least`."""
    places = ((ref.name.split("/")[1], ref.state.get("member")) for ref in read_refs(store, "slot/"))
    admitted = Counter(MEMBERS if is_member else workflow for workflow, is_member in places)
    room = max(0, policy.limit - sum(admitted.values()))
    has_groups = bool(store.backend.names("group/", limit=1))
    found: list[Waiting] = []
    for workflow in waiting_workflows(store):
        rule, prefix = policy.of(workflow), f"queue/{workflow}/"
        free = min(room, max(0, rule.concurrency - admitted.get(workflow, 0)))
        if has_groups:  # members of a group are admitted even if their workflow is busy
            free = room
        may_overflow = rule.overflow == "drop" or (
            rule.max_queue is not None
            and len(store.backend.names(prefix, limit=rule.max_queue + 1)) > rule.max_queue
        )
        if may_overflow:
            found += _waiting(read_refs(store, prefix))
        elif free or at_least:
            page = read_refs(store, prefix, limit=max(free and free + _LOOK_AHEAD, at_least))
            found += _waiting(ref for ref in page if not _is_being_made(ref, now))
    found = [one for one in found if one.thread not in without]
    for place, one in enumerate(found) if policy.rates else ():
        with suppress(Damaged):
            if ref := read_thread(store, one.thread):
                found[place] = replace(one, agent=agent_of(ref.state))
    return QueueState(found, admitted, due, calls(store, policy, now), spent(store, policy, now))


def describe(
    store: Store, policy: ServicePolicy, *, agent_of: AgentOf, without: Container[str] = ()
) -> JsonObject:
    """Return the queue as plain values: its lengths, why threads wait (leaving out those in `without`), and the cost of
    the day."""
    now = store.now()
    state = read_state(store, policy, now=now, agent_of=agent_of, at_least=_SHOWN, without=without)
    waits = dict(list(decide(policy, state, now).wait.items())[:_SHOWN])
    return {"queued": lengths(store), "waits": waits, "spent": state.spent}


def waiting_workflows(store: Store) -> Iterator[str]:
    """Yield the workflows that have waiting threads, with one read per workflow."""
    last: str | None = None
    while found := read_refs(store, "queue/", after=last, limit=1):
        workflow = found[0].name.split("/")[1]
        yield workflow
        last = f"queue/{workflow}0"  # "0" sorts right after "/"


def lengths(store: Store) -> dict[str, int]:
    """Return the number of waiting threads of each workflow. This reads the name of every waiting thread."""
    names = store.backend.names("queue/")
    return dict(Counter(match[1] for name in names if (match := _ENTRY.fullmatch(name))))


def slots(store: Store) -> list[Slot]:
    """Return the slots, in the order in which their threads were admitted."""
    found = []
    for ref in read_refs(store, "slot/"):
        _, workflow, name = ref.name.split("/")
        found.append(Slot(workflow, name, ref.state.get("since", 0)))
    return sorted(found, key=lambda slot: (slot.since, slot.thread))


def calls(store: Store, policy: ServicePolicy, now: int) -> dict[str, list[int]]:
    return {name: _recent(store.ref(f"rate/{name}"), rate, now) for name, rate in policy.rates.items()}


def spent(store: Store, policy: ServicePolicy, now: int) -> float:
    if policy.spend_per_day is None:
        return 0.0
    return float(sum(ref.state.get("dollars", 0) for ref in read_refs(store, f"spend/{day_of(now)}/")))


def day_of(now: int) -> str:
    return datetime.fromtimestamp(now / 1000, UTC).date().isoformat()


def _recent(ref: Ref | None, rate: StartRate, now: int) -> list[int]:
    return select_recent(ref.state.get("calls", ()) if ref else (), rate, now)


def read_refs(store: Store, prefix: str, *, after: str | None = None, limit: int | None = None) -> list[Ref]:
    """Return refs sorted by name. A damaged ref is returned with its name only."""
    try:
        return store.refs(prefix, before=after, limit=limit)
    except Damaged:
        names = sorted(name for name in store.backend.names(prefix) if after is None or name > after)
        found = []
        for name in names[:limit]:
            ref = None
            with suppress(Damaged):
                ref = store.ref(name)
            found.append(ref or Ref(name, None, {}, 0, 0))
        return found


def _waiting(refs: Iterable[Ref]) -> Iterator[Waiting]:
    for ref in refs:
        if match := _ENTRY.fullmatch(ref.name):
            workflow, priority, since, ident = match.groups()
            is_begun, is_member = (ref.state.get(key) is True for key in ("begun", "member"))
            until = ref.state.get("until", 0)
            yield Waiting(ident, workflow, 9 - int(priority), int(since), "", is_begun, is_member, until)


# -- verbs --


def carry_out(
    store: Store,
    policy: ServicePolicy,
    verdict: Admission,
    waiting: Iterable[Waiting],
    *,
    now: int,
    log: Callable[[str], object],
    problems: Problems,
    unreadable: set[str],
) -> Iterator[ThreadRef]:
    """Discard and admit waiting threads as `verdict` says, and yield the admitted ones. A thread that cannot be read is
    added to `unreadable`, so that it does not block others."""
    by_name = {one.thread: one for one in waiting}
    for name in (*verdict.discard, *verdict.admit):
        one = by_name[name]
        try:
            if name in verdict.discard:
                if discard(store, one, verdict.discard[name]) is not None:
                    log(f"{name} is discarded: {verdict.discard[name]}")
                continue
            ref = admit(store, one, now=now, call=policy.meter(one.agent))
        except Damaged as error:
            unreadable.add(name)
            problems.note_unreadable(name, error)
            continue
        if ref is not None:
            log(f"{name} of {one.workflow} starts after {max(0, now - one.since):,} ms")
            yield ref


def admit(store: Store, one: Waiting, *, now: int, call: MeteredCall | None = None) -> ThreadRef | None:
    """Give a waiting thread a slot and return the thread's ref, or None if the thread no longer waits or its folders
    are still being created. `call` is counted for the thread's first step."""
    entry = store.ref(_entry_name(one))
    if entry is not None and _is_being_made(entry, now):
        return None

    def enter(draft: Draft, ref: ThreadRef) -> ThreadState:
        slot = {"since": now, **({"member": True} if one.is_member else {})}
        draft.move(thread.slot_name(one.workflow, one.thread), None, state=slot)
        body = {"queued_at": one.since, "waited_ms": max(0, now - one.since), **BY_SERVICE}
        draft.event(one.thread, "started", body)
        if call is not None:
            _count(store, draft, call, now)
        place = ref.state.service and ref.state.service._replace(admitted_at=now)
        return ref.state.move_to(Status.IDLE, service=place)

    return _leave_queue(store, one, enter)


def discard(store: Store, one: Waiting, reason: str) -> ThreadRef | None:
    """End a waiting thread that will not run."""

    def end(draft: Draft, ref: ThreadRef) -> ThreadState:
        draft.event(one.thread, "discarded", {"reason": reason, **BY_SERVICE})
        return ref.state.move_to(Status.DISCARDED, role=None, reason=reason)

    return _leave_queue(store, one, end)


def _leave_queue(
    store: Store, one: Waiting, change: Callable[[Draft, ThreadRef], ThreadState]
) -> ThreadRef | None:
    """Move a thread out of the queue if it still waits under this entry. Since the entry was read, the thread might
    have been killed, run by a person or queued again. An entry without a waiting thread is removed."""
    entry, ref = store.ref(_entry_name(one)), read_thread(store, one.thread)
    if entry is None:
        return None
    draft = store.draft()
    draft.move(entry.name, entry)
    place = ref.state.service if ref is not None and ref.state.status == Status.QUEUED else None
    waits = place is not None and (place.priority, place.queued_at) == (one.priority, one.since)
    if waits and ref is not None:
        move(draft, ref, change(draft, ref))
    try:
        moved = draft.commit(durable=False)
    except Conflict:  # another process was faster; the next look finds the result
        return None
    return load(moved[-1]) if waits else None


def _is_being_made(entry: Ref, now: int) -> bool:
    """Return whether a process is still creating the folders of a waiting thread."""
    maker = entry.state.get("maker")
    return maker is not None and holder.is_alive(maker, now=now)


def _entry_name(one: Waiting) -> str:
    return thread.queue_name(one.workflow, one.thread, priority=one.priority, at=one.since)


def count(store: Store, call: MeteredCall, *, now: int) -> None:
    """Record a call of an agent."""
    draft = store.draft()
    _count(store, draft, call, now)
    draft.commit(durable=False)


def _count(store: Store, draft: Draft, call: MeteredCall, now: int) -> None:
    name = f"rate/{call.name}"
    ref = store.ref(name)
    calls = [*_recent(ref, call.rate, now), now]
    draft.move(name, ref, state={"calls": calls[-call.rate.count :]})


def wake_parents(store: Store, *, now: int, problems: Problems) -> tuple[list[ThreadRef], int | None]:
    """Give a slot to each thread that waits for its group if a member has ended or the deadline has passed. Return
    these threads and the next deadline. A thread is woken even if no slot is free: its turn is short, calls no agent,
    and might end the very members that hold the slots."""
    woken, deadlines = [], []
    for group in read_refs(store, "group/"):
        deadline: int = group.state.get("deadline", 0)
        if group.version == group.state.get("seen") and not 0 < deadline <= now:
            deadlines += [deadline] if deadline else []
            continue
        try:
            ref = read_thread(store, name := group.name.removeprefix("group/"))
        except Damaged as error:
            problems.note_unreadable(name, error)
            continue
        if ref is None or ref.state.status != Status.WAITING or ref.state.service is None:
            continue
        name, draft = thread.slot_name(ref.state.name, ref.id), store.draft()
        if store.ref(name) is not None:  # the process that made the thread wait has not ended yet
            continue
        order = {"order": group.state["order"]} if "order" in group.state else {}
        draft.move(name, None, state={"since": now, **order})
        move(draft, ref, ref.state.move_to(Status.IDLE))
        try:
            draft.commit(durable=False)
        except Conflict:  # another process was faster
            continue
        woken.append(ref)
    return woken, min(deadlines, default=None)


def release(store: Store, slot: Slot) -> None:
    """Free the slot of a thread that has ended or waits, unless another process has given the thread a slot again."""
    while True:
        own, ref = store.ref(thread.slot_name(slot.workflow, slot.thread)), read_thread(store, slot.thread)
        if own is None or (ref is not None and ref.state.status in (Status.IDLE, Status.RUNNING)):
            return
        draft = store.draft()
        draft.move(own.name, own)
        if ref is not None:
            # A later slot for the same thread has the same name, so require that the thread itself has not moved.
            draft.move(ref.ref.name, ref.ref, ref.head, ref.ref.state, at=ref.ref.updated)
        with suppress(Conflict):
            draft.commit(durable=False)
            return


def count_crash(store: Store, seen: ThreadRef, reason: str, *, is_loss: bool = False) -> ThreadRef | None:
    """Record that the process of a step died, or was lost with the service. The thread can run again, or waits for a
    person after too many crashes. Return None if the thread has moved since `seen` was read."""
    state, count = state_after_crash(seen.state, reason, is_loss=is_loss)
    events: dict[str, JsonObject] = {"crashed": {"reason": reason, "count": count}}
    if state.is_over:
        events["suspended"] = {"reason": state.reason}
        state = state._replace(onward=RESUME)
    return _move_admitted(store, seen, state, events)


def state_after_crash(state: ThreadState, reason: str, *, is_loss: bool = False) -> tuple[ThreadState, int]:
    """Return the state of a thread after another crash of its current step, and the number of crashes so far."""
    key = "losses" if is_loss else "crashes"
    place = state.service or QueuePlace(0, 0)
    count = (getattr(place, key) or 0) + 1
    after = state.move_to(Status.IDLE, service=place._replace(**{key: count}))
    if count >= CRASHES[key]:
        verb = "was lost" if is_loss else "crashed"
        why = f"its step {verb} {count} times, last: {reason}"
        after = after._replace(status=Status.SUSPENDED, reason=why)
    return after, count


def suspend(store: Store, seen: ThreadRef, reason: str) -> ThreadRef | None:
    """Make a thread wait for a person. Return None if the thread has moved since `seen` was read."""
    state = seen.state.move_to(Status.SUSPENDED, reason=reason, onward=RESUME)
    return _move_admitted(store, seen, state, {"suspended": {"reason": reason}})


def lay_down(store: Store, seen: ThreadRef) -> ThreadRef | None:
    """Make an interrupted thread idle again. The thread keeps its slot, and no crash is counted. Return None if the
    thread has moved since `seen` was read."""
    return _move_admitted(store, seen, seen.state.move_to(Status.IDLE), {})


def _move_admitted(
    store: Store, seen: ThreadRef, state: ThreadState, events: Mapping[str, JsonObject]
) -> ThreadRef | None:
    """Move a thread that has a slot but no running process, and free the slot unless the thread can continue. `events`
    are the bodies of the thread's events, by kind. If the thread has moved since `seen` was read, do nothing, because
    another process might have taken it."""
    while True:
        draft = store.draft()
        for kind, body in events.items():
            draft.event(seen.id, kind, {**body, **BY_SERVICE})
        own = store.ref(thread.slot_name(seen.state.name, seen.id)) if state.is_over else None
        if own is not None:
            draft.move(own.name, own)
        move(draft, seen, state)
        try:
            return load(draft.commit(durable=True)[-1])
        except Conflict:
            ref = read_thread(store, seen.id)
            if ref is None or ref.ref.version != seen.ref.version:
                return None


def forget_old_days(store: Store, *, now: int, days: int = 31) -> None:
    """Remove the costs of days more than `days` ago."""
    oldest = day_of(now - days * DAY_MS)
    for ref in read_refs(store, "spend/"):
        if ref.version and ref.name.split("/")[1] < oldest:
            store.move(ref.name, ref, durable=False)
