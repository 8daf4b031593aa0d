from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rolecall.agents import process, resolve
from rolecall.agents.acp_presets import PRESETS, UNKNOWN, Wish, preset_of
from rolecall.agents.acp_reader import KINDS, AcpReader, choose_option, tokens_of
from rolecall.agents.adapters.acp import Acp, acp
from rolecall.agents.contract import ANSWER, WRITTEN, AgentContract, Recorder, context_for
from rolecall.agents.program import Json as Record
from rolecall.agents.program import McpServer
from rolecall.agents.protocol import Context, Reply, Usage, ask
from rolecall.agents.sandbox import Policy, find_layers
from rolecall.errors import AgentError, UsageError
from rolecall.settings import capabilities

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
BOUND = 120.0
STAND_IN = Path(__file__).with_name("acp_agent.py")
EVERY_RESTRICTION = tuple(capabilities.RESTRICTIONS)

Json = dict[str, Any]


class Signs(Recorder):
    """Collects what an agent emits, and waits for a kind of it."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def __call__(self, kind: str, body: Mapping[str, Any]) -> None:
        super().__call__(kind, body)
        self._news.set()

    async def come(self, kind: str) -> None:
        while not self.bodies(kind):
            self._news.clear()
            await self._news.wait()


class Stage:
    """A stand-in agent in a folder of its own, and what came of asking it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "agent"
        self.folder.mkdir(exist_ok=True)
        self.workdir = folder / "work"
        self.workdir.mkdir(exist_ok=True)
        self.recorder = Signs()

    def agent(self, *turns: Sequence[Mapping[str, Any]], can: list[str] | None = None, **options: Any) -> Acp:
        keys = ("version", "is_silent", "new_error", "offers")
        settings: Json = {key: options.pop(key) for key in keys if key in options}
        settings |= {"turns": list(turns), **({"can": can} if can is not None else {})}
        words = [sys.executable, "-I", str(STAND_IN), str(self.folder), json.dumps(settings)]
        return acp(words, **options)

    def context(self, **changes: Any) -> Context:
        return replace(context_for(self.workdir, self.recorder, env=ENV), **changes)

    def run(self, agent: Acp, prompt: str = "Go on.", **changes: Any) -> Reply:
        reply: Reply = self.scene(agent, lambda: ask(agent, prompt, context=self.context(**changes)))
        return reply

    def scene(self, agent: Acp, act: Callable[[], Awaitable[Any]]) -> Any:
        """Run something in a loop of its own, and close the agent after it."""

        async def run() -> Any:
            try:
                return await asyncio.wait_for(act(), BOUND)
            finally:
                await agent.aclose()

        return asyncio.run(run())

    def heard(self, method: str) -> list[Json]:
        path = self.folder / "heard.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [message for message in map(json.loads, lines) if message.get("method") == method]

    def answers(self) -> list[Json]:
        lines = (self.folder / "heard.jsonl").read_text().splitlines()
        return [message["result"]["outcome"] for message in map(json.loads, lines) if "result" in message]

    def leftovers(self) -> list[int]:
        started = {(body["run"], body["pid"]) for body in self.recorder.bodies("process")}
        return [pid for run, leader in started for pid in process.survivors(run, leader)]


@pytest.fixture(scope="module", autouse=True)
def protocol_package() -> None:
    """Loaded once and before the clock of any test runs: that alone can take longer than a test's timeout."""
    import_module("acp.core")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def says(text: str) -> list[Json]:
    return [{"say": text}]


def tool(ident: str, **told: Any) -> Json:
    return {"update": {"sessionUpdate": "tool_call", "toolCallId": ident, **told}}


class TestAcpKeepsTheContract(AgentContract):
    env: ClassVar[dict[str, str]] = ENV
    session = "s-1"

    def answering(self, workdir: Path) -> Acp:
        return Stage(workdir).agent(says(ANSWER))

    def hanging(self, workdir: Path) -> Acp:
        return Stage(workdir).agent([{"start_child": True}, {"say": "thinking"}, {"wait_for_cancel": True}])

    def timing_out(self, workdir: Path) -> Acp:
        return Stage(workdir).agent([{"start_child": True}, {"hang": True}], timeout=0.5)

    def missing(self, workdir: Path) -> tuple[Acp, str]:
        return acp("no-such-agent"), "no-such-agent"

    def writing(self, workdir: Path) -> Acp:
        return Stage(workdir).agent([{"write": WRITTEN}, {"say": "done"}])


# -- the answer --


def test_chunks_of_one_message_are_the_answer_and_a_tool_call_begins_another(stage: Stage) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "ls", "kind": "execute"}
    reply = stage.run(
        stage.agent([{"say": "I "}, {"say": "look."}, {"update": call}, {"say": "Fo"}, {"say": "und."}])
    )
    assert reply.text == "Found."
    assert [turn.text for turn in reply.turns] == ["I look.", "Found."]
    assert "".join(body["text"] for body in stage.recorder.bodies("text")) == "I look.Found."


