"""Set up the service: lock, log, store, workers, door and signals around one supervisor.

Everything a supervisor needs to know about this machine and its configuration is read here and passed in.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from rolecall.errors import Hint, RolecallError, StorageError
from rolecall.service import control
from rolecall.service.policy import ServicePolicy
from rolecall.service.supervisor import Companion, Supervisor
from rolecall.service.workers import Workers
from rolecall.settings import config
from rolecall.store.store import Store
from rolecall.threads import workspace
from rolecall.threads.state import ThreadState
from rolecall.workflow import registry

_LARGEST_LOG = 5 * 1024 * 1024
_HOME_GLANCE = 2.0
"""Seconds between two checks that the home still exists."""


def serve(
    policy: ServicePolicy,
    *,
    store_url: str | None = None,
    companions: Iterable[Companion] = (),
    show: Callable[[str], None] = lambda _line: None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the service of this home until told to stop. `show` gets each log line; `ready` is called once other
    processes can connect to the service."""
    home = config.home()
    address = control.store_address(store_url)
    lock = control.Lock(home, store=address)
    try:
        with workspace.open_store(address) as store, control.bound(home) as door:
            asyncio.run(_serve(store, policy, Log(home, show), lock, door, address, companions, ready))
    finally:
        lock.close()


async def _serve(
    store: Store,
    policy: ServicePolicy,
    log: Log,
    lock: control.Lock,
    door: Any,
    address: str,
    companions: Iterable[Companion],
    ready: Callable[[], None],
) -> None:
    supervisor = Supervisor(
        store,
        policy,
        Workers(config.inherited(ROLECALL_HOME=config.home(), ROLECALL_STORE=address)),
        host=host_name(),
        log=log,
        agent_of=agent_namer(store),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    log(f"serving {workspace.mask().text(address)} as process {os.getpid()}")
    life = supervisor.run(door, companions=companions, ready=ready)
    await run_while_home_exists(lock, life, stop=supervisor.stop, log=log)


async def run_while_home_exists(
    lock: control.Lock, life: Coroutine[Any, Any, None], *, stop: Callable[[], None], log: Log
) -> None:
    """Run a service; if its home is deleted, stop it and its steps and raise."""
    living = asyncio.create_task(life)
    while lock.is_in_place():
        await asyncio.wait([living], timeout=_HOME_GLANCE)
        if living.done():
            return await living
    problem = f"the home of the service, {config.home()}, was deleted or replaced"
    log(f"{problem}: interrupting its steps and ending")
    stop()
    with suppress(RolecallError):  # store errors are expected then
        await living
    raise StorageError(problem, hint=Hint("Stop a service before you delete its home", "stop_service"))


def host_name() -> str:
    """This machine's name, in a form that fits into a ref's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", os.uname().nodename).strip(".-") or "here"


def agent_namer(store: Store) -> Callable[[ThreadState], str]:
    """Return a function that names the agent of a thread's next step, from its workflow and the configuration. A
    workflow written in Python may bring its own agents, which are counted as the configured one."""
    from rolecall.settings.settings import agent_for

    named: dict[str, Mapping[str, str | None]] = {}
    settings: tuple[float, Mapping[str, Any]] = (-1.0, {})

    def name(state: ThreadState) -> str:
        nonlocal settings
        if time.monotonic() > settings[0]:
            settings = (time.monotonic() + 1.0, config.load())
        node, role = state.workflow, state.role or ""
        if bound := state.agents.get(role):
            return str(bound["name"])
        try:
            if node not in named:
                workflow = registry.read_node(store, node)[0]
                named[node] = {key: part.agent for key, part in workflow.roles.items()}
            return agent_for(
                settings[1],
                workflow=state.name,
                role=role,
                named=named[node].get(role),
                override=state.agent,
            )
        except RolecallError:  # the step itself reports what is wrong
            return ""

    return name


class Log:
    """Lines with timestamps, in a file in the home whose size is bounded."""

    def __init__(self, home: str, show: Callable[[str], None]) -> None:
        self._path = control.log_path(home)
        self._show = show
        self._mask = workspace.mask()

    def __call__(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._mask.text(' '.join(text.split()))}"
        # A full disk must not end the service, and leaves no room to report it.
        with suppress(OSError):
            self._write(line + "\n")
        with suppress(OSError):
            self._show(line)

    def _write(self, line: str) -> None:
        if os.path.exists(self._path) and os.path.getsize(self._path) > _LARGEST_LOG:
            os.replace(self._path, f"{self._path}.1")
        with open(self._path, "a", encoding="utf-8", errors="replace") as file:
            file.write(line)
