"""`rolecall cost`: what real threads have used, with what is reported, estimated and unknown apart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_thread_run import APPROVED, DONE, Flow, role

from rolecall.api import reader

if TYPE_CHECKING:
    from conftest import Rolecall


def used(entry: dict[str, Any], **usage: float) -> dict[str, Any]:
    return entry | {"usage": {"turns": 1, **usage}}


@pytest.fixture
def flow(rolecall: Rolecall, tmp_path: Path) -> Flow:
    """Three threads: one whose agent reports all its costs, one whose agent forgets one, one whose agent knows none."""
    flow = Flow(rolecall, tmp_path)
    priced = used(DONE, input_tokens=900, output_tokens=100, cost=0.5)
    unpriced = used(APPROVED, input_tokens=100, output_tokens=100)
    for developer, reviewer in (([priced], [used(APPROVED, cost=0.25)]), ([priced], [unpriced])):
        flow.thread("run", flow.start(flow.script(developer, reviewer)))
    other = flow.folder / "other.json"
    script = {"roles": {"developer": [used(DONE, input_tokens=7, output_tokens=3)], "reviewer": [APPROVED]}}
    other.write_text(json.dumps(script))
    flow.thread("run", flow.start(f"scripted:{other}"))
    return flow


def test_costs_are_added_up_and_what_is_not_known_stays_unknown(flow: Flow) -> None:
    by_agent = flow.rolecall.json("cost", "--by", "agent")
    known, unknown = by_agent["rows"]
    assert (known["reported"], known["tokens"], known["unknown"]) == (1.25, 2200, 0)
    assert known["estimated"] == pytest.approx(200 * 1.25 / 2000)  # at what its other tokens cost
    assert (unknown["reported"], unknown["estimated"], unknown["unknown"]) == (0, 0, 1)
    assert {key: by_agent["total"][key] for key in ("threads", "completed", "steps", "perCompleted")} == {
        "threads": 3,
        "completed": 3,
        "steps": 6,
        "perCompleted": None,  # one step of them is unknown
    }
    assert {row["name"]: row["reported"] for row in flow.rolecall.json("cost", "--by", "role")["rows"]} == {
        "developer": 1.0,
        "reviewer": 0.25,
    }
    narrow = flow.rolecall("cost", "--by", "thread", env={"COLUMNS": "64"}, check=0).stdout.splitlines()
    assert narrow[0].split()[:3] == ["thread", "title", "steps"] and max(map(len, narrow[:5])) <= 64
    per_thread = flow.rolecall.json("cost", "--by", "thread")["rows"]
    assert [row.get("perCompleted") for row in per_thread] == [0.75, 0.625, None]
    [day] = flow.rolecall.json("cost", "--by", "day", "--since", "all")["rows"]
    assert day["steps"] == 6

    text = flow.rolecall("cost", check=0).stdout
    assert "change-code" in text and "$1.25" in text and "no amount includes them" in text
    assert flow.rolecall.json("cost", "--since", "2999-01-01")["rows"] == []
    assert "is not a time" in flow.rolecall("cost", "--since", "monday", check=2).stderr


def test_what_plays_a_role_counts_for_the_thread_that_somebody_started(flow: Flow) -> None:
    flow.rolecall("workflow", "put", str(flow.file), check=0)
    outer = flow.folder / "outer.yaml"
    worker = role(["approved"], agent="workflow:change-code")
    graph = {"$START": {"_": {"role": "worker", "prompt": "Go."}}, "worker": {"approved": "$END"}}
    outer.write_text(
        json.dumps({"name": "outer", "description": "d", "roles": {"worker": worker}, "graph": graph})
    )
    flow.rolecall("config", "set", "defaultAgent", flow.script([used(DONE, cost=0.5)]), check=0)
    since = int(time.time() * 1000)
    words = ["thread", "start", str(outer), "-p", "Fix it", "--cwd", str(flow.work)]
    ident = flow.rolecall.json(*words)["thread"]
    assert flow.thread("run", ident)["status"] == "completed"
    with reader(str(flow.rolecall.home / "store.db")) as rolecall:
        for by, name in (("workflow", "outer"), ("thread", ident)):
            [row] = rolecall.cost(since=since, by=by).rows  # without the threads before
            assert (row.name, row.threads, row.completed) == (name, 1, 1)
            assert (row.spent, row.amount.steps) == (0.5, 2)
        [child] = flow.steps(ident)[0].payload["children"]
        last = flow.steps(child)[-1].payload["completed_at"]
        assert rolecall.cost(since=last, by="day").total.amount.steps == 1


def test_a_report_shows_what_each_role_has_cost(flow: Flow) -> None:
    [first] = [
        row["name"] for row in flow.rolecall.json("cost", "--by", "thread")["rows"] if row["reported"] == 0.75
    ]
    flow.rolecall("thread", "export", first, str(flow.folder / "report.html"), check=0)
    assert (
        "reported cost · developer: $0.50, 67 % · reviewer: $0.25"
        in (flow.folder / "report.html").read_text()
    )
