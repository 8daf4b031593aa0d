"""`rolecall mcp` on a pipe: frames, versions, batches, cancellation, and how it ends. A real child process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any

import pytest
from pipe import PATIENCE, PROGRAM, Pipe, calling, cancelling, environment, make_project, piped, request

from rolecall.mcp.protocol import HANDSHAKE_VERSIONS
from rolecall.mcp.stdio import LONGEST

NEWEST = HANDSHAKE_VERSIONS[-1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def error_of(reply: Any) -> tuple[Any, int]:
    assert reply["jsonrpc"] == "2.0"
    assert reply["error"]["message"]
    return reply["id"], reply["error"]["code"]


# -- the opening --


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_a_version_that_is_known_is_agreed_to(project: Path, version: str) -> None:
    with piped(project) as pipe:
        result = pipe.initialize(version)
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["name"] == "rolecall"
    assert result["capabilities"] == {"tools": {}, "resources": {"subscribe": True}, "prompts": {}}
    assert str(project) in result["instructions"]


@pytest.mark.parametrize("version", ["1999-01-01", "2999-01-01", "2026-07-28", ""])
def test_a_version_that_no_handshake_reaches_is_answered_with_the_newest(project: Path, version: str) -> None:
    with piped(project) as pipe:
        assert pipe.initialize(version)["protocolVersion"] == NEWEST


def test_before_initialize_only_ping_is_answered(project: Path) -> None:
    with piped(project) as pipe:
        assert error_of(pipe.ask("tools/list"))[1] == -32600
        assert error_of(pipe.ask("tools/call", {"name": "nx_context"}))[1] == -32600
        assert pipe.ask("ping")["result"] == {}
        pipe.initialize()
        assert "nx_context" in pipe.tools()


@pytest.mark.parametrize("params", [None, {}, {"protocolVersion": 20250618}, {"protocolVersion": None}])
def test_initialize_without_a_version_is_refused_and_can_be_repeated(project: Path, params: Any) -> None:
    with piped(project) as pipe:
        assert error_of(pipe.ask("initialize", params))[1] == -32602
        assert pipe.initialize()["protocolVersion"] == "2025-06-18"


# -- frames --

MALFORMED = {
    "no JSON": (b"hello", -32700),
    "half of an object": (b'{"jsonrpc": "2.0", "id": 1', -32700),
    "NaN": (b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', -32700),
    "bytes that are not UTF-8": (b'{"jsonrpc": "2.0", "id": "\xff", "method": "ping"}', -32700),
    "UTF-16": ('{"jsonrpc": "2.0", "id": 1, "method": "ping"}'.encode("utf-16"), -32700),
    "an id with half of a character": (rb'{"jsonrpc": "2.0", "id": "\ud800", "method": "ping"}', -32600),
    "a number too long to be read": (
        b'{"jsonrpc": "2.0", "id": ' + b"9" * 9999 + b', "method": "ping"}',
        -32700,
    ),
    "a nesting without end": (b"[" * 200_000, -32700),
    "a number": (b"1", -32600),
    "a text": (b'"ping"', -32600),
    "null": (b"null", -32600),
    "an empty object": (b"{}", -32600),
    "an empty list": (b"[]", -32600),
    "a list": (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
    "a method that is a number": (b'{"jsonrpc": "2.0", "method": 1}', -32600),
    "an id that is null": (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
    "an id that is a list": (b'{"jsonrpc": "2.0", "id": [1], "method": "ping"}', -32600),
    "an id that is true": (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600),
    "an id with a fraction": (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600),
}


def test_a_malformed_frame_is_answered_with_its_code_and_no_id_and_the_server_goes_on(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        for name, (line, code) in MALFORMED.items():
            pipe.send(line)
            assert error_of(pipe.receive()) == (None, code), name
        assert pipe.ask("ping")["result"] == {}


def test_a_request_that_breaks_the_rules_is_answered_under_its_own_id(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        for message, code in (
            ({"id": "a", "method": "ping"}, -32600),
            ({"jsonrpc": "1.0", "id": "b", "method": "ping"}, -32600),
            ({"jsonrpc": "2.0", "id": "c"}, -32600),
            (request("d", "completion/complete"), -32601),
            (request("e", "subscriptions/listen"), -32601),
            (request("f", "logging/setLevel", {"level": "info"}), -32601),
            (request("g", "server/discover"), -32601),
            (request("h", "tools/list", []), -32602),
            (request("i", "tools/list", {"cursor": "2"}), -32602),
            (request("j", "tools/call"), -32602),
            (request("k", "tools/call", {"name": 1}), -32602),
            (calling("l", "no_such_tool"), -32602),
            (request("m", "tools/call", {"name": "nx_context", "arguments": [1]}), -32602),
        ):
            pipe.send(message)
            assert error_of(pipe.receive()) == (message["id"], code)
        assert pipe.ask("ping")["result"] == {}


HALF = rb"""{"jsonrpc": "2.0", "id": "%b", "method": "tools/call", "params": {"name": "nx_task_add",
 "arguments": {"title": "t", "context": "c", "decisions": ["\ud800"]}}}""".replace(b"\n", b"")


def test_half_of_a_character_is_the_error_of_the_call_it_came_in(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize("2025-03-26")
        pipe.send(HALF % b"mine")
        replies = [pipe.receive()]
        pipe.send(b"[%b, %b]" % (HALF % b"mine", json.dumps(request("yours", "ping")).encode()))
        first, second = pipe.receive()
        for reply in (*replies, first):
            assert (reply["id"], reply["result"]["isError"]) == ("mine", True)
            assert "half of a surrogate pair" in reply["result"]["content"][0]["text"]
        assert second == {"jsonrpc": "2.0", "id": "yours", "result": {}}
        pipe.send(
            HALF.replace(b"nx_task_add", rb"\udfff") % b"name", HALF.replace(b"tools/call", rb"\ud800") % b"m"
        )
        assert [error_of(pipe.receive()) for _ in range(2)] == [("name", -32602), ("m", -32601)]
        whole = HALF.replace(rb"\ud800", rb"\ud83d\ude00") % b"whole"
        pipe.send(whole)
        assert pipe.receive()["id"] == "whole"
        assert pipe.call("nx_context")["decisions"] == ["\U0001f600"]


def test_an_id_comes_back_as_it_was(project: Path) -> None:
    with piped(project) as pipe:
        for ident in (0, -1, 2**80, "", "0", "\0", "\U0001f600", 'a"\\'):
            pipe.send(request(ident, "ping"))
            assert pipe.receive() == {"jsonrpc": "2.0", "id": ident, "result": {}}


@pytest.mark.parametrize("depth", [300, 900])
def test_arguments_that_nest_too_deep_are_the_error_of_their_call(project: Path, depth: int) -> None:
    deep = b'{"a": ' * depth + b"1" + b"}" * depth
    with piped(project) as pipe:
        pipe.initialize()
        for name in ("thread_answer", "memory_add", "nx_task_add"):
            call = json.dumps(calling(name, name, thread="x", output="@")).encode()
            pipe.send(call.replace(b'"@"', deep))
            reply = pipe.receive()
            assert (reply["id"], reply["result"]["isError"]) == (name, True)
    assert (project.parent / "stderr").read_text() == ""


def test_notifications_and_stray_answers_get_no_reply(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        pipe.send(
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": "notifications/unheard_of", "params": [1]},
            {"jsonrpc": "2.0", "method": "tools/list"},
            {"jsonrpc": "2.0", "method": "notifications/cancelled"},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}},
            cancelling(99),
            {"jsonrpc": "2.0", "id": 7, "result": {}},
            {"jsonrpc": "2.0", "id": 8, "error": {"code": 1, "message": "?"}},
            b"",
            b"  \r",
        )
        assert pipe.ask("ping")["result"] == {}


def test_a_null_cursor_and_absent_params_mean_the_first_page(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        first = pipe.ask("tools/list")["result"]
        assert pipe.ask("tools/list", {"cursor": None})["result"] == first
        assert "nextCursor" not in first


def test_a_line_that_is_too_long_is_refused_passed_over_and_not_kept(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        # Beyond the first bytes nothing of the line is looked at, so it may be many times as long.
        for _ in range(6):
            pipe.child.stdin.write(b"x" * LONGEST)  # type: ignore[union-attr]
        pipe.send(b"", request(1, "ping"))
        assert error_of(pipe.receive()) == (None, -32600)
        assert pipe.receive()["result"] == {}
        assert peak_memory(pipe.child.pid) < 4 * LONGEST


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("this system does not tell the peak memory of another process")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_arguments_of_a_megabyte_arrive_whole(project: Path) -> None:
    text = 'Zeile – 日本 \\ " \u2028 \x01\n' * 50_000
    assert len(text.encode()) > 1_000_000
    with piped(project) as pipe:
        pipe.initialize()
        path = pipe.call("nx_artifact_write", filename="large.md", content=text)["path"]
        assert Path(path).read_bytes() == text.encode()
        title = "x" * 1_000_000
        assert pipe.call("nx_task_add", title=title, context="c")["task"]["title"] == title


def test_frames_may_arrive_in_pieces(project: Path) -> None:
    line = json.dumps(request("é", "ping"), ensure_ascii=False).encode() + b"\n"
    with piped(project) as pipe:
        pipe.initialize()
        for byte in line:
            os.write(pipe.child.stdin.fileno(), bytes([byte]))  # type: ignore[union-attr]
        assert pipe.receive() == {"jsonrpc": "2.0", "id": "é", "result": {}}


def test_what_breaks_in_the_server_is_the_answer_to_the_request_and_not_its_end(
    project: Path, tmp_path: Path
) -> None:
    """A module that the tools need cannot be imported."""
    (tmp_path / "xxhash.py").write_text("raise ImportError('broken on purpose')\n")
    with piped(project, PYTHONPATH=str(tmp_path)) as pipe:
        pipe.initialize()
        for _ in range(2):
            reply = pipe.ask("tools/list")
            assert reply["error"] == {"code": -32603, "message": "ImportError: broken on purpose"}
        assert pipe.ask("ping")["result"] == {}
    assert "broken on purpose" in (project.parent / "stderr").read_text()


def test_pipes_that_a_host_left_without_blocking_carry_large_replies(project: Path) -> None:
    theirs, ours = os.pipe(), os.pipe()
    for end in (theirs[0], ours[1]):
        os.set_blocking(end, False)
    child = subprocess.Popen(
        [PROGRAM, "mcp", "--project", str(project)],
        stdin=theirs[0],
        stdout=ours[1],
        env=environment(project.parent),
    )
    for end in (theirs[0], ours[1]):
        os.close(end)
    with open(theirs[1], "wb") as sink, open(ours[0], "rb") as source:
        opening = request(0, "initialize", {"protocolVersion": NEWEST})
        call = calling(1, "nx_task_add", title="x" * 500_000, context="c")
        sink.write(b"".join(json.dumps(one).encode() + b"\n" for one in (opening, call)))
        sink.close()
        replies = [json.loads(line) for line in source]
    assert child.wait(60) == 0
    assert len(replies[1]["result"]["content"][0]["text"]) > 500_000


def test_a_large_reply_is_sent_once_and_a_small_one_also_as_a_structure(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        for size in (1_000, 100_000):
            pipe.send(calling(size, "nx_task_add", title="t", context="x" * size))
            result = pipe.receive()["result"]
            reply = json.loads(result["content"][0]["text"])
            assert reply["task"]["context"] == "x" * size
            assert result.get("structuredContent") == (reply if size == 1_000 else None)
        pipe.send(calling("error", "nx_task_update", id=7, status="x" * 100_000))
        assert pipe.receive()["result"]["isError"] is True


# -- batches --


def test_a_batch_is_answered_as_a_batch_where_the_version_has_them(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize("2025-03-26")
        pipe.send([request(1, "ping"), cancelling(9), calling(2, "nx_plan_status"), request(3, "?"), 4])
        replies = pipe.receive()
        assert [(reply["id"], "error" in reply) for reply in replies] == [
            (1, False),
            (2, False),
            (3, True),
            (None, True),
        ]
        pipe.send([cancelling(9)])
        pipe.send([request(5, "initialize", {"protocolVersion": "2025-03-26"})])
        assert [error_of(reply) for reply in pipe.receive()] == [(5, -32600)]
        pipe.send([])
        assert error_of(pipe.receive()) == (None, -32600)


@pytest.mark.parametrize("version", [one for one in HANDSHAKE_VERSIONS if one != "2025-03-26"])
def test_other_versions_refuse_a_batch(project: Path, version: str) -> None:
    with piped(project) as pipe:
        pipe.initialize(version)
        pipe.send([request(1, "ping")])
        assert error_of(pipe.receive()) == (None, -32600)


# -- requests that say their version themselves --

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_a_request_that_says_its_version_needs_no_opening(project: Path) -> None:
    with piped(project) as pipe:
        found = pipe.ask("server/discover", {"_meta": ENVELOPE})["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        assert found["capabilities"] == {"tools": {}, "resources": {"subscribe": True}, "prompts": {}}
        tools = pipe.ask("tools/list", {"_meta": ENVELOPE})["result"]
        reply = pipe.ask("tools/call", {"_meta": ENVELOPE, "name": "nx_plan_status"})["result"]
        assert reply["structuredContent"] == {"active": False}
        for result in (found, tools, reply):
            assert result["resultType"] == "complete"
            assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "rolecall"
        for result in (found, tools):
            assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


def test_what_a_request_says_of_itself_is_checked(project: Path) -> None:
    version = "io.modelcontextprotocol/protocolVersion"
    with piped(project) as pipe:
        newer = pipe.ask("tools/list", {"_meta": {**ENVELOPE, version: "2999-01-01"}})
        assert error_of(newer)[1] == -32022
        assert newer["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2999-01-01"}
        assert error_of(pipe.ask("tools/list", {"_meta": {**ENVELOPE, version: 1}}))[1] == -32602
        assert error_of(pipe.ask("tools/list", {"_meta": {version: "2026-07-28"}}))[1] == -32602
        assert error_of(pipe.ask("ping", {"_meta": ENVELOPE}))[1] == -32601
        # A client that gave up on the newer way still has the older one.
        assert pipe.initialize()["protocolVersion"] == "2025-06-18"


# -- cancellation --


@contextmanager
def held(project: Path) -> Iterator[None]:
    """The project's lock in our hands: no tool that writes gets on meanwhile."""
    folder = project / ".nexus" / "state" / "rolecall"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_cancelled_request_gets_no_reply_and_is_not_begun_if_it_was_waiting(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        with held(project):
            pipe.send(calling("begun", "nx_task_add", title="begun", context="c"))
            pipe.send(calling("waits", "nx_task_add", title="waits", context="c"))
            pipe.send(cancelling("begun"), cancelling("waits"), request("after", "ping"))
            # The reading does not wait for the calls: this comes while the lock is held.
            assert pipe.receive()["id"] == "after"
        titles = [task["title"] for task in pipe.call("nx_task_list").get("tasks", [])]
        assert "waits" not in titles


def wait_until_it_waits(pipe: Pipe, project: Path) -> None:
    """For the lock, which is open then."""
    lock, end = str(project / ".nexus/state/rolecall/lock"), time.monotonic() + PATIENCE
    descriptors = Path(f"/proc/{pipe.child.pid}/fd")
    while time.monotonic() < end:
        for one in descriptors.iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(one) == lock:
                    return
    pytest.fail("it does not wait for the lock")


def test_a_writer_that_waits_for_the_lock_writes_nothing_once_it_is_cancelled(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        with held(project):
            pipe.send(calling("begun", "nx_task_add", title="begun", context="c"))
            wait_until_it_waits(pipe, project)
            pipe.send(cancelling("begun"), request("after", "ping"))
            assert pipe.receive()["id"] == "after"
        assert pipe.call("nx_task_add", title="next", context="c")["task"]["id"] == 1
        assert [task["title"] for task in pipe.call("nx_task_list")["tasks"]] == ["next"]


def test_reading_and_pings_do_not_wait_behind_writers(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        with held(project):
            pipe.send(*(calling(number, "nx_task_add", title="t", context="c") for number in range(100, 200)))
            pipe.send(calling("read", "nx_context"), request("ping", "ping"))
            assert {pipe.receive()["id"], pipe.receive()["id"]} == {"read", "ping"}
        assert [pipe.receive()["id"] for _ in range(100)] == list(range(100, 200))


def test_the_end_of_input_ends_a_server_that_waits_for_the_lock_and_says_what_was_not_done(
    project: Path,
) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        with held(project):
            pipe.send(*(calling(number, "nx_task_add", title="t", context="c") for number in range(100, 110)))
            wait_until_it_waits(pipe, project)
            code, rest = pipe.close()
        replies = [json.loads(line) for line in rest.splitlines()]
        assert (code, [reply["id"] for reply in replies]) == (0, list(range(100, 110)))
        assert all("Nothing was written" in reply["result"]["content"][0]["text"] for reply in replies)
    with piped(project) as pipe:
        pipe.initialize()
        assert "tasks" not in pipe.call("nx_task_list")


def test_a_call_that_comes_after_its_cancellation_is_carried_out(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        pipe.send(cancelling("early"), calling("early", "nx_plan_status"))
        assert pipe.receive()["id"] == "early"


def test_an_id_that_is_under_way_cannot_be_used_again(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        with held(project):
            pipe.send(calling(1, "nx_task_add", title="first", context="c"), calling(1, "nx_context"))
            assert error_of(pipe.receive()) == (1, -32600)
        assert pipe.receive()["id"] == 1
        assert pipe.call("nx_context")["tasksSummary"]["total"] == 1


# -- the end --


def test_what_had_arrived_is_answered_before_the_end_of_input_ends_the_server(project: Path) -> None:
    opening = request(0, "initialize", {"protocolVersion": NEWEST})
    calls = [calling(number, "nx_task_add", title=f"t{number}", context="c") for number in range(1, 31)]
    done = subprocess.run(
        [PROGRAM, "mcp", "--project", str(project)],
        input="\n".join(
            json.dumps(message) for message in (opening, *calls)
        ).encode(),  # no newline at the end
        capture_output=True,
        env=environment(project.parent),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reply["id"] for reply in replies] == list(range(31))
    assert replies[-1]["result"]["structuredContent"]["task"]["id"] == 30


@pytest.mark.parametrize("part", [b'{"jsonrpc": "2.0", "id": 1, "meth', b"\xe2\x82", b"x" * (LONGEST + 1)])
def test_an_input_that_ends_in_the_middle_of_a_frame_is_answered_and_ends(project: Path, part: bytes) -> None:
    with piped(project) as pipe:
        pipe.child.stdin.write(part)  # type: ignore[union-attr]
        code, said = pipe.close()
    assert code == 0
    assert error_of(json.loads(said)) == (None, -32600 if len(part) > LONGEST else -32700)


def test_a_client_that_reads_nothing_does_not_keep_the_server_from_ending(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        pipe.send(calling(1, "nx_task_add", title="x" * 1_000_000, context="c"))
        assert pipe.child.stdout is not None
        assert select([pipe.child.stdout], [], [], PATIENCE)[0]  # and more than the pipe holds follows
        pipe.child.send_signal(signal.SIGTERM)
        assert pipe.child.wait(120) == -signal.SIGTERM


def test_an_input_without_a_message_ends_with_success_and_says_nothing(project: Path) -> None:
    with piped(project) as pipe:
        assert pipe.close() == (0, b"")


def test_sigterm_ends_the_server_also_while_a_call_waits(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        with held(project):
            pipe.send(calling(1, "nx_task_add", title="t", context="c"), request(2, "ping"))
            assert pipe.receive()["id"] == 2
            pipe.child.send_signal(signal.SIGTERM)
            assert pipe.child.wait(120) == -signal.SIGTERM


def test_a_server_that_was_killed_leaves_nothing_that_holds_up_the_next(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        assert pipe.call("nx_task_add", title="kept", context="c")["task"]["id"] == 1
        pipe.send(*(calling(number, "nx_task_add", title="t", context="c") for number in range(100, 150)))
        pipe.receive()
        pipe.child.kill()
        pipe.child.wait()
    with piped(project) as pipe:
        pipe.initialize()
        tasks = pipe.call("nx_task_list")["tasks"]
        assert [task["id"] for task in tasks] == list(range(1, len(tasks) + 1))
        assert tasks[0]["title"] == "kept"


def test_a_client_that_stops_reading_ends_nothing_but_itself(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        pipe.child.stdout.close()  # type: ignore[union-attr]
        pipe.child.stdout = None
        pipe.send(calling(1, "nx_task_add", title="kept", context="c"))
        pipe.child.stdin.close()  # type: ignore[union-attr]
        assert pipe.child.wait(120) == 0
    with piped(project) as pipe:
        pipe.initialize()
        assert pipe.call("nx_task_list")["tasks"][0]["title"] == "kept"
