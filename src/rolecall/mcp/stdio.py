"""The pipe: one JSON message a line on standard input, the replies on standard output.

The calling thread reads and answers what needs no tool. A second thread carries out calls that may have to wait for
other writers, one after the other, a third those that only read; a long call gets a thread of its own. So a
cancellation is read while a call runs, and a call that had not begun by then never begins.

The ends of the pipe are kept where nobody else finds them: descriptors 0 and 1 become the null device and standard
error. A stray print, of ours or of a child, cannot get between two messages.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import F_GETFL, fcntl
from queue import Full, Queue
from select import POLLIN, poll
from threading import Lock, Thread
from time import monotonic
from typing import Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.mcp import protocol
from rolecall.mcp.protocol import Call, Refusal, Session, failure
from rolecall.mcp.tools import Toolbox

LONGEST = 16 * 1024 * 1024
"""Bytes of the longest line that is read; a longer one is refused and skipped."""
_CHUNK = 256 * 1024
_WAITING = 1_000
"""Calls that may wait to be carried out; then reading waits too."""
_GRACE = 1.0
"""Seconds for calls under way when the server has to end, and for those that wait for a lock when input ends."""
_AGENT_GRACE = 8.0
"""Seconds for a long call then: an agent that does not end is killed meanwhile."""


def serve(toolbox: Toolbox, instructions: str) -> None:
    """Answer the client until it closes its end; what had arrived by then is answered first."""
    for number, wrong, name in ((0, os.O_WRONLY, "input"), (1, os.O_RDONLY, "output")):
        try:
            is_wrong = fcntl(number, F_GETFL) & os.O_ACCMODE == wrong
        except OSError:
            is_wrong = True
        if is_wrong:  # a server that nobody can talk to would end at once, or wait, without a word
            raise UsageError(
                f"standard {name} is closed or leads the other way",
                hint="A host has to start the server with a pipe to it and one from it; --http needs none.",
            )
    source, sink = _take_pipe()
    with _ending_on_sigterm() as woken:
        server = _Server(toolbox, Session(toolbox, instructions), sink)
        try:
            for line in lines(source, woken):
                server.take(line)
        except _Ended:
            for call in list(server.session.running.values()):
                call.cancel.set()
            server.finish(within=_GRACE)
            raise
        server.finish()


class _Ended(BaseException):
    """SIGTERM has come. Not an `Exception`, so that nothing in between takes it for a failure of its own."""


class _Job(NamedTuple):
    """What is answered together: one message, or a batch of them."""

    parts: list[bytes | Call | None]
    is_batch: bool = False

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]


class _Server:
    def __init__(self, toolbox: Toolbox, session: Session, sink: int) -> None:
        self.session = session
        self._toolbox = toolbox
        self._sink = sink
        self._writing = Lock()
        self._lines: dict[bool, Queue[_Job | None]] = {}
        """Calls that may have to wait for others, and those that only read, each in the order they came."""
        self._threads: list[tuple[Thread, bool]] = []
        """Each with whether it carries out one long call."""

    def take(self, line: bytes | None) -> None:
        """One line of the client; None stands for one that was too long."""
        if line is None:
            limit = f"a message is at most {LONGEST} bytes long"
            return self._write(failure(None, protocol.INVALID_REQUEST, limit))
        if not line.strip():
            return None
        try:
            message = protocol.decode(line)
        except Refusal as refusal:
            return self._write(failure(None, refusal.code, refusal.message))
        if isinstance(message, list) and message and self.session.takes_batches:
            job = _Job([self._receive(each, is_in_batch=True) for each in message], is_batch=True)
        else:
            job = _Job([self._receive(message)])
        if not job.calls:
            self._do(job)
        elif any(call.tool.is_long for call in job.calls):
            self._start(lambda: self._do(job), is_long=True)
        else:
            self._queue(any(call.tool.may_wait for call in job.calls)).put(job)
        return None

    def _receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | Call | None:
        try:
            return self.session.receive(message, is_in_batch=is_in_batch)
        except Exception as error:  # a front door: the request fails, the server does not
            import traceback

            traceback.print_exc()
            ident = protocol.ident_of(message)
            return failure(ident, protocol.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

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
        # A daemon, because the end of the program does not wait for what nobody reads any more.
        thread = Thread(target=work, daemon=True)
        thread.start()
        self._threads = [*(each for each in self._threads if each[0].is_alive()), (thread, is_long)]

    def _do(self, job: _Job) -> None:
        replies = []
        for part in job.parts:
            reply = part if not isinstance(part, Call) else self._carry_out(part)
            replies += [reply] if reply is not None else []
        if replies:
            self._write(b"[%b]" % b", ".join(replies) if job.is_batch else replies[0])

    def _carry_out(self, call: Call) -> bytes | None:
        try:
            if call.cancel.is_set:
                return None
            outcome = self._toolbox.run(call.tool, call.arguments, call.cancel)
            return None if call.cancel.is_set else call.reply(outcome)
        finally:
            self.session.running.pop(call.ident, None)

    def _write(self, frame: bytes) -> None:
        data = memoryview(frame + b"\n")
        with self._writing:
            while data:
                try:
                    data = data[os.write(self._sink, data) :]
                except OSError:  # nobody reads; the end of what they write follows
                    return

    def finish(self, *, within: float | None = None) -> None:
        """Wait for calls under way. A long one is stopped, because its client is gone; one that waits for a lock gives
        up after a while."""
        for call in list(self.session.running.values()):
            call.cancel.patience_ends = monotonic() + _GRACE
            if call.tool.is_long:
                call.cancel.set()
        for jobs in self._lines.values():
            with suppress(Full):
                jobs.put(None, timeout=within)
        for thread, is_long in self._threads:
            thread.join(_AGENT_GRACE if is_long and within else within)


# -- the descriptors --


def lines(source: int, woken: int) -> Iterator[bytes | None]:
    """The lines that come from a descriptor; None for one that is too long, of which nothing is kept. `woken` can be
    read once a signal has come: a read that begins right after it would not be interrupted."""
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
    """Our ends of the pipe, from now on under numbers that no child inherits and no print knows."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a host may have closed one of the first three, and ours must not get its number
    source, sink = os.dup(0), os.dup(1)
    for end in (source, sink):
        os.set_blocking(end, True)  # some hosts leave them otherwise
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return source, sink


@contextmanager
def _ending_on_sigterm() -> Iterator[int]:
    """SIGTERM ends the program in order, and then as a signal does, so that its sender sees that. Gives a descriptor
    that can be read once a signal has come."""

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
