"""The HTTP door: the same tools through the official SDK, and who is not let in. A real server on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

import httpx2
import mcp.types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pipe import PATIENCE, PROGRAM, environment, make_project
from threadstage import Hanging, Stage

TOKEN = "a-token-of-this-test"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def door(stage: Stage) -> Iterator[Served]:
    """A server for all tests that leave it as it was: starting one takes the SDK a second."""
    with served(stage.project) as door:
        yield door


class Served:
    def __init__(self, child: subprocess.Popen[str], address: str) -> None:
        self.child = child
        self.address = address

    def post(self, **headers: str) -> int:
        """The status that an opening request gets; headers as given, the rest as they must be."""
        asked = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked})
        place = urlsplit(self.address)
        plain = {"Host": place.netloc, "Content-Type": "application/json"}
        plain["Accept"] = "application/json, text/event-stream"
        connection = HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE)
        try:
            connection.request("POST", place.path, body, {**plain, **headers})
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def served(project: Path, *options: str, **more: str) -> Iterator[Served]:
    with open(project.parent / "stderr", "ab") as errors:
        child = subprocess.Popen(
            [PROGRAM, "mcp", "--http", "--project", str(project), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(project.parent, **more),
        )
    watchdog = Timer(PATIENCE, child.kill)
    watchdog.start()
    assert child.stdout is not None
    try:
        yield Served(child, child.stdout.readline().strip())
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        child.stdout.close()


def refused(project: Path, *options: str, code: int = 2, **more: str) -> str:
    """What is said by a server that does not start."""
    done = subprocess.run(
        [PROGRAM, "mcp", "--project", str(project), *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(project.parent, **more),
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    return done.stderr


def replied(result: types.CallToolResult) -> Any:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return json.loads(content.text)


async def use(client: Client, version: str) -> None:
    assert client.protocol_version == version
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert {"nx_plan_start", "thread_step"} <= names
    added = await client.call_tool("nx_task_add", {"title": "t", "context": "c"})
    assert added.structured_content == replied(added)
    assert replied(added)["task"]["status"] == "pending"
    missed = await client.call_tool("nx_plan_decide", {"issue_id": 1, "decision": "d"})
    assert missed.is_error and replied(missed) == {"error": "No active plan session"}


def test_the_client_uses_the_tools_over_http_in_both_eras(door: Served) -> None:
    async def scene() -> None:
        for mode, version in (("legacy", LATEST_HANDSHAKE_VERSION), ("auto", LATEST_MODERN_VERSION)):
            async with Client(door.address, mode=mode) as client:
                await use(client, version)

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", door.address)
    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_strange_hosts_and_origins_are_refused(door: Served) -> None:
    port = urlsplit(door.address).port
    for headers, status in (
        ({}, 200),
        ({"Host": f"localhost:{port}"}, 200),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Host": f"evil.example:{port}"}, 421),
        ({"Host": f"127.0.0.1:{(port or 0) + 1}"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example:80"}, 403),
        ({"Origin": "null"}, 403),
    ):
        assert door.post(**headers) == status, headers


def test_a_token_is_asked_for_when_there_is_one(project: Path) -> None:
    async def scene(address: str) -> None:
        known = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=known) as http,
            Client(streamable_http_client(address, http_client=http)) as client,
        ):
            await use(client, LATEST_MODERN_VERSION)

    with served(project, "--token-env", "DOOR_TOKEN", DOOR_TOKEN=TOKEN) as door:
        for given, status in (
            (None, 401),
            ("", 401),
            ("Bearer", 401),
            ("Bearer ", 401),
            (f"Bearer {TOKEN}x", 401),
            (f"Bearer {TOKEN[:-1]}", 401),
            (f"Basic {TOKEN}", 401),
            (TOKEN, 401),
            ("Bearer t\xf6ken", 401),
            (f"bearer {TOKEN}", 200),
            (f"Bearer {TOKEN}", 200),
        ):
            headers = {} if given is None else {"Authorization": given}
            assert door.post(**headers) == status, given
        assert door.post(Authorization=f"Bearer {TOKEN}", Host="evil.example") == 421
        asyncio.run(asyncio.wait_for(scene(door.address), PATIENCE))


def test_off_loopback_a_token_is_required(project: Path) -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3", "some-name.example"):
        said = refused(project, "--http", "--host", host)
        assert f"a server on {host} can be reached by others, so it needs a token" in said
        assert "--token-env" in said
    assert "holds no token" in refused(project, "--http", "--token-env", "EMPTY", EMPTY=" ")
    assert "holds no token" in refused(project, "--http", "--token-env", "NOT_SET")


def test_off_loopback_only_names_that_were_allowed_are_served(project: Path) -> None:
    options = ("--host", "0.0.0.0", "--token-env", "DOOR_TOKEN", "--allow-host", "box.example")
    with served(project, *options, DOOR_TOKEN=TOKEN) as door:
        port = urlsplit(door.address).port
        door.address = f"http://127.0.0.1:{port}/mcp"
        known = {"Authorization": f"Bearer {TOKEN}"}
        assert door.post(**known, Host=f"box.example:{port}") == 200
        assert door.post(**known, Host="box.example") == 200
        assert door.post(**known, Host=f"box.example:{port}", Origin="https://box.example") == 200
        assert door.post(**known, Host=f"localhost:{port}") == 421
        assert door.post(**known, Host=f"box.example:{port}", Origin="http://localhost:1") == 403
        assert door.post(Host=f"box.example:{port}") == 401


def test_the_options_of_the_http_door_are_refused_on_the_pipe(project: Path) -> None:
    for option in ("--host", "--port", "--token-env", "--allow-host"):
        assert f"{option} is for the HTTP door" in refused(project, option, "9")


def test_a_port_that_is_taken_is_named(project: Path, door: Served) -> None:
    port = str(urlsplit(door.address).port)
    said = refused(project, "--http", "--port", port, code=5)
    assert f"127.0.0.1:{port} cannot be listened on" in said


def test_an_interrupt_ends_the_http_door(project: Path) -> None:
    with served(project) as door:
        assert door.post() == 200
        door.child.send_signal(signal.SIGINT)
        assert door.child.wait(30) == 130


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_step_over_http_is_stopped_when_its_call_is_cancelled(
    stage: Stage, door: Served, mode: str
) -> None:
    hanging = Hanging(stage)

    async def scene() -> None:
        async with Client(door.address, mode=mode) as client:
            step = await begun_step(client)
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(hanging.wait_for_end, lambda: loop.call_soon_threadsafe(step.cancel))
            with pytest.raises(asyncio.CancelledError):
                await step
            assert replied(await client.call_tool("nx_plan_status", {})) == {"active": False}

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_a_step_over_http_is_stopped_when_the_server_is_told_to_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    hanging = Hanging(stage)

    async def scene(door: Served) -> None:
        async with Client(door.address) as client:
            step = await begun_step(client)
            await asyncio.to_thread(hanging.wait_for_end, door.child.terminate)
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)

    with served(stage.project) as door:
        asyncio.run(asyncio.wait_for(scene(door), PATIENCE))
        assert door.child.wait(30) == -signal.SIGTERM


async def begun_step(client: Client) -> asyncio.Future[types.CallToolResult]:
    started = await client.call_tool("thread_start", {"workflow": "change-code", "prompt": "x"})
    return asyncio.ensure_future(client.call_tool("thread_step", {"thread": replied(started)["thread"]}))


def test_without_the_sdk_the_http_door_says_what_to_install_and_the_pipe_works(project: Path) -> None:
    """An interpreter that sees the package and its other needs, but no SDK."""
    hide = (
        "import sys\n"
        "sys.modules['mcp'] = None\n"
        "from rolecall.cli import command\n"
        "raise SystemExit(command())\n"
    )
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", hide, "mcp", "--project", str(project), *options],
            input=json.dumps(opening),
            capture_output=True,
            text=True,
            env=environment(project.parent),
            timeout=PATIENCE,
            check=False,
        )

    without = run("--http")
    assert (without.returncode, without.stdout) == (2, "")
    assert "pip install 'rolecall[mcp]'" in without.stderr
    assert json.loads(run().stdout)["result"]["protocolVersion"] == "2025-06-18"
