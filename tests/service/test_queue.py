"""The queue in the store, on every backend: each verb is one transaction, and nothing is in two places or in none."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Conflict, StorageError
from rolecall.service import queue, recovery
from rolecall.service.admission import Due, Waiting, decide
from rolecall.service.policy import MeteredCall, ServicePolicy, StartRate, WorkflowPolicy
from rolecall.service.queue import Slot
from rolecall.service.workers import WorkerExit
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.backend import Backend, Change, Ref
from rolecall.store.store import Store
from rolecall.store.verify import verify
from rolecall.threads import commit, lifecycle, thread
from rolecall.threads.state import ThreadRef, load
from rolecall.workflow import yaml
from rolecall.workflow.playbook import Playbook

FLOW = """
name: {name}
description: One role does it
roles:
  worker:
    description: Works
    goal: Work.
    frontmatter: {{type: object, properties: {{$status: {{enum: [done]}}}}, required: [$status]}}
graph:
  $START: worker
  worker: {{done: $END}}
"""
NOW = 1_790_000_000_000

Open = Callable[[], Backend]


@pytest.fixture(params=["sqlite", "files", "postgres"])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "postgres":
        from rolecall.store.postgres import PostgresBackend

        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        return lambda: PostgresBackend(url, schema=schema)
    if request.param == "files":
        from rolecall.store.files import FilesBackend

        return lambda: FilesBackend(str(tmp_path / "store"))
    from rolecall.store.sqlite import SqliteBackend

    return lambda: SqliteBackend(str(tmp_path / "store.db"))


class Clock:
    """Each look at it is a millisecond later."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Hall:
    """A store with a queue, and the clock of its doors."""

    def __init__(self, open_backend: Open, folder: Path) -> None:
        self.clock = Clock()
        self.store = Store(open_backend(), now=self.clock)
        self.folder = folder

    def enter(self, workflow: str = "do-it", priority: int = 0, **more: Any) -> str:
        ref = lifecycle.start(
            self.store,
            book(workflow),
            more.pop("prompt", "Do it"),
            cwd=str(self.folder),
            mask=Mask([]),
            queue=priority,
            **more,
        )
        return ref.id

    def waiting(self, *names: str, policy: ServicePolicy | None = None) -> list[Waiting]:
        """Those that wait, in the order of their admission, as far as they are looked at."""
        found = queue.read_state(self.store, policy or roomy(), now=self.clock()).waiting
        order = sorted(found, key=lambda one: (-one.priority, one.since, one.thread))
        return [one for one in order if not names or one.thread in names]

    def one(self, name: str) -> Waiting:
        (found,) = self.waiting(name)
        return found

    def admit(self, name: str, call: MeteredCall | None = None) -> Slot:
        one = self.one(name)
        now = self.clock()
        assert queue.admit(self.store, one, now=now, call=call) is not None
        return Slot(one.workflow, name, now)

    def ref(self, name: str) -> Ref:
        return thread.find(self.store, name).ref

    def seen(self, name: str) -> ThreadRef:
        return load(self.ref(name))

    def status(self, name: str) -> str:
        return str(self.ref(name).state["status"])

    def events(self, name: str) -> list[str]:
        return [event.kind for event in self.store.events(name)]

    def places(self) -> list[str]:
        return sorted([*self.store.backend.names("queue/"), *self.store.backend.names("slot/")])


def book(name: str, text: str = FLOW) -> Playbook:
    read = yaml.parse(text.format(name=name), source="test.yaml")
    assert read.workflow is not None, read.problems
    return Playbook(read.workflow)


def roomy(**more: Any) -> ServicePolicy:
    return ServicePolicy(limit=1000, default=WorkflowPolicy(concurrency=1000), **more)


@pytest.fixture
def hall(open_backend: Open, tmp_path: Path) -> Iterator[Hall]:
    hall = Hall(open_backend, tmp_path)
    yield hall
    assert [problem for done in verify(hall.store) for problem in done.problems] == []
    hall.store.close()


# -- entering, and how things stand --


def test_a_queued_thread_says_so_in_its_status_its_event_and_one_ref(hall: Hall) -> None:
    name = hall.enter(priority=3)
    state = hall.ref(name).state
    assert state["status"] == "queued"
    assert state["role"] == "worker"
    assert hall.events(name) == ["queued"]
    assert hall.places() == [f"queue/do-it/6{state['service']['queued_at']}{name}"]
    (entry,) = hall.store.refs("queue/")
    assert entry.target is None
    assert hall.waiting() == [Waiting(name, "do-it", 3, state["service"]["queued_at"])]


