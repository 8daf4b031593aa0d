"""The project's tools over a pipe, beside nexus-core under bun in the same run; and its commands.

Two differences to keep in mind: the peer does not wait for the disk, and its search answers in another form.
A "first" row is the first call of new servers on files that another harness wrote; the others come after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Row, Timing, interleaved, print_table, times
from benchmarks.peers import nexus_core
from benchmarks.startup import clean_environ, installed, run_of

_OURS = [sys.executable, "-c", "from rolecall.__main__ import command; command()", "mcp"]
_START = {"topic": "Storage", "issues": ["Which format?"], "research_summary": "Read."}
_TASK = {"title": "Write it", "owner": None, "context": "c" * 200, "acceptance": "a" * 100}
_STARTUP_TARGET = 4.0
_READ = 64 * 1024
"""How many bytes the client reads at once: as many as hosts on Node do."""


class Contender(NamedTuple):
    """A server, and how its version of the contract writes the owner of a task."""

    command: Sequence[str]
    owner: str | Mapping[str, str]


class Probe(NamedTuple):
    """One call, and what part of the peer's time it may take."""

    tool: str
    arguments: Mapping[str, Any]
    target: float | None = None
    shows_first: bool = False


_SMALL = (Probe("plan_start", _START), Probe("task_add", _TASK, 1.0), Probe("task_list", {}, 1.0))
_MANY_TASKS = (Probe("task_add", _TASK, 0.3), Probe("task_list", {}, 0.3))
_MANY_CYCLES = (
    Probe("history_search", {"query": "topic 4321"}, 0.3, shows_first=True),
    Probe("plan_start", _START, 0.3),
    Probe("task_close", {}, 0.3),
)


def main(*, quick: bool = False) -> None:
    size, rounds = (1_000, 5) if quick else (5_000, 15)
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        contenders = [Contender(_OURS, "lead")]
        if peer := nexus_core(folder):
            contenders.append(Contender(peer, {"role": "lead"}))
        compare(folder, contenders, _SMALL, "small state", tasks=0, cycles=0, rounds=rounds)
        compare(folder, contenders, _MANY_TASKS, f"{size:,} tasks", tasks=size, cycles=0, rounds=rounds)
        compare(folder, contenders, _MANY_CYCLES, f"{size:,} cycles", tasks=0, cycles=size, rounds=rounds)
        commands(folder, rounds=10 if quick else 30)


# -- servers --


class Server:
    """A tool server on a pipe, for one project."""

    def __init__(self, contender: Contender, project: Path, environ: dict[str, str]) -> None:
        self._count = 0
        self._owner = contender.owner
        self.child = subprocess.Popen(
            contender.command,
            bufsize=_READ,
            cwd=project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        about = {"name": "bench", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": about})

    def timing(self, probe: Probe) -> Timing:
        """From the call to the whole reply; and what the server worked for it."""
        arguments = dict(probe.arguments)
        if "owner" in arguments:
            arguments["owner"] = self._owner
        began, worked = time.perf_counter(), self._worked()
        reply = self._ask("tools/call", {"name": f"nx_{probe.tool}", "arguments": arguments})
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
def _serving(folder: str, contender: Contender, *, tasks: int, cycles: int) -> Iterator[Server]:
    project = Path(tempfile.mkdtemp(dir=folder))
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    seed(project, tasks=tasks, cycles=cycles, owner=contender.owner)
    server = Server(contender, project, clean_environ(folder))
    try:
        yield server
    finally:
        with server.child:
            server.child.kill()


def seed(project: Path, *, tasks: int, cycles: int, owner: str | Mapping[str, str] = "lead") -> None:
    """The files of a project as a harness leaves them that writes them for people to read."""
    state = project / ".nexus" / "state"
    state.mkdir(parents=True)
    if tasks:
        file = {
            "goal": "Ship it",
            "decisions": [],
            "tasks": [_task(number, owner) for number in range(1, tasks + 1)],
        }
        (state / "tasks.json").write_text(json.dumps(file, indent=2), encoding="utf-8")
    if cycles:
        history = {"cycles": [_cycle(number, owner) for number in range(1, cycles + 1)]}
        (project / ".nexus" / "history.json").write_text(json.dumps(history, indent=2), encoding="utf-8")


def _task(number: int, owner: object) -> dict[str, Any]:
    texts = {"owner": owner, "title": f"Task {number}", "context": "c" * 200, "acceptance": "a" * 100}
    return {"id": number, **texts, "status": "pending", "deps": [], "created_at": "2026-01-31T09:30:00.000Z"}


def _cycle(number: int, owner: object) -> dict[str, Any]:
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
        "tasks": [_task(1, owner), _task(2, owner)],
    }


# -- comparing --


def compare(
    folder: str,
    contenders: Sequence[Contender],
    probes: Sequence[Probe],
    title: str,
    *,
    tasks: int,
    cycles: int,
    rounds: int,
) -> None:
    rows = []
    with ExitStack() as stack:
        running = [
            stack.enter_context(_serving(folder, each, tasks=tasks, cycles=cycles)) for each in contenders
        ]
        for probe in probes:
            if probe.shows_first:
                firsts = [partial(_first, folder, each, probe, tasks, cycles) for each in contenders]
                rows.append(_row(f"{probe.tool}, first", interleaved(rounds, *firsts), None))
            works = [partial(server.timing, probe) for server in running]
            interleaved(1, *works)
            found = interleaved(rounds, *works)
            rows.append(_row(probe.tool, found, probe.target))
    print_table(f"{title} (median of {rounds} calls over a pipe, in turn; peer: nexus-core under bun)", rows)


def _first(folder: str, contender: Contender, probe: Probe, tasks: int, cycles: int) -> Timing:
    with _serving(folder, contender, tasks=tasks, cycles=cycles) as server:
        return server.timing(probe)


def _row(name: str, found: Sequence[Timing], target: float | None) -> Row:
    ours, peer = found[0], found[1] if len(found) > 1 else None
    value = f"{ours.wall * 1e3:.1f} ms"
    if peer is None:
        return Row(name, value)
    return Row(
        name,
        value,
        f"{peer.wall * 1e3:.1f} ms",
        times(ours.wall, peer.wall),
        times(ours.cpu, peer.cpu),
        f"≤ {target:g}" if target else "",
        ours.wall <= target * peer.wall if target else None,
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
