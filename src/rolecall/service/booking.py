"""Extend the commits of a step with their effects on the service.

A commit that ends or suspends the thread also frees the thread's slot. A commit that records a step or a failed attempt
also books the cost. An agent that was killed by a signal counts as a crash to retry, not as a reason to wait for a
person. The thread and the service change in the same commit, so a crash never leaves one change without the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rolecall.errors import Conflict
from rolecall.service import queue
from rolecall.service.queue import BY_SERVICE, Slot
from rolecall.store.backend import Backend, Change, Move, NewEvent, Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.store import payload_of
from rolecall.threads import thread
from rolecall.threads.state import GROUP, QueuePlace, Status, ThreadState, load_state


@dataclass
class BookingBackend:
    """The backend of one step. It wraps `backend` and updates the thread's slot in every commit."""

    backend: Backend
    slot: Slot
    host: str
    """The name under which costs are booked."""
    note: Callable[[str, Any], None]
    """Called after a commit: with `lease` and the thread's new lease if the commit moved the thread, and with `event`
    and the thread's id for each thread that has new events."""
    _agent_ended: str = ""
    """The error of the last attempt if a signal killed its agent; otherwise empty."""

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.backend, verb)

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        while True:
            full = self._with_consequences(change, now)
            try:
                moved = self.backend.commit(full, now=now, durable=durable)
                break
            except Conflict:
                # Other processes move slots and costs too. Try again unless the conflict is over the step's own refs.
                for move in change.moves:
                    ref = self.backend.ref(move.name)
                    if (ref.version if ref else 0) != move.expected:
                        raise
        for ref in moved:
            if ref.name == thread.ref_name(self.slot.thread):
                self.note("lease", ref.state.get("lease"))
        for stream in {event.stream for event in full.events}:
            self.note("event", stream)
        return moved[: len(change.moves)]

    def _with_consequences(self, change: Change, now: int) -> Change:
        moves, events = list(change.moves), list(change.events)
        new = {record.id: record for record in change.nodes}

        def payload(node: str | None) -> JsonObject:
            record = (new.get(node) or self.backend.record(node)) if node else None
            found = payload_of(record) if record is not None else {}
            return found if isinstance(found, dict) else {}

        def cost(put: JsonObject) -> float:
            """Return the cost of a step or attempt as its agent reported it, including child threads. A group itself
            costs nothing, because its members have booked their own costs."""
            if put.get("agent") == GROUP:
                return 0.0
            usage = put.get("usage") or payload(put.get("detail")).get("usage")
            amount = usage.get("cost") if isinstance(usage, dict) else None
            if not isinstance(amount, int | float) or isinstance(amount, bool):
                return 0.0
            return max(0.0, float(amount))

        dollars = 0.0
        for place, move in enumerate(change.moves):
            if move.name == thread.attempt_name(self.slot.thread):
                attempt = payload(move.target) if move.target in new else {}
                is_killed = attempt.get("ending") == "killed" and "agent" not in (move.state or {})
                self._agent_ended = str(attempt.get("error", "its agent was killed")) if is_killed else ""
                dollars += cost(attempt)
            elif move.name == thread.ref_name(self.slot.thread):
                ref = self.backend.ref(move.name)
                is_new_head = ref is not None and move.target != ref.target
                # the step can be in the store already, because an external agent stores its step itself
                if is_new_head:
                    dollars += cost(payload(move.target))
                state = self._state_after(move, events, is_new_head=is_new_head)
                moves[place] = move._replace(state=state.dump())
                slot = self.backend.ref(thread.slot_name(self.slot.workflow, self.slot.thread))
                is_queued = state.status == Status.QUEUED
                if is_queued:
                    entry = thread.queue_entry(state, {"begun": True})
                    moves.append(Move(thread.queue_name_of(self.slot.thread, state), 0, None, entry))
                if slot is not None and (state.is_over or is_queued):
                    moves.append(Move(slot.name, slot.version))
        if dollars:
            name = f"spend/{queue.day_of(now)}/{self.host}"
            ref = self.backend.ref(name)
            spent = {"dollars": round((ref.state.get("dollars", 0) if ref else 0) + dollars, 10)}
            moves.append(Move(name, ref.version if ref else 0, None, spent))
        return change._replace(moves=moves, events=events)

    def _state_after(self, move: Move, events: list[NewEvent], *, is_new_head: bool) -> ThreadState:
        """Return the thread's new state and update `events`. A new head, or a wait, resets the crash count."""
        state = load_state(move.state or {})
        # A thread that is waiting for its group takes many turns without a new head.
        if (is_new_head or state.status == Status.WAITING) and state.service is not None:
            state = state._replace(service=state.service._replace(crashes=None, losses=None))
        if state.status == Status.SUSPENDED and self._agent_ended:
            after, count = queue.state_after_crash(state, self._agent_ended)
            events[:] = [event for event in events if event.kind != "suspended"]
            body = {"reason": self._agent_ended, "count": count, **BY_SERVICE}
            events.append(NewEvent(self.slot.thread, "crashed", body))
            if after.is_over:
                after = after._replace(onward=state.onward)
                body = {"reason": after.reason, **BY_SERVICE}
                events.append(NewEvent(self.slot.thread, "suspended", body))
            return after
        if state.status == Status.IDLE and state.until is not None and state.service is not None:
            # The thread frees its slot and waits in the queue behind threads that can run earlier.
            return state._replace(
                status=Status.QUEUED, service=QueuePlace(state.service.priority, state.until)
            )
        if state.is_over and all(event.kind != state.status for event in events):
            body = {key: value for key in ("reason", "steps") if (value := getattr(state, key))}
            events.append(NewEvent(self.slot.thread, state.status.value, {**body, **BY_SERVICE}))
        return state
