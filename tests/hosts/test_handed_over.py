"""Threads that a model handed over: it hears of their end once, and hooks open the store only while there are some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hook_stage import OURS, ROLECALL, hook, known_hooks, side_by_side, tell

from rolecall.api import Rolecall
from rolecall.hosts import handed_over
from rolecall.hosts.event import ContextCompact, SessionEnd, SessionStart, UserMessage

FLOW = """
name: write-it
description: Writes it.
roles:
  developer:
    description: Develops
    goal: Write it.
    frontmatter: {type: object, properties: {$status: {enum: [done]}}, required: [$status]}
  reviewer:
    description: Reviews
    goal: Judge it.
    agent: human
    frontmatter: {type: object, properties: {$status: {enum: [approved]}}, required: [$status]}
graph: {$START: developer, developer: {done: reviewer}, reviewer: {approved: $END}}
"""


class Stage:
    """A project with a thread that was handed over."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        (self.project / ".git").mkdir(parents=True)
        (self.project / ".git/HEAD").write_text("ref: refs/heads/main\n")
        (self.project / ".nexus").mkdir()
        (folder / "write-it.yaml").write_text(FLOW)
        script = folder / "script.json"
        done = {"output": {"$status": "done"}, "body": "The work is done."}
        script.write_text(json.dumps({"roles": {"developer": [done]}}))
        self.store = str(folder / "store.db")
        self.rolecall = Rolecall(self.store, folder=self.project)
        self.thread = self.rolecall.start(str(folder / "write-it.yaml"), "Fix it", agent=f"scripted:{script}")
        handed_over.note(str(self.project), self.thread.id, self.store)

    def message(self) -> str:
        return tell(self.project, UserMessage("s", "How far are we?")).context

    def finish(self) -> None:
        self.thread.run().wait()
        self.thread.answer({"$status": "approved"}, "All is well.")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_nothing_is_said_while_a_thread_goes_on(stage: Stage) -> None:
    assert stage.thread.id not in stage.message()
    assert handed_over.list_noted(str(stage.project)) == [stage.thread.id]


def test_the_next_message_tells_of_the_end_once(stage: Stage) -> None:
    stage.finish()
    reported = stage.message()
    assert f"Thread {stage.thread.id} (write-it: Fix it), which was handed over, is completed." in reported
    assert "reviewer: approved\nAll is well." in reported
    assert "thread_read" in reported
    assert stage.thread.id not in stage.message()
    assert handed_over.list_noted(str(stage.project)) == []


def test_the_next_session_hears_of_a_thread_that_asks_a_person(stage: Stage) -> None:
    stage.thread.run().wait()
    tell(stage.project, SessionEnd("s"))
    started = tell(stage.project, SessionStart("t"))
    assert "is suspended: reviewer is played by a person" in started.context
    assert "thread_answer" in started.context
    assert stage.thread.id not in tell(stage.project, SessionStart("u")).context


def test_a_compaction_and_the_end_of_a_turn_leave_the_news_for_the_model(stage: Stage) -> None:
    stage.finish()
    tell(stage.project, SessionEnd("s", is_over=False))
    tell(stage.project, ContextCompact("s"))
    assert stage.thread.id in stage.message()


def test_an_agent_that_plays_a_role_takes_no_news(stage: Stage) -> None:
    stage.finish()
    hooks = known_hooks()._replace(run="thread/1")
    assert tell(stage.project, UserMessage("s", "x"), hooks).context == ""
    assert stage.thread.id in stage.message()


def test_a_thread_that_could_not_be_run_says_why(stage: Stage) -> None:
    handed_over.note(str(stage.project), stage.thread.id, stage.store, problem="claude is not installed")
    assert "could not be run: claude is not installed" in stage.message()


