"""The built-in agent over real HTTP, in both protocols: the tool loop, its endings, sessions, keys."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from modelforms import encoded, form_for
from modelserver import Calls, Closes, Hangs, Item, ModelServer, Request, Says, Sends

from rolecall.agents import make, process
from rolecall.agents.adapters.builtin import Builtin, builtin
from rolecall.agents.contract import ANSWER, WRITTEN, AgentContract, Recorder, context_for
from rolecall.agents.protocol import Agent, Context, Forgetful, Memory, Reply, ask
from rolecall.agents.ratelimit import Limit, find_limit
from rolecall.agents.sandbox import Policy
from rolecall.agents.toolbox import TOOLS
from rolecall.errors import AgentError, UsageError
from rolecall.settings import capabilities

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
PROTOCOLS = ("openai", "anthropic")
KEY = "sk-the-key-0123456789"
HANGING = "tail -f /dev/null & tail -f /dev/null"
both = pytest.mark.parametrize("protocol", PROTOCOLS)


def agent_of(server: ModelServer, protocol: str = "openai", **options: Any) -> Builtin:
    given: dict[str, Any] = {
        "model": "a-model",
        "base_url": server.base_url,
        "api_key": KEY,
        "protocol": protocol,
    }
    return builtin(**given, **options)


def run(agent: Agent, workdir: Path, prompt: str = "Go on.", **fields: Any) -> Reply:
    recorder = fields.pop("recorder", None) or Recorder()

    async def scene() -> Reply:
        context = replace(context_for(workdir, recorder, env=ENV), **fields)
        return await asyncio.wait_for(ask(agent, prompt, context=context), 60)

    return asyncio.run(scene())


def failing(agent: Agent, workdir: Path, **fields: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        run(agent, workdir, **fields)
    return caught.value


def events(*values: Any) -> Sends:
    """A stream of just these values, as the protocol of each names it."""
    named = [(value.get("type") if isinstance(value, dict) else None, value) for value in values]
    return Sends(encoded(named)[1], headers={"Content-Type": "text/event-stream"})


def chat(delta: Mapping[str, Any], finish: str | None) -> Sends:
    head = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return events({**head, "choices": [choice]}, "[DONE]")


def message(*blocks: tuple[Mapping[str, Any], Mapping[str, Any]], stop: str, **more: Any) -> Sends:
    start: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    usage = {"input_tokens": 10, "output_tokens": 5}
    parts: list[Any] = [{"type": "message_start", "message": {**start, "usage": usage}}]
    for index, (block, delta) in enumerate(blocks):
        parts += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    parts.append({"type": "message_delta", "delta": {"stop_reason": stop, **more}, "usage": usage})
    return events(*parts, {"type": "message_stop"})


def said(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return {"type": "text", "text": ""}, {"type": "text_delta", "text": text}


def results(request: Request) -> list[str]:
    """The texts of the tool results in a request, in either protocol; one of the two wraps an error."""
    found: list[str] = []
    for each in request.body["messages"]:
        if each["role"] == "tool":
            is_error = each["content"].startswith('{"error":')
            found.append(json.loads(each["content"])["error"] if is_error else each["content"])
        elif isinstance(each["content"], list):
            blocks = [block for block in each["content"] if block["type"] == "tool_result"]
            found += [piece["text"] for block in blocks for piece in block["content"]]
    return found


def tools(request: Request) -> set[str]:
    return {tool.get("name") or tool["function"]["name"] for tool in request.body.get("tools", ())}


# -- the contract of all agents --


class Contract(AgentContract):
    protocol: ClassVar[str]

    @pytest.fixture(autouse=True)
    def servers(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            yield

    def agent(self, *script: Item, **options: Any) -> Builtin:
        return agent_of(self.stack.enter_context(ModelServer(script)), self.protocol, **options)

    def answering(self, workdir: Path) -> Agent:
        return self.agent(ANSWER)

    def hanging(self, workdir: Path) -> Agent:
        return self.agent(Calls("run_command", {"shell": HANGING}))

    def timing_out(self, workdir: Path) -> Agent:
        return self.agent(Calls("run_command", {"shell": HANGING}), timeout=0.5)

    def writing(self, workdir: Path) -> Agent:
        return self.agent(Calls("write_file", {"path": WRITTEN, "content": "x"}), ANSWER)

    def test_the_session_is_reported_live_and_in_the_reply(self, tmp_path: Path) -> None:
        reply, recorder = self._run(self.answering(tmp_path), tmp_path)
        assert reply.session
        assert recorder.events[0] == ("session", {"session": reply.session})
        assert len(recorder.bodies("session")) == 1

    def test_a_missing_program_is_named(self, tmp_path: Path) -> None:
        """What is missing is the extra: a process that cannot import pydantic_ai says how to get it."""
        source = f"""
