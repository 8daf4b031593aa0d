"""Adapters: what they add before an agent's first byte and after its last, how much memory a long stream takes,
and whether twenty agents at once lose anything.

The agent is a stand-in for Claude Code that prints the same kinds of events, so that what is measured is
ours. It notes when it was started and when it wrote its last byte; both are the machine's monotonic clock,
which processes share.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Row, peak_memory, print_table
from rolecall.agents.adapters.claude import claude
from rolecall.errors import ExtractError
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle
from rolecall.threads.engine import Cast, Engine
from rolecall.threads.thread import Chain, find
from rolecall.workflow import registry, yaml
from rolecall.workflow.playbook import Playbook

_OVERHEAD_MS = 50.0
_STREAM_MB = 100
_GROWTH_MB = 60.0
_AGENTS = 20
_EVENTS = 300

_STAND_IN = """\
#!{python} -SE
import json, os, sys, time
begun = time.monotonic()
count, size, marks = int(os.environ["EVENTS"]), int(os.environ["SIZE"]), os.environ["MARKS"]
sys.stdin.read()
write = sys.stdout.write
session = "11111111-2222-3333-4444-%012d" % os.getpid()
def say(event):
    write(json.dumps({{"session_id": session, **event}}) + "\\n")
say({{"type": "system", "subtype": "init"}})
for number in range(count):
    use = {{"type": "tool_use", "id": "t%d" % number, "name": "Read", "input": {{"file_path": "f%d" % number}}}}
    say({{"type": "assistant", "message": {{"id": "m%d" % number, "content": [use]}}}})
    done = {{"type": "tool_result", "tool_use_id": "t%d" % number, "content": "x" * size}}
    say({{"type": "user", "message": {{"content": [done]}}}})
text = "---\\nstatus: done\\n---\\n" + "y" * 1000
say({{"type": "assistant", "message": {{"id": "last", "content": [{{"type": "text", "text": text}}]}}}})
say({{"type": "result", "is_error": False, "terminal_reason": "completed", "result": text, "num_turns": count + 1,
     "total_cost_usd": 0.01, "usage": {{"input_tokens": 5, "output_tokens": 7}}}})
sys.stdout.flush()
with open(marks, "a") as file:
    file.write("%r %r\\n" % (begun, time.monotonic()))
    file.flush()
os._exit(0)
"""

_WORKFLOW = """\
name: ask-once
roles:
  writer:
    goal: Write.
    meta:
      type: object
      properties: {status: {type: string, enum: [done]}}
      required: [status]
graph:
  $START: writer
  writer: {done: $END}
"""


def main(*, quick: bool = False) -> None:
    rows = [
        *_overhead(rounds=5 if quick else 30),
        *_concurrent(),
        _memory(megabytes=20 if quick else _STREAM_MB),
    ]
    print_table("Adapters (a stand-in prints Claude Code's events)", rows)


class _Stage:
    """A store, a workflow with one role, and the stand-in that plays it."""

    def __init__(self, folder: Path, *, events: int, size: int) -> None:
        self.marks = folder / "marks"
        program = folder / "claude"
        program.write_text(_STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
        self.folder = folder
        self.store = Store(SqliteBackend(str(folder / "store.db")))
        parsed = yaml.parse(_WORKFLOW, source="benchmark")
        assert parsed.workflow is not None, parsed.problems
        self.book = Playbook(parsed.workflow)
        self.engine = Engine(
            store=self.store,
            playbook=lambda node: registry.load_node(self.store, node),
            cast=lambda _book, _role: Cast("claude", claude(executable=str(program))),
            extract=_no_model,
            can_extract=lambda _role: False,
            token=lambda: os.urandom(8).hex(),
            environment={
                "PATH": os.defpath, "EVENTS": str(events), "SIZE": str(size), "MARKS": str(self.marks)
            },
            mask=Mask([]),
        )  # fmt: skip

    def start(self) -> str:
        ref = lifecycle.start(self.store, self.book, "Go", cwd=str(self.folder), mask=Mask([]))
        return ref.id

    async def step(self, name: str) -> None:
        outcome = await self.engine.step(name, cancel=asyncio.Event())
        assert outcome.status == "completed", outcome


async def _no_model(raw: str, _schema: Any, _overrides: Any) -> Any:
    raise ExtractError("no model", raw=raw)


def _overhead(*, rounds: int) -> list[Row]:
    """Before the program's first instruction and after its last byte, beside starting it and doing nothing else."""
    with tempfile.TemporaryDirectory() as place:
        stage = _Stage(Path(place), events=3, size=100)
        before, after, floor = [], [], []
        for _ in range(rounds):
            floor.append(_bare_start(Path(place)))
            name = stage.start()
            began = time.monotonic()
            asyncio.run(stage.step(name))
            ended = time.monotonic()
            first, last = map(float, stage.marks.read_text().splitlines()[-1].split())
            before.append((first - began) * 1000)
            after.append((ended - last) * 1000)
    start = median(floor)
    return [
        _row("before the agent's first instruction, its own start taken off", median(before) - start, start),
        _row("from its last byte to the committed step", median(after), start),
    ]


