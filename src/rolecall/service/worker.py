"""A step in a process of its own: a fork of the zygote that takes one step at a time.

The process opens the store itself. Every process that a step starts is marked with the thread's id, so that the
leftovers of a step that died can be found. Through a socket, the process reports new events of threads, the lease of
its thread, and how the step ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rolecall.agents import process
from rolecall.api import MEMORY, Rolecall, Thread
from rolecall.errors import RolecallError
from rolecall.service.booking import BookingBackend
from rolecall.service.queue import Slot
from rolecall.settings import config, notify
from rolecall.settings.config import StoreSettings
from rolecall.settings.stores import open_backend
from rolecall.store import holder
from rolecall.store.backend import Backend
from rolecall.store.ids import ThreadId
from rolecall.store.store import Store


@dataclass(frozen=True)
class StepOrder:
    """A step to take. It is short enough to be sent in one piece."""

    thread: str
    workflow: str
    host: str
    """The name under which the step's cost is booked."""
    lease_ms: int = holder.LEASE_MS
    clock_ahead_ms: int = 0
    """In a fleet, how far the database's clock is ahead of this machine's monotonic clock, in milliseconds."""


def run(words: Mapping[str, Any], notes: int) -> bool:
    """Take an ordered step, and return whether it ended well. `notes` is the descriptor for notes to the service."""
    global _backend
    if _backend is None:
        url, durability = _settings or config.store_settings()
        _backend = open_backend(url, durability=durability)
    return take_step(StepOrder(**words), notes, _backend)


def take_step(order: StepOrder, notes: int, backend: Backend, **clock: Any) -> bool:
    global _warm

    def note(kind: str, value: Any) -> None:
        os.write(notes, json.dumps([kind, value]).encode() + b"\n")

    notify.start_for_us = partial(note, "notify")
    slot = Slot(order.workflow, order.thread, 0)
    booking: Any = BookingBackend(backend, slot, host=order.host, note=note)
    store = Store(booking, **clock)
    if _warm is not None:
        store.learn_types(_warm)
    # The engine passes on its environment, so every process of the step carries the mark.
    config.set_variables(process.add_mark(_outside, order.thread))
    loop, cancel = asyncio.new_event_loop(), asyncio.Event()
    # `loop.add_signal_handler` would take as long as a commit.
    signal.signal(signal.SIGTERM, lambda _number, _frame: loop.call_soon_threadsafe(cancel.set))
    report = loop.run_until_complete(_step(store, order, cancel))
    note("report", report)
    loop.run_until_complete(asyncio.sleep(0))  # let cancelled tasks end
    if report or cancel.is_set() or asyncio.all_tasks(loop):
        return False  # the process ends, so the loop need not be closed
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    loop.close()
    _warm = store
    return True


_backend: Backend | None = None
_settings: StoreSettings | None = None
"""The store's settings, as they were when the zygote started."""
_outside: Mapping[str, str] = {}
"""The mark in the zygote's own environment, if it has one."""
_warm: Store | None = None
"""The store of the warm-up or of the last step, kept because it has compiled types."""
_MODULES = ("threads.members", *(f"agents.adapters.{name}" for name in ("command", "claude", "codex")))
"""Modules that many steps import, in addition to those that the trial step imports."""
_WORKFLOW = """\
name: warm-up
description: Is played once, in a store that is thrown away.
roles:
  worker: {description: Works., prompt: Work., schema: {type: object, properties: {$status: {const: done}}}}
graph: {$START: worker, worker: {done: $END}}
"""


def warm_up() -> None:
    """Take a trial step, so that everything that a step imports and compiles is loaded before a worker is forked."""
    global _settings, _outside, _warm
    _settings = config.store_settings()
    _outside = {process.RUN_VARIABLE: mark} if (mark := config.run()) else {}
    for name in _MODULES:
        import_module(f"rolecall.{name}")
    with TemporaryDirectory(prefix="rolecall-") as folder, Rolecall(MEMORY, folder=folder) as rolecall:
        flow, script = Path(folder, "warm-up.yaml"), Path(folder, "script.json")
        flow.write_text(_WORKFLOW, encoding="utf-8")
        script.write_text(
            json.dumps({"roles": {"worker": [{"output": {"$status": "done"}}]}}), encoding="utf-8"
        )
        started = rolecall.start(str(flow), "Warm up.", agent=f"scripted:{script}")
        asyncio.run(_step(rolecall.store, StepOrder(started.id, "warm-up", "here"), asyncio.Event()))
        _warm = rolecall.store


async def _step(store: Store, order: StepOrder, cancel: asyncio.Event) -> dict[str, str]:
    """Take the step. Return an empty result, or the error that prevented the step."""
    thread = Thread(Rolecall(store), ThreadId(order.thread))
    try:
        await thread.advance(
            watch=lambda _kind, _body: None,
            cancel=cancel,
            steps=1,
            needs_all=False,
            is_served=True,
            lease_ms=order.lease_ms,
        )
    except RolecallError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {}
