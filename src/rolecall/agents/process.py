"""Run a child process within limits, and leave none of its processes behind.

The child gets its prompt on stdin and runs in its own session. Its output is passed on as it arrives and kept up to a
size limit; `conversation` exchanges lines with it instead. When it exits, runs out of time or is cancelled, everything
it started is ended too: its process group and session, and on Linux every process that carries the run's mark in its
environment, which also finds daemons that called setsid. Not covered: a process that left the session *and* cleared its
environment, another user's process, and outside Linux any process that left the group. Adapters interpret the output.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

from rolecall.agents.presence import find_program
from rolecall.agents.protocol import Cancel, Ending
from rolecall.errors import AgentError

RUN_VARIABLE = "ROLECALL_RUN"
"""Holds the run ids of a child and of the runs it is nested in, separated by slashes."""

DEFAULT_MAX_OUTPUT = 8 * 1024 * 1024
DEFAULT_GRACE = 2.0

_MAX_STDERR = 64 * 1024
_QUOTED_STDERR = 2000
_PIPE_SIZE = 64 * 1024
_KILL_PATIENCE = 5.0
# A child may leave its last output to a helper (`tee`) that ends shortly after it.
_LINGER = 0.5
_LONGEST_PAUSE = 0.1
_HAS_PROC = Path("/proc/self/stat").exists()


class Started(NamedTuple):
    pid: int
    run: str


@dataclass(frozen=True)
class Exit:
    """How a child ended and what it printed."""

    ending: Ending
    reason: str
    code: int | None
    """The exit status; negative for a signal; None if the child was never started."""
    stdout: str
    stderr: str
    """The end of the error output."""
    dropped: int = 0
    """Bytes of stdout that were not kept; the text shows where."""
    left: tuple[int, ...] = ()
    """Processes that could not be ended."""

    def error(self) -> AgentError:
        return AgentError(
            self.reason, ending=self.ending, text=self.stdout, hint=ENDING_HINTS.get(self.ending, "")
        )


ENDING_HINTS = {
    "timeout": "Give the agent a longer timeout, or less to do.",
    "killed": "The program crashed, or ran out of memory; run it by hand in the work folder to see.",
}


async def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    prompt: str = "",
    timeout: float | None = None,
    cancel: Cancel | None = None,
    on_start: Callable[[Started], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    max_output: int = DEFAULT_MAX_OUTPUT,
    grace: float = DEFAULT_GRACE,
) -> Exit:
    """Run `argv` until it exits, `timeout` seconds have passed or `cancel` is set.

    Raises AgentError if the child cannot be started; every other ending is an Exit. An exception in a callback ends the
    child and is raised; cancelling the task also ends the child.
    """
    if cancel is not None and cancel.is_set():
        return Exit("interrupted", f"{argv[0]!r} was cancelled before it started", None, "", "")
    child = _start(argv, cwd=cwd, env=env, stdout=_Output(max_output, on_text))
    try:
        # Before reading any output, so that the start is reported before the text.
        if on_start is not None:
            on_start(Started(child.popen.pid, child.run))
        await child.listen()
        child.send(prompt)
        ending = await child.wait(timeout, cancel)
    finally:
        left = await child.end(grace)
    if child.stdout.failure is not None:
        raise child.stdout.failure
    return child.exit(ending, timeout=timeout, left=left)


@asynccontextmanager
async def conversation(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    max_line: int,
    grace: float = DEFAULT_GRACE,
) -> AsyncIterator[Conversation]:
    """Start `argv` and keep it running; leaving the block ends everything it started.

    Because this is an async generator, an event loop that shuts down ends a child that was not closed.
    """
    lines = _Lines(argv[0], max_line)
    talk = Conversation(_start(argv, cwd=cwd, env=env, stdout=lines), lines)
    try:
        await talk.child.listen()
        yield talk
    finally:
        lines.discard()
        talk.left = await talk.child.end(grace)


async def end_leftovers(run: str, *, grace: float = DEFAULT_GRACE) -> tuple[int, ...]:
    """End the remaining processes of a run whose own process died; return those that could not be ended."""
    return await _end_members(run, None, grace=grace)


def survivors(run: str, leader: int | None = None) -> list[int]:
    """Return the living processes of a run; `leader` adds those of its group and session. `run` may include the runs it
    is nested in, as in the mark."""
    if not _HAS_PROC:
        if leader is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, 0)
                return [leader]
        return []
    others = (name for name in os.listdir("/proc") if name.isdigit())
    return [int(pid) for pid in others if _belongs(pid, run, leader) and int(pid) != os.getpid()]


def marked(env: Mapping[str, str], run: str) -> dict[str, str]:
    """Return an environment that marks processes as part of `run` and of the runs it is nested in."""
    return {**env, RUN_VARIABLE: f"{env[RUN_VARIABLE]}/{run}" if RUN_VARIABLE in env else run}


def _start(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: _Output) -> _Child:
    _check_startable(argv[0], cwd=cwd, env=env)
    run_id = os.urandom(8).hex()
    try:
        popen = subprocess.Popen(  # noqa: S603 -- running the user's agent is the purpose; no shell is involved
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env={**marked(env, run_id), "PWD": str(cwd)},  # some programs trust PWD more than the kernel
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        hint = "Run it by hand in that folder; a script needs a first line such as #!/bin/sh."
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            hint = "Allow more open files: `ulimit -n 1024`, for example."
        raise AgentError(
            f"{argv[0]!r} cannot be started in {str(cwd)!r}: {error}", ending="failed", hint=hint
        ) from error
    return _Child(popen, run_id, stdout=stdout)


def _check_startable(program: str, *, cwd: Path, env: Mapping[str, str]) -> None:
    if not cwd.is_dir():
        raise AgentError(
            f"the work folder {str(cwd)!r} does not exist",
            ending="failed",
            hint="Create it, or name another work folder.",
        )
    path, is_runnable = find_program(program, env=env, folder=cwd)
    if path is None:
        looked = str(cwd) if "/" in program else env.get("PATH", os.defpath)
        raise AgentError(
            f"the program {program!r} was not found",
            ending="failed",
            hint=f"Install it or correct the name; looked in {looked}.",
        )
    if not is_runnable:
        raise AgentError(
            f"the program {program!r} is not executable", ending="failed", hint=f"chmod +x {program}"
        )


class _Output(asyncio.Protocol):
    """An output pipe that passes text on as it arrives and keeps the first and last bytes."""

    def __init__(self, limit: int, on_text: Callable[[str], None] | None, *, head: bool = True) -> None:
        self._head_limit = limit // 2 if head else 0
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.dropped = 0
        self.closed = asyncio.Event()
        self.failed = asyncio.Event()
        self.failure: Exception | None = None

    def data_received(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Trimming at twice the limit moves each byte once; trimming at each chunk would move all bytes each time.
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()
        self._pass_on(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        self._pass_on(b"", final=True)
        self.closed.set()

    def text(self) -> str:
        self._trim()
        if not self.dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        gap = f"\n[{self.dropped} bytes dropped]\n" if self._head else ""
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess

    def _pass_on(self, data: bytes, *, final: bool = False) -> None:
        if self._on_text is None or self.failure is not None:
            return
        try:
            if text := self._decoder.decode(data, final):
                self._on_text(text)
        except Exception as error:  # raised again by run(), outside the event loop's callback
            self.failure = error
            self.failed.set()


class _Lines(_Output):
    """An output pipe that is read line by line; unread lines stay in the pipe, not in memory."""

    def __init__(self, program: str, limit: int) -> None:
        super().__init__(0, None)
        self._program = program
        self._limit = limit
        self._waiting = bytearray()
        self._searched = 0
        self._news = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None
        self._is_discarding = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        self._waiting += data
        self._news.set()
        if len(self._waiting) > _PIPE_SIZE and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._news.set()

    async def next(self) -> bytes | None:
        """Return the next line, or None at the end; text after the last line break is ignored."""
        while (end := self._waiting.find(b"\n", self._searched)) < 0 or end > self._limit:
            self._searched = len(self._waiting)
            if end > self._limit or self._searched > self._limit:
                raise AgentError(
                    f"{self._program!r} sent a line of more than {self._limit // 1024 // 1024} MB",
                    ending="failed",
                    hint="One message of an agent is held in memory whole; have it send less at once.",
                )
            if self.closed.is_set():
                return None
            self._news.clear()
            self._resume()
            await self._news.wait()
        line = bytes(self._waiting[:end])
        del self._waiting[: end + 1]
        self._searched = 0
        return line

    def discard(self) -> None:
        """Read and discard the remaining output, so that the end of the pipe is noticed."""
        self._is_discarding = True
        self._waiting.clear()
        self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self.closed.is_set():
            self._transport.resume_reading()


class Conversation:
    """A child process that exchanges lines with us."""

    def __init__(self, child: _Child, lines: _Lines) -> None:
        self.child = child
        self._lines = lines
        self._writing = asyncio.Lock()
        self.left: tuple[int, ...] = ()
        """Processes that could not be ended, set after the end."""
        os.set_blocking(self._stdin, False)

    @property
    def started(self) -> Started:
        return Started(self.child.popen.pid, self.child.run)

    @property
    def is_open(self) -> bool:
        return not self.child.has_exited and not self._lines.closed.is_set()

    async def read(self) -> bytes | None:
        """Return the next line, or None at the end of the output. Raises AgentError for an overlong line."""
        return await self._lines.next()

    async def write(self, line: bytes) -> None:
        """Write a line as fast as the child reads. Raises OSError if the child no longer reads."""
        loop, pipe = asyncio.get_running_loop(), self._stdin
        async with self._writing:
            rest = memoryview(line)
            while rest:
                try:
                    rest = rest[os.write(pipe, rest[:_PIPE_SIZE]) :]
                except BlockingIOError:
                    ready = asyncio.Event()
                    loop.add_writer(pipe, ready.set)
                    try:
                        await ready.wait()
                    finally:
                        loop.remove_writer(pipe)

    async def exit(self) -> Exit | None:
        """Return how the child ended by itself, or None while it runs."""
        if not await self.child.exits_within(_LINGER):
            return None
        return self.child.exit(None, timeout=None, left=())

    @property
    def _stdin(self) -> int:
        return cast("IO[bytes]", self.child.popen.stdin).fileno()


class _Child:
    """A started process with its pipes, for one call of run() or one conversation."""

    def __init__(self, popen: subprocess.Popen[bytes], run_id: str, *, stdout: _Output) -> None:
        self.popen = popen
        self.run = run_id
        self.stdout = stdout
        self._stderr = _Output(_MAX_STDERR, None, head=False)
        self._exited = asyncio.Event()
        self._readers: list[asyncio.ReadTransport] = []

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), daemon=True).start()
        for pipe, output in ((self.popen.stdout, self.stdout), (self.popen.stderr, self._stderr)):
            reader, _ = await loop.connect_read_pipe(lambda output=output: output, pipe)  # type: ignore[misc]
            self._readers.append(reader)

    def send(self, prompt: str) -> None:
        """Write the prompt as fast as the child reads it, then close the pipe."""
        pipe, loop = cast("IO[bytes]", self.popen.stdin), asyncio.get_running_loop()
        rest = memoryview(prompt.encode("utf-8", "replace"))

        def write() -> None:
            nonlocal rest
            try:
                rest = rest[os.write(pipe.fileno(), rest[:_PIPE_SIZE]) :]
            except BlockingIOError:
                return
            except BrokenPipeError:  # a child may ignore its prompt
                rest = rest[:0]
            if not rest:
                self._close_input()

        os.set_blocking(pipe.fileno(), False)
        loop.add_writer(pipe.fileno(), write)

    def _close_input(self) -> None:
        pipe = cast("IO[bytes]", self.popen.stdin)
        if not pipe.closed:
            asyncio.get_running_loop().remove_writer(pipe.fileno())
            pipe.close()

    @property
    def has_exited(self) -> bool:
        """Whether the child has exited, according to the system, because the event loop may not know yet."""
        if self._exited.is_set() or not hasattr(os, "waitid"):
            return self._exited.is_set()
        try:
            return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # already reaped
            return True

    async def exits_within(self, patience: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._exited.wait()
                await self._stderr.closed.wait()
        return self._exited.is_set()

    async def wait(self, timeout: float | None, cancel: Cancel | None) -> Ending | None:
        """Wait for exit, timeout, cancellation or a failing callback; return None for an exit."""
        signs = [
            self._exited.wait(),
            self.stdout.failed.wait(),
            *([cancel.wait()] if cancel is not None else []),
        ]
        waits = [asyncio.ensure_future(sign) for sign in signs]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._exited.is_set():
            await self._drain(_LINGER)
            return None
        if self.stdout.failure is not None or (cancel is not None and cancel.is_set()):
            return "interrupted"
        return "timeout"

    async def end(self, grace: float) -> tuple[int, ...]:
        """End what still runs, read its output and reap the child. Return processes that could not be ended."""
        try:
            left = await _end_members(self.run, self.popen.pid, grace=grace)
            await self._drain(_LINGER)
        except asyncio.CancelledError:
            _send(signal.SIGKILL, survivors(self.run, self.popen.pid), leader=self.popen.pid)
            raise
        finally:
            self._close()
        await asyncio.sleep(0)  # the pipes close in the loop's next iteration
        return left

    def exit(self, ending: Ending | None, *, timeout: float | None, left: tuple[int, ...]) -> Exit:
        code = self.popen.poll()
        program = str(self.popen.args[0])  # type: ignore[index]
        stderr = self._stderr.text()
        how: Ending
        if ending == "timeout":
            how, reason = "timeout", f"{program!r} ran longer than {timeout:g} s and was ended"
        elif ending == "interrupted":
            how, reason = "interrupted", f"{program!r} was cancelled"
        elif code == 0:
            how, reason = "completed", f"{program!r} exited with status 0"
        elif code is not None and code < 0:
            known = {number.value: number.name for number in signal.Signals}
            how, reason = "killed", f"{program!r} was ended by {known.get(-code, f'signal {-code}')}"
        else:
            how, reason = "failed", f"{program!r} exited with status {code}"
        if how in ("failed", "killed") and stderr.strip():
            reason += f": {stderr.strip()[-_QUOTED_STDERR:]}"
        if left:
            reason += f" (processes that could not be ended: {', '.join(map(str, left))})"
        stdout = self.stdout.text()
        return Exit(how, reason, code, stdout, stderr, self.stdout.dropped, left)

    async def _drain(self, patience: float) -> None:
        """Wait until both pipes end; give up on a pipe held open by a process we cannot reach."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.stdout.closed.wait()
                await self._stderr.closed.wait()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # a hasty ending has already reaped it
                # Not reaped here: no other process can get its id while the child is a zombie.
                os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self.popen.wait()
        with suppress(RuntimeError):  # the loop is gone if the caller was torn down
            loop.call_soon_threadsafe(self._exited.set)

    def _close(self) -> None:
        self._close_input()
        for reader in self._readers:
            reader.close()
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None:  # after the readers have closed, and for pipes never attached
                asyncio.get_running_loop().call_soon(pipe.close)
        with suppress(subprocess.TimeoutExpired):  # it is reported as `left`
            self.popen.wait(_LINGER)