def _row(name: str, value: float, floor: float) -> Row:
    return Row(
        name, f"{value:.1f} ms", f"start {floor:.1f} ms", f"{value / floor:.2f}", "", f"{_OVERHEAD_MS:.0f} ms",
        value <= _OVERHEAD_MS,
    )  # fmt: skip


def _bare_start(folder: Path) -> float:
    """Milliseconds from starting the stand-in to its first instruction, without any of ours."""
    marks = folder / "bare"
    env = {"EVENTS": "0", "SIZE": "0", "MARKS": str(marks)}
    began = time.monotonic()
    subprocess.run([str(folder / "claude")], env=env, input=b"", stdout=subprocess.DEVNULL, check=True)
    return (float(marks.read_text().splitlines()[-1].split()[0]) - began) * 1000


def _concurrent() -> list[Row]:
    """Twenty agents at once: every event of every one of them is in the store."""
    with tempfile.TemporaryDirectory() as place:
        stage = _Stage(Path(place), events=_EVENTS, size=500)
        names = [stage.start() for _ in range(_AGENTS)]

        async def together() -> None:
            await asyncio.gather(*map(stage.step, names))

        began = time.monotonic()
        asyncio.run(together())
        wall = time.monotonic() - began
        seen = [sum(event.kind == "tool_call" for event in stage.store.events(name)) for name in names]
        steps = [Chain(stage.store, find(stage.store, name).head).last for name in names]
        is_whole = all(count == _EVENTS for count in seen) and all(
            step is not None and step.payload["usage"]["turns"] == _EVENTS + 1 for step in steps
        )
    lost = _AGENTS * _EVENTS - sum(seen)
    return [
        Row(
            f"{_AGENTS} agents at once, {_EVENTS} tool calls each", f"{wall:.1f} s", f"{os.cpu_count()} cores",
            f"{lost} lost", "", "0 lost", is_whole,
        )
    ]  # fmt: skip


def _memory(*, megabytes: int) -> Row:
    """The peak of a process that reads a long stream, beside one that reads a short one."""
    short, long = (_peak(events) for events in (20, megabytes * 10))
    grown = long - short
    return Row(
        f"memory for a stream of {megabytes} MB", f"{long:.0f} MB", f"{short:.0f} MB for 2 MB",
        f"+{grown:.0f} MB", "", f"+{_GROWTH_MB:.0f} MB", grown <= _GROWTH_MB,
    )  # fmt: skip


def _peak(events: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.agents import read_stream; read_stream({events})"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def read_stream(events: int) -> None:
    """In a process of its own: one step over `events` results of 100 KB; prints the peak memory in MB."""
    with tempfile.TemporaryDirectory() as place:
        stage = _Stage(Path(place), events=events, size=100_000)
        asyncio.run(stage.step(stage.start()))
    print(json.dumps(peak_memory()))


if __name__ == "__main__":
    main()
