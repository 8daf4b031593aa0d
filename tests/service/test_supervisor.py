"""The service as a process: threads wait, run and end in it, in order and within limits, and it can be asked."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fakeagent import executable
from listeners import Pipe
from servicestage import PATIENCE, PROGRAM, Service, done, gone, served, within_a_day

from rolecall.service import control
from rolecall.service.policy import ServicePolicy, WorkerLimits
from rolecall.service.supervisor import Supervisor
from rolecall.service.worker import StepOrder
from rolecall.service.workers import WorkerExit, Workers
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, "--concurrency", "4") as service:
        yield service


def test_a_queued_thread_lives_its_life_and_every_transition_is_an_event(service: Service) -> None:
    flow, agent = service.workflow(), service.script(done(), done("end"))
    name = service.enter(flow, agent)
    assert service.ended(name) == ["completed"]
    assert service.kinds(name) == ["queued", "started", "step", "step", "completed"]
    times = [event.at for event in service.events(name)]
    assert times == sorted(times)
    assert [step.number for step in service.steps(name)] == [1, 2]
    service.stop()
    service.assert_clean()


def test_steps_that_run_at_once_have_processes_and_sessions_of_their_own(service: Service) -> None:
    gates = [service.work / f"gate-{number}" for number in range(2)]
    names = []
    for gate in gates:
        os.mkfifo(gate)
        tell = [["sh", "-c", "echo $PPID $(ps -o sess= -p $PPID) >> pids"], ["cat", gate.name]]
        names.append(service.enter(service.workflow(), service.script(done("end", run=tell), name=gate.name)))
    for name in names:
        service.event(name, "process", count=2)
    leases = [str(service.state(name)["lease"]["pid"]) for name in names]
    for gate in gates:
        gate.write_text("go on")
    assert service.ended(*names) == ["completed"] * 2
    pairs = [line.split() for line in (service.work / "pids").read_text().splitlines()]
    assert sorted(pid for pid, _ in pairs) == sorted({*leases})
    assert len(pairs) == 2
    assert all(pid == session for pid, session in pairs)


def test_a_workflow_that_leads_to_fail_fails_its_thread(service: Service) -> None:
    name = service.enter(service.workflow(), service.script(done(), done("fail")))
    assert service.ended(name) == ["failed"]
    assert service.kinds(name) == ["queued", "started", "step", "step", "failed"]
    assert service.state(name)["reason"] == "It failed."


def test_threads_of_one_workflow_start_in_the_order_of_priority_and_time(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        flow, agent = service.workflow(), service.script(done("end"))
        plain = [service.enter(flow, agent) for _ in range(4)]
        urgent = [service.enter(flow, agent, priority=7) for _ in range(2)]
        assert all(service.thread_status(name) == "queued" for name in plain + urgent)
        service.start()
        service.ended(*plain, *urgent)
        order = [event.stream for event in service.store.events() if event.kind == "started"]
        assert order == [*urgent, *plain]
        service.stop()
        service.assert_clean()
    finally:
        service.close()


def overlap(service: Service, *names: str) -> int:
    """How many of these threads were running at once at most, by their events."""
    running = most = 0
    for event in service.store.events():
        if event.stream in names:
            running += (event.kind == "started") - (event.kind in ("completed", "failed"))
            most = max(most, running)
    return most


def test_no_more_run_at_once_than_the_project_allows(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").write_text(
        "service: {limit: 3}\nworkflows: {do-one: {concurrency: 1}, do-many: {concurrency: 5}}\n"
    )
    with served(tmp_path) as service:
        waits = [["sh", "-c", "until test -e together; do sleep 0.05; done"]]
        agent = service.script(done(run=waits), done("end"))
        ones = [service.enter(service.workflow("do-one"), agent) for _ in range(4)]
        many = [service.enter(service.workflow("do-many"), agent) for _ in range(8)]
        service.until(lambda: overlap(service, *many) >= 2)
        (service.work / "together").touch()
        assert set(service.ended(*ones, *many)) == {"completed"}
        assert overlap(service, *ones) == 1
        assert overlap(service, *ones, *many) <= 3


def test_what_comes_while_a_workflow_is_busy_is_discarded_where_the_project_says_so(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").write_text("workflows: {clean-up: {overflow: drop}}\n")
    with served(tmp_path) as service:
        flow = service.workflow("clean-up")
        first = service.enter(flow, service.script({"hang": True}, name="hangs"))
        service.event(first, "step_started")
        second = service.enter(flow, service.script(done("end")))
        assert service.ended(second) == ["discarded"]
        assert service.state(second)["reason"] == "clean-up was busy (concurrency 1, overflow drop)"
        shown = json.loads(service.rolecall("thread", "show", second, "--json").stdout)
        assert (shown["status"], shown["done"]) == ("discarded", True)
        assert service.thread_status(first) == "running"


@pytest.mark.parametrize("rule", ["overflow: drop", "max_queue: 0"])
def test_a_thread_that_is_resumed_while_its_workflow_is_busy_waits_and_is_not_discarded(
    tmp_path: Path, rule: str
) -> None:
    """It has taken steps, and a person has answered it."""
    (tmp_path / "rolecall.yaml").write_text(f"workflows: {{clean-up: {{{rule}}}}}\n")
    with served(tmp_path) as service:
        flow = service.workflow("clean-up")
        fails = {**done("end"), "run": [["test", "-e", "may-end"]]}
        name = service.enter(flow, service.script(done(), fails, name="fails"))
        assert service.ended(name) == ["suspended"]
        fifo = service.work / "gate"
        os.mkfifo(fifo)
        busy = service.enter(flow, service.script(done("end", run=[["cat", "gate"]]), name="busy"))
        service.event(busy, "process")
        assert service.rolecall("thread", "resume", name).returncode == 0
        new = service.enter(flow, service.script(done("end"), name="new"))
        assert service.ended(new) == ["discarded"]
        assert service.thread_status(name) == "queued"
        (service.work / "may-end").touch()
        fifo.write_text("go on")
        assert service.ended(busy, name) == ["completed", "completed"]


def test_of_too_many_that_wait_the_oldest_is_discarded(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").write_text("workflows: {do-steps: {max_queue: 2}}\n")
    with served(tmp_path) as service:
        flow = service.workflow()
        first = service.enter(flow, service.script({"hang": True}, name="hangs"))
        service.event(first, "step_started")
        later = [service.enter(flow, service.script(done("end"))) for _ in range(4)]
        assert service.ended(*later[:2]) == ["discarded", "discarded"]
        assert "max_queue 2" in service.state(later[0])["reason"]
        assert [service.thread_status(name) for name in later[2:]] == ["queued", "queued"]


def test_an_agent_that_may_be_called_no_more_is_waited_for_and_nobody_fails(tmp_path: Path) -> None:
    (tmp_path / "rolecall.yaml").write_text(
        "service: {rates: {scripted: 2/s}}\nworkflows: {do-steps: {concurrency: 9}}\n"
    )
    with served(tmp_path) as service:
        agent = service.script(done(), done("end"))
        names = [service.enter(service.workflow(), agent) for _ in range(4)]
        assert service.ended(*names) == ["completed"] * 4
        calls = [event.at for event in service.store.events() if event.kind == "step_started"]
        assert len(calls) == 8
        # What is counted is when a call is decided; the worker that makes it takes a moment to begin.
        first = min(service.state(name)["service"]["admitted_at"] for name in names)
        assert calls[-1] - first >= 2_500  # the clocks of a fleet's processes differ a little
        assert "has reached its call rate" not in "".join(service.kinds(names[0]))


def test_what_steps_cost_is_summed_up_and_stops_admission_for_the_day(tmp_path: Path) -> None:
    within_a_day()
    (tmp_path / "rolecall.yaml").write_text("service: {spend_per_day: 1}\n")
    with served(tmp_path) as service:
        flow = service.workflow()
        paid = service.script(done(usage={"cost": 0.7}), done("end", usage={"cost": 0.5}))
        first = service.enter(flow, paid)
        assert service.ended(first) == ["completed"]  # what was admitted goes on
        assert service.status()["spent"] == pytest.approx(1.2)
        second = service.enter(flow, paid)
        waits = service.status()["waits"]
        assert waits == {second: "$1.20 was spent today (spend_per_day 1)"}
        assert service.thread_status(second) == "queued"
        # A restart forgets nothing.
        service.stop()
        service.start()
        assert service.status()["waits"] == waits
        assert service.thread_status(second) == "queued"


def test_a_look_that_fails_again_and_again_is_told_and_whoever_asks_is_answered_meanwhile(
    tmp_path: Path,
) -> None:
    (tmp_path / "rolecall.yaml").write_text("service: {rates: {scripted: 100/min}}\n")
    with served(tmp_path) as service:
        settings = service.home / "config.yaml"
        settings.write_text("agents: [\n")  # whom the next step calls cannot be told
        name = service.enter(service.workflow(), service.script(done("end")))
        service.until(lambda: "store" in service.status()["problems"])
        assert "config.yaml" in service.status()["problems"]["store"]
        settings.unlink()
        assert service.ended(name) == ["completed"]
        assert service.status()["problems"] == {}


def test_a_second_service_of_the_same_home_is_refused_and_the_first_is_named(service: Service) -> None:
    refused = service.rolecall("serve")
    assert refused.returncode == 5
    assert service.process is not None
    assert f"is running already: process {service.process.pid}" in refused.stderr


def test_the_socket_is_for_this_user_alone_and_goes_with_the_service(service: Service) -> None:
    path = service.home / "service.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    service.stop()
    assert not path.exists()
    assert control.find_service(str(service.home)) is None


@pytest.mark.parametrize("words", [b"nonsense\n", b"[]\n", b'{"do": "dance"}\n', b"\xff\xfe\n", b""])
def test_whoever_speaks_another_language_at_the_door_does_no_harm(service: Service, words: bytes) -> None:
    pipe = control.connect(str(service.home))
    assert pipe is not None
    with pipe:
        pipe.sendall(words)
        pipe.shutdown(1)
        assert pipe.recv(100) == b""
    assert service.status()["running"] == []


def follower(service: Service) -> socket.socket:
    pipe = control.connect(str(service.home))
    assert pipe is not None
    pipe.settimeout(PATIENCE)
    pipe.sendall(control.to_line({"do": "follow", "thread": ""}))
    return pipe


def rest_of(pipe: socket.socket) -> bytes:
    with pipe, pipe.makefile("rb") as heard:
        return heard.read()


def test_fifty_who_follow_are_each_woken_and_those_who_never_listen_hinder_nobody(service: Service) -> None:
    deaf, followers = ([follower(service) for _ in range(50)] for _ in range(2))
    assert {pipe.recv(1) for pipe in followers} == {b"\n"}
    name = service.enter(service.workflow(), service.script(*[done()] * 5, done("end")))
    assert service.ended(name) == ["completed"]
    assert all(pipe.recv(1) for pipe in followers)
    service.stop()
    assert {rest_of(pipe).strip() for pipe in (*deaf, *followers)} == {b""}


def test_status_shows_who_runs_in_which_process_and_who_waits_and_why(service: Service) -> None:
    flow = service.workflow()
    hanging = [service.enter(flow, service.script({"hang": True}, name="hangs")) for _ in range(4)]
    for name in hanging:
        service.event(name, "step_started")
    late = service.enter(flow, service.script(done("end")))
    shown = json.loads(service.rolecall("serve", "status", "--json").stdout)
    assert shown["running"] is True
    assert service.process is not None and shown["pid"] == service.process.pid
    assert {entry["thread"] for entry in shown["threads"]} == set(hanging)
    assert all(os.path.exists(f"/proc/{entry['pid']}") for entry in shown["threads"])
    assert shown["queued"] == {"do-steps": 1}
    assert shown["waits"] == {late: "do-steps has 4 threads running (concurrency 4)"}
    text = service.rolecall("serve", "status", "--format", "text").stdout
    assert "4 of 16 threads" in text and "1 of do-steps" in text


def test_stopping_interrupts_steps_and_starting_again_goes_on_with_their_threads(service: Service) -> None:
    flow = service.workflow()
    agent = service.script({"hang": True, "again": [done("end")]})
    name = service.enter(flow, agent)
    service.event(name, "step_started")
    service.stop()
    assert service.thread_status(name) == "idle"
    assert service.store.backend.names("slot/") == [f"slot/do-steps/{name}"]
    assert service.processes() == []
    service.start()
    assert service.ended(name) == ["completed"]
    assert "crashed" not in service.kinds(name)


def test_stopping_with_finish_lets_a_step_come_to_its_end(service: Service) -> None:
    fifo = service.work / "gate"
    os.mkfifo(fifo)
    agent = service.script(done("end", run=[["sh", "-c", "cat gate"]]))
    name = service.enter(service.workflow(), agent)
    service.event(name, "process")
    stopping = service.spawn("serve", "stop", "--finish")
    service.until(lambda: service.status()["stopping"])
    assert service.thread_status(name) == "running"
    fifo.write_text("go on")
    assert stopping.wait(PATIENCE) == 0
    stopping.communicate()
    assert service.thread_status(name) == "completed"
    assert service.kinds(name) == ["queued", "started", "step", "completed"]
    service.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_as_its_command_does(service: Service, number: int) -> None:
    name = service.enter(service.workflow(), service.script({"hang": True}))
    service.event(name, "step_started")
    assert service.process is not None
    service.process.send_signal(number)
    assert service.process.wait(PATIENCE) == 0
    assert service.thread_status(name) == "idle"
    assert service.processes() == []
    shown = service.rolecall("status").stdout  # the next service takes it up
    assert "waits for you" not in shown and "at work" in shown
    assert "next       rolecall serve --detach " in shown


def test_asked_twice_to_stop_it_ends_steps_that_do_not_listen_and_their_threads_go_on_later(
    service: Service,
) -> None:
    code = """
