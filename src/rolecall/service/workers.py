"""Steps in processes of their own, seen from the supervisor: start one, answer it, end it, say how it ended.

What a step may ask for is `gate.py`'s; what becomes of its thread afterwards is the supervisor's. Nothing here knows
queues or policies, so a fleet takes its steps with the same.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

from rolecall.agents.process import RUN_VARIABLE, end_leftovers, marked
from rolecall.service.gate import Violation
from rolecall.service.pipestore import HEADER, LARGEST
from rolecall.service.policy import WorkerLimits

_KEPT = 4_000
MOST_OUTPUT = 64 * 1024 * 1024
"""Bytes that a step's own process may print. Its agents' output is bounded where it is read."""
GRACE = 5.0
"""Seconds between asking a step to stop and ending it."""
_START_PATIENCE = 60.0
_LINGER = 1.0


class Answerer(Protocol):
    """What answers the questions of a step's process: a `Gate`, at once or in a while."""

    @property
    def report(self) -> Mapping[str, Any] | None: ...

    def answer(self, question: bytes, /) -> bytes | Awaitable[bytes]: ...


class Ended(NamedTuple):
    """How the process of a step ended."""

    report: Mapping[str, Any] | None
    """What it said itself; None: it died before."""
    fault: str = ""
    """What it did that no step may, so that it was ended."""
    code: int | None = None
    """Its exit status, negative for a signal; None: nobody knows."""
    output: str = ""
    """The end of what it printed."""

    @property
    def cause(self) -> str:
        """Why it died, in words."""
        last = f": {self.output.strip().splitlines()[-1][:200]}" if self.output.strip() else ""
        if self.code is not None and self.code < 0:
            why = ", its cpu_minutes being used up" if -self.code == signal.SIGXCPU else ""
            return f"its worker was ended by {_signal_name(-self.code)}{why}{last}"
        return (
            f"its worker ended with status {self.code}{last}" if self.code else f"its worker was lost{last}"
        )


