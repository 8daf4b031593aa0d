"""The engine: what a durable step costs, whether it grows with the thread, how much it stores, and a peer.

The agent is an async function that answers with 1 KB at once, so what is left is the engine's own work:
lease, routing, prompt, reading and checking the answer, and the commit. The peer is LangGraph with its
SQLite saver, installed into an environment of its own: one `invoke` per step on one thread id, each adding
the same 1 KB to the state.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Row, Timing, print_table, timed, times
from benchmarks.peers import python_with
from rolecall.errors import ExtractError
from rolecall.files.tree import Trees
from rolecall.settings.mask import Mask
from rolecall.store.backend import Durability
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle
from rolecall.threads.engine import Cast, Engine
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook

_GROWTH = 1.2
_SIZE_MB = 5.0
_ANSWER = 1_000
_ROUND = 100
_WARM = 5
_SHORT = 25
_LAST = 50

_WORKFLOW = """\
name: take-turns
description: Two roles that hand on to each other.
roles:
  writer:
    goal: Write.
    meta: &meta
      type: object
      properties: {status: {type: string, enum: [done]}, note: {type: string}}
      required: [status]
  reader:
    goal: Read.
    meta: *meta
graph:
  $START: writer
  writer: {done: {role: reader, prompt: Read it.}}
  reader: {done: {role: writer, prompt: Write again.}}
limits: {steps: 100000}
"""

_LANGGRAPH = """\
import json, operator, random, resource, sys, time
from importlib.metadata import version
from typing import Annotated, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    log: Annotated[list, operator.add]


def answer(state):
    return {"log": [random.randbytes(500).hex()]}


