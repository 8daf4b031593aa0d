"""The pipe with the official SDK's client on the other end, in every version that client negotiates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import mcp.types as types
import pytest
from mcp import Client, ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pipe import PATIENCE, PROGRAM, environment, make_project

from rolecall.mcp import protocol

Result = TypeVar("Result")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def parameters(project: Path, *options: str) -> StdioServerParameters:
    names = ("HOME", "ROLECALL_HOME")
    homes = {name: environment(project.parent)[name] for name in names}
    return StdioServerParameters(command=PROGRAM, args=["mcp", *options], env=homes, cwd=str(project))


def bounded(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


def replied(result: types.CallToolResult) -> Any:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return json.loads(content.text)


def test_the_versions_spoken_are_those_the_client_knows() -> None:
    assert protocol.HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert protocol.STATELESS_VERSIONS == MODERN_PROTOCOL_VERSIONS


@asynccontextmanager
async def handshaken(project: Path, version: str) -> AsyncIterator[ClientSession]:
    """The client's session, opened in a version of our choice instead of its newest."""
    client = types.Implementation(name="test", version="1")
    asked = types.InitializeRequestParams(
        protocol_version=version, capabilities=types.ClientCapabilities(), client_info=client
    )
    async with stdio_client(parameters(project)) as streams, ClientSession(*streams) as session:
        opened = await session.send_request(types.InitializeRequest(params=asked), types.InitializeResult)
        session.adopt(opened)
        await session.send_notification(types.InitializedNotification())
        yield session


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
def test_a_cycle_goes_through_in_every_version_with_a_handshake(project: Path, version: str) -> None:
    async def scene() -> None:
        async with handshaken(project, version) as session:
            assert session.protocol_version == version
            tools = (await session.list_tools()).tools
            assert {"nx_plan_start", "nx_task_add", "nx_task_close"} <= {tool.name for tool in tools}
            assert all(tool.input_schema["type"] == "object" and tool.description for tool in tools)
            assert all((tool.annotations is None) == (version < "2025-03-26") for tool in tools)
            added = await session.call_tool("nx_task_add", {"title": "t", "context": "c"})
            assert (added.structured_content is None) == (version < "2025-06-18")
            assert replied(added)["task"]["id"] == 1
            closed = await session.call_tool("nx_task_close", {})
            assert replied(closed)["archived"] == {"plan": False, "decisions": 0, "tasks": 1}
            missed = await session.call_tool("nx_task_update", {"id": 1, "status": "completed"})
            assert missed.is_error and replied(missed) == {"error": "tasks.json not found"}

    bounded(scene())


def test_the_client_itself_settles_on_the_newest_version(project: Path) -> None:
    async def scene() -> None:
        async with Client(parameters(project)) as client:
            assert client.protocol_version == LATEST_MODERN_VERSION
            await check_cycle(client)

    bounded(scene())


@pytest.mark.parametrize(
    ("mode", "version"),
    [("legacy", LATEST_HANDSHAKE_VERSION), *((version, version) for version in MODERN_PROTOCOL_VERSIONS)],
)
def test_the_client_gets_the_version_it_insists_on(project: Path, mode: str, version: str) -> None:
    async def scene() -> None:
        async with Client(parameters(project), mode=mode) as client:
            assert client.protocol_version == version
            await check_cycle(client)

    bounded(scene())


async def check_cycle(client: Client) -> None:
    assert "nx_plan_start" in {tool.name for tool in (await client.list_tools()).tools}
    plan = {"topic": "T", "issues": ["one"], "research_summary": ""}
    started = await client.call_tool("nx_plan_start", plan)
    assert started.structured_content == replied(started)
    assert replied(started)["issueCount"] == 1
    decided = await client.call_tool("nx_plan_decide", {"issue_id": 1, "decision": "So."})
    assert replied(decided)["allComplete"] is True
    missed = await client.call_tool("nx_plan_decide", {"issue_id": 9, "decision": "So."})
    assert missed.is_error and missed.structured_content == {"error": "Issue 9 not found"}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_client_is_told_of_a_tool_that_does_not_exist(project: Path, mode: str) -> None:
    async def scene() -> None:
        async with Client(parameters(project), mode=mode) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool("plan_start", {})
            assert caught.value.code == types.INVALID_PARAMS
            assert replied(await client.call_tool("nx_plan_status", {})) == {"active": False}

    bounded(scene())


def test_a_call_the_client_gives_up_on_does_not_disturb_the_next(project: Path) -> None:
    """The client cancels when it is cancelled itself; a reply to that would be a stray one."""

    async def scene() -> None:
        async with Client(parameters(project)) as client:
            abandoned = [
                asyncio.ensure_future(client.call_tool("nx_task_add", {"title": "t", "context": "c"}))
                for _ in range(20)
            ]
            await asyncio.sleep(0)
            for one in abandoned:
                one.cancel()
            ended = await asyncio.gather(*abandoned, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended)
            assert "branch" in replied(await client.call_tool("nx_context", {}))

    bounded(scene())


def test_many_calls_at_once_are_all_answered(project: Path) -> None:
    async def scene() -> None:
        async with Client(parameters(project)) as client:
            calls = [client.call_tool("nx_task_add", {"title": f"{n}", "context": "c"}) for n in range(40)]
            replies = [replied(result)["task"] for result in await asyncio.gather(*calls)]
            assert sorted(task["id"] for task in replies) == list(range(1, 41))
            assert sorted(int(task["title"]) for task in replies) == list(range(40))

    bounded(scene())


def test_arguments_of_a_megabyte_come_back_through_the_client(project: Path) -> None:
    async def scene() -> None:
        async with Client(parameters(project)) as client:
            title = "é" * 600_000
            added = await client.call_tool("nx_task_add", {"title": title, "context": "c"})
            assert replied(added)["task"]["title"] == title

    bounded(scene())