def test_names_sort_by_priority_then_by_time_in_every_workflow_by_itself(hall: Hall) -> None:
    low, high = hall.enter(), hall.enter(priority=9)
    later, other = hall.enter(), hall.enter("write-it", priority=5)
    assert [one.thread for one in hall.waiting()] == [high, other, low, later]
    assert list(queue.waiting_workflows(hall.store)) == ["do-it", "write-it"]
    assert queue.lengths(hall.store) == {"do-it": 3, "write-it": 1}


def test_workflows_whose_names_begin_alike_are_told_apart(hall: Hall) -> None:
    names = ["do", "do-it", "do-it-2", "do0"]
    for name in names:
        hall.enter(name)
    assert sorted(queue.waiting_workflows(hall.store)) == sorted(names)
    assert {one.workflow for one in hall.waiting()} == set(names)


def test_only_as_many_are_looked_at_as_there_is_room_for_and_some(hall: Hall) -> None:
    for _ in range(60):
        hall.enter()
    assert len(hall.waiting(policy=ServicePolicy(limit=4))) == 51
    assert len(hall.waiting(policy=ServicePolicy(limit=0))) == 0
    limited = ServicePolicy(limit=4, default=WorkflowPolicy(max_queue=5))
    assert len(hall.waiting(policy=limited)) == 60


# -- leaving --


def test_admission_gives_a_slot_for_the_place_in_the_queue_and_tells_how_long_it_took(hall: Hall) -> None:
    name = hall.enter()
    slot = hall.admit(name)
    assert hall.places() == [f"slot/do-it/{name}"]
    assert hall.status(name) == "idle"
    assert queue.slots(hall.store) == [slot]
    event = hall.store.events(name)[-1]
    assert event.kind == "started"
    assert event.body["waited_ms"] == slot.since - hall.ref(name).state["service"]["queued_at"] > 0
    assert queue.read_state(hall.store, roomy(), now=hall.clock()).admitted == {"do-it": 1}


def test_slots_are_told_in_the_order_of_admission(hall: Hall) -> None:
    names = [hall.enter() for _ in range(3)]
    for name in reversed(names):
        hall.admit(name)
    assert [slot.thread for slot in queue.slots(hall.store)] == names[::-1]


def test_a_discarded_thread_has_ended_and_says_why(hall: Hall) -> None:
    name = hall.enter()
    moved = queue.discard(hall.store, hall.one(name), "too many")
    assert moved is not None and moved.state.status == "discarded"
    assert hall.ref(name).state["reason"] == "too many"
    assert hall.status(name) in thread.ENDED
    assert thread.continuation(load(hall.ref(name))) is None
    assert hall.events(name) == ["queued", "discarded"]
    assert hall.places() == []


def test_a_thread_is_admitted_once_however_often_it_is_tried(hall: Hall) -> None:
    name = hall.enter()
    one = hall.one(name)
    assert queue.admit(hall.store, one, now=hall.clock()) is not None
    assert queue.admit(hall.store, one, now=hall.clock()) is None
    assert queue.discard(hall.store, one, "late") is None
    assert hall.events(name) == ["queued", "started"]
    assert len(hall.places()) == 1


def test_of_two_services_that_admit_one_thread_at_once_only_one_does(hall: Hall, open_backend: Open) -> None:
    ones = [hall.one(hall.enter()) for _ in range(8)]

    def admit_all(_: int) -> list[str]:
        with Store(open_backend()) as store:
            return [one.thread for one in ones if queue.admit(store, one, now=NOW) is not None]

    with ThreadPoolExecutor(3) as pool:
        won = [name for names in pool.map(admit_all, range(3)) for name in names]
    # One that lost a race leaves the thread to be looked at again.
    won += [one.thread for one in hall.waiting() if queue.admit(hall.store, one, now=NOW) is not None]
    assert sorted(won) == sorted(one.thread for one in ones)
    assert all(hall.events(name) == ["queued", "started"] for name in won)


