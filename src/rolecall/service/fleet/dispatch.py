"""Admission for the whole fleet, orders for steps, and recovery of abandoned threads.

`admission.decide` decides from the same facts as on one machine. Decisions are written under a database lock, so
machines decide one after another. Each step of a thread with a slot is ordered from the machine with the most room,
among those that have what the step needs. `sweep` finds threads that no machine is running or going to run, because
their machine is gone or busy, and gives their orders to another machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rolecall.errors import Conflict, Damaged, RolecallError
from rolecall.service import queue, recovery
from rolecall.service.admission import Admission, Due, QueueState, decide
from rolecall.service.fleet import machines
from rolecall.service.fleet.needs import Need, find_need, find_need_elsewhere
from rolecall.service.fleet.orders import OPEN, Order, Orders, order_id
from rolecall.service.policy import ServicePolicy
from rolecall.service.problems import Problems
from rolecall.service.queue import AgentOf, Slot
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store
from rolecall.threads.state import ThreadRef, read_thread
from rolecall.threads.thread import slot_name

if TYPE_CHECKING:
    from dbos import WorkflowStatus

_QUEUED_MS = 1_000
"""Milliseconds that an order waits for its machine before another machine with room can take the order."""
_NAMED_MS = 10_000
"""The age in milliseconds at which an order's id has certainly been written to its slot."""


