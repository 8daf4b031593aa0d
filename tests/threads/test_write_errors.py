"""A store that refuses a write, whichever of a step's writes it is: the command ends, its agent with it, nothing that
was acknowledged is lost, no answer that was stored is paid for again, and the thread goes on when there is room."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import refuser
import stage
from conftest import SCRIPTS
from disk_fixture import fill_up
from fakeagent import claude_says, executable, fake_claude
from processes import gone
from refuser import PATIENCE

from rolecall.settings import stores
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import thread

NEVER = 10**9
ONE = """
name: run-once-only
description: One step
roles:
  worker:
    description: Works
    goal: Work.
    frontmatter: {type: object, properties: {$status: {enum: [end]}}, required: [$status]}
graph:
  $START: worker
  worker: {end: $END}
"""
ROLES = {"worker": "done", "checker": "end"}


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, refuser.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=PATIENCE) == 0


@dataclass
class Theatre:
    """One store, a thread per refused write, and the commands that run it."""

    folder: Path
    server: subprocess.Popen[str]
    store: Store
    url: str
    agent: str

    def run(self, *words: str, first: int = NEVER, last: int = NEVER) -> dict[str, Any]:
        """How a command went, with the lines it printed."""
        output = self.folder / "output"
        output.unlink(missing_ok=True)
        order = {
            "argv": [*words, "--store", self.url, "--format", "json"],
            "first": first,
            "last": last,
            "output": str(output),
            "folder": str(self.folder),
        }
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        answer: dict[str, Any] = json.loads(self.server.stdout.readline())
        return {**answer, "lines": output.read_text().splitlines()}

    def started(self) -> str:
        """A thread whose roles leave a trace of every call, and a process that goes on unless it is ended."""
        name = f"{len(self.store.refs('thread/'))}"
        text = stage.LOOP
        for role, status in ROLES.items():
            spoken = stage.answer(status, "said", body=f"The report of {role}.")
            speech = claude_says(spoken) if self.agent == "claude" else f"cat >/dev/null; echo '{spoken}'"
            script = f"""
                echo $$ >> '{self.folder}/{name}.pids'
                sleep 300 > /dev/null 2>&1 &
                echo $! >> '{self.folder}/{name}.pids'
                echo {role} >> '{self.folder}/{name}.calls'
            """
            place = self.folder / name / role
            if self.agent == "claude":
                program = fake_claude(place, run=f"{{ {script}\n{speech}; }}")
                named = f"claude:executable={program}"
            else:
                named = f"command:{shlex.quote(str(executable(place / 'agent', f'{script}{speech}')))}"
            text = text.replace(
                f"  {role}:\n    description:", f"  {role}:\n    agent: {named}\n    description:"
            )
        return stage.start(self.store, stage.book(text), self.folder / "work") + f" {name}"

    def calls(self, name: str) -> Counter[str]:
        trace = self.folder / f"{name}.calls"
        return Counter(trace.read_text().split() if trace.exists() else ())

    def check(self, first: int, last: int) -> None:
        """Refuse the writes from `first` to `last` of a run, and let another one go on."""
        ident, name = self.started().split()
        where = (first, last)
        refused = self.run("thread", "run", ident, first=first, last=last)
        assert refused["code"] is not None, (where, "it goes on for ever", refused["lines"])
        assert refused["code"] in (0, 5, 7), (where, refused)
        assert refused["code"] == 0 or any("no room" in line for line in refused["lines"]), (where, refused)
        assert not any("Traceback" in line for line in refused["lines"]), (where, refused)
        self.check_agents_gone(name)
        acknowledged = [
            event["step"]
            for line in refused["lines"]
            if line.startswith("{") and (event := json.loads(line)).get("event") == "step"
        ]
        state = stage.state(self.store, ident)
        assert not holder.is_alive(state.get("lease", {}), now=self.store.now()) or "lease" not in state
        note = self.store.ref(thread.attempt_name(ident))
        paid = {step.role for step in stage.steps(self.store, ident)}
        paid |= {note.state["role"]} if note and "raw" in note.state else set()
        calls = self.calls(name)
        if state["status"] != "completed":
            verb = ["resume", ident, "--run"] if state["status"] == "suspended" else ["run", ident]
            later = self.run("thread", *verb)
            assert later["code"] == 0, (where, refused, later)
        self.check_agents_gone(name)
        assert stage.state(self.store, ident)["status"] == "completed"
        stage.assert_whole(self.store, ident)
        steps = stage.steps(self.store, ident)
        assert [step.role for step in steps] == list(ROLES), where
        assert [step.id for step in steps][: len(acknowledged)] == acknowledged, where
        assert all(self.calls(name)[role] == calls[role] for role in paid), (where, paid, calls)
        assert self.store.ref(thread.attempt_name(ident)) is None

    def check_agents_gone(self, name: str) -> None:
        pids = self.folder / f"{name}.pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            gone(int(pid))


@pytest.fixture
def theatre(tmp_path: Path, server: subprocess.Popen[str], kind: str, agent: str) -> Iterator[Theatre]:
    url = store_url(kind, tmp_path)
    with stores.open_store(url) as store:
        yield Theatre(tmp_path, server, store, url, agent)


def store_url(kind: str, folder: Path) -> str:
    return str(folder / "store.db") if kind == "sqlite" else f"files:{folder / 'store'}"


@pytest.mark.parametrize("is_lasting", [False, True], ids=["one write", "every later write"])
@pytest.mark.parametrize(
    ("kind", "agent"), [("sqlite", "command"), ("sqlite", "claude"), ("files", "command")]
)
def test_a_refused_write_of_a_step_ends_the_run_and_its_agent_and_the_thread_goes_on(
    theatre: Theatre, is_lasting: bool
) -> None:
    theatre.run("thread", "run", theatre.started().split()[0])  # registers types, which no later one does
    one_step = theatre.run("thread", "run", theatre.started().split()[0], "--steps", "1")
    assert one_step["code"] == 0, one_step
    assert one_step["writes"] >= 5  # the lease, the question, the process, the answer, the step
    for number in range(1, one_step["writes"] + 2):
        theatre.check(number, NEVER - 1 if is_lasting else number)
    stage.assert_sound(theatre.store)


# -- a disk that is full --


@pytest.mark.parametrize("kind", ["sqlite", "files"])
@pytest.mark.parametrize("is_asked", [False, True], ids=["before the agent is asked", "while it works"])
def test_a_run_on_a_full_disk_ends_with_its_agent_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, rolecall: Any, kind: str, is_asked: bool
) -> None:
    url = store_url(kind, small_disk)
    asked, go, speech = (tmp_path / name for name in ("asked", "go", "speech"))
    os.mkfifo(asked)
    os.mkfifo(go)
    speech.write_text(stage.answer("end", body="x" * 10_000))
    agent = executable(tmp_path / "agent", f"cat > /dev/null; echo $$ > {asked}; cat {go}; cat {speech}")
    flow = tmp_path / "run-once-only.yaml"
    flow.write_text(ONE)
    words = ["--store", url, "--format", "json"]
    ident = rolecall.json(
        "thread",
        "start",
        str(flow),
        "-p",
        "Do it",
        "--cwd",
        str(tmp_path),
        "--agent",
        f"command:{agent}",
        *words,
    )["thread"]

    def run() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SCRIPTS / "rolecall", "thread", "run", ident, *words],
            env={**os.environ, "ROLECALL_HOME": str(rolecall.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    if is_asked:
        child, pid = run(), int(asked.read_text())
        ballast = fill_up(small_disk)
        go.write_text("")
    else:
        ballast = fill_up(small_disk)
        child = run()
    output, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 5, output
    assert "no room" in output and "continue: rolecall thread run" in output and "Traceback" not in output
    if is_asked:
        gone(pid)
    ballast.unlink()
    child = run()
    asked.read_text()
    go.write_text("")
    output, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, output
    with stores.open_store(url) as store:
        assert [step.number for step in stage.steps(store, ident)] == [1]
        stage.assert_sound(store)
