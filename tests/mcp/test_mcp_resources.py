"""Resources and prompts with the official client: what is listed and read, and who is told of a change."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import mcp.types as types
import pytest
from mcp import Client, MCPError
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.subscriptions import ResourceUpdated
from test_mcp_http import served
from test_mcp_sdk import bounded, parameters, replied
from threadstage import DONE, Stage

from rolecall.mcp.resources import MOST_SUBSCRIPTIONS, Library
from rolecall.mcp.tools import McpToolbox, ToolContext

NOTE = "pattern-retry-limits"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    found = Stage(tmp_path)
    found.script(DONE, DONE)
    return found


async def text_of(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri, cache_mode="bypass")).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


async def prepare(client: Client) -> str:
    """A thread after one step, a plan, a task and a note."""
    started = await client.call_tool("thread_start", {"workflow": "change-code", "prompt": "Fix it"})
    thread = str(replied(started)["thread"])
    await client.call_tool("thread_step", {"thread": thread})
    await client.call_tool(
        "nx_plan_start", {"topic": "Front page", "issues": ["Which?"], "research_summary": ""}
    )
    await client.call_tool("nx_task_add", {"title": "Do it", "context": "c"})
    note = {"name": "retry-limits", "category": "pattern", "text": "Three are enough."}
    assert not (await client.call_tool("memory_add", note)).is_error
    return thread


async def look_around(client: Client) -> None:
    thread = await prepare(client)
    listed = {str(one.uri): one for one in (await client.list_resources(cache_mode="bypass")).resources}
    fixed = {f"rolecall://{name}" for name in ("threads", "plan", "tasks", "memory")}
    assert {*listed} == {*fixed, f"rolecall://thread/{thread}", f"rolecall://memory/{NOTE}.md"}
    assert "change-code (idle): Fix it" in (listed[f"rolecall://thread/{thread}"].description or "")
    templates = (await client.list_resource_templates()).resource_templates
    assert {one.uri_template for one in templates} == {
        "rolecall://thread/{id}",
        "rolecall://thread/{id}/report",
        "rolecall://memory/{name}",
    }
    assert json.loads(await text_of(client, "rolecall://threads"))["threads"][0]["thread"] == thread
    assert json.loads(await text_of(client, f"rolecall://thread/{thread}"))["currentRole"] == "reviewer"
    assert "Did it." in await text_of(client, f"rolecall://thread/{thread}/report")
    assert "Front page" in await text_of(client, "rolecall://plan")
    assert "Do it" in await text_of(client, "rolecall://tasks")
    assert NOTE in await text_of(client, "rolecall://memory")
    assert "Three are enough." in await text_of(client, f"rolecall://memory/{NOTE}.md")
    for wrong in (
        "rolecall://thread",
        "rolecall://thread/nope",
        "rolecall://memory/nope.md",
        "rolecall://memory/..%2F..%2Fsecret.md",
        "rolecall://plan/x",
        "rolecall://memory/x/report",
        "file:///etc/passwd",
    ):
        with pytest.raises(MCPError):
            await client.read_resource(wrong)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_threads_plans_and_notes_are_listed_and_read(stage: Stage, mode: str) -> None:
    async def scene() -> None:
        async with Client(parameters(stage.project), mode=mode) as client:
            await look_around(client)

    bounded(scene())


def test_resources_are_listed_and_read_over_http(stage: Stage) -> None:
    async def scene(address: str) -> None:
        async with Client(address) as client:
            await look_around(client)

    with served(stage.project) as door:
        bounded(scene(door.address))


# -- subscriptions --


async def change(client: Client, uri: str, thread: str) -> None:
    """Change a resource."""
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "plan": ("nx_plan_decide", {"issue_id": 1, "decision": "So."}),
        "tasks": ("nx_task_update", {"id": 1, "status": "completed"}),
        "memory": ("memory_add", {"name": "build-flags", "text": "Use none.", "new": True}),
        "threads": ("thread_answer", {"thread": thread, "output": {"$status": "approved"}}),
    }
    name, arguments = changes[uri.removeprefix("rolecall://").replace(f"thread/{thread}", "threads")]
    assert not (await client.call_tool(name, arguments)).is_error


KINDS = ["threads", "thread", "plan", "tasks", "memory"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_an_older_version_is_told_of_changes_until_it_unsubscribes(
    stage: Stage, kind: str
) -> None:
    async def scene() -> None:
        reported: asyncio.Queue[str] = asyncio.Queue()

        async def hear(message: Any) -> None:
            if isinstance(message, types.ResourceUpdatedNotification):
                reported.put_nowait(str(message.params.uri))

        async with Client(parameters(stage.project), mode="legacy", message_handler=hear) as client:
            thread = await prepare(client)
            uri = f"rolecall://thread/{thread}" if kind == "thread" else f"rolecall://{kind}"
            with pytest.warns(MCPDeprecationWarning):
                await client.subscribe_resource(uri)
            await change(client, uri, thread)
            assert await reported.get() == uri
            with pytest.warns(MCPDeprecationWarning):
                await client.unsubscribe_resource(uri)
                with pytest.raises(MCPError):
                    await client.subscribe_resource("rolecall://thread/nope")

    bounded(scene())


async def listen(client: Client) -> None:
    thread = await prepare(client)
    uris = [f"rolecall://thread/{thread}", "rolecall://plan"]
    async with client.listen(resource_subscriptions=uris) as changes:
        events = aiter(changes)
        for uri in uris:
            await change(client, uri, thread)
            assert await anext(events) == ResourceUpdated(uri)


def test_a_client_of_the_newest_version_listens_to_a_stream_of_changes(stage: Stage) -> None:
    async def scene() -> None:
        async with Client(parameters(stage.project)) as client:
            await listen(client)
            assert replied(await client.call_tool("nx_plan_status", {}))["active"] is True

    bounded(scene())


def test_a_client_over_http_listens_to_a_stream_of_changes(stage: Stage) -> None:
    async def scene(address: str) -> None:
        async with Client(address) as client:
            await listen(client)

    with served(stage.project) as door:
        bounded(scene(door.address))


def watchers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "resources"]


def test_nothing_looks_for_changes_while_nobody_is_subscribed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLECALL_HOME", str(stage.folder / "home" / "rolecall"))
    library = Library(McpToolbox(ToolContext(str(stage.project))))
    library.list_resources()
    assert watchers() == []
    end = library.subscribe(["rolecall://plan", "rolecall://memory"], lambda _uri: None)
    other = library.subscribe(["rolecall://plan"], lambda _uri: None)
    (looking,) = watchers()
    end()
    assert looking.is_alive()
    other()
    looking.join(60)
    assert watchers() == []


def test_subscriptions_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_HOME", str(stage.folder / "home" / "rolecall"))
    library = Library(McpToolbox(ToolContext(str(stage.project))))
    ends = [library.subscribe(["rolecall://plan"], lambda _uri: None) for _ in range(MOST_SUBSCRIPTIONS)]
    with pytest.raises(Exception, match=f"at most {MOST_SUBSCRIPTIONS} resources"):
        library.subscribe(["rolecall://plan"], lambda _uri: None)
    (looking,) = watchers()
    for end in ends:
        end()
    looking.join(60)


def test_a_group_that_is_left_out_has_no_resources(stage: Stage) -> None:
    with stage.open("--without", "memory,threads") as pipe:
        listed = pipe.ask("resources/list")["result"]["resources"]
        assert {one["uri"] for one in listed} == {"rolecall://plan", "rolecall://tasks"}
        assert pipe.ask("resources/read", {"uri": "rolecall://memory"})["error"]["code"] == -32002
    with stage.open("--only", "knowledge") as pipe:
        assert pipe.ask("resources/list")["error"]["code"] == -32601
        assert pipe.ask("prompts/list")["error"]["code"] == -32601


# -- prompts --


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_skills_are_prompts_with_their_arguments(stage: Stage, mode: str) -> None:
    async def scene() -> None:
        async with Client(parameters(stage.project), mode=mode) as client:
            await use_prompts(client)

    bounded(scene())


def test_skills_are_prompts_over_http(stage: Stage) -> None:
    async def scene(address: str) -> None:
        async with Client(address) as client:
            await use_prompts(client)

    with served(stage.project) as door:
        bounded(scene(door.address))


async def use_prompts(client: Client) -> None:
    listed = {one.name: one for one in (await client.list_prompts()).prompts}
    assert {*listed} == {"nx-init", "nx-plan", "nx-run", "nx-sync"}
    arguments = {name: [one.name for one in listed[name].arguments or []] for name in ("nx-plan", "nx-run")}
    assert arguments == {"nx-plan": ["request", "mode"], "nx-run": ["request"]}
    got = await client.get_prompt("nx-plan", {"mode": "auto", "request": "a front page"})
    (message,) = got.messages
    assert isinstance(message.content, types.TextContent)
    assert "nx-plan in the mode auto" in message.content.text
    assert message.content.text.endswith("What the user wants: a front page")
    assert "{{" not in message.content.text
    for name, given in (("nope", {}), ("nx-plan", {"mode": "loud"}), ("nx-run", {"speed": "high"})):
        with pytest.raises(MCPError) as caught:
            await client.get_prompt(name, given)
        assert caught.value.code == types.INVALID_PARAMS


@pytest.mark.parametrize("options", [("--as", "engineer"), ("--without", "skills")])
def test_agents_and_hosts_with_skills_of_their_own_get_no_prompts(
    stage: Stage, options: tuple[str, ...]
) -> None:
    with stage.open(*options) as pipe:
        assert pipe.ask("prompts/list")["error"]["code"] == -32601
