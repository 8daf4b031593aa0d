"""`rolecall acp` as an editor meets it: the SDK's client talks to a real child process, scripted agents answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, text_block
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    CreateElicitationResponse,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)
from acp.stdio import spawn_agent_process

import rolecall

WORKFLOW = """\
name: fix
description: Fix a bug.
roles:
  developer:
    description: Writes the fix
    goal: Fix it.
    schema: {type: object, properties: {status: {enum: [done]}}, required: [status]}
  boss:
    description: Decides
    agent: human
    goal: Ship it?
    schema: {type: object, properties: {status: {enum: [ship, again]}}, required: [status]}
graph:
  $START: {_: {role: developer}}
  developer: {done: {role: boss}}
  boss: {ship: {role: $END}, again: {role: developer}}
"""
SCRIPT = """\
roles:
  developer:
    - emit: [{kind: text, text: "Looking at it.\\n"}]
      edit: {calc.py: "1 + 1\\n"}
      usage: {input_tokens: 10, output_tokens: 5, cost: 0.5}
      output: {status: done}
      body: Fixed the sign.
    - output: {status: done}
      body: Fixed it again.
"""


class Editor:
    """A client that remembers what it was shown, and answers with what a test has prepared."""

    def __init__(self, *choices: str) -> None:
        self.choices = list(choices)
        self.fields = ["status"]
        self.asked: list[Any] = []
        self.shown: list[Any] = []
        self.has_more = asyncio.Event()

    def on_connect(self, _connection: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.shown.append(update)
        self.has_more.set()

    async def request_permission(self, options: Any, tool_call: Any, **_: Any) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        if not self.choices:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = AllowedOutcome(outcome="selected", option_id=self.choices.pop(0))
        return RequestPermissionResponse(outcome=chosen)

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> CreateElicitationResponse:
        self.asked.append((message, mode))
        return {"action": "accept", "content": {self.fields.pop(0): self.choices.pop(0)}}  # type: ignore[return-value]

    def texts(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one.content.text for one in self.shown if one.session_update == kind)

    def kinds(self) -> set[str]:
        return {one.session_update for one in self.shown}

    async def wait_for(self, kind: str) -> None:
        async with asyncio.timeout(120):
            while kind not in self.kinds():
                self.has_more.clear()
                await self.has_more.wait()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".workflows").mkdir()
    (tmp_path / ".workflows/fix.yaml").write_text(WORKFLOW)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    return tmp_path


@asynccontextmanager
async def connect(
    editor: Any, project: Path, *more: str, has_agent: bool = True, forms: bool = False
) -> AsyncIterator[Any]:
    agent = ("--agent", f"scripted:{project / 'script.yaml'}") if has_agent else ()
    words = ("-m", "rolecall", "acp", "--workflow", "fix", *agent, *more)
    start = spawn_agent_process(
        editor, sys.executable, *words, env=dict(os.environ), cwd=project, use_unstable_protocol=True
    )
    async with start as (connection, process):
        can = ElicitationCapabilities(form=ElicitationFormCapabilities()) if forms else None
        await connection.initialize(1, client_capabilities=ClientCapabilities(elicitation=can))
        yield connection, process


def test_a_prompt_runs_the_thread_and_shows_what_its_roles_do(project: Path) -> None:
    async def talk() -> None:
        editor = Editor("again", "ship")
        async with connect(editor, project, "--limit", "tokens=1000") as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            reply = await connection.prompt(session_id=session.session_id, prompt=[text_block("Fix the sum")])
            listed = await connection.list_sessions(cwd=str(project))

        assert reply.stop_reason == "end_turn" and reply.usage.total_tokens == 15
        assert [one.session_id for one in listed.sessions] == [session.session_id]
        assert "Fixed the sign." in editor.texts() and "Fixed it again." in editor.texts()
        plan = [one for one in editor.shown if one.session_update == "plan"]
        assert plan == [], "one agent and one person are a conversation"
        diffs = [
            part
            for one in editor.shown
            if one.session_update == "tool_call"
            for part in one.content or ()
            if part.type == "diff"
        ]
        assert [(part.path, part.old_text, part.new_text) for part in diffs] == [
            (str(project / "calc.py"), None, "1 + 1\n")
        ]
        assert [option.option_id for option in editor.asked[0][1]] == ["ship", "again"]
        used = [one for one in editor.shown if one.session_update == "usage_update"][-1]
        assert (used.used, used.size, used.cost.amount) == (15, 1000, 0.5)
        with rolecall.open(folder=project) as opened:
            thread = opened.thread(session.session_id)
            assert thread.status == "completed" and thread.steps[-1].payload["by"]["door"] == "acp"

    asyncio.run(talk())


def test_an_editor_with_forms_asks_a_person_with_one(project: Path) -> None:
    async def talk() -> None:
        editor = Editor("ship")
        async with connect(editor, project, forms=True) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            await connection.prompt(session_id=session.session_id, prompt=[text_block("Fix the sum")])
        with rolecall.open(folder=project) as opened:
            assert opened.thread(session.session_id).status == "completed"

    asyncio.run(talk())


def test_a_person_can_answer_later_in_words_and_go_on_after_the_end(project: Path) -> None:
    async def talk() -> None:
        editor = Editor()
        async with connect(editor, project) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            await connection.prompt(session_id=session.session_id, prompt=[text_block("Fix the sum")])
            assert "Begin your answer with `ship:` or `again:`" in editor.texts()
            await connection.prompt(session_id=session.session_id, prompt=[text_block("Perhaps")])
            assert "must begin with ship or again" in editor.texts()
            await connection.prompt(session_id=session.session_id, prompt=[text_block("ship: it is good")])
            await connection.prompt(session_id=session.session_id, prompt=[text_block("And the product?")])
        with rolecall.open(folder=project) as opened:
            first = opened.thread(session.session_id)
            assert first.status == "completed" and first.steps[-1].body == "it is good"
            assert first.next is not None and first.next.state.title == "And the product?"

    asyncio.run(talk())


def test_a_decision_of_which_one_status_needs_words_is_offered_and_never_guessed(project: Path) -> None:
    """`again` takes words and `ship` takes none, so words alone would fit only `again`."""
    plain = "schema: {type: object, properties: {status: {enum: [ship, again]}}, required: [status]}"
    ship = "{properties: {status: {const: ship}}, required: [status]}"
    again = "{properties: {status: {const: again}, why: {type: string}}, required: [status, why]}"
    decision = WORKFLOW.replace(plain, f"schema: {{oneOf: [{ship}, {again}]}}")
    assert decision != WORKFLOW
    (project / ".workflows/fix.yaml").write_text(decision)

    async def talk() -> None:
        editor = Editor("again")
        async with connect(editor, project) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])

            async def say(text: str) -> None:
                await connection.prompt(session_id=session.session_id, prompt=[text_block(text)])

            await say("Fix the sum")
            assert [option.option_id for option in editor.asked[0][1]] == ["ship", "again"]
            assert "Now write the text for `again`" in editor.texts()
            await say("the name is wrong")
            assert "Fixed it again." in editor.texts() and len(editor.asked) == 2
            await say("looks good to me")
            assert "must begin with ship or again" in editor.texts()
            await say("ship")
        with rolecall.open(folder=project) as opened:
            thread = opened.thread(session.session_id)
            outputs = [step.output for step in thread.steps if step.role == "boss"]
            assert outputs == [{"status": "again", "why": "the name is wrong"}, {"status": "ship"}]

    asyncio.run(talk())


def test_cancelling_stops_the_agent_and_the_thread_goes_on(project: Path) -> None:
    (project / "script.yaml").write_text(
        "roles:\n  developer:\n    - {emit: [{kind: text, text: Begun}], hang: true,"
        " again: [{output: {status: done}, body: Now it is done.}]}\n"
    )

    async def talk() -> None:
        editor = Editor("ship")
        async with connect(editor, project) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            asking = asyncio.ensure_future(
                connection.prompt(session_id=session.session_id, prompt=[text_block("Go")])
            )
            await editor.wait_for("agent_message_chunk")
            with pytest.raises(RequestError, match=r"is still at work\. Cancel it"):
                await connection.prompt(session_id=session.session_id, prompt=[text_block("And this")])
            await connection.cancel(session.session_id)
            assert (await asking).stop_reason == "cancelled"
            with rolecall.open(folder=project) as opened:
                assert opened.thread(session.session_id).status == "idle"
            reply = await connection.prompt(session_id=session.session_id, prompt=[text_block("/continue")])
            assert reply.stop_reason == "end_turn" and "Now it is done." in editor.texts()

    asyncio.run(talk())


def test_a_session_is_loaded_after_the_door_was_killed_and_no_finished_step_is_asked_again(
    project: Path,
) -> None:
    (project / "script.yaml").write_text(
        SCRIPT.replace(
            "    - output:", "    - emit: [{kind: text, text: Second}]\n      hang: true\n      output:"
        )
        + "      again: [{output: {status: done}, body: Third time.}]\n"
    )

    async def talk() -> None:
        editor = Editor("again")
        async with connect(editor, project) as (connection, process):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            asking = asyncio.ensure_future(
                connection.prompt(session_id=session.session_id, prompt=[text_block("Fix it")])
            )
            async with asyncio.timeout(120):
                while "Second" not in editor.texts():
                    editor.has_more.clear()
                    await editor.has_more.wait()
            process.send_signal(signal.SIGKILL)
            with pytest.raises((RequestError, ConnectionError)):
                await asking
        editor = Editor("ship")
        async with connect(editor, project) as (connection, _):
            await connection.load_session(cwd=str(project), session_id=session.session_id, mcp_servers=[])
            assert editor.texts("user_message_chunk").startswith("Fix it")
            assert editor.texts().count("Fixed the sign.") == 1
            await connection.prompt(session_id=session.session_id, prompt=[text_block("/continue")])
        with rolecall.open(folder=project) as opened:
            thread = opened.thread(session.session_id)
            assert thread.status == "completed"
            assert [step.role for step in thread.steps] == ["developer", "boss", "developer", "boss"]

    asyncio.run(talk())


def test_what_is_wrong_is_said_in_the_conversation(project: Path) -> None:
    async def talk() -> None:
        editor = Editor()
        async with connect(editor, project, "--workflow", "nowhere") as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            reply = await connection.prompt(session_id=session.session_id, prompt=[text_block("Go")])
            assert reply.stop_reason == "end_turn" and "nowhere" in editor.texts()
            for text in ("/continue", "/limit", " "):
                await connection.prompt(session_id=session.session_id, prompt=[text_block(text)])
            assert "/continue has nothing to act on yet" in editor.texts()
            assert "the message has no text" in editor.texts()
            with pytest.raises(RequestError):
                await connection.load_session(cwd=str(project), session_id="nobody", mcp_servers=[])

    asyncio.run(talk())


def test_the_plan_has_the_roles_in_the_order_of_the_graph_and_a_missing_agent_is_named(project: Path) -> None:
    team = WORKFLOW.replace(
        "developer: {done: {role: boss}}", "developer: {done: {role: qa}}\n  qa: {_: {role: boss}}"
    )
    team = team.replace(
        "graph:", "  qa: {description: Tests it, goal: Test it., schema: {type: object}}\ngraph:"
    )
    (project / ".workflows/fix.yaml").write_text(team)

    async def talk() -> None:
        editor = Editor()
        async with connect(editor, project, has_agent=False) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            await connection.prompt(session_id=session.session_id, prompt=[text_block("Fix it")])
            assert "Choose one in the options of the session" in editor.texts()
        with rolecall.open(folder=project) as opened:
            assert opened.thread_if_any(session.session_id) is None
        editor = Editor()
        async with connect(editor, project) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            await connection.prompt(session_id=session.session_id, prompt=[text_block("Fix it")])
            plan = next(one for one in editor.shown if one.session_update == "plan")
            roles = [entry.content.partition(":")[0] for entry in plan.entries]
            assert roles == ["developer", "qa", "boss"]

    asyncio.run(talk())


def test_the_plan_keeps_who_has_answered_and_shows_when_it_is_a_persons_turn(project: Path) -> None:
    team = WORKFLOW.replace("$START: {_: {role: developer}}", "$START: qa\n  qa: developer")
    team = team.replace(
        "graph:", "  qa: {description: Tests it, goal: Test it., schema: {type: object}}\ngraph:"
    )
    (project / ".workflows/fix.yaml").write_text(team)
    asks = '{answer: "---\\n$status: $SUSPEND\\nreason: Which port?\\n---\\n"}, {body: It is red.}'
    (project / "script.yaml").write_text(f"{SCRIPT}  qa: [{asks}]\n")

    async def talk() -> None:
        editor = Editor("again")
        async with connect(editor, project) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])

            async def say(text: str) -> list[str]:
                await connection.prompt(session_id=session.session_id, prompt=[text_block(text)])
                plans = [one for one in editor.shown if one.session_update == "plan"]
                return [entry.status for entry in plans[-1].entries]

            assert await say("Fix it") == ["in_progress", "pending", "pending"]
            assert "qa asks" in editor.texts() and editor.texts().count("Which port?") == 1
            assert await say("8080") == ["completed", "completed", "in_progress"]
            plans = [[e.status for e in one.entries] for one in editor.shown if one.session_update == "plan"]
            assert ["completed", "in_progress", "completed"] in plans, "the second visit, after `again`"
            assert await say("ship") == ["completed"] * 3

    asyncio.run(talk())


def test_what_is_no_message_is_refused_and_ends_nothing(project: Path) -> None:
    def new(cwd: str) -> str:
        return f'{{"jsonrpc":"2.0","id":3,"method":"session/new","params":{{"cwd":"{cwd}","mcpServers":[]}}}}'

    lines = [
        *("nonsense", "[" * 100_000, "[]", "5", "{}", '{"id":[],"result":1}', '{"id":0,"error":"no"}'),
        *('{"method":"$/cancel_request","params":{}}', '{"method":5}'),
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":0}}',
        '{"jsonrpc":"2.0","id":2,"method":"nothing","params":{}}',
        new("relative"),
    ]
    words = [sys.executable, "-m", "rolecall", "acp"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=project) as door:
        assert door.stdin is not None and door.stdout is not None
        door.stdin.write("".join(f"{line}\n" for line in lines).encode())
        door.stdin.flush()
        replies = [json.loads(door.stdout.readline()) for _ in range(len(lines) - 1)]
        door.stdin.close()
    assert door.returncode == 0
    refused = [one["error"]["code"] for one in replies if one["id"] is None]
    assert refused == [-32700, -32700, *[-32600] * 6]
    known = {one["id"]: one for one in replies}
    assert known[1]["result"]["protocolVersion"] == 1 and known[2]["error"]["code"] == -32601
    assert "not the absolute path of a folder" in known[3]["error"]["message"]


def test_a_form_has_the_fields_that_an_editor_can_show(project: Path) -> None:
    fields = "level: {enum: [low, high]}, tags: {type: array, items: {enum: [a, b]}}, more: {type: object}"
    plain = "properties: {status: {enum: [ship, again]}}, required: [status]"
    assert plain in WORKFLOW
    asking = plain.replace("}}, req", f"}}, {fields}}}, req").replace("[status]", "[status, level]")
    (project / ".workflows/fix.yaml").write_text(WORKFLOW.replace(plain, asking))

    async def talk() -> None:
        editor = Editor("ship", "low")
        editor.fields = ["status", "level"]
        async with connect(editor, project, forms=True) as (connection, _):
            session = await connection.new_session(cwd=str(project), mcp_servers=[])
            await connection.prompt(session_id=session.session_id, prompt=[text_block("Fix the sum")])
        form = editor.asked[1][1].requested_schema.model_dump(exclude_none=True, exclude_unset=True)
        level, tags = {"type": "string", "enum": ["low", "high"]}, {"type": "string", "enum": ["a", "b"]}
        properties = {"level": level, "tags": {"type": "array", "items": tags}}
        assert form == {"properties": properties, "required": ["level"]}
        with rolecall.open(folder=project) as opened:
            assert opened.thread(session.session_id).steps[-1].output == {"status": "ship", "level": "low"}

    asyncio.run(talk())


def test_input_that_cannot_be_waited_for_is_refused(project: Path) -> None:
    words = [sys.executable, "-m", "rolecall", "acp"]
    with open(os.devnull, "rb") as null:
        done = subprocess.run(
            words, stdin=null, capture_output=True, text=True, cwd=project, timeout=120, check=False
        )
    assert done.returncode == 2 and "must be pipes" in done.stderr and "Traceback" not in done.stderr