def test_a_killed_thread_leaves_queue_and_slot_in_the_same_moment(hall: Hall) -> None:
    waits, runs = hall.enter(), hall.enter()
    hall.admit(runs)
    for name in (waits, runs):
        lifecycle.kill(hall.store, load(hall.ref(name)), mask=Mask([]))
        event = hall.store.events(name)[-1]
        assert (event.kind, event.body["exit_code"]) == ("killed", 137)
    assert hall.places() == []


def test_a_thread_that_is_run_by_hand_is_not_admitted_and_its_place_goes(hall: Hall) -> None:
    name = hall.enter()
    one, ref = hall.one(name), hall.ref(name)
    hall.store.move(ref.name, ref, ref.target, {**ref.state, "status": "running"})
    assert queue.admit(hall.store, one, now=hall.clock()) is None
    assert hall.places() == []
    assert hall.status(name) == "running"


def test_a_place_under_an_older_name_is_not_that_of_a_thread_that_was_queued_anew(hall: Hall) -> None:
    name = hall.enter()
    old, ref = hall.one(name), hall.ref(name)
    hall.store.move(
        ref.name, ref, ref.target, {**ref.state, "service": {"priority": 0, "queued_at": NOW + 99}}
    )
    assert queue.admit(hall.store, old, now=hall.clock()) is None
    assert hall.status(name) == "queued"


class Overtaken:
    """A backend on which another process acts just before the first commit."""

    def __init__(self, backend: Backend, other: Callable[[], object]) -> None:
        self.backend = backend
        self.other: Callable[[], object] | None = other

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.backend, verb)

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        other, self.other = self.other, None
        if other is not None:
            other()
        return self.backend.commit(change, now=now, durable=durable)


def test_a_slot_that_was_given_again_is_not_freed_with_the_earlier_one(hall: Hall) -> None:
    name = hall.enter()
    slot, ref = hall.admit(name), load(hall.ref(name))
    left = {**ref.ref.state, "status": "suspended"}
    hall.store.move(ref.ref.name, ref.ref, ref.head, left)  # and its slot is still there

    def go_on() -> None:
        queue.release(hall.store, slot)
        lifecycle.resume(hall.store, load(hall.ref(name)), mask=Mask([]))
        hall.admit(name)

    backend: Any = Overtaken(hall.store.backend, go_on)
    queue.release(Store(backend, now=hall.clock), slot)
    assert (hall.status(name), hall.places()) == ("idle", [f"slot/do-it/{name}"])


# -- people --


def test_a_suspended_thread_that_is_resumed_waits_for_the_service_again(hall: Hall) -> None:
    name = hall.enter(priority=4)
    hall.admit(name)
    queue.suspend(hall.store, hall.seen(name), "a person must see this")
    assert hall.places() == []
    assert hall.ref(name).state["reason"] == "a person must see this"
    ref = lifecycle.resume(hall.store, load(hall.ref(name)), mask=Mask([]))
    assert ref.id == name
    assert ref.state.status == "queued"
    assert [(one.thread, one.priority) for one in hall.waiting()] == [(name, 4)]
    assert hall.events(name) == ["queued", "started", "suspended", "resumed"]


def test_a_thread_that_is_resumed_to_be_run_here_does_not_wait(hall: Hall) -> None:
    name = hall.enter()
    hall.admit(name)
    queue.suspend(hall.store, hall.seen(name), "look")
    ref = lifecycle.resume(hall.store, load(hall.ref(name)), mask=Mask([]), is_run_here=True)
    assert ref.state.status == "idle"
    assert hall.places() == []


def test_resuming_a_thread_that_waits_or_runs_leaves_it_where_it_is(hall: Hall) -> None:
    waits, runs = hall.enter(), hall.enter()
    hall.admit(runs)
    before = hall.places()
    assert lifecycle.resume(hall.store, load(hall.ref(waits)), mask=Mask([])).state.status == "queued"
    assert lifecycle.resume(hall.store, load(hall.ref(runs)), mask=Mask([])).state.status == "idle"
    assert hall.places() == before
    assert queue.admit(hall.store, hall.one(waits), now=hall.clock()) is not None


