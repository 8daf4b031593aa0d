"""Runs a child process within limits, and leaves none of its processes behind.

The child gets its prompt on stdin and runs in its own session. Its output is passed on as it arrives and kept up to a
size limit; `conversation` exchanges lines with the child instead. When the child exits, runs out of time or is
cancelled, everything it started is ended too: its process group, its session and, on Linux, every process that carries
the run's mark in its environment, including daemons that called setsid.

Some processes are missed: a process that left the session *and* cleared its environment, a process of another user and,
outside Linux, any process that left the group. Adapters interpret the output. With a `Policy`, the child runs inside a
sandbox (sandbox.py), which reports what it enforces before the program starts.
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
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rolecall.agents.presence import find_program
from rolecall.agents.protocol import Cancel, Ending
from rolecall.errors import AgentError
from rolecall.store.lazy import Module

if TYPE_CHECKING:  # most roles have no sandbox
    import rolecall.agents.proxy as proxy
    from rolecall.agents.sandbox import Policy
    from rolecall.store import scratch
else:
    proxy = Module("rolecall.agents.proxy")
    scratch = Module("rolecall.store.scratch")

RUN_VARIABLE = "ROLECALL_RUN"
"""The environment variable with the run ids of a child and of the runs that it is nested in, separated by slashes."""
TRACEPARENT = "TRACEPARENT"
"""The environment variable with the span of the attempt that a child works for, in the W3C Trace Context format."""

MORE_TIME = "Give the agent more time (its `timeout`, and `seconds` of a sandbox), or less to do."
DEFAULT_MAX_OUTPUT = 8 * 1024 * 1024
DEFAULT_GRACE = 2.0

_MAX_STDERR = 64 * 1024
_QUOTED_STDERR = 2000
_PIPE_SIZE = 64 * 1024
_KILL_PATIENCE = 5.0
# A child can leave its last output to a helper (`tee`) that ends shortly after the child.
_LINGER = 0.5
_LONGEST_PAUSE = 0.1
_HAS_PROC = Path("/proc/self/stat").exists()


class Started(NamedTuple):
    pid: int
    run: str


class Exit(NamedTuple):
    """How a child ended and what it printed."""

    ending: Ending
    reason: str
    code: int | None
    """The exit status; negative if a signal ended the child, None if it was never started."""
    stdout: str
    """The output; a note shows where bytes were not kept."""
    stderr: str
    """The end of the error output."""
    left: tuple[int, ...] = ()
    """The processes that could not be ended."""

    @property
    def hint(self) -> str:
        if self.ending == "timeout":
            return MORE_TIME
        if self.ending == "killed":
            return "The program crashed, or ran out of memory; run it by hand in the work folder to see."
        return ""

    def error(self) -> AgentError:
        return AgentError(self.reason, ending=self.ending, text=self.stdout, hint=self.hint)


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
    sandbox: Policy | None = None,
) -> Exit:
    """Run `argv` until it exits, `timeout` seconds have passed or `cancel` is set.

    Raise AgentError if the child cannot be started; every other ending is an Exit. An exception in a callback ends the
    child and is raised; cancelling the task also ends the child.
    """
    if cancel is not None and cancel.is_set():
        return Exit("interrupted", f"{argv[0]!r} was cancelled before it started", None, "", "")
    if sandbox is not None:
        timeout = sandbox.shorten(timeout)
    async with _open_proxy(sandbox, env) as sandbox:
        child = _Child(argv, cwd=cwd, env=env, sandbox=sandbox)
        stdout = _Output(max_output, on_text)
        ending: Ending | None = None
        try:
            # Report the start before reading any output, so that it comes before the text.
            if on_start is not None:
                on_start(child.started)
            stdin = await child.connect(stdout)
            stdin.write(prompt.encode("utf-8", "replace"))
            stdin.write_eof()

            signs = [child.exited.wait(), stdout.failed.wait(), *([cancel.wait()] if cancel else [])]
            waits = [asyncio.ensure_future(sign) for sign in signs]
            try:
                await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if child.exited.is_set():
                await child.drain(stdout)
            elif stdout.failure is not None or (cancel is not None and cancel.is_set()):
                ending = "interrupted"
            else:
                ending = "timeout"
        finally:
            left = await child.end(grace, stdout)
        if stdout.failure is not None:
            raise stdout.failure
        if child.popen.poll() == -signal.SIGINT and cancel is not None and cancel.is_set():
            ending = "interrupted"  # Ctrl-C reaches a child that has not begun its own session yet
        return child.exit(ending, stdout, timeout=timeout, left=left)


@asynccontextmanager
async def conversation(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    max_line: int,
    grace: float = DEFAULT_GRACE,
    sandbox: Policy | None = None,
) -> AsyncIterator[LineProcess]:
    """Start `argv` and keep it running. Leaving the block ends everything that `argv` started.

    Because this is an async generator, an event loop that shuts down ends a child that was not closed.
    """
    async with _open_proxy(sandbox, env) as sandbox:
        talk = LineProcess(_Child(argv, cwd=cwd, env=env, sandbox=sandbox), max_line)
        try:
            await talk.open()
            yield talk
        finally:
            talk.left = await talk.child.end(grace)


@asynccontextmanager
async def _open_proxy(sandbox: Policy | None, env: Mapping[str, str]) -> AsyncIterator[Policy | None]:
    """Open the proxy that a sandbox needs, unless the sandbox needs none or the caller has already opened it."""
    if sandbox is None or not sandbox.needs_proxy:
        yield sandbox
        return
    async with proxy.serve(sandbox, env) as sandbox:
        yield sandbox


def survivors(run: str, leader: int | None = None) -> list[int]:
    """Return the living processes of a run. With `leader`, include the processes in its group and session. `run` can
    include the runs that it is nested in, in the same form as in the mark."""
    if _HAS_PROC:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if pid != os.getpid() and _is_member(pid, run, leader)]
    with suppress(ProcessLookupError, PermissionError):
        if leader is not None:
            os.killpg(leader, 0)
            return [leader]
    return []


def add_mark(env: Mapping[str, str], run: str) -> dict[str, str]:
    """Return an environment that marks processes as part of `run` and of the runs it is nested in."""
    return {**env, RUN_VARIABLE: f"{env[RUN_VARIABLE]}/{run}" if RUN_VARIABLE in env else run}


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
        # Trimming only at twice the limit moves each byte once; trimming at every chunk would move all bytes each time.
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
        excess = max(0, len(self._tail) - self._tail_limit)
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


class LineProcess:
    """A child process with which the caller exchanges lines."""

    def __init__(self, child: _Child, max_line: int) -> None:
        self.child = child
        self._max_line = max_line
        # Unread lines stay in the pipe, not in memory.
        self._lines = asyncio.StreamReader(limit=_PIPE_SIZE)
        self._stdin: asyncio.StreamWriter
        self.left: tuple[int, ...] = ()
        """The processes that could not be ended, set when the conversation has ended."""

    async def open(self) -> None:
        self._stdin = await self.child.connect(asyncio.StreamReaderProtocol(self._lines))

    @property
    def is_open(self) -> bool:
        return not self.child.has_exited and not self._lines.at_eof()

    async def read(self) -> bytes | None:
        """Return the next line, or None at the end of the output. Raise AgentError for an overlong line."""
        line = bytearray()
        while len(line) <= self._max_line:
            try:
                line += await self._lines.readuntil(b"\n")
                return bytes(line[:-1])
            except asyncio.LimitOverrunError as error:
                line += await self._lines.readexactly(error.consumed)
            except asyncio.IncompleteReadError:  # text after the last line break is ignored
                return None
        raise AgentError(
            f"{self.child.program!r} sent a line of more than {self._max_line // 1024 // 1024} MB",
            hint="Each message of an agent is held in memory as a whole; have the program send less at once.",
        )

    async def write(self, line: bytes) -> None:
        """Write a line as fast as the child reads. Raise OSError if the child no longer reads."""
        self._stdin.write(line)
        await self._stdin.drain()

    async def exit(self) -> Exit | None:
        """Return how the child ended on its own, or None while it is running."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                await self.child.exited.wait()
        if not self.child.exited.is_set():
            return None
        await self.child.drain()
        self.child.read_report()
        return self.child.exit(None)


