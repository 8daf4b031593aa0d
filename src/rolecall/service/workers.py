"""Steps in their own processes, from the service's side: start a process, read its notes, end it, report how it ended.

Each step has a process to itself while it runs. A process whose step succeeded takes another step later; a process that
is ending, or whose step failed, does not. The caller decides what the end of a step means for the thread. Nothing
here depends on queues or policies, so a fleet uses the same code.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from rolecall.agents.process import RUN_VARIABLE, add_mark, end_leftovers, name_signal
from rolecall.service.policy import WorkerLimits
from rolecall.service.worker import StepOrder
from rolecall.settings import notify

_KEPT = 4_000
"""How many bytes are kept from the end of what a step's own process prints."""
_GRACE = 5.0
"""Seconds between asking a step to stop and killing it."""
_START_PATIENCE = 60.0
_IDLE_SECONDS = 5.0
"""Seconds that a worker waits for another step."""


class WorkerExit(NamedTuple):
    """How the process of a step ended."""

    report: Mapping[str, str] | None
    """The step's own report, empty after a success, or None if the process died before sending a report."""
    code: int | None = None
    """The exit status of the process, negative for a signal, or None if unknown."""
    output: str = ""
    """The end of the output of the process."""
    token: str = ""
    """The token of the lease that the step still held, or empty."""
    is_stopped: bool = False
    """Whether the process died after it was asked to stop."""

    @property
    def cause(self) -> str:
        """Why the process died, in words."""
        lines = self.output.strip().splitlines()
        last = f": {lines[-1][:200]}" if lines else ""
        if self.code is not None and self.code < 0:
            why = ", its cpu_minutes being used up" if -self.code == signal.SIGXCPU else ""
            return f"its worker was ended by {name_signal(-self.code)}{why}{last}"
        return (
            f"its worker ended with status {self.code}{last}" if self.code else f"its worker was lost{last}"
        )


class Worker:
    """A process that takes one step at a time."""

    def __init__(self, zygote: Zygote, limits: WorkerLimits) -> None:
        self.limits = limits
        self.pid = 0
        self.is_stopping = False
        """Whether the worker was asked to end. The signal might not have arrived yet."""
        self.notes = 0
        """How many notes of the current step have arrived."""
        self._zygote = zygote
        self._line = _Pipe(self._hear, *(end.detach() for end in socket.socketpair()))
        self._output = _Pipe(self._keep, *os.pipe())
        self._unread = self._tail = b""
        self._heard: Callable[[str, Any], None]
        self._report: Mapping[str, str] | None = None
        self._token = ""
        self._has_lease = False
        self._over: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """The exit status of the process, or 0 as soon as the process can take another step."""
        self.has_ended = False
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fork the process. Calls for one zygote must not overlap."""
        try:
            ends = self._line.theirs, self._output.theirs
            self.pid, exited = await self._zygote.fork(self.limits, *ends)
        except ConnectionError:
            self.close()
            raise
        self._line.close_theirs()
        self._output.close_theirs()
        exited.add_done_callback(self._end)

    async def step(self, order: StepOrder, heard: Callable[[str, Any], None]) -> WorkerExit:
        """Order a step and wait for its end."""
        self._heard, self.notes, self._report, self._tail, self._token = heard, 0, None, b"", ""
        self._over = asyncio.get_running_loop().create_future()
        if self.has_ended:
            self._over.set_result(None)
        self._line.write(json.dumps(asdict(order)).encode() + b"\n")
        code = await self._over
        return WorkerExit(self._report, code, self._tail.decode("utf-8", "replace"), self._token)

    @property
    def can_go_on(self) -> bool:
        """Whether the worker can take another step: its last one succeeded and released the thread."""
        return self._report == {} and not (self._has_lease or self.is_stopping or self.has_ended)

    def stop(self, *, grace: float = _GRACE) -> None:
        """Ask the worker to stop, and kill it if it does not stop within `grace` seconds."""

        async def end() -> None:
            self._zygote.signal(self.pid, signal.SIGTERM)
            await asyncio.sleep(grace)
            self.kill()

        self.is_stopping = True
        if self._ending is None:
            self._ending = asyncio.create_task(end())

    def kill(self) -> None:
        self.is_stopping = True
        self._zygote.signal(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection for orders, which ends the worker."""
        if self._ending is not None:
            self._ending.cancel()
        self._line.close()
        self._output.close()

    def _hear(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for kind, value in map(json.loads, lines):
            self.notes += 1
            if kind == "report":
                self._report = value
            elif kind == "notify":
                notify.tell([value])
            elif kind == "idle":
                self._over.set_result(0)
            else:
                if kind == "lease":
                    self._has_lease = bool(value)
                    self._token = value["token"] if value else ""
                self._heard(kind, value)

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_KEPT:]

    def _end(self, exited: asyncio.Future[int | None]) -> None:
        self.has_ended = True
        self.close()
        if not self._over.done():
            self._over.set_result(exited.result())