@dataclass
class Dispatcher:
    """Admits threads by `policy` and orders their steps. Use it from one thread at a time."""

    backend: PostgresBackend
    store: Store
    orders: Orders
    lease_ms: int
    log: Callable[[str], object]
    problems: Problems
    agent_of: AgentOf
    running_here: Container[str] = ()
    """The threads whose steps this machine is running and will settle itself."""
    policy: ServicePolicy = field(default_factory=ServicePolicy)
    has_slots: bool = True
    """Whether the last sweep found threads with slots."""
    lease_ends_at: int | None = None
    """When the first of the leases that the last sweep found ends."""
    unreadable: set[str] = field(default_factory=set)
    """Waiting threads that cannot be read from the store. They do not block others."""

    # -- deciding --

    def look(self) -> Admission:
        """Admit and discard threads according to the policy, and wake the threads whose groups have changed or timed
        out. Order the next steps of the admitted and woken threads."""
        woken, deadline = queue.wake_parents(self.store, now=self.store.now(), problems=self.problems)
        admitted = {slot_name(ref.state.name, ref.id) for ref in woken}
        times = [deadline] if deadline is not None else []
        verdict = Admission()
        if self.store.backend.names("queue/", limit=1):
            with self.backend.alone("admission"):
                now = self.store.now()
                state = queue.read_state(
                    self.store, self.policy, now=now, agent_of=self.agent_of, without=self.unreadable
                )
                verdict = decide(self.policy, state, now)
                entered = queue.carry_out(
                    self.store,
                    self.policy,
                    verdict,
                    state.waiting,
                    now=now,
                    log=self.log,
                    problems=self.problems,
                    unreadable=self.unreadable,
                )
                admitted |= {slot_name(ref.state.name, ref.id) for ref in entered}
            if verdict.look_again_at is not None:
                times.append(verdict.look_again_at)
            if self.unreadable & {*verdict.admit, *verdict.discard}:
                times.append(now)  # other threads can take their places

        if admitted:  # no rate is checked, because the first calls were counted at admission
            room = self._room()
            for plan in self._plan([slot for slot in room.slots if slot.name in admitted], room).values():
                self._order(*plan, room)
        return replace(verdict, look_again_at=min(times, default=None))

    def go_on(self, order: Order) -> Admission:
        """Order the next step after an order was carried out, unless another machine has already ordered it."""
        slot = self.store.ref(slot_name(order.workflow, order.thread))
        if slot is None or slot.state.get("order") != order.id:
            return Admission()
        return self._step([slot], self._room())

    def _step(self, slots: Sequence[Ref], room: Room) -> Admission:
        """Order the next steps of threads with slots, if a machine can take them and their agents may be called now."""
        due = self._plan(slots, room)
        verdict = Admission(step=tuple(due))
        if self.policy.rates:
            with self.backend.alone("admission"):
                now = self.store.now()
                calls = [
                    Due(name, slot.state.get("since", 0), self.agent_of(ref.state))
                    for name, (slot, ref, _) in due.items()
                ]
                state = QueueState(due=calls, calls=queue.calls(self.store, self.policy, now))
                verdict = decide(self.policy, state, now)
                for one in calls:
                    call = self.policy.meter(one.agent) if one.thread in verdict.step else None
                    if call is not None:
                        queue.count(self.store, call, now=now)
        for name in verdict.step:
            self._order(*due[name], room)
        return verdict

    # -- ordering --

    def _room(self) -> Room:
        slots, damaged = [], set()
        for slot in queue.read_refs(self.store, "slot/"):
            thread = slot.name.rpartition("/")[2]
            self.problems.note(slot.name, "" if slot.version else f"the slot of {thread} cannot be read")
            if slot.version:
                slots.append(slot)
            else:
                damaged.add(thread)
        return Room(machines.list_machines(self.store), slots, damaged)

    def _plan(self, slots: Sequence[Ref], room: Room) -> dict[str, tuple[Ref, ThreadRef, Need]]:
        """Return the threads with slots whose next step a machine can take, and what that step needs."""
        found = {}
        for slot in slots:
            name = slot.name.rpartition("/")[2]
            try:
                ref = read_thread(self.store, name)
            except Damaged as error:
                self.problems.note_unreadable(name, error)
                continue
            if ref is None or ref.state.status != "idle":
                continue
            need = Need()
            with suppress(RolecallError):  # the step itself reports what is wrong
                need = find_need(self.store, ref, self.agent_of(ref.state))
                if not room.has_taker(need):
                    need = find_need_elsewhere(self.store, ref, need) or need
            if room.has_taker(need):
                found[str(ref.id)] = (slot, ref, need)
            else:
                self._note(slot, need.replace_in(slot.state))
        return found

    def _order(self, slot: Ref, ref: ThreadRef, need: Need, room: Room) -> None:
        """Order the next step of this slot's thread. The order is placed before its id is written to the slot. After a
        crash between the two, the same order is placed again with the same id, which has no effect."""
        machine, workflow = room.choose(slot.name, need), slot.name.split("/")[1]
        before = slot.state.get("order", "")
        ident = order_id(ref.id, ref.head, before=before) if before else self.orders.next_id(ref.id, ref.head)
        priority = ref.state.service.priority if ref.state.service else self.policy.of(workflow).priority
        self.orders.give(Order(ident, ref.id, workflow, ref.head, need.text), machine.name, priority=priority)
        self._note(slot, {**need.replace_in(slot.state), "order": ident, "machine": machine.executor})

    def _note(self, slot: Ref, state: JsonObject) -> None:
        # Ignore a conflict. If another process was faster, or the thread was killed, the order finds nothing to do.
        if state != slot.state:
            with suppress(Conflict):
                self.store.move(slot.name, slot, state=state, durable=False)

    # -- abandoned threads --

    def sweep(self) -> Admission:
        """Order the steps of threads whose order is missing or lost, and cancel the orders of ended threads."""
        # in case no machine leads
        queue.wake_parents(self.store, now=self.store.now(), problems=self.problems)
        room = self._room()
        self.has_slots, self.lease_ends_at = bool(room.slots), None
        named = {slot.state["order"] for slot in room.slots if "order" in slot.state}
        # The id of a recent order might not have been written to its slot yet.
        given = self.orders.open_orders(before=self.store.now() - min(self.lease_ms, _NAMED_MS))
        kept = {order for order in given if order.partition(":")[0] in room.damaged}
        self.orders.cancel(order for order in given if order not in named | kept)
        statuses = self.orders.find_statuses(named)
        lost = []
        for slot in room.slots:
            name = slot.name.rpartition("/")[2]
            try:
                lost += [slot] if self._is_lost(slot, statuses, room) else []
                self.problems.note(name, "")
            except Conflict:
                pass  # a slot moves if some process is working on it
            except Damaged as error:
                self.problems.note_unreadable(name, error)
        return self._step(lost, room) if lost else Admission()

    def _is_lost(self, slot: Ref, statuses: Mapping[str, WorkflowStatus], room: Room) -> bool:
        """Return whether no process is running, or is going to run, the thread of a slot."""
        _, workflow, name = slot.name.split("/")
        place = Slot(workflow, name, slot.state.get("since", 0))
        finding, ref = recovery.examine(self.store, place)
        if ref is None or finding == "gone":
            return False
        now = self.store.now()
        if finding == "held":
            ends = ref.state.lease.get("deadline", 0)
            if ends > now:
                self.lease_ends_at = min(self.lease_ends_at or ends, ends)
            return False
        if finding == "lost":
            if name in self.running_here:  # its worker has just died, and this machine will count the crash
                return False
            settled = asyncio.run(recovery.count_loss(self.store, ref))
            if settled.is_news:
                self.log(f"{name} {settled.line}")
            return settled.head != ""
        order = slot.state.get("order", "")
        found = statuses.get(order)
        if order.split(":")[:2] != [name, ref.head] or found is None or found.status not in OPEN:
            return True  # no order for the thread's current head is open
        if found.status == "PENDING":  # the machine has taken the order
            is_late = now - (found.dequeued_at or 0) > self.lease_ms
        else:
            is_late = now - (found.created_at or 0) > _QUEUED_MS and room.is_better_elsewhere(slot)
        if is_late or not room.is_alive(slot):
            self.orders.cancel([order])
            return True
        return False

    # -- cleaning --

    def forget(self, *, age_ms: int = 86_400_000) -> None:
        """Remove orders, machines that disappeared and the costs of days if they are older than `age_ms`."""
        now = self.store.now()
        self.orders.forget(before=now - age_ms)
        queue.forget_old_days(self.store, now=now)
        for one in machines.list_machines(self.store):
            if now - one.deadline > age_ms:
                self.orders.forget_machine(one.name)
                machines.forget(self.store, one.name)


