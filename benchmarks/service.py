"""The service: many threads through it, how soon one starts, whether a long queue costs, and what it costs at rest.

The agent is scripted and answers at once, so what is left is the service's own work: admission, a process for the
step, its notes through a socket, the commit. The floor of a step is the engine in one process on the same store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine import Player
from benchmarks.measure import Row, Timing, print_table, timed, times
from benchmarks.startup import clean_environ, installed
from rolecall.files.tree import Trees
from rolecall.service import control
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.workflow import registry

_STEPS = 5
_CONCURRENCY = 50
_START_MS = 100.0
_GROWTH = 1.3
_OF_ENGINE = 0.4
_IDLE_CORE = 0.5
_IDLE_MB = 80.0
_TICK = os.sysconf("SC_CLK_TCK")
WORKFLOW = """\
name: take-steps
description: One role, step after step.
roles:
  worker:
    description: Works.
    goal: Work.
    frontmatter: {type: object, properties: {$status: {enum: [done, end]}}, required: [$status]}
graph:
  $START: worker
  worker: {done: worker, end: $END}
limits: {steps: 1000}
"""


def main(*, quick: bool = False) -> None:
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, installed(folder) as scripts:
        at_rest(Service(scripts, Path(folder) / "rest"), seconds=5 if quick else 30)
        starts(Service(scripts, Path(folder) / "starts"), count=50 if quick else 300)
        growth(scripts, Path(folder), rounds=1 if quick else 3, done=50 if quick else 150)
        load(Service(scripts, Path(folder) / "load"), threads=100 if quick else 1_000)


class Service:
    """A home with a workflow and a script for it, and the service in it."""

    def __init__(self, scripts: Path, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.folder = folder
        self._scripts = scripts
        self._environ = {**clean_environ(str(folder)), "HOME": str(folder)}
        self._seen = self._ended = 0
        self.store = Store(SqliteBackend(str(self.home / "store.db")))
        (folder / "take-steps.yaml").write_text(WORKFLOW, encoding="utf-8")
        self._flow = registry.register(self.store, registry.load_file(str(folder / "take-steps.yaml")))
        answers = [{"output": {"$status": "done"}}] * (_STEPS - 1) + [{"output": {"$status": "end"}}]
        (folder / "script.json").write_text(json.dumps({"roles": {"worker": answers}}), encoding="utf-8")

    def queue(self, *, is_told: bool = False) -> str:
        ref = lifecycle.start(
            self.store,
            self._flow,
            "Take steps.",
            cwd=str(self.folder),
            mask=Mask([]),
            agent=f"scripted:{self.folder / 'script.json'}",
            queue=0,
        )
        if is_told:
            control.poke(str(self.home), ref.id)
        return ref.id

    @contextmanager
    def running(self, concurrency: int) -> Iterator[list[int]]:
        """The service; its process and that of its zygote."""
        read, write = os.pipe()
        words = [str(self._scripts / "rolecall"), "serve", "--concurrency", str(concurrency), "--at-once"]
        words += [str(concurrency), "--ready-fd", str(write), "--store", str(self.home / "store.db")]
        with open(self.home / "serve.out", "wb") as output:
            child = subprocess.Popen(
                words, env=self._environ, cwd=self.folder, stdout=output, stderr=output, pass_fds=[write]
            )
        os.close(write)
        with open(read, "rb") as ready:
            assert ready.read() == b"ready", (self.home / "serve.out").read_text()
        try:
            yield [child.pid, control.ask(str(self.home), {"do": "status"})["zygote"]]
        finally:
            control.stop(str(self.home), finish=False)
            child.wait()

    def until(self, done: int) -> None:
        """Wait until so many threads have ended."""
        pipe = control.connect(str(self.home))
        assert pipe is not None
        with pipe:
            pipe.sendall(control.to_line({"do": "follow", "thread": ""}))
            while self._ended < done and pipe.recv(65536):
                for event in self.store.events(after=self._seen):
                    self._seen, self._ended = event.seq, self._ended + (event.kind == "completed")

    def times(self, kind: str) -> dict[str, int]:
        """When each thread had its first event of a kind."""
        found: dict[str, int] = {}
        for event in self.store.events():
            if event.kind == kind:
                found.setdefault(event.stream, event.at)
        return found


# -- at rest --


def at_rest(service: Service, *, seconds: int) -> None:
    with service.running(_CONCURRENCY) as processes:
        service.queue(is_told=True)
        service.until(1)
        time.sleep(2)
        before, began = sum(map(_processor, processes)), time.perf_counter()
        time.sleep(seconds)
        share = 100 * (sum(map(_processor, processes)) - before) / (time.perf_counter() - began)
        memory, once = [_resident(pid) for pid in processes], sum(map(_proportional, processes))
    total = sum(memory)
    print_table(
        f"At rest for {seconds} s (service and zygote)",
        [
            Row("processor, of a core", f"{share:.2f}%", target=f"< {_IDLE_CORE:g}%", met=share < _IDLE_CORE),
            Row("memory", f"{total:.0f} MB", target=f"< {_IDLE_MB:g} MB", met=total < _IDLE_MB),
            Row("  of the service / of the zygote", f"{memory[0]:.0f} / {memory[1]:.0f} MB"),
            Row("  pages they share with others counted in part", f"{once:.0f} MB"),
        ],
    )


def _processor(pid: int) -> float:
    """Seconds a process has had, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


