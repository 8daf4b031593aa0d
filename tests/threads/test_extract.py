"""Layer two over real HTTP: a scripted endpoint on loopback, its good answers and every bad one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from modelserver import Closes, Hangs, Item, ModelServer, Says, Sends

from rolecall.errors import ExtractError, UsageError
from rolecall.settings.models import Endpoint
from rolecall.threads.extract import MAX_RESPONSE, Completion, Extracted, Message, extract

KEY = "sk-test-5f1c-secret"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"status": {"enum": ["done", "failed"]}, "summary": {"type": "string"}},
    "required": ["status", "summary"],
    "additionalProperties": False,
}
GOOD = {"status": "done", "summary": "all well"}
RAW = "I am done. All well."


def run(base_url: str, *, raw: str = RAW, timeout: float = 20.0, key: str | None = KEY) -> Extracted:
    endpoint = Endpoint(base_url, "small-model", key, timeout)
    return asyncio.run(extract(raw, SCHEMA, endpoint=endpoint))


def failure(script: Sequence[Item], *, timeout: float = 20.0, tries: int | None = None) -> ExtractError:
    """Return the error of an extraction that fails. With `tries`, check that the model was asked that many times."""
    with ModelServer(script) as server, pytest.raises(ExtractError) as caught:
        run(server.base_url, timeout=timeout)
    shown = f"{caught.value} {caught.value.hint} {caught.value.__context__}"
    assert KEY not in shown
    assert caught.value.raw == RAW
    assert tries is None or len(server.requests) == tries
    return caught.value


def test_output_is_found_with_one_request_that_carries_schema_model_and_key() -> None:
    with ModelServer([Says(json.dumps(GOOD), 100, 7)]) as server:
        extracted = run(server.base_url)
    assert extracted.output == GOOD
    assert extracted.usage == {"prompt_tokens": 100, "completion_tokens": 7}
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "small-model"
    assert request.body["response_format"] == {"type": "json_object"}
    assert json.dumps(SCHEMA) in request.body["messages"][0]["content"]
    assert request.body["messages"][1] == {"role": "user", "content": RAW}


def test_no_key_sends_no_authorization() -> None:
    with ModelServer([json.dumps(GOOD)]) as server:
        run(server.base_url, key=None)
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("text", [f"```json\n{json.dumps(GOOD)}\n```", f"\n```\n{json.dumps(GOOD)}```\n"])
def test_fenced_json_is_understood(text: str) -> None:
    with ModelServer([text]) as server:
        assert run(server.base_url).output == GOOD


def test_unknown_fields_never_enter_the_output() -> None:
    with ModelServer([json.dumps({**GOOD, "status": "DONE", "mood": "fine"})]) as server:
        assert run(server.base_url).output == GOOD


def test_retry_shows_the_model_its_answer_and_every_misfit_and_usage_is_summed() -> None:
    wrong = json.dumps({"status": "maybe", "summary": 3})
    with ModelServer([Says(wrong, 100, 7), Says(json.dumps(GOOD), 130, 9)]) as server:
        extracted = run(server.base_url)
    assert extracted.output == GOOD
    assert extracted.usage == {"prompt_tokens": 230, "completion_tokens": 16}
    assert len(server.requests) == 2
    *_, shown, bodies = server.requests[1].body["messages"]
    assert shown == {"role": "assistant", "content": wrong}
    assert "/status" in bodies["content"]
    assert "/summary" in bodies["content"]


def test_second_wrong_answer_ends_with_everything_kept() -> None:
    with ModelServer([Says("no json", 1, 2), Says("[1]", 3, 4), json.dumps(GOOD)]) as server:
        with pytest.raises(ExtractError) as caught:
            run(server.base_url)
        *_, shown, why = server.requests[1].body["messages"]
    error = caught.value
    assert error.raw == RAW and len(server.requests) == 2
    assert shown == {"role": "assistant", "content": "no json"} and "not JSON" in why["content"]
    assert error.message.endswith("the answer is not a JSON object")
    assert error.usage == {"prompt_tokens": 4, "completion_tokens": 6}


def test_model_that_misses_something_is_not_made_to_invent_it() -> None:
    missing = json.dumps({"$status": "$SUSPEND", "reason": "the text has no summary"})
    assert "the text has no summary" in failure([missing, missing]).message


@pytest.mark.parametrize("text", ['{"status": "done", "summary": NaN}', "[" * 50_000, "", "null"])
def test_json_without_a_usable_value_is_a_wrong_answer(text: str) -> None:
    failure([text, text], tries=2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_http_error_is_named_and_an_echoed_key_is_hidden(status: int) -> None:
    error = failure([Sends(f"bad key {KEY} given".encode(), status)], tries=1)
    assert f"HTTP {status}: bad key *** given" in error.message


def test_http_error_on_the_retry_keeps_the_first_attempt_and_its_usage() -> None:
    error = failure([Says("{}", 5, 6), Sends(b"busy", 429)], tries=2)
    assert error.usage == {"prompt_tokens": 5, "completion_tokens": 6}
    assert "wait" in error.hint


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b'{"choices": [',
        b"{}",
        b"[]",
        b"null",
        b'{"choices": []}',
        b'{"choices":[{"message":null}]}',
        b"\xff\x00",
        b"",
    ],
)
def test_response_that_is_no_chat_completion_is_refused(body: bytes) -> None:
    assert "not send a chat completion" in failure([Sends(body)]).message


def test_redirect_is_refused_and_the_key_goes_nowhere_else() -> None:
    with ModelServer([json.dumps(GOOD)]) as other:
        error = failure([Sends(b"", 307, {"Location": f"{other.base_url}/chat/completions"})])
    assert "sent a redirect (HTTP 307)" in error.message
    assert other.requests == []


def test_response_beyond_the_bound_is_refused() -> None:
    assert "sent more than" in failure([Sends(b" " * (MAX_RESPONSE + 10))]).message


@pytest.mark.parametrize(
    "after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"what is this\r\n\r\n"]
)
def test_connection_that_ends_early_is_reported(after: bytes) -> None:
    error = failure([Closes(after)])
    assert "cannot be reached" in error.message or "not send a chat completion" in error.message


def test_endpoint_that_is_not_there_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer on it
        with pytest.raises(ExtractError, match="cannot be reached"):
            run(f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize(
    "after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{"]
)
def test_hanging_endpoint_fails_at_the_timeout(after: bytes) -> None:
    assert "did not answer within 0.3 s" in failure([Hangs(after)], timeout=0.3).message


def test_hanging_request_can_be_cancelled_long_before_its_timeout() -> None:
    async def cancel_when_it_hangs(server: ModelServer) -> None:
        endpoint = Endpoint(server.base_url, "small-model", KEY, timeout=600.0)
        task = asyncio.create_task(extract(RAW, SCHEMA, endpoint=endpoint))
        assert await asyncio.to_thread(server.arrived.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ModelServer([Hangs()]) as server:
        # asyncio.run waits for the worker thread, so it returns only when the request was cut short.
        asyncio.run(asyncio.wait_for(cancel_when_it_hangs(server), 90))


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://host/v1", "http://", "http://u:p@host", "http://h:x/", "http://["]
)
def test_base_url_that_cannot_be_used_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="base URL"):
        run(url)


def test_key_with_a_line_break_is_refused_without_being_shown() -> None:
    with pytest.raises(UsageError) as caught:
        run("http://127.0.0.1:1", key=f"{KEY}\nX-Other: 1")
    assert KEY not in f"{caught.value} {caught.value.hint}"
    assert KEY not in repr(Endpoint("http://127.0.0.1:1", "m", KEY))


def test_long_answer_is_shown_by_its_beginning_and_its_end() -> None:
    with ModelServer([json.dumps(GOOD)]) as server:
        run(server.base_url, raw="BEGIN" + "x" * 1_000_000 + "END")
    shown = server.requests[0].body["messages"][1]["content"]
    assert shown.startswith("BEGIN")
    assert shown.endswith("END")
    assert len(shown) < 410_000


def test_another_way_to_ask_can_be_given() -> None:
    async def ask(endpoint: Endpoint, messages: Sequence[Message]) -> Completion:
        return Completion(json.dumps({**GOOD, "summary": endpoint.model}), {"prompt_tokens": len(messages)})

    extracted = asyncio.run(extract(RAW, SCHEMA, endpoint=Endpoint("http://unused", "m"), ask=ask))
    assert extracted.output["summary"] == "m"
    assert extracted.usage == {"prompt_tokens": 2, "completion_tokens": 0}
