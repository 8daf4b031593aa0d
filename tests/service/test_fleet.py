"""Two machines with one database: threads run on both, steps go where their agents are, people ask and steer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, LiteralString

import commands
import psycopg
import pytest
from dbos import WorkflowStatus
from fakeagent import executable
from fleetstage import CLOCK, HAS_HOST_NAMES, Fleet, Host, fleet_in
from servicestage import PATIENCE, PROGRAM, done, gone
from webstage import Project, served

from rolecall.service.fleet.dispatch import Dispatcher, Room
from rolecall.service.fleet.needs import Need
from rolecall.service.fleet.orders import Order, Orders
from rolecall.service.fleet.step import RunningStep, Steps
from rolecall.service.policy import ServicePolicy
from rolecall.service.problems import Problems
from rolecall.store import holder
from rolecall.store.backend import StoredEvent
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import thread

PASSWORD = "very-secret-password"
QUEUES: LiteralString = "SELECT name, worker_concurrency FROM rolecall_dbos.queues ORDER BY name"
TAKEN: LiteralString = "SELECT count(*) FROM rolecall_dbos.workflow_status WHERE status = 'PENDING'"
SAY_HOME: dict[str, Any] = {"run": [["sh", "-c", "echo $MACHINE_HOME >> homes"]]}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_in(folder, str(postgres_server.get_uri())) as fleet:
        fleet.options = ("--concurrency", "6")
        for name in ("alpha", "beta"):
            fleet.host(
                name, slots=3
            ).is_own_child = True  # as users start it, and see it in lists of processes
        own = fleet.agent(done(**SAY_HOME), done("end", **SAY_HOME), name="own")
        config = fleet.hosts["alpha"].home / "config.yaml"
        wait = {"run": [["sh", "-c", "until test -e go; do sleep 0.05; done"]]}
        waits = fleet.agent(done("end", **wait), name="waits")
        agents = {"only-alpha": {"adapter": own}, "waits-on-alpha": {"adapter": waits}}
        config.write_text(json.dumps({"agents": agents}))
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


def elsewhere(fleet: Fleet, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command, in a home that is no machine of the fleet."""
    home = fleet.folder / "laptop"
    home.mkdir(exist_ok=True)
    own = {"ROLECALL_HOME": str(home), "HOME": str(home), "ROLECALL_STORE": fleet.url, **env}
    return commands.run([PROGRAM, *args], env={**os.environ, **own}, cwd=fleet.work)


def test_each_step_is_a_workflow_of_dbos_whose_id_says_which_head_it_extends(fleet: Fleet) -> None:
    name = fleet.enter(fleet.agent(done(), done(), done("end")))
    assert fleet.ended(name) == ["completed"]
    assert fleet.kinds(name) == ["queued", "started", "step", "step", "step", "completed"]
    fleet.assert_whole(name, steps=3)
    chain = thread.Chain(fleet.store, thread.find(fleet.store, name).head)
    heads = [chain.start.id, *(step.id for step in list(chain)[:0:-1])]

    def orders() -> list[tuple[str, str]] | None:
        mine = [(order, status) for order, status in fleet.orders() if order.startswith(name)]
        return mine if all(status == "SUCCESS" for _, status in mine) else None

    assert [order for order, _ in fleet.until(orders)] == [f"{name}:{head}" for head in heads]


def test_threads_run_on_every_machine_and_no_more_than_it_has_slots_for(fleet: Fleet) -> None:
    for folder in ("running", "counts"):
        (fleet.work / folder).mkdir()
    here = "h=$(basename $(dirname $MACHINE_HOME)); touch running/$h.$$"
    counts = "ls running | grep -c $h >> counts/$h"
    # Whoever is first waits for the other machine.
    meets = "until test $(ls counts | wc -l) = 2; do sleep 0.05; done"
    counted = f"{here}; {counts}; {meets}; sleep 0.3; rm running/$h.$$"
    step = done(run=[["sh", "-c", counted]])
    names = [fleet.enter(fleet.agent(step, {**step, **done("end")}, name="busy")) for _ in range(8)]
    assert fleet.ended(*names) == ["completed"] * 8
    fleet.assert_whole(*names, steps=2)
    found = {path.name: path.read_text().split() for path in (fleet.work / "counts").iterdir()}
    assert found.keys() == {"alpha", "beta"}
    assert max(int(word) for words in found.values() for word in words) <= 3


