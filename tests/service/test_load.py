"""Many threads at once, and a long queue: all complete, none twice, in order; what a look costs does not grow."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servicestage import PATIENCE, Service, done, served

from rolecall.service import control, queue
from rolecall.service.policy import ServicePolicy, WorkflowPolicy
from rolecall.store.backend import Backend, Ref
from rolecall.store.store import Store
from rolecall.threads import thread

THREADS, STEPS = (80, 5) if "SOAK" in os.environ else (40, 3)


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def test_many_threads_complete_each_once_in_the_order_they_came(asleep: Service) -> None:
    service = asleep
    flow, agent = service.workflow(), service.script(*[done()] * (STEPS - 1), done("end"))
    names = [service.enter(flow, agent) for _ in range(THREADS)]
    service.start("--concurrency", "20", "--at-once", "20")
    assert service.ended(*names) == ["completed"] * THREADS
    events = service.store.events()
    assert [event.stream for event in events if event.kind == "started"] == names
    assert Counter(event.stream for event in events if event.kind == "step") == Counter(
        dict.fromkeys(names, STEPS)
    )
    assert Counter(event.stream for event in events if event.kind == "completed") == Counter(names)
    running = most = 0
    for event in events:
        running += (event.kind == "started") - (event.kind == "completed")
        most = max(most, running)
    assert most == 20
    assert all([step.number for step in service.steps(name)] == [*range(1, STEPS + 1)] for name in names)
    service.stop()
    service.assert_clean()


class Counting:
    """A backend that counts what is read of refs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls = self.refs_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def refs(self, prefix: str = "", **options: Any) -> list[Ref]:
        found = self._backend.refs(prefix, **options)
        self._count(found)
        return found

    def names(self, prefix: str = "", **options: Any) -> list[str]:
        found = self._backend.names(prefix, **options)
        self._count(found)
        return found

    def _count(self, found: Sequence[Any]) -> None:
        self.calls += 1
        self.refs_read += len(found)


def looked_at(service: Service, policy: ServicePolicy) -> tuple[int, int]:
    counting = Counting(service.store.backend)
    queue.read_state(Store(counting), policy, now=service.store.now())
    return counting.calls, counting.refs_read


def test_what_a_look_reads_does_not_grow_with_the_queue(asleep: Service) -> None:
    policy = ServicePolicy(limit=50, default=WorkflowPolicy(concurrency=50))
    flow = asleep.workflow()
    first = asleep.enter(flow, None)
    for _ in range(199):
        asleep.enter(flow, None)
    small = looked_at(asleep, policy)
    model = thread.find(asleep.store, first)
    draft = asleep.store.draft()
    for number in range(5_000):
        name = thread.new_thread_id(asleep.store.now())
        at = model.ref.state["service"]["queued_at"] + 1_000 + number
        draft.move(thread.queue_name("do-steps", name, priority=0, at=at), None, state={})
    draft.commit()
    assert looked_at(asleep, policy) == small
    assert small[1] <= 50 + 51 + 1
    limited = replace(policy, default=WorkflowPolicy(concurrency=50, max_queue=6_000))
    state = queue.read_state(asleep.store, limited, now=asleep.store.now())
    assert len(state.waiting) <= 50 + 50  # a limit that is not reached is no reason to look at all of them


def test_a_service_that_cannot_write_takes_no_work_says_so_and_goes_on_when_it_can(tmp_path: Path) -> None:
    """As on a full disk: its files may not grow, until they may."""
    with served(tmp_path) as service:
        assert service.process is not None
        flow, agent = service.workflow(), service.script(done(), done("end"))
        first = service.enter(flow, agent)
        assert service.ended(first) == ["completed"]
        before = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        second = service.enter(flow, agent)
        problem = until_problem(service)
        assert problem.startswith("no work is taken: ")
        assert service.thread_status(second) == "queued"
        output = service.rolecall("serve", "status", "--format", "text").stdout
        assert problem in output
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, before)
        assert service.ended(second) == ["completed"]
        assert service.status()["problems"] == {}


def until_problem(service: Service) -> str:
    """Poke the service until it has met the trouble: there is no event to wait for when nothing can be written."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if problem := service.status()["problems"].get("store"):
            return str(problem)
        control.poke(str(service.home))
    raise AssertionError(service.log())
