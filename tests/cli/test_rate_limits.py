"""Agents that have reached a limit of their provider: real programs that say so, and threads that wait."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakeagent import executable, fake_claude
from terminal import Terminal
from test_thread_run import Flow, until

from rolecall.threads import thread
from rolecall.threads.state import move

if TYPE_CHECKING:
    from conftest import Rolecall

DONE = '---\n{"status": "done", "files": []}\n---\nDid it.'


@pytest.fixture
def flow(rolecall: Rolecall, tmp_path: Path) -> Iterator[Flow]:
    flow = Flow(rolecall, tmp_path)
    yield flow
    for child in flow.children:
        with child:
            child.kill()


def limited_once(folder: Path, seconds: int, notice: str = "Claude AI usage limit reached|$at") -> str:
    """An agent that has reached its limit when it is first asked, and notes when it was asked."""
    (folder / "done").write_text(DONE)
    script = f"""
        date +%s.%N >> {folder}/asked
        if [ -e {folder}/at ]; then cat {folder}/done; exit 0; fi
        at=$(($(date +%s) + {seconds})); echo $at > {folder}/at
        echo "{notice}" >&2; exit 75
    """
    return f"command:{executable(folder / 'agent', script)}"


def test_a_run_that_is_killed_while_it_waits_is_taken_up_and_nobody_is_asked_before(
    flow: Flow, tmp_path: Path
) -> None:
    ident = flow.start(limited_once(tmp_path, 6))
    child = flow.spawn("run", ident, "--steps", "1")
    until(child, "waits")
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    at = int((tmp_path / "at").read_text())
    card = flow.thread("show", ident)
    assert (card["status"], card["until"]) == ("idle", at * 1000)
    assert "usage limit reached" in card["reason"]
    assert (
        card["continue"] is None and flow.rolecall("thread", "show", ident).stdout.count("waits until") == 1
    )
    assert " until " in flow.rolecall("thread", "list").stdout

    assert flow.thread("run", ident, "--steps", "1")["currentRole"] == "reviewer"
    asked = [float(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert len(asked) == 2 and asked[1] >= at


def test_a_terminal_counts_down_and_ctrl_c_leaves_the_thread_waiting(
    flow: Flow, rolecall: Rolecall, tmp_path: Path
) -> None:
    ident = flow.start(limited_once(tmp_path, 3600, "You've hit your usage limit, try again in 1 hour."))
    terminal = Terminal("thread", "run", ident, home=rolecall.home, path="/usr/bin:/bin")
    terminal.expect("continues in 59m")
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.close() == 130
    assert flow.thread("show", ident)["until"] > (time.time() + 3000) * 1000
    assert "is asked again" in flow.thread("resume", ident)["stderr"]
    assert flow.thread("step", ident)["currentRole"] == "reviewer"


def test_claude_tells_when_its_limit_ends(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = int(time.time()) + 3600
    limit = {"status": "rejected", "resetsAt": at, "rateLimitType": "five_hour"}
    result = {"type": "result", "is_error": True, "result": "You've hit your limit", "num_turns": 1}
    events = [{"type": "rate_limit_event", "rate_limit_info": limit}, result]
    (tmp_path / "events").write_text("".join(json.dumps(event) + "\n" for event in events))
    fake_claude(tmp_path / "bin", run=f"cat {tmp_path}/events; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    child = flow.spawn("run", flow.start("claude"))
    assert until(child, "limited")["until"] == at * 1000


def test_a_stand_in_plays_only_if_the_workflow_names_one_and_the_step_says_so(
    flow: Flow, tmp_path: Path
) -> None:
    own = f"command:{executable(tmp_path / 'own', 'echo Retry-After: 10800 >&2; exit 75')}"
    (tmp_path / "done").write_text(DONE)
    other = f"command:{executable(tmp_path / 'other', f'cat {tmp_path}/done')}"
    flow.write(developer={"agent": own, "stand_in": other})
    ident = flow.start(None)
    assert flow.thread("step", ident)["currentRole"] == "reviewer"
    [step] = flow.steps(ident)
    assert step.agent == other
    assert step.payload["attempt"] and f"{other} stands in for {own}" in json.dumps(
        flow.thread("step-details", f"{ident}#1")
    )

    flow.rolecall("config", "set", "defaultAgent", "human", check=0)
    later = executable(tmp_path / "later", "echo Retry-After: 172800 >&2; exit 75")
    flow.write(developer={"agent": own, "stand_in": f"command:{later}"})
    child = flow.spawn("run", flow.start(None))
    assert until(child, "limited")["until"] < (time.time() + 10_800) * 1000

    flow.write(developer={"agent": own, "stand_in": "command:/nowhere/at-all"})
    child = flow.spawn("run", flow.start(None))
    assert "cannot stand in" in until(child, "remark")["text"]
    assert until(child, "limited")["role"] == "developer"


def test_a_thread_that_nobody_runs_after_its_wait_needs_a_person(
    flow: Flow, rolecall: Rolecall, tmp_path: Path
) -> None:
    ident = flow.start(limited_once(tmp_path, 3600))
    child = flow.spawn("run", ident)
    until(child, "waits")
    child.kill()
    assert "waits for you" not in rolecall("status", check=0).stdout
    with flow.store() as store:
        ref, draft = thread.find(store, ident), store.draft()
        move(draft, ref, ref.state._replace(until=1))
        draft.commit()
    shown = rolecall.json("status")
    assert shown["next"].endswith(f"thread run {ident}")
