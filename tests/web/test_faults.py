"""What goes wrong around the page: repeated requests, threads that cannot be run, slow code, a full disk, a locked
store."""

from __future__ import annotations

import json
import resource
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from webstage import AGAIN, DAILY, PATIENCE, Project, Site, served, until

SLOW = """
import os, sys, time
from rolecall import END, Role, Workflow

print("loaded, which is no reply")
if os.path.exists("broken"):
    os._exit(3)
while os.path.exists("wait"):
    time.sleep(0.02)

async def greet(prompt, context):
    return "---\\nstatus: done\\n---\\nHello."

schema = {"type": "object", "properties": {"status": {"const": "done"}}}
workflow = Workflow("slow", {"greeter": Role(greet, "Greet.", schema)}, lambda seen: END if seen.steps else "greeter")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("faults"))
    (made.folder / "rolecall.yaml").write_text(DAILY)
    return made


@pytest.fixture(scope="module")
def site(project: Project) -> Iterator[Site]:
    with served(project) as found:
        yield found.sign_in()


def test_a_repeated_request_creates_one_thread(project: Project, site: Site) -> None:
    body = {"workflow": "loop", "prompt": "Once", "agent": "scripted:again.yaml"}
    key = "0123456789abcdef"
    with ThreadPoolExecutor(4) as pool, site.events() as events:
        next(events)
        made = list(pool.map(lambda _: site.post("/threads", body, Idempotency_Key=key), range(4)))
        until(events, "step", status="completed")
    assert len({one["thread"] for one in made}) == 1 and not any(one["problem"] for one in made)
    ident = made[0]["thread"]
    assert site.get(f"/threads/{ident}")["problem"] is None
    file = project.folder / ".workflows" / "loop.yaml"
    file.rename(file.with_suffix(".away"))
    assert site.post("/threads", body, Idempotency_Key=key)["thread"] == ident
    file.with_suffix(".away").rename(file)
    other = site.post("/threads", {**body, "prompt": "Twice"}, status=409, Idempotency_Key=key)
    assert ident in other["error"]
    assert site.post("/threads", body, status=400, Idempotency_Key="short")["code"] == "usage"

    fork = {"at": "1", "run": False}
    forks = [site.post(f"/threads/{ident}/fork", fork, Idempotency_Key=f"{key}-fork") for _ in range(2)]
    assert forks[0]["thread"] == forks[1]["thread"] != ident

    fired = [site.post("/triggers/loop/daily/fire", Idempotency_Key=f"{key}-fire") for _ in range(2)]
    assert fired[0]["thread"] == fired[1]["thread"]
    assert site.get("/service")["triggers"][0]["fired"] == 1
    # No service is there to run it, which the inbox says.
    [item] = [one for one in site.get("/inbox")["items"] if one["thread"] == fired[0]["thread"]]
    assert item["kind"] == "run" and "waiting for a service" in item["reason"]
    site.post(f"/threads/{item['thread']}/kill")


def test_a_thread_that_cannot_be_run_waits_in_the_inbox(project: Project, site: Site) -> None:
    script = project.folder / "own.yaml"
    script.write_text(json.dumps(AGAIN))
    ident = project.start("loop", script="own.yaml")
    script.rename(project.folder / "away.yaml")
    waiting = site.get("/me")["waiting"]
    with site.events() as events:
        next(events)
        assert site.post(f"/threads/{ident}/run")["runs"] == "process"
        until(events, "problem")
        [item] = [one for one in site.get("/inbox")["items"] if one["thread"] == ident]
        assert (item["kind"], item["continue"]) == ("run", "Run") and "own.yaml" in item["reason"]
        assert site.get("/me")["waiting"] == waiting + 1
        (project.folder / "away.yaml").rename(script)
        site.post(f"/threads/{ident}/run")
        until(events, "step", status="completed")
    assert site.get("/me")["waiting"] == waiting


def test_an_answer_that_comes_while_a_process_ends_is_carried_on(project: Project, site: Site) -> None:
    visit = {"output": {"status": "done"}, "body": "Done."}
    (project.folder / "same.yaml").write_text(
        json.dumps({"roles": {"worker": [visit]}, "after_last": "repeat"})
    )
    ident = project.start("approve", script="same.yaml")
    site.post(f"/threads/{ident}/run")
    for steps in (1, 3, 5):
        wait_for_step(site, ident, steps)
        output = {"output": {"status": "rejected", "why": "no"}}
        assert site.post(f"/threads/{ident}/answer", output)["problem"] is None
    wait_for_step(site, ident, 7)


def wait_for_step(site: Site, ident: str, number: int) -> None:
    """Wait until a step is taken and the person is asked, and no longer: its process has not ended then."""
    late = monotonic() + PATIENCE
    while (shown := site.get(f"/threads/{ident}"))["steps"] < number or shown["status"] != "suspended":
        assert monotonic() < late


def test_code_of_a_workflow_cannot_hold_up_the_page(project: Project, site: Site) -> None:
    (project.folder / ".workflows" / "slow.py").write_text(SLOW)
    assert site.get("/workflows/slow")["isPython"] is True
    body = {"workflow": "slow", "prompt": "Go"}
    (project.folder / "broken").touch()
    assert "ended its process" in site.post("/threads", body, status=502)["error"]
    (project.folder / "broken").unlink()

    (project.folder / "wait").touch()
    with ThreadPoolExecutor(4) as pool, site.events() as events:
        next(events)
        asked = [pool.submit(site.post, "/threads", body), pool.submit(site.post, "/forecast", body)]
        made = site.post("/threads", {"workflow": "loop", "prompt": "Go", "agent": "scripted:again.yaml"})
        until(events, "step", status="completed")
        assert site.get(f"/threads/{made['thread']}/diff")["problem"] is None
        ident = project.start("loop")
        site.post(f"/threads/{ident}/kill")
        assert not any(one.done() for one in asked)
        (project.folder / "wait").unlink()
        slow = asked[0].result()
        assert slow["runs"] == "process" and asked[1].result()["asks"] == "greeter"
        until(events, "step", status="completed")
    assert site.get(f"/threads/{slow['thread']}")["status"] == "completed"


def test_a_full_disk_is_reported_and_reading_goes_on(project: Project, site: Site) -> None:
    ident = project.start("loop")
    assert site.child is not None
    before = resource.prlimit(site.child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(site.child.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        started = {"workflow": "loop", "prompt": "x", "agent": "scripted:again.yaml"}
        for path, body in ((f"/threads/{ident}/kill", {}), ("/threads", started)):
            refused = site.post(path, body, status=503)
            assert refused["code"] == "storage" and refused["error"]
        assert site.get(f"/threads/{ident}")["status"] == "idle"
        assert site.get("/threads")["threads"]
        assert site.get("/inbox")["more"] is False
        with site.events() as events:
            assert next(events)["kind"] == "hello"
    finally:
        resource.prlimit(site.child.pid, resource.RLIMIT_FSIZE, before)
    site.post(f"/threads/{ident}/kill")
    assert site.get(f"/threads/{ident}")["status"] == "killed"


def test_while_the_store_is_locked_one_can_read(project: Project, site: Site) -> None:
    ident = project.start("loop")
    with sqlite3.connect(project.home / "store.db") as db, ThreadPoolExecutor(1) as pool:
        db.execute("BEGIN IMMEDIATE")
        killing = pool.submit(site.post, f"/threads/{ident}/kill")
        assert site.get(f"/threads/{ident}")["status"] == "idle"
        assert not killing.done()
        db.rollback()
        assert killing.result()["thread"] == ident


def test_two_servers_of_one_store_agree(project: Project, site: Site) -> None:
    ident = project.start("approve")
    project.run(ident, code=7)
    with served(project) as other, site.events(thread=ident) as events:
        next(events)
        question = other.sign_in().get(f"/threads/{ident}")["question"]
        body = {"output": {"status": "approved", "points": 1}, "head": question["head"]}
        with ThreadPoolExecutor(2) as pool:
            replies = pool.map(
                lambda place: place.send("POST", f"/api/threads/{ident}/answer", body, X_Rolecall="1").status,
                (site, other),
            )
        assert sorted(replies) == [200, 409]
        until(events, "step", status="completed")
    assert site.get(f"/threads/{ident}")["steps"] == 2
