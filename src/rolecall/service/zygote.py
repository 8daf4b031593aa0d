"""A process that has imported everything a step needs and has opened nothing: workers are forked from it.

    python -m rolecall.service.zygote CONTROL

CONTROL is the number of a socket to the supervisor. A line of JSON orders a worker, with the worker's socket and
its output sent along; a line back says its process id, and another one later how it ended. It runs no step
itself and has one thread, so a fork of it is a clean beginning. When the supervisor is gone it ends its workers.

On Linux whatever a step has started and left behind becomes a child of the zygote when the step's process is
gone, however it detached itself, and is ended before anybody hears of the step's end.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

_IMPORTED = (
    "rolecall.service.worker",
    "rolecall.workflow.yaml",
    "rolecall.settings.settings",
    "rolecall.settings.yaml12",
    "rolecall.agents.adapters.command",
    "rolecall.agents.adapters.claude",
    "rolecall.agents.adapters.codex",
    "rolecall.agents.presence",
    "rolecall.agents.adapters.scripted",
    "jsonschema_rs",
    "yaml",
)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0
"""Seconds for workers to end by themselves once the supervisor is gone."""
_STRAY_PATIENCE = 1.0
_BROKEN = 70
_CPU_SPARE = 5
"""Seconds of processor time between SIGXCPU and SIGKILL."""


def main() -> None:
    from importlib import import_module

    control = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()  # pages that are not looked through for garbage stay shared with every worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Zygote(control).run()


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: set[int] = set()
        self._waiting = b""
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._adopt_orphans()
        self._woken, wakes = socket.socketpair()
        self._woken.setblocking(False)
        wakes.setblocking(False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> None:
        self._tell(ready=os.getpid())
        while self._listen(None):
            pass
        self._end_workers()

    def _listen(self, timeout: float | None) -> bool:
        """Do what has come; False when the supervisor is gone."""
        ready, _, _ = select.select([self._control, self._woken], [], [], timeout)
        if self._woken in ready:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        return self._obey() if self._control in ready else True

    # -- orders --

    def _obey(self) -> bool:
        try:
            data, files, _, _ = socket.recv_fds(self._control, 65536, 2)
        except OSError:
            return False
        if not data:
            return False
        # The supervisor waits for the answer before it orders the next one, so the files belong to this line.
        self._waiting += data
        *lines, self._waiting = self._waiting.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "signal" in order:
                self._signal(order["pid"], order["signal"])
            else:
                self._fork(order, *files)
        return True

    def _signal(self, pid: int, number: int) -> None:
        if pid not in self._workers:  # it was reaped, so the number may be anybody's
            return
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # it has not come to have a group yet
            os.kill(pid, number)

    def _fork(self, order: Mapping[str, Any], pipe: int, output: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(order, pipe, output, parent)
        self._workers.add(pid)
        os.close(pipe)
        os.close(output)
        self._tell(started=pid)

    def _reap(self) -> None:
        for pid in list(self._workers):
            # As long as it is not reaped nobody else gets its number, and what is left of its group is its own.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._workers.discard(pid)
            self._end_strays()
            self._tell(ended=pid, code=os.waitstatus_to_exitcode(status))

    def _end_strays(self) -> None:
        """End what workers have left behind; what one of those leaves behind in turn is the next one's turn."""
        deadline = time.monotonic() + _STRAY_PATIENCE
        while (strays := _children() - self._workers) and time.monotonic() < deadline:
            for pid in strays:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _tell(self, **words: Any) -> None:
        with suppress(OSError):  # when nobody listens the next look finds out
            self._control.sendall(json.dumps(words).encode() + b"\n")

    def _end_workers(self) -> None:
        """Every worker sees that nobody answers and ends its agents; one that does not is ended."""
        deadline = time.monotonic() + _PATIENCE
        while self._workers and (left := deadline - time.monotonic()) > 0:
            select.select([self._woken], [], [], left)
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        for pid in self._workers:
            self._signal(pid, signal.SIGKILL)

    def _adopt_orphans(self) -> None:
        if self._libc is not None:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    # -- in the worker --

    def _become_worker(self, order: Mapping[str, Any], pipe: int, output: int, parent: int) -> NoReturn:
        code = _BROKEN
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._control, self._woken, self._wakes):
                own.close()
            _set_apart(output, order.get("limits", {}))
            self._die_with(parent)
            self._adopt_orphans()
            from rolecall.service import worker

            worker.run(order, socket.socket(fileno=pipe))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _die_with(self, parent: int) -> None:
        """A worker that is deaf to everything ends when the zygote does, where the system can do that."""
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _children() -> set[int]:
    """This process's children; none where the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def _set_apart(output: int, limits: Mapping[str, int]) -> None:
    """A session of its own, output that is read by the supervisor, and limits that hold for all it starts."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, output, output)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "memory_mb" in limits:
        # Not the address space: programs on V8 reserve far more of it than they ever use.
        _limit(resource.RLIMIT_DATA, limits["memory_mb"] * 1024 * 1024)
    if "cpu_minutes" in limits:
        # Asked to end by a signal whose name says why, a little before it is ended.
        _limit(resource.RLIMIT_CPU, limits["cpu_minutes"] * 60, spare=_CPU_SPARE)


def _limit(kind: int, amount: int, *, spare: int = 0) -> None:
    _, hard = resource.getrlimit(kind)
    is_bounded = hard != resource.RLIM_INFINITY
    most = min(amount + spare, hard) if is_bounded else amount + spare
    resource.setrlimit(kind, (min(amount, most), most))


if __name__ == "__main__":
    main()
