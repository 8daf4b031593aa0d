"""Groups: what a member costs beside a plain thread, how many fit into a store, waiting in parallel, and a peer.

The agent is an async function that answers with 1 KB at once, so what is left is the engine's own work. The peer is
LangGraph with its SQLite saver: one `invoke` that sends every item to a node, which answers with the same 1 KB.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine import Peer, answer, no_model
from benchmarks.measure import Row, Timing, interleaved, print_table, timed, times
from benchmarks.peers import python_with
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle
from rolecall.threads.engine import Cast, Engine
from rolecall.threads.state import Status
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook, RoleResult, ThreadContext

_OVERHEAD = 1.2
_MEMBER_MS = 20.0
_SIZE_MB = 60.0
_WAIT_SECONDS = 1.25
_AT_ONCE = 8

_SCHEMA = "{type: object, properties: {status: {type: string}, note: {type: string}}, required: [status]}"
_ONE = f"""\
name: answer-one
roles:
  worker:
    prompt: Answer.
    schema: {_SCHEMA}
graph: {{$START: worker, worker: $END}}
"""
_MANY = f"""\
name: answer-many
roles:
  lister:
    prompt: List the items.
    schema: {{type: object, properties: {{items: {{type: array, items: {{type: integer}}}}}}, required: [items]}}
  worker:
    each: steps[-1].output.items
    at_once: {_AT_ONCE}
    workdir: shared
    prompt: Answer {{{{item}}}}.
    schema: {_SCHEMA}
graph: {{$START: lister, lister: worker, worker: $END}}
"""

_LANGGRAPH = """\
import json, operator, random, sys, time
from importlib.metadata import version
from typing import Annotated, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send


class State(TypedDict):
    items: list
    results: Annotated[list, operator.add]


def answer(state):
    return {"results": [random.randbytes(500).hex()]}


graph = StateGraph(State)
graph.add_node("answer", answer)
graph.add_conditional_edges(START, lambda state: [Send("answer", {"item": item}) for item in state["items"]])
graph.add_edge("answer", END)
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    saver.setup()
    app = graph.compile(checkpointer=saver)
    names = ("langgraph", "langgraph-checkpoint-sqlite")
    print(json.dumps({"versions": {name: version(name) for name in names}}), flush=True)
    for number, line in enumerate(sys.stdin):
        wall, cpu = time.perf_counter(), time.process_time()
        thread = {"configurable": {"thread_id": str(number)}, "max_concurrency": 8}
        found = app.invoke({"items": list(range(int(line))), "results": []}, thread)
        assert len(found["results"]) == int(line)
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""


class Runner:
    """A store of its own, and an engine whose agent answers at once or after a while."""

    def __init__(self, path: str, *, seconds: float = 0.0) -> None:
        self.path = path
        self._store = Store(SqliteBackend(path))
        self._loop = asyncio.new_event_loop()
        self._books: dict[str, Playbook] = {}
        self._seconds = seconds
        self._mask = Mask([])
        self._engine = Engine(
            store=self._store,
            playbook=self._book,
            cast=lambda _book, _role: Cast("benchmark", self._answer),
            extract=no_model,
            can_extract=lambda _role: False,
            token=lambda: os.urandom(8).hex(),
            environment={},
            mask=self._mask,
        )
        folder = os.path.dirname(path)
        self._workflows = {}
        for name, text in {"answer-one": _ONE, "answer-many": _MANY}.items():
            file = Path(folder) / f"{name}.yaml"
            file.write_text(text, encoding="utf-8")
            self._workflows[name] = registry.load_file(str(file))
        self._folder = folder

    async def _answer(self, prompt: str, context: Any) -> str:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return await answer(prompt, context)

    def _book(self, node: str) -> Playbook:
        if node not in self._books:
            book = registry.load_node(self._store, node)
            self._books[node] = book._replace(functions={"lister": self._list})
        return self._books[node]

    async def _list(self, context: ThreadContext) -> RoleResult:
        return RoleResult("", {"items": list(range(int(context.start)))})

    def members(self, count: int) -> Mapping[str, Any]:
        """One thread with a group of `count` members; return its output."""
        thread = self._start("answer-many", str(count))
        self._loop.run_until_complete(self._run(thread))
        found = self._store.ref(f"thread/{thread}")
        assert found is not None and found.state["status"] == Status.COMPLETED, found
        output: Mapping[str, Any] = self._store.get(
            self._store.get(found.target or "").payload["output"]
        ).payload
        assert output["done"] == output["count"] == count
        return output

    def threads(self, count: int) -> None:
        """`count` plain threads of one step, as many at once as a group has members at once."""

        async def run_all() -> None:
            room = asyncio.Semaphore(_AT_ONCE)

            async def run_one() -> None:
                async with room:
                    await self._run(self._start("answer-one", "Answer."))

            await asyncio.gather(*(run_one() for _ in range(count)))

        self._loop.run_until_complete(run_all())

    def _start(self, name: str, prompt: str) -> str:
        return lifecycle.start(
            self._store, self._workflows[name], prompt, cwd=self._folder, mask=self._mask
        ).id

    async def _run(self, thread: str) -> None:
        async for _ in self._engine.run(thread, cancel=asyncio.Event()):
            pass

    def close(self) -> float:
        """Fold the log back into the store's file, and return its size in MB."""
        self._loop.close()
        self._store.close()
        return os.path.getsize(self.path) / 1e6


