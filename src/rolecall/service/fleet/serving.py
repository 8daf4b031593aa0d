"""Set up a machine of a fleet: its lock, log, tables, workers, socket, signal handlers and companions."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import uuid4

from rolecall.agents.process import add_mark, end_leftovers
from rolecall.service import control
from rolecall.service.fleet import database
from rolecall.service.fleet.machine import Machine
from rolecall.service.fleet.machines import MachineSettings
from rolecall.service.policy import ServicePolicy
from rolecall.service.serving import Log, agent_namer, host_name, run_until_stopped
from rolecall.service.supervisor import Companion
from rolecall.service.workers import Workers
from rolecall.settings import config
from rolecall.store import holder
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store

_PAUSE = 5.0
"""Seconds before a failed companion is started again."""
_PATIENCE = 10.0
"""Seconds that a companion has to end."""


def serve(
    url: str,
    policy: ServicePolicy | None,
    *,
    name: str | None = None,
    slots: int = 8,
    lease_ms: int = holder.LEASE_MS,
    companions: Iterable[Companion] = (),
    show: Callable[[str], None] = lambda _line: None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run a machine of the fleet at `url` until it is stopped. `policy` replaces the fleet's policy unless it is None.
    `show` is called with each log line, and `ready` once other processes can connect to the machine."""
    home = config.home()
    database.mask_address(url)  # raises an error for a wrong address, before anything is created
    lock = control.Lock(home, store=url)
    try:
        # Steps use the same store address, whose password is masked everywhere.
        config.set_variables({"ROLECALL_STORE": url})
        log = Log(home, show)
        log(f"joining the fleet at {database.mask_address(url)} as process {os.getpid()}")
        database.migrate(url)
        called = name or host_name()
        settings = MachineSettings(
            called, f"{called}:{uuid4().hex[:12]}", slots, lease_ms, folders=(home, tempfile.gettempdir())
        )

        async def run(door: socket.socket) -> None:
            mark = mark_of(home)
            # end what an earlier process left: another machine might be running its threads by now
            await end_leftovers(mark)
            env = add_mark(config.child_environment(ROLECALL_HOME=home, ROLECALL_STORE=url), mark)
            workers = Workers(env, entry="rolecall.service.fleet.worker")
            machine = Machine(url, settings, workers, policy=policy, log=log, agent_of=agent_namer)
            beside = [_Beside(machine, url, companion, log) for companion in companions]

            def begin() -> None:
                for one in beside:
                    one.start()
                ready()

            try:
                life = machine.run(door, ready=begin)
                await run_until_stopped(lock, life, stop=machine.stop, log=log)
            finally:
                for one in beside:
                    await asyncio.to_thread(one.end)

        with control.bound(home) as door:
            asyncio.run(run(door))
    finally:
        lock.close()


def mark_of(home: str) -> str:
    """Return the mark in the environment of every process that this home's steps start."""
    return f"machine-{sha256(home.encode()).hexdigest()[:16]}"


class _Beside(threading.Thread):
    """Runs a companion on an event loop of its own, because it queries the store and might have to wait."""

    def __init__(self, machine: Machine, url: str, companion: Companion, log: Log) -> None:
        super().__init__(name="fleet-project", daemon=True)
        self._machine = machine
        self._url = url
        self._companion = companion
        self.log = log
        self.problems = machine.problems
        self.store: Store
        self._is_over = threading.Event()
        self._cancel: Callable[[], object] = lambda: None

    @property
    def policy(self) -> ServicePolicy:
        return self._machine.policy

    @policy.setter
    def policy(self, policy: ServicePolicy) -> None:
        self._machine.adopt(policy)

    def wake(self, _name: str = "") -> None:
        self._machine.wake()

    def run(self) -> None:
        async def run_companion() -> None:
            """Run the companion until it is cancelled; it then ends what it has started."""
            beside: Any = self  # provides the parts of a supervisor that a companion uses
            task = asyncio.create_task(self._companion(beside))
            self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
            if self._is_over.is_set():
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        while not self._is_over.is_set():
            try:
                backend = PostgresBackend(database.with_timeouts(self._url))
                with Store(backend, now=self._machine.now) as self.store:
                    asyncio.run(run_companion())
                    return
            except* Exception as errors:  # an error must not end the machine
                self.log(f"the project is read again: {errors.exceptions[0]!r}")
            self._is_over.wait(_PAUSE)

    def end(self) -> None:
        self._is_over.set()
        with suppress(RuntimeError):  # the companion's loop has ended or has not started yet
            self._cancel()
        if self.is_alive():
            self.join(_PATIENCE)