def test_an_update_of_a_running_tool_in_the_middle_of_a_message_does_not_cut_it(stage: Stage) -> None:
    started = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "make", "kind": "execute"}
    ended = {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"}
    turn: list[Json] = [{"update": started}, {"say": "All "}, {"update": ended}, {"say": "is well."}]
    assert stage.run(stage.agent(turn)).text == ANSWER


def test_messages_with_ids_are_told_apart_by_them(stage: Stage) -> None:
    def chunk(ident: str, text: str) -> Json:
        return {
            "update": {
                "sessionUpdate": "agent_message_chunk",
                "messageId": ident,
                "content": {"type": "text", "text": text},
            }
        }

    reply = stage.run(stage.agent([chunk("a", "First."), chunk("b", "Sec"), chunk("b", "ond.")]))
    assert (reply.text, reply.usage) == ("Second.", None)


def test_updates_of_unknown_kinds_other_sessions_and_odd_shapes_are_passed_over(stage: Stage) -> None:
    aside = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "not me"}}
    odd: list[Json] = [
        {"update": {"sessionUpdate": "from_the_future", "news": [1]}},
        {"update": {"sessionUpdate": "agent_message_chunk", "content": "no mapping"}},
        {"update": {"sessionUpdate": "tool_call", "content": 7, "locations": "x", "rawInput": [1]}},
        {"elsewhere": aside},
        {"message": {"method": "session/update", "params": 7}},
        {"message": {"method": "no/such/notification", "params": {}}},
        {"message": {"id": 4711, "result": {}}},
        {"message": {"id": {"odd": 1}, "result": {}}},
        {"message": {"id": "q", "method": "fs/read_text_file", "params": {"sessionId": "s-1", "path": "/x"}}},
    ]
    assert stage.run(stage.agent([*odd, {"say": ANSWER}])).text == ANSWER


def test_lines_that_are_no_messages_are_passed_over(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    turn = [
        {"print": "DEBUG: hello"},
        {"print": "{not json"},
        {"print": "[1]"},
        {"print": ""},
        {"say": ANSWER},
    ]
    assert stage.run(stage.agent(turn)).text == ANSWER
    assert capfd.readouterr().err == ""


def test_tool_calls_are_told_with_the_arguments_that_come_later_and_their_results(stage: Stage) -> None:
    turn: list[Json] = [
        tool("t", title="Terminal", kind="execute", status="pending", rawInput={}, name="Bash"),
        tool("t", rawInput={"command": "ls"}, sessionUpdate="tool_call_update"),
        tool("t", status="completed", rawOutput={"stdout": "a b"}, sessionUpdate="tool_call_update"),
        tool("u", title="Look", kind="read", status="pending"),
        {"say": ANSWER},
    ]
    reply = stage.run(stage.agent(turn))
    calls = [call for turn in reply.turns for call in turn.tool_calls]
    assert [(call.name, call.arguments, call.result) for call in calls] == [
        ("Bash", {"command": "ls"}, "a b"),
        ("read", {"title": "Look"}, ""),
    ]
    assert [body["name"] for body in stage.recorder.bodies("tool_call")] == ["Bash", "read"]


def test_files_of_edits_that_were_completed_are_touched_and_no_others(stage: Stage) -> None:
    def edit(ident: str, status: str, **more: Any) -> Json:
        return {
            "update": {
                "sessionUpdate": "tool_call",
                "toolCallId": ident,
                "title": "t",
                "kind": "edit",
                "status": status,
                **more,
            }
        }

    turn = [
        edit(
            "a", "completed", content=[{"type": "diff", "path": f"{stage.workdir}/new.txt", "newText": "x"}]
        ),
        edit("b", "completed", locations=[{"path": "moved.txt"}], kind="move"),
        edit("c", "failed", content=[{"type": "diff", "path": "failed.txt", "newText": "x"}]),
        edit("d", "completed", kind="read", locations=[{"path": "read.txt"}]),
        {"say": ANSWER},
    ]
    assert stage.run(stage.agent(turn)).files == ("moved.txt", "new.txt")


@pytest.mark.parametrize(
    ("stop", "ending"),
    [
        ("end_turn", "completed"),
        ("max_tokens", "limit"),
        ("max_turn_requests", "limit"),
        ("refusal", "refused"),
    ],
)
def test_the_stop_reason_is_the_ending(stage: Stage, stop: str, ending: str) -> None:
    reply = stage.run(stage.agent([{"say": "so far"}, {"result": {"stopReason": stop}}]))
    assert (reply.text, reply.ending) == ("so far", ending)


def test_an_agent_that_cancels_by_itself_was_interrupted(stage: Stage) -> None:
    with pytest.raises(AgentError, match="cancelled") as caught:
        stage.run(stage.agent([{"say": "so far"}, {"result": {"stopReason": "cancelled"}}]))
    assert (caught.value.ending, caught.value.text) == ("interrupted", "so far")


@pytest.mark.parametrize(
    "result",
    [{"stopReason": "bored"}, {}, None, {"stopReason": 7}],
    ids=["unknown", "none", "null", "number"],
)
def test_a_result_outside_the_protocol_is_a_failure(stage: Stage, result: Any) -> None:
    with pytest.raises(AgentError, match="protocol") as caught:
        stage.run(stage.agent([{"say": "so far"}, {"result": result}]))
    assert (caught.value.ending, caught.value.text) == ("failed", "so far")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ({"code": -32603, "message": "Oh no", "data": {"message": "quota is used up"}}, "Oh no: quota is used up"),
        ({"code": -32603, "message": "API Error: 500"}, "API Error: 500"),
        ({"code": 1, "message": "m", "data": "why"}, "m: why"),
        ("just text", "just text"),
    ],
)  # fmt: skip
def test_an_error_that_answers_the_prompt_is_an_api_failure_with_its_words(
    stage: Stage, error: Any, told: str
) -> None:
    with pytest.raises(AgentError) as caught:
        stage.run(stage.agent([{"say": "part"}, {"error": error}]))
    kept = caught.value
    assert (kept.ending, kept.text, kept.session) == ("api_failure", "part", "s-1")
    assert kept.message.endswith(told)
    assert stage.leftovers() == []


def test_an_agent_that_is_not_signed_in_says_so(stage: Stage) -> None:
    error = {"code": -32000, "message": "Authentication required"}
    with pytest.raises(AgentError, match="Authentication required") as caught:
        stage.run(stage.agent(new_error=error))
    assert caught.value.ending == "failed"
    assert "Sign in" in caught.value.hint


