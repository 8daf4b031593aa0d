"""The stdio transport: one JSON message per line on standard input, replies on standard output.

The calling thread reads messages and answers those that need no tool. A second thread carries out calls that may have
to wait for other writers, one at a time, and a third those that only read; a long call gets its own thread. So a
cancellation is read while a call runs, and a cancelled call that has not started never starts.

Descriptors 0 and 1 are replaced by the null device and standard error, and the pipe gets other numbers, so that no
stray print, ours or a child's, can get between two messages.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from queue import Full, Queue
from select import POLLIN, poll
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.mcp import protocol
from rolecall.mcp.protocol import PendingCall, Refusal, Session, failure
from rolecall.mcp.tools import McpToolbox
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import traceback
else:
    traceback = Module("traceback")

LONGEST = 16 * 1024 * 1024
"""The longest line in bytes; a longer one is refused and skipped."""
_CHUNK = 256 * 1024
_PIPE = 1024 * 1024
"""How many bytes the pipe to the client is to hold, so that a long reply need not wait for the client at each piece."""
_WAITING = 1_000
"""The most calls waiting to be carried out; beyond that, reading waits too."""
_GRACE = 1.0
"""Seconds for running calls when the server must end, and for calls waiting for a lock when the input ends."""
_AGENT_GRACE = 8.0
"""Seconds for a long call in that case; an agent that does not end is killed in this time."""


def serve(toolbox: McpToolbox, instructions: str) -> None:
    """Answer the client until it closes its end; everything received by then is answered first."""
    for number, wrong, name in ((0, os.O_WRONLY, "input"), (1, os.O_RDONLY, "output")):
        try:
            is_wrong = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == wrong
        except OSError:
            is_wrong = True
        if is_wrong:  # otherwise it would end or hang without a message
            raise UsageError(
                f"standard {name} is closed, or open in the wrong direction",
                hint="A host has to start the server with a pipe to it and one from it; --http needs none.",
            )
    source, sink = _take_pipe()
    with _ending_on_sigterm() as woken:
        server = _Server(toolbox, instructions, sink)
        try:
            for line in lines(source, woken):
                server.take(line)
        except _Ended:
            for call in list(server.session.running.values()):
                call.caller.set()
            server.finish(within=_GRACE)
            raise
        server.finish()


class _Ended(BaseException):
    """SIGTERM was received. Not an `Exception`, so that no handler takes it for an ordinary failure."""


class _Job(NamedTuple):
    """Messages that are answered together: one, or a batch."""

    parts: list[bytes | PendingCall | None]
    is_batch: bool = False

    @property
    def calls(self) -> list[PendingCall]:
        return [part for part in self.parts if isinstance(part, PendingCall)]


class _Server:
    def __init__(self, toolbox: McpToolbox, instructions: str, sink: int) -> None:
        self.session = Session(toolbox, instructions, send=lambda frame: self._write([frame]))
        self._sink = sink
        self._writing = Lock()
        self._lines: dict[bool, Queue[_Job | None]] = {}
        """Queues of calls that may have to wait for others, and of calls that only read, each in order of arrival."""
        self._threads: list[tuple[Thread, bool]] = []
        """Each thread, and whether it carries out one long call."""

    def take(self, line: bytes | None) -> None:
        """Process a line from the client; None stands for a line that was too long."""
        if line is None:
            limit = f"a message is at most {LONGEST} bytes long"
            return self._write([failure(None, protocol.INVALID_REQUEST, limit)])
        if not line.strip():
            return None
        try:
            message = protocol.decode(line)
        except Refusal as refusal:
            return self._write([failure(None, refusal.code, refusal.message)])
        if isinstance(message, list) and message and self.session.takes_batches:
            job = _Job([self._receive(each, is_in_batch=True) for each in message], is_batch=True)
        else:
            job = _Job([self._receive(message)])
        if not job.calls:
            self._do(job)
        elif any(call.is_long for call in job.calls):
            self._start(lambda: self._do(job), is_long=True)
        else:
            self._queue(any(call.may_wait for call in job.calls)).put(job)
        return None

    def _receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | PendingCall | None:
        try:
            return self.session.receive(message, is_in_batch=is_in_batch)
        except Exception as error:  # an error must fail the request, not the server
            return _fail(protocol.ident_of(message), error)

    def _queue(self, may_wait: bool) -> Queue[_Job | None]:
        if may_wait not in self._lines:
            jobs: Queue[_Job | None] = Queue(_WAITING)
            self._lines[may_wait] = jobs

            def work() -> None:
                while (job := jobs.get()) is not None:
                    self._do(job)

            self._start(work, is_long=False)
        return self._lines[may_wait]

    def _start(self, work: Callable[[], None], *, is_long: bool) -> None:
        # A daemon thread, because the program does not wait at exit for results that nobody reads.
        thread = Thread(target=work, daemon=True)
        thread.start()
        self._threads = [*(each for each in self._threads if each[0].is_alive()), (thread, is_long)]

    def _do(self, job: _Job) -> None:
        replies = [reply for part in job.parts if (reply := self._answer(part)) is not None]
        if replies and job.is_batch:
            self._write([b"[%b]" % b", ".join(b"".join(reply) for reply in replies)])
        elif replies:
            self._write(replies[0])

    def _answer(self, part: bytes | PendingCall | None) -> Iterable[bytes] | None:
        """Return the frame of a reply in pieces, or None for a notification or a cancelled call."""
        if not isinstance(part, PendingCall):
            return None if part is None else [part]
        try:
            if part.caller.is_set:
                return None
            frame = part.run()
            return None if part.caller.is_set else frame
        except Exception as error:  # an error must fail the request, not the server
            return [_fail(part.ident, error)]
        finally:
            self.session.running.pop(part.ident, None)

    def _write(self, frame: Iterable[bytes]) -> None:
        """Write a frame as one line; the client can read the beginning of a long one while the rest is prepared."""
        held = b""
        with self._writing, suppress(OSError):  # nobody reads any more; the input will end too
            for piece in chain(frame, [b"\n"]):
                held += piece
                if len(held) >= protocol.PIECE:
                    self._send(held)
                    held = b""
            self._send(held)

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._sink, rest) :]

    def finish(self, *, within: float | None = None) -> None:
        """Wait for running calls. Long ones are stopped, because the client is gone; one that waits for a lock gives up
        after a while."""
        for call in list(self.session.running.values()):
            call.caller.patience_ends = monotonic() + _GRACE
            if call.is_long:
                call.caller.set()
        for jobs in self._lines.values():
            with suppress(Full):
                jobs.put(None, timeout=within)
        for thread, is_long in self._threads:
            thread.join(_AGENT_GRACE if is_long and within else within)


def _fail(ident: protocol.Ident, error: Exception) -> bytes:
    traceback.print_exc()
    return failure(ident, protocol.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


# -- the descriptors --


def lines(source: int, woken: int) -> Iterator[bytes | None]:
    """Yield the lines from a descriptor, or None for one that is too long and was discarded. `woken` becomes readable
    after a signal, because a read that starts right after the signal would not be interrupted."""
    held: list[bytes] = []
    size = 0
    either = poll()
    either.register(source, POLLIN)
    either.register(woken, POLLIN)
    while either.poll() and (chunk := os.read(source, _CHUNK)):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            held.append(end)
            yield b"".join(held) if size + len(end) <= LONGEST else None
            held, size = [], 0
        size += len(rest)
        held = [*held, rest] if size <= LONGEST else []
    if size:
        yield b"".join(held) if size <= LONGEST else None


def _take_pipe() -> tuple[int, int]:
    """Move our ends of the pipe to descriptors that no child inherits and no print uses."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a host may have closed one of the first three, whose number ours must not get
    source, sink = os.dup(0), os.dup(1)
    for end in (source, sink):
        os.set_blocking(end, True)  # some hosts leave them non-blocking
    if sys.platform == "linux":
        with suppress(OSError):  # not a pipe, or the system does not allow this user a larger one
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return source, sink


@contextmanager
def _ending_on_sigterm() -> Iterator[int]:
    """On SIGTERM, end the program cleanly and then by the signal itself, so that the sender sees it. Yield a
    descriptor that becomes readable after a signal."""

    def end(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise _Ended

    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    try:
        signal.signal(signal.SIGTERM, end)
        yield woken
    except _Ended:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
