"""The process from which workers are forked. It has imported everything that a step needs, and has opened nothing.

    python -m rolecall.service.zygote CONTROL ENTRY

CONTROL is the file descriptor of a socket to the service, and ENTRY is the module whose `run` function takes a step. To
order a worker, the service sends a line of JSON with the worker's limits, together with the socket for its orders and
notes and the pipe for its output. One answer contains the worker's process id, and a later one its exit status. The
zygote takes no step itself and has only one thread, so it is safe to fork. If the service dies, the zygote ends its
workers.

A worker takes one step after another as long as each step leaves it unchanged; otherwise it ends. On Linux, processes
that a step leaves behind become children of its worker, however they detached themselves, and of the zygote when the
worker ends. These processes are ended before the service learns that the step has ended.
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
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STRAY_PATIENCE = 1.0
"""Seconds that the zygote tries to kill the processes that a step has left behind."""
_BROKEN = 70
_CPU_SPARE = 5
"""Seconds of CPU time between SIGXCPU and SIGKILL."""
_MOST_STEPS, _MOST_SECONDS, _MOST_KB = 50, 5.0, 64 * 1024
"""After this many steps, seconds of CPU time or kilobytes of additional memory, a worker ends, because its limits are
meant for a single step."""
_HARMLESS = {"rolecall", "jsonata", *sys.stdlib_module_names}
"""Packages that a step can import without making its worker unfit for another step."""
_THREAD_PATIENCE = 1.0
"""Seconds to wait for the Python threads of a step that has ended."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    entry = import_module(sys.argv[2])
    entry.warm_up()
    gc.collect()
    gc.freeze()  # pages that the collector never visits stay shared with all workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Zygote(control, entry).run()


class _Zygote:
    def __init__(self, control: socket.socket, entry: Any) -> None:
        self._control = control
        self._entry = entry
        self._workers: set[int] = set()
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._adopt_orphans()
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> None:
        self._tell(ready=os.getpid())
        unread = b""
        while True:
            ready, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._reap()
            if self._control not in ready:
                continue
            try:
                data, files, _, _ = socket.recv_fds(self._control, 65536, 2)
            except OSError:
                break
            if not data:
                break  # the service is gone
            # The service waits for each answer before it sends the next order, so the descriptors belong to this line.
            *lines, unread = (unread + data).split(b"\n")
            for order in map(json.loads, lines):
                if "signal" in order:
                    self._signal(order["pid"], order["signal"])
                    continue
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    line, output = files
                    self._become_worker(order["limits"], line, output, parent)
                self._workers.add(pid)
                for file in files:
                    os.close(file)
                self._tell(started=pid)
        for pid in self._workers:
            self._signal(pid, signal.SIGKILL)
        while self._workers:
            self._reap(block=True)

    def _signal(self, pid: int, number: int) -> None:
        if pid not in self._workers:  # the worker was reaped, so its process id might have been reused
            return
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # the worker is not in its own process group yet
            os.kill(pid, number)

    def _reap(self, *, block: bool = False) -> None:
        for pid in list(self._workers):
            # Until the worker is reaped, its process id is not reused, so the rest of the process group still belongs
            # to it.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)) is None:
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._workers.discard(pid)
            # End the processes that workers have left behind, and then those that these leave behind in turn.
            deadline = time.monotonic() + _STRAY_PATIENCE
            while (strays := _children() - self._workers) and time.monotonic() < deadline:
                for stray in strays:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(stray, signal.SIGKILL)
                    with suppress(ChildProcessError):
                        os.waitpid(stray, os.WNOHANG)
            self._tell(ended=pid, code=os.waitstatus_to_exitcode(status))

    def _tell(self, **words: Any) -> None:
        with suppress(OSError):  # the next read shows that the service is gone
            self._control.sendall(json.dumps(words).encode() + b"\n")

    def _adopt_orphans(self) -> None:
        if self._libc is not None:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    # -- in the worker --

    def _become_worker(
        self, limits: Mapping[str, int | None], line: int, output: int, parent: int
    ) -> NoReturn:
        """Take steps in a session of its own, with limits that also apply to every child process."""
        code = _BROKEN
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._control, self._woken, self._wakes):
                own.close()
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, file in enumerate((nothing, output, output)):
                os.dup2(file, number)
            os.close(nothing)
            os.close(output)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            memory, minutes = limits["memory_mb"], limits["cpu_minutes"]
            # Limit the data, not the address space, because V8 reserves far more address space than it ever uses.
            if memory is not None:
                _limit(resource.RLIMIT_DATA, memory * 1024 * 1024)
            if minutes is not None:  # SIGXCPU, whose name gives the reason, arrives shortly before SIGKILL
                _limit(resource.RLIMIT_CPU, minutes * 60, spare=_CPU_SPARE)
            if self._libc is not None:  # a worker that ignores every signal still ends with the zygote
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            self._adopt_orphans()
            self._take_steps(line)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _take_steps(self, line: int) -> None:
        modules, memory = set(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open(line, "rb", closefd=False) as orders:
            for number, order in enumerate(orders, 1):
                is_well = self._entry.run(json.loads(order), line)
                used = resource.getrusage(resource.RUSAGE_SELF)
                is_fresh = (
                    number < _MOST_STEPS
                    and used.ru_utime + used.ru_stime < _MOST_SECONDS
                    and used.ru_maxrss < memory + _MOST_KB
                )
                # On other systems, processes that a step leaves behind cannot be recognized as its own.
                if not (is_well and is_fresh and self._libc is not None and _is_clean(modules)):
                    return
                os.write(line, b'["idle", null]\n')


def _is_clean(modules: set[str]) -> bool:
    """Return whether a step left nothing in this process: no Python thread, no child process, and no user code, which
    might have changed anything. `modules` are the modules that were imported before the step."""
    deadline = time.monotonic() + _THREAD_PATIENCE
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    added = {name.partition(".")[0] for name in sys.modules.keys() - modules}
    if threading.active_count() > 1 or added - _HARMLESS:
        return False
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:  # a process that an agent started and that outlived the agent
            pass
    except ChildProcessError:
        return True
    return False


def _children() -> set[int]:
    """Return the ids of this process's children, or an empty set if the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def _limit(kind: int, amount: int, *, spare: int = 0) -> None:
    _, hard = resource.getrlimit(kind)
    most = amount + spare if hard == resource.RLIM_INFINITY else min(amount + spare, hard)
    resource.setrlimit(kind, (min(amount, most), most))


if __name__ == "__main__":
    main()
