"""A group on a fleet: its members run on every machine, also when one of them is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleetstage import LEASE, Fleet, fleet_in
from servicestage import done

from rolecall.threads import thread
from rolecall.threads.state import read_members

SIZE = 30
FLOW = f"""
name: {{name}}
description: Members on many machines
roles:
  member:
    times: {SIZE}
    at_once: 6
    workdir: shared
    goal: Work.
    schema: {{{{type: object, properties: {{{{$status: {{{{enum: [done]}}}}}}}}, required: [$status]}}}}
graph: {{{{$START: member, member: {{{{done: $END, partly: $FAIL, failed: $FAIL}}}}}}}}
"""


@pytest.fixture
def fleet(tmp_path: Path, postgres_server: Any) -> Iterator[Fleet]:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.options = ("--concurrency", "6")
        yield fleet


def enter(fleet: Fleet, command: str) -> str:
    return fleet.enter(fleet.agent(member=done(run=[["sh", "-c", command]])), "grouped", text=FLOW)


def test_members_spread_over_machines(fleet: Fleet) -> None:
    fleet.started("alpha", "beta", slots=3)
    name = enter(fleet, "basename $(dirname $MACHINE_HOME) >> homes")
    assert fleet.ended(name) == ["completed"]
    [step] = thread.Chain(fleet.store, thread.find(fleet.store, name).head)
    assert (step.output["status"], step.output["done"]) == ("done", SIZE)
    homes = Counter((fleet.work / "homes").read_text().split())
    assert homes.keys() == {"alpha", "beta"} and homes.total() == SIZE


def test_members_of_a_lost_machine_are_taken_over_and_no_finished_one_is_asked_again(fleet: Fleet) -> None:
    fleet.lease = LEASE
    alpha, _ = fleet.started("alpha", "beta", slots=3)
    name = enter(fleet, "echo $ROLECALL_RUN | cut -d/ -f2 >> log; sleep 0.2")
    log = fleet.work / "log"
    fleet.until(lambda: log.exists() and len(log.read_text().split()) > SIZE / 3)
    alpha.end_all()
    finished = {ref.id for ref in read_members(fleet.store, name) if ref.state.has_ended}
    assert fleet.ended(name) == ["completed"]
    [step] = thread.Chain(fleet.store, thread.find(fleet.store, name).head)
    assert step.output["done"] == SIZE
    assert finished
    asked = Counter(log.read_text().split())
    assert asked.keys() == {one["id"] for one in step.output["members"]}
    assert all(count == 1 for one, count in asked.items() if one in finished)
