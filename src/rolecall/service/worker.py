"""The process of one step: a fork of the zygote that takes exactly one step of one thread and ends.

It has no store, only a socket to the supervisor, and everything it starts carries the thread's id as its mark.
When nobody answers any more it ends what it has started and itself: what it could still find out, nobody would
write down.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from rolecall.agents import process
from rolecall.errors import AgentError, RolecallError
from rolecall.service.pipestore import PipeBackend
from rolecall.settings import config
from rolecall.store import holder
from rolecall.store.clock import steady_ms
from rolecall.store.store import Store
from rolecall.threads import thread, workspace
from rolecall.threads.engine import Engine
from rolecall.workflow import registry


def run(order: Mapping[str, Any], pipe: socket.socket) -> None:
    """Take the step that is ordered, and tell how it went."""
    ident: str = order["thread"]
    # The engine hands its environment on, so every process of the step is found by this mark.
    os.environ |= process.marked(dict(os.environ), ident)
    backend = PipeBackend(pipe, lost=_give_up)
    ahead: int | None = order.get("clock_ahead_ms")  # None: no fleet, so leases go by this machine's clock
    store = Store(backend) if ahead is None else Store(backend, now=lambda: steady_ms() + ahead)
    backend.done(asyncio.run(_step(store, pipe, order)))


async def _step(store: Store, pipe: socket.socket, order: Mapping[str, Any]) -> dict[str, Any]:
    ident: str = order["thread"]
    loop, cancel = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, cancel.set)
    # Answers are read where they are asked for; what can be read at any other time is the end.
    loop.add_reader(pipe, lambda: _give_up() if _is_closed(pipe) else None)
    try:
        state = thread.find(store, ident).state
        engine = workspace.engine(store, agent=state.agent, folder=state.cwd)
        engine = replace(
            engine,
            find_workflow=lambda name, folder: _workflow(store, name, folder),
            lease_ms=order.get("lease_ms", holder.LEASE_MS),
        )
        return await _taken(engine, ident, cancel)
    except RolecallError as error:
        ending = {"ending": error.ending} if isinstance(error, AgentError) else {}
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint, **ending}
    finally:
        loop.remove_reader(pipe)


async def _taken(engine: Engine, ident: str, cancel: asyncio.Event) -> dict[str, Any]:
    try:
        outcome = await engine.step(ident, cancel=cancel)
    finally:
        await engine.close()
    return {"status": outcome.status.value, "took": outcome.took, "reason": outcome.reason}


def _workflow(store: Store, name: str, folder: str) -> str:
    """A workflow that plays a role, by its name. One of the project's files is stored, but does not become what
    its name means to everybody: that is not a step's to decide."""
    found = registry.find(store, name, folder=folder)
    if not found.path:
        return found.node or ""
    draft = store.draft()
    node = registry.add_workflow(draft, registry.load_file(found.path))
    draft.commit()
    return node


def _is_closed(pipe: socket.socket) -> bool:
    try:
        return pipe.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _give_up() -> NoReturn:
    for pid in process.survivors(config.run()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    os._exit(1)
