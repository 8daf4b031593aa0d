"""A project with tasks, the program that runs them, and agents whose every call is on record."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from fakeagent import executable

from rolecall.nexus import tools
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads.thread import Chain, Step, attempt_name, find

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
BOUND = 120
DONE: dict[str, Any] = {"output": {"status": "done", "summary": "It is there.", "files": []}}
BLOCKED: dict[str, Any] = {"output": {"status": "blocked", "summary": "The door is shut.", "files": []}}
PASS: dict[str, Any] = {"output": {"status": "pass", "summary": "Every point holds."}}
FAIL: dict[str, Any] = {"output": {"status": "fail", "summary": "Point 2 does not hold."}}
APPROVED: dict[str, Any] = {"output": {"status": "approved", "summary": "Good."}}
AGAIN: dict[str, Any] = {
    "output": {"status": "again_engineer", "cause": "a.py:3 is off by one", "correction": "Count from 0."}
}
EVERYBODY: dict[str, list[dict[str, Any]]] = {
    "engineer": [DONE],
    "writer": [DONE],
    "researcher": [DONE],
    "tester": [PASS],
    "reviewer": [APPROVED],
    "architect": [AGAIN],
}


class Crew:
    """A project folder, a home whose default agent is the player, and what both have on record."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.project = folder / "project"
        self.project.mkdir()
        subprocess.run(["git", "init", "-q", "-b", "main", self.project], check=True)
        self.program = Path(PROGRAM)
        self.last: dict[str, Any] = {}
        """What the last run told."""
        self.open_ends: list[int] = []
        """Of pipes, until the test is over."""
        self.children: list[subprocess.Popen[str]] = []
        self.stage = folder / "stage"
        self.stage.mkdir()
        script = self.stage / "player.py"
        shutil.copyfile(Path(__file__).with_name("player.py"), script)
        asked = "--version | --help) echo '2.1.325 (Claude Code)';;"
        play = f"exec '{sys.executable}' -I -S '{script}' \"$@\""
        self.player = executable(self.stage / "player", f'case "$1" in {asked} *) {play};; esac')
        self.configure()
        self.score()

    def configure(self, **more: Any) -> None:
        settings = {"agents": {"player": {"adapter": "claude", "executable": str(self.player)}}}
        self.rolecall.home.mkdir(exist_ok=True)
        (self.rolecall.home / "config.yaml").write_text(
            yaml.safe_dump({**settings, "defaultAgent": "player", **more})
        )

    def score(self, **entries: Any) -> None:
        """What the agents do, by role or by `role: title`."""
        self.stage.joinpath("score.json").write_text(json.dumps({**EVERYBODY, **entries}))

    def fifo(self, name: str) -> str:
        os.mkfifo(self.stage / name)
        return name

    def unlock(self, name: str) -> None:
        """Nobody waits at this pipe any more, whether they come or have come."""
        self.open_ends.append(os.open(self.stage / name, os.O_RDWR | os.O_NONBLOCK))

    def room(self, name: str) -> str:
        (self.stage / name).mkdir()
        return name

    # -- the project --

    def task(self, title: str, **fields: Any) -> int:
        reply = tools.task_add(self.project, title=title, **{"context": "Because.", **fields})
        return int(reply["task"]["id"])

    def set(self, number: int, status: str) -> None:
        tools.task_update(self.project, id=number, status=status)

    def statuses(self) -> dict[float, str]:
        return {task["id"]: task["status"] for task in tools.task_list(self.project)["tasks"]}

    def tracker(self) -> list[dict[str, Any]]:
        path = self.project / ".nexus/state/rolecall/agent-tracker.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return found

    # -- running --

    def run(self, *args: str, check: int = 0, **options: Any) -> dict[str, Any]:
        """The result, which is the last line; the events before it under `events`."""
        done = self.rolecall("plan", "run", *args, "--json", check=check, cwd=self.project, **options)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        result: dict[str, Any] = lines[-1]
        rows = {row["task"]: row for row in result.get("tasks", [])}
        self.last = result | {"events": lines[:-1], "rows": rows, "stderr": done.stderr}
        return self.last

    def spawn(self, *args: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [PROGRAM, "plan", "run", *args, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.project,
            env={**os.environ, "ROLECALL_HOME": str(self.rolecall.home)},
            # Under nohup the child would inherit that the signal is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        self.children.append(child)
        return child

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that other processes bring about."""
        end = time.monotonic() + BOUND
        while not is_so():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.02)

    # -- what is on record --

    def calls(self, kind: str = "asked") -> list[dict[str, Any]]:
        path = self.stage / "calls.jsonl"
        # What lies behind the last end of a line is still being written.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [call for call in map(json.loads, lines) if call["kind"] == kind]

    def asked(self) -> list[str]:
        """Who was asked about what, in order."""
        return [f"{call['role']}: {call['title']}" for call in self.calls()]

    def store(self) -> Store:
        return Store(SqliteBackend(str(self.rolecall.home / "store.db"), create=False))

    def threads(self) -> list[str]:
        with self.store() as store:
            return [name.removeprefix("thread/") for name in store.backend.names("thread/")]

    def waits(self, ident: str) -> bool:
        """Whether a thread waits for a person."""
        with self.store() as store:
            return bool(find(store, ident).state.status == "suspended")

    def has_session(self, number: int) -> bool:
        """Whether it is on record in which session the agent of a task is at work."""
        runs = json.loads((self.project / ".nexus/state/rolecall/runs.json").read_text())["runs"]
        (ident,) = [run["thread"] for name, run in runs.items() if name.startswith(f"{number}@")]
        with self.store() as store:
            note = store.ref(attempt_name(ident))
            return note is not None and bool(note.state.get("session"))

    def steps(self, ident: str) -> list[Step]:
        with self.store() as store:
            found = list(Chain(store, find(store, ident).head))[::-1]
            for step in found:
                assert step.payload  # read while the store is open
            return found