def test_orders_wait_for_a_slot_in_the_order_in_which_they_were_given_whatever_their_workflow_is_called(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.options = ("--concurrency", "6")
        step = done(run=[["sh", "-c", "while ! test -e begin; do sleep 0.05; done"]])
        many = fleet.agent(*([step] * 3), done("end"), name="many")
        names = [fleet.enter(many, "a-do-steps") for _ in range(3)]
        last = fleet.enter(fleet.agent(done("end"), name="one"), "z-do-steps")
        fleet.started("alpha", slots=1)
        fleet.until(lambda: len(fleet.open_orders()) == 4)
        (fleet.work / "begin").touch()
        assert fleet.ended(*names, last) == ["completed"] * 4
        over = [event.stream for event in fleet.store.events() if event.kind == "completed"]
        assert over[0] == last


def test_an_order_for_a_thread_that_runs_here_is_looked_at_again_but_not_at_once() -> None:
    order = Order("one:head:2", "one", "do-steps", "head", Need().text)
    nobody: Any = None
    steps = Steps(nobody, nobody, nobody, policy=ServicePolicy, log=nobody, tell=nobody)
    steps.running["one"] = RunningStep(Order("one:head", "one", "do-steps", "head", Need().text))
    settled = asyncio.run(steps.take(order))
    assert settled.is_trouble and not settled.is_taken
    assert steps.running["one"].order.id == "one:head"


def test_the_next_order_for_a_head_is_found_with_one_query_however_many_have_ended() -> None:
    asked: list[list[str]] = []

    class Remembered(Orders):
        def find_statuses(self, ids: Collection[str]) -> dict[str, WorkflowStatus]:
            asked.append([*ids])
            return {ident: known[ident] for ident in ids if ident in known}

    def order(status: Any) -> WorkflowStatus:
        made = WorkflowStatus()
        made.status = status
        return made

    nobody: Any = None
    orders = Remembered(nobody, nobody, nobody, nobody, nobody)
    known: dict[str, WorkflowStatus] = {}
    assert orders.next_id("one", "head") == "one:head"
    known = {"one:head": order("SUCCESS")}
    known |= {f"one:head:{number}": order("CANCELLED") for number in range(2, 10)}
    assert orders.next_id("one", "head") == "one:head:10"
    known["one:head:10"] = order("PENDING")
    assert orders.next_id("one", "head") == "one:head:10"
    assert len(asked) == 3
    known |= {f"one:head:{number}": order("ERROR") for number in range(10, 40)}
    assert orders.next_id("one", "head") == "one:head:40"
    assert sorted({*asked[-1], *asked[-2], *asked[-3]}) == sorted(asked[-1] + asked[-2] + asked[-3])


def test_a_step_whose_process_died_here_is_left_to_this_machine_which_counts_a_crash_and_no_loss(
    tmp_path: Path,
) -> None:
    """A sweep may find the dead process before the machine that ran it has settled its end."""
    child = subprocess.Popen(["true"])
    lease = {**holder.process(child.pid), "token": "t", "deadline": 0}
    child.wait(PATIENCE)
    nobody: Any = None
    with Store(SqliteBackend(str(tmp_path / "store.db"))) as store:
        name = thread.new_thread_id(store.now())
        state = {"status": "running", "name": "do-steps", "workflow": "0" * 13, "lease": lease}
        store.move(thread.ref_name(name), None, store.put_text("start"), state)
        slot = store.move(thread.slot_name("do-steps", name), None, state={"since": 1})
        running = {name}
        dispatcher = Dispatcher(
            nobody, store, nobody, 600_000, print, Problems(print), nobody, running_here=running
        )
        assert not dispatcher._is_lost(slot, {}, Room([], []))
        assert [event.kind for event in store.events(name)] == []
        running.clear()
        assert dispatcher._is_lost(slot, {}, Room([], []))
        assert thread.find(store, name).ref.state["service"]["losses"] == 1


def test_no_more_threads_of_a_workflow_run_at_once_than_its_queue_allows_wherever_they_run(
    fleet: Fleet,
) -> None:
    """Of two agents and in two folders, so that its steps need different things."""
    (fleet.work / "other").mkdir()
    together = fleet.work / "together"
    step: dict[str, Any] = {
        "run": [["sh", "-c", f"until test -e {together}; do sleep 0.05; done; sleep 0.2"]]
    }
    agents = [fleet.agent(done(**step), done("end", **step), name=name) for name in ("left", "right")]
    places = [fleet.work, fleet.work / "other"]
    names = [fleet.enter(agents[one % 2], cwd=places[one // 2 % 2]) for one in range(16)]
    taken = []

    def at_once(begins: str, ends: str) -> int:
        events = [event for event in fleet.store.events() if event.stream in names]
        return most_at_once(events, begins, ends)

    fleet.until(lambda: at_once("step_started", "step") == 6)
    together.touch()

    def have_ended() -> bool:
        taken.append(fleet.rows(TAKEN)[0][0])
        return all(fleet.status(name) == "completed" for name in names)

    fleet.until(have_ended)
    assert max(taken) <= 6
    assert at_once("started", "completed") == 6
    assert at_once("step_started", "step") == 6
    assert fleet.rows(QUEUES) == [("machine:alpha", 3), ("machine:beta", 3)]
    fleet.assert_whole(*names, steps=2)


def most_at_once(events: Sequence[StoredEvent], begins: str, ends: str) -> int:
    counts = accumulate((event.kind == begins) - (event.kind == ends) for event in events)
    return max(counts, default=0)


def test_a_step_goes_only_where_its_agent_is(fleet: Fleet, alpha: Host) -> None:
    (fleet.work / "homes").unlink(missing_ok=True)
    names = [fleet.enter("only-alpha") for _ in range(5)]
    assert fleet.ended(*names) == ["completed"] * 5
    assert set((fleet.work / "homes").read_text().split()) == {str(alpha.home)}


def test_a_step_for_which_no_machine_has_the_agent_waits_and_the_status_says_for_what(fleet: Fleet) -> None:
    name = fleet.enter("someone-else")

    def stuck() -> Any:
        return json.loads(elsewhere(fleet, "fleet", "status", "--json").stdout)["stuck"]

    assert fleet.until(stuck) == [
        {"workflow": "do-steps", "threads": 1, "reason": "there is no agent 'someone-else'"}
    ]
    assert "no machine can run do-steps" in elsewhere(fleet, "fleet", "status", "--format", "text").stdout
    assert fleet.status(name) == "idle"
    assert elsewhere(fleet, "thread", "kill", name).returncode == 0
    assert fleet.store.backend.names("slot/") == []


@pytest.mark.parametrize("executor", ["alpha:gone", "of a machine that is there"])
def test_orders_of_which_nobody_has_recorded_the_end_hold_up_nobody(fleet: Fleet, executor: str) -> None:
    """As many as the queue allows, so that nothing would be taken from it any more."""
    names = [fleet.enter(fleet.agent(done("end"))) for _ in range(6)]
    assert fleet.ended(*names) == ["completed"] * 6
    fleet.assert_whole(*names, steps=1)
    with psycopg.connect(fleet.url, autocommit=True) as db:
        db.execute(
            "UPDATE rolecall_dbos.workflow_status SET status = 'PENDING', completed_at = NULL,"
            " started_at_epoch_ms = 1, executor_id = CASE %s WHEN 'alpha:gone' THEN %s ELSE executor_id END"
            " WHERE split_part(workflow_uuid, ':', 1) = ANY(%s)",
            (executor, executor, names),
        )
    after = fleet.enter(fleet.agent(done("end")))
    assert fleet.ended(after) == ["completed"]
    fleet.assert_whole(*names, after, steps=1)


def test_an_order_that_is_lost_is_given_again(fleet: Fleet) -> None:
    """One of four steps waits for one of the three slots of the only machine that can take it."""
    names = [fleet.enter("waits-on-alpha") for _ in range(4)]

    def waiting() -> list[str]:
        """Orders for other machines do not count: those are handed back at once."""
        found = fleet.rows(
            "SELECT workflow_uuid, status FROM rolecall_dbos.workflow_status WHERE queue_name = 'machine:alpha'"
        )
        mine = [one for one in found if one[0].split(":")[0] in names]
        taken = [order for order, status in mine if status == "PENDING"]
        return [order for order, status in mine if status == "ENQUEUED" and len(taken) == 3]

    (lost,) = fleet.until(waiting)
    with psycopg.connect(fleet.url, autocommit=True) as db:
        db.execute(
            "UPDATE rolecall_dbos.workflow_status SET status = 'CANCELLED' WHERE workflow_uuid = %s", (lost,)
        )
    (again,) = fleet.until(waiting)
    assert again.split(":")[:2] == lost.split(":")[:2]
    (fleet.work / "go").touch()
    assert fleet.ended(*names) == ["completed"] * 4


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


def test_a_thread_that_is_resumed_is_ordered_anew_at_once_however_often_its_step_has_failed(
    fleet: Fleet,
) -> None:
    name = fleet.enter(fleet.agent({**done(), "run": [["false"]]}, name="failing"))
    assert fleet.ended(name) == ["suspended"]
    for _ in range(3):
        fleet.until(lambda: not [order for order in fleet.open_orders() if order.startswith(name)])
        with psycopg.connect(fleet.url, autocommit=True) as db:
            db.execute("LISTEN rolecall_news")
            assert elsewhere(fleet, "thread", "resume", name).returncode == 0
            assert fleet.ended(name) == ["suspended"]
            db.execute("NOTIFY rolecall_news, 'that is all'")
            received = []
            for news in db.notifies(timeout=PATIENCE):
                if news.payload == "that is all":
                    break
                received.append(news.payload)
        assert received.count(f"UPDATE slot/do-steps/{name}") == 1
    ids = [order for order, _ in fleet.orders() if order.startswith(name)]
    assert [order.split(":")[2:] for order in ids] == [[], ["2"], ["3"], ["4"]]


def test_a_thread_whose_agent_has_reached_a_limit_is_ordered_again_when_that_ends(fleet: Fleet) -> None:
    folder = fleet.folder / "limited"
    folder.mkdir()
    agent = executable(
        folder / "agent",
        f"""
        if [ -e {folder}/at ]; then printf -- '---\\n$status: end\\n---\\n'; exit 0; fi
        at=$(($(date +%s) + 2)); echo $at > {folder}/at; echo "usage limit reached|$at" >&2; exit 75
        """,
    )
    name = fleet.enter(f"command:{agent}")
    assert fleet.ended(name) == ["completed"]
    [limited] = [event for event in fleet.store.events() if (event.stream, event.kind) == (name, "limited")]
    assert limited.body["until"] >= int((folder / "at").read_text()) * 1000
    [step] = thread.Chain(fleet.store, thread.find(fleet.store, name).head)
    assert step.payload["started_at"] >= limited.body["until"]


def test_run_follows_a_thread_that_machines_elsewhere_take_the_steps_of(fleet: Fleet) -> None:
    (fleet.work / "do-one.yaml").write_text(_FLOW)
    result = elsewhere(
        fleet, "run", "./do-one.yaml", "-p", "Do it", "--agent", fleet.agent(done("end")), "--json"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["status"] == "completed"
    name = result.stderr.split()[1]
    assert fleet.kinds(name) == ["queued", "started", "step", "completed"]


@pytest.mark.skipif(not HAS_HOST_NAMES, reason="needs host names of the machines' own")
def test_whoever_asks_with_a_clock_that_is_wrong_sees_the_fleet_as_it_is_and_takes_no_thread_from_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    (tmp_path / "clock").write_text("3600")
    env = {"PYTHONPATH": str(tmp_path), "TEST_CLOCK": str(tmp_path / "clock")}
    holds = "echo > held; while ! test -e let-go; do sleep 0.05; done"
    name = fleet.enter(fleet.agent(done("end", run=[["sh", "-c", holds]]), name="held"))
    fleet.until((fleet.work / "held").exists)
    shown = json.loads(elsewhere(fleet, "fleet", "status", "--json", **env).stdout)
    assert [machine["alive"] for machine in shown["machines"]] == [True, True]
    taken = elsewhere(fleet, "thread", "run", name, **env)
    (fleet.work / "let-go").touch()
    assert (taken.returncode, "is being run by" in taken.stderr) == (5, True), taken.stderr
    assert fleet.ended(name) == ["completed"]
    assert fleet.kinds(name) == ["queued", "started", "step", "completed"]


def test_the_page_of_a_person_elsewhere_names_the_machines_and_their_agents(
    fleet: Fleet, tmp_path: Path
) -> None:
    with served(Project(tmp_path), "--store", fleet.url) as site:
        shown = site.sign_in().get("/service")
    alpha, beta = shown["fleet"]["machines"]
    assert (shown["running"], alpha["machine"], beta["machine"]) == (False, "alpha", "beta")
    assert "only-alpha" in alpha["agents"] and "only-alpha" not in beta["agents"]


def test_the_status_shows_machines_slots_queue_and_throughput(fleet: Fleet) -> None:
    def taken(shown: Any) -> int:
        return sum(machine["steps"] for machine in shown["machines"])

    before = taken(json.loads(elsewhere(fleet, "fleet", "status", "--json").stdout))
    names = [fleet.enter(fleet.agent(done(), done("end"))) for _ in range(3)]
    assert fleet.ended(*names) == ["completed"] * 3

    def seen() -> Any:
        """What both forms show while no machine says anything new: each speaks of itself from time to time."""
        shown = json.loads(elsewhere(fleet, "fleet", "status", "--json").stdout)
        text = elsewhere(fleet, "fleet", "status", "--format", "text").stdout
        is_told = taken(shown) >= before + 6 and not any(one["busy"] for one in shown["machines"])
        after = json.loads(elsewhere(fleet, "fleet", "status", "--json").stdout)
        return (shown, text) if is_told and shown["per_minute"] == after["per_minute"] else None

    shown, text = fleet.until(seen)
    assert [machine["machine"] for machine in shown["machines"]] == ["alpha", "beta"]
    assert all(machine["alive"] and machine["slots"] == 3 for machine in shown["machines"])
    assert ["only-alpha" in machine["agents"] for machine in shown["machines"]] == [True, False]
    assert sum(machine["leads"] for machine in shown["machines"]) == 1
    assert shown["per_minute"] == sum(machine["per_minute"] for machine in shown["machines"])
    assert (shown["limit"], shown["queued"]) == (16, {})
    head, waiting, titles, *rows = text.splitlines()
    assert head == f"2 machines, 0 of 16 threads, {shown['per_minute']} steps a minute"
    assert waiting == "waiting: none"
    assert titles.split() == ["machine", "state", "steps", "a", "minute", "process"]
    assert [row.split()[0] for row in rows] == ["alpha", "beta"]
    assert sorted(row.split()[1] for row in rows) == ["leads", "there"]
    assert all("0 of 3" in row for row in rows)


def test_a_machine_can_be_asked_in_its_home_as_a_single_service_can(fleet: Fleet, beta: Host) -> None:
    output = json.loads(beta.rolecall("serve", "status", "--json").stdout)
    assert (output["running"], output["machine"], output["limit"]) == (True, "beta", 3)
    inside = json.loads(beta.rolecall("fleet", "status", "--json").stdout)
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
        assert json.loads(alpha.rolecall("serve", "status", "--json").stdout)["running"]
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


def test_the_password_of_the_database_is_in_no_file_and_in_no_list_of_processes(
    alpha: Host, beta: Host
) -> None:
    for host in (alpha, beta):
        files = [path for path in host.folder.rglob("*") if path.is_file()]
        assert host.home / "service.lock" in files
        lines = [Path(f"/proc/{pid}/cmdline") for pid in host.processes()]
        assert len(lines) >= 2
        for path in (*files, *lines):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has gone since it was listed
                assert PASSWORD.encode() not in path.read_bytes(), path


def test_a_thread_is_run_by_the_machine_in_its_home_with_whatever_password_it_is_asked_for(
    fleet: Fleet, alpha: Host
) -> None:
    """The lock of a home names its store without one."""
    (fleet.work / "do-one.yaml").write_text(_FLOW)
    url = alpha.relay.url.replace(PASSWORD, "another")
    words = ("--store", url, "-p", "Do it", "--agent", fleet.agent(done("end")), "--cwd", str(fleet.work))
    result = alpha.rolecall("run", str(fleet.work / "do-one.yaml"), *words)
    assert result.returncode == 0, result.stderr
    assert fleet.kinds(result.stderr.split()[1]) == ["queued", "started", "step", "completed"]


def test_a_machine_that_is_stopped_hands_its_steps_to_the_others_and_that_is_no_crash(fleet: Fleet) -> None:
    first: dict[str, Any] = {"run": [["sh", "-c", "echo $MACHINE_HOME > hung; exec sleep 600"]]}
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
    shown = json.loads(elsewhere(fleet, "fleet", "status", "--json").stdout)
    assert [machine["machine"] for machine in shown["machines"]] == [homes[other].name]


def test_a_machine_that_may_finish_takes_no_more_and_ends_when_its_step_has(fleet: Fleet) -> None:
    """The last one: what waits meanwhile, waits."""
    host, *others = [host for host in fleet.hosts.values() if host.process is not None]
    for other in others:
        other.stop()
    os.mkfifo(fleet.work / "gate")
    name = fleet.enter(fleet.agent(done(run=[["sh", "-c", "cat gate"]]), done("end"), name="waits-at-gate"))
    fleet.until(lambda: "process" in [event.kind for event in fleet.store.events(name)])
    stopping = host.spawn("serve", "stop", "--finish")
    fleet.until(lambda: host.status()["stopping"])
    later = fleet.enter(fleet.agent(done("end")))
    (fleet.work / "gate").write_text("go on")
    assert stopping.wait(PATIENCE) == 0
    stopping.communicate()
    assert host.process is not None and host.process.wait(PATIENCE) == 0
    host.process = None
    assert fleet.kinds(name) == ["queued", "started", "step"]
    assert fleet.status(later) in ("queued", "idle")
    nobody = elsewhere(fleet, "fleet", "status", "--json")
    assert (nobody.returncode, json.loads(nobody.stdout)["machines"]) == (1, [])
    fleet.hosts["alpha"].start()
    assert fleet.ended(name, later) == ["completed", "completed"]
    fleet.assert_whole(name, steps=2)
    fleet.assert_left_clean()


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
