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
from rolecall.settings import config, stores
from rolecall.settings.config import StoreSettings
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.backend import Backend, Change, Ref
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import compose, lifecycle, thread
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
    url, durability = _settings or config.store_settings()
    take_step(StepOrder(**words), notes, stores.open_backend(url, durability=durability))


def take_step(order: StepOrder, notes: int, backend: Backend, **clock: Any) -> None:
    # The engine passes its environment on, so every process of the step carries this mark.
    mark = process.add_mark(config.inherited(), order.thread)[process.RUN_VARIABLE]
    config.set_variables({process.RUN_VARIABLE: mark})

    def note(kind: str, value: Any) -> None:
        os.write(notes, json.dumps([kind, value]).encode() + b"\n")

    def note_commit(change: Change, moved: Sequence[Ref]) -> None:
        for ref in moved:
            if ref.name == thread.ref_name(order.thread):
                note("lease", ref.state.get("lease"))
        for stream in {event.stream for event in change.events}:
            note("event", stream)

    slot = Slot(order.workflow, order.thread, 0)
    booking: Any = BookingBackend(backend, slot, host=order.host, committed=note_commit)
    store = Store(booking, **clock)
    if _warm is not None:
        store.learn_types(_warm)
    # The loop is not closed, because the process ends here.
    note("report", asyncio.new_event_loop().run_until_complete(_step(store, order)))


_settings: StoreSettings | None = None
"""The store's address, as it was when the zygote started."""
_warm: Store | None = None
"""The store of the warm-up, kept for the types that it has compiled."""
_MODULES = ("threads.members", *(f"agents.adapters.{name}" for name in ("command", "claude", "codex")))
"""What many steps import, beyond those of the trial step."""
_WORKFLOW = """\
name: warm-up
description: Is played once, in a store that is thrown away.
roles:
  worker: {description: Works., goal: Work., frontmatter: {type: object, properties: {$status: {const: done}}}}
graph: {$START: worker, worker: {done: $END}}
"""


def warm_up() -> None:
    """Take a trial step, so that everything a step imports and compiles is loaded before a worker is forked."""
    global _settings, _warm
    _settings = config.store_settings()
    for name in _MODULES:
        import_module(f"rolecall.{name}")
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
        asyncio.run(_step(store, StepOrder(thread.id_of(ref), "warm-up", "here"), is_trial=True))
        _warm = store


async def _step(store: Store, order: StepOrder, *, is_trial: bool = False) -> dict[str, str]:
    """Take the step; return an empty result, or the error that prevented it. The files of a trial are not recorded."""
    cancel = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel.set)

    def find_workflow(name: str, folder: str) -> str:
        """Store a file of the project without registering its name, because only the service registers files."""
        found = registry.find(store, name, folder=folder)
        if not found.path:
            return found.node or ""
        draft = store.draft()
        node = registry.add_workflow(draft, registry.load_file(found.path))
        draft.commit()
        return node

    try:
        state = thread.find(store, order.thread).state
        engine = compose.engine(store, agent=state.agent, folder=state.cwd)
        engine = replace(engine, find_workflow=find_workflow, lease_ms=order.lease_ms, queues_members=True)
        if is_trial:
            engine = replace(engine, trees=None)
        try:
            await engine.step(order.thread, cancel=cancel)
        finally:
            await engine.close()
    except RolecallError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {}
