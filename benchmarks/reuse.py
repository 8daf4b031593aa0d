"""Reuse: 100 items, killed at random, in another order, with a prompt edited: who is asked again.

Each trial runs a workflow over the same 100 items in an order of its own, after one of them was edited. In every
fourth trial an earlier run with 30 more edits is killed (SIGKILL) at a random moment first. Each run is a thread and a
process of its own. The agent is an async function that notes each call in a file before it answers with its item. What
must be asked follows from the items whose members have finished, as the store says after the kill.

The peer is computed from the same lists: a cache that serves the longest unchanged prefix of calls.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engine import no_model
from benchmarks.measure import Row, print_table, times
from rolecall.files.tree import Trees
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle
from rolecall.threads.engine import Cast, Engine
from rolecall.threads.state import Status, read_thread, read_threads
from rolecall.threads.thread import Chain
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook, RoleResult, ThreadContext

_ITEMS = 100
_EDITED_BEFORE_KILL = 30

_WORKFLOW = """\
name: answer-items
roles:
  lister:
    prompt: List the items.
    reuse: false
    schema: {type: object, properties: {items: {type: array, items: {type: string}}}, required: [items]}
  worker:
    each: steps[-1].output.items
    workdir: shared
    prompt: Answer {{item}}.
    schema: {type: object, properties: {note: {type: string}}, required: [note]}
