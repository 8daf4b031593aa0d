"""What `rolecall mcp` costs on a pipe: from spawn to the answer to `initialize`, memory, and single calls.

Measured on a normal install against bare `python -c pass`, round by round in turn. The other figures to stand
against are those of the reference server in Node, taken once with the same probes on a machine of 2 cores:
they are constants here, so a ratio to them also compares machines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.measure import Row, Timing, interleaved, print_table, times
from benchmarks.startup import clean_environ, installed, run_of

_NODE_SPAWN = 0.445
_NODE_CALLS = {
    ("nx_task_add", 0): 3.4e-3,
    ("nx_task_list", 0): 3.6e-3,
    ("nx_task_add", 1_000): 10e-3,
    ("nx_task_list", 1_000): 15e-3,
    ("nx_task_add", 5_000): 37e-3,
    ("nx_task_list", 5_000): 101e-3,
}
_SPAWN_TARGET = 0.4
_CPU_TARGET = 0.150
_MEMORY_TARGET = 40.0
_LARGE_TARGET = 0.25
_LARGE = 5_000

OPENING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


def main(*, quick: bool = False) -> None:
    rounds = 10 if quick else 40
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, installed(folder) as scripts:
        host = Host(scripts, clean_environ(folder), Path(folder))
        spawning(host, rounds=rounds)
        memory(host)
        calls(host, rounds=50 if quick else 200)


class Host(NamedTuple):
    """Starts servers as an MCP host does."""

    scripts: Path
    environ: dict[str, str]
    folder: Path

    @contextmanager
    def open(self, project: Path, *options: str) -> Iterator[Client]:
        words = [str(self.scripts / "rolecall"), "mcp", "--project", str(project), *options]
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environ, bufsize=1 << 20
        )
        client = Client(child)
        try:
            client.ask("initialize", OPENING)
            yield client
        finally:
            client.close()

    def project(self, tasks: int = 0) -> Path:
        """A project whose running cycle has this many tasks, of some 460 bytes each."""
        project = Path(tempfile.mkdtemp(dir=self.folder))
        state = project / ".nexus" / "state"
        state.mkdir(parents=True)
        if tasks:
            file = {"goal": "g", "decisions": [], "tasks": [_task(number) for number in range(1, tasks + 1)]}
            (state / "tasks.json").write_text(json.dumps(file))
        return project


def _task(number: int) -> dict[str, Any]:
    texts = {"title": f"Task {number}", "context": "c" * 200, "acceptance": "a" * 100}
    more = {"status": "pending", "deps": [], "created_at": "2026-01-31T09:30:00.000Z"}
    return {"id": number, **texts, **more}


class Client:
    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self._count = 0

    def ask(self, method: str, params: Any) -> bytes:
        assert self.child.stdin and self.child.stdout
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        self.child.stdin.write(json.dumps(message).encode() + b"\n")
        self.child.stdin.flush()
        reply = self.child.stdout.readline()
        assert b'"result"' in reply[:200], reply[:500]
        return reply

    def call(self, name: str, **arguments: Any) -> bytes:
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def peak(self) -> float:
        """The most memory the server has held, in MB."""
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) * 1024 / 1e6

    def close(self) -> None:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


# -- from spawn to the answer --


def spawning(host: Host, *, rounds: int) -> None:
    project = host.project()
    options = {"initialize": (), "initialize, --agent engineer": ("--agent", "engineer")}
    bare = run_of([str(host.scripts / "python"), "-c", "pass"], host.environ)
    works = [bare, *(_spawn(host, project, *words) for words in options.values())]
    interleaved(2, *works)  # the first runs read the files from the disk
    python, *found = interleaved(rounds, *works)
    rows = [
        row for name, timing in zip(options, found, strict=True) for row in _spawn_rows(name, timing, python)
    ]
    print_table(f"Spawn to the answer to initialize (median of {rounds} interleaved runs)", rows)


def _spawn(host: Host, project: Path, *options: str) -> Callable[[], Timing]:
    """By the clock until the answer is here; on the processor for the server's whole life."""

    def run() -> Timing:
        words = [str(host.scripts / "rolecall"), "mcp", "--project", str(project), *options]
        began = time.perf_counter()
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=host.environ)
        client = Client(child)
        client.ask("initialize", OPENING)
        wall = time.perf_counter() - began
        assert child.stdin and child.stdout
        child.stdin.close()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        return Timing(wall, used.ru_utime + used.ru_stime)

    return run


