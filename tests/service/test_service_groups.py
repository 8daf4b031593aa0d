"""A group under the service: its members are threads in the queue, and the thread that waits for them holds no slot."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from servicestage import Service, done, served

from rolecall.store.ids import ThreadId
from rolecall.threads.state import ThreadRef, read_threads

FLOW = """
name: {name}
description: A group and a last role
roles:
  member:
    times: 12
    at_once: 4
    workdir: shared
    goal: Work as number {{{{number}}}}.
    schema: {{type: object, properties: {{$status: {{enum: [done]}}}}, required: [$status]}}
  last:
    goal: End.
    schema: {{type: object, properties: {{$status: {{enum: [end]}}}}, required: [$status]}}
graph:
  $START: member
  member: {{done: last, partly: last, failed: $FAIL}}
  last: {{end: $END}}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, "--at-once", "1") as running:
        yield running


def members_of(service: Service, name: str) -> list[ThreadRef]:
    return [ref for ref in read_threads(service.store) if ref.state.parent == name]


def test_a_group_larger_than_the_service_does_not_lock_itself(service: Service) -> None:
    flow = service.workflow("grouped", FLOW)
    name = service.enter(flow, service.script(member=done(), last=done("end")))
    assert service.ended(name) == ["completed"]
    [group, last] = service.steps(name)
    assert (group.output["status"], group.output["done"], last.role) == ("done", 12, "last")
    assert Counter(ref.state.status for ref in members_of(service, name)) == {"completed": 12}
    service.stop()
    service.assert_clean()


def test_a_script_that_follows_gets_a_line_for_each_event_of_a_member(service: Service) -> None:
    (service.folder / "grouped.yaml").write_text(FLOW.format(name="grouped"))
    agent = service.script(member=done(), last=done("end"))
    result = service.rolecall("run", "./grouped.yaml", "-p", "Do it", "--agent", agent, "--json")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    thread = lines[-1]["thread"]
    assert next(line for line in lines if line["thread"] == thread)["event"] == "group"
    of_members = [line for line in lines if line.get("parent") == thread]
    assert Counter(line["event"] for line in of_members if line["event"] in ("started", "step", "over")) == {
        "started": 12,
        "step": 12,
        "over": 12,
    }
    assert {line["member"] for line in of_members if line.get("status") == "done"} == set(range(1, 13))


def test_a_thread_that_reuses_asks_nobody_again(service: Service) -> None:
    flow = service.workflow("grouped", FLOW.replace("times: 12", "times: 3"))
    run = [["sh", "-c", f"echo . >> {service.folder}/asked"]]
    agent = service.script(member=done(run=run), last=done("end", run=run))
    first = service.enter(flow, agent)
    assert service.ended(first) == ["completed"]
    second = service.enter(flow, agent, reuse=True)
    assert service.ended(second) == ["completed"]
    assert len((service.folder / "asked").read_text().split()) == 4
    assert [step.reused and step.reused.thread for step in service.steps(second)] == [None, first]
    assert service.steps(second)[0].payload["totals"]["saved"]["steps"] == 3


def test_members_run_at_once_although_their_workflow_does_not(tmp_path: Path) -> None:
    with served(tmp_path, "--concurrency", "1") as service:
        meet = f"touch $$.here; until test $(ls {service.work} | wc -l) -ge 4; do sleep 0.05; done"
        script = service.script(member=done(run=[["sh", "-c", meet]]), last=done("end"))
        name = service.enter(service.workflow("grouped", FLOW), script)
        assert service.ended(name) == ["completed"]


def test_persons_are_waited_for_without_a_slot_or_a_process(service: Service) -> None:
    text = FLOW.replace("    workdir: shared\n", "    workdir: shared\n    agent: human\n")
    name = service.enter(service.workflow("asked", text), service.script(last=done("end")))

    def asked() -> list[ThreadId]:
        found = [ref.id for ref in members_of(service, name) if ref.state.status == "suspended"]
        return found if len(found) == 12 and service.thread_status(name) == "waiting" else []

    members = service.until(asked)
    other = service.enter(service.workflow(), service.script(done("end"), name="other"))
    assert service.ended(other) == ["completed"]
    for member in members:
        result = service.rolecall("thread", "answer", member, "--output", '{"$status": "done"}')
        assert result.returncode == 0, result.stderr
    assert service.ended(name) == ["completed"]
    assert service.steps(name)[0].output["done"] == 12


