"""Requests that start threads: only with the secret, within bounds, and nothing secret in what they leave."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import select
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ports import held_port
from test_triggers import WORKFLOW, Stage

from rolecall.service import project_file
from rolecall.service.problems import Problems
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.run import Triggers
from rolecall.settings.mask import MASKED, Mask
from rolecall.workflow import registry

SECRET = "a-secret-of-some-length"
PLAIN = 'called: {http: {secret_env: HOOK_SECRET}, prompt: "{{body.text}}"}'
SIGNED = 'signed: {http: {secret_env: HOOK_SECRET, signature: X-Hub-Signature-256}, prompt: "{{body.text}}"}'


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.store.close()


def asked(
    port: int,
    headers: dict[str, str],
    *,
    path: str = "/hooks/hello/called",
    body: bytes = b'{"text": "hi"}',
    method: str = "POST",
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def served(stage: Stage, triggers: str, ask: Callable[[int], Any], *, mask: Mask | None = None) -> Any:
    """Ask a running server from another thread of control, as anybody would."""

    async def play() -> Any:
        running = Triggers(stage.store, env=stage.env, mask=mask or Mask(()), say=stage.said.append)
        running.update(stage.project(triggers), stage.workflows)
        task = asyncio.create_task(running.run())
        try:
            async with asyncio.timeout(90):
                while running.port is None:
                    await asyncio.sleep(0.01)
                return await asyncio.to_thread(ask, running.port)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(play())


def bearer(secret: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_request_with_the_secret_starts_a_thread_and_is_told_which(stage: Stage) -> None:
    status, answer = served(stage, PLAIN, lambda port: asked(port, bearer()))
    assert status == 202
    [ref] = stage.threads()
    assert ref.name == f"thread/{answer['thread']}"
    assert stage.prompts() == ["hi"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer a-secret-of-some-lengtX"},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": SECRET},
        {"X-Rolecall-Secret": SECRET + "x"},
    ],
)
def test_without_the_secret_nothing_is_started(stage: Stage, headers: dict[str, str]) -> None:
    status, answer = served(stage, PLAIN, lambda port: asked(port, headers))
    assert (status, answer) == (401, {"error": "the secret is missing or wrong"})
    assert stage.threads() == []


def test_a_hook_whose_secret_is_not_set_lets_nobody_in(stage: Stage) -> None:
    del stage.env["HOOK_SECRET"]
    assert served(stage, PLAIN, lambda port: asked(port, bearer("")))[0] == 401
    assert served(stage, SIGNED, lambda port: signed(port, b"{}", key=""))[0] == 401
    assert stage.threads() == []


def signed(port: int, body: bytes, *, key: str = SECRET, **more: str) -> Any:
    signature = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={signature}", **more}
    return asked(port, headers, path="/hooks/hello/signed", body=body)


def test_a_signed_hook_goes_by_the_signature_of_the_body_alone(stage: Stage) -> None:
    def ask(port: int) -> list[int]:
        body = b'{"text": "signed"}'
        return [
            signed(port, body)[0],
            signed(port, body, key="another")[0],
            asked(port, bearer(), path="/hooks/hello/signed", body=body)[0],
            asked(port, path="/hooks/hello/signed", body=body, headers={"X-Hub-Signature-256": "sha256="})[0],
        ]

    assert served(stage, SIGNED, ask) == [202, 401, 401, 401]
    assert stage.prompts() == ["signed"]


def test_a_signed_request_that_is_sent_again_under_other_headers_is_known(stage: Stage) -> None:
    triggers = SIGNED.replace("prompt:", 'dedupe: "{{headers.delivery}}", prompt:').replace(
        "{{body.text}}", "{{body}}"
    )
    body, other = b'{"text": "signed"}', b'{"text": "another"}'

    def ask(port: int) -> list[Any]:
        return [
            signed(port, body, Delivery="1"),
            signed(port, body, Delivery="2"),
            signed(port, body, Delivery="3", **{"Content-Type": "text/plain"}),
            signed(port, other, Delivery="1"),
            signed(port, other, Delivery="4"),
        ]

    answers = served(stage, triggers, ask)
    assert [status for status, _ in answers] == [202, 200, 200, 200, 202]
    assert answers[1][1]["reason"] == "a request with the same signed body was already handled"


def test_without_dedupe_every_signed_request_counts(stage: Stage) -> None:
    assert served(stage, SIGNED, lambda port: [signed(port, b'{"text": "x"}')[0] for _ in "ab"]) == [202, 202]


def test_what_is_asked_for_wrongly_is_refused_with_what_is_wrong(stage: Stage) -> None:
    def ask(port: int) -> list[int]:
        return [
            asked(port, bearer(), path="/hooks/hello/other")[0],
            asked(port, bearer(), path="/")[0],
            asked(port, bearer(), method="GET")[0],
            asked(port, bearer(), body=b"{not json")[0],
            asked(port, bearer(), body=b'{"other": 1}')[0],
            asked(port, bearer(), body=b"x" * 1_000_001)[0],
        ]

    assert served(stage, PLAIN, ask) == [404, 404, 405, 400, 422, 413]
    assert stage.threads() == []
    assert "{{body.text}} has no value" in stage.memory("called").problem


def test_of_requests_with_the_same_key_the_first_counts(stage: Stage) -> None:
    triggers = (
        'called: {http: {secret_env: HOOK_SECRET}, prompt: "{{body.text}}", dedupe: "{{headers.x-delivery}}"}'
    )

    def ask(port: int) -> list[int]:
        return [asked(port, {"X-Delivery": key, **bearer()})[0] for key in ("one", "one", "two", "one")]

    assert served(stage, triggers, ask) == [202, 200, 202, 200]
    # After a restart they are still known.
    assert served(stage, triggers, lambda port: asked(port, {"X-Delivery": "two", **bearer()})) == (
        200,
        {"thread": None, "reason": "a signal with the key 'two' was already handled"},
    )


def test_a_thread_whose_folder_cannot_be_made_uses_up_its_key_and_is_a_problem_of_its_trigger(
    stage: Stage,
) -> None:
    """Whoever was told to ask again would only hear that this was already handled."""
    stage.write("workflows/hello.yaml", WORKFLOW.replace("    goal:", "    workdir: copy\n    goal:"))
    book = registry.load_file(str(stage.folder / "workflows" / "hello.yaml"))
    stage.workflows["hello"] = registry.register(stage.store, book)
    home = Path(stage.env["ROLECALL_HOME"])
    home.mkdir()
    (home / "work").write_text("no folder")
    once = f'{PLAIN[:-1]}, dedupe: "{{{{body.text}}}}"}}'
    status, reported = served(stage, once, lambda port: asked(port, bearer()))
    assert status == 422
    assert "copy cannot be created" in reported["error"]
    assert "copy cannot be created" in stage.memory("called").problem
    assert stage.memory("called").keys == (memories.digest_of("hi"),)
    assert stage.threads() == []


def test_a_template_in_a_payload_is_text(stage: Stage) -> None:
    body = json.dumps({"text": "{{headers.host}} {{project}}"}).encode()
    served(stage, PLAIN, lambda port: asked(port, bearer(), body=body))
    assert stage.prompts() == ["{{headers.host}} {{project}}"]


def test_the_secret_is_in_nothing_that_is_stored_or_said(stage: Stage, tmp_path: Path) -> None:
    triggers = 'called: {http: {secret_env: HOOK_SECRET}, prompt: "{{body}} {{headers}} {{query}}"}'
    body = json.dumps({"text": f"I know {SECRET}, and {'t0ken-of-the-environment'}"}).encode()

    def ask(port: int) -> Any:
        return asked(
            port, {"Cookie": "session=1", **bearer()}, path=f"/hooks/hello/called?q={SECRET}", body=body
        )

    assert served(stage, triggers, ask, mask=Mask(["t0ken-of-the-environment"]))[0] == 202
    [prompt] = stage.prompts()
    assert prompt.count(MASKED) == 3
    assert "session=1" not in prompt
    for file in tmp_path.glob("store.db*"):
        assert SECRET.encode() not in file.read_bytes()
    assert SECRET not in "".join(stage.said)


def test_whoever_waits_to_be_told_to_go_on_is_told_so(stage: Stage) -> None:
    body = b'{"text": "hi"}'
    head = (
        f"POST /hooks/hello/called HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {SECRET}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=90) as line:
            line.sendall(head.encode())
            reported = line.recv(4096)
            line.sendall(body)
            while piece := line.recv(4096):
                reported += piece
        return reported

    reported = served(stage, PLAIN, ask)
    assert reported.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 202 " in reported
    assert stage.prompts() == ["hi"]


def test_a_text_that_is_no_json_is_a_body_too(stage: Stage) -> None:
    triggers = 'called: {http: {secret_env: HOOK_SECRET}, prompt: "{{body}} {{query.a}}"}'

    def ask(port: int) -> Any:
        return asked(
            port,
            {"Content-Type": "text/plain", **bearer()},
            path="/hooks/hello/called?a=1",
            body="grüß".encode(),
        )

    assert served(stage, triggers, ask)[0] == 202
    assert stage.prompts() == ["grüß 1"]


def raw(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=90) as pipe:
        pipe.sendall(data)
        pipe.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: pipe.recv(65_536), b""))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 this is TLS",
        b"POST /hooks/hello/called HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
        b"POST /hooks/hello/called HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /hooks/hello/called HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        + SECRET.encode()
        + b"\r\nContent-Length: 500\r\n\r\nshort",
        b"",
    ],
)
def test_what_is_no_whole_request_starts_nothing_and_the_next_is_served(stage: Stage, data: bytes) -> None:
    def ask(port: int) -> int:
        assert not raw(port, data).startswith(b"HTTP/1.1 2")
        return asked(port, bearer())[0]

    assert served(stage, PLAIN, ask) == 202
    assert len(stage.threads()) == 1


@pytest.mark.parametrize(
    "target", [b"//[", b"/hooks/\xff", b"http://[x/hooks", b"/hooks/hello/called?%ff=\xfe"]
)
def test_an_address_that_is_none_is_answered_as_a_mistake(stage: Stage, target: bytes) -> None:
    answer = served(stage, PLAIN, lambda port: raw(port, b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 ")), answer


def test_connections_that_say_nothing_do_not_keep_others_out(stage: Stage) -> None:
    def ask(port: int) -> int:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=90) for _ in range(60)]
        try:
            return asked(port, bearer())[0]
        finally:
            for pipe in silent:
                pipe.close()

    assert served(stage, PLAIN, ask) == 202


def test_a_storm_of_requests_of_one_hook_is_bounded_and_leaves_room_for_another(stage: Stage) -> None:
    """All of them are there before the first has started its thread: somebody else is writing into the store."""
    other = 'other: {http: {secret_env: HOOK_SECRET}, prompt: "{{body.text}}"}'
    storm = 'storm: {http: {secret_env: HOOK_SECRET}, prompt: x, dedupe: "the same"}'
    head = f"POST /hooks/hello/storm HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 1\r\n"

    def ask(port: int) -> tuple[list[str], int]:
        pipes = [socket.create_connection(("127.0.0.1", port), timeout=90) for _ in range(50)]
        with ThreadPoolExecutor(1) as somebody, closing(sqlite3.connect(stage.url)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            for part in (f"{head}\r\n".encode(), b"x"):
                for pipe in pipes:
                    pipe.sendall(part)
            asks = somebody.submit(asked, port, bearer(), path="/hooks/hello/other")
            waiting, refused = set(pipes), 0
            while refused < 18:
                ready, _, _ = select.select(waiting, [], [], 90)
                assert ready, refused
                waiting -= set(ready)
                refused += len(ready)
            writer.rollback()
            status, _ = asks.result()
        answers = []
        for pipe in pipes:
            with pipe, pipe.makefile("rb") as answer:
                answers.append(answer.readline().split()[1].decode())
        return answers, status

    answers, status = served(stage, f"{storm}, {other}", ask)
    assert status == 202
    assert Counter(answers) == {"202": 1, "200": 31, "429": 18}
    assert len(stage.threads()) == 2


def test_it_listens_on_loopback_unless_the_project_says_otherwise(stage: Stage) -> None:
    assert stage.project(PLAIN).hooks.host == "127.0.0.1"
    served(stage, PLAIN, lambda port: asked(port, bearer()))
    assert any("listening for requests at http://127.0.0.1:" in line for line in stage.said)


def test_a_port_that_is_taken_is_told_and_had_once_it_is_free(stage: Stage) -> None:
    async def play(port: int) -> None:
        problems = Problems(stage.said.append)
        with socket.create_server(("127.0.0.1", port)):
            text = f"hooks: {{port: {port}}}\nworkflows: {{hello: {{triggers: {{{PLAIN}}}}}}}\n"
            project = project_file.parse(text, path=str(stage.folder / "rolecall.yaml")).require()
            triggers = Triggers(
                stage.store, env=stage.env, mask=Mask(()), say=stage.said.append, problems=problems
            )
            triggers.update(project, stage.workflows)
            task = asyncio.create_task(triggers.run())
            async with asyncio.timeout(90):
                while not problems:
                    await asyncio.sleep(0.01)
        assert "in use" in problems["hooks"]
        async with asyncio.timeout(90):
            while triggers.port is None:
                triggers.update(project, stage.workflows)
                await asyncio.sleep(0.01)
        assert (triggers.port, problems) == (port, {})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with held_port() as port:
        asyncio.run(play(port))