def _proportional(pid: int) -> float:
    """Memory with every page divided by how many processes have it: what both map is not counted twice."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


# -- how soon a thread starts --


def starts(service: Service, *, count: int) -> None:
    with service.running(4):
        for number in range(1, count + 1):
            service.queue(is_told=True)
            service.until(number)
    queued, admitted, begun = (service.times(kind) for kind in ("queued", "started", "step_started"))
    waits = [begun[name] - queued[name] for name in queued]
    to_slot = [admitted[name] - queued[name] for name in queued]
    middle = median(waits)
    print_table(
        f"From queue to start ({count} threads, one after the other)",
        [
            Row("queued to its agent's call, median", _ms(middle), target="< 100 ms", met=middle < _START_MS),
            Row("  90% within, 99% within", f"{_ms(_share(waits, 0.9))}, {_ms(_share(waits, 0.99))}"),
            Row("queued to admitted, median", _ms(median(to_slot))),
        ],
    )


def _ms(value: float) -> str:
    return f"{value:.0f} ms"


def _share(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


# -- a long queue --


def growth(scripts: Path, folder: Path, *, rounds: int, done: int) -> None:
    """The same number of threads taken from a short and from a long queue, in turn."""
    lengths = {"short": max(100, done), "long": 10_000}
    walls: dict[str, list[float]] = {name: [] for name in lengths}
    shares: dict[str, list[float]] = {name: [] for name in lengths}
    queueing: dict[str, list[float]] = {name: [] for name in lengths}
    for number in range(rounds):
        for name, length in lengths.items():
            service = Service(scripts, folder / f"{name}-{number}")
            for _ in range(length - done):
                service.queue()
            last = timed(lambda s=service: [s.queue() for _ in range(done)])  # type: ignore[misc]
            queueing[name].append(last.wall / done)
            with service.running(8) as processes:
                before, began = _processor(processes[0]), time.perf_counter()
                service.until(done)
                walls[name].append((time.perf_counter() - began) / done)
                shares[name].append((_processor(processes[0]) - before) / done)
            service.store.close()
    print_table(
        f"A thread of {_STEPS} steps with 10,000 queued against {lengths['short']} ({done} run, {rounds} rounds)",
        [
            _against("by the clock", median(walls["long"]), median(walls["short"])),
            _against("of the service's processor time", median(shares["long"]), median(shares["short"])),
            _against("to queue one more", median(queueing["long"]), median(queueing["short"])),
        ],
    )


def _against(name: str, value: float, peer: float) -> Row:
    texts = (f"{value * 1e3:.1f} ms", f"{peer * 1e3:.1f} ms")
    return Row(name, *texts, times(value, peer), target=f"≤ {_GROWTH:g}", met=value <= _GROWTH * peer)


# -- load --


def load(service: Service, *, threads: int) -> None:
    names = [service.queue() for _ in range(threads)]
    with service.running(_CONCURRENCY) as processes:
        before, began = sum(map(_with_children, processes)), time.perf_counter()
        service.until(threads)
        wall = time.perf_counter() - began
        cpu = sum(map(_with_children, [*processes, *_children(processes[1])])) - before
        memory, once = sum(map(_resident, processes)), sum(map(_proportional, processes))
    steps = threads * _STEPS
    floor = _in_process(service, count=min(steps, 500))
    events = service.store.events()
    admitted = [event.stream for event in events if event.kind == "started"]
    taken = Counter(event.stream for event in events if event.kind == "step")
    begun, ready = service.times("step_started"), service.times("started")
    delays = [begun[name] - ready[name] for name in names]
    print_table(
        f"{threads:,} threads of {_STEPS} steps, {_CONCURRENCY} at once",
        [
            _claim("all complete", all(_status(service, name) == "completed" for name in names)),
            _claim("no step twice", taken == Counter(dict.fromkeys(names, _STEPS))),
            _claim("admitted in the order they came", admitted == names),
            Row(
                "steps per second",
                f"{steps / wall:.0f}",
                f"{1 / floor.wall:.0f}",
                times(steps / wall, 1 / floor.wall),
                target=f"≥ {_OF_ENGINE:g}",
                met=steps / wall >= _OF_ENGINE / floor.wall,
            ),
            Row(
                "processor time of a step",
                f"{cpu / steps * 1e3:.1f} ms",
                f"{floor.cpu * 1e3:.1f} ms",
                cpu_ratio=times(cpu / steps, floor.cpu),
            ),
            Row("admitted to its agent's call, median", _ms(median(delays))),
            Row("  90% within, 99% within", f"{_ms(_share(delays, 0.9))}, {_ms(_share(delays, 0.99))}"),
            Row("memory of service and zygote afterwards", f"{memory:.0f} MB"),
            Row("  pages they share with others counted in part", f"{once:.0f} MB"),
        ],
    )


def _claim(name: str, holds: bool) -> Row:
    return Row(name, "yes" if holds else "no", target="yes", met=holds)


def _status(service: Service, name: str) -> Any:
    return thread.find(service.store, name).state.status


def _with_children(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICK


def _children(pid: int) -> list[int]:
    """The children of a process, such as workers that wait for another step."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _in_process(service: Service, *, count: int) -> Timing:
    """What a step of the engine alone takes, in this process, which records files as the steps of the service do."""
    home = str(service.home)
    trees = Trees(os.path.join(home, "floor-trees"), private=(home,))
    player = Player(os.path.join(home, "floor.db"), work=str(service.folder), trees=trees)
    player.step(5)
    timing = timed(lambda: player.step(count)).per(count)
    player.close()
    return timing


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