import os
from rolecall import END, Role, RoleResult, Workflow

async def work(context):
    while not os.path.exists(context.workdir + "/enough"):
        pass
    return RoleResult(content="Done.", meta={})

roles = {"worker": Role.function(work, {"type": "object"})}
workflow = Workflow("spin-on", roles=roles, moderator=lambda context: END if context.steps else "worker")
"""
    name = service.enter(service.python_workflow("spin-on", code), None)
    service.event(name, "step_started")
    worker = int(service.state(name)["lease"]["pid"])
    assert service.process is not None
    service.process.send_signal(signal.SIGTERM)
    service.until(lambda: service.status()["stopping"])
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(PATIENCE) == 0
    gone(worker)
    assert service.thread_status(name) == "idle"
    (service.work / "enough").touch()
    service.start()
    assert service.ended(name) == ["completed"]
    assert "crashed" not in service.kinds(name)


def test_a_service_in_the_background_says_when_it_can_be_spoken_to(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        (tmp_path / "rolecall.yaml").write_text(
            "workflows: {do-it: {triggers: {daily: {every: 1d, prompt: x}}}}\n"
        )
        started = json.loads(service.rolecall("serve", "--detach", "--json").stdout)
        assert started["triggers"] == ["do-it/daily: every 1d"]  # what it will run by itself
        assert json.loads(service.rolecall("serve", "status", "--json").stdout)["pid"] == started["pid"]
        again = service.rolecall("serve", "--detach")
        assert again.returncode == 5
        assert "is running already" in again.stderr
        name = service.enter(service.workflow(), service.script(done("end")))
        assert service.ended(name) == ["completed"]
        assert json.loads(service.rolecall("serve", "stop", "--json").stdout) == {
            "stopped": True,
            "pid": started["pid"],
        }
        gone(started["pid"])
        assert service.processes() == []
        lines = service.rolecall("serve", "logs").stdout
        assert f"{name} is completed" in lines
    finally:
        service.close()


def test_the_address_of_a_store_is_not_among_the_words_of_a_service_in_the_background(tmp_path: Path) -> None:
    """It may hold a password, and everybody on a machine sees the words of its commands."""
    service = Service(tmp_path)
    try:
        started = json.loads(
            service.rolecall("serve", "--detach", "--store", "files:secret-place", "--json").stdout
        )
        assert b"secret-place" not in Path("/proc", str(started["pid"]), "cmdline").read_bytes()
        held = control.find_service(str(service.home))
        assert held is not None and held["store"] == f"files:{tmp_path / 'secret-place'}"
        assert service.rolecall("serve", "stop").returncode == 0
    finally:
        service.close()


def test_the_log_is_followed_into_the_file_that_takes_its_place(service: Service) -> None:
    log = service.home / "service.log"
    following = service.spawn("serve", "logs", "-f", "--lines", "1")
    assert following.stdout is not None
    try:
        assert following.stdout.readline()  # it follows by now, and the service may have more to say
        with log.open("a") as file:
            file.write("one more\n")
        log.rename(f"{log}.1")
        log.write_text("a new one\n")
        output = iter(following.stdout.readline, "")
        assert "one more\n" in output
        assert "a new one\n" in output
    finally:
        following.kill()
        following.communicate(timeout=PATIENCE)


def test_the_last_lines_are_shown_also_where_the_log_was_put_aside_in_between(service: Service) -> None:
    log = service.home / "service.log"
    service.stop()
    Path(f"{log}.1").write_text("one\ntwo\n")
    log.write_text("three\n")
    shown = [service.rolecall("serve", "logs", "--lines", count).stdout.split() for count in "129"]
    assert shown == [["three"], ["two", "three"], ["one", "two", "three"]]


def test_whoever_follows_the_log_is_told_that_the_service_was_killed_and_sees_what_the_next_one_says(
    service: Service,
) -> None:
    following = service.spawn("serve", "logs", "-f", "--lines", "1")
    assert following.stdout is not None
    assert following.stderr is not None
    try:
        following.stdout.readline()
        service.kill()
        assert "no service is running" in following.stderr.readline()
        service.start()
        # The killed one may have had more to say than the line that was read.
        assert any("serving" in line for line in iter(following.stdout.readline, ""))
    finally:
        following.kill()
        following.communicate(timeout=PATIENCE)


def test_a_file_of_the_project_does_not_stand_in_for_a_module_of_ours(tmp_path: Path) -> None:
    for module in ("yaml", "jsonschema_rs", "rolecall", "uuid"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('this is the wrong one')\n")
    service = Service(tmp_path)
    try:
        detached = service.rolecall("serve", "--detach")
        assert detached.returncode == 0, detached.stderr
        name = service.enter(service.workflow(), service.script(done("end")))
        assert service.ended(name) == ["completed"]
        assert service.rolecall("serve", "stop").returncode == 0
    finally:
        service.close()


def test_stopping_does_not_wait_for_the_service_that_takes_its_place(service: Service) -> None:
    """As where a supervisor of the system starts it again at once."""
    assert service.process is not None
    first, fifo = service.process, service.work / "gate"
    os.mkfifo(fifo)
    name = service.enter(service.workflow(), service.script(done("end", run=[["cat", "gate"]])))
    service.event(name, "process")
    stopping = service.spawn("serve", "stop", "--finish")
    service.until(lambda: service.status()["stopping"])
    waiting = subprocess.Popen(
        ["sh", "-c", f"while [ -e /proc/{first.pid}/cwd ]; do sleep 0.01; done; exec {PROGRAM} serve"],
        env=service.env,
        cwd=service.folder,
        stdout=subprocess.DEVNULL,
    )
    try:
        fifo.write_text("go on")
        assert first.wait(PATIENCE) == 0
        assert stopping.communicate(timeout=PATIENCE)[1] == ""
        assert stopping.returncode == 0
    finally:
        waiting.terminate()
        waiting.wait(PATIENCE)


def test_a_step_whose_process_is_being_started_is_interrupted_with_the_others(tmp_path: Path) -> None:
    service = Service(tmp_path)
    name = service.enter(service.workflow(), service.script({"hang": True}))

    async def play() -> WorkerExit:
        workers = Workers(service.env)
        await workers.open()
        order = StepOrder(name, "do-steps", "here")
        step = asyncio.create_task(workers.step(order, limits=WorkerLimits(), heard=lambda *_: None))
        await asyncio.sleep(0)  # now the step waits for its process
        assert workers.running == {}
        workers.stop()
        try:
            return await asyncio.wait_for(step, PATIENCE)
        finally:
            await workers.close()

    ended = asyncio.run(play())
    assert ended.report == {} or (ended.report is None and ended.is_stopped)
    service.close()


def test_what_fails_beside_the_service_is_a_problem_of_it_and_no_reason_to_end(tmp_path: Path) -> None:
    store, failed = Store(SqliteBackend(str(tmp_path / "store.db"))), asyncio.Event()

    async def watch_stars(_supervisor: Supervisor) -> None:
        failed.set()
        raise RuntimeError("there are none")

    async def play() -> dict[str, str]:
        supervisor = Supervisor(store, ServicePolicy(), Workers(os.environ), host="here", log=lambda _: None)
        with control.bound(str(tmp_path)) as door:
            task = asyncio.create_task(supervisor.run(door, companions=[watch_stars]))
            async with asyncio.timeout(PATIENCE):
                await failed.wait()
                await asyncio.sleep(0)  # it has been told of by then
                problems = dict(supervisor.problems)
                supervisor.stop()
                await task
        return problems

    assert asyncio.run(play()) == {
        "watch_stars": "watch_stars has failed and restarts in a minute: RuntimeError('there are none')"
    }
    store.close()


def test_a_service_that_dies_before_it_answers_is_no_mistake_of_whoever_asked(tmp_path: Path) -> None:
    def dies(place: socket.socket) -> None:
        for _ in range(2):
            line = place.accept()[0]
            line.recv(1)
            line.close()  # what was said is half read, so this is a reset

    with control.bound(str(tmp_path)) as place:
        dying = threading.Thread(target=dies, args=(place,))
        dying.start()
        assert control.ask(str(tmp_path), {"do": "status"}) == {}
        control.stop(str(tmp_path), finish=False)
        dying.join(PATIENCE)


def test_without_a_service_its_commands_say_so(tmp_path: Path) -> None:
    service = Service(tmp_path)
    status = service.rolecall("serve", "status", "--json")
    assert (status.returncode, json.loads(status.stdout)["running"]) == (1, False)
    stop = service.rolecall("serve", "stop")
    assert stop.returncode == 3
    assert "no service is running" in stop.stderr
    assert service.rolecall("serve", "logs").returncode == 5


@pytest.mark.parametrize("options", [[], ["--detach"]])
def test_a_home_that_cannot_be_written_to_is_told_with_what_to_do(tmp_path: Path, options: list[str]) -> None:
    service = Service(tmp_path)
    service.env["ROLECALL_HOME"] = "/proc/nowhere"
    refused = service.rolecall("serve", *options)
    assert refused.returncode == 5
    assert "cannot be started in /proc/nowhere" in refused.stderr and "ROLECALL_HOME" in refused.stderr


def test_a_mistake_in_the_projects_file_is_told_before_anything_runs(tmp_path: Path) -> None:
    service = Service(tmp_path)
    (tmp_path / "rolecall.yaml").write_text("workflows: {do-it: {concurency: 2}}\nservice: {limit: none}\n")
    refused = service.rolecall("serve", "--detach")
    assert refused.returncode == 2
    assert "concurrency" in refused.stderr and "limit" in refused.stderr
    assert not (service.home / "service.lock").exists()


def test_a_home_whose_path_is_too_long_for_a_socket_is_served_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / ("a-rather-long-name-of-a-folder-" * 4)
    folder.mkdir()
    with served(folder) as service:
        name = service.enter(service.workflow(), service.script(done("end")))
        assert service.ended(name) == ["completed"]
        service.stop()
        service.assert_clean()


def test_a_service_whose_home_is_deleted_says_so_and_ends_with_its_agents(service: Service) -> None:
    name = service.enter(service.workflow(), service.script(done(run=[["sleep", "300"]])))
    agent = service.event(name, "process")["pid"]
    assert service.process is not None
    shutil.rmtree(service.home)
    assert service.process.wait(PATIENCE) == 5, service.output()
    gone(agent)
    for pid in service.processes():
        gone(pid)
    message = f"the home of the service, {service.home}, was deleted or replaced"
    assert f"{message}: interrupting the service's steps and ending" in service.output()
    assert f"rolecall: {message}" in service.output() and "Traceback" not in service.output()


def test_a_thread_whose_agent_has_reached_a_limit_gives_its_slot_back_and_goes_on_in_time_over_a_crash(
    service: Service,
) -> None:
    agent = executable(
        service.folder / "agent",
        f"""
        echo asked >> {service.folder}/asked
        if [ -e {service.folder}/at ]; then printf -- '---\\n$status: end\\n---\\n'; exit 0; fi
        at=$(($(date +%s) + 6)); echo $at > {service.folder}/at
        echo "usage limit reached|$at" >&2; exit 75
        """,
    )
    name = service.enter(service.workflow(), f"command:{agent}")
    until = service.event(name, "limited")["until"]
    assert until == int((service.folder / "at").read_text()) * 1000
    state = service.state(name)
    assert (state["status"], state["until"]) == ("queued", until)
    assert service.store.backend.names("slot/") == []
    service.kill()
    service.start()
    assert "reached a limit until" in service.status()["waits"].get(name, "reached a limit until")
    assert service.ended(name) == ["completed"]
    begun = service.steps(name)[0].payload["started_at"]
    assert begun >= until
    assert (service.folder / "asked").read_text().count("asked") == 2
    service.stop()
    service.assert_clean()


def test_a_thread_that_is_resumed_does_not_wait_for_the_end_of_a_limit(service: Service) -> None:
    agent = executable(
        service.folder / "agent",
        f"""
        if [ -e {service.folder}/at ]; then printf -- '---\\n$status: end\\n---\\n'; exit 0; fi
        touch {service.folder}/at; echo "Rate limit reached, try again in 3 hours" >&2; exit 75
        """,
    )
    name = service.enter(service.workflow(), f"command:{agent}")
    service.event(name, "limited")
    assert service.rolecall("thread", "resume", name).returncode == 0
    assert service.ended(name) == ["completed"]
    service.stop()
    service.assert_clean()


def test_people_are_notified_by_the_process_of_a_step_and_by_the_service(service: Service) -> None:
    with closing(Pipe(service.folder / "pipe")) as pipe:
        # The program outlives the step, and nobody takes it for a leftover.
        tell = executable(service.folder / "tell", f'sleep 0.2; echo "$1" > {pipe.path}')
        settings = {"notify": {"command": [str(tell), "{event} {thread}"]}}
        (service.home / "config.yaml").write_text(json.dumps(settings))
        name = service.enter(service.workflow(), service.script(done("end")))
        assert pipe.read() == f"completed {name}\n"
        name = service.enter(service.workflow(), "no-such-agent")
        assert pipe.read() == f"waits {name}\n"
