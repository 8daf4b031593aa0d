"""Set up the service: its lock, log, store, workers, socket, signal handlers and project, around one supervisor.

Everything that a supervisor needs to know about this machine and its configuration is read here and passed in.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

from rolecall.agents.process import add_mark, end_leftovers
from rolecall.api import Rolecall
from rolecall.errors import Hint, RolecallError, StorageError
from rolecall.service import control, project_file
from rolecall.service.policy import ServicePolicy
from rolecall.service.reload import Definitions, watch
from rolecall.service.supervisor import Companion, Supervisor
from rolecall.service.triggers.run import Triggers
from rolecall.service.workers import Workers
from rolecall.settings import config
from rolecall.settings.settings import Settings, agent_for
from rolecall.store import atomic
from rolecall.store.store import Store
from rolecall.threads.state import ThreadState
from rolecall.workflow.model import StoredRole

_LARGEST_LOG = 5 * 1024 * 1024
_HOME_GLANCE = 2.0
"""Seconds between two checks that the home still exists."""
_FILE = "file "
"""The prefix of the names of problems with the project's files."""


def serve(
    policy: ServicePolicy,
    *,
    store_url: str | None = None,
    companions: Iterable[Companion] = (),
    show: Callable[[str], None] = lambda _line: None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the service of this home until it is stopped. `show` is called with each log line, and `ready` once other
    processes can connect to the service."""
    home, address = config.home(), config.full_store_address(store_url)
    lock = control.Lock(home, store=address)
    log = Log(home, show)

    async def run(store: Store, door: Any) -> None:
        workers = Workers(config.child_environment(ROLECALL_HOME=home, ROLECALL_STORE=address))
        agent_of = agent_namer(store)
        supervisor = Supervisor(store, policy, workers, host=host_name(), log=log, agent_of=agent_of)
        log(f"serving {config.mask().text(address)} as process {os.getpid()}")
        life = supervisor.run(door, companions=companions, ready=ready)
        await run_until_stopped(lock, life, stop=supervisor.stop, log=log)

    try:
        with Rolecall(address) as rolecall, control.bound(home) as door:
            asyncio.run(run(rolecall.store, door))
    finally:
        lock.close()


async def run_until_stopped(
    lock: control.Lock, life: Coroutine[Any, Any, None], *, stop: Callable[[], None], log: Log
) -> None:
    """Run a service until a signal stops it, or until its home is deleted, which raises `StorageError`."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    living = asyncio.create_task(life)
    while lock.is_in_place():
        await asyncio.wait([living], timeout=_HOME_GLANCE)
        if living.done():
            return await living
    problem = f"the home of the service, {config.home()}, was deleted or replaced"
    log(f"{problem}: interrupting the service's steps and ending")
    stop()
    with suppress(RolecallError):  # store errors are expected here
        await living
    raise StorageError(problem, hint=Hint("Stop a service before you delete its home", "stop_service"))


def host_name() -> str:
    """Return this machine's name, in a form that can be part of a ref's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", os.uname().nodename).strip(".-") or "here"


def agent_namer(store: Store) -> Callable[[ThreadState], str]:
    """Return a function that names the agent of a thread's next step, from the thread's workflow and the configuration.
    An agent that a Python workflow brings itself is counted under the configured agent's name."""
    rolecall = Rolecall(store)
    roles: dict[str, Mapping[str, StoredRole]] = {}
    settings: Settings = {}
    read_again_at = -1.0

    def name(state: ThreadState) -> str:
        nonlocal settings, read_again_at
        if time.monotonic() > read_again_at:
            settings, read_again_at = config.load(), time.monotonic() + 1.0
        node, role = state.workflow, state.role or ""
        try:
            if node not in roles:
                roles[node] = rolecall.read_workflow(node).roles
            part = roles[node].get(role) or StoredRole()
            if part.group is not None and state.member is None:
                return ""  # the members call agents, not the group itself
            if bound := state.agents.get(role):
                return str(bound["name"])
            in_turn = part.group.agents if part.group else ()
            own = in_turn[((state.member or 1) - 1) % len(in_turn)] if in_turn else part.agent
            return agent_for(settings, workflow=state.name, role=role, named=own, override=state.agent)
        except RolecallError:  # the step itself reports what is wrong
            return ""

    return name


class Log:
    """A log file in the home, whose size is limited. Each line begins with a timestamp."""

    def __init__(self, home: str, show: Callable[[str], None]) -> None:
        self._path = control.log_path(home)
        self._show = show
        self._mask = config.mask()

    def __call__(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._mask.text(' '.join(text.split()))}"
        with suppress(OSError):  # a full disk must not end the service, and leaves no room for the error
            if os.path.exists(self._path) and os.path.getsize(self._path) > _LARGEST_LOG:
                os.replace(self._path, f"{self._path}.1")
            with open(self._path, "a", encoding="utf-8", errors="replace") as file:
                file.write(line + "\n")
        with suppress(OSError):
            self._show(line)


# -- the project --


def of_project(
    folder: str,
    *,
    store_url: str | None,
    adjust: Callable[[ServicePolicy], ServicePolicy] = lambda policy: policy,
) -> Companion:
    """Return the companion for the project that contains a folder. It follows the project's files and runs its
    triggers. `adjust` can change the project's policy. Without a project, the companion only logs that there is none,
    because the service does not notice a project that is created later."""

    async def project(supervisor: Supervisor) -> None:
        if project_file.find(folder) is None:
            nothing = "no files are watched, and nothing is triggered"
            supervisor.log(f"{folder} has no {project_file.FILE}: {nothing}")
            return
        # The mark identifies processes left over from a killed service. A home has one service at a time.
        mark = f"triggers-{sha256(config.home().encode()).hexdigest()[:16]}"
        await end_leftovers(mark)
        address = config.full_store_address(store_url)
        env = {**config.environment(), "ROLECALL_HOME": config.home(), "ROLECALL_STORE": address}
        env = add_mark(env, mark)

        store, log, problems = supervisor.store, supervisor.log, supervisor.problems
        definitions = Definitions(store, folder, env=env, keep=config.versions_folder(store_url), say=log)
        triggers = Triggers(
            store, env=env, mask=config.mask(), say=log, on_start=supervisor.wake, problems=problems
        )
        logged: list[str] = []

        def use() -> None:
            nonlocal logged
            found = definitions.project
            supervisor.policy = adjust(found.policy)
            triggers.update(found, definitions.workflows)
            for name in [name for name in problems if name.startswith(_FILE)]:
                del problems[name]
            problems.update(
                (f"{_FILE}{number}", str(one)) for number, one in enumerate(definitions.problems[:20])
            )
            supervisor.wake()
            names = ", ".join(definitions.workflows) or "none"
            plan = [f"project {found.name} in {found.folder}, workflows: {names}"]
            plan += [f"trigger {line}" for line in triggers.lines() or ["none"]]
            for line in plan if plan != logged else ():
                log(line)
            logged = plan

        await definitions.refresh()
        use()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(definitions, use))
            tasks.create_task(triggers.run())

    return project