import asyncio, pathlib, sys
sys.modules["pydantic_ai"] = None
from rolecall.agents.adapters.builtin import builtin
from rolecall.agents.contract import Recorder, context_for
from rolecall.errors import AgentError
agent = builtin(model="m", base_url="http://127.0.0.1:9", protocol={self.protocol!r})
try:
    asyncio.run(agent("", context_for(pathlib.Path("."), Recorder(), env={{}})))
except AgentError as error:
    print(error.ending, error.message, error.hint, sep="|")
"""
        done = subprocess.run(
            [sys.executable, "-c", source],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env={**ENV, "HOME": str(tmp_path)},
        )
        ending, what, hint = done.stdout.strip().split("|")
        assert (ending, hint) == ("failed", "pip install 'rolecall[llm]'")
        assert "llm" in what


class TestOpenaiKeepsTheContract(Contract):
    protocol = "openai"


class TestAnthropicKeepsTheContract(Contract):
    protocol = "anthropic"


# -- the loop --


@both
def test_the_model_works_with_tools_until_it_answers(tmp_path: Path, protocol: str) -> None:
    (tmp_path / "greet.py").write_text("print('helo')\n")
    script: list[Item] = [
        Calls("read_file", {"path": "greet.py"}, text="I look."),
        Calls("edit_file", {"path": "greet.py", "old": "helo", "new": "hello"}),
        Calls("run_command", {"argv": [sys.executable, "greet.py"]}),
        Says("It says hello.", prompt_tokens=40, completion_tokens=7, cached_tokens=30),
    ]
    recorder = Recorder()
    with ModelServer(script) as server:
        reply = run(agent_of(server, protocol), tmp_path, "Fix it.", recorder=recorder)
        assert results(server.requests[-1]) == [
            "print('helo')\n",
            "'greet.py' was changed at line 1",
            "[exit status 0]\nhello",
        ]
    assert (tmp_path / "greet.py").read_text() == "print('hello')\n"
    assert (reply.text, reply.ending, reply.files) == ("It says hello.", "completed", ("greet.py",))
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (70, 22, 30)
    assert reply.usage.turns == 4
    calls = [call for turn in reply.turns for call in turn.tool_calls]
    assert [(call.name, call.result.split("\n")[0]) for call in calls] == [
        ("read_file", "print('helo')"),
        ("edit_file", "'greet.py' was changed at line 1"),
        ("run_command", "[exit status 0]"),
    ]
    assert [body["name"] for body in recorder.bodies("tool_call")] == [call.name for call in calls]
    assert [body["text"] for body in recorder.bodies("text")] == ["I look.", "It says hello."]
    assert [body["input_tokens"] for body in recorder.bodies("usage")] == [10, 20, 30, 70]


@both
def test_the_model_is_told_the_prompt_and_the_system_prompt(tmp_path: Path, protocol: str) -> None:
    with ModelServer(["ok"]) as server:
        run(agent_of(server, protocol, system="Speak Latin.", max_output=77), tmp_path, "The task.")
        body = server.requests[0].body
    system = body["system"] if protocol == "anthropic" else body["messages"][0]["content"]
    assert "Speak Latin." in json.dumps(system)
    assert "The task." in json.dumps(body["messages"][-1])
    assert (body["model"], body["max_tokens"]) == ("a-model", 77)


@both
def test_what_goes_wrong_with_a_tool_is_told_to_the_model_which_goes_on(
    tmp_path: Path, protocol: str
) -> None:
    cut = {"name": "read_file", "arguments": '{"path": '}
    item = chat({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": cut}]}, "tool_calls")
    if protocol == "anthropic":
        use = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {}}
        item = message((use, {"type": "input_json_delta", "partial_json": '{"path": '}), stop="tool_use")
    script: list[Item] = [
        Calls("bash", {"command": "ls"}),
        Calls("read_file", {"path": "../x"}),
        item,
        "I give up.",
    ]
    with ModelServer(script) as server:
        reply = run(agent_of(server, protocol), tmp_path)
        reported = results(server.requests[-1])
    assert (reply.text, reply.ending) == ("I give up.", "completed")
    assert [text.split(";")[0].split(":")[0] for text in reported] == [
        "unknown tool 'bash'",
        "'../x' leads outside the work folder, where nothing can be accessed",
        "read_file was called with wrong arguments",
    ]


@both
@pytest.mark.parametrize("word", ["", *capabilities.RESTRICTIONS])
def test_a_role_is_offered_the_tools_that_its_restrictions_leave(
    tmp_path: Path, protocol: str, word: str
) -> None:
    edits, shell = {"write_file", "edit_file", "delete_file"}, {"run_command"}
    denied = {"no_file_edit": edits, "no_shell_exec": shell, "read_only": edits | shell}.get(word, set())
    script: list[Item] = [Calls("write_file", {"path": "x", "content": ""}), "ok"]
    with ModelServer(script) as server:
        run(agent_of(server, protocol), tmp_path, capabilities=(word,) if word else ())
        assert tools(server.requests[0]) == {tool.name for tool in TOOLS} - denied
    assert (tmp_path / "x").exists() == ("write_file" not in denied)


def test_every_class_of_actions_can_be_denied() -> None:
    assert Builtin.deniable == set(capabilities.CLASSES)
    for word in capabilities.RESTRICTIONS:
        capabilities.check_supported("builtin", [word], Builtin.deniable)


# -- endings --


@both
def test_turns_and_tokens_are_limited_and_what_was_said_is_kept(tmp_path: Path, protocol: str) -> None:
    def endless(number: int) -> Calls:
        return Calls("write_file", {"path": f"{number}", "content": ""}, text=f"Part {number}.")

    with ModelServer([endless(number) for number in range(9)]) as server:
        reply = run(agent_of(server, protocol, max_turns=3), tmp_path)
        assert (reply.ending, reply.text, len(server.requests)) == ("limit", "Part 2.", 3)
        assert "3 turns" in reply.reason
        # The last call was not made, because its result could not be told any more.
        assert sorted(os.listdir(tmp_path)) == ["0", "1"]
        reply = run(agent_of(server, protocol, max_tokens=30), tmp_path)
        assert (reply.ending, reply.text, len(server.requests)) == ("limit", "Part 4.", 5)
        assert "30 tokens" in reply.reason


@both
def test_a_message_that_was_cut_at_its_length_is_a_limit(tmp_path: Path, protocol: str) -> None:
    item = chat({"content": "Half an ans"}, "length")
    if protocol == "anthropic":
        item = message(said("Half an ans"), stop="max_tokens")
    with ModelServer([item]) as server:
        reply = run(agent_of(server, protocol), tmp_path)
    assert (reply.ending, reply.text) == ("limit", "Half an ans")


@pytest.mark.parametrize(
    ("protocol", "item", "reason"),
    [
        ("openai", chat({"refusal": "I will not."}, "stop"), "the model declined: I will not."),
        ("openai", chat({"content": "So"}, "content_filter"), "the model declined: So"),
        ("anthropic", message(said("So"), stop="refusal"), "the model declined: So"),
        ("anthropic", message(stop="refusal"), "the model declined"),
    ],
)
def test_a_refusal_is_told_as_one(tmp_path: Path, protocol: str, item: Sends, reason: str) -> None:
    with ModelServer([item]) as server:
        reply = run(agent_of(server, protocol), tmp_path)
    assert (reply.ending, reply.reason) == ("refused", reason)


@both
def test_a_conversation_too_long_for_the_model_is_a_limit(tmp_path: Path, protocol: str) -> None:
    what = "prompt is too long: 250000 tokens > 200000 maximum"
    error = {"type": "invalid_request_error", "code": "context_length_exceeded", "message": what}
    script: list[Item] = [
        Calls("list_files", {}, text="I look."),
        Sends(
            json.dumps({"type": "error", "error": error}).encode(), 400, {"Content-Type": "application/json"}
        ),
    ]
    with ModelServer(script) as server:
        reply = run(agent_of(server, protocol), tmp_path)
    assert (reply.ending, reply.text) == ("limit", "I look.")
    assert "too long" in reply.reason


def busy(status: int, after: str | None = "0") -> Sends:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": f"busy {status}, key {KEY}"}}
    headers = {"Content-Type": "application/json"} | ({"Retry-After": after} if after else {})
    return Sends(json.dumps(body).encode(), status, headers)


@both
def test_a_busy_endpoint_is_asked_again(tmp_path: Path, protocol: str) -> None:
    with ModelServer([Closes(), busy(429), busy(500), busy(529), "Here you are."]) as server:
        reply = run(agent_of(server, protocol), tmp_path)
        assert (reply.text, len(server.requests)) == ("Here you are.", 5)
        assert len({request.text for request in server.requests}) == 1


@both
def test_an_endpoint_that_stays_busy_is_given_up_without_telling_the_key(
    tmp_path: Path, protocol: str
) -> None:
    script: list[Item] = [Calls("write_file", {"path": "x", "content": ""}, text="First."), *[busy(500)] * 9]
    with ModelServer(script) as server:
        error = failing(agent_of(server, protocol, retries=2), tmp_path)
        assert len(server.requests) == 4
    assert (error.ending, error.text, error.files) == ("api_failure", "First.", ("x",))
    assert "HTTP 500: " in error.message
    assert "busy 500, key ***" in error.message
    assert "tried 3 times" in error.message
    assert KEY not in error.message + error.hint + repr(error)
    assert error.usage is not None
    assert error.usage.turns == 1


@both
def test_a_wait_beyond_the_timeout_is_not_begun(tmp_path: Path, protocol: str) -> None:
    with ModelServer([busy(429, "3600"), "late"]) as server:
        error = failing(agent_of(server, protocol, timeout=60), tmp_path)
        assert len(server.requests) == 1
    assert (error.ending, find_limit(error.message, now=0)) == ("api_failure", Limit(3_600_000))


@both
@pytest.mark.parametrize(("status", "hint"), [(400, ""), (401, "key"), (403, "key"), (404, "base URL")])
def test_what_asking_again_cannot_help_is_told_at_once(
    tmp_path: Path, protocol: str, status: int, hint: str
) -> None:
    with ModelServer([busy(status), "never"]) as server:
        error = failing(agent_of(server, protocol), tmp_path)
        assert len(server.requests) == 1
    assert (error.ending, f"HTTP {status}" in error.message, hint in error.hint) == (
        "api_failure",
        True,
        True,
    )


@both
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Welcome</html>",
        b"data: {}\n\n",
        b"data: [1, 2]\n\n",
        b'data: "x"\n\n',
        b"data: {not json\n\n",
        b"event: message_start\ndata: {}\n\n",
        b'event: message_start\ndata: {"type": "message_start", "message": 7}\n\n',
        b'data: {"choices": 5}\n\ndata: [DONE]\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": 5}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "cut in the mid',
        b"\xff\xfe\x00",
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
)
def test_what_is_no_answer_is_an_api_failure(tmp_path: Path, protocol: str, body: bytes) -> None:
    with ModelServer([Sends(body, headers={"Content-Type": "text/event-stream"})]) as server:
        error = failing(agent_of(server, protocol, retries=0), tmp_path)
    assert (error.ending, bool(error.message)) == ("api_failure", True)


@both
def test_an_answer_that_broke_off_is_asked_for_again_and_what_came_is_kept(
    tmp_path: Path, protocol: str
) -> None:
    form = form_for("/messages" if protocol == "anthropic" else "/chat/completions")
    assert form is not None
    whole = encoded(form(Says("Half and half."), {"stream": True}, 1))[1]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999\r\n\r\n"
    cut = Closes(head + whole[: whole.index(b"half.") + 40])
    recorder = Recorder()
    with ModelServer([cut, "The whole."]) as server:
        reply = run(agent_of(server, protocol), tmp_path, recorder=recorder)
        assert len(server.requests) == 2
    assert reply.text == "The whole."


def test_an_answer_without_an_end_is_cut(tmp_path: Path) -> None:
    with ModelServer([chat({"content": "x" * 9_000_000}, "stop")]) as server:
        error = failing(agent_of(server), tmp_path)
    assert (error.ending, "more than 8,388,608 characters" in error.message) == ("api_failure", True)


@both
def test_an_endpoint_that_cannot_be_reached_is_told(tmp_path: Path, protocol: str) -> None:
    with ModelServer([]) as server:
        gone = agent_of(server, protocol, retries=0)
    error = failing(gone, tmp_path)
    assert (error.ending, "cannot be reached" in error.message) == ("api_failure", True)
    assert "base URL" in error.hint


@both
def test_long_text_is_passed_on_in_pieces_worth_an_event(tmp_path: Path, protocol: str) -> None:
    text = "word " * 400
    recorder = Recorder()
    head = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    pieces: list[Any] = [
        {**head, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
    ] * 400
    item = events(*pieces, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if protocol == "anthropic":
        item = message(*[said("word ")] * 400, stop="end_turn")
    with ModelServer([item]) as server:
        reply = run(agent_of(server, protocol), tmp_path, recorder=recorder)
    assert "".join(body["text"] for body in recorder.bodies("text")) == text
    assert len(recorder.bodies("text")) == 5
    assert reply.text.replace("\n\n", "") == text


# -- cancel --


async def cancelled_at(
    kind: str, agent: Agent, workdir: Path, server: ModelServer
) -> tuple[AgentError, Recorder]:
    """Cancel the agent when it has emitted `kind`, or when its request has arrived."""
    recorder, seen, cancel = Recorder(), asyncio.Event(), asyncio.Event()

    def emit(what: str, body: Mapping[str, Any]) -> None:
        recorder(what, body)
        if what == kind:
            seen.set()

    context = replace(context_for(workdir, recorder, env=ENV), emit=emit, cancel=cancel)
    asked = asyncio.ensure_future(ask(agent, "Go on.", context=context))
    if kind == "request":
        assert await asyncio.to_thread(server.wait_for_turn, 1)
    else:
        await asyncio.wait_for(seen.wait(), 60)
    cancel.set()
    with pytest.raises(AgentError) as caught:
        await asyncio.wait_for(asked, 60)
    return caught.value, recorder


@both
def test_a_cancel_ends_a_request_that_hangs(tmp_path: Path, protocol: str) -> None:
    with ModelServer([Hangs()]) as server:
        error, _ = asyncio.run(cancelled_at("request", agent_of(server, protocol), tmp_path, server))
    assert (error.ending, bool(error.session)) == ("interrupted", True)


@both
def test_a_cancel_ends_a_command_that_hangs_with_all_it_started(tmp_path: Path, protocol: str) -> None:
    with ModelServer([Calls("run_command", {"shell": HANGING}, text="Now.")]) as server:
        error, recorder = asyncio.run(cancelled_at("process", agent_of(server, protocol), tmp_path, server))
    assert (error.ending, error.text) == ("interrupted", "Now.")
    assert process.survivors(recorder.bodies("process")[0]["run"]) == []


def test_a_timeout_counts_over_all_of_a_call(tmp_path: Path) -> None:
    for seconds in (1.0, 21.0):
        with ModelServer([Calls("list_files", {}, text="I look."), Hangs()]) as server:
            error = failing(agent_of(server, timeout=seconds), tmp_path)
        if error.text:  # else the machine is so busy that not even the first request was answered in time
            break
    assert (error.ending, error.text) == ("timeout", "I look.")
    assert f"{seconds:g} s" in error.message


def test_the_sandbox_of_a_role_limits_the_time_of_a_call(tmp_path: Path) -> None:
    with ModelServer([Hangs()]) as server:
        error = failing(agent_of(server, timeout=600), tmp_path, sandbox=Policy(seconds=0.5))
    assert (error.ending, error.message) == ("timeout", "the agent ran longer than 0.5 s and was ended")
    assert "`seconds` of a sandbox" in str(error.hint)


# -- sessions --


@both
def test_a_session_is_gone_on_with(tmp_path: Path, protocol: str) -> None:
    memory, recorder = Forgetful(), Recorder()
    with ModelServer([Calls("list_files", {}), "First answer.", "Corrected."]) as server:
        agent = agent_of(server, protocol)
        first = run(agent, tmp_path, "The task.", memory=memory)
        second = run(agent, tmp_path, "Once more.", memory=memory, session=first.session, recorder=recorder)
        reported = server.requests[-1].text
    assert (second.text, second.session) == ("Corrected.", first.session)
    assert recorder.events[0] == ("session", {"session": first.session})
    assert [reported.count(text) for text in ("The task.", "First answer.", "Once more.")] == [1, 1, 1]
    assert results(server.requests[-1]) == ["[nothing matches]"]
    assert second.usage is not None
    assert second.usage.turns == 1


@both
def test_a_fork_goes_on_in_a_copy_and_leaves_the_session_as_it_was(tmp_path: Path, protocol: str) -> None:
    memory = Forgetful()
    with ModelServer(["One.", "Two.", "Three."]) as server:
        agent = agent_of(server, protocol)
        first = run(agent, tmp_path, "A", memory=memory)
        before = memory.read(first.session or "")
        forked = run(agent, tmp_path, "B", memory=memory, session=first.session, is_fork=True)
        assert forked.session not in (None, first.session)
        assert memory.read(first.session or "") == before
        run(agent, tmp_path, "C", memory=memory, session=forked.session)
        assert all(text in server.requests[-1].text for text in ("One.", "Two."))


def test_a_session_that_is_not_known_or_not_readable_is_lost(tmp_path: Path) -> None:
    memory = Forgetful()
    memory.add("broken", "[{}]")
    with ModelServer([]) as server:
        for session in ("never-seen", "broken"):
            error = failing(agent_of(server), tmp_path, memory=memory, session=session)
            assert error.is_session_lost
            assert session in error.message
        assert server.requests == []


class FileMemory:
    """What was added is there after a crash of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, session: str) -> list[str]:
        path = self._folder / session
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, session: str, text: str) -> None:
        with open(self._folder / session, "a") as file:
            file.write(json.dumps(text) + "\n")


