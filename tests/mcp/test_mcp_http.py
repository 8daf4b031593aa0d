"""The HTTP door: the same tools through the official SDK, and who is not let in. A real server on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

TOKEN = "a-token-of-this-test-that-is-long-enough"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def door(stage: Stage) -> Iterator[Served]:
    """A server for all tests that leave it as it was: starting one takes the SDK a second."""
    with served(stage.project, lasting=1200) as door:
        yield door


class Served:
    def __init__(self, child: subprocess.Popen[str], address: str) -> None:
        self.child = child
        self.address = address

    def post(self, **headers: str) -> int:
        """The status that an opening request gets; headers as given, the rest as they must be."""
        return self.ask("initialize", **headers)[0]

    def ask(self, method: str, *, verb: str = "POST", **headers: str) -> tuple[int, str]:
        """The status that a request gets, and the session that the answer names."""
        asked = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": asked})
        place = urlsplit(self.address)
        plain = {"Host": place.netloc, "Content-Type": "application/json"}
        plain["Accept"] = "application/json, text/event-stream"
        connection = HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE)
        try:
            connection.request(verb, place.path, body if verb == "POST" else None, {**plain, **headers})
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers.get("Mcp-Session-Id", "")
        finally:
            connection.close()


@contextmanager
def served(
    project: Path,
    *options: str,
    lasting: float = PATIENCE,
    program: Sequence[str] = (PROGRAM,),
    **more: str,
) -> Iterator[Served]:
    """A server, which is killed after a while so that a test fails instead of hanging."""
    with open(project.parent / "stderr", "ab") as errors:
        child = subprocess.Popen(
            [*program, "mcp", "--http", "--project", str(project), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(project.parent, **more),
        )
    watchdog = Timer(lasting, child.kill)
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
    large = await client.call_tool("nx_task_add", {"title": "t", "context": "x" * 100_000})
    assert large.structured_content is None and len(replied(large)["task"]["context"]) == 100_000
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


def test_a_session_ends_when_its_client_says_so(door: Served) -> None:
    status, session = door.ask("initialize")
    assert status == 200 and session
    ours = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-06-18"}
    assert door.ask("ping", **ours)[0] == 200
    assert door.ask("", verb="DELETE", **ours)[0] == 200
    assert door.ask("ping", **ours)[0] == 404


def test_a_session_ends_when_nobody_uses_it(project: Path) -> None:
    code = (
        "import sys; from rolecall import __main__ as program; from rolecall.mcp import http;"
        "http.IDLE_SECONDS = 0.2; sys.exit(program.main(sys.argv[1:]))"
    )
    with served(project, program=[sys.executable, "-c", code]) as door:
        ours = {"Mcp-Session-Id": door.ask("initialize")[1], "Mcp-Protocol-Version": "2025-06-18"}
        deadline = time.monotonic() + PATIENCE
        pause = 0.3  # a request that is too early lets the time begin again
        while door.ask("ping", **ours)[0] != 404:
            assert time.monotonic() < deadline
            time.sleep(pause)
            pause *= 2


def test_strange_hosts_and_origins_are_refused(door: Served) -> None:
    port = urlsplit(door.address).port
    for headers, status in (
        ({}, 200),
        ({"Host": f"localhost:{port}"}, 200),
        ({"Host": f"LocalHost:{port}"}, 200),
        ({"Host": f"localhost.:{port}"}, 200),
        ({"Host": f"[::1]:{port}"}, 200),
        ({"Host": f"[0:0:0:0:0:0:0:1]:{port}"}, 200),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Origin": "http://LOCALHOST"}, 200),
        ({"Host": f"127.0.0.1:0{port}"}, 200),
        ({"Host": f"evil.example:{port}"}, 421),
        ({"Host": f"127.0.0.1:{(port or 0) + 1}"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1:80"}, 421),
        ({"Host": ""}, 421),
        ({"Host": f"localhost..:{port}"}, 421),
        ({"Host": f"evil@127.0.0.1:{port}"}, 421),
        ({"Host": f"127.0.0.1:{port}/x"}, 421),
        ({"Host": f"127.0.0.1:{port}:{port}"}, 421),
        ({"Host": f"192.168.7.7:{port}"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example:80"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://localhost:6274"}, 403),
        ({"Origin": "file://localhost"}, 403),
        ({"Origin": "http://localhost:1 http://evil.example"}, 403),
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
    short = refused(project, "--http", "--host", "0.0.0.0", "--token-env", "SHORT", SHORT="x" * 31)
    assert "its token must have at least 32 characters, not 31" in short
    assert "secrets.token_urlsafe(32)" in short
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


def test_names_may_be_allowed_with_their_port(project: Path) -> None:
    names = (
        "--allow-host",
        "Box.Example.",
        "--allow-host",
        "proxy.example:8443",
        "--allow-host",
        "[2001:DB8::1]",
    )
    with served(project, *names) as door:
        port = urlsplit(door.address).port
        for host, status in (
            ("BOX.example", 200),
            (f"box.example.:{port}", 200),
            ("box.example:81", 421),
            ("proxy.example:8443", 200),
            ("proxy.example", 421),
            (f"proxy.example:{port}", 421),
            ("[2001:db8:0::1]", 200),
        ):
            assert door.post(Host=host) == status, host
        assert door.post(Origin="https://proxy.example:8443") == 200
        assert door.post(Origin="https://proxy.example") == 403
    for name in ("http://box.example", "box.example/x", "box example", "", "*", "[::1", "b\u00fcx.example"):
        assert "is not the name of a host" in refused(project, "--http", "--allow-host", name)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_on_all_addresses_a_client_may_call_by_address(project: Path, host: str) -> None:
    """Whoever calls by an address in numbers was led here by no name that somebody else may change."""
    with served(project, "--host", host, "--token-env", "DOOR_TOKEN", DOOR_TOKEN=TOKEN) as door:
        port = urlsplit(door.address).port
        door.address = f"http://{'[::1]' if ':' in host else '127.0.0.1'}:{port}/mcp"
        known = {"Authorization": f"Bearer {TOKEN}"}
        for name in (
            f"127.0.0.1:{port}",
            f"192.168.7.7:{port}",
            "192.168.7.7:9000",
            f"[2001:DB8::1]:{port}",
            "10.0.0.1",
        ):
            assert door.post(**known, Host=name) == 200, name
            assert door.post(Host=name) == 401, name
        for name in (
            f"localhost:{port}",
            f"evil.example:{port}",
            "10.0.0.1.evil.example",
            "010.0.0.1",
            "0x7f.1",
        ):
            assert door.post(**known, Host=name) == 421, name
        assert door.post(**known, Host="10.0.0.1:9", Origin="http://10.0.0.1:9") == 200
        for origin in ("http://10.0.0.2:9", "http://10.0.0.1:8", "http://evil.example", "http://localhost:9"):
            assert door.post(**known, Host="10.0.0.1:9", Origin=origin) == 403, origin


def test_on_port_80_a_host_without_a_port_is_ours(project: Path) -> None:
    try:
        socket.create_server(("127.0.0.1", 80)).close()
    except OSError as error:
        pytest.skip(f"port 80 cannot be had here: {error}")
    with served(project, "--port", "80", "--allow-host", "box.example") as door:
        assert door.address == "http://127.0.0.1:80/mcp"
        for host in ("127.0.0.1", "127.0.0.1:80", "localhost", "LOCALHOST.", "box.example", "box.example:80"):
            assert door.post(Host=host) == 200, host
        for host in ("127.0.0.1:8080", "evil.example", "box.example:8080"):
            assert door.post(Host=host) == 421, host


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example", "[::1]", "a b", ""])
def test_a_host_that_is_no_address_is_refused(project: Path, host: str) -> None:
    said = refused(project, "--http", "--host", host, "--token-env", "DOOR_TOKEN", DOOR_TOKEN=TOKEN)
    assert f"--host {host!r} is not an address on which a server can listen" in said
    assert "127.0.0.1" in said


def test_the_options_of_the_http_door_are_refused_on_the_pipe(project: Path) -> None:
    for option in ("--host", "--port", "--token-env", "--allow-host"):
        assert f"{option} is for the HTTP door" in refused(project, option, "9")


def test_half_of_a_character_is_the_error_of_its_call_over_http_too(door: Served) -> None:
    version = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "nx_task_add", "arguments": {"title": "\ud800", "context": "c"}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": params})
    place = urlsplit(door.address)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    headers |= {"MCP-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "nx_task_add"}
    connection.request("POST", place.path, body, headers)
    reply = json.loads(connection.getresponse().read())
    connection.close()
    assert (reply["id"], reply["result"]["isError"]) == ("mine", True)
    assert "half of a surrogate pair" in reply["result"]["content"][0]["text"]


def test_clients_that_never_finish_hold_up_neither_others_nor_the_end(project: Path) -> None:
    head = b"POST /mcp HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nAccept: */*\r\n"
    with served(project) as door, ExitStack() as held:
        place = urlsplit(door.address)
        begun = head % place.netloc.encode()
        for part in (b"", b"PO", begun, begun + b"Content-Length: 99\r\n\r\n{"):
            for _ in range(50):
                address = (str(place.hostname), place.port)
                held.enter_context(socket.create_connection(address, PATIENCE)).sendall(part)
        assert door.post() == 200
        door.child.terminate()
        assert door.child.wait(PATIENCE) == -signal.SIGTERM


def test_a_port_that_is_taken_is_named(project: Path, door: Served) -> None:
    port = str(urlsplit(door.address).port)
    said = refused(project, "--http", "--port", port, code=5)
    assert f"the server cannot listen on 127.0.0.1:{port}" in said


def test_an_interrupt_ends_the_http_door(project: Path) -> None:
    with served(project) as door:
        assert door.post() == 200
        door.child.send_signal(signal.SIGINT)
        assert door.child.wait(PATIENCE) == 130


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
        assert door.child.wait(PATIENCE) == -signal.SIGTERM


async def begun_step(client: Client) -> asyncio.Future[types.CallToolResult]:
    started = await client.call_tool("thread_start", {"workflow": "change-code", "prompt": "x"})
    return asyncio.ensure_future(client.call_tool("thread_step", {"thread": replied(started)["thread"]}))


def test_without_the_sdk_the_http_door_says_what_to_install_and_the_pipe_works(project: Path) -> None:
    """An interpreter that sees the package and its other needs, but no SDK."""
    hide = (
        "import sys\n"
        "sys.modules['mcp'] = None\n"
        "from rolecall.__main__ import command\n"
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
