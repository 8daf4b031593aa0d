"""What follows for the service from what a step does to its thread: it is in the step's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servicestage import STEPS, book

from rolecall.errors import Conflict
from rolecall.service import queue
from rolecall.service.booking import BookingBackend
from rolecall.service.policy import ServicePolicy
from rolecall.service.queue import Slot
from rolecall.settings.mask import Mask
from rolecall.store.backend import Change, Move, NewEvent, NodeRecord, Ref
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Draft, Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.state import GROUP, RESUME, load
from rolecall.threads.thread import ATTEMPT_SCHEMA

NOW = 1_790_000_000_000


class Noting(SqliteBackend):
    """A backend that notes what is written, transaction by transaction, and lets others write just before."""

    changes: list[Change]
    first: Callable[[], object] | None = None

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        first, self.first = self.first, None
        if first is not None:
            first()
            self.changes.clear()
        moved = super().commit(change, now=now, durable=durable)
        self.changes.append(change)
        return moved


class Stage:
    """An admitted thread, and the backend of its step."""

    def __init__(self, folder: Path) -> None:
        self.backend = Noting(str(folder / "store.db"))
        self.backend.changes = []
        self.store = Store(self.backend, now=lambda: NOW)
        ref = lifecycle.start(
            self.store, book("do-steps", STEPS), "Do it", cwd=str(folder), mask=Mask([]), queue=0
        )
        self.name = ref.id
        (one,) = queue.read_state(self.store, ServicePolicy(), now=NOW).waiting
        queue.admit(self.store, one, now=NOW)
        self.slot = Slot("do-steps", self.name, NOW)
        self.told: list[str] = []
        self.step_backend = BookingBackend(self.backend, self.slot, host="here", note=self.hear)

    def hear(self, kind: str, value: Any) -> None:
        self.told += [value] if kind == "event" else []

    def commit(self, change: Change) -> Change:
        """Let the step commit; what was written in that one transaction."""
        self.backend.changes.clear()
        self.step_backend.commit(change, now=NOW, durable=True)
        (written,) = self.backend.changes
        return written

    @property
    def ref(self) -> Ref:
        return thread.find(self.store, self.name).ref

    def node(self, put: Callable[[Draft], str]) -> tuple[str, list[NodeRecord]]:
        """A node, with all that is put for it, as a step puts them; its id."""
        elsewhere = Store(
            SqliteBackend(str(Path(self.backend.path).parent / "elsewhere.db")), now=lambda: NOW
        )
        draft = elsewhere.draft()
        for record in self.backend.scan():
            assert isinstance(record, NodeRecord)
            draft.add(record)
        node = put(draft)
        draft.commit()
        found = [record for record in elsewhere.backend.scan() if isinstance(record, NodeRecord)]
        known = self.backend.find_stored([record.id for record in found])
        records = [record for record in found if record.id not in known or record.id == node]
        elsewhere.close()
        return node, records

    def step(self, agent: str = "a", **usage: Any) -> tuple[str, list[NodeRecord]]:
        output = self.store.put_text("done")
        fields: dict[str, Any] = {
            "start": self.ref.target,
            "prev": None,
            "number": 1,
            "role": "worker",
            "output": output,
        }
        fields |= {"agent": agent, "started_at": 1, "completed_at": 2, "cwd": "/", "totals": {}}
        fields |= {"usage": usage} if usage else {}
        return self.node(lambda draft: thread.put_step(draft, fields))

    def attempt(self, ending: str, **usage: Any) -> tuple[str, list[NodeRecord]]:
        head = self.ref.target
        fields: dict[str, Any] = {
            "start": head,
            "head": head,
            "role": "worker",
            "agent": "a",
            "started_at": 1,
            "cwd": "/",
        }
        fields |= {"ending": ending, "error": "'sh' was ended by SIGKILL", "usage": usage}
        return self.node(lambda draft: draft.put_as(ATTEMPT_SCHEMA, fields))

    def moved(self, status: str, target: str | None = None, **more: Any) -> Move:
        ref = self.ref
        state = {**ref.state, "status": status, **more}
        return Move(ref.name, ref.version, target or ref.target, state)

    def slots(self) -> list[str]:
        return self.store.backend.names("slot/")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.store.close()


def test_a_step_that_its_agent_has_stored_itself_is_counted_once(stage: Stage) -> None:
    node, records = stage.step(cost=0.25)
    stage.backend.commit(Change(records), now=NOW, durable=True)
    stage.commit(Change(moves=[stage.moved("idle", node)]))
    stage.commit(Change(moves=[stage.moved("running")]))
    (spent,) = stage.store.refs("spend/")
    assert spent.state == {"dollars": 0.25}


def test_what_a_group_has_cost_is_booked_by_its_members_alone(stage: Stage) -> None:
    node, records = stage.step(agent=GROUP, cost=0.25)
    stage.commit(Change(records, [stage.moved("idle", node)]))
    assert stage.store.refs("spend/") == []


def test_the_step_that_ends_a_thread_frees_its_slot_and_counts_its_cost_in_one_transaction(
    stage: Stage,
) -> None:
    node, records = stage.step(cost=0.25)
    event = NewEvent(stage.name, "step", {"step": node})
    written = stage.commit(Change(records, [stage.moved("completed", node)], [event]))
    assert [move.name for move in written.moves] == [
        f"thread/{stage.name}",
        f"slot/do-steps/{stage.name}",
        f"spend/{queue.day_of(NOW)}/here",
    ]
    assert written.moves[1].removes
    assert written.moves[2].state == {"dollars": 0.25}
    assert [event.kind for event in written.events] == ["step", "completed"]
    assert stage.told == [stage.name]
    assert stage.slots() == []


def test_what_others_spend_and_order_while_a_step_is_written_down_is_no_conflict_of_the_steps(
    stage: Stage,
) -> None:
    spend, slot = f"spend/{queue.day_of(NOW)}/here", thread.slot_name("do-steps", stage.name)

    def meanwhile() -> None:
        stage.store.move(spend, None, state={"dollars": 0.5})
        stage.store.move(slot, stage.store.ref(slot), state={"since": NOW, "order": "given"})

    node, records = stage.step(cost=0.25)
    stage.backend.first = meanwhile
    stage.commit(Change(records, [stage.moved("completed", node)]))
    assert stage.ref.state["status"] == "completed"
    assert stage.slots() == []
    assert queue.spent(stage.store, ServicePolicy(spend_per_day=1), NOW) == 0.75


def test_costs_of_attempts_and_steps_are_summed_and_those_of_other_threads_are_not(stage: Stage) -> None:
    attempt, records = stage.attempt("failed", cost=0.5)
    stage.commit(Change(records, [Move(thread.attempt_name(stage.name), 0, attempt, {})]))
    node, records = stage.step(cost=0.25)
    stage.commit(Change(records, [stage.moved("idle", node)]))
    child = thread.new_thread_id(NOW)
    inner = Move(thread.ref_name(child), 0, node, {"status": "idle", "parent": stage.name})
    stage.commit(Change(records, [inner]))
    assert queue.spent(stage.store, ServicePolicy(spend_per_day=1), NOW) == 0.75


def test_an_answer_to_the_step_has_only_the_refs_it_moved_itself(stage: Stage) -> None:
    node, records = stage.step(cost=1)
    change = Change(records, [stage.moved("completed", node)])
    moved = stage.step_backend.commit(change, now=NOW, durable=True)
    assert [ref.name for ref in moved] == [f"thread/{stage.name}"]


def kill_agent(stage: Stage) -> Change:
    """What a step writes when a signal has ended its agent: the failed attempt, then that its thread is suspended."""
    attempt, records = stage.attempt("killed")
    ref = stage.store.ref(thread.attempt_name(stage.name))
    version = ref.version if ref else 0
    stage.commit(Change(records, [Move(thread.attempt_name(stage.name), version, attempt, {})]))
    reason: dict[str, Any] = {"reason": "worker: it was ended", "onward": RESUME.dump()}
    event = NewEvent(stage.name, "suspended", {"reason": "worker: it was ended"})
    return stage.commit(Change(moves=[stage.moved("suspended", **reason)], events=[event]))


def test_an_agent_ended_by_a_signal_is_a_crash_in_the_very_transaction_that_would_suspend(
    stage: Stage,
) -> None:
    for number in (1, 2):
        written = kill_agent(stage)
        assert [event.kind for event in written.events] == ["crashed"]
        assert stage.ref.state["status"] == "idle"
        assert stage.ref.state["service"]["crashes"] == number
        assert not {"reason", "onward"} & set(stage.ref.state)
        assert len(stage.slots()) == 1
    written = kill_agent(stage)
    assert [event.kind for event in written.events] == ["crashed", "suspended"]
    assert stage.ref.state["reason"].startswith("its step crashed 3 times, last: 'sh' was ended by SIGKILL")
    assert stage.ref.state["onward"] == RESUME.dump()
    assert stage.slots() == []


@pytest.mark.parametrize("ending", ["failed", "timeout", "limit"])
def test_an_agent_that_ended_otherwise_is_no_crash(stage: Stage, ending: str) -> None:
    attempt, records = stage.attempt(ending)
    stage.commit(Change(records, [Move(thread.attempt_name(stage.name), 0, attempt, {})]))
    written = stage.commit(Change(moves=[stage.moved("suspended", reason="look")]))
    assert [event.kind for event in written.events] == ["suspended"]
    assert stage.ref.state["reason"] == "look"
    assert stage.slots() == []


def test_an_agent_that_was_killed_and_then_answered_is_no_crash(stage: Stage) -> None:
    attempt, records = stage.attempt("killed")
    note = thread.attempt_name(stage.name)
    stage.commit(Change(records, [Move(note, 0, attempt, {})]))
    stage.commit(Change(moves=[Move(note, 1, attempt, {"agent": "a", "run": "r"})]))
    written = stage.commit(Change(moves=[stage.moved("suspended", reason="a question")]))
    assert [event.kind for event in written.events] == ["suspended"]


def test_a_step_that_is_taken_takes_the_crashes_before_it_off_the_count(stage: Stage) -> None:
    queue.count_crash(stage.store, load(stage.ref), "gone")
    queue.count_crash(stage.store, load(stage.ref), "gone", is_loss=True)
    stage.commit(Change(moves=[stage.moved("running", lease={"token": "t"})]))
    assert {"crashes", "losses"} <= set(stage.ref.state["service"])
    node, records = stage.step()
    stage.commit(Change(records, [stage.moved("idle", node)]))
    assert not {"crashes", "losses"} & set(stage.ref.state["service"])


def test_a_thread_that_was_killed_meanwhile_is_told_to_the_step_as_a_conflict(stage: Stage) -> None:
    move = stage.moved("completed")
    lifecycle.kill(stage.store, load(stage.ref), mask=Mask([]))
    with pytest.raises(Conflict):
        stage.commit(Change(moves=[move]))
    assert stage.ref.state["status"] == "killed"
    assert stage.slots() == []


def with_usage(stage: Stage, usage: Any) -> Change:
    """A head that is no step, with something in place of what a step has used."""
    node, records = stage.node(lambda draft: draft.put_as({"type": "object"}, {"usage": usage}))
    return Change(records, [stage.moved("idle", node)])


@pytest.mark.parametrize("usage", [[1], "much", {"cost": {}}, {"cost": True}])
def test_what_a_step_has_used_in_a_wrong_form_costs_nothing(stage: Stage, usage: Any) -> None:
    written = stage.commit(with_usage(stage, usage))
    assert [move.name for move in written.moves] == [f"thread/{stage.name}"]
