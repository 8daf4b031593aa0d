"""A machine of a fleet put together: lock, log, schema, workers, door, signals, and the project beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from rolecall import config, holder
from rolecall.service import control
from rolecall.service.fleet import database
from rolecall.service.fleet.machine import Machine, Settings
from rolecall.service.policy import ServicePolicy
from rolecall.service.serving import Log, agent_namer, host_name
from rolecall.service.supervisor import Companion
from rolecall.service.workers import Workers
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store

_PAUSE = 5.0
"""Seconds until what runs beside a machine is begun again after it has failed."""


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
    """Be a machine of the fleet at `url` until told to stop. `policy` becomes that of the fleet; None: the fleet's
    is used. `show` gets what is logged, `ready` is called once others can speak to the machine."""
    home = config.home()
    database.shown(url)  # an address that is none is told before anything is made
    lock = control.Lock(home, store=url)
    try:
        os.environ["ROLECALL_STORE"] = url  # steps see the same store, and its password is masked everywhere
        log = Log(home, show)
        log(f"joining the fleet at {database.shown(url)} as process {os.getpid()}")
        database.migrate(url)
        called = name or host_name()
        settings = Settings(
            called, f"{called}:{uuid4().hex[:12]}", slots, lease_ms, folders=(home, tempfile.gettempdir())
        )
        with control.bound(home) as door:
            asyncio.run(_serve(url, settings, policy, log, door, list(companions), ready))
    finally:
        lock.close()


async def _serve(
    url: str,
    settings: Settings,
    policy: ServicePolicy | None,
    log: Log,
    door: socket.socket,
    companions: list[Companion],
    ready: Callable[[], None],
) -> None:
    workers = Workers({**os.environ, "ROLECALL_HOME": config.home(), "ROLECALL_STORE": url})
    machine = Machine(url, settings, workers, policy=policy, log=log, agent_of=agent_namer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, machine.stop)

    def begin() -> None:
        for companion in companions:
            _Beside(machine, url, companion, log).start()
        ready()

    await machine.run(door, ready=begin)


class _Beside(threading.Thread):
    """What runs beside a machine for its project, on a loop of its own: it asks the store, and may have to wait."""

    def __init__(self, machine: Machine, url: str, companion: Companion, log: Log) -> None:
        super().__init__(name="fleet-project", daemon=True)
        self._machine = machine
        self._url = url
        self._companion = companion
        self.log = log
        self.problems = machine.problems
        self.store: Store

    @property
    def policy(self) -> ServicePolicy:
        return self._machine.policy

    @policy.setter
    def policy(self, policy: ServicePolicy) -> None:
        self._machine.adopt(policy)

    def wake(self, _name: str = "") -> None:
        self._machine.wake()

    def run(self) -> None:
        while True:
            try:
                with Store(
                    PostgresBackend(database.with_timeouts(self._url)), now=self._machine.now
                ) as store:
                    self.store = store
                    beside: Any = self  # has of a supervisor what a companion asks for
                    asyncio.run(self._companion(beside))
                    return
            except* Exception as errors:  # it is no reason for the machine to end
                self.log(f"the project is looked at again: {errors.exceptions[0]!r}")
            threading.Event().wait(_PAUSE)