def _spawn_rows(name: str, timing: Timing, python: Timing) -> list[Row]:
    wall, cpu = f"{timing.wall * 1e3:.1f} ms", f"{timing.cpu * 1e3:.1f} ms"
    return [
        Row(
            f"{name}, of Node's",
            wall,
            f"{_NODE_SPAWN * 1e3:.0f} ms",
            times(timing.wall, _NODE_SPAWN),
            target=f"≤ {_SPAWN_TARGET:g}",
            met=timing.wall <= _SPAWN_TARGET * _NODE_SPAWN,
        ),
        Row(
            f"{name}, of bare Python's",
            wall,
            f"{python.wall * 1e3:.1f} ms",
            times(timing.wall, python.wall),
            times(timing.cpu, python.cpu),
        ),
        Row(f"{name}, processor", cpu, target=f"≤ {_CPU_TARGET * 1e3:.0f} ms", met=timing.cpu <= _CPU_TARGET),
    ]


# -- memory --


def memory(host: Host) -> None:
    bare = _bare_peak(host)
    project = host.project(tasks=_LARGE)
    with host.open(project) as client:
        opened = client.peak()
        client.ask("tools/list", {})
        client.call("nx_plan_status")
        called = client.peak()
        client.call("nx_task_list")
        listed = client.peak()
    rows = [
        _memory_row("after initialize", opened, bare, target=_MEMORY_TARGET),
        _memory_row("after tools/list and a call", called, bare, target=_MEMORY_TARGET),
        _memory_row(f"after listing {_LARGE:,} tasks", listed, bare),
    ]
    print_table("Peak memory over bare Python", rows)


def _memory_row(name: str, peak: float, bare: float, *, target: float | None = None) -> Row:
    row = Row(name, f"+{peak - bare:.1f} MB", f"{bare:.1f} MB", times(peak, bare))
    return row if target is None else row._replace(target=f"≤ +{target:g} MB", met=peak - bare <= target)


def _bare_peak(host: Host) -> float:
    words = [str(host.scripts / "python"), "-c", "import sys; print(flush=True); sys.stdin.read()"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=host.environ)
    assert child.stdout
    child.stdout.readline()
    client = Client(child)
    try:
        return client.peak()
    finally:
        client.close()


# -- calls --


def calls(host: Host, *, rounds: int) -> None:
    rows = []
    with host.open(host.project()) as client:
        rows.append(_call_row("ping", _latency(rounds, lambda: client.ask("ping", {})), None, 0))
        rows.append(
            _call_row("nx_plan_status", _latency(rounds, lambda: client.call("nx_plan_status")), None, 0)
        )
    for tasks in sorted({size for _, size in _NODE_CALLS}):
        with host.open(host.project(tasks)) as client:
            works: dict[str, Callable[[], bytes]] = {
                "nx_task_list": lambda client=client: client.call("nx_task_list"),  # type: ignore[misc]
                "nx_task_add": lambda client=client: client.call("nx_task_add", title="t", context="c"),  # type: ignore[misc]
            }
            for name, work in works.items():
                found = _latency(min(rounds, 50) if tasks else rounds, work)
                rows.append(_call_row(name, found, _NODE_CALLS[name, tasks], tasks))
    print_table(f"Calls over the pipe (median of up to {rounds}; peer: Node)", rows)


def _latency(rounds: int, work: Callable[[], bytes]) -> tuple[float, int]:
    """Seconds from the request to its reply, and the bytes of one reply."""
    size = len(work())
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found), size


def _call_row(name: str, found: tuple[float, int], node: float | None, tasks: int) -> Row:
    seconds, size = found
    label = f"{name}, {tasks:,} tasks" if tasks else name
    value = f"{seconds * 1e3:.2f} ms" + (f", {size / 1e6:.1f} MB" if size > 100_000 else "")
    if node is None:
        return Row(label, value)
    ratio, peer = times(seconds, node), f"{node * 1e3:g} ms"
    if tasks < _LARGE:
        return Row(label, value, peer, ratio)
    return Row(label, value, peer, ratio, target=f"≤ {_LARGE_TARGET:g}", met=seconds <= _LARGE_TARGET * node)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