def test_another_version_of_the_protocol_is_refused(stage: Stage) -> None:
    with pytest.raises(AgentError, match="version 2 of the protocol"):
        stage.run(stage.agent(version=2))


# -- usage --


def test_usage_of_the_result_counts_cached_input_once(stage: Stage) -> None:
    apart = {"inputTokens": 90, "outputTokens": 20, "cachedReadTokens": 10, "totalTokens": 120}
    within = {"inputTokens": 100, "outputTokens": 20, "cachedReadTokens": 10, "totalTokens": 120}
    assert tokens_of(Record(apart)) == tokens_of(Record(within)) == Usage(100, 20, 10)
    reply = stage.run(stage.agent([{"say": ANSWER}, {"result": {"stopReason": "end_turn", "usage": apart}}]))
    assert reply.usage == Usage(100, 20, 10, turns=1)
    assert stage.recorder.bodies("usage") == [{"input_tokens": 100, "output_tokens": 20, "cached_tokens": 10}]


def test_the_cost_of_the_session_becomes_that_of_the_call(stage: Stage) -> None:
    update = {
        "sessionUpdate": "usage_update",
        "used": 130,
        "size": 1000,
        "cost": {"amount": 0.5, "currency": "USD"},
    }
    agent = stage.agent([{"update": update}, {"say": ANSWER}])
    reply = stage.run(agent, session_total=Usage(cost=0.3))
    assert (reply.usage, reply.session_total) == (Usage(130, cost=0.2, turns=1), Usage(cost=0.5))


def test_usage_told_beside_messages_is_summed(stage: Stage) -> None:
    fields = {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120}
    chunk = {
        "sessionUpdate": "agent_message_chunk",
        "content": {"type": "text", "text": ""},
        "_meta": {"usage": fields},
    }
    reply = stage.run(stage.agent([{"update": chunk}, {"say": ANSWER}, {"update": chunk}]))
    assert reply.usage == Usage(200, 40, turns=1)


def test_usage_in_the_form_of_gemini_is_read(stage: Stage) -> None:
    quota = {"quota": {"token_count": {"input_tokens": 300, "output_tokens": 60}}}
    reply = stage.run(stage.agent([{"say": ANSWER}, {"result": {"stopReason": "end_turn", "_meta": quota}}]))
    assert reply.usage == Usage(300, 60, turns=1)


def folded(preset: str, *updates: Json, result: Json | None = None, before: Usage | None = None) -> Reply:
    """What a preset's reader makes of updates; no process is needed for that."""
    reader = AcpReader(context_for(Path("/work"), Recorder(), env={}), PRESETS[preset])
    reader.counted_before = before
    for update in updates:
        reader.event(Record(update))
    return reader.finish_prompt(Record({"stopReason": "end_turn", **(result or {})}))


def test_figures_that_count_from_the_start_of_the_process_become_differences() -> None:
    usage = {"inputTokens": 400, "outputTokens": 80, "totalTokens": 480, "cachedReadTokens": 40}
    reply = folded("copilot", result={"usage": usage}, before=Usage(100, 20, 10))
    assert reply.usage == Usage(300, 60, 30)


def test_the_contexts_of_single_requests_are_summed_without_those_told_twice() -> None:
    updates = [{"sessionUpdate": "usage_update", "used": used, "size": 1000} for used in (120, 120, 300, 450)]
    assert folded("codex-acp", *updates).usage == Usage(870)


@pytest.mark.parametrize(
    ("preset", "notice"),
    [
        ("codex-acp", "Model metadata for `x` not found. Defaulting to fallback metadata."),
        ("gemini", "[MODE_UPDATE] autoEdit"),
        ("copilot", "Info: /tmp/a.txt"),
    ],
)
def test_notices_of_the_agent_are_no_part_of_the_answer(preset: str, notice: str) -> None:
    def chunk(text: str) -> Json:
        return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}

    assert folded(preset, chunk(notice), chunk("---\n"), chunk("ok: 1"), chunk(notice)).text == "---\nok: 1"


def test_a_failure_that_is_told_as_an_answer_is_an_api_failure_unless_an_answer_follows() -> None:
    def chunk(text: str) -> Json:
        return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}

    failed = folded("copilot", chunk("Half."), chunk("Error: 400 bad things"))
    assert (failed.ending, failed.reason, failed.text) == ("api_failure", "Error: 400 bad things", "Half.")
    assert folded("copilot", chunk("Error: 500 once"), chunk(ANSWER)).ending == "completed"


# -- what the real agents sent --

RECORDED = sorted(Path(__file__).with_name("acp_streams").glob("*/*.jsonl"))
CALLED = {"answer": 0, "notice": 0, "resumed": 0, "write": 1, "shell": 1, "mcp": 1}
WRITTEN_BY = ("write", "tools", "no_shell_exec")
USED = {
    "claude-agent-acp": (200, 14, 80),
    "copilot": (200, 14, 80),
    "gemini": (200, 14, 0),
    "hermes": (200, 14, 80),
    "opencode": (100, 7, 40),
    "qwen": (200, 14, 80),
}
"""Of two requests with 100 tokens in, 40 of them cached, and 7 out."""