graph: {$START: lister, lister: worker, worker: $END}
"""


@dataclass
class Place:
    """The folder of some trials: a store, recorded files, and a work folder with one file."""

    folder: Path
    done: set[str] = field(default_factory=set)
    """The items whose members have finished."""

    def __post_init__(self) -> None:
        (self.folder / "work").mkdir(parents=True)
        (self.folder / "work/file").write_text("The same for all.\n", encoding="utf-8")
        (self.folder / "answer-items.yaml").write_text(_WORKFLOW, encoding="utf-8")

    def start(self, items: Sequence[str]) -> int:
        """Run a thread over `items` in a process of its own; return its id."""
        (self.folder / "calls").write_bytes(b"")
        (self.folder / "thread").write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            try:
                self._run(items)
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    def run(self, items: Sequence[str]) -> None:
        _, status = os.waitpid(self.start(items), 0)
        assert status == 0, "a run has failed"

    def _run(self, items: Sequence[str]) -> None:
        calls = os.open(self.folder / "calls", os.O_WRONLY | os.O_APPEND)

        async def answer(prompt: str, _context: Any) -> str:
            item = prompt.partition("Answer ")[2].partition(".")[0]
            os.write(calls, f"{item}\n".encode())
            return f"---\nnote: {item}\n---\nAnswered.\n"

        async def list_items(_context: ThreadContext) -> RoleResult:
            return RoleResult("", {"items": list(items)})

        def find_book(node: str) -> Playbook:
            return registry.load_node(store, node)._replace(functions={"lister": list_items})

        async def play() -> None:
            async for _ in engine.run(thread, cancel=asyncio.Event()):
                pass

        with Store(SqliteBackend(str(self.folder / "store.db"))) as store:
            engine = Engine(
                store=store,
                playbook=find_book,
                cast=lambda _book, _role: Cast("benchmark", answer),
                extract=no_model,
                can_extract=lambda _role: False,
                token=lambda: os.urandom(8).hex(),
                environment={},
                mask=Mask([]),
                trees=Trees(str(self.folder / "trees")),
            )
            book = registry.load_file(str(self.folder / "answer-items.yaml"))
            work = str(self.folder / "work")
            thread = lifecycle.start(store, book, "Answer all.", cwd=work, mask=Mask([]), reuse=True).id
            (self.folder / "thread").write_text(thread, encoding="utf-8")
            asyncio.run(play())

    def calls(self) -> Counter[str]:
        return Counter((self.folder / "calls").read_text(encoding="utf-8").split())

    def note_finished(self) -> int:
        """Add the items whose members have finished in the last run; return how many members those are."""
        finished = []
        thread = (self.folder / "thread").read_text(encoding="utf-8")
        with Store(SqliteBackend(str(self.folder / "store.db"))) as store:
            for ref in read_threads(store, where={"parent": [thread]}) if thread else ():
                last = Chain(store, ref.head).last
                if ref.state.status == Status.COMPLETED and last is not None:
                    finished.append(last.output["note"])
        self.done |= set(finished)
        return len(finished)

    def results(self) -> list[str]:
        """What the members of the last run gave, in the order of their items."""
        thread = (self.folder / "thread").read_text(encoding="utf-8")
        with Store(SqliteBackend(str(self.folder / "store.db"))) as store:
            ref = read_thread(store, thread)
            last = Chain(store, ref.head).last if ref else None
            return [member["output"]["note"] for member in last.output["members"]] if last else []


@dataclass
class Tally:
    trials: int = 0
    kills: int = 0
    finished_at_kills: int = 0
    changed: int = 0
    """How many members had to be asked."""
    asked: int = 0
    asked_again: int = 0
    """How many were asked although an equal one had finished."""
    not_asked: int = 0
    """How many were not asked although none had finished."""
    wrong_results: int = 0
    asked_by_prefix: int = 0
    seconds: float = 0.0
    seconds_of_first: float = 0.0


class Edited(NamedTuple):
    items: list[str]
    edits: int
    """How many there were so far, so that each gives another text."""


def edit(before: Edited, count: int) -> Edited:
    """The items in another order, `count` of them with another text."""
    items, edits = list(before.items), before.edits
    for place in random.sample(range(len(items)), count):
        edits += 1
        items[place] = f"item-{place}-{edits}"
    random.shuffle(items)
    return Edited(items, edits)


def try_once(place: Place, before: Edited, tally: Tally, *, kills: bool, seconds: float) -> Edited:
    """One trial, with a kill within the `seconds` that a run takes; return its items."""
    if kills:
        before = edit(before, _EDITED_BEFORE_KILL)
        pid = place.start(before.items)
        time.sleep(random.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
        tally.kills += os.waitpid(pid, 0)[1] != 0
        tally.finished_at_kills += place.note_finished()
    now = edit(before, 1)
    wanted = Counter(item for item in now.items if item not in place.done)
    began = time.perf_counter()
    place.run(now.items)
    tally.seconds += time.perf_counter() - began
    calls = place.calls()
    prefix = 0
    while prefix < _ITEMS and now.items[prefix] == before.items[prefix] and now.items[prefix] in place.done:
        prefix += 1
    tally.trials += 1
    tally.changed += wanted.total()
    tally.asked += calls.total()
    tally.asked_again += (calls - wanted).total()
    tally.not_asked += (wanted - calls).total()
    tally.wrong_results += place.results() != now.items
    tally.asked_by_prefix += _ITEMS - prefix
    place.done |= set(now.items)
    return now


def try_block(folder: str, first: int, count: int) -> Tally:
    """Some trials in a store of their own, which a run that asks everybody has filled."""
    place, tally = Place(Path(folder) / str(first)), Tally()
    items = Edited([f"item-{number}-0" for number in range(_ITEMS)], 0)
    began = time.perf_counter()
    place.run(items.items)
    tally.seconds_of_first = seconds = time.perf_counter() - began
    assert place.calls() == Counter(items.items)
    place.done |= set(items.items)
    for trial in range(first, first + count):
        before = tally.seconds
        items = try_once(place, items, tally, kills=trial % 4 == 0, seconds=seconds)
        seconds = tally.seconds - before
    return tally


def main(*, quick: bool = False) -> None:
    trials, block = (20, 10) if quick else (1_000, 50)
    starts, total = range(0, trials, block), Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder,
        ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool,
    ):
        for tally in pool.map(partial(try_block, folder, count=block), starts):
            total.update(asdict(tally))
            print(f"  {total['trials']:,} of {trials:,} trials", end="\r", file=sys.stderr, flush=True)
    show(Tally(**{**asdict(Tally()), **total}), len(starts))


def show(tally: Tally, blocks: int) -> None:
    members, first = tally.trials * _ITEMS, tally.seconds_of_first / blocks
    print_table(
        f"{tally.trials:,} trials of {_ITEMS} members in another order, 1 edited; {tally.kills:,} after a run with"
        f" {_EDITED_BEFORE_KILL} edits was killed; beside it a cache of the longest unchanged prefix, computed",
        [
            Row("members, and those that must be asked", f"{members:,}", f"{tally.changed:,}"),
            Row(
                "asked",
                f"{tally.asked:,}",
                f"{tally.asked_by_prefix:,}",
                times(tally.asked, tally.asked_by_prefix),
                target=f"{tally.changed:,}",
                met=tally.asked == tally.changed,
            ),
            Row(
                "asked although an equal one had finished",
                f"{tally.asked_again:,}",
                f"{tally.asked_by_prefix - tally.changed:,}",
                target="0",
                met=tally.asked_again == 0,
            ),
            Row("changed, but not asked", f"{tally.not_asked:,}", target="0", met=tally.not_asked == 0),
            Row(
                "trials with another result",
                f"{tally.wrong_results:,}",
                target="0",
                met=not tally.wrong_results,
            ),
            Row("members that had finished at the kills", f"{tally.finished_at_kills:,}"),
            Row(
                "a run of a trial, against a run that asks all",
                f"{tally.seconds / tally.trials:.2f} s",
                f"{first:.2f} s",
                times(tally.seconds / tally.trials, first),
            ),
        ],
    )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