def main(*, quick: bool = False) -> None:
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        overhead(folder, rounds=5 if quick else 15)
        many(folder, counts=(100, 1_000) if quick else (100, 1_000, 10_000))
        waiting(folder, rounds=3 if quick else 5)
        against_peer(folder, rounds=3, count=200 if quick else 1_000)


def overhead(folder: str, *, rounds: int) -> None:
    grouped, plain = (Runner(os.path.join(folder, f"{name}.db")) for name in ("grouped", "plain"))
    grouped.members(10)
    plain.threads(10)
    count = 100
    member, thread = interleaved(
        rounds, lambda: timed(lambda: grouped.members(count)), lambda: timed(lambda: plain.threads(count))
    )
    row = Row(
        "a member, against a plain thread",
        f"{member.per(count).wall * 1e3:.2f} ms",
        f"{thread.per(count).wall * 1e3:.2f} ms",
        times(member.wall, thread.wall),
        times(member.cpu, thread.cpu),
        f"≤ {_OVERHEAD:g}",
        member.wall <= _OVERHEAD * thread.wall,
    )
    sizes = [each.close() * 1e3 / (rounds * count) for each in (grouped, plain)]
    print_table(
        f"Groups of {count} members against {count} plain threads, {_AT_ONCE} at once, {rounds} rounds in turn",
        [row, Row("stored for each", f"{sizes[0]:.1f} KB", f"{sizes[1]:.1f} KB", times(*sizes))],
    )


def many(folder: str, *, counts: tuple[int, ...]) -> None:
    rows = []
    first = 0.0
    for count in counts:
        runner = Runner(os.path.join(folder, f"many-{count}.db"))
        each = timed(lambda runner=runner, count=count: runner.members(count)).per(count).wall * 1e3  # type: ignore[misc]
        first = first or each
        size = runner.close()
        rows.append(
            Row(
                f"a member of {count:,}",
                f"{each:.2f} ms",
                f"{first:.2f} ms",
                times(each, first),
                target=f"≤ {_MEMBER_MS:g} ms",
                met=each <= _MEMBER_MS,
            )
        )
        is_largest = count == 10_000
        rows.append(
            Row(
                f"the store after {count:,}",
                f"{size:.1f} MB",
                target=f"< {_SIZE_MB:g} MB" if is_largest else "",
                met=size < _SIZE_MB if is_largest else None,
            )
        )
    print_table("Growth with the group: a member of a larger one against one of the smallest", rows)


def waiting(folder: str, *, rounds: int) -> None:
    grouped, plain = (Runner(os.path.join(folder, f"waiting-{name}.db"), seconds=1.0) for name in "ab")
    members, threads = interleaved(
        rounds,
        lambda: timed(lambda: grouped.members(_AT_ONCE)),
        lambda: timed(lambda: plain.threads(_AT_ONCE)),
    )
    grouped.close()
    plain.close()
    row = Row(
        f"{_AT_ONCE} members whose agents wait 1 s, against {_AT_ONCE} plain threads",
        f"{members.wall:.2f} s",
        f"{threads.wall:.2f} s",
        times(members.wall, threads.wall),
        times(members.cpu, threads.cpu),
        f"≤ {_WAIT_SECONDS:g} s",
        members.wall <= _WAIT_SECONDS,
    )
    print_table(f"Waiting in parallel, {rounds} rounds in turn", [row])


def against_peer(folder: str, *, rounds: int, count: int) -> None:
    python = python_with(os.path.join(folder, "langgraph"), "langgraph", "langgraph-checkpoint-sqlite")
    if python is None:
        return
    peer = Peer(python, folder, "langgraph_send", _LANGGRAPH)
    runner = Runner(os.path.join(folder, "beside.db"))
    ours, theirs = interleaved(rounds, lambda: timed(lambda: runner.members(count)), lambda: peer.step(count))
    peer.close()
    sizes = [runner.close(), os.path.getsize(peer.path) / 1e6]
    versions = ", ".join(f"{name} {number}" for name, number in peer.about["versions"].items())
    print_table(
        f"A fan-out of {count:,} against {versions} (Send), {rounds} rounds in turn",
        [
            _rate_row("members per second", ours, theirs, count),
            Row(
                f"stored after {rounds}",
                f"{sizes[0]:.1f} MB",
                f"{sizes[1]:.1f} MB",
                times(sizes[0], sizes[1]),
            ),
        ],
    )


def _rate_row(name: str, ours: Timing, peer: Timing, count: int) -> Row:
    one, other = (f"{count / timing.wall:,.0f}/s" for timing in (ours, peer))
    return Row(name, one, other, times(peer.wall, ours.wall), times(peer.cpu, ours.cpu))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