def test_a_person_who_plays_a_role_lets_the_thread_wait_for_the_service_again(hall: Hall) -> None:
    text = FLOW.replace("worker: {{done: $END}}", "worker: {{done: worker}}\nlimits: {{steps: 5}}")
    again = book("do-it", text)
    ref = lifecycle.start(hall.store, again, "Do it", cwd=str(hall.folder), mask=Mask([]), queue=0)
    name = ref.id
    hall.admit(name)
    queue.suspend(hall.store, hall.seen(name), "a person's turn")
    commit.answer(hall.store, load(hall.ref(name)), again, {"$status": "done"}, body="", mask=Mask([]))
    assert hall.status(name) == "queued"
    assert [one.thread for one in hall.waiting()] == [name]


def test_a_thread_that_never_was_in_the_service_is_resumed_as_ever(hall: Hall) -> None:
    ref = lifecycle.start(hall.store, book("do-it"), "Do it", cwd=str(hall.folder), mask=Mask([]))
    moved = lifecycle.resume(hall.store, ref, mask=Mask([]))
    assert moved.state.status == "idle"
    assert hall.places() == []


def test_threads_that_are_queued_within_one_millisecond_wait_in_their_order(hall: Hall) -> None:
    store = Store(hall.store.backend, now=lambda: NOW)
    made = [
        lifecycle.start(store, book("do-it"), "Do it", cwd=str(hall.folder), mask=Mask([]), queue=0)
        for _ in range(50)
    ]
    assert [one.thread for one in hall.waiting()] == [ref.id for ref in made]


def test_a_thread_is_queued_when_it_is_made_and_admitted_once_its_folder_is_there(hall: Hall) -> None:
    repository = hall.folder / "repository"
    repository.mkdir()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "begin"]):
        author = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *author, *words], cwd=repository, check=True)
    flow = book("do-it", FLOW + "workdir: worktree\n")
    refused: list[bool] = []
    limited = ServicePolicy(default=WorkflowPolicy(overflow="drop"))

    class Watched:
        """Tries to admit the thread as soon as it is queued."""

        def __getattr__(self, name: str) -> Any:
            return getattr(hall.store.backend, name)

        def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
            moved = hall.store.backend.commit(change, now=now, durable=durable)
            names = hall.store.backend.names("queue/")
            if names and not any((hall.folder / "work").rglob(".git")):
                assert hall.waiting() == []  # nobody else waits for it
                one = queue.read_state(hall.store, limited, now=NOW).waiting[0]
                refused.append(queue.admit(hall.store, one, now=NOW) is None)
            return moved

    store = Store(Watched(), now=hall.clock)
    ref = lifecycle.start(
        store, flow, "Do it", cwd=str(repository), mask=Mask([]), queue=0, work=str(hall.folder / "work")
    )
    assert refused == [True]
    (one,) = hall.waiting()
    assert queue.admit(hall.store, one, now=NOW) is not None
    assert hall.places() == [f"slot/do-it/{ref.id}"]


def test_a_thread_that_cannot_have_its_folder_leaves_nothing_in_the_queue(hall: Hall) -> None:
    source = hall.folder / "source"
    source.mkdir()
    flow = book("do-it", FLOW + "workdir: copy\n")
    (hall.folder / "work").write_text("this is no folder")
    with pytest.raises(StorageError):
        lifecycle.start(
            hall.store, flow, "Do it", cwd=str(source), mask=Mask([]), queue=0, work=str(hall.folder / "work")
        )
    assert hall.places() == []
    assert hall.store.backend.names("thread/") == []


# -- crashes and ends --


def test_a_step_that_crashes_is_taken_up_again_and_the_third_time_left_to_a_person(hall: Hall) -> None:
    name = hall.enter()
    slot = hall.admit(name)
    for number in (1, 2):
        moved = queue.count_crash(hall.store, hall.seen(name), "it was ended by SIGSEGV")
        assert moved is not None
        assert (moved.state.status, moved.ref.state["service"]["crashes"]) == ("idle", number)
        assert queue.slots(hall.store) == [slot]
    moved = queue.count_crash(hall.store, hall.seen(name), "it was ended by SIGSEGV")
    assert moved is not None and moved.state.status == "suspended"
    assert moved.state.reason == "its step crashed 3 times, last: it was ended by SIGSEGV"
    assert hall.places() == []
    assert hall.events(name) == ["queued", "started", "crashed", "crashed", "crashed", "suspended"]
    resumed = lifecycle.resume(hall.store, load(hall.ref(name)), mask=Mask([]))
    assert "crashes" not in resumed.ref.state["service"]


