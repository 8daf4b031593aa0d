"""The pipe: one JSON message a line on standard input, the replies on standard output.

The calling thread reads and answers what needs no tool. Calls that may have to wait for other writers are carried
out one after the other by a second thread, those that only read by a third, those that take long each by one of
its own. So a cancellation is read while a call runs, and a call that was not begun by then never is.

The ends of the pipe are kept where nobody else finds them: descriptors 0 and 1 become the null device and
standard error. A stray print, of ours or of a child, cannot get between two messages.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Full, Queue
from select import POLLIN, poll
from threading import Lock, Thread
from time import monotonic
from typing import Any, TypeAlias

from rolecall.errors import UsageError
from rolecall.mcp import protocol
from rolecall.mcp.protocol import Call, Outcome, Refusal, Session, failure

LONGEST = 16 * 1024 * 1024
"""Bytes of a line that is still read; a longer one is refused and passed over."""
_CHUNK = 256 * 1024
_WAITING = 1_000
"""Calls that may wait to be carried out; then reading waits too."""
_GRACE = 1.0
"""Seconds that what is under way gets when the server is told to end, and what waits for others when input ends."""

Work: TypeAlias = "Callable[[Call], Outcome]"


def serve(session: Session, carry_out: Work) -> None:
    """Answer the client until it closes its end; what had arrived by then is answered first."""
    for number, wrong, name in ((0, os.O_WRONLY, "input"), (1, os.O_RDONLY, "output")):
        _check_end(number, wrong, name)
    source, sink = _private_pipe()
    with _ending_on_sigterm() as woken:
        server = _Server(session, carry_out, sink)
        try:
            for line in lines(source, woken):
                server.take(line)
        except _Ended:
            server.cancel_all()
            server.finish(within=_GRACE)
            raise
        server.finish()


class _Ended(BaseException):
    """SIGTERM has come. Not an `Exception`: nothing between may take it for a failure of its own."""


class _Server:
    def __init__(self, session: Session, carry_out: Work, sink: int) -> None:
        self._session = session
        self._carry_out = carry_out
        self._sink = sink
        self._writing = Lock()
        self._lines: dict[bool, Queue[_Job | None]] = {}
        """Calls that may have to wait for others, and those that only read, each in the order they came."""
        self._threads: list[Thread] = []

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
        if isinstance(message, list) and message and self._session.takes_batches:
            parts = [self._receive(each, is_in_batch=True) for each in message]
            return self._begin(_Job(parts, is_batch=True))
        return self._begin(_Job([self._receive(message)], is_batch=False))

    def _receive(self, message: Any, *, is_in_batch: bool = False) -> bytes | Call | None:
        try:
            return self._session.receive(message, is_in_batch=is_in_batch)
        except Exception as error:  # a front door: the request fails, the server does not
            import traceback

            traceback.print_exc()
            ident = protocol.ident_of(message)
            return failure(ident, protocol.INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    def _begin(self, job: _Job) -> None:
        """Have a job done: here when nothing is to be called, else where it does not hold up the reading."""
        if not job.calls:
            self._do(job)
        elif any(call.tool.is_long for call in job.calls):
            self._start(lambda: self._do(job))
        else:
            self._line(any(call.tool.may_wait for call in job.calls)).put(job)

    def _line(self, may_wait: bool) -> Queue[_Job | None]:
        if may_wait not in self._lines:
            line: Queue[_Job | None] = Queue(_WAITING)
            self._lines[may_wait] = line
            self._start(lambda: self._work(line))
        return self._lines[may_wait]

    def _start(self, work: Callable[[], None]) -> Thread:
        # A daemon, because the end of the program does not wait for what nobody reads any more.
        thread = Thread(target=work, daemon=True)
        thread.start()
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        return thread

    def _work(self, line: Queue[_Job | None]) -> None:
        while (job := line.get()) is not None:
            self._do(job)

    def _do(self, job: _Job) -> None:
        replies = [reply for part in job.parts if (reply := self._reply(part)) is not None]
        if replies:
            self._write(b"[%b]" % b", ".join(replies) if job.is_batch else replies[0])

    def _reply(self, part: bytes | Call | None) -> bytes | None:
        if not isinstance(part, Call):
            return part
        try:
            outcome = None if part.cancel.is_set else self._carry_out(part)
            return None if outcome is None or part.cancel.is_set else part.reply(outcome)
        finally:
            self._session.done(part)

    def _write(self, frame: bytes) -> None:
        data = memoryview(frame + b"\n")
        with self._writing:
            while data:
                try:
                    data = data[os.write(self._sink, data) :]
                except OSError:  # nobody reads; the end of what they write follows
                    return

    def cancel_all(self) -> None:
        for call in self._session.running:
            call.cancel.set()

    def finish(self, *, within: float | None = None) -> None:
        """Wait for what is under way. A call that takes long is stopped: who waited for it is gone. So is one that
        waits for others, after a while."""
        for call in self._session.running:
            call.cancel.patience_ends = monotonic() + _GRACE
            if call.tool.is_long:
                call.cancel.set()
        for line in self._lines.values():
            with suppress(Full):
                line.put(None, timeout=within)
        for thread in self._threads:
            thread.join(within)


class _Job:
    """What is answered together: one message, or a batch of them."""

    def __init__(self, parts: list[bytes | Call | None], *, is_batch: bool) -> None:
        self.parts = parts
        self.is_batch = is_batch
        self.calls = [part for part in parts if isinstance(part, Call)]


# -- the descriptors --


def lines(source: int, woken: int) -> Iterator[bytes | None]:
    """The lines that come from a descriptor; None for one that is too long, of which nothing is kept. `woken` can be
    read once a signal has come: a read that begins right behind it would not be interrupted."""
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


def _check_end(number: int, wrong: int, name: str) -> None:
    """A server that nobody can talk to would end at once, or wait, without a word."""
    from fcntl import F_GETFL, fcntl

    try:
        is_wrong = fcntl(number, F_GETFL) & os.O_ACCMODE == wrong
    except OSError:
        is_wrong = True
    if is_wrong:
        raise UsageError(
            f"standard {name} is closed or leads the other way",
            hint="A host has to start the server with a pipe to it and one from it; --http needs none.",
        )


def _private_pipe() -> tuple[int, int]:
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
    """SIGTERM ends the program in order, and then as a signal does, so that who sent it sees that. Gives what can be
    read once a signal has come."""

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