def test_there_is_a_stream_of_every_agent_with_a_preset() -> None:
    assert {path.parent.name for path in RECORDED} == set(PRESETS)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_stream_is_read_as_what_the_agent_did(path: Path) -> None:
    *parsed, end = map(json.loads, path.read_text().replace("$WORK", "/work").splitlines())
    words = (path.stem,) if path.stem in capabilities.RESTRICTIONS else ()
    context = replace(context_for(Path("/work"), Recorder(), env={}), capabilities=words)
    reader = AcpReader(context, PRESETS[path.parent.name], {"tiny"})
    for item in parsed:
        if "update" in item:
            reader.event(Record(item["update"]))
        else:
            reader.find_denied(Record(item["question"]))
    reply = reader.finish_prompt(Record(end["standin"]["result"]))
    assert (reply.text, reply.ending) == ("elm" if path.stem == "resumed" else ANSWER, "completed")
    assert reply.files == (("a.txt",) if path.stem in WRITTEN_BY else ())
    calls = [call for turn in reply.turns for call in turn.tool_calls]
    assert len(calls) == CALLED.get(path.stem, len(calls))
    assert reply.usage is not None
    if path.stem == "write":
        tokens = (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens)
        assert tokens == USED[path.parent.name]


# -- permissions and restrictions --

DIFF = {"type": "diff", "path": "f", "newText": "x"}
CALLS: dict[str, Json] = {
    **{kind: {"toolCallId": "q", "title": kind, "kind": kind} for kind in KINDS},
    "no kind": {"toolCallId": "q", "title": "unknown"},
    "unknown kind": {"toolCallId": "q", "title": "x", "kind": "from_the_future"},
    "command told as search": {"toolCallId": "q", "title": "List", "kind": "search", "rawInput": {"command": ["ls"]}},
    "diff told as other": {"toolCallId": "q", "title": "x", "kind": "think", "content": [DIFF]},
}  # fmt: skip
HARMLESS = {"read", "search", "think", "fetch"}
NOT_ALLOWED = {
    "no_file_edit": {"edit", "delete", "move", "diff told as other"},
    "no_shell_exec": {"execute", "command told as search"},
    "read_only": {"edit", "delete", "move", "diff told as other", "execute"},
    "no_task_create": set(),
    "no_task_update": set(),
}
UNCLEAR = {"switch_mode", "other", "no kind", "unknown kind"}


@pytest.mark.parametrize("restriction", EVERY_RESTRICTION)
def test_every_kind_of_call_is_answered_by_the_restriction(tmp_path: Path, restriction: str) -> None:
    denied = NOT_ALLOWED[restriction]
    if not restriction.startswith("no_task"):
        denied = denied | UNCLEAR
    for name, call in CALLS.items():
        recorder = Recorder()
        context = replace(context_for(tmp_path, recorder, env={}), capabilities=(restriction,))
        found = AcpReader(context).find_denied(Record(call))
        assert bool(found) == (name in denied), name
        assert recorder.bodies("permission")[0]["allowed"] is (name not in denied), name


def test_every_class_of_every_restriction_is_denied_by_some_kind() -> None:
    answered = {name for classes in KINDS.values() for name in classes}
    assert answered | set(capabilities.BY_OURSELVES) == set(capabilities.CLASSES)


def test_a_role_without_restrictions_is_allowed_everything_once(stage: Stage) -> None:
    questions = [{"ask": {"call": call, "otherwise": [{"exit": 9}]}} for call in CALLS.values()]
    stage.run(stage.agent([*questions, {"say": ANSWER}]))
    assert {(answer["outcome"], answer["optionId"]) for answer in stage.answers()} == {("selected", "yes")}


@pytest.mark.parametrize(
    ("restriction", "kind"), [("no_file_edit", "edit"), ("no_shell_exec", "execute"), ("read_only", "edit")]
)
def test_what_the_role_may_not_do_is_refused_and_the_agent_goes_on(
    stage: Stage, restriction: str, kind: str
) -> None:
    question = {"call": CALLS[kind], "then": [{"write": "written"}], "otherwise": [{"say": "Then not."}]}
    agent = stage.agent([{"ask": question}], is_asking=True)
    reply = stage.run(agent, capabilities=(restriction, "some_other_word"))
    assert (reply.text, reply.files) == ("Then not.", ())
    assert not (stage.workdir / "written").exists()
    assert stage.answers() == [{"outcome": "selected", "optionId": "no"}]
    bodies = stage.recorder.bodies("permission")
    assert [(body["what"], body["allowed"]) for body in bodies] == [(f"{kind}: {kind}", False)]


def test_a_kind_that_only_the_call_before_the_question_told_counts(stage: Stage) -> None:
    call = {
        "sessionUpdate": "tool_call",
        "toolCallId": "q",
        "title": "Write",
        "kind": "edit",
        "status": "pending",
    }
    question = {"call": {"toolCallId": "q", "title": "May I?"}, "otherwise": [{"say": "no"}]}
    agent = stage.agent([{"update": call}, {"ask": question}], is_asking=True)
    assert stage.run(agent, capabilities=("no_file_edit",)).text == "no"
    assert stage.run(agent, capabilities=("no_shell_exec",)).text == ""


def test_a_question_without_a_no_is_cancelled(stage: Stage) -> None:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    question = {"call": CALLS["edit"], "options": options, "then": [{"exit": 9}]}
    turn: list[Json] = [{"ask": question}, {"say": ANSWER}]
    assert stage.run(stage.agent(turn, is_asking=True), capabilities=("read_only",)).text == ANSWER
    assert stage.answers() == [{"outcome": "cancelled"}]
    assert choose_option([("reject_always", "never")], is_allowed=False) == "never"


@pytest.mark.parametrize("stop", ["cancelled", "end_turn"])
def test_an_agent_that_ends_its_turn_where_it_was_denied_has_refused(stage: Stage, stop: str) -> None:
    turn: list[Json] = [
        {"say": "I try."},
        {"ask": {"call": CALLS["execute"]}},
        {"result": {"stopReason": stop}},
    ]
    reply = stage.run(stage.agent(turn, is_asking=True), capabilities=("no_shell_exec",))
    assert (reply.text, reply.ending) == ("I try.", "refused")
    assert "not allowed: execute" in reply.reason