def test_a_step_that_is_lost_with_the_service_is_not_the_threads_fault_unless_it_happens_every_time(
    hall: Hall,
) -> None:
    name = hall.enter()
    hall.admit(name)
    for number in range(1, 10):
        moved = queue.count_crash(hall.store, hall.seen(name), "gone", is_loss=True)
        assert moved is not None and moved.ref.state["service"] == {
            **hall.ref(name).state["service"],
            "losses": number,
        }
    assert hall.status(name) == "idle"
    moved = queue.count_crash(hall.store, hall.seen(name), "gone", is_loss=True)
    assert moved is not None and moved.state.reason == "its step was lost 10 times, last: gone"
    assert hall.places() == []


def test_a_crash_takes_the_lease_of_the_dead_process_away(hall: Hall) -> None:
    name = hall.enter()
    hall.admit(name)
    ref = hall.ref(name)
    hall.store.move(ref.name, ref, ref.target, {**ref.state, "status": "running", "lease": {"token": "x"}})
    queue.count_crash(hall.store, hall.seen(name), "gone")
    assert "lease" not in hall.ref(name).state
    assert hall.status(name) == "idle"


def test_what_has_moved_since_it_was_read_stays_as_it_is(hall: Hall) -> None:
    for verb in (queue.count_crash, queue.suspend):
        name = hall.enter()
        hall.admit(name)
        seen = hall.seen(name)
        hall.store.move(seen.ref.name, seen.ref, seen.head, {**seen.ref.state, "status": "completed"})
        assert verb(hall.store, seen, "too late") is None
        assert hall.status(name) == "completed"


# -- the end of a step's process --


REFUSED = {"error": "UsageError", "message": "no agent x", "hint": "Install it"}
FULL = {"error": "StorageError", "message": "the disk is full", "hint": ""}


def killed(token: str = "", *, is_stopped: bool = False) -> WorkerExit:
    return WorkerExit(None, -9, token=token, is_stopped=is_stopped)


def run_by(hall: Hall, name: str, token: str, *, pid: int) -> None:
    """Record that a process runs the thread."""
    seen = hall.seen(name)
    lease = {**holder.process(pid), "token": token, "deadline": NOW * 2}
    hall.store.move(
        seen.ref.name, seen.ref, seen.head, {**seen.ref.state, "status": "running", "lease": lease}
    )


@pytest.mark.parametrize("ended", [killed("t"), WorkerExit({}), WorkerExit(REFUSED)])
def test_what_has_ended_stays_ended_and_only_its_slot_goes(hall: Hall, ended: WorkerExit) -> None:
    name = hall.enter()
    slot, seen = hall.admit(name), hall.seen(name)
    hall.store.move(seen.ref.name, seen.ref, seen.head, {**seen.ref.state, "status": "completed"})
    settled = recovery.settle(hall.store, slot, ended, head=seen.head)
    assert settled.is_over and settled.line == "is completed"
    assert (hall.status(name), hall.places()) == ("completed", [])
    assert hall.events(name) == ["queued", "started"]


@pytest.mark.parametrize(
    ("ended", "status", "line", "event"),
    [
        (killed("t"), "idle", "crashed: its worker was ended by SIGKILL", "crashed"),
        (killed("t", is_stopped=True), "idle", "was interrupted", ""),
        (WorkerExit({}, token="t"), "idle", "was interrupted", ""),
        (WorkerExit(FULL, token="t"), "idle", "had trouble: the disk is full", ""),
        (WorkerExit(REFUSED, token="t"), "suspended", "is suspended: no agent x. Install it", "suspended"),
    ],
)
def test_the_end_of_the_process_that_had_a_thread_decides_how_the_thread_goes_on(
    hall: Hall, ended: WorkerExit, status: str, line: str, event: str
) -> None:
    name = hall.enter()
    slot, head = hall.admit(name), hall.seen(name).head
    run_by(hall, name, "t", pid=os.getpid())
    settled = recovery.settle(hall.store, slot, ended, head=head)
    assert (hall.status(name), settled.line) == (status, line)
    assert "lease" not in hall.ref(name).state
    assert hall.events(name) == ["queued", "started", *filter(None, [event])]
    assert settled.is_over == (status == "suspended") == (hall.places() == [])
    assert settled.is_trouble == (ended.report == FULL)
    assert settled.head == ("" if settled.is_over or settled.is_trouble else head)
    service = hall.ref(name).state["service"]
    assert ("crashes" in service) == (event == "crashed") and "losses" not in service