async def _end_members(run: str, leader: int | None, *, grace: float) -> tuple[int, ...]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    pause = 0.005
    is_asked = False
    killed_at: float | None = None
    while members := survivors(run, leader):
        now = loop.time()
        if killed_at is not None and now - killed_at > _KILL_PATIENCE:
            return tuple(members)
        if now - begun >= grace:
            killed_at = killed_at or now
            _send(signal.SIGKILL, members, leader=leader)
        elif not is_asked:
            _send(signal.SIGTERM, members, leader=leader)
            is_asked = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    return ()


def _send(number: signal.Signals, members: Sequence[int], *, leader: int | None) -> None:
    """Signal the group at once and other members individually, each only once."""
    # A process that is gone needs no signal; one that we may not signal is reported as left over.
    if leader is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
    for pid in members:
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != leader:
                os.kill(pid, number)


def _belongs(pid: str, run: str, leader: int | None) -> bool:
    mark = RUN_VARIABLE.encode() + b"="
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
        # The command name is in parentheses and may contain anything, so fields are counted after it.
        state, _, group, session = stat[stat.rindex(b")") + 2 :].split(maxsplit=4)[:4]
        if state in (b"Z", b"X"):
            return False
        if leader is not None and leader in (int(group), int(session)):
            return True
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            entries = file.read().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
    runs = [b"/%b/" % entry.removeprefix(mark) for entry in entries if entry.startswith(mark)]
    return any(b"/%b/" % run.encode() in nested for nested in runs)
