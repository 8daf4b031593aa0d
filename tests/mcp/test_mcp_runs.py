"""Whole runs over MCP with the official client: progress, cancellation, and threads that go on without the caller."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from mcp import Client
from pipe import environment
from test_mcp_http import served
from test_mcp_sdk import bounded, parameters, replied
from threadstage import DONE, Hanging, Stage

LONG = """
name: write-much
description: Writes much.
roles:
  developer:
    description: Develops
    goal: Write it.
    frontmatter:
      type: object
      properties: {$status: {enum: [done]}, notes: {type: string}}
      required: [$status, notes]
graph: {$START: developer, developer: {done: $END}}
"""
APPROVED = {"thread": "", "output": {"$status": "approved"}}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    found = Stage(tmp_path)
    found.write("write-much.yaml", LONG)
    return found


class Heard:
    """What a client was told of the progress of its call."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.messages: list[str] = []
        self.first = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        self.numbers.append(progress)
        self.messages.append(message or "")
        self.first.set()


async def run_and_listen(client: Client) -> None:
    heard = Heard()
    ran = replied(
        await client.call_tool(
            "workflow_run", {"workflow": "change-code", "prompt": "Fix it"}, progress_callback=heard
        )
    )
    assert (ran["status"], ran["currentRole"], ran["continue"]) == ("suspended", "reviewer", "thread_answer")
    assert heard.numbers == sorted(set(heard.numbers))
    assert heard.messages[0] == f"thread {ran['thread']}"
    assert "developer has answered; reviewer is next" in heard.messages
    answered = await client.call_tool("thread_answer", {**APPROVED, "thread": ran["thread"]})
    assert replied(answered)["status"] == "completed"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_run_reports_its_progress_and_ends_with_a_summary(stage: Stage, mode: str) -> None:
    stage.script(DONE)

    async def scene() -> None:
        async with Client(parameters(stage.project), mode=mode) as client:
            await run_and_listen(client)

    bounded(scene())


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_run_over_http_reports_its_progress(stage: Stage, mode: str) -> None:
    stage.script(DONE)

    async def scene(address: str) -> None:
        async with Client(address, mode=mode) as client:
            await run_and_listen(client)

    with served(stage.project) as door:
        bounded(scene(door.address))


