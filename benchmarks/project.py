"""The project's tools over a pipe, beside what the reference server in Node takes; and its commands.

The reference's figures were taken once with the same probes on a machine of 2 cores, so their column says little
about this machine; the ratio of the commands to bare Python is measured here. What differs is kept in mind: the
reference does not wait for the disk, and its search answers in another form.

A "first" row is the first call of a server on files that another harness wrote, which it has to parse and
check; the others come after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Row, Timing, interleaved, print_table, times
from benchmarks.startup import clean_environ, installed, run_of

_OURS = [sys.executable, "-c", "from rolecall.cli import command; command()", "mcp"]
_START = {"topic": "Storage", "issues": ["Which format?"], "research_summary": "Read."}
_TASK = {"title": "Write it", "owner": "lead", "context": "c" * 200, "acceptance": "a" * 100}
_STARTUP_TARGET = 4.0


class Probe(NamedTuple):
    """One call, what it takes the reference, and what part of that we may take."""

    tool: str
    arguments: Mapping[str, Any]
    recorded: float
    target: float | None = None
    shows_first: bool = False


_SMALL = (
    Probe("plan_start", _START, 12.6e-3),
    Probe("task_add", _TASK, 3.4e-3),
    Probe("task_list", {}, 3.6e-3),
)
_MANY_TASKS = (Probe("task_add", _TASK, 37e-3, 0.25), Probe("task_list", {}, 101e-3, 0.25))
_MANY_CYCLES = (
    Probe("history_search", {"query": "topic 4321"}, 99e-3, 0.25, shows_first=True),
    Probe("plan_start", _START, 357e-3, 0.25),
    Probe("task_close", {}, 199e-3, 0.25),
)


def main(*, quick: bool = False) -> None:
    size, rounds = (1_000, 5) if quick else (5_000, 15)
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        compare(folder, _SMALL, "small state", tasks=0, cycles=0, rounds=rounds)
        compare(folder, _MANY_TASKS, f"{size:,} tasks", tasks=size, cycles=0, rounds=rounds)
        compare(folder, _MANY_CYCLES, f"{size:,} cycles", tasks=0, cycles=size, rounds=rounds)
        commands(folder, rounds=10 if quick else 30)


# -- servers --


class Server:
    """A tool server on a pipe, for one project."""

    def __init__(self, command: Sequence[str], project: Path, environ: dict[str, str]) -> None:
        self._count = 0
        self.child = subprocess.Popen(
            command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
        )
        about = {"name": "bench", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": about})

    def timing(self, probe: Probe) -> Timing:
        """From the call to the whole reply; and what the server worked for it."""
        began, worked = time.perf_counter(), self._worked()
        reply = self._ask("tools/call", {"name": f"nx_{probe.tool}", "arguments": dict(probe.arguments)})
        timing = Timing(time.perf_counter() - began, self._worked() - worked)
        result = json.loads(reply)["result"]
        assert not result.get("isError"), result
        return timing

    def _worked(self) -> float:
        """Seconds of processor time in all its threads; those that ended are rare and short."""
        threads = Path(f"/proc/{self.child.pid}/task")
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads.iterdir()) / 1e9

    def _ask(self, method: str, params: Mapping[str, Any]) -> bytes:
        assert self.child.stdin and self.child.stdout
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        self.child.stdin.write(json.dumps(message).encode() + b"\n")
        self.child.stdin.flush()
        return self.child.stdout.readline()


@contextmanager
def _serving(folder: str, *, tasks: int, cycles: int) -> Iterator[Server]:
    project = Path(tempfile.mkdtemp(dir=folder))
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    seed(project, tasks=tasks, cycles=cycles)
    server = Server([*_OURS, "--project", str(project)], project, clean_environ(folder))
    try:
        yield server
    finally:
        with server.child:
            server.child.kill()


def seed(project: Path, *, tasks: int, cycles: int) -> None:
    """The files of a project as a harness leaves them that writes them for people to read."""
    state = project / ".nexus" / "state"
    state.mkdir(parents=True)
    if tasks:
        file = {
            "goal": "Ship it",
            "decisions": [],
            "tasks": [_task(number) for number in range(1, tasks + 1)],
        }
        (state / "tasks.json").write_text(json.dumps(file, indent=2), encoding="utf-8")
    if cycles:
        history = {"cycles": [_cycle(number) for number in range(1, cycles + 1)]}
        (project / ".nexus" / "history.json").write_text(json.dumps(history, indent=2), encoding="utf-8")


def _task(number: int) -> dict[str, Any]:
    texts = {"title": f"Task {number}", "context": "c" * 200, "acceptance": "a" * 100}
    return {"id": number, **texts, "status": "pending", "deps": [], "created_at": "2026-01-31T09:30:00.000Z"}


def _cycle(number: int) -> dict[str, Any]:
    issues = [
        {"id": n, "title": f"Issue {n}", "status": "decided", "decision": "d" * 150} for n in range(1, 4)
    ]
    return {
        "schema_version": "0.5",
        "completed_at": "2026-01-31T09:30:00.000Z",
        "branch": "main",
        "plan": {
            "id": number,
            "topic": f"Topic {number}",
            "issues": issues,
            "research_summary": "r" * 200,
            "created_at": "2026-01-31T09:00:00.000Z",
        },
        "tasks": [_task(1), _task(2)],
    }


# -- comparing --


def compare(
    folder: str, probes: Sequence[Probe], title: str, *, tasks: int, cycles: int, rounds: int
) -> None:
    with _serving(folder, tasks=tasks, cycles=cycles) as server:
        rows = [row for probe in probes for row in _rows(probe, server, rounds)]
    print_table(f"{title} (median of {rounds} calls over a pipe; peer: Node, recorded)", rows)


def _rows(probe: Probe, server: Server, rounds: int) -> list[Row]:
    first = server.timing(probe)
    rows = [_row(f"{probe.tool}, first", first, probe, None)] if probe.shows_first else []
    (ours,) = interleaved(rounds, lambda: server.timing(probe))
    return [*rows, _row(probe.tool, ours, probe, probe.target)]


def _row(name: str, ours: Timing, probe: Probe, target: float | None) -> Row:
    return Row(
        name,
        f"{ours.wall * 1e3:.1f} ms",
        f"{probe.recorded * 1e3:.1f} ms",
        times(ours.wall, probe.recorded),
        "",
        f"≤ {target:g}" if target else "",
        ours.wall <= target * probe.recorded if target else None,
    )


# -- the command line --


def commands(folder: str, *, rounds: int) -> None:
    project = Path(tempfile.mkdtemp(dir=folder))
    seed(project, tasks=20, cycles=20)
    with installed(folder) as scripts:
        environ = clean_environ(folder)
        words = {
            "rolecall plan status": ("plan", "status"),
            "rolecall task list, 20 tasks": ("task", "list"),
            "rolecall task add": ("task", "add", "Write it", "--context", "x"),
            "rolecall history search, 20 cycles": ("history", "search", "topic 7"),
        }
        runs = [run_of([str(scripts / "python"), "-c", "pass"], environ)]
        runs += [
            run_of([str(scripts / "rolecall"), *args, "--project", str(project)], environ)
            for args in words.values()
        ]
        interleaved(2, *runs)  # the first runs read the files from the disk
        bare, *found = interleaved(rounds, *runs)
    rows = [
        Row(
            name,
            f"{timing.wall * 1e3:.1f} ms",
            f"{bare.wall * 1e3:.1f} ms",
            times(timing.wall, bare.wall),
            times(timing.cpu, bare.cpu),
            f"≤ {_STARTUP_TARGET:g}",
            timing.wall <= _STARTUP_TARGET * bare.wall,
        )
        for name, timing in zip(words, found, strict=True)
    ]
    print_table(f"Commands (median of {rounds} interleaved runs; peer: python -c pass)", rows)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
