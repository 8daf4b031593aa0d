"""What `rolecall mcp` costs on a pipe: from spawn to the answer to `initialize`, memory, and single calls.

Measured on a normal install against bare `python -c pass` and nexus-core under bun, round by round in turn.
Single calls of the project's tools are compared in `project.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.measure import Row, Timing, interleaved, print_table, timed, times
from benchmarks.peers import nexus_core
from benchmarks.startup import clean_environ, installed, run_of

_SPAWN_TARGET = 0.35
_CPU_TARGET = 0.150
_MEMORY_TARGET = 40.0
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
    ours = [str(host.scripts / "rolecall"), "mcp", "--project", str(project)]
    bare = run_of([str(host.scripts / "python"), "-c", "pass"], host.environ)
    works = [bare, _spawn(host, project, ours), _spawn(host, project, [*ours, "--as", "engineer"])]
    peer = nexus_core(str(host.folder))
    if peer:
        works.append(_spawn(host, project, peer))
    interleaved(2, *works)  # the first runs read the files from the disk
    python, plain, named, *others = interleaved(rounds, *works)

    rows = []
    for name, timing in {"initialize": plain, "initialize, --as engineer": named}.items():
        value = f"{timing.wall * 1e3:.1f} ms"
        for reference, floor in zip(("bare Python", "nexus-core under bun"), (python, *others), strict=False):
            row = Row(
                f"{name}, of {reference}",
                value,
                f"{floor.wall * 1e3:.1f} ms",
                times(timing.wall, floor.wall),
                times(timing.cpu, floor.cpu),
            )
            if floor is not python:
                row = row._replace(
                    target=f"≤ {_SPAWN_TARGET:g}", met=timing.wall <= _SPAWN_TARGET * floor.wall
                )
            rows.append(row)
        cpu = f"{timing.cpu * 1e3:.1f} ms"
        rows.append(
            Row(
                f"{name}, processor",
                cpu,
                target=f"≤ {_CPU_TARGET * 1e3:.0f} ms",
                met=timing.cpu <= _CPU_TARGET,
            )
        )
    print_table(f"Spawn to the answer to initialize (median of {rounds} interleaved runs)", rows)


def _spawn(host: Host, project: Path, words: Sequence[str]) -> Callable[[], Timing]:
    """By the clock until the answer is here; on the processor for the server's whole life."""

    def run() -> Timing:
        began = time.perf_counter()
        child = subprocess.Popen(
            words, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=host.environ
        )
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
        for name, work in {
            "ping": lambda: client.ask("ping", {}),
            "nx_plan_status": lambda: client.call("nx_plan_status"),
        }.items():
            found = median(timed(work).wall for _ in range(rounds))
            rows.append(Row(name, f"{found * 1e3:.2f} ms"))
    print_table(f"Calls over the pipe (median of {rounds})", rows)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
