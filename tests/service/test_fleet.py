"""Two machines with one database: threads run on both, steps go where their agents are, people ask and steer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleetstage import Fleet, Host, fleet_in
from servicestage import PATIENCE, PROGRAM, done, gone

from rolecall import thread

PASSWORD = "very-secret-password"
SAY_HOME: dict[str, Any] = {"run": [["sh", "-c", "echo $ROLECALL_HOME >> homes"]]}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_in(folder, str(postgres_server.get_uri())) as fleet:
        fleet.options = ("--concurrency", "6")
        for name in ("alpha", "beta"):
            fleet.host(name, slots=3)
        own = fleet.agent(done(**SAY_HOME), done("end", **SAY_HOME), name="own")
        config = fleet.hosts["alpha"].home / "config.yaml"
        config.write_text(json.dumps({"agents": {"only-alpha": {"adapter": own}}}))
        for host in fleet.hosts.values():
            host.begin()
        for host in fleet.hosts.values():
            host.joined()
        yield fleet


@pytest.fixture
def alpha(fleet: Fleet) -> Host:
    return fleet.hosts["alpha"]


@pytest.fixture
def beta(fleet: Fleet) -> Host:
    return fleet.hosts["beta"]


def elsewhere(fleet: Fleet, *args: str) -> subprocess.CompletedProcess[str]:
    """The command, in a home that is no machine of the fleet."""
    home = fleet.folder / "laptop"
    home.mkdir(exist_ok=True)
    own = {"ROLECALL_HOME": str(home), "HOME": str(home), "ROLECALL_STORE": fleet.url}
    return subprocess.run(
        [PROGRAM, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **own},
        cwd=fleet.work,
        timeout=PATIENCE,
        check=False,
    )


def test_each_step_is_a_workflow_of_dbos_whose_id_says_which_head_it_extends(fleet: Fleet) -> None:
    name = fleet.enter(fleet.agent(done(), done(), done("end")))
    assert fleet.ended(name) == ["completed"]
    assert fleet.kinds(name) == ["queued", "started", "step", "step", "step", "completed"]
    fleet.assert_whole(name, steps=3)
    chain = thread.Chain(fleet.store, thread.find(fleet.store, name).target or "")
    heads = [chain.start.id, *(step.id for step in list(chain)[:0:-1])]

    def orders() -> list[tuple[str, str]] | None:
        mine = [(order, status) for order, status in fleet.orders() if order.startswith(name)]
        return mine if all(status == "SUCCESS" for _, status in mine) else None

    assert [order for order, _ in fleet.until(orders)] == [f"{name}:{head}" for head in heads]


def test_threads_run_on_every_machine_and_no_more_than_it_has_slots_for(fleet: Fleet) -> None:
    for folder in ("running", "counts"):
        (fleet.work / folder).mkdir()
    here = "h=$(basename $(dirname $ROLECALL_HOME)); touch running/$h.$$"
    counted = f"{here}; ls running | grep -c $h >> counts/$h; sleep 0.3; rm running/$h.$$"
    step = done(run=[["sh", "-c", counted]])
    names = [fleet.enter(fleet.agent(step, {**step, **done("end")}, name="busy")) for _ in range(8)]
    assert fleet.ended(*names) == ["completed"] * 8
    fleet.assert_whole(*names, steps=2)
    counts = {path.name: path.read_text().split() for path in (fleet.work / "counts").iterdir()}
    assert counts.keys() == {"alpha", "beta"}
    assert max(int(word) for words in counts.values() for word in words) <= 3


def test_a_step_goes_only_where_its_agent_is(fleet: Fleet, alpha: Host) -> None:
    (fleet.work / "homes").unlink(missing_ok=True)
    names = [fleet.enter("only-alpha") for _ in range(5)]
    assert fleet.ended(*names) == ["completed"] * 5
    assert set((fleet.work / "homes").read_text().split()) == {str(alpha.home)}


def test_a_step_for_which_no_machine_has_the_agent_waits_and_the_status_says_for_what(fleet: Fleet) -> None:
    name = fleet.enter("someone-else")

    def stuck() -> Any:
        return json.loads(elsewhere(fleet, "fleet", "status").stdout)["stuck"]

    assert fleet.until(stuck) == [
        {"workflow": "do-steps", "threads": 1, "reason": "there is no agent 'someone-else'"}
    ]
    assert "nobody can run do-steps" in elsewhere(fleet, "fleet", "status", "--format", "text").stdout
    assert fleet.status(name) == "idle"
    assert elsewhere(fleet, "thread", "kill", name).returncode == 0
    assert fleet.store.backend.names("slot/") == []


def test_a_thread_that_is_killed_anywhere_is_ended_where_it_runs(fleet: Fleet) -> None:
    wait: dict[str, Any] = {"run": [["sh", "-c", "echo $$ > killed.pid; exec sleep 600"]]}
    name = fleet.enter(fleet.agent(done(**wait), name="waits"))
    file = fleet.work / "killed.pid"
    fleet.until(lambda: _read(file))
    assert elsewhere(fleet, "thread", "kill", name).returncode == 0
    gone(int(file.read_text()))
    assert fleet.status(name) == "killed"
    assert fleet.store.backend.names("slot/") == []
    killed = [event.body for event in fleet.store.events(name) if event.kind == "killed"]
    assert killed[0]["exit_code"] == 137


def test_run_follows_a_thread_that_machines_elsewhere_take_the_steps_of(fleet: Fleet) -> None:
    (fleet.work / "do-one.yaml").write_text(_FLOW)
    told = elsewhere(fleet, "run", "./do-one.yaml", "-p", "Do it", "--agent", fleet.agent(done("end")))
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout.splitlines()[-1])["status"] == "completed"
    name = told.stderr.split()[1]
    assert fleet.kinds(name) == ["queued", "started", "step", "completed"]


def test_the_status_shows_machines_slots_queue_and_throughput(fleet: Fleet) -> None:
    def taken(shown: Any) -> int:
        return sum(machine["steps"] for machine in shown["machines"])

    before = taken(json.loads(elsewhere(fleet, "fleet", "status").stdout))
    names = [fleet.enter(fleet.agent(done(), done("end"))) for _ in range(3)]
    assert fleet.ended(*names) == ["completed"] * 3

    def seen() -> Any:
        shown = json.loads(elsewhere(fleet, "fleet", "status").stdout)
        return shown if taken(shown) >= before + 6 else None

    shown = fleet.until(seen)
    assert [machine["machine"] for machine in shown["machines"]] == ["alpha", "beta"]
    assert all(machine["alive"] and machine["slots"] == 3 for machine in shown["machines"])
    assert sum(machine["leads"] for machine in shown["machines"]) == 1
    assert shown["per_minute"] == sum(machine["per_minute"] for machine in shown["machines"])
    assert (shown["limit"], shown["queued"]) == (16, {})
    text = elsewhere(fleet, "fleet", "status", "--format", "text").stdout
    assert "2 machines, 0 of 16 threads" in text and "waiting: nobody" in text


def test_a_machine_can_be_asked_in_its_home_as_a_single_service_can(fleet: Fleet, beta: Host) -> None:
    told = json.loads(beta.rolecall("serve", "status").stdout)
    assert (told["running"], told["machine"], told["limit"]) == (True, "beta", 3)
    inside = json.loads(beta.rolecall("fleet", "status").stdout)
    assert [machine["machine"] for machine in inside["machines"]] == ["alpha", "beta"]
    refused = beta.rolecall("serve", "--database", beta.relay.url)
    assert refused.returncode == 5 and "is running already" in refused.stderr


def test_a_second_machine_of_the_same_name_is_refused_and_the_first_goes_on(
    fleet: Fleet, alpha: Host
) -> None:
    other = fleet.host("gamma")
    try:
        other.name = "alpha"
        other.begin()
        assert other.process is not None
        assert other.process.wait(PATIENCE) == 5
        assert "a machine 'alpha' is in this fleet already" in other.output()
        assert "--machine NAME" in other.output()
        assert json.loads(alpha.rolecall("serve", "status").stdout)["running"]
    finally:
        other.process = None
        fleet.hosts.pop("gamma").close()


def test_the_password_of_the_database_is_shown_nowhere(fleet: Fleet, alpha: Host, beta: Host) -> None:
    shown = [host.output() + host.log() for host in (alpha, beta)]
    shown += [alpha.rolecall("serve", "status").stdout, alpha.rolecall("fleet", "status").stdout]
    leak = fleet.agent(done("end", run=[["sh", "-c", "echo $ROLECALL_STORE; exit 0"]]), name="leaks")
    name = fleet.enter(leak)
    assert fleet.ended(name) == ["completed"]
    shown.append(json.dumps([event.body for event in fleet.store.events(name)]))
    shown.append(elsewhere(fleet, "thread", "read", name).stdout)
    wrong = alpha.relay.url.replace(PASSWORD, f"{PASSWORD}-wrong").replace("/fleet_", "/no-such-database_")
    refused = beta.rolecall("fleet", "status", "--database", wrong)
    assert refused.returncode == 5
    assert not [text for text in [*shown, refused.stderr, refused.stdout] if PASSWORD in text]


def test_a_machine_that_is_stopped_hands_its_steps_to_the_others_and_that_is_no_crash(fleet: Fleet) -> None:
    first: dict[str, Any] = {"run": [["sh", "-c", "echo $ROLECALL_HOME > hung; exec sleep 600"]]}
    (fleet.work / "homes").unlink(missing_ok=True)
    name = fleet.enter(fleet.agent(done(**first, again=[done("end", **SAY_HOME)]), name="hangs"))
    fleet.until(lambda: _read(fleet.work / "hung"))
    homes = {str(host.home): host for host in fleet.hosts.values()}
    stopped = homes.pop(_read(fleet.work / "hung"))
    stopped.stop()
    assert stopped.processes() == []
    assert fleet.ended(name) == ["completed"]
    assert fleet.kinds(name) == ["queued", "started", "step", "completed"]
    (other,) = homes
    assert _read(fleet.work / "homes") == other
    shown = json.loads(elsewhere(fleet, "fleet", "status").stdout)
    assert [machine["machine"] for machine in shown["machines"]] == [homes[other].name]


def _read(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


_FLOW = """
name: do-one
description: One role
roles:
  worker:
    description: Works
    goal: Work.
    frontmatter: {type: object, properties: {$status: {enum: [end]}}, required: [$status]}
graph:
  $START: worker
  worker: {end: $END}
"""