class Workers:
    """The processes of the steps that are running, keyed by thread."""

    def __init__(self, environ: Mapping[str, str], *, entry: str = "rolecall.service.worker") -> None:
        """`entry` is the module whose `run` function takes a step."""
        self._environ = environ
        self._entry = entry
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self._is_stopping = False
        self.running: dict[str, Worker] = {}
        self._idle: dict[Worker, asyncio.TimerHandle] = {}
        """Workers that are waiting for a step, the latest last."""

    async def open(self) -> None:
        await self._ready_zygote()

    async def close(self) -> None:
        if self._zygote is not None:
            await self._zygote.close()

    def stop(self) -> None:
        """Interrupt the steps that are running, and those that are about to begin."""
        self._is_stopping = True
        for worker in self.running.values():
            worker.stop()

    def kill(self) -> None:
        for worker in self.running.values():
            worker.kill()

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote and self._zygote.is_alive else None

    async def step(
        self, order: StepOrder, *, limits: WorkerLimits, heard: Callable[[str, Any], None]
    ) -> WorkerExit:
        """Take one step of a thread in its own process and wait for the step's end. When this method returns, no
        process that the step started is left. `heard` is called with the step's notes: `event` with a thread's id, and
        `lease` with a lease."""
        while True:
            worker = self._take_idle(limits)
            is_new = worker is None
            if worker is None:
                async with self._starting:
                    worker = Worker(await self._ready_zygote(), limits)
                    await worker.start()
            self.running[order.thread] = worker
            if self._is_stopping:
                worker.stop()
            try:
                ended = await worker.step(order, heard)
            finally:
                del self.running[order.thread]
                self._put_back(worker)
            if ended.report is not None:
                return ended
            if is_new or worker.notes or worker.is_stopping:
                break  # try again only if an idle worker died before reading the order
        # End only processes that this service started: another machine on this host might have the thread by now.
        await end_leftovers(add_mark(self._environ, order.thread)[RUN_VARIABLE])
        return ended._replace(is_stopped=worker.is_stopping or self._is_stopping)

    def _take_idle(self, limits: WorkerLimits) -> Worker | None:
        while self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
            if worker.can_go_on and worker.limits == limits:
                return worker
            worker.close()
        return None

    def _put_back(self, worker: Worker) -> None:
        """Keep a worker for a while, so that it can take another step."""

        def end() -> None:
            del self._idle[worker]
            worker.close()

        if worker.can_go_on:
            self._idle[worker] = asyncio.get_running_loop().call_later(_IDLE_SECONDS, end)
        else:
            worker.close()

    async def _ready_zygote(self) -> Zygote:
        if self._zygote is None or not self._zygote.is_alive:
            self._zygote = await Zygote.start(self._environ, self._entry)
        return self._zygote


class _Pipe:
    """Our end of a pipe or socket to a worker. It is read as data arrives, and once more when it is closed."""

    def __init__(self, take: Callable[[bytes], None], ours: int, theirs: int) -> None:
        self._take = take
        self._ours, self.theirs = ours, theirs
        os.set_blocking(ours, False)
        asyncio.get_running_loop().add_reader(ours, self._read)

    def write(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # the zygote reports the worker's end
            os.write(self._ours, line)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # the worker died before reading an order
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._ours)
            return False
        self._take(data)
        return True

    def close_theirs(self) -> None:
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def close(self) -> None:
        if self._ours >= 0:
            asyncio.get_running_loop().remove_reader(self._ours)
            while self._read():
                pass
            os.close(self._ours)
            self._ours = -1
        self.close_theirs()


class Zygote:
    """The process from which workers are forked."""

    def __init__(self, child: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._child = child
        self._control = control
        self._unread = b""
        self._answer: asyncio.Future[Mapping[str, int]] | None = None
        self._exits: dict[int, asyncio.Future[int | None]] = {}
        self.is_alive = True
        control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._read)

    @classmethod
    async def start(cls, environ: Mapping[str, str], entry: str) -> Zygote:
        ours, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                # With -P, a file in the project cannot shadow an imported module.
                [sys.executable, "-P", "-m", "rolecall.service.zygote", str(theirs.fileno()), entry],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=dict(environ),
                start_new_session=True,
            )
        zygote = cls(child, ours)
        async with asyncio.timeout(_START_PATIENCE):
            await zygote._next_answer()
        return zygote

    @property
    def pid(self) -> int:
        return self._child.pid

    async def fork(
        self, limits: WorkerLimits, line: int, output: int
    ) -> tuple[int, asyncio.Future[int | None]]:
        """Start a worker. Return its process id, and a future for its exit status, which is None if the zygote dies
        before reporting it. Calls must not overlap, because the next answer belongs to this call."""
        answer = self._next_answer()
        words = {"limits": asdict(limits)}
        try:
            socket.send_fds(self._control, [json.dumps(words).encode() + b"\n"], [line, output])
        except OSError:
            self._lose()
        pid = (await answer)["started"]
        exited = self._exits.setdefault(pid, asyncio.get_running_loop().create_future())
        exited.add_done_callback(lambda _: self._exits.pop(pid))
        return pid, exited

    def signal(self, pid: int, number: int) -> None:
        with suppress(OSError):  # if the zygote is gone, so are its workers
            self._control.sendall(json.dumps({"pid": pid, "signal": number}).encode() + b"\n")

    async def close(self) -> None:
        """End the zygote and any remaining workers."""
        if self.is_alive:
            self._control.shutdown(socket.SHUT_RDWR)
        self._lose()
        await asyncio.to_thread(self._child.wait)

    def _next_answer(self) -> asyncio.Future[Mapping[str, int]]:
        self._answer = asyncio.get_running_loop().create_future()
        if not self.is_alive:
            self._answer.set_exception(ConnectionError("the zygote is gone"))
        return self._answer

    def _read(self) -> None:
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for words in map(json.loads, lines):
            if "ended" in words:
                future = asyncio.get_running_loop().create_future()
                self._exits.setdefault(words["ended"], future).set_result(words["code"])
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(words)

    def _lose(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._child.poll()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the zygote is gone"))
        for future in self._exits.values():
            if not future.done():
                future.set_result(None)