def test_where_an_agents_own_means_deny_it_everything_else_may_be_asked_for() -> None:
    context = replace(context_for(Path("/work"), Recorder(), env={}), capabilities=("read_only",))
    for name, call in CALLS.items():
        is_denied = bool(AcpReader(context, PRESETS["qwen"]).find_denied(Record(call)))
        assert is_denied == (name in NOT_ALLOWED["read_only"] | {"switch_mode", "unknown kind"}), name


@pytest.mark.parametrize(
    ("preset", "call"),
    [
        ("codex-acp", {"title": "Approve MCP tool call", "rawInput": {"server_name": "tiny"}}),
        ("claude-agent-acp", {"title": "add", "kind": "other", "name": "mcp__tiny__add"}),
    ],
)
def test_tools_of_servers_that_the_role_was_given_are_allowed_and_others_are_not(
    preset: str, call: Json
) -> None:
    context = replace(context_for(Path("/work"), Recorder(), env={}), capabilities=("read_only",))
    question = {"toolCallId": "q", **call}
    assert AcpReader(context, PRESETS[preset], {"tiny"}).find_denied(Record(question)) == ()
    assert AcpReader(context, PRESETS[preset], {"other"}).find_denied(Record(question))


def test_what_the_model_itself_may_have_written_does_not_make_a_tool_one_of_a_server() -> None:
    context = replace(context_for(Path("/work"), Recorder(), env={}), capabilities=("read_only",))
    question = {"toolCallId": "q", "title": "mcp__tiny__add", "rawInput": {"server_name": "tiny"}}
    assert AcpReader(context, servers={"tiny"}).find_denied(Record(question))


@pytest.mark.parametrize("restriction", ["no_file_edit", "no_shell_exec", "read_only"])
def test_a_restriction_is_refused_before_anything_starts_where_nothing_holds_the_agent_to_it(
    stage: Stage, restriction: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot be held to '{restriction}'"):
        stage.run(stage.agent(), capabilities=(restriction,))
    assert stage.recorder.events == []


def test_presets_hold_agents_to_restrictions_or_say_that_they_cannot() -> None:
    def is_held(preset: str, restriction: str) -> bool:
        try:
            capabilities.check_supported("", [restriction], acp(preset).deniable)
        except UsageError:
            return False
        return True

    refused = {(name, word) for name in PRESETS for word in EVERY_RESTRICTION if not is_held(name, word)}
    assert refused == {("hermes", word) for word in ("no_file_edit", "no_shell_exec", "read_only")}


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ("codex-acp", ['approval_policy="never"', 'sandbox_mode="read-only"', "mcp_servers={}"]),
        ("claude-agent-acp", ["Write", "Bash", "'strictMcpConfig': True"]),
        ("opencode", ['"edit": "deny", "bash": "deny"']),
        ("gemini", ["--admin-policy", "--allowed-mcp-server-names", "no-server", '"write_file"', '"deny"']),
        ("qwen", ["--exclude-tools", "write_file", "run_shell_command", "no-server"]),
        ("copilot", ["--deny-tool=write", "--deny-tool=shell"]),
    ],
)
def test_a_restriction_goes_into_the_agents_own_means(tmp_path: Path, preset: str, told: list[str]) -> None:
    denies = PRESETS[preset].denies
    tools = dict.fromkeys(tool for name in capabilities.RESTRICTIONS["read_only"] for tool in denies[name])
    launch = PRESETS[preset].launch(Wish(tuple(tools), env={"HOME": str(tmp_path)}, folder=tmp_path))
    whole = " ".join([*launch.args, *launch.env.values(), *launch.files.values(), str(launch.meta)])
    assert [word for word in told if word not in whole] == []
    assert [word for word in told if word in str(PRESETS[preset].launch(Wish()))] == []


def test_the_users_own_configuration_of_opencode_is_kept_beside_the_agent_that_is_restricted() -> None:
    launch = PRESETS["opencode"].launch
    env = {"OPENCODE_CONFIG_CONTENT": '{"theme": "dark", "agent": {"mine": {}}}'}
    made = launch(Wish(("edit",), servers=(McpServer("tiny", "sh"),), env=env))
    reply = json.loads(made.env["OPENCODE_CONFIG_CONTENT"])
    assert (reply["theme"], set(reply["agent"]), reply["default_agent"]) == (
        "dark",
        {"mine", "rolecall"},
        "rolecall",
    )
    rules = reply["agent"]["rolecall"]["permission"]
    assert (rules["*"], rules["edit"], rules["bash"], rules["tiny_*"]) == ("deny", "deny", "allow", "allow")
    with pytest.raises(UsageError, match="not a JSON object"):
        launch(Wish(("edit",), env={"OPENCODE_CONFIG_CONTENT": "deny"}))
    assert launch(Wish(env={"OPENCODE_CONFIG_CONTENT": "deny"})).mode is None


# -- sessions --


def test_a_session_of_an_earlier_process_is_loaded_and_its_replay_is_no_part_of_the_answer(
    stage: Stage,
) -> None:
    stage.run(stage.agent(says("first")), "One.")
    reply = stage.run(stage.agent(says("second")), "Two.", session="s-1")
    assert (reply.text, reply.session, reply.turns, reply.files) == ("second", "s-1", (), ())
    assert "the answer to" not in str(stage.recorder.events)
    assert [message["params"]["sessionId"] for message in stage.heard("session/load")] == ["s-1"]
    assert (stage.folder / "s-1").read_text() == "One.\nTwo.\n"


