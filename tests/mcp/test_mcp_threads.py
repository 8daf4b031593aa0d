"""Workflows and threads over MCP: started, stepped, read, answered; and a step that is stopped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from pipe import PATIENCE, PROGRAM, calling, cancelling, environment, request
from threadstage import DONE, Hanging, Stage

LOUD = """
import os, subprocess
from rolecall import END, RoleResult, Role, ThreadContext, Workflow

def shout() -> None:
    print("stray")
    os.write(1, b"stray\\n")
    subprocess.run(["echo", "stray"])

shout()

async def speak(context: ThreadContext) -> RoleResult:
    shout()
    return RoleResult("Said it.", {"status": "done"})

def moderator(context: ThreadContext) -> str:
    shout()
    return END if context.steps else "speaker"

workflow = Workflow(
    name="loud", description="Shouts.", moderator=moderator,
    roles={"speaker": Role.function(speak, {"type": "object", "properties": {"status": {"const": "done"}}})},
)
"""
ALONE = """
name: alone
description: Works on.
roles:
  developer:
    description: Develops
    goal: Write it.
    frontmatter: {type: object, properties: {$status: {enum: [more, done]}}, required: [$status]}
graph:
  $START: developer
  developer: {more: developer, done: $END}
"""
MORE = {"output": {"$status": "more"}, "body": "Did some."}
ASKS = {"output": {"$status": "$SUSPEND", "reason": "Which database?"}}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_thread_is_found_started_stepped_read_and_answered(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:
        (known,) = pipe.call("workflow_list")["workflows"]
        assert (known["name"], known["origin"], known["description"]) == (
            "change-code",
            "local",
            "Changes code.",
        )
        assert set(pipe.call("workflow_show", workflow="change-code")["workflow"]["roles"]) == {
            "developer",
            "reviewer",
        }
        started = pipe.call("thread_start", workflow="change-code", prompt="Fix it", limits={"steps": 9})
        thread = started["thread"]
        assert (started["status"], started["currentRole"]) == ("idle", "developer")
        stepped = pipe.call("thread_step", thread=thread)
        assert (stepped["thread"], stepped["status"], stepped["currentRole"]) == (thread, "idle", "reviewer")
        shown = pipe.call("thread_show", thread=thread, detail=True)
        assert (shown["steps"], shown["limits"], shown["cwd"]) == (1, {"steps": 9}, str(stage.project))
        assert "Did it." in pipe.call("thread_read", thread=thread)["text"]
        asked = pipe.call("thread_answer", thread=thread)
        assert (asked["currentRole"], asked["task"]) == ("reviewer", "Fix it")
        assert asked["schema"]["required"] == ["$status"]
        misfit = pipe.call("thread_answer", thread=thread, output={"$status": "maybe"})
        assert "does not fit" in misfit["error"]
        answered = pipe.call("thread_answer", thread=thread, output={"$status": "approved"}, body="Good.")
        assert answered["status"] == "completed"
        assert pipe.call("thread_list")["threads"] == []
        (listed,) = pipe.call("thread_list", status=["completed"])["threads"]
        assert listed["thread"] == thread


def test_a_question_of_a_suspended_thread_is_seen_and_answered(stage: Stage) -> None:
    stage.script(ASKS, DONE)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="Fix it")["thread"]
        stepped = pipe.call("thread_step", thread=thread)
        assert (stepped["status"], stepped["reason"]) == ("suspended", "Which database?")
        assert pipe.call("thread_answer", thread=thread)["reason"] == "Which database?"
        assert "not both" in pipe.call("thread_answer", thread=thread, text="x", output={})["error"]
        assert pipe.call("thread_answer", thread=thread, text="The second")["status"] == "idle"
        assert "The second" in pipe.call("thread_read", thread=thread)["text"]


def test_a_thread_that_asks_nothing_takes_no_answer(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="Fix it")["thread"]
        looked = pipe.call("thread_answer", thread=thread)
        assert (looked["takes"], looked["continue"]) == (None, "thread_run")
        assert "schema" not in looked
        nothing = f"thread {thread} is not waiting for an answer: it is idle, and developer is not played by a person"
        for given in (
            {"text": "Hurry"},
            {"output": {"$status": "done"}},
            {"output": {"$status": "done"}, "body": "b"},
        ):
            assert pipe.call("thread_answer", thread=thread, **given) == {
                "error": f"{nothing}\nthread_run continues it."
            }
        for given in ({"body": "b"}, {"text": "t", "body": "b"}):
            assert (
                "a body can only be given together with an output"
                in pipe.call("thread_answer", thread=thread, **given)["error"]
            )
        assert pipe.call("thread_show", thread=thread)["steps"] == 0


def test_each_kind_of_waiting_takes_its_kind_of_answer(stage: Stage) -> None:
    stage.script(ASKS, DONE)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="Fix it")["thread"]
        pipe.call("thread_step", thread=thread)
        assert pipe.call("thread_answer", thread=thread)["takes"] == "text"
        refused = pipe.call("thread_answer", thread=thread, output={"$status": "done"})["error"]
        assert f"thread {thread} waits for a text, not for an output" in refused
        assert (
            "waits for an answer: Which database?"
            in pipe.call("thread_answer", thread=thread, text=" ")["error"]
        )
        assert pipe.call("thread_answer", thread=thread, text="The second")["continue"] == "thread_run"
        for status in ("idle", "suspended"):  # a role that a person plays is due, and then it is asked
            reply = pipe.call("thread_step", thread=thread)
            assert (reply["status"], reply["currentRole"]) == (status, "reviewer")
            asked = pipe.call("thread_answer", thread=thread)
            assert asked["takes"] == "output" and asked["prompt"] and "schema" in asked
            refused = pipe.call("thread_answer", thread=thread, text="Looks good")["error"]
            assert f"thread {thread} waits for an output, not for a text" in refused
        answered = pipe.call("thread_answer", thread=thread, output={"$status": "approved"})
        assert (answered["status"], answered["continue"]) == ("completed", None)
        for given in ({"text": "More"}, {"output": {"$status": "approved"}}):
            refused = pipe.call("thread_answer", thread=thread, **given)["error"]
            assert refused == f"thread {thread} is not waiting for an answer: it is completed"
        assert pipe.call("thread_answer", thread=thread)["takes"] is None


def test_a_role_that_failed_takes_a_word_or_an_empty_text(stage: Stage) -> None:
    failure = {"fail": {"ending": "failed", "reason": "out of tokens"}}
    stage.script({**failure, "again": [failure, DONE]})
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="Fix it")["thread"]
        for text in ("Take less", ""):
            failed = pipe.call("thread_step", thread=thread)
            assert (failed["status"], failed["continue"]) == ("suspended", "thread_answer")
            assert "out of tokens" in failed["reason"]
            assert pipe.call("thread_answer", thread=thread)["takes"] == "text"
            reply = pipe.call("thread_answer", thread=thread, text=text)
            assert (reply["status"], reply["steps"]) == ("idle", 1)
        assert pipe.call("thread_step", thread=thread)["currentRole"] == "reviewer"


def test_a_limit_that_is_reached_takes_no_answer(stage: Stage) -> None:
    stage.write("alone.yaml", ALONE)
    stage.script(MORE)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="alone", prompt="x", limits={"steps": 1})["thread"]
        assert pipe.call("thread_step", thread=thread)["status"] == "idle"
        reached = pipe.call("thread_step", thread=thread)
        assert (reached["status"], reached["continue"]) == ("suspended", None)
        refused = pipe.call("thread_answer", thread=thread, text="Go on")["error"]
        assert (
            "is not waiting for an answer: it is suspended: limit reached" in refused
            and "Ask the user" in refused
        )


def test_nothing_that_is_said_of_threads_names_a_command(stage: Stage) -> None:
    stage.script(DONE)
    with stage.open() as pipe:
        said = [pipe.call("thread_show", thread="nope"), pipe.call("thread_answer", thread="nope", text="x")]
        said += [
            pipe.call("thread_start", workflow="nope", prompt="x"),
            pipe.call("workflow_show", workflow="nope"),
        ]
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        said += [pipe.call("thread_step", thread=thread), pipe.call("thread_step", thread=thread)]
        asked = said[-1]["reason"]
        assert asked == "reviewer is played by a person"
        said += [pipe.call("thread_show", thread=thread), pipe.call("thread_list")]
        said.append(pipe.call("thread_answer", thread=thread, output={"$status": "rejected"}))
        read = pipe.call("thread_read", thread=thread, quota=1)
        assert f"load with `thread_read` and `before` {read['before']}" in read["text"]
        said += [read, pipe.call("thread_read", thread=thread, before="99")]
        (stage.folder / "script.json").unlink()
        said.append(pipe.call("thread_step", thread=thread))
        assert "Name a YAML or JSON file." in said[-1]["error"]
    with stage.open("--store", str(stage.folder / "none.db")) as pipe:
        said.append(pipe.call("thread_list"))
    for one in said:
        assert "rolecall " not in json.dumps(one), one
        assert "--" not in one.get("error", ""), one


def test_what_an_agent_asks_is_passed_on_in_its_own_words(stage: Stage) -> None:
    question = "Shall I run `rolecall plan start`? It is `rolecall thread list --all` otherwise."
    stage.script({"output": {"$status": "$SUSPEND", "reason": question}})
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        assert pipe.call("thread_step", thread=thread)["reason"] == question
        assert pipe.call("thread_answer", thread=thread)["reason"] == question
        assert pipe.call("thread_list")["threads"][0]["reason"] == question


def test_threads_are_listed_page_by_page(stage: Stage) -> None:
    with stage.open() as pipe:
        ids = [
            pipe.call("thread_start", workflow="change-code", prompt=f"Paint it {colour}")["thread"]
            for colour in ("red", "green", "blue")
        ]
        first = pipe.call("thread_list", max=2)
        assert [one["thread"] for one in first["threads"]] == ids[:0:-1]
        rest = pipe.call("thread_list", max=2, page=first["page"])
        assert [one["thread"] for one in rest["threads"]] == ids[:1]
        assert "page" not in rest
        assert len(pipe.call("thread_list", text="green PAINT")["threads"]) == 1


def test_what_cannot_be_done_with_a_thread_is_said(stage: Stage) -> None:
    stage.script({"output": {"$status": "blocked"}, "body": "No."})
    with stage.open() as pipe:
        assert "there is no workflow 'nothing'" in pipe.call("workflow_show", workflow="nothing")["error"]
        missing = pipe.call("thread_start", workflow="nothing", prompt="x")["error"]
        assert "there is no workflow 'nothing'" in missing and "change-code" in missing
        assert "prompt" in pipe.call("thread_start", workflow="change-code", prompt=" ")["error"]
        strange = pipe.call("thread_start", workflow="change-code", prompt="x", limits={"lives": 9})["error"]
        assert "unknown limit 'lives'" in strange
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        for name in ("thread_show", "thread_read", "thread_step", "thread_answer"):
            assert "there is no thread" in pipe.call(name, thread="--help")["error"]
        assert pipe.call("thread_step", thread=thread)["status"] == "failed"
        assert "is failed" in pipe.call("thread_step", thread=thread)["error"]


def test_an_agent_that_is_missing_is_the_error_of_the_step(stage: Stage) -> None:
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        assert "script.json" in pipe.call("thread_step", thread=thread)["error"]
        assert pipe.call("thread_show", thread=thread)["status"] == "idle"


def test_code_that_is_no_text_or_too_long_to_be_shown_is_an_error_that_says_so(stage: Stage) -> None:
    path = stage.project / "workflows" / "loud.py"
    with stage.open() as pipe:
        for content, item in (
            (b"# caf\xe9\n", "is not UTF-8 text (byte 5)"),
            (b"#" * 3_000_000, "is larger than 1,000,000 bytes"),
            (b"#" * 999_999 + "\u20ac".encode(), "is larger than 1,000,000 bytes"),
        ):
            path.write_bytes(content)
            said = pipe.call("workflow_show", workflow="loud")["error"]
            assert "loud.py" in said and item in said
    assert "Traceback" not in (stage.folder / "stderr").read_text()


def test_what_code_prints_never_comes_between_two_messages(stage: Stage) -> None:
    stage.write("loud.py", LOUD)
    with stage.open() as pipe:
        listed = pipe.call("workflow_list")["workflows"]
        assert [one["name"] for one in listed] == ["change-code", "loud"]
        assert "def shout" in pipe.call("workflow_show", workflow="loud")["source"]
        thread = pipe.call("thread_start", workflow="loud", prompt="Speak")["thread"]
        assert pipe.call("thread_step", thread=thread)["status"] == "completed"
        assert pipe.close() == (0, b"")
    # It is not lost either: whoever looks for it finds it with the other diagnostics.
    assert (stage.folder / "stderr").read_text().count("stray") >= 6


def test_what_code_prints_harms_nobody_where_standard_error_is_closed(stage: Stage) -> None:
    stage.write("loud.py", LOUD)
    opening = request(0, "initialize", {"protocolVersion": "2025-06-18"})
    call = calling(1, "thread_start", workflow="loud", prompt="Speak")
    done = subprocess.run(
        ["sh", "-c", f"exec '{PROGRAM}' mcp --project '{stage.project}' 2>&-"],
        input=f"{json.dumps(opening)}\n{json.dumps(call)}\n".encode(),
        stdout=subprocess.PIPE,
        env=environment(stage.folder),
        timeout=PATIENCE,
        check=True,
    )
    started = [json.loads(line) for line in done.stdout.splitlines()][1]["result"]["structuredContent"]
    assert started["status"] == "idle"


def test_code_that_ends_its_process_ends_neither_the_server_nor_its_calls(stage: Stage) -> None:
    stage.write("quits.py", "import sys\nsys.exit(3)\n")
    with stage.open() as pipe:
        for _ in range(2):
            assert "error" in pipe.call("thread_start", workflow="quits", prompt="x")
        assert pipe.call("nx_plan_status") == {"active": False}


def test_a_store_can_be_named(stage: Stage) -> None:
    stage.script(DONE)
    other = stage.folder / "other.db"
    with stage.open("--store", str(other)) as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        assert pipe.call("thread_step", thread=thread)["currentRole"] == "reviewer"
    assert other.exists()
    with stage.open() as pipe:
        assert pipe.call("thread_list") == {"threads": []}
    with stage.open("--store", str(stage.folder / "none.db")) as pipe:
        assert "none.db" in pipe.call("thread_list")["error"]


# -- a step that is stopped --


def test_a_step_that_is_cancelled_stops_its_agent_and_can_be_taken_again(stage: Stage) -> None:
    hanging = Hanging(stage)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        pipe.send(calling("step", "thread_step", thread=thread))

        def stop() -> None:
            # A step holds up neither other calls nor what says that it is to stop.
            pipe.send(calling("other", "nx_plan_status"))
            assert pipe.receive()["id"] == "other"
            pipe.send(cancelling("step"), request("after", "ping"))
            assert pipe.receive()["id"] == "after"

        hanging.wait_for_end(stop)
        assert pipe.close() == (0, b"")
    with stage.open() as pipe:
        assert pipe.call("thread_show", thread=thread)["status"] == "idle"
        assert pipe.call("thread_step", thread=thread)["currentRole"] == "reviewer"


def test_a_step_is_stopped_when_the_client_is_gone(stage: Stage) -> None:
    hanging = Hanging(stage)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        pipe.send(calling("step", "thread_step", thread=thread))
        hanging.wait_for_end(pipe.child.stdin.close)  # type: ignore[union-attr]
        assert pipe.child.wait(60) == 0
    with stage.open() as pipe:
        assert pipe.call("thread_show", thread=thread)["status"] == "idle"


def test_a_step_is_stopped_when_the_server_is_told_to_end(stage: Stage) -> None:
    hanging = Hanging(stage)
    with stage.open() as pipe:
        thread = pipe.call("thread_start", workflow="change-code", prompt="x")["thread"]
        pipe.send(calling("step", "thread_step", thread=thread))
        hanging.wait_for_end(pipe.child.terminate)
        assert pipe.child.wait(60) == -15


def test_files_outside_the_project_are_nobodys_to_look_at(stage: Stage, tmp_path: Path) -> None:
    outside = tmp_path / "secret-thing.py"
    outside.write_text("PASSWORD = 'x'\n")
    with stage.open() as pipe:
        for path in (str(outside), "../secret-thing.py"):
            for name, more in (("workflow_show", {}), ("thread_start", {"prompt": "x"})):
                error = pipe.call(name, workflow=path, **more)["error"]
                assert "outside the project" in error and "PASSWORD" not in error