def test_killing_the_thread_ends_its_members_and_their_agents(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        flow = service.workflow("grouped", FLOW)
        name = service.enter(flow, service.script(member=done(run=[["sleep", "300"]])))

        def at_work() -> bool:
            running = [ref for ref in members_of(service, name) if service.store.ref(f"attempt/{ref.id}")]
            return len(running) == 4 and service.thread_status(name) == "waiting"

        service.until(at_work)
        assert service.rolecall("thread", "kill", name).returncode == 0
        assert [ref.state.status for ref in members_of(service, name)] == ["killed"] * 4
        service.until(lambda: service.status()["running"] == [])
        service.stop()
        service.assert_clean()


def test_a_deadline_passes_while_nothing_happens(service: Service) -> None:
    text = FLOW.replace("    at_once: 4\n", "    at_once: 4\n    deadline: 0.05\n")
    script = service.script(member=done(run=[["sleep", "300"]]), last=done("end"))
    name = service.enter(service.workflow("late", text), script)
    assert service.ended(name) == ["failed"]
    assert Counter(one["status"] for one in service.steps(name)[0].output["members"]) == {"stopped": 12}


TEAM = """
name: {name}
description: A race of two
roles:
  fast: &member
    workdir: shared
    goal: Work.
    schema: {{type: object, properties: {{$status: {{enum: [done]}}}}, required: [$status]}}
  slow: *member
  race: {{roles: [fast, slow, slow], join: first}}
graph: {{$START: race, race: {{done: $END, partly: $END, failed: $FAIL}}}}
limits: {{cost: 9}}
"""


def test_what_stopped_members_have_used_is_charged_to_the_thread(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        both = ["sh", "-c", "until test $(ls slow-* | wc -l) -eq 2; do sleep 0.05; done"]
        script = service.script(
            fast=done(run=[both], usage={"cost": 0.25}),
            slow=done(run=[["sh", "-c", "touch slow-$$"]], usage={"cost": 0.5}, hang=True),
        )
        name = service.enter(service.workflow("race", TEAM), script)
        assert service.ended(name) == ["completed"]
        [step] = service.steps(name)
        assert [one["status"] for one in step.output["members"]] == ["done", "stopped", "stopped"]
        assert (step.payload["totals"]["cost"], step.payload["usage"]["cost"]) == (1.25, 1.25)
        assert [ref.state["dollars"] for ref in service.store.refs("spend/")] == [1.25]


def test_members_that_fail_alike_suspend_the_thread_and_resume_tries_them_again(service: Service) -> None:
    flow = service.workflow("grouped", FLOW)
    name = service.enter(flow, service.script(member={"fail": {"reason": "the login has expired"}}))
    assert service.ended(name) == ["suspended"]
    assert "the login has expired" in service.state(name)["reason"]
    tried = len(members_of(service, name))
    assert 3 <= tried < 12
    service.script(member=done(), last=done("end"))
    assert service.rolecall("thread", "resume", name).returncode == 0
    assert service.ended(name) == ["completed"]
    assert service.steps(name)[0].output["done"] == 12


def test_a_thread_of_the_service_can_be_run_here(tmp_path: Path) -> None:
    with served(tmp_path, "--concurrency", "1") as service:
        text = FLOW.replace("    workdir: shared\n", "    workdir: shared\n    agent: human\n")
        name = service.enter(service.workflow("asked", text), service.script(last=done("end")))

        def asked() -> list[ThreadId]:
            found = [ref.id for ref in members_of(service, name) if ref.state.status == "suspended"]
            return found if len(found) == 12 and service.thread_status(name) == "waiting" else []

        members = service.until(asked)
        service.stop()
        for member in members:
            service.rolecall("thread", "answer", member, "--output", '{"$status": "done"}')
        assert service.rolecall("thread", "run", name).returncode == 0
        assert service.thread_status(name) == "completed"


def test_members_with_worktrees_are_merged_by_the_service(service: Service) -> None:
    folder = service.work
    folder.mkdir(exist_ok=True)
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("-c", "user.name=S", "-c", "user.email=s@b", "commit", "--quiet", "--allow-empty", "-m", "first"),
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    text = FLOW.replace(
        "workdir: shared", "workdir: worktree\n    merge: queue\n    check: [test, -e, written]"
    )
    # The name of a member's worktree ends with its id.
    write = ["sh", "-c", "touch written file-$(basename $(dirname $PWD))"]
    name = service.enter(
        service.workflow("merged", text), service.script(member=done(run=[write]), last=done("end"))
    )
    assert service.ended(name) == ["completed"]
    group = service.steps(name)[0].output
    assert (group["status"], group["done"]) == ("done", 12)
    assert {path.name for path in folder.glob("file-*")} == {f"file-{one['id']}" for one in group["members"]}