def test_a_session_is_resumed_where_it_cannot_be_loaded(stage: Stage) -> None:
    stage.run(stage.agent(says("first"), can=["resume"]))
    assert stage.run(stage.agent(says("second"), can=["resume"]), session="s-1").text == "second"
    assert len(stage.heard("session/resume")) == 1


def test_a_session_is_copied_where_it_belongs_to_another_thread(stage: Stage) -> None:
    stage.run(stage.agent(says("first")))
    reply = stage.run(stage.agent(says("second"), can=["fork"]), session="s-1", is_fork=True)
    assert (reply.text, reply.session) == ("second", "s-2")


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"can": ["load"]}, {}),
        ({"can": ["load"], "is_silent": True}, {}),
        ({"can": ["resume"]}, {}),
        ({"can": []}, {}),
        ({"can": ["load"]}, {"is_fork": True}),
        ({"can": ["fork"]}, {"is_fork": True}),
    ],
)
def test_a_session_that_the_agent_does_not_know_is_said_to_be_lost(
    stage: Stage, settings: Json, changes: Json
) -> None:
    with pytest.raises(AgentError, match="session") as caught:
        stage.run(stage.agent(**settings), session="gone", **changes)
    assert (caught.value.is_session_lost, caught.value.ending) == (True, "failed")
    assert stage.heard("session/prompt") == []


# -- one process for many calls --


def test_two_calls_share_a_process_and_a_session_and_the_process_is_told_at_both(stage: Stage) -> None:
    agent = stage.agent([{"tell_pid": True}])

    async def scene() -> list[Reply]:
        marked = [process.add_mark(ENV, run) for run in ("step-1", "step-2")]
        first = await ask(agent, "One.", context=stage.context(env=marked[0]))
        second = await ask(agent, "Two.", context=stage.context(env=marked[1], session=first.session))
        assert stage.leftovers() == [int(first.text)]
        return [first, second]

    first, second = stage.scene(agent, scene)
    assert first.text == second.text
    assert first.session == second.session == "s-1"
    started = stage.recorder.bodies("process")
    assert len(started) == 2
    assert started[0] == started[1]
    assert [len(stage.heard(method)) for method in ("initialize", "session/new", "session/load")] == [1, 1, 0]
    assert stage.leftovers() == []


def test_a_process_that_died_between_two_calls_is_started_anew_and_the_session_loaded(stage: Stage) -> None:
    agent = stage.agent([{"tell_pid": True}])

    async def scene() -> list[Reply]:
        first = await ask(agent, "One.", context=stage.context())
        os.kill(int(first.text), signal.SIGKILL)
        # Its memory goes before it has ended, and with it the mark that `survivors` looks for.
        os.waitid(os.P_PID, int(first.text), os.WEXITED | os.WNOWAIT)
        return [first, await ask(agent, "Two.", context=stage.context(session=first.session))]

    first, second = stage.scene(agent, scene)
    assert first.text != second.text
    assert len(stage.heard("session/load")) == 1
    assert stage.leftovers() == []


@pytest.mark.parametrize("change", ["folder", "variable", "restriction"])
def test_another_folder_environment_or_launch_is_another_process(
    stage: Stage, tmp_path: Path, change: str
) -> None:
    agent = stage.agent([{"tell_pid": True}], is_asking=True)
    changes: Json = {
        "folder": {"workdir": tmp_path},
        "variable": {"env": {**ENV, "MODEL": "large"}},
        "restriction": {"env": {**ENV, capabilities.VARIABLE: "read_only"}, "capabilities": ("read_only",)},
    }

    async def scene() -> list[Reply]:
        first = await ask(agent, "One.", context=stage.context())
        return [first, await ask(agent, "Two.", context=stage.context(**changes[change]))]

    first, second = stage.scene(agent, scene)
    assert first.text != second.text
    assert stage.leftovers() == []


@pytest.mark.skipif(not find_layers().can_restrict_files, reason="no sandbox can be made here")
def test_a_process_is_used_again_only_in_the_same_sandbox_and_each_step_is_told_what_it_enforces(
    stage: Stage,
) -> None:
    agent = stage.agent([{"tell_pid": True}])

    def policy(*more: str) -> Policy:
        write = (str(stage.workdir), str(stage.folder), *more)
        return Policy(write=write, layers=find_layers())

    policies = [policy(), policy(), policy(str(stage.folder.parent))]

    async def scene() -> list[str]:
        contexts = [stage.context(sandbox=each) for each in (*policies, None)]
        return [(await ask(agent, "Go on.", context=context)).session or "" for context in contexts]

    stage.scene(agent, scene)
    started = [body["run"] for body in stage.recorder.bodies("process")]
    assert started[0] == started[1]
    assert len(set(started)) == 3
    assert policies[0].enforced
    assert policies[0].enforced == policies[1].enforced == policies[2].enforced
    assert stage.leftovers() == []


def test_calls_at_the_same_time_have_a_process_each_and_a_session_goes_on_where_it_was_last(
    stage: Stage,
) -> None:
    agent = stage.agent([{"tell_pid": True}])

    async def scene() -> list[str]:
        pair = await asyncio.gather(*(ask(agent, "One.", context=stage.context()) for _ in range(2)))
        again = [await ask(agent, "Two.", context=stage.context(session=reply.session)) for reply in pair]
        assert [reply.text for reply in again] == [reply.text for reply in pair]
        return [reply.text for reply in pair]

    assert len(set(stage.scene(agent, scene))) == 2
    assert stage.heard("session/load") == []
    assert stage.leftovers() == []


