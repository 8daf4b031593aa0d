"""Service, zygote, workers and agents are killed at random while threads run: nothing is lost, doubled or left over.

What is killed, and after how many events, is drawn from a seed; the machine decides when that is. The judgement
depends on neither: every thread is completed, and its chain and its events prove that each step was taken once.
No worker or agent of one step is hit more than twice, and the service not more than eight times during one step,
because the third time and the tenth leave the thread to a person, which is tested elsewhere.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import gone
from servicestage import Bell, Service, done

from rolecall.threads import thread

IS_SOAK = "SOAK" in os.environ
KILLS = 60 if IS_SOAK else 20
"""At least so many, and for at least so long:"""
SECONDS = 60.0 if IS_SOAK else 0.0
STEPS = 4
CROWD = 12
"""Threads that are queued or running at any time, of which half may run."""
OVER = (*thread.ENDED, "suspended")
SEEDS = [7, 8] if IS_SOAK else [7]


class Chaos:
    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(f"chaos {seed}")
        self.service = Service(folder)
        self.service.is_own_child = True  # it is waited for when it is stopped
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.service.env["TMPDIR"] = str(self.temporary)
        self.log = self.service.work / "log"
        self.log.touch()
        work = [["sh", "-c", f"echo ${{ROLECALL_RUN%%/*}} >> {self.log}; sleep 0.0$(( $$ % 9 + 1 ))"]]
        self.agent = self.service.script(*[done(run=work)] * (STEPS - 1), done("end", run=work))
        self.flow = self.service.workflow()
        self.names: list[str] = []
        self.hits: Counter[str] = Counter()
        """Kills that may have hit a thread."""
        self.crashes: Counter[tuple[str, str]] = Counter()
        """Kills of the worker or the agent of one step, by thread and head."""
        self.losses: Counter[tuple[str, str]] = Counter()
        """Kills of all that a step depends on."""
        self.done: Counter[str] = Counter()
        self.seen = 0

    # -- killing --

    def run(self) -> None:
        self.start()
        until = time.monotonic() + SECONDS
        while self.done.total() < KILLS or not self.has_hit_all_kinds() or time.monotonic() < until:
            self.refill()
            self.wait(self.chance.randint(1, 25))
            self.strike()
        self.service.ended(*self.names)

    def has_hit_all_kinds(self) -> bool:
        return all(self.done[kind] for kind in ("worker", "agent", "service", "zygote", "all"))

    def start(self) -> None:
        self.service.start("--concurrency", str(CROWD // 2))
        self.bell = Bell(self.service)

    def refill(self) -> None:
        alive = [name for name in self.names if self.service.thread_status(name) not in OVER]
        self.names += [self.service.enter(self.flow, self.agent) for _ in range(CROWD - len(alive))]

    def wait(self, events: int) -> None:
        """Until so much has happened and a step was taken, or all there was to do is done."""
        while True:
            happened = self.service.store.events(after=self.seen)
            if len(happened) >= events and any(event.kind == "step" for event in happened):
                break
            if all(self.service.thread_status(name) in OVER for name in self.names):
                break
            assert self.bell.rings(), self.service.output()
        self.seen = happened[-1].seq if happened else self.seen

    def strike(self) -> None:
        """Kill something, unless that would be the third crash of a step. The service stands still meanwhile: every
        write goes through it, so what is hit is what was looked at."""
        kind = self.chance.choice(["worker", "worker", "agent", "agent", "service", "zygote", "all"])
        service = self.service.process
        assert service is not None
        os.kill(service.pid, signal.SIGSTOP)
        os.waitpid(service.pid, os.WUNTRACED)
        ends = False
        try:
            is_hit = self.hit(kind, service.pid)
            ends = is_hit and kind in ("service", "all")
        finally:
            # It must not go on before it is killed, because it could start threads that were not looked at.
            os.kill(service.pid, signal.SIGKILL if ends else signal.SIGCONT)
        self.done[kind] += is_hit
        if ends:
            self.bell.__exit__()
            self.service.kill()
            self.start()

    def hit(self, kind: str, service: int) -> bool:
        alive = [name for name in self.names if self.service.thread_status(name) not in OVER]
        self.chance.shuffle(alive)
        if kind in ("worker", "agent"):
            hits = [(name, pid) for name in alive if self.can_hit(name) for pid in self.processes(kind, name)]
            alive, pids = [name for name, _ in hits[:1]], [pid for _, pid in hits[:1]]
            self.crashes.update((name, self.head(name)) for name in alive)
        elif any(self.losses[name, self.head(name)] > 7 for name in alive):
            return False
        else:
            self.losses.update((name, self.head(name)) for name in alive)
            pids = children(service) if kind in ("zygote", "all") else []
            pids += [pid for name in alive for pid in self.processes("worker", name) if kind == "all"]
        if not alive or (kind != "service" and not pids):
            return False
        self.hits.update(alive)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for (
            pid
        ) in pids:  # until then a killed zygote's workers could take steps of threads that were not looked at
            gone(pid)
        return True

    def can_hit(self, name: str) -> bool:
        return self.crashes[name, self.head(name)] < 2

    def head(self, name: str) -> str:
        return thread.find(self.service.store, name).head

    def processes(self, kind: str, name: str) -> list[int]:
        if kind == "worker":
            lease = self.service.state(name).get("lease") or {}
            return [lease["pid"]] if "pid" in lease else []
        note = self.service.store.ref(thread.attempt_name(name))
        started = [event.body["pid"] for event in self.service.events(name) if event.kind == "process"]
        return started[-1:] if note is not None and "agent" in note.state else []

    # -- judging --

    def judge(self) -> None:
        service = self.service
        ends = {
            name: (service.state(name)["status"], service.state(name).get("reason")) for name in self.names
        }
        assert {name: end for name, end in ends.items() if end != ("completed", None)} == {}
        worked = Counter(self.log.read_text().split())
        for name in self.names:
            steps = service.steps(name)
            assert [step.number for step in steps] == list(range(1, STEPS + 1)), name
            assert [step.payload["prev"] for step in steps] == [None, *(step.id for step in steps)][:STEPS]
            bodies = [event.body["step"] for event in service.events(name) if event.kind == "step"]
            assert bodies == [step.id for step in steps], name
            life = [kind for kind in service.kinds(name) if kind != "crashed"]
            assert life == ["queued", "started", *["step"] * STEPS, "completed"], name
            hits = self.hits[name]
            assert STEPS <= worked[name] <= STEPS + hits, (name, worked[name], hits)
            assert service.kinds(name).count("crashed") <= hits, name
            assert service.store.ref(thread.attempt_name(name)) is None
        assert set(worked) == set(self.names)
        service.assert_clean()
        assert list(self.temporary.iterdir()) == []
        assert sorted(path.name for path in service.work.iterdir()) == ["log"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(params=SEEDS)
def chaos(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chaos]:
    chaos = Chaos(tmp_path, request.param)
    yield chaos
    chaos.service.close()


def test_random_kills_of_everything_lose_and_double_nothing_and_leave_nothing_behind(chaos: Chaos) -> None:
    chaos.run()
    chaos.bell.__exit__()
    chaos.service.stop()
    chaos.judge()
    assert chaos.done.total() >= KILLS
    assert chaos.has_hit_all_kinds(), chaos.done