def test_nothing_is_reported_to_a_client_that_did_not_ask(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:  # `call` fails on any message before the reply
        assert pipe.call("workflow_run", workflow="change-code", prompt="Fix it")["status"] == "suspended"


async def cancel_and_continue(client: Client, stage: Stage, hanging: Hanging) -> None:
    task = {"workflow": "change-code", "prompt": "Fix it"}
    run = asyncio.ensure_future(client.call_tool("workflow_run", task))
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(hanging.wait_for_end, lambda: loop.call_soon_threadsafe(run.cancel))
    with pytest.raises(asyncio.CancelledError):
        await run
    stage.script(DONE)
    (left,) = replied(await client.call_tool("thread_list", {}))["threads"]
    await settle(client, left["thread"])
    continued = replied(await client.call_tool("thread_run", {"thread": left["thread"]}))
    assert (continued["thread"], continued["currentRole"]) == (left["thread"], "reviewer")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_cancelled_run_stops_cleanly_and_its_thread_can_be_continued(stage: Stage, mode: str) -> None:
    hanging = Hanging(stage)

    async def scene() -> None:
        async with Client(parameters(stage.project), mode=mode) as client:
            await cancel_and_continue(client, stage, hanging)

    bounded(scene())


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_run_that_is_cancelled_over_http_stops_cleanly(stage: Stage, mode: str) -> None:
    hanging = Hanging(stage)

    async def scene(address: str) -> None:
        async with Client(address, mode=mode) as client:
            await cancel_and_continue(client, stage, hanging)

    with served(stage.project) as door:
        bounded(scene(door.address))


async def settle(client: Client, thread: str) -> None:
    """Wait until the process has given the thread back."""
    while replied(await client.call_tool("thread_show", {"thread": thread}))["status"] == "running":
        await asyncio.sleep(0.05)


# -- without waiting --


def test_a_run_that_is_not_waited_for_outlives_the_server_and_is_waited_for_by_the_next(stage: Stage) -> None:
    gate = stage.folder / "gate"
    os.mkfifo(gate)
    stage.script({"run": [["sh", "-c", f"read line < '{gate}'"]], **DONE})

    async def hand_over() -> str:
        async with Client(parameters(stage.project)) as client:
            task = {"workflow": "change-code", "prompt": "Fix it", "wait": False}
            handed = replied(await client.call_tool("workflow_run", task))
            assert handed["runs"] == "process" and "thread_wait" in handed["more"]
            waited = await client.call_tool("thread_wait", {"thread": handed["thread"], "seconds": 0})
            assert replied(waited)["isOver"] is False
            return str(handed["thread"])

    async def wait_for(thread: str) -> None:
        async with Client(parameters(stage.project)) as client:
            heard = Heard()
            asked = client.call_tool("thread_wait", {"thread": thread}, progress_callback=heard)
            waiting = asyncio.ensure_future(asked)
            await heard.first.wait()  # the developer works
            await asyncio.to_thread(gate.write_text, "go\n")
            waited = replied(await waiting)
            assert (waited["isOver"], waited["status"], waited["currentRole"]) == (
                True,
                "suspended",
                "reviewer",
            )

    thread = bounded(hand_over())
    bounded(wait_for(thread))


def test_a_run_that_cannot_begin_says_why_to_whoever_waits(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        (stage.folder / "script.json").unlink()
        assert pipe.call("thread_run", thread=thread, wait=False)["runs"] == "process"
        waited = pipe.call("thread_wait", thread=thread)
        assert waited["isOver"] is True and "script.json" in waited["problem"]
        assert waited["status"] in ("idle", "suspended")


def test_a_workflow_without_an_agent_leaves_no_thread_behind(stage: Stage) -> None:
    (Path(environment(stage.folder)["ROLECALL_HOME"]) / "config.yaml").unlink()
    with stage.open() as pipe:
        error = pipe.call("workflow_run", workflow="change-code", prompt="x")["error"]
        assert error.startswith("no agent is named for the role 'developer' of 'change-code'\n")
        assert "rolecall config set defaultAgent" in error
        assert pipe.call("thread_list") == {"threads": []}


def test_waiting_for_a_thread_that_has_ended_returns_its_result_at_once(stage: Stage) -> None:
    stage.script({"output": {"$status": "done", "notes": "n"}, "body": "Did it."})
    with stage.open() as pipe:
        thread = pipe.call("workflow_run", workflow="write-much", prompt="x")["thread"]
        waited = pipe.call("thread_wait", thread=thread)
        assert (waited["isOver"], waited["result"]["status"]) == (True, "done")


# -- small replies --


def test_a_long_result_is_short_until_everything_is_asked_for(stage: Stage) -> None:
    notes = "All of it. " * 2_000
    stage.script({"output": {"$status": "done", "notes": notes}, "body": "Word. " * 5_000})
    with stage.open() as pipe:
        ran = pipe.call("workflow_run", workflow="write-much", prompt="x")
        assert len(json.dumps(ran)) < 3_000
        assert (ran["status"], ran["result"]["status"]) == ("completed", "done")
        assert "more characters" in ran["result"]["output"]["notes"]
        assert "thread_read" in ran["more"]
        whole = pipe.call("thread_show", thread=ran["thread"], detail=True)
        assert whole["result"]["output"]["notes"] == notes
        assert whole["cwd"] == str(stage.project)


def test_lists_and_workflows_are_short_until_everything_is_asked_for(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:
        pipe.call("thread_start", workflow="change-code", prompt="x")
        (brief,) = pipe.call("thread_list")["threads"]
        (whole,) = pipe.call("thread_list", detail=True)["threads"]
        assert brief.items() <= whole.items() and {"head", "folders"} <= whole.keys() - brief.keys()
        outline = pipe.call("workflow_show", workflow="change-code")["workflow"]
        detailed = pipe.call("workflow_show", workflow="change-code", detail=True)["workflow"]
        assert outline["roles"]["reviewer"]["description"] == "Reviews"
        assert outline["graph"] == detailed["graph"]
        assert len(json.dumps(outline)) < len(json.dumps(detailed))
        listed = {one["name"]: one for one in pipe.call("workflow_list", detail=True)["workflows"]}
        assert listed["change-code"]["path"].endswith("change-code.yaml")
        assert not any("path" in one for one in pipe.call("workflow_list")["workflows"])


def test_a_restricted_agent_may_wait_but_not_run(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
    with stage.open("--as", "tester") as pipe:
        assert "for the lead" in pipe.call("workflow_run", workflow="change-code", prompt="x")["error"]
        assert pipe.call("thread_wait", thread=thread, seconds=0)["isOver"] is False
