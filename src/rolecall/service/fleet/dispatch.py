"""Who runs, and what was left lying: admission for the whole fleet, orders for the steps that follow from it.

The same function decides as on one machine, about the same facts; what is decided is written under a lock of the
database, so however many machines decide, they decide one after the other. A thread that has a slot has an
order at DBOS or is being run; `sweep` finds those for which neither is true any more, because the machine that had
them is gone, and gives their orders again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from rolecall.errors import Conflict, RolecallError
from rolecall.service import queue, recovery
from rolecall.service.admission import Due, State, Verdict, decide
from rolecall.service.fleet import machines
from rolecall.service.fleet.needs import Need, needed
from rolecall.service.fleet.orders import Order, Orders, Standing, order_id
from rolecall.service.policy import ServicePolicy
from rolecall.service.queue import AgentOf, Call, Slot
from rolecall.store import holder
from rolecall.store.backend import Ref
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import ThreadRef, read_thread

Log = Callable[[str], object]


class Dispatcher:
    """Decides by a `policy`, and orders. One thread of control: it has a connection of its own."""

    def __init__(
        self,
        backend: PostgresBackend,
        orders: Orders,
        *,
        now: Callable[[], int],
        lease_ms: int,
        log: Log,
        agent_of: Callable[[Store], AgentOf],
    ) -> None:
        self.backend = backend
        self.store = Store(backend, now=now)
        self.policy = ServicePolicy()
        self.has_slots = True
        """Whether the last sweep found threads that run."""
        self.lease_ends_at: int | None = None
        """When the first of the leases ends that the last sweep found."""
        self._orders = orders
        self._lease_ms = lease_ms
        self._log = log
        self._agent_of = agent_of(self.store)

    # -- deciding --

    def look(self) -> Verdict:
        """Admit and discard whom the policy says, and order their first steps."""
        if not self.store.refs("queue/", limit=1):
            return Verdict()
        with self.backend.alone("admission"):
            now = self.store.now()
            state = queue.standing(self.store, self.policy, now=now, agent_of=self._agent_of)
            verdict = decide(self.policy, state, now)
            by_name = {one.thread: one for one in state.waiting}
            discarded = [
                name
                for name, reason in verdict.discard.items()
                if queue.discard(self.store, by_name[name], reason) is not None
            ]
            admitted = [
                one
                for one in (by_name[name] for name in verdict.admit)
                if queue.admit(self.store, one, now=now, call=self._call(one.agent)) is not None
            ]
        for name in discarded:
            self._log(f"{name} is discarded: {verdict.discard[name]}")
        for one in admitted:
            self._log(f"{one.thread} of {one.workflow} starts after {max(0, now - one.since):,} ms")
            slot = self.store.ref(thread.slot_name(one.workflow, one.thread))
            if slot is not None:
                self._order(slot)
        return verdict

    def go_on(self, order: Order) -> Verdict:
        """Order the step after an order that was carried out, unless somebody has done so already."""
        slot = self.store.ref(thread.slot_name(order.workflow, order.thread))
        is_last = slot is not None and slot.state.get("order") == order.id
        return self._step([slot]) if slot is not None and is_last else Verdict()

    def _step(self, slots: Sequence[Ref]) -> Verdict:
        """Order the next steps of threads that have slots, as far as their agents may be called now."""
        seen = {slot.name.rpartition("/")[2]: slot for slot in slots}
        if not self.policy.rates:
            verdict = Verdict(step=tuple(seen))
        else:
            with self.backend.alone("admission"):
                verdict = self._metered(seen)
        for name in verdict.step:
            self._order(seen[name])
        return verdict

    def _metered(self, slots: Mapping[str, Ref]) -> Verdict:
        now = self.store.now()
        refs = {name: read_thread(self.store, name) for name in slots}
        due = [
            Due(name, slots[name].state.get("since", 0), self._agent_of(ref.state))
            for name, ref in refs.items()
            if ref is not None
        ]
        verdict = decide(self.policy, State(due=due, calls=queue.calls(self.store, self.policy, now)), now)
        for one in due:
            call = self._call(one.agent) if one.thread in verdict.step else None
            if call is not None:
                queue.count(self.store, call, now=now)
        return verdict

    def _call(self, agent: str) -> Call | None:
        name = self.policy.metered(agent)
        return Call(name, self.policy.rates[name]) if name else None

    # -- ordering --

    def _order(self, slot: Ref) -> None:
        """Give the order for the next step of a thread that has this slot. It is given before the slot says so: whoever
        dies in between gives the same order once more, which is one order."""
        _, workflow, name = slot.name.split("/")
        ref = read_thread(self.store, name)
        if ref is None or ref.state.status != "idle":
            return
        head = ref.head
        before = slot.state.get("order", "")
        ident = order_id(name, head, before=before) if before else self._orders.next_id(name, head)
        order = Order(ident, name, workflow, head)
        need, rule = self._need(ref), self.policy.of(workflow)
        priority = ref.state.service.priority if ref.state.service else rule.priority
        self._orders.give(order, need.partition, limit=rule.concurrency, priority=priority)
        state = {"since": slot.state.get("since", 0), "order": order.id, "need": need.text}
        # Where somebody was faster, or the thread was killed, the order finds nothing to do.
        with suppress(Conflict):
            self.store.move(slot.name, slot, state=state, durable=False)

    def _need(self, ref: ThreadRef) -> Need:
        try:
            return needed(self.store, ref.state, self._agent_of(ref.state))
        except RolecallError:  # the step itself says what is wrong
            return Need()

    # -- what was left lying --

    def sweep(self) -> Verdict:
        """Look at every thread that has a slot, and order the next steps of those for which nobody has, or whose
        order is lost."""
        # What stands under these names and is none of ours is passed over.
        slots = [slot for slot in self.store.refs("slot/") if slot.name.count("/") == 2]
        self.has_slots, self.lease_ends_at = bool(slots), None
        if not slots:
            return Verdict()
        named = {slot.state["order"] for slot in slots if "order" in slot.state}
        alive = {one.executor for one in machines.listed(self.store) if one.is_alive}
        self._end_dead_orders(named, alive)
        standing = self._orders.standing(named)
        lost = []
        for slot in slots:
            with suppress(Conflict):  # it moves, so somebody looks after it
                lost += [slot] if self._is_lost(slot, standing) else []
        return self._step(lost) if lost else Verdict()

    def _end_dead_orders(self, named: Collection[str], alive: Collection[str]) -> None:
        """What a dead machine has taken, or what is over without a record of it, would count against its queue's limit
        for ever."""
        latest = self.store.now() - self._lease_ms
        dead = [
            order
            for order, one in self._orders.taken().items()
            if one.executor not in alive or (order not in named and one.since < latest)
        ]
        self._orders.cancel(dead)

    def _is_lost(self, slot: Ref, standing: Mapping[str, Standing]) -> bool:
        words = slot.name.split("/")
        place = Slot(words[1], words[2], slot.state.get("since", 0))
        ref = read_thread(self.store, place.thread)
        status = ref.state.status if ref else ""
        if ref is None or status not in ("idle", "running"):
            queue.release(self.store, place)
            return False
        if status == "running":
            return self._is_abandoned(place, ref)
        order = slot.state.get("order", "")
        if order.split(":")[:2] != [place.thread, ref.head]:
            return True  # the step it was for was taken, and nobody has ordered the next
        return self._is_stranded(order, standing.get(order))

    def _is_abandoned(self, place: Slot, ref: ThreadRef) -> bool:
        lease = ref.state.lease
        now, ends = self.store.now(), lease.get("deadline", 0)
        if holder.is_alive(lease, now=now):
            if ends > now:
                self.lease_ends_at = min(self.lease_ends_at or ends, ends)
            return False
        if lease.get("host") == holder.process(os.getpid())["host"]:  # of a life before this one, perhaps
            asyncio.run(recovery.end_runs(self.store, place.thread))
        reason = f"{holder.describe(lease)}, which ran it, is gone"
        moved = queue.crashed(self.store, place, reason, is_loss=True, seen=ref)
        if moved is None:
            return False
        self._log(f"{place.thread} crashed: {reason}")
        return moved.state.status == "idle"

    def _is_stranded(self, order: str, standing: Standing | None) -> bool:
        """Whether an order that nobody has carried out is with nobody who will."""
        if standing is None or standing.is_over:
            return True
        is_late = standing.since and self.store.now() - standing.since > self._lease_ms
        if standing.status == "PENDING" and is_late:
            self._orders.cancel([order])
            return True
        return False

    # -- cleaning --

    def forget(self, *, age_ms: int = 86_400_000) -> None:
        """Remove what nobody asks for any more: orders of threads that were killed, orders of a day ago, machines
        long gone."""
        now = self.store.now()
        wanted = {slot.state.get("order") for slot in self.store.refs("slot/")}
        # A young order may be one that its slot does not name yet.
        given = self._orders.given(before=now - self._lease_ms)
        self._orders.cancel([order for order in given if order not in wanted])
        self._orders.forget(before=now - age_ms)
        queue.forget_old_days(self.store, now=now)
        for one in machines.listed(self.store):
            if now - one.facts.get("deadline", 0) > age_ms:
                machines.forget(self.store, one.name)