def of_page(folder: str, *, store_url: str | None, port: int) -> Companion:
    """Return the companion that serves the web page on a port, or on a free port if `port` is 0. The page has a process
    of its own, which ends with the service. The page's output goes into the log, except for sign-in links, because
    others might read the log."""

    async def page(supervisor: Supervisor) -> None:
        words = ["web", "--no-open", "--with-stdin", "--port", str(port), "--project", folder]
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "rolecall", *words),
            env=config.child_environment(ROLECALL_STORE=config.full_store_address(store_url)),
            stdin=asyncio.subprocess.PIPE,  # the page ends when its input closes, even if the service is killed
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            while child.stdout and (line := await child.stdout.readline()):
                text = line.decode(errors="replace")
                if found := re.search(r"(https?://\S+)/signin\?once=\S+", text):
                    path = control.link_path(config.home())
                    try:
                        atomic.replace(path, f"{found[0]}\n".encode(), mode=0o600)
                        text = f"{found[1]}, the link that signs in is in {path}"
                    except OSError as error:  # a full disk must not end the page
                        text = f"{found[1]}, but the link that signs in cannot be kept in {path}: {error}"
                supervisor.log(f"page: {text}")
            raise StorageError(f"the page ended with exit code {await child.wait()}")
        finally:
            with suppress(ProcessLookupError):
                child.terminate()

    return page


def of_traces(*, store_url: str | None) -> Companion | None:
    """Return the companion that sends each step to the configured collector, or None if no collector is configured. It
    works in a Python thread with a connection of its own, so a slow or unavailable collector delays nothing."""
    with Rolecall(store_url, create=False, is_lazy=True) as rolecall:
        collector = rolecall.collector()
    if collector is None:
        return None

    async def traces(supervisor: Supervisor) -> None:
        say, stop = partial(supervisor.problems.note, "traces"), threading.Event()

        def follow() -> None:
            try:
                with Rolecall(config.full_store_address(store_url)) as rolecall:
                    rolecall.follow_traces(collector, stop=stop, say=say)
            except Exception as error:  # an error must not end the service
                say(f"no more spans are sent: {error!r}")

        supervisor.log(f"steps are sent to {config.mask().text(collector.url)}")
        # Not a thread of the loop's pool: the service must not wait for a request when it stops.
        threading.Thread(target=follow, name="traces", daemon=True).start()
        try:
            await asyncio.Event().wait()
        finally:
            stop.set()

    return traces