@pytest.mark.parametrize("damage", ["store", "thread", "note"])
def test_what_cannot_be_read_is_said_once_and_breaks_nothing(stage: Stage, damage: str) -> None:
    project = str(stage.project)
    if damage == "store":
        handed_over.note(project, stage.thread.id, f"{stage.store}.gone")
    elif damage == "thread":
        handed_over.forget(project, stage.thread.id)
        handed_over.note(project, "01M7FGRCJE30D2T1QKZ97R6Z8C", stage.store)
    else:
        (stage.project / OURS / "handed-over" / stage.thread.id).write_text("{")
    assert "which was handed over, " in stage.message()
    assert "which was handed over, " not in stage.message()


def test_two_sessions_at_once_tell_it_once(stage: Stage) -> None:
    stage.finish()
    said = stage.project.parent / "said"

    def ask(session: str) -> None:
        context = tell(stage.project, UserMessage(session, "x")).context
        if stage.thread.id in context:
            with open(said, "a") as file:
                file.write(f"{session}\n")

    side_by_side(*(lambda name=name: ask(name) for name in "abcd"))
    assert len(said.read_text().splitlines()) == 1


def test_without_a_project_nothing_is_written(tmp_path: Path) -> None:
    handed_over.note(str(tmp_path), "01M7FGRCJE30D2T1QKZ97R6Z8C", "store.db")
    assert list(tmp_path.iterdir()) == []


def test_a_hook_imports_no_store_unless_something_was_handed_over(stage: Stage) -> None:
    """Hosts run hooks with every message."""

    def modules() -> set[str]:
        script = "import sys; from rolecall.cli import hook; hook.os._exit = lambda _: print(*sys.modules)\n"
        script += "hook.run_directly(sys.argv[1:])"
        words = ["rolecall", "user_message", "--project", str(stage.project)]
        given = json.dumps({"session": "s", "text": "Hello."})
        done = subprocess.run(
            [sys.executable, "-c", script, *words], input=given, capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())

    heavy = {"rolecall.hosts.thread_news", "rolecall.store.store", "sqlite3"}
    assert heavy <= modules()
    handed_over.forget(str(stage.project), stage.thread.id)
    assert not heavy & modules()


# -- the hook that waits --


def payload(stage: Stage, thread: str) -> dict[str, str]:
    response = json.dumps({"thread": thread, "status": "idle", "runs": "process"})
    return {"session_id": "s", "tool_name": "mcp__rolecall__workflow_run", "tool_response": response}


def test_the_hook_waits_for_the_end_and_wakes_the_model_with_it(stage: Stage) -> None:
    words = [ROLECALL, "hook", "claude", "ThreadEnd", "--project", str(stage.project)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        child.stdin.write(json.dumps(payload(stage, stage.thread.id)))
        child.stdin.close()
        child.stdin = None
        assert child.poll() is None
        stage.thread.run().wait()
        _, output = child.communicate(timeout=60)
    assert child.returncode == 2
    assert f"Thread {stage.thread.id} (write-it: Fix it), which was handed over, is suspended: " in output
    assert stage.thread.id not in stage.message()


def test_the_hook_ends_at_once_for_a_call_that_was_waited_for(stage: Stage) -> None:
    done = hook(stage.project, "ThreadEnd", payload(stage, "01M7FGRCJE30D2T1QKZ97R6Z8C"), host="claude")
    assert (done.returncode, done.stderr) == (0, b"")
    assert handed_over.list_noted(str(stage.project)) == [stage.thread.id]


def test_the_hook_of_a_host_that_is_gone_leaves_the_news_for_the_next_session(stage: Stage) -> None:
    """A program that starts the hook and is killed before the thread ends."""
    words = [ROLECALL, "hook", "claude", "ThreadEnd", "--project", str(stage.project)]
    script = "import subprocess, sys\nchild = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
    script += f"child.communicate({json.dumps(payload(stage, stage.thread.id)).encode()!r})"
    with subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE) as host:
        host.kill()
        assert host.stdout is not None
        assert host.stdout.read() == b""  # the hook has ended too, which held the pipe
    stage.finish()
    assert stage.thread.id in stage.message()