class _Child:
    """A started process with its pipes, for one call of run() or one conversation."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], sandbox: Policy | None = None
    ) -> None:
        self.program = argv[0]
        if not cwd.is_dir():
            hint = "Create it, or name another work folder."
            raise AgentError(f"the work folder {str(cwd)!r} does not exist", hint=hint)
        path, is_runnable = find_program(self.program, env=env, folder=cwd)
        if path is None:
            looked = str(cwd) if "/" in self.program else env.get("PATH", os.defpath)
            hint = f"Install it or correct the name; looked in {looked}."
            raise AgentError(f"the program {self.program!r} was not found", hint=hint)
        if not is_runnable:
            hint = f"chmod +x {self.program}"
            raise AgentError(f"the program {self.program!r} is not executable", hint=hint)

        run_id = os.urandom(8).hex()
        self._sandbox = sandbox
        self._report: int | None = None
        self._own = ExitStack()
        """A stack that closes what belongs to this child alone: its temporary folder and the report pipe."""
        fds: tuple[int, ...] = ()
        if sandbox is not None:
            tmp = self._own.enter_context(scratch.folder("rolecall-tmp-"))
            self._report, write_end = os.pipe()
            self._own.callback(os.close, self._report)
            fds = (write_end,)
            env = sandbox.choose_environment(env, tmp)
            argv = sandbox.wrap([path, *argv[1:]], cwd=cwd, env=env, tmp=tmp, report=write_end)
        try:
            self.popen = subprocess.Popen(  # noqa: S603 -- running the user's agent is the purpose; no shell is involved
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                # Some programs trust PWD more than the kernel.
                env={**add_mark(env, run_id), "PWD": str(cwd)},
                start_new_session=True,
                pass_fds=fds,
            )
        except (OSError, ValueError) as error:
            self._own.close()
            hint = "Run it by hand in that folder; a script needs a first line such as #!/bin/sh."
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                hint = "Allow more open files: `ulimit -n 1024`, for example."
            message = f"{self.program!r} cannot be started in {str(cwd)!r}: {error}"
            raise AgentError(message, hint=hint) from error
        finally:
            for fd in fds:
                os.close(fd)
        self.started = Started(self.popen.pid, run_id)
        self.exited = asyncio.Event()
        self._stderr = _Output(_MAX_STDERR, None, head=False)
        self._refusal = ""
        self._readers: list[asyncio.ReadTransport] = []
        self._writer: asyncio.WriteTransport | None = None

    async def connect(self, stdout: asyncio.Protocol) -> asyncio.StreamWriter:
        """Pass the child's output to `stdout`, watch for its exit, and return its stdin."""
        loop = asyncio.get_running_loop()

        def watch() -> None:
            if hasattr(os, "waitid"):
                with suppress(ChildProcessError):  # an early end has already reaped the child
                    # The child is not reaped here: while it is a zombie, no other process can get its id.
                    os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
            else:
                self.popen.wait()
            with suppress(RuntimeError):  # the loop no longer exists if the caller was torn down
                loop.call_soon_threadsafe(self.exited.set)

        threading.Thread(target=watch, daemon=True).start()
        for pipe, output in ((self.popen.stdout, stdout), (self.popen.stderr, self._stderr)):
            reader, _ = await loop.connect_read_pipe(lambda output=output: output, pipe)  # type: ignore[misc]
            self._readers.append(reader)
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        self._writer, _ = await loop.connect_write_pipe(lambda: flow, self.popen.stdin)
        return asyncio.StreamWriter(self._writer, flow, None, loop)

    @property
    def has_exited(self) -> bool:
        """Whether the child has exited. The operating system is asked, because the event loop might not know yet."""
        if self.exited.is_set() or not hasattr(os, "waitid"):
            return self.exited.is_set()
        try:
            return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # already reaped
            return True

    async def drain(self, stdout: _Output | None = None) -> None:
        """Wait until the pipes are closed; give up on a pipe that a process outside our reach keeps open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                for output in (stdout, self._stderr):
                    if output is not None:
                        await output.closed.wait()

    async def end(self, grace: float, stdout: _Output | None = None) -> tuple[int, ...]:
        """End all remaining processes, read their output and reap the child. Return the processes that could not be
        ended."""
        run, leader = self.started.run, self.popen.pid
        try:
            left = await end_leftovers(run, leader, grace=grace)
            await self.drain(stdout)
        except asyncio.CancelledError:
            _send(signal.SIGKILL, survivors(run, leader), leader=leader)
            raise
        finally:
            pipes = [pipe for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr) if pipe]
            if self._writer is not None and not pipes[0].closed:
                self._writer.abort()  # drops the rest of a prompt that the child does not read
            for reader in self._readers:
                reader.close()
            for pipe in pipes:  # after the transports have closed, and for pipes never connected
                asyncio.get_running_loop().call_soon(pipe.close)
            with suppress(subprocess.TimeoutExpired):  # the child is reported in `left`
                self.popen.wait(_LINGER)
            self.read_report()
            self._own.close()
        await asyncio.sleep(0)  # the pipes close in the loop's next iteration
        return left

    def read_report(self) -> None:
        """Record what the sandbox enforces, or why it refused to start the program."""
        if self._sandbox is None or self._report is None:
            return
        os.set_blocking(self._report, False)
        received = b""
        with suppress(BlockingIOError):  # the child was ended before it could report
            while chunk := os.read(self._report, _PIPE_SIZE):
                received += chunk
        lines = received.decode("utf-8", "replace").splitlines()
        self._report = None
        self._sandbox.enforced.extend(line for line in lines if line not in self._sandbox.enforced)
        refusals = (line.removeprefix("refused: ") for line in lines if line.startswith("refused: "))
        self._refusal = "; ".join(refusals)

    def exit(
        self,
        ending: Ending | None,
        stdout: _Output | None = None,
        *,
        timeout: float | None = None,
        left: tuple[int, ...] = (),
    ) -> Exit:
        """Describe how the child ended: on its own, or by the timeout or cancellation given as `ending`."""
        code, program, stderr = self.popen.poll(), self.program, self._stderr.text()
        if ending == "timeout":
            reason = f"{program!r} ran longer than {timeout:g} s and was ended"
        elif ending == "interrupted":
            reason = f"{program!r} was cancelled"
        elif code is not None and code < 0:
            ending, reason = "killed", f"{program!r} was ended by {name_signal(-code)}"
        elif self._refusal:
            ending, reason = "failed", f"{program!r} was not started, because of its sandbox: {self._refusal}"
        else:
            ending, reason = "failed" if code else "completed", f"{program!r} exited with status {code}"
        if ending in ("failed", "killed") and stderr.strip():
            reason += f": {stderr.strip()[-_QUOTED_STDERR:]}"
        if left:
            reason += f" (processes that could not be ended: {', '.join(map(str, left))})"
        return Exit(ending, reason, code, stdout.text() if stdout else "", stderr, left)


async def end_leftovers(
    run: str, leader: int | None = None, *, grace: float = DEFAULT_GRACE
) -> tuple[int, ...]:
    """End the remaining processes of a run and of its leader's group. Return the processes that could not be ended."""
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


