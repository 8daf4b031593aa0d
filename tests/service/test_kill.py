"""Killing a thread of the service: before its role starts, while its agent works, after it has answered."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from servicestage import PATIENCE, PROGRAM, STEPS, Service, done, gone, served

KILL_137 = {"reason": "killed by a person", "exit_code": 137}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path) as service:
        yield service
        service.stop()
        service.assert_clean()


def killed(service: Service, name: str) -> dict[str, object]:
    result = service.rolecall("thread", "kill", name, "--json")
    assert result.returncode == 0, result.stderr
    reply: dict[str, object] = json.loads(result.stdout)
    return reply


def assert_killed(service: Service, name: str) -> None:
    assert service.thread_status(name) == "killed"
    (event,) = [event for event in service.events(name) if event.kind == "killed"]
    assert event.body == KILL_137
    assert service.kinds(name)[-1] == "killed"


def test_a_thread_that_waits_never_starts(service: Service) -> None:
    flow = service.workflow()
    busy = service.enter(flow, service.script({"hang": True}))
    service.event(busy, "step_started")
    name = service.enter(flow, service.script(done("end"), name="never"))
    killed(service, name)
    assert_killed(service, name)
    killed(service, busy)
    after = service.enter(flow, service.script(done("end"), name="after"))
    assert service.ended(after) == ["completed"]
    assert service.kinds(name) == ["queued", "killed"]


def test_the_agent_of_a_thread_that_is_killed_ends_and_its_worker_too(service: Service) -> None:
    name = service.enter(service.workflow(), service.script(done("end", run=[["sleep", "600"]])))
    agent = int(service.event(name, "process")["pid"])
    worker = int(service.state(name)["lease"]["pid"])
    assert killed(service, name)["process"] == worker
    gone(agent)
    gone(worker)
    assert_killed(service, name)
    assert service.steps(name) == []


def test_an_agent_that_ignores_every_request_to_end_is_ended(service: Service) -> None:
    stubborn = [["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 600 & wait; done"]]
    name = service.enter(service.workflow(), service.script(done("end", run=stubborn)))
    agent = int(service.event(name, "process")["pid"])
    killed(service, name)
    gone(agent)
    assert_killed(service, name)


def test_a_role_that_never_looks_up_is_ended_with_its_process(service: Service) -> None:
    code = """
import time
from rolecall import END, Role, Workflow

async def work(context):
    while True:
        time.sleep(600)  # the loop that would hear of the kill stands still

roles = {"worker": Role.function(work, {"type": "object"})}
workflow = Workflow("spin-around", roles=roles, moderator=lambda context: "worker")
"""
    name = service.enter(service.python_workflow("spin-around", code), None)
    service.event(name, "step_started")
    worker = int(service.state(name)["lease"]["pid"])
    killed(service, name)
    gone(worker)
    assert_killed(service, name)


def test_an_answer_that_comes_after_the_kill_becomes_no_step_and_no_further_role_is_called(
    service: Service,
) -> None:
    """The agent hands over its answer although it was asked to end, and before anybody has ended it."""
    os.mkfifo(service.work / "gate")
    code = """
import asyncio
from rolecall import END, Role, RoleResult, Workflow

async def work(context):
    open(context.workdir + f"/call-{len(context.steps)}", "w").close()
    with open(context.workdir + "/gate") as gate:
        gate.read()
    return RoleResult(content="Done all the same.", meta={})

roles = {"worker": Role.function(work, {"type": "object"})}
workflow = Workflow("answer-late", roles=roles, moderator=lambda context: "worker")
"""
    name = service.enter(service.python_workflow("answer-late", code), None)
    service.event(name, "step_started")
    worker = int(service.state(name)["lease"]["pid"])
    with suppress(BrokenPipeError), open(service.work / "gate", "w") as gate:  # the role waits at it by now
        killed(service, name)
        gate.write("now answer")
    gone(worker)
    assert_killed(service, name)
    assert service.steps(name) == []
    assert not (service.work / "call-1").exists()


def test_a_thread_that_is_killed_between_two_steps_takes_no_other(service: Service) -> None:
    """The first step kills its own thread: when it has ended nothing may begin."""
    os.mkfifo(service.work / "id")
    kill_me = [["sh", "-c", f"{PROGRAM} thread kill $(cat id) > /dev/null"]]
    agent = service.script(done(run=kill_me), done(edit={"second": "was called"}), done("end"))
    may_kill = STEPS.replace("goal: Work.", "goal: Work.\n    may_start_threads: true")
    name = service.enter(service.workflow(text=may_kill), agent)
    service.event(name, "process")
    (service.work / "id").write_text(name)
    assert service.ended(name) == ["killed"]
    assert_killed(service, name)
    assert not (service.work / "second").exists()


def test_whoever_follows_is_told_and_exits_with_the_code_of_a_kill(service: Service) -> None:
    flow = service.folder / "do-steps.yaml"
    flow.write_text(STEPS.format(name="do-steps"))
    agent = service.script({"hang": True})
    following = service.spawn("run", str(flow), "-p", "Do it", "--agent", agent, "--cwd", "work", "--json")
    assert following.stdout is not None
    for line in following.stdout:
        if json.loads(line).get("event") == "step_started":
            name = json.loads(line)["thread"]
            break
    killed(service, name)
    output, _ = following.communicate(timeout=PATIENCE)
    assert following.returncode == 8
    assert json.loads(output.splitlines()[-1])["status"] == "killed"
