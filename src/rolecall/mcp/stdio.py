"""The stdio transport: one JSON message per line on standard input, and replies on standard output.

The calling thread reads messages and answers those that need no tool. A second thread carries out, one at a time, the
calls that might have to wait for other writers; a third does the same for calls that only read. A long call gets its
own thread. A cancellation is therefore read while a call runs, and a call that is cancelled before it starts never
runs.

Descriptor 0 is replaced by the null device and descriptor 1 by standard error, and the pipe gets other numbers. Nothing
that this process or a child prints can therefore get between two messages.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
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
"""The maximum length of a line in bytes. A longer line is refused and skipped."""
_CHUNK = 256 * 1024
_PIPE = 1024 * 1024
"""The requested capacity in bytes of the pipe to the client, so that a long reply need not wait for the client after
each piece."""
_WAITING = 1_000
"""The maximum number of calls that wait to be carried out. When it is reached, reading waits too."""
_GRACE = 1.0
"""Seconds to wait for running calls when the server must end, and for calls that wait for a lock when the input
ends."""
_AGENT_GRACE = 8.0
"""Seconds to wait for a long call when the server must end. Within this time, an agent that does not stop is killed."""


def serve(toolbox: McpToolbox, instructions: str) -> None:
    """Answer the client until it closes its end of the pipe. Everything received by then is answered first."""
    for number, wrong, name in ((0, os.O_WRONLY, "input"), (1, os.O_RDONLY, "output")):
        try:
            is_wrong = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == wrong
        except OSError:
            is_wrong = True
        if is_wrong:  # without this check, the server would end or hang without a message
            raise UsageError(
                f"standard {name} is closed, or open in the wrong direction",
                hint="A host has to start the server with a pipe to it and one from it; --http needs none.",
            )
    # Move this process's ends of the pipe to descriptors that no child inherits and to which nothing prints.
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # if the host closed descriptor 2, the pipe must not get that number
    source, sink = os.dup(0), os.dup(1)
    for end in (source, sink):
        os.set_blocking(end, True)  # some hosts leave the pipe non-blocking
    if sys.platform == "linux":
        with suppress(OSError):  # not a pipe, or the system does not allow this user a larger one
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
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
    """Raised when SIGTERM is received. This is not an `Exception`, so that no handler mistakes it for an ordinary
    failure."""


class _Job(NamedTuple):
    """Messages that are answered together: a single message, or a batch."""

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
        """The two queues of calls, in order of arrival. The key says whether the calls might have to wait for other
        writers."""
        self._threads: list[tuple[Thread, bool]] = []
        """The Python threads that carry out calls. The flag says whether the thread carries out a single long call."""

    def take(self, line: bytes | None) -> None:
        """Process a line from the client. None represents a line that was too long."""
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
            may_wait = any(call.may_wait for call in job.calls)
            jobs = self._lines.get(may_wait)
            if jobs is None:
                self._lines[may_wait] = jobs = Queue(_WAITING)
                self._start(partial(self._work, jobs), is_long=False)
            jobs.put(job)
        return None

    def _receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | PendingCall | None:
        try:
            return self.session.receive(message, is_in_batch=is_in_batch)
        except Exception as error:  # an error must fail the request, not the server
            return _fail(protocol.ident_of(message), error)

    def _work(self, jobs: Queue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            self._do(job)

    def _start(self, work: Callable[[], None], *, is_long: bool) -> None:
        # The thread is a daemon, so that the program does not wait at exit for results that nobody reads.
        thread = Thread(target=work, daemon=True)
        thread.start()
        self._threads = [*(each for each in self._threads if each[0].is_alive()), (thread, is_long)]

    def _do(self, job: _Job) -> None:
        replies: list[Iterable[bytes]] = []
        for part in job.parts:
            if isinstance(part, bytes):
                replies.append([part])
            elif part is not None:
                try:
                    frame = () if part.caller.is_set else part.run()
                    if not part.caller.is_set:  # a cancelled call gets no reply
                        replies.append(frame)
                except Exception as error:  # an error must fail the request, not the server
                    replies.append([_fail(part.ident, error)])
                finally:
                    self.session.running.pop(part.ident, None)
        if replies and job.is_batch:
            self._write([b"[%b]" % b", ".join(b"".join(reply) for reply in replies)])
        elif replies:
            self._write(replies[0])

    def _write(self, frame: Iterable[bytes]) -> None:
        """Write a frame as one line. The client can read the beginning of a long frame while the rest is being
        prepared."""
        held = b""
        with self._writing, suppress(OSError):  # the client no longer reads, and the input will end too
            for chunk in chain(frame, [b"\n"]):
                held += chunk
                if len(held) >= protocol.CHUNK_SIZE:
                    self._send(held)
                    held = b""
            self._send(held)

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._sink, rest) :]

    def finish(self, *, within: float | None = None) -> None:
        """Wait for running calls. Long calls are stopped, because the client is gone; a call that waits for a lock
        gives up after a while."""
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
    """Yield the lines from a descriptor, and None in place of each line that was too long and was discarded. `woken`
    becomes readable after a signal, because a signal that arrives just before a read would not interrupt the read."""
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


@contextmanager
def _ending_on_sigterm() -> Iterator[int]:
    """Handle SIGTERM during a `with` block: end the program cleanly, and then by the signal itself, so that the sender
    sees it. Yield a descriptor that becomes readable after a signal."""

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