def test_the_end_of_the_loop_ends_a_process_that_nobody_closed(stage: Stage) -> None:
    agent = stage.agent([{"start_child": True}, {"say": ANSWER}])
    for _ in range(2):
        assert (
            asyncio.run(asyncio.wait_for(ask(agent, "Go on.", context=stage.context()), BOUND)).text == ANSWER
        )
        assert stage.leftovers() == []
    assert len({body["pid"] for body in stage.recorder.bodies("process")}) == 2


def test_closing_ends_what_is_kept_with_its_children_and_can_be_done_twice(stage: Stage) -> None:
    agent = stage.agent([{"start_child": True}, {"say": ANSWER}])

    async def scene() -> None:
        await ask(agent, "Go on.", context=stage.context())
        assert len(stage.leftovers()) == 2
        await agent.aclose()
        assert stage.leftovers() == []

    stage.scene(agent, scene)


def test_only_a_few_idle_processes_are_kept(stage: Stage) -> None:
    agent = stage.agent()

    async def scene() -> None:
        for number in range(6):
            await ask(agent, "Go on.", context=stage.context(env={**ENV, "NUMBER": str(number)}))
        assert len(stage.leftovers()) == 4

    stage.scene(agent, scene)


# -- endings that are not the agent's own --


def test_a_cancel_is_told_to_the_agent_and_what_it_gave_is_kept(stage: Stage) -> None:
    usage = {"sessionUpdate": "usage_update", "used": 7, "size": 9}
    agent = stage.agent(
        [{"start_child": True}, {"update": usage}, {"say": "half"}, {"wait_for_cancel": True}]
    )

    async def scene() -> None:
        context = stage.context()
        asked = asyncio.ensure_future(ask(agent, "Go on.", context=context))
        await stage.recorder.come("text")
        context.cancel.set()  # type: ignore[attr-defined]
        await asked

    with pytest.raises(AgentError, match="was cancelled") as caught:
        stage.scene(agent, scene)
    kept = caught.value
    assert (kept.ending, kept.text, kept.session, kept.usage) == (
        "interrupted",
        "half",
        "s-1",
        Usage(7, turns=1),
    )
    assert len(stage.heard("session/cancel")) == 1
    assert stage.leftovers() == []


def test_a_timeout_is_told_to_the_agent_and_ends_it_with_its_children(stage: Stage) -> None:
    turn: list[Json] = [{"start_child": True}, {"say": "half"}, {"wait_for_cancel": True}]
    for seconds in (1.5, 20.5):
        (stage.folder / "heard.jsonl").unlink(missing_ok=True)
        with pytest.raises(AgentError, match=rf"longer than {seconds:g} s") as caught:
            stage.run(stage.agent(turn, timeout=seconds))
        if caught.value.text:  # else the machine is so busy that the agent had not even begun
            break
    assert (caught.value.ending, caught.value.text) == ("timeout", "half")
    assert len(stage.heard("session/cancel")) == 1
    assert stage.leftovers() == []


@pytest.mark.parametrize(
    ("action", "ending", "told"),
    [
        ({"exit": 3}, "failed", r"exited with status 3: out of tea"),
        ({"exit": 0}, "failed", r"exited with status 0"),
        ({"die": "SIGSEGV"}, "killed", r"SIGSEGV: out of tea"),
        ({"close_stdout": True}, "failed", r"closed the connection: A line that is no message"),
    ],
)
def test_an_agent_that_dies_in_the_middle_of_a_prompt_says_how_and_keeps_what_it_said(
    stage: Stage, action: Json, ending: str, told: str
) -> None:
    turn = [{"print": "A line that is no message"}, {"stderr": "out of tea"}, {"say": "half"}, action]
    with pytest.raises(AgentError, match=told) as caught:
        stage.run(stage.agent(turn))
    assert (caught.value.ending, caught.value.text, caught.value.session) == (ending, "half", "s-1")
    assert stage.leftovers() == []


def test_a_program_that_is_no_agent_is_a_failure_that_quotes_it(stage: Stage) -> None:
    with pytest.raises(AgentError, match="usage: not-an-agent") as caught:
        stage.run(acp(["sh", "-c", "echo 'usage: not-an-agent'; exit 2"]))
    assert caught.value.ending == "failed"


def test_a_failure_of_whoever_listens_ends_the_agent_and_is_raised(stage: Stage) -> None:
    class TakenOver(Exception):
        pass

    def refuse(kind: str, _body: Any) -> None:
        if kind in ("text", "permission"):
            raise TakenOver

    first_signs: list[Json] = [{"say": "x"}, {"ask": {"call": CALLS["edit"]}}]
    for sign in first_signs:
        started: list[Any] = []

        def emit(kind: str, body: Any, started: list[Any] = started) -> None:
            started.append(body) if kind == "process" else refuse(kind, body)

        with pytest.raises(TakenOver):
            stage.run(stage.agent([sign, {"hang": True}]), emit=emit)
        assert process.survivors(started[0]["run"]) == []


# -- size --


def test_messages_of_megabytes_are_taken(stage: Stage) -> None:
    reply = stage.run(stage.agent([{"echo": True}]), "Äö" * 1_000_000)
    assert reply.text == "Äö" * 1_000_000


def test_a_message_of_100_mb_is_an_error_that_says_so(stage: Stage) -> None:
    with pytest.raises(AgentError, match="sent a line of more than 32 MB") as caught:
        stage.run(stage.agent([{"say": "half"}, {"long_line": 100}]))
    assert caught.value.ending == "failed"
    assert caught.value.hint
    assert stage.leftovers() == []