class Room:
    """Knows which machines have room for another step."""

    def __init__(
        self, found: Sequence[machines.FleetMember], slots: Sequence[Ref], damaged: Container[str] = ()
    ) -> None:
        self.slots = slots
        self.damaged = damaged
        """The threads whose slots cannot be read."""
        self._machines = {one.executor: one for one in found if one.is_alive}
        self._of = {slot.name: slot.state.get("machine", "") for slot in self.slots}

    def has_taker(self, need: Need) -> bool:
        return any(self._can_take(one, need.text) for one in self._machines.values())

    def choose(self, slot: str, need: Need) -> machines.FleetMember:
        """Choose the machine for the next step of the thread with this slot, and assign the slot to it."""
        self._of[slot] = ""
        busy = Counter(self._of.values())
        able = [one for one in self._machines.values() if self._can_take(one, need.text)]
        able = [one for one in able if one.host == need.host] or able
        chosen = min(able, key=lambda one: (busy[one.executor] / one.facts.slots, one.name))
        self._of[slot] = chosen.executor
        return chosen

    def is_alive(self, slot: Ref) -> bool:
        """Return whether the machine that was given a slot's order is alive."""
        return slot.state.get("machine") in self._machines

    def is_better_elsewhere(self, slot: Ref) -> bool:
        """If a slot's machine has no room for a step but another has, assign the slot to the other and return True."""
        own, busy = self._machines.get(slot.state.get("machine", "")), Counter(self._of.values())
        if own is not None and own.facts.open:
            has_files = own.host == slot.state.get("host")
            if has_files or busy[own.executor] <= own.facts.slots:
                return False
        for one in self._machines.values():
            if busy[one.executor] < one.facts.slots and self._can_take(one, slot.state.get("need", "")):
                self._of[slot.name] = one.executor
                return True
        return False

    @staticmethod
    def _can_take(one: machines.FleetMember, need: str) -> bool:
        return one.facts.open and need not in one.facts.lacks
