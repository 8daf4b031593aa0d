"""Steps in their own processes, from the service's side: start one, read its notes, end it, report how it ended.

The caller decides what that means for the thread. Nothing here knows queues or policies, so a fleet uses the same code.
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

from rolecall.agents.process import RUN_VARIABLE, add_mark, end_leftovers
from rolecall.service.policy import WorkerLimits
from rolecall.service.worker import StepOrder
from rolecall.settings import notify

_KEPT = 4_000
"""Bytes of the end of what a step's own process prints."""
GRACE = 5.0
"""Seconds between asking a step to stop and killing it."""
_START_PATIENCE = 60.0


class Ended(NamedTuple):
    """How the process of a step ended."""

    report: Mapping[str, str] | None
    """Its own report, empty if all went well; None if it died first."""
    code: int | None = None
    """Its exit status, negative for a signal; None if unknown."""
    output: str = ""
    """The end of its output."""

    @property
    def cause(self) -> str:
        """Why it died, in words."""
        lines = self.output.strip().splitlines()
        last = f": {lines[-1][:200]}" if lines else ""
        if self.code is not None and self.code < 0:
            why = ", its cpu_minutes being used up" if -self.code == signal.SIGXCPU else ""
            known = {one.value: one.name for one in signal.Signals}
            return f"its worker was ended by {known.get(-self.code, f'signal {-self.code}')}{why}{last}"
        return (
            f"its worker ended with status {self.code}{last}" if self.code else f"its worker was lost{last}"
        )


class Worker:
    """A running step."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self._ending: asyncio.Task[None] | None = None

    def stop(self, *, grace: float = GRACE) -> None:
        """Ask it to stop, and kill it if it does not."""

        async def end() -> None:
            self._zygote.signal(self.pid, signal.SIGTERM)
            await asyncio.sleep(grace)
            self.kill()

        if self._ending is None:
            self._ending = asyncio.create_task(end())

    def kill(self) -> None:
        self._zygote.signal(self.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()


class Workers:
    """The steps that run now, by thread."""

    def __init__(self, environ: Mapping[str, str], *, entry: str = "rolecall.service.worker") -> None:
        """`entry` is the module whose `run` takes a step."""
        self._environ = environ
        self._entry = entry
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self.running: dict[str, Worker] = {}

    async def open(self) -> None:
        await self._ready_zygote()

    async def close(self) -> None:
        if self._zygote is not None:
            await self._zygote.close()

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote and self._zygote.is_alive else None

    async def step(
        self, order: StepOrder, *, limits: WorkerLimits, heard: Callable[[str, Any], None]
    ) -> Ended:
        """Take one step of a thread in its own process and wait for its end. Whatever happens, nothing that it started
        is left when this returns. `heard` gets its notes: `event` with the id of a thread, and `lease`."""
        report: Mapping[str, str] | None = None
        unread, tail = b"", b""

        def hear(data: bytes) -> None:
            nonlocal report, unread
            *lines, unread = (unread + data).split(b"\n")
            for kind, value in map(json.loads, lines):
                if kind == "report":
                    report = value
                elif kind == "notify":
                    notify.tell([value])
                else:
                    heard(kind, value)

        def keep(data: bytes) -> None:
            nonlocal tail
            tail = (tail + data)[-_KEPT:]

        notes, output = _Pipe(hear), _Pipe(keep)
        try:
            async with self._starting:
                zygote = await self._ready_zygote()
                worker = Worker(zygote, await zygote.fork(order, limits, notes.theirs, output.theirs))
            self.running[order.thread] = worker
            notes.close_theirs()
            output.close_theirs()
            try:
                code = await zygote.exit_of(worker.pid)
            finally:
                worker.close()
                del self.running[order.thread]
        finally:
            notes.close()
            output.close()
        if report is None:
            # Only its own processes: another machine on this host may have the thread by now.
            await end_leftovers(add_mark(self._environ, order.thread)[RUN_VARIABLE])
        return Ended(report, code, tail.decode("utf-8", "replace"))

    async def _ready_zygote(self) -> Zygote:
        if self._zygote is None or not self._zygote.is_alive:
            self._zygote = await Zygote.start(self._environ, self._entry)
        return self._zygote


class _Pipe:
    """A pipe that a worker writes to, read as data arrives and once more after the worker has ended."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except BlockingIOError:
            return False
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
        asyncio.get_running_loop().remove_reader(self._ours)
        while self._read():
            pass
        os.close(self._ours)
        self.close_theirs()


class Zygote:
    """The process that workers are forked from."""

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
                # -P: a file of the project must not shadow a module that is imported.
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

    async def fork(self, order: StepOrder, limits: WorkerLimits, notes: int, output: int) -> int:
        """Start a worker and return its process id. Calls must not overlap: the next answer belongs to this order."""
        answer = self._next_answer()
        words = {"order": asdict(order), "limits": asdict(limits)}
        try:
            socket.send_fds(self._control, [json.dumps(words).encode() + b"\n"], [notes, output])
        except OSError:
            self._lose()
        pid = (await answer)["started"]
        self._exits.setdefault(pid, asyncio.get_running_loop().create_future())
        return pid

    def signal(self, pid: int, number: int) -> None:
        with suppress(OSError):  # when the zygote is gone, so are its workers
            self._control.sendall(json.dumps({"pid": pid, "signal": number}).encode() + b"\n")

    async def exit_of(self, pid: int) -> int | None:
        """The exit status of a worker; None if the zygote died before reporting it."""
        try:
            return await self._exits[pid]
        finally:
            self._exits.pop(pid, None)

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