_CHILD = """
import asyncio, json, os, pathlib, sys
from dataclasses import replace
from pathlib import Path
from rolecall.agents import process
from rolecall.agents.adapters.builtin import builtin
from rolecall.agents.contract import Recorder, context_for
{memory}
url, protocol, work, memory = sys.argv[1:]
env = process.add_mark({{"PATH": os.environ["PATH"]}}, "crash-test-run")
context = context_for(pathlib.Path(work), Recorder(), env=env)
agent = builtin(model="m", base_url=url, protocol=protocol)
asyncio.run(agent("The task.", replace(context, memory=FileMemory(pathlib.Path(memory)))))
"""


def crashed(
    server: ModelServer, protocol: str, work: Path, memory: Path, *, turn: int, sign: Path | None
) -> None:
    """Run the agent in a process and kill that in the given turn, or in the command that gives a sign."""
    source = _CHILD.format(memory=inspect.getsource(FileMemory))
    env = {**ENV, "HOME": str(memory)}
    argv = [sys.executable, "-c", source, server.base_url, protocol, str(work), str(memory)]
    with subprocess.Popen(argv, env=env) as child:
        try:
            assert server.wait_for_turn(turn, 60)
            if sign is not None:
                reader = os.open(sign, os.O_RDONLY | os.O_NONBLOCK)
                assert select.select([reader], [], [], 120)[0]
                os.close(reader)
        finally:
            child.send_signal(signal.SIGKILL)
    asyncio.run(process.end_leftovers("crash-test-run"))


