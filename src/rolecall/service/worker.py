"""The process of one step: a fork of the zygote that takes exactly one step of one thread and exits.

It opens the store itself. Every process it starts carries the thread's id as a mark, by which the leftovers of a step
that died are found. Through a pipe it reports new events of threads, its lease, and how its step ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rolecall.agents import process
from rolecall.errors import RolecallError
from rolecall.service.booking import BookingBackend
from rolecall.service.queue import Slot
from rolecall.settings import config
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.backend import Backend, Change, Ref
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread, workspace
from rolecall.workflow import registry


@dataclass(frozen=True)
class StepOrder:
    """A step to take. Always short, so that it is sent in one piece."""

    thread: str
    workflow: str
    host: str
    """The name under which the step's cost is booked."""
    lease_ms: int = holder.LEASE_MS
    clock_ahead_ms: int = 0
    """On a fleet, how far the database's clock is ahead of this machine's monotonic clock."""


def run(words: Mapping[str, Any], notes: int) -> None:
    """Take the step that an order asks for; `notes` is the pipe to the service."""
    settings = config.store_settings()
    backend = workspace.open_backend(settings.url, durability=settings.durability)
    take_step(StepOrder(**words), notes, backend)


def take_step(order: StepOrder, notes: int, backend: Backend, **clock: Any) -> None:
    # The engine passes its environment on, so every process of the step carries this mark.
    mark = process.marked(config.inherited(), order.thread)[process.RUN_VARIABLE]
    config.set_variables({process.RUN_VARIABLE: mark})

    def note(**words: Any) -> None:
        os.write(notes, json.dumps(words).encode() + b"\n")

    def committed(change: Change, moved: Sequence[Ref]) -> None:
        for ref in moved:
            if ref.name == thread.ref_name(order.thread):
                note(lease=ref.state.get("lease"))
        for stream in {event.stream for event in change.events}:
            note(event=stream)

    slot = Slot(order.workflow, order.thread, 0)
    booking: Any = BookingBackend(backend, slot, host=order.host, committed=committed)
    store = Store(booking, **clock)
    if _warm is not None:
        store.learn_types(_warm)
    note(report=asyncio.run(_step(store, order)))


_warm: Store | None = None
"""The store of the warm-up, kept for the types that it has compiled."""
_ADAPTERS = ("command", "claude", "codex")
_WORKFLOW = """\
name: warm-up
description: Is played once, in a store that is thrown away.
roles:
  worker: {description: Works., goal: Work., frontmatter: {type: object, properties: {$status: {const: done}}}}
graph: {$START: worker, worker: {done: $END}}
"""


def warm_up() -> None:
    """Take a trial step, so that everything a step imports and compiles is loaded before a worker is forked."""
    global _warm
    for name in _ADAPTERS:
        import_module(f"rolecall.agents.adapters.{name}")
    with (
        TemporaryDirectory(prefix="rolecall-") as folder,
        Store(SqliteBackend(f"{folder}/store.db")) as store,
    ):
        flow, script = Path(folder, "warm-up.yaml"), Path(folder, "script.json")
        flow.write_text(_WORKFLOW, encoding="utf-8")
        script.write_text(
            json.dumps({"roles": {"worker": [{"output": {"$status": "done"}}]}}), encoding="utf-8"
        )
        workflow = registry.register(store, registry.load_file(str(flow)))
        ref = lifecycle.start(
            store, workflow, "Warm up.", cwd=folder, mask=Mask([]), agent=f"scripted:{script}"
        )
        asyncio.run(_step(store, StepOrder(thread.id_of(ref), "warm-up", "here")))
        _warm = store


async def _step(store: Store, order: StepOrder) -> dict[str, str]:
    """Take the step; return an empty result, or the error that prevented it."""
    cancel = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel.set)
    try:
        state = thread.find(store, order.thread).state
        engine = workspace.engine(store, agent=state.agent, folder=state.cwd)
        engine = replace(
            engine,
            find_workflow=lambda name, folder: _find_workflow(store, name, folder),
            lease_ms=order.lease_ms,
        )
        try:
            await engine.step(order.thread, cancel=cancel)
        finally:
            await engine.close()
    except RolecallError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {}


def _find_workflow(store: Store, name: str, folder: str) -> str:
    """The node of a workflow that plays a role, found by name. If it is a file of the project, its node is stored but
    not registered under the name, because only the service registers files."""
    found = registry.find(store, name, folder=folder)
    if not found.path:
        return found.node or ""
    draft = store.draft()
    node = registry.add_workflow(draft, registry.load_file(found.path))
    draft.commit()
    return node
