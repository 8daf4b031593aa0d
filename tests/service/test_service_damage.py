"""What stands in the store and should not: it is told, and in nobody's way."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import stop_between_writes
from servicestage import STEPS, Service, done

from rolecall.service import control

RATES = "service: {rates: {scripted: 100/s}, spend_per_day: 5}\n"


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[Service]:
    """A home whose service is not started yet, with a project that counts calls and dollars."""
    (tmp_path / "rolecall.yaml").write_text(RATES)
    service = Service(tmp_path)
    yield service
    service.close()


def spoil(service: Service, name: str) -> None:
    """Make the state of a ref unreadable, as a bad disk does."""
    with sqlite3.connect(service.home / "store.db") as database:
        changed = database.execute("UPDATE refs SET state = '{\"half' WHERE name = ?", (name,))
        assert changed.rowcount == 1
    database.close()


def test_a_damaged_place_in_the_queue_and_a_damaged_thread_are_told_and_stand_in_nobodys_way(
    asleep: Service,
) -> None:
    flow, agent = asleep.workflow(), asleep.script(done("end"))
    first, second, third = (asleep.enter(flow, agent) for _ in range(3))
    (entry,) = [name for name in asleep.store.backend.names("queue/") if name.endswith(first)]
    spoil(asleep, entry)
    spoil(asleep, f"thread/{second}")
    asleep.start()
    assert asleep.ended(third) == ["completed"]
    assert {first, second} <= set(asleep.status()["problems"])
    later = asleep.enter(flow, agent)
    assert asleep.ended(later) == ["completed"]


def test_a_thread_that_is_damaged_while_its_step_runs_stands_in_nobodys_way(asleep: Service) -> None:
    asleep.start("--concurrency", "2")
    flow = asleep.workflow()
    name = asleep.enter(flow, asleep.script(done("end", run=[["sleep", "600"]]), name="sleeps"))
    asleep.event(name, "process")
    spoil(asleep, f"thread/{name}")
    assert asleep.process is not None
    stop_between_writes(asleep.process.pid, asleep.home / "store.db")  # it hears both at once
    control.poke(str(asleep.home))  # every thread that runs is looked at, as it is now and then
    other = asleep.enter(flow, asleep.script(done("end")))
    asleep.process.send_signal(signal.SIGCONT)
    assert asleep.ended(other) == ["completed"]
    assert list(asleep.status()["problems"]) == [name]


def test_a_damaged_slot_does_not_keep_the_service_from_starting(asleep: Service) -> None:
    flow, agent = asleep.workflow(), asleep.script(done("end"))
    asleep.store.move("slot/do-steps/0123456789ABCDEFGHJKMNPQRS", None, state={"since": 7})
    spoil(asleep, "slot/do-steps/0123456789ABCDEFGHJKMNPQRS")
    asleep.start("--concurrency", "2")
    name = asleep.enter(flow, agent)
    assert asleep.ended(name) == ["completed"]


def test_a_damaged_memory_of_a_trigger_is_told_and_the_other_triggers_go_on(asleep: Service) -> None:
    asleep.workflow("hello")
    (asleep.folder / "workflows").mkdir()
    (asleep.folder / "workflows" / "hello.yaml").write_text(STEPS.format(name="hello"))
    triggers = "bad: {every: 1s, prompt: x}, good: {every: 1s, cooldown: 1h, prompt: x}"
    (asleep.folder / "rolecall.yaml").write_text(
        f"name: shop\nworkflows: {{hello: {{triggers: {{{triggers}}}}}}}\n"
    )
    asleep.store.move("trigger/shop/hello/bad", None, state={})
    spoil(asleep, "trigger/shop/hello/bad")
    asleep.start()
    asleep.until(lambda: asleep.store.refs("thread/"))
    assert "trigger/shop/hello/bad" in asleep.status()["problems"]["trigger hello/bad"]
    assert asleep.log().count("trigger/shop/hello/bad") == 1