def test_a_stream_of_100_mb_does_not_grow_our_memory(stage: Stage) -> None:
    script = f"""
        import asyncio, json, resource, sys
        from pathlib import Path
        from rolecall.agents.adapters.acp import acp
        from rolecall.agents.contract import Recorder, context_for

        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def main():
            words = [sys.executable, "-I", {str(STAND_IN)!r}, {str(stage.folder)!r}]
            turns = {{"turns": [[{{"say": "warm"}}], [{{"flood": 100}}, {{"update": {{"sessionUpdate": "tool_call",
                      "toolCallId": "t", "title": "t"}}}}, {{"say": "end"}}]]}}
            agent = acp([*words, json.dumps(turns)])
            context = lambda: context_for(Path("."), lambda kind, body: None, env={ENV!r})
            await agent("Warm up.", context())
            before = peak()
            reply = await agent("Flood.", context())
            assert reply.text == "end"
            print(peak() - before)
            await agent.aclose()
        asyncio.run(main())
    """
    from textwrap import dedent

    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(script)],
        cwd=stage.workdir, env={**ENV, "HOME": str(stage.folder)}, capture_output=True, text=True, timeout=BOUND,
    )  # fmt: skip
    assert child.stderr == ""
    assert int(child.stdout) < 40 * 1024


# -- what it is given --


def test_tool_servers_are_passed_on_with_the_path_of_their_program(stage: Stage) -> None:
    server = McpServer("tiny", "sh", ("-c", "true"), {"KEY": "value"})
    stage.run(stage.agent(mcp=(server,)))
    given = stage.heard("session/new")[0]["params"]
    path = next(f"{folder}/sh" for folder in ENV["PATH"].split(":") if os.path.exists(f"{folder}/sh"))
    assert given["cwd"] == str(stage.workdir)
    assert given["mcpServers"] == [
        {"name": "tiny", "command": path, "args": ["-c", "true"], "env": [{"name": "KEY", "value": "value"}]}
    ]
    stage.run(stage.agent(mcp=(server,)), session="s-1")
    assert stage.heard("session/load")[0]["params"]["mcpServers"] == given["mcpServers"]


def test_a_tool_server_that_is_not_there_is_named_before_the_prompt(stage: Stage) -> None:
    with pytest.raises(AgentError, match="'tiny' needs the program 'no-such-server'"):
        stage.run(stage.agent(mcp=(McpServer("tiny", "no-such-server"),)))
    assert stage.heard("session/prompt") == []


def test_variables_of_the_instance_are_laid_over_those_of_the_context(stage: Stage) -> None:
    agent = stage.agent([{"tell_variable": "MODEL"}], env={"MODEL": "large"})
    assert stage.run(agent, env={**ENV, "MODEL": "small"}).text == "MODEL=large"


def test_a_model_is_chosen_among_those_of_the_session(stage: Stage) -> None:
    option = {
        "id": "which",
        "name": "Model",
        "category": "model",
        "type": "select",
        "currentValue": "a",
        "options": [],
    }
    offers = {"configOptions": [option]}
    stage.run(stage.agent(model="b", offers=offers))
    chosen = stage.heard("session/set_config_option")[0]["params"]
    assert (chosen["configId"], chosen["value"]) == ("which", "b")
    with pytest.raises(AgentError, match="no such model"):
        stage.run(stage.agent(model="no-such-model", offers=offers))
    with pytest.raises(UsageError, match="offers no choice of models"):
        stage.run(stage.agent(model="b"))


# -- names --


@pytest.mark.parametrize("name", PRESETS)
def test_a_spec_may_name_a_preset_or_its_command_wherever_it_lies(name: str) -> None:
    words = PRESETS[name].words
    assert resolve(f"acp:{name}") == acp(words)
    for found in (acp(name), acp(words), acp([f"/opt/bin/{words[0]}", *words[1:], "--more"])):
        assert found.name == f"acp:{name}"
        assert found.deniable == frozenset(PRESETS[name].denies)


def test_any_other_command_is_taken_as_it_is() -> None:
    agent = resolve("acp:my-agent --acp 'two words'")
    assert isinstance(agent, Acp)
    assert (agent.argv, agent.name, agent.deniable) == (
        ("my-agent", "--acp", "two words"),
        "acp:my-agent",
        frozenset(),
    )
    assert preset_of(["opencode", "run"])[1] is UNKNOWN


def test_options_of_the_configuration_are_read_by_their_types() -> None:
    servers = {"tiny": {"command": "sh", "args": ["-c"], "env": {"A": 1}}}
    agent = resolve("acp:my-agent", {"timeout": "60", "is-asking": "yes", "mcp": servers, "env": {"A": 1}})
    assert agent == acp(
        "my-agent",
        timeout=60.0,
        is_asking=True,
        env={"A": "1"},
        mcp=(McpServer("tiny", "sh", ("-c",), {"A": "1"}),),
    )
    with pytest.raises(UsageError, match="has no option 'tiemout'"):
        resolve("acp:my-agent", {"tiemout": 1})
    with pytest.raises(UsageError, match="has 3 wrong options") as raised:
        resolve("acp:my-agent", {"tiemout": 1, "timeout": "soon", "env": 5, "is-asking": True})
    assert ["tiemout" in line or "timeout" in line for line in raised.value.message.splitlines()[1:]] == [
        True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("spec", ["acp", "acp:", "acp:''", "acp:prog 'open"])
def test_a_spec_without_a_proper_command_is_refused_before_the_run(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(spec)
    assert "acp:program" in caught.value.hint


def test_naming_an_agent_does_not_load_the_protocols_package() -> None:
    script = (
        "import sys; from rolecall.agents import resolve; resolve('acp:codex-acp');"
        "print([name for name in ('acp', 'pydantic') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "[]\n"