class Worker:
    """A running step."""

    def __init__(self, zygote: Zygote, pid: int, thread: str) -> None:
        self._zygote = zygote
        self.pid = pid
        self.thread = thread
        self._ending: asyncio.Task[None] | None = None

    def stop(self, *, grace: float = GRACE) -> None:
        """Ask it to stop; when it does not, end it."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._stop(grace))

    async def _stop(self, grace: float) -> None:
        self._zygote.signal(self.pid, signal.SIGTERM)
        await asyncio.sleep(grace)
        self._zygote.signal(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        self._zygote.signal(self.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()


class Workers:
    """The steps that run now, each by its thread."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
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
        self,
        thread: str,
        gate: Answerer,
        *,
        limits: WorkerLimits,
        timing: Mapping[str, int] | None = None,
    ) -> Ended:
        """Take one step of a thread in a process of its own, to its end. Whatever becomes of it, nothing that it
        has started is left when this returns. `timing` has how long its lease is good (`lease_ms`) and how far the
        clock that leases go by is before the one that nobody sets (`clock_ahead_ms`)."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        given = {name: amount for name, amount in asdict(limits).items() if amount is not None}
        # Short whatever the thread is like, so that it always travels in one piece.
        order = {"thread": thread, "limits": given, **(timing or {})}
        output = _Output(read)
        try:
            async with self._starting:
                zygote = await self._ready_zygote()
                worker = Worker(zygote, await zygote.fork(order, theirs, write), thread)
        except BaseException:
            ours.close()
            output.close()
            raise
        finally:
            theirs.close()
            os.close(write)
        self.running[thread] = worker
        output.flooded = worker.kill
        try:
            fault, code = await _attended(worker, _answered(ours, gate), zygote.exit_of(worker.pid))
        finally:
            worker.close()
            del self.running[thread]
            output.close()
        ended = Ended(gate.report, fault or output.fault, code, output.text())
        if ended.report is None or ended.fault:
            # Its own: another machine on this host may have the thread by now.
            await end_leftovers(marked(self._environ, thread)[RUN_VARIABLE])
        return ended

    async def _ready_zygote(self) -> Zygote:
        if self._zygote is None or not self._zygote.is_alive:
            self._zygote = await Zygote.started(self._environ)
        return self._zygote


async def _attended(
    worker: Worker, answering: Coroutine[Any, Any, str], exiting: Coroutine[Any, Any, int | None]
) -> tuple[str, int | None]:
    """Wait until a worker has ended; what was wrong with what it said, and its exit status."""
    answered, exited = asyncio.create_task(answering), asyncio.create_task(exiting)
    try:
        await asyncio.wait([answered, exited], return_when=asyncio.FIRST_COMPLETED)
        # What it has said before it ended may still be on the way; somebody else may have its end of the line.
        await asyncio.wait([answered], timeout=_LINGER)
        fault = answered.result() if answered.done() else ""
        if not fault:
            await asyncio.wait([exited], timeout=GRACE)
        if not exited.done():
            worker.kill()
        return fault, await exited
    finally:
        for task in (answered, exited):
            task.cancel()


async def _answered(pipe: socket.socket, gate: Answerer) -> str:
    """Answer a worker until it says no more; what was wrong with what it said."""
    reader, writer = await asyncio.open_connection(sock=pipe, limit=1 << 20)
    try:
        while True:
            (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
            if length > LARGEST:
                return f"its worker has sent {length:,} bytes at once"
            answer = gate.answer(await reader.readexactly(length))
            writer.write(await answer if inspect.isawaitable(answer) else answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""
    except Violation as violation:
        return str(violation)
    finally:
        writer.close()


class _Output:
    """What a worker prints itself: read as it comes, kept at its end."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._tail = b""
        self._count = 0
        self.flooded: Callable[[], None] = lambda: None
        self.fault = ""
        os.set_blocking(pipe, False)
        asyncio.get_running_loop().add_reader(pipe, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        self._keep(data)
        if not data or self.fault:
            asyncio.get_running_loop().remove_reader(self._pipe)

    def _keep(self, data: bytes) -> None:
        self._count += len(data)
        self._tail = (self._tail + data)[-_KEPT:]
        if self._count > MOST_OUTPUT and not self.fault:
            self.fault = f"its worker has printed more than {MOST_OUTPUT // 1024 // 1024} MB"
            self.flooded()

    def text(self) -> str:
        return self._tail.decode("utf-8", "replace")

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        with suppress(BlockingIOError):
            while not self.fault and (data := os.read(self._pipe, 65536)):
                self._keep(data)
        os.close(self._pipe)


class Zygote:
    """The process that workers are forked from."""

    def __init__(self, child: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._child = child
        self._control = control
        self._waiting = b""
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._exits: dict[int, asyncio.Future[int | None]] = {}
        self._gone = asyncio.Event()
        control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._read)

    @classmethod
    async def started(cls, environ: Mapping[str, str]) -> Zygote:
        ours, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                # -P: a file of the project must not stand in for one of the modules that are imported.
                [sys.executable, "-P", "-m", "rolecall.service.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=dict(environ),
                start_new_session=True,
            )
        zygote = cls(child, ours)
        async with asyncio.timeout(_START_PATIENCE):
            await zygote._answered()
        return zygote

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return not self._gone.is_set()

    async def fork(self, order: Mapping[str, Any], pipe: socket.socket, output: int) -> int:
        """A new worker's process id. One at a time: the answer to this order is the next one that comes."""
        answer = self._answered()
        try:
            socket.send_fds(self._control, [json.dumps(order).encode() + b"\n"], [pipe.fileno(), output])
        except OSError:
            self._lost()
        pid = int((await answer)["started"])
        self._exits.setdefault(pid, asyncio.get_running_loop().create_future())
        return pid

    def signal(self, pid: int, number: int) -> None:
        with suppress(OSError):  # a zygote that is gone has taken its workers with it
            self._control.send(json.dumps({"pid": pid, "signal": int(number)}).encode() + b"\n")

    async def exit_of(self, pid: int) -> int | None:
        """How a worker ended; None: the zygote died before it could tell."""
        try:
            return await self._exits[pid]
        finally:
            self._exits.pop(pid, None)

    async def close(self) -> None:
        """Let it end, and with it whatever worker is left."""
        if self.is_alive:
            self._control.shutdown(socket.SHUT_RDWR)
        self._lost()
        await asyncio.to_thread(self._child.wait)

    def _answered(self) -> asyncio.Future[dict[str, Any]]:
        self._answer = asyncio.get_running_loop().create_future()
        if self._gone.is_set():
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
            self._lost()
            return
        self._waiting += data
        *lines, self._waiting = self._waiting.split(b"\n")
        for line in lines:
            self._heard(json.loads(line))

    def _heard(self, words: dict[str, Any]) -> None:
        if "ended" not in words:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(words)
            return
        exit_ = self._exits.setdefault(words["ended"], asyncio.get_running_loop().create_future())
        if not exit_.done():
            exit_.set_result(words["code"])

    def _lost(self) -> None:
        if self._gone.is_set():
            return
        self._gone.set()
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._child.poll()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the zygote is gone"))
        for exit_ in self._exits.values():
            if not exit_.done():
                exit_.set_result(None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
