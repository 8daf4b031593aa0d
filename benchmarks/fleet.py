"""The fleet: machines on one PostgreSQL, how soon one takes a step, what three do against one, what one costs at rest.

Every machine is a process with a home of its own, on this host. Agents wait, as agents do, so what is compared is how
many of them are kept waiting at once; on a machine with few cores the processes get in each other's way, which
several hosts would not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, print_table, times
from benchmarks.service import WORKFLOW
from benchmarks.startup import clean_environ
from benchmarks.store import postgres_server
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.workflow import registry

_FASTER = 2.0
_START_MS = 200.0
_IDLE_CORE = 0.5
_SLOTS = 4
_LEASE = 5.0
_TICK = os.sysconf("SC_CLK_TCK")
_AS_HOST = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"


def main(*, quick: bool = False) -> None:
    if find_spec("pgserver") is None or find_spec("dbos") is None:
        print("pgserver or dbos is not installed")
        return
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, postgres_server() as server:
        fleet = Fleet(Path(folder), server)
        latency(fleet, steps=20 if quick else 100, starts=10 if quick else 50)
        at_rest(fleet, seconds=5 if quick else 30)
        takeover(fleet, rounds=1 if quick else 5)
        throughput(fleet, threads=12 if quick else 24, wait=1.0 if quick else 3.0)
        fleet.store.close()


class Fleet:
    """A store on PostgreSQL, threads for it, and machines."""

    def __init__(self, folder: Path, url: str) -> None:
        from rolecall.store.postgres import PostgresBackend

        self.folder = folder
        self.url = url
        self.store = Store(PostgresBackend(url))
        (folder / "take-steps.yaml").write_text(WORKFLOW, encoding="utf-8")
        self._flow = registry.register(self.store, registry.load_file(str(folder / "take-steps.yaml")))
        self._count = 0

    def queue(self, steps: int, *, wait: float = 0.0) -> str:
        """A thread of so many steps, in each of which its agent waits."""
        run = {"run": [["sleep", str(wait)]]} if wait else {}
        answers = [{"output": {"$status": "done"}, **run}] * (steps - 1) + [
            {"output": {"$status": "end"}, **run}
        ]
        script = self.folder / f"script-{steps}-{wait}.json"
        if not script.exists():  # steps of threads before this one may be reading it
            script.write_text(json.dumps({"roles": {"worker": answers}}), encoding="utf-8")
        ref = lifecycle.start(
            self.store,
            self._flow,
            "Take steps.",
            cwd=str(self.folder),
            mask=Mask([]),
            agent=f"scripted:{script}",
            queue=0,
        )
        return ref.id

    @contextmanager
    def machines(
        self, count: int, *, slots: int = _SLOTS, lease: float = 60.0, are_hosts: bool = False
    ) -> Iterator[list[int]]:
        """So many machines, by their processes; to each other on one host or, if they `are_hosts`, on several."""
        began = [self._begun(slots, lease, are_hosts) for _ in range(count)]
        try:
            for _, ready in began:
                with open(ready, "rb") as told:
                    assert told.read() == b"ready"
            yield [child.pid for child, _ in began]
        finally:
            for child, _ in began:
                child.terminate()
            for child, _ in began:
                child.wait()

    def _begun(self, slots: int, lease: float, is_host: bool) -> tuple[subprocess.Popen[bytes], int]:
        self._count += 1
        home = self.folder / f"machine-{self._count}"
        home.mkdir()
        read, write = os.pipe()
        words = [str(Path(sys.executable).parent / "rolecall"), "serve", "--database", self.url]
        words += ["--machine", home.name, "--slots", str(slots), "--lease", str(lease)]
        words += ["--at-once", "50", "--concurrency", "50", "--ready-fd", str(write)]
        if is_host:
            words = ["unshare", "--uts", "--", sys.executable, "-c", _AS_HOST, home.name, *words]
        environ = {**clean_environ(str(home)), "HOME": str(home)}
        with open(home / "serve.out", "wb") as output:
            child = subprocess.Popen(
                words, env=environ, cwd=home, stdout=output, stderr=output, pass_fds=[write]
            )
        os.close(write)
        return child, read

    def until_ended(self, names: Sequence[str]) -> None:
        """Wait until threads have ended, told by the database when one has."""
        import psycopg

        waiting = set(names)
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("LISTEN rolecall_news")
            while waiting := {name for name in waiting if not self._is_ended(name)}:
                for _ in db.notifies(timeout=0.5, stop_after=1):
                    pass

    def _is_ended(self, name: str) -> bool:
        state = thread.find(self.store, name).state
        assert state.status != "suspended", state.reason
        return state.has_ended

    def times(self, name: str, kind: str) -> list[int]:
        return [event.at for event in self.store.events(name) if event.kind == kind]


# -- how soon --


def latency(fleet: Fleet, *, steps: int, starts: int) -> None:
    with fleet.machines(1):
        first = []
        for _ in range(starts):
            name = fleet.queue(1)
            fleet.until_ended([name])
            first.append(fleet.times(name, "step_started")[0] - fleet.times(name, "queued")[0])
        name = fleet.queue(steps)
        fleet.until_ended([name])
    begun, taken = fleet.times(name, "step_started"), fleet.times(name, "step")
    between = [start - end for end, start in zip(taken, begun[1:], strict=False)]
    print_table(
        "One machine",
        [
            Row(
                "queued to its agent's call, median",
                f"{median(first):.0f} ms",
                target=f"< {_START_MS:g} ms",
                met=median(first) < _START_MS,
            ),
            Row("a step's end to the next call, median", f"{median(between):.0f} ms"),
            Row("  90% within", f"{sorted(between)[int(len(between) * 0.9)]:.0f} ms"),
        ],
    )


# -- at rest --


def at_rest(fleet: Fleet, *, seconds: int) -> None:
    """One machine of two, the one that leads or the other, whichever costs more."""
    with fleet.machines(2) as pids:
        fleet.until_ended([fleet.queue(1) for _ in pids])
        time.sleep(3)
        pairs = [(pid, *_children(pid)) for pid in pids]
        before, began = [sum(map(_processor, pair)) for pair in pairs], time.perf_counter()
        time.sleep(seconds)
        passed = time.perf_counter() - began
        shares = [
            100 * (sum(map(_processor, pair)) - then) / passed
            for pair, then in zip(pairs, before, strict=True)
        ]
        memory = max(([_resident(pid) for pid in pair] for pair in pairs), key=sum)
    share = max(shares)
    print_table(
        f"At rest for {seconds} s (machine and zygote)",
        [
            Row("processor, of a core", f"{share:.2f}%", target=f"< {_IDLE_CORE:g}%", met=share < _IDLE_CORE),
            Row("memory", f"{sum(memory):.0f} MB"),
            Row("  of the machine / of the zygote", " / ".join(f"{part:.0f}" for part in memory) + " MB"),
        ],
    )


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


# -- a machine that dies --


def takeover(fleet: Fleet, *, rounds: int) -> None:
    """From the death of a machine in mid-step to the next call of the agent. On the same host its process is seen to
    be gone; of another host only the lease is known."""
    rows = [Row("until another calls the agent, same host", _seconds(fleet, rounds, are_hosts=False))]
    if _can_be_hosts():
        rows.append(Row("  another host", _seconds(fleet, rounds, are_hosts=True)))
    print_table(f"A machine dies in mid-step (median of {rounds}, lease {_LEASE:g} s)", rows)


def _seconds(fleet: Fleet, rounds: int, *, are_hosts: bool) -> str:
    waits = [_taken_over(fleet, are_hosts=are_hosts) for _ in range(rounds)]
    return f"{median(waits) / 1000:.1f} s ({min(waits) / 1000:.1f} to {max(waits) / 1000:.1f})"


def _taken_over(fleet: Fleet, *, are_hosts: bool) -> int:
    with fleet.machines(2, slots=1, lease=_LEASE, are_hosts=are_hosts) as pids:
        name = fleet.queue(1, wait=3.0)
        while not (lease := thread.find(fleet.store, name).state.lease):
            time.sleep(0.05)
        machine = next(pid for pid in pids if _is_below(lease["pid"], pid))
        os.kill(machine, signal.SIGKILL)
        killed = fleet.store.now()
        fleet.until_ended([name])
    return fleet.times(name, "step_started")[-1] - killed


def _can_be_hosts() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode == 0


def _is_below(pid: int, above: int) -> bool:
    while pid > 1:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
        if pid == above:
            return True
    return False


# -- three against one --


def throughput(fleet: Fleet, *, threads: int, wait: float) -> None:
    """Threads of two steps in which the agent waits."""
    rates = {}
    for count in (1, 3):
        with fleet.machines(count):
            fleet.until_ended([fleet.queue(1) for _ in range(count)])
            began = time.perf_counter()
            fleet.until_ended([fleet.queue(2, wait=wait) for _ in range(threads)])
            rates[count] = threads * 2 / (time.perf_counter() - began)
    ratio = rates[3] / rates[1]
    print_table(
        f"{threads} threads of 2 steps, agents that wait {wait:g} s, {_SLOTS} slots on each machine",
        [
            Row(
                "steps per second: three machines, one",
                f"{rates[3]:.2f}",
                f"{rates[1]:.2f}",
                times(rates[3], rates[1]),
                target=f"≥ {_FASTER:g}",
                met=ratio >= _FASTER,
            ),
            Row(
                "  of what the slots allow",
                f"{rates[3] * wait / (3 * _SLOTS):.0%}",
                f"{rates[1] * wait / _SLOTS:.0%}",
            ),
        ],
    )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