def test_a_worker_that_was_lost_is_counted_once_it_is_gone(hall: Hall) -> None:
    name = hall.enter()
    slot, head = hall.admit(name), hall.seen(name).head
    lost = WorkerExit(None, None, token="t")
    run_by(hall, name, "t", pid=os.getpid())
    before = hall.ref(name)
    settled = recovery.settle(hall.store, slot, lost, head=head)
    assert settled.is_trouble and settled.reason.startswith(f"process {os.getpid()} on ")
    assert hall.ref(name) == before
    run_by(hall, name, "t", pid=2**22 + 1)
    assert recovery.settle(hall.store, slot, lost, head=head).line == "crashed: its worker was lost"
    assert hall.ref(name).state["service"]["losses"] == 1


def test_a_death_that_another_machine_has_counted_is_not_counted_again(hall: Hall) -> None:
    name = hall.enter()
    slot, head = hall.admit(name), hall.seen(name).head
    run_by(hall, name, "t", pid=2**22 + 1)
    asyncio.run(recovery.count_loss(hall.store, hall.seen(name)))
    before = hall.ref(name)
    settled = recovery.settle(hall.store, slot, killed("t"), head=head)
    assert (settled.line, settled.head) == ("went on", head)
    assert hall.ref(name) == before and hall.events(name) == ["queued", "started", "crashed"]


@pytest.mark.parametrize("ended", [killed("t"), killed(), WorkerExit({}), WorkerExit(REFUSED)])
def test_a_thread_that_another_process_has_taken_is_left_to_that_process(
    hall: Hall, ended: WorkerExit
) -> None:
    name = hall.enter()
    slot = hall.admit(name)
    run_by(hall, name, "another", pid=os.getpid())
    before = hall.ref(name)
    settled = recovery.settle(hall.store, slot, ended, head=str(before.target))
    assert (settled.line, settled.head, settled.is_taken) == ("went on", "", False)
    assert hall.ref(name) == before
    found = asyncio.run(recovery.take_up(hall.store, slot))
    assert found.is_trouble and found.reason.startswith(f"process {os.getpid()} on ")
    assert hall.ref(name) == before


@pytest.mark.parametrize(
    ("ended", "line"),
    [(killed("t"), "went on: its worker was ended by SIGKILL"), (WorkerExit({}, token="t"), "went on")],
)
def test_the_death_of_a_process_that_has_stored_its_step_is_not_a_crash(
    hall: Hall, ended: WorkerExit, line: str
) -> None:
    name = hall.enter()
    slot, seen = hall.admit(name), hall.seen(name)
    step = hall.store.put_text("a step")
    hall.store.move(seen.ref.name, seen.ref, step, seen.ref.state)
    settled = recovery.settle(hall.store, slot, ended, head=seen.head)
    assert (settled.line, settled.head, settled.is_taken) == (line, step, True)
    assert hall.events(name) == ["queued", "started"]


def test_a_thread_that_is_taken_while_its_loss_is_counted_is_left_to_the_new_process(hall: Hall) -> None:
    name = hall.enter()
    hall.admit(name)
    run_by(hall, name, "dead", pid=2**22 + 1)
    seen = hall.seen(name)
    run_by(hall, name, "another", pid=os.getpid())
    before = hall.ref(name)
    assert asyncio.run(recovery.count_loss(hall.store, seen)).line == "went on"
    assert hall.ref(name) == before


# -- rates and spending --


def test_calls_are_counted_with_the_admission_and_no_more_are_kept_than_matter(hall: Hall) -> None:
    rate = StartRate(3, 60)
    policy = roomy(rates={"claude": rate})
    for _ in range(5):
        hall.admit(hall.enter(), MeteredCall("claude", rate))
    queue.count(hall.store, MeteredCall("claude", rate), now=hall.clock())
    kept = queue.calls(hall.store, policy, hall.clock())["claude"]
    assert kept == sorted(kept) and len(kept) == 3
    assert queue.calls(hall.store, policy, hall.clock.now + 60_000)["claude"] == []


