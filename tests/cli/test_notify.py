"""Notifications: real programs and a real webhook learn that a thread waits for a person or has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakeagent import executable
from listeners import Hook, Pipe
from test_thread_run import APPROVED, ASKS, DONE, Flow

from rolecall.settings import notify
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import RESUME, Status, ThreadState, WorkFolder, move

if TYPE_CHECKING:
    from conftest import Rolecall


@pytest.fixture
def hook() -> Iterator[Hook]:
    with closing(Hook()) as hook:
        yield hook


def test_a_webhook_learns_of_a_question_and_of_the_end(
    rolecall: Rolecall, hook: Hook, tmp_path: Path
) -> None:
    flow = Flow(rolecall, tmp_path)
    rolecall("config", "set", "notify.webhook", hook.address, check=0)
    rolecall("config", "set", "notify.page", "https://page.example.org/", check=0)
    ident = flow.start(flow.script([ASKS, DONE], [APPROVED]))
    flow.thread("run", ident, check=7)
    message = hook.got.get(timeout=60)
    assert (message["event"], message["thread"], message["status"]) == ("waits", ident, "suspended")
    assert message["text"] == "waits for you: Which database?"
    assert message["page"] == f"https://page.example.org/threads/{ident}"
    assert message["command"] == f"rolecall thread answer {ident} --run"
    flow.thread("resume", ident, "-p", "The first.", "--run")
    message = hook.got.get(timeout=60)
    assert (message["event"], message["text"], message["role"]) == ("completed", "completed", None)
    assert "T0KEN" not in rolecall("config", "list").stdout
    assert hook.got.empty() and not (rolecall.home / "notify.log").exists()


def test_a_trial_has_the_fields_of_a_notification(rolecall: Rolecall, hook: Hook) -> None:
    told_how = rolecall("notify", check=2).stderr
    assert """`rolecall config set notify.command '["program", "{text}"]'`""" in told_how
    rolecall("config", "set", "notify.webhook", hook.address, check=0)
    assert rolecall("notify", check=0).stdout == "webhook: sent\n"
    message = hook.got.get(timeout=60)
    assert message["text"] == "waits for you: this is only a trial"
    assert {"thread", "title", "workflow", "role", "status", "reason", "page", "command", "at"} <= set(
        message
    )


def test_a_command_gets_the_words_and_a_failure_is_only_a_note(rolecall: Rolecall, tmp_path: Path) -> None:
    flow = Flow(rolecall, tmp_path)
    pipe = Pipe(tmp_path / "pipe")
    program = executable(
        tmp_path / "tell",
        f'printf "%s\\n" "$@" > {pipe.path}; cat > {tmp_path}/stdin; echo no TOKEN >&2; exit 3',
    )
    words = [str(program), "{title}", "{text}; `date` $HOME", "{address}"]
    rolecall("config", "set", "notify.command", json.dumps(words), check=0)
    rolecall("config", "set", "notify.on", '["completed"]', check=0)
    ident = flow.start(flow.script([ASKS, DONE], [APPROVED]))
    flow.thread("run", ident, check=7)  # of which nobody is told
    flow.thread("resume", ident, "-p", "The first.", "--run")
    text = pipe.read().splitlines()
    pipe.close()
    assert text == ["Fix the bug", "completed; `date` $HOME", f"rolecall thread show {ident}"]
    rolecall("config", "set", "notify.command", '["/nowhere/at-all"]', check=0)
    trial = rolecall("notify", check=1)
    assert "command: cannot be run" in trial.stdout


def test_braces_in_a_title_are_not_filled_in(rolecall: Rolecall, tmp_path: Path) -> None:
    flow = Flow(rolecall, tmp_path)
    pipe = Pipe(tmp_path / "pipe")
    program = executable(tmp_path / "tell", f'printf "%s\\n" "$@" > {pipe.path}')
    rolecall("config", "set", "notify.command", json.dumps([str(program), "{title} {odd}"]), check=0)
    flow.thread("run", flow.start(flow.script([DONE], [APPROVED]), prompt="Fill {thread} and {text}"))
    assert pipe.read() == "Fill {thread} and {text} {odd}\n"
    pipe.close()


def test_of_a_long_wait_and_of_an_end_people_are_told_once(
    rolecall: Rolecall, hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(rolecall, tmp_path)
    rolecall("config", "set", "notify.webhook", hook.address, check=0)
    limited = executable(tmp_path / "limited", "echo Retry-After: 7200 >&2; exit 75")
    ident = flow.start(f"command:{limited}")
    with flow.spawn("run", ident) as child:
        message = hook.got.get(timeout=60)
        child.kill()
    assert (message["event"], message["thread"], message["status"]) == ("limited", ident, "idle")
    assert message["text"].startswith("waits until ") and message["until"] > message["at"] + 7_000_000

    monkeypatch.setenv("ROLECALL_HOME", str(rolecall.home))
    started: list[Any] = []
    monkeypatch.setattr(notify, "start_for_us", started.append)
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        gone = WorkFolder("/gone", "/gone", "/here", is_removed=True)
        for folders in ({}, {"copy": gone}):  # an ended thread may lose its folders
            ref, draft = thread.find(store, ident), store.draft()
            move(draft, ref, ref.state.move_to(Status.COMPLETED, folders=folders))
            draft.commit()
    assert [message["event"] for message in started] == ["completed"]


@pytest.mark.parametrize(
    ("event", "state"),
    [
        ("waits", {"status": Status.SUSPENDED}),
        ("waits", {"status": Status.SUSPENDED, "onward": RESUME}),
        ("waits", {"status": Status.SUSPENDED, "parent": "P", "member": 1}),
        ("", {"status": Status.SUSPENDED, "parent": "P", "onward": RESUME}),
        ("", {"status": Status.SUSPENDED, "asks": "CHILD"}),
        ("completed", {"status": Status.COMPLETED}),
        ("", {"status": Status.COMPLETED, "parent": "P"}),
        ("", {"status": Status.KILLED}),
        ("limited", {"status": Status.QUEUED, "until": 1}),
        ("limited", {"status": Status.IDLE, "until": 1, "parent": "P", "member": 1}),
        ("", {"status": Status.IDLE, "until": 1, "parent": "P"}),
    ],
)
def test_what_is_told_of_a_thread(event: str, state: dict[str, Any]) -> None:
    assert ThreadState(**state).news == event
