"""What the tests of the service share: a real service in a home of its own, threads for it, and ways to wait for both
without a clock: a bell that rings with every event, and the ends of processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import commands
from processes import gone as gone

from rolecall.service import control
from rolecall.settings.mask import Mask
from rolecall.store.backend import StoredEvent
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.store.verify import verify
from rolecall.threads import lifecycle, thread
from rolecall.workflow import registry, yaml
from rolecall.workflow.playbook import Playbook

PROGRAM = str(Path(sys.executable).parent / "rolecall")
PATIENCE = 180.0
"""Seconds after which a test gives up: far more than anything takes, on a busy machine too."""

STEPS = """
name: {name}
description: One role, step after step
roles:
  worker:
    description: Works
    goal: Work.
    frontmatter: {{type: object, properties: {{$status: {{enum: [done, end, fail]}}}}, required: [$status]}}
graph:
  $START: worker
  worker: {{done: worker, end: $END, fail: {{role: $FAIL, prompt: It failed.}}}}
limits: {{steps: 100}}
"""


class Service:
    """A home, the service in it, and the store both share."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.work = folder / "work"
        self.folder = folder
        self.home.mkdir(exist_ok=True)
        self.work.mkdir(exist_ok=True)
        self.mark = f"mark-{uuid4().hex}"
        assert len(self.mark) == commands.MARK_LENGTH
        self.env = {
            **os.environ,
            "ROLECALL_HOME": str(self.home),
            "MACHINE_HOME": str(self.home),  # for agents, who are not led to the home
            "HOME": str(folder),
            commands.MARK: self.mark,
        }
        self.program = [PROGRAM]
        """What the service is started with."""
        self.is_own_child = False
        """Whether the service has to be a child of the test's process, which is started from nothing."""
        self.process: subprocess.Popen[bytes] | commands.Child | None = None
        self._store: Store | None = None

    # -- the service --

    def start(self, *options: str) -> None:
        read, write = os.pipe()
        self._begin([*self.program, "serve", *options], write)
        with open(read, "rb") as ready:
            assert ready.read() == b"ready", self.output()

    def _begin(self, words: Sequence[str], ready: int, wrapped: Sequence[str] = (), **place: Any) -> None:
        """Start a service, in a place, or `wrapped` in commands that lead there, and close its end of a pipe."""
        with open(self.folder / "serve.out", "ab") as output, open(os.devnull, "rb") as nothing:
            if words[0] == PROGRAM and not self.is_own_child and commands.can_fork(self.env):
                streams = [nothing.fileno(), output.fileno(), output.fileno(), ready]
                words = [*words, "--ready-fd", "3"]
                self.process = commands.Child(
                    words, streams, env=self.env, cwd=self.folder, is_leader=True, **place
                )
            else:
                self.process = subprocess.Popen(
                    [*wrapped, *words, "--ready-fd", str(ready)],
                    pass_fds=[ready],
                    stdin=nothing,
                    stdout=output,
                    stderr=output,
                    env=self.env,
                    cwd=self.folder,
                    start_new_session=True,
                )
        os.close(ready)

    def kill(self) -> None:
        """End the service at once; its zygote and workers are left to find out."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process = None

    def stop(self, *options: str) -> None:
        if self.process is None:
            return
        done = self.rolecall("serve", "stop", *options)
        assert done.returncode == 0, done.stderr
        assert self.process.wait(PATIENCE) == 0, self.output()
        self.process = None

    def status(self) -> dict[str, Any]:
        return dict(control.ask(str(self.home), {"do": "status"}))

    def output(self) -> str:
        return (self.folder / "serve.out").read_text()

    def log(self) -> str:
        return (self.home / "service.log").read_text()

    def rolecall(self, *args: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return commands.run([PROGRAM, *args], input=input, env=self.env, cwd=self.folder)

    def spawn(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.folder,
        )

    # -- threads --

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = Store(SqliteBackend(str(self.home / "store.db")))
        return self._store

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self.end_all()
        if self._store is not None:
            self._store.close()

    def workflow(self, name: str = "do-steps", text: str = STEPS) -> str:
        return registry.register(self.store, book(name, text))

    def python_workflow(self, name: str, code: str) -> str:
        """The id of a workflow written in Python, from its file."""
        folder = self.folder / "flows"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(code)
        return registry.register(self.store, registry.load_file(str(folder / f"{name}.py")))

    def script(self, *entries: Mapping[str, Any], name: str = "script", **roles: Mapping[str, Any]) -> str:
        """An agent that plays `worker` by these entries, one after the other, and each of the `roles` by one."""
        path = self.folder / f"{name}.json"
        parts = {"worker": list(entries), **{role: [entry] for role, entry in roles.items()}}
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"roles": parts, "after_last": "repeat"}))
        draft.rename(path)  # steps of threads that were entered before may be reading it
        return f"scripted:{path}"

    def enter(self, workflow: str, agent: str | None, priority: int = 0, **more: Any) -> str:
        """Queue a thread, and say so."""
        ref = lifecycle.start(
            self.store,
            workflow,
            more.pop("prompt", "Do it"),
            cwd=str(more.pop("cwd", self.work)),
            mask=Mask([]),
            agent=agent,
            queue=priority,
            **more,
        )
        control.poke(str(self.home), ref.id)
        return ref.id

    def state(self, name: str) -> Mapping[str, Any]:
        return thread.find(self.store, name).ref.state

    def thread_status(self, name: str) -> str:
        return str(self.state(name)["status"])

    def events(self, name: str) -> list[StoredEvent]:
        return self.store.events(name)

    def kinds(self, name: str) -> list[str]:
        """The events of a thread's life, without what its agents say."""
        life = (
            "queued",
            "started",
            "step",
            "completed",
            "failed",
            "crashed",
            "killed",
            "suspended",
            "discarded",
        )
        return [event.kind for event in self.events(name) if event.kind in life or event.kind == "resumed"]

    def steps(self, name: str) -> list[thread.Step]:
        """Oldest first."""
        return list(thread.Chain(self.store, thread.find(self.store, name).head))[::-1]

    # -- waiting --

    def until(self, is_so: Callable[[], Any]) -> Any:
        """What `is_so` gives once it gives something, asked whenever the service tells of an event."""
        deadline = time.monotonic() + PATIENCE
        with Bell(self) as bell:
            while not (found := is_so()):
                assert bell.rings(deadline - time.monotonic()), f"the service is gone: {self.output()}"
                assert time.monotonic() < deadline, self.log()
        return found

    def ended(self, *names: str) -> list[str]:
        """The statuses of threads once all have ended or wait for a person."""
        over = (*thread.ENDED, "suspended")

        def statuses() -> list[str] | None:
            found = [self.thread_status(name) for name in names]
            return found if all(status in over for status in found) else None

        return list(self.until(statuses))

    def event(self, name: str, kind: str, count: int = 1) -> Mapping[str, Any]:
        """The body of a thread's event of a kind, once there is one; the `count`-th."""

        def found() -> list[StoredEvent] | None:
            events = [event for event in self.events(name) if event.kind == kind]
            return events if len(events) >= count else None

        body: Mapping[str, Any] = self.until(found)[count - 1].body
        return body

    # -- processes --

    def processes(self) -> list[int]:
        """Every living process that the service or its agents have started."""
        return [pid for pid in _pids() if self.mark.encode() in _environ(pid) and is_living(pid)]

    def end_all(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def assert_clean(self) -> None:
        """Nothing is left of a service that has stopped: no process, no slot, no lease, no file, no damage."""
        for pid in self.processes():
            gone(pid)
        assert self.processes() == []
        assert self.store.backend.names("slot/") == []
        assert self.store.backend.names("queue/") == []
        leases = [ref.name for ref in self.store.refs("thread/") if "lease" in ref.state]
        assert leases == []
        known = {
            "store.db",
            "store.db-wal",
            "store.db-shm",
            "service.lock",
            "service.log",
            "work",
            "cache",
            "trees",
        }
        assert {path.name for path in self.home.iterdir()} <= known
        assert [problem for done in verify(self.store) for problem in done.problems] == []


class Bell:
    """Rings whenever any thread has a new event."""

    def __init__(self, service: Service) -> None:
        pipe = control.connect(str(service.home))
        assert pipe is not None, service.output()
        self._pipe: socket.socket = pipe
        pipe.sendall(control.to_line({"do": "follow", "thread": ""}))

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()

    def rings(self, timeout: float = PATIENCE) -> bool:
        """Wait for it; False when the service is gone."""
        self._pipe.settimeout(max(0.01, timeout))
        try:
            return self._pipe.recv(65536) != b""
        except TimeoutError:
            return True
        except OSError:
            return False


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Service]:
    service = Service(folder)
    try:
        service.start(*options)
        yield service
    finally:
        service.close()


def book(name: str, text: str = STEPS) -> Playbook:
    read = yaml.parse(text.format(name=name), source="test.yaml")
    assert read.workflow is not None, read.problems
    return Playbook(read.workflow)


def done(status: str = "done", **more: Any) -> dict[str, Any]:
    return {"output": {"$status": status}, "body": "The report.", **more}


def within_a_day() -> None:
    """Wait for midnight, by UTC, when it is near: what a day has cost is forgotten then."""
    left = 86_400 - time.time() % 86_400
    if left < PATIENCE:
        time.sleep(left)


def is_living(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environ(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return b""
