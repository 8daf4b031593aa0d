"""Run a thread that a person started or continued on the page, or that a host handed over. The service runs the thread
if one serves the store; otherwise a child process does, which outlives this one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rolecall.api import Thread
from rolecall.errors import RolecallError
from rolecall.service import control
from rolecall.settings import config

_LONGEST = 4_000
_NO_SERVICE = (
    "The thread is waiting for a service, but none is running. Start one with `rolecall serve --detach`."
)
_EXPLAINED_CODES = (0, 6, 7, 8, 9)
"""Exit codes of `thread run` after which the thread's own state says how the run ended."""


class Assignment(NamedTuple):
    """Who runs a thread (`service`, `process` or `nobody`), and the problem if it should run but cannot."""

    runs: str
    problem: str | None = None


class ThreadRunner:
    """Starts `rolecall thread run` for threads that no service runs. If a thread could not be run, `tell` is called, on
    another Python thread, with the thread's id and the reason."""

    def __init__(
        self, store: str | None, *, tell: Callable[[str, str], None] = lambda _id, _text: None
    ) -> None:
        self._store = store
        self._tell = tell
        self._running: dict[str, bool] = {}
        """The threads whose process, started by this server, is still running. The value says whether to run the thread
        again afterwards, because it was continued when that process might have been about to end."""
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Why threads could not be run, keyed by thread id. An entry is removed when its thread is run again."""
        with self._lock:
            return dict(self._problems)

    def carry_on(self, thread: Thread) -> Assignment:
        """Run a thread if it can run. If that fails, everything recorded so far is kept."""
        with self._lock:
            self._problems.pop(thread.id, None)
        try:
            status = thread.status
            is_served = control.is_served(config.home(), self._store, thread.rolecall.store)
            if status == "queued" and not is_served:
                return Assignment("nobody", self._note_problem(thread.id, _NO_SERVICE))
            if status == "idle" and is_served:
                thread.give_to_service()
                return Assignment("service")
            if status in ("queued", "running", "crashed", "waiting") and thread.state.service and is_served:
                return Assignment("service")
            if status not in ("idle", "crashed", "waiting", "running"):
                return Assignment("nobody")
            if status != "running":
                self._start(thread.id, thread.rolecall.folder)
            return Assignment("process")
        except (OSError, RolecallError) as error:
            return Assignment("nobody", self._note_problem(thread.id, f"It could not be run: {error}"))

    def _note_problem(self, ident: str, problem: str) -> str:
        masked = config.mask().text(problem)
        with self._lock:
            self._problems[ident] = masked
        self._tell(ident, masked)
        return masked

    def _start(self, ident: str, folder: str) -> None:
        with self._lock:
            is_running = ident in self._running
            self._running[ident] = is_running
        if is_running:
            return
        try:
            # Errors go to a file, because a pipe would break if this server ended first.
            errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed once the child has ended
            # With -P, a file in the project cannot replace an imported module.
            child = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-P", "-m", "rolecall", "thread", "run", ident],
                cwd=folder,
                env=config.child_environment(ROLECALL_STORE=config.full_store_address(self._store)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except OSError:
            self._end(ident)
            raise

        def attend() -> None:
            code = child.wait()
            with errors:
                end = errors.seek(0, 2)
                errors.seek(max(0, end - _LONGEST))
                said = errors.read().decode(errors="replace").strip()
            try:
                if self._end(ident):
                    self._start(ident, folder)
                elif code not in _EXPLAINED_CODES:
                    self._note_problem(ident, said or f"rolecall thread run ended with {code}")
            except OSError as error:
                self._note_problem(ident, f"It could not be run: {error}")

        threading.Thread(target=attend, name=f"run-{ident}", daemon=True).start()

    def _end(self, ident: str) -> bool:
        """Record that the process of a thread has ended, and return whether to start it again."""
        with self._lock:
            return self._running.pop(ident)