graph = StateGraph(State)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
thread = {"configurable": {"thread_id": "1"}}
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    saver.setup()
    app = graph.compile(checkpointer=saver)
    names = ("langgraph", "langgraph-checkpoint-sqlite")
    print(json.dumps({"versions": {name: version(name) for name in names}}), flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            app.invoke({"log": []}, thread)
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""

_DBOS = """\
import json, os, random, sys, time
from importlib.metadata import version

from dbos import DBOS

DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{sys.argv[1]}", "run_admin_server": False})


@DBOS.step()
def answer(number):
    return random.randbytes(500).hex()


@DBOS.workflow()
def take_steps(count):
    for number in range(count):
        answer(number)


DBOS.launch()
print(json.dumps({"versions": {"dbos": version("dbos")}}), flush=True)
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    take_steps(int(line))
    print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
os._exit(0)
"""


def main(*, quick: bool = False) -> None:
    steps = 200 if quick else 1_000
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        growth(folder, steps=steps)
        against_peers(folder, steps=steps)


# -- a thread that can be stepped --


class Player:
    """A thread in a store of its own, and an engine whose agent answers at once. With `trees` the steps record the
    files of `work`, the folder that the thread works in."""

    def __init__(
        self,
        path: str,
        *,
        durability: Durability = "heads",
        work: str = "",
        trees: Trees | None = None,
        agent: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self.path = path
        self._work = work or os.path.dirname(path)
        self.store = Store(SqliteBackend(path, durability=durability))
        self._loop = asyncio.new_event_loop()
        self._books: dict[str, Playbook] = {}
        self._engine = Engine(
            store=self.store,
            playbook=self._book,
            cast=lambda _book, _role: Cast("benchmark", agent or answer),
            extract=no_model,
            can_extract=lambda _role: False,
            token=lambda: os.urandom(8).hex(),
            environment={},
            mask=Mask([]),
            trees=trees,
        )
        self.thread = self.start()

    def start(self) -> str:
        """Make a thread; the steps that follow are its steps."""
        book = registry.load_file(_workflow_file(os.path.dirname(self.path)))
        ref = lifecycle.start(self.store, book, "Take turns.", cwd=self._work, mask=self._engine.mask)
        self.thread = ref.id
        return self.thread

    def _book(self, node: str) -> Playbook:
        if node not in self._books:
            self._books[node] = registry.load_node(self.store, node)
        return self._books[node]

    def step(self, count: int = 1) -> None:
        self._loop.run_until_complete(self._steps(count))

    async def _steps(self, count: int) -> None:
        cancel = asyncio.Event()
        for _ in range(count):
            await self._engine.step(self.thread, cancel=cancel)

    def close(self) -> None:
        """Close everything; the store's log is folded back into its file."""
        self._loop.close()
        self.store.close()


def _workflow_file(folder: str) -> str:
    path = Path(folder) / "take-turns.yaml"
    path.write_text(_WORKFLOW, encoding="utf-8")
    return str(path)


async def answer(_prompt: str, _context: Any) -> str:
    words = random.randbytes(_ANSWER // 2).hex()
    return f"---\nstatus: done\nnote: n{words[:40]}\n---\n{words[40:]}"


async def no_model(raw: str, _schema: Mapping[str, Any], _overrides: Mapping[str, Any] | None) -> Any:
    raise ExtractError("no model reads answers here", raw=raw)


# -- growth with the thread --


def growth(folder: str, *, steps: int) -> None:
    rows = []
    for durability, name in (("heads", "a commit waits for the disk"), ("never", "it does not")):
        size, early, late = _early_and_late(folder, durability, steps)  # type: ignore[arg-type]
        rows.append(
            Row(
                f"a step, {name}",
                f"{late.wall * 1e3:.2f} ms",
                f"{early.wall * 1e3:.2f} ms",
                times(late.wall, early.wall),
                times(late.cpu, early.cpu),
                f"≤ {_GROWTH:g}",
                late.wall <= _GROWTH * early.wall,
            )
        )
    megabytes = size / 1e6
    rows.append(
        Row(
            f"the store after {steps:,} steps",
            f"{megabytes:.2f} MB",
            target=f"< {_SIZE_MB:g} MB",
            met=megabytes < _SIZE_MB,
        )
    )
    print_table(
        f"Growth with the thread: the last {_LAST} of {steps:,} steps against steps {_WARM} to {_SHORT} of "
        "threads in fresh stores (medians, taken in turn)",
        rows,
    )


def _early_and_late(folder: str, durability: Durability, steps: int) -> tuple[int, Timing, Timing]:
    """The size of the store at the end, an early step and a late one."""
    long = Player(os.path.join(folder, f"long-{durability}.db"), durability=durability)
    long.step(steps - _LAST)
    players = [long]
    early: list[Timing] = []
    late: list[Timing] = []
    for number in range(_LAST):
        if number % (_SHORT - _WARM) == 0:
            players.append(
                Player(os.path.join(folder, f"short-{durability}-{number}.db"), durability=durability)
            )
            players[-1].step(_WARM)
        early.append(timed(players[-1].step))
        late.append(timed(long.step))
    for player in players:
        player.close()
    return os.path.getsize(long.path), _median(early), _median(late)


def _median(timings: list[Timing]) -> Timing:
    return Timing(median(timing.wall for timing in timings), median(timing.cpu for timing in timings))


# -- against peers --


class Peer:
    """A peer in an environment and a process of its own, told how many steps to take."""

    def __init__(self, python: str, folder: str, name: str, script: str) -> None:
        file = os.path.join(folder, f"{name}.py")
        Path(file).write_text(script, encoding="utf-8")
        self.path = os.path.join(folder, f"{name}.db")
        self._process = subprocess.Popen(
            [python, file, self.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.about: dict[str, Any] = json.loads(self._read())

    def step(self, count: int) -> Timing:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return Timing(*json.loads(self._read()))

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()


def against_peers(folder: str, *, steps: int) -> None:
    langgraph = python_with(os.path.join(folder, "langgraph"), "langgraph", "langgraph-checkpoint-sqlite")
    if langgraph:
        _compare(folder, Peer(langgraph, folder, "langgraph_peer", _LANGGRAPH), steps=steps, target=3.0)
    dbos = python_with(os.path.join(folder, "dbos"), "dbos>=3.3,<3.4")
    if dbos:
        _compare(folder, Peer(dbos, folder, "dbos_peer", _DBOS), steps=steps)


def _compare(folder: str, peer: Peer, *, steps: int, target: float | None = None) -> None:
    name = next(iter(peer.about["versions"]))
    ours = Player(os.path.join(folder, f"ours-{name}.db"))
    hasty = Player(os.path.join(folder, f"hasty-{name}.db"), durability="never")
    works = [_stepping(ours), _stepping(hasty), peer.step]
    found: list[list[Timing]] = [[] for _ in works]
    for _ in range(steps // _ROUND):
        for timings, work in zip(found, works, strict=True):
            timings.append(work(_ROUND))
    for each in (ours, hasty, peer):
        each.close()
    _print_against(found, peer.about, steps=steps, target=target)
    sizes = [os.path.getsize(each.path) / 1e6 for each in (ours, peer)]
    print(f"  stored: {sizes[0]:.1f} MB, {name} {sizes[1]:,.0f} MB")
    with suppress(FileNotFoundError):
        os.remove(peer.path)


def _stepping(player: Player) -> Callable[[int], Timing]:
    return lambda count: timed(lambda: player.step(count))


def _print_against(
    found: list[list[Timing]], about: Mapping[str, Any], *, steps: int, target: float | None
) -> None:
    rows = []
    names = ("durability heads: one flush a step", "durability never: no flush")
    for name, timings in zip(names, found, strict=False):
        rows += [
            _rate_row(f"{name}, the first {_ROUND}", timings[0], found[2][0], _ROUND),
            _rate_row(f"{name}, the last {_ROUND}", timings[-1], found[2][-1], _ROUND),
            _rate_row(f"{name}, all {steps:,}", _sum(timings), _sum(found[2]), steps, target=target),
        ]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    print_table(
        f"Steps per second against {versions} with its defaults, rounds of {_ROUND} steps in turn", rows
    )


def _sum(timings: list[Timing]) -> Timing:
    return Timing(sum(timing.wall for timing in timings), sum(timing.cpu for timing in timings))


def _rate_row(name: str, ours: Timing, peer: Timing, steps: int, target: float | None = None) -> Row:
    return Row(
        name,
        f"{steps / ours.wall:,.0f}/s",
        f"{steps / peer.wall:,.0f}/s",
        times(peer.wall, ours.wall),
        times(peer.cpu, ours.cpu),
        f"≥ {target:g}" if target else "",
        peer.wall >= target * ours.wall if target else None,
    )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