def test_the_agent_of_a_waiting_thread_is_asked_for_only_where_calls_are_counted(hall: Hall) -> None:
    name = hall.enter()
    asked: list[str] = []

    def agent_of(state: Any) -> str:
        asked.append(state.role)
        return "claude"

    (one,) = queue.read_state(hall.store, roomy(), now=NOW, agent_of=agent_of).waiting
    assert (one.agent, asked) == ("", [])
    policy = roomy(rates={"claude": StartRate(1, 60)})
    (one,) = queue.read_state(hall.store, policy, now=NOW, agent_of=agent_of).waiting
    assert (one.thread, one.agent, asked) == (name, "claude", ["worker"])


def test_what_a_day_has_cost_is_summed_over_machines_and_a_new_day_begins_at_nothing(hall: Hall) -> None:
    policy = roomy(spend_per_day=5.0)
    day = queue.day_of(NOW)
    hall.store.move(f"spend/{day}/one", None, state={"dollars": 1.5})
    hall.store.move(f"spend/{day}/two", None, state={"dollars": 2})
    hall.store.move("spend/2001-01-01/one", None, state={"dollars": 99})
    assert queue.spent(hall.store, policy, NOW) == 3.5
    assert queue.spent(hall.store, policy, NOW + 86_400_000) == 0
    assert queue.spent(hall.store, roomy(), NOW) == 0
    queue.forget_old_days(hall.store, now=NOW)
    assert [ref.name for ref in hall.store.refs("spend/")] == [f"spend/{day}/one", f"spend/{day}/two"]


# -- all of it together --


def test_a_service_that_decides_and_acts_over_and_over_runs_everything_once_and_in_order(hall: Hall) -> None:
    policy = ServicePolicy(
        limit=4,
        workflows={
            "do-it": WorkflowPolicy(concurrency=2),
            "write-it": WorkflowPolicy(concurrency=3, max_queue=2),
            "sweep-it": WorkflowPolicy(concurrency=1, overflow="drop"),
        },
    )
    names = {flow: [hall.enter(flow) for _ in range(7)] for flow in policy.workflows}
    admitted: list[str] = []
    while True:
        running = queue.slots(hall.store)
        state = queue.read_state(
            hall.store, policy, now=hall.clock(), due=[Due(s.thread, s.since) for s in running]
        )
        verdict = decide(policy, state, hall.clock())
        by_name = {one.thread: one for one in state.waiting}
        for name, reason in verdict.discard.items():
            assert queue.discard(hall.store, by_name[name], reason) is not None
        for name in verdict.admit:
            assert queue.admit(hall.store, by_name[name], now=hall.clock()) is not None
        admitted += verdict.admit
        assert len(queue.slots(hall.store)) <= 4
        if not running and not verdict.admit:
            break
        for slot in running:  # what was running before this look has come to its end
            queue.suspend(hall.store, hall.seen(slot.thread), "over")
    assert hall.places() == []
    assert [name for name in admitted if name in names["do-it"]] == names["do-it"]
    assert len(admitted) == len(set(admitted))
    statuses = {flow: [hall.status(name) for name in names[flow]] for flow in names}
    assert statuses["do-it"] == ["suspended"] * 7
    assert statuses["sweep-it"] == ["suspended"] + ["discarded"] * 6
    assert statuses["write-it"].count("discarded") >= 2
    assert [name for name in admitted if name in names["write-it"]] == [
        name for name in names["write-it"] if hall.status(name) == "suspended"
    ]


def test_a_conflict_is_no_error_of_a_verb(hall: Hall) -> None:
    """Somebody moves the thread between the look and the move: the look is taken again, or left to the next."""
    name = hall.enter()
    hall.admit(name)
    commit, rivals = hall.store.backend.commit, iter([True])

    class Rival:
        def __getattr__(self, wanted: str) -> Any:
            return getattr(hall.store.backend, wanted)

        def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
            if next(rivals, False):
                raise Conflict("somebody was faster")
            return commit(change, now=now, durable=durable)

    moved = queue.count_crash(Store(Rival(), now=hall.clock), hall.seen(name), "gone")
    assert moved is not None and moved.ref.state["service"]["crashes"] == 1


def test_the_queue_is_not_on_the_read_path(tmp_path: Path) -> None:
    probe = "import sys; import rolecall.threads.listing, rolecall.cli.thread_read; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("rolecall.service")]