def name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _send(number: signal.Signals, members: Sequence[int], *, leader: int | None) -> None:
    """Signal the group at once, and members outside the group individually, so that no process is signalled twice."""
    # A process that has ended needs no signal; a process that we are not allowed to signal is reported as left over.
    if leader is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
    for pid in members:
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != leader:
                os.kill(pid, number)


def _is_member(pid: int, run: str, leader: int | None) -> bool:
    try:
        if leader is not None and leader in (os.getpgid(pid), os.getsid(pid)):
            stat = _read(f"/proc/{pid}/stat")
            # The command name is in parentheses and can contain any character, so fields are counted after it.
            return stat[stat.rindex(b")") + 2 :].split(maxsplit=1)[0] not in (b"Z", b"X")
        environ = _read(f"/proc/{pid}/environ")  # empty if the process has ended but was not waited for
    except OSError:  # the process has ended, or belongs to another user
        return False
    if run.encode() not in environ:  # which rules out almost every process
        return False
    mark = RUN_VARIABLE.encode() + b"="
    runs = [b"/%b/" % entry.removeprefix(mark) for entry in environ.split(b"\0") if entry.startswith(mark)]
    return any(b"/%b/" % run.encode() in nested for nested in runs)


def _read(path: str) -> bytes:
    """Read a file in /proc. A call can read hundreds of these files, and `open` takes several times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(file, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)