@both
def test_after_a_crash_in_a_command_the_session_goes_on_behind_it(tmp_path: Path, protocol: str) -> None:
    work, kept = tmp_path / "work", tmp_path / "memory"
    work.mkdir()
    kept.mkdir()
    os.mkfifo(tmp_path / "sign")
    script: list[Item] = [
        Calls("write_file", {"path": "a.txt", "content": "a"}, text="I begin."),
        Calls("run_command", {"shell": f"echo on > {tmp_path / 'sign'}; {HANGING}"}),
    ]
    with ModelServer(script) as server:
        crashed(server, protocol, work, kept, turn=2, sign=tmp_path / "sign")
        (session,) = (path.name for path in kept.iterdir() if path.name.startswith("builtin-"))
        server.add("All done.")
        memory: Memory = FileMemory(kept)
        reply = run(agent_of(server, protocol), work, "The task.", memory=memory, session=session)
        last = server.requests[-1]
    assert (reply.text, reply.session) == ("All done.", session)
    assert len(server.requests) == 3
    assert [text.partition(":")[0] for text in results(last)] == ["'a.txt' was created", "interrupted"]
    # The prompt that the session was left in the middle of is not repeated.
    assert last.text.count("The task.") == 1


def test_after_a_crash_in_a_request_nothing_that_was_done_is_done_again(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "memory"
    work.mkdir()
    kept.mkdir()
    with ModelServer([Calls("run_command", {"shell": "echo x >> log"}), Hangs()]) as server:
        crashed(server, "openai", work, kept, turn=2, sign=None)
        (session,) = (path.name for path in kept.iterdir() if path.name.startswith("builtin-"))
        server.add("All done.")
        reply = run(agent_of(server), work, "Another word.", memory=FileMemory(kept), session=session)
        last = server.requests[-1]
    assert reply.text == "All done."
    assert (work / "log").read_text() == "x\n"
    assert results(last) == ["[exit status 0]"]
    assert [last.text.count(text) for text in ("The task.", "Another word.")] == [1, 1]


# -- keys and connections --


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """An environment that names another endpoint, other keys and headers wherever a library may look."""
    with ModelServer([]) as trap:
        headers = "\n".join(
            f"{name}: poison"
            for name in (
                "Authorization",
                "X-Api-Key",
                "X-Other",
                "Accept",
                "anthropic-beta",
                "anthropic-version",
            )
        )
        for name in (
            "OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET",
            "AZURE_OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE",
            "ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID",
            "ANTHROPIC_WORKSPACE_ID", "ANTHROPIC_WEBHOOK_SIGNING_KEY",
        ):  # fmt: skip
            monkeypatch.setenv(name, "poison")
        for name in ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
            monkeypatch.setenv(name, headers)
        for name in (
            "OPENAI_BASE_URL",
            "ANTHROPIC_BASE_URL",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ):
            monkeypatch.setenv(name, trap.root_url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login poison password poison\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
        yield trap


@both
@pytest.mark.parametrize("key", [KEY, None])
def test_nothing_of_the_environment_is_sent_to_an_endpoint(
    tmp_path: Path, poisoned: ModelServer, protocol: str, key: str | None
) -> None:
    with ModelServer([busy(500), Calls("list_files", {}), "ok"]) as server:
        agent = builtin(model="m", base_url=server.base_url, api_key=key, protocol=protocol)
        assert run(agent, tmp_path).text == "ok"
        assert len(server.requests) == 3
        for request in server.requests:
            sent = json.dumps([request.path, request.headers, request.body])
            assert "poison" not in sent
            assert sent.count(KEY) == (1 if key else 0)
            extra = {"authorization"} if key else set()
            extra |= {"anthropic-version"} & set(request.headers)
            assert set(request.headers) == {
                "host", "content-length", "accept", "accept-encoding", "connection", "content-type", "user-agent",
                *extra,
            }  # fmt: skip
    assert poisoned.requests == []


@both
def test_a_redirect_is_not_followed(tmp_path: Path, protocol: str) -> None:
    with ModelServer([]) as other, ModelServer([]) as server:
        server.add(Sends(b"moved", 307, {"Location": f"{other.base_url}/messages"}))
        error = failing(agent_of(server, protocol), tmp_path)
        assert other.requests == []
    assert (error.ending, "HTTP 307" in error.message) == ("api_failure", True)
    assert "Redirects are not followed" in error.hint


def test_the_key_is_in_no_text_of_the_agent() -> None:
    assert KEY not in repr(builtin(model="m", base_url="http://x", api_key=KEY))


@pytest.mark.parametrize(
    ("protocol", "end"),
    [("openai", "/v1"), ("openai", "/v1/"), ("anthropic", "/v1"), ("anthropic", "/v1/"), ("anthropic", "")],
)
def test_the_address_may_end_with_the_version_or_not(tmp_path: Path, protocol: str, end: str) -> None:
    with ModelServer(["ok"]) as server:
        agent = builtin(model="m", base_url=server.root_url + end, protocol=protocol)
        assert run(agent, tmp_path).text == "ok"
        asked = server.requests[0].path.partition("?")[0]
    assert asked == {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[protocol]


class _KeptOpen:
    """An endpoint that keeps its connections and counts them."""

    def __init__(self) -> None:
        connections: list[Any] = []
        self.connections = connections

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                connections.append(self.client_address)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                form = form_for(self.path)
                assert form is not None
                kind, answer = encoded(form(Says("ok"), body, 1))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 64  # a call that finds the queue full waits for a second

        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self.base_url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> _KeptOpen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@both
def test_connections_are_kept_from_call_to_call_and_closed_with_the_agent_or_its_loop(
    tmp_path: Path, protocol: str
) -> None:
    with _KeptOpen() as server:
        agent = builtin(model="m", base_url=server.base_url, protocol=protocol)

        def context() -> Context:
            return context_for(tmp_path, Recorder(), env=ENV)

        async def two_calls_then(is_closed: bool) -> None:
            for _ in range(2):
                await ask(agent, "Go on.", context=context())
            if is_closed:
                await agent.aclose()
                await ask(agent, "Go on.", context=context())

        asyncio.run(two_calls_then(is_closed=False))
        assert len(server.connections) == 1
        asyncio.run(two_calls_then(is_closed=True))
        assert len(server.connections) == 3


@both
def test_calls_of_one_agent_at_once_do_not_mix(tmp_path: Path, protocol: str) -> None:
    with _KeptOpen() as server:
        agent = builtin(model="m", base_url=server.base_url, protocol=protocol)

        async def scene() -> list[Reply]:
            contexts = [context_for(tmp_path, Recorder(), env=ENV) for _ in range(10)]
            return await asyncio.gather(*(ask(agent, "Go on.", context=context) for context in contexts))

        replies = asyncio.run(scene())
    assert [reply.text for reply in replies] == ["ok"] * 10
    assert len({reply.session for reply in replies}) == 10


# -- options --


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no model to ask"),
        ({"model": "m"}, "no model to ask"),
        ({"model": "m", "base_url": "ftp://x"}, "https://host/path"),
        ({"model": "m", "base_url": f"http://user:{KEY}@x"}, "https://host/path"),
        ({"model": "m", "base_url": "http://x", "protocol": "gopher"}, "openai or anthropic, not 'gopher'"),
    ],
)
def test_an_agent_without_a_proper_endpoint_is_refused_before_it_asks(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        run(builtin(**options), tmp_path)
    assert KEY not in caught.value.message + caught.value.hint


def test_options_are_taken_as_they_are_written() -> None:
    made = make("builtin", {"model": "m", "timeout": "none", "max-turns": "7", "max_tokens": "1000"})
    assert made == builtin(model="m", timeout=None, max_turns=7, max_tokens=1000)
    with pytest.raises(UsageError, match="no option 'max_turn'") as caught:
        make("builtin", {"max_turn": "7"})
    assert "Did you mean 'max_turns'?" in caught.value.hint


def test_the_model_libraries_are_imported_when_the_agent_is_asked_and_not_before() -> None:
    code = "import sys, rolecall.agents.adapters.builtin as b; b.builtin(model='m'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"pydantic", "pydantic_ai", "openai", "anthropic", "httpx2"}
    assert heavy & set(done.stdout.split()) == set()
