"""A role that another workflow plays: its thread is started, let run, and read here.

The child is a thread like any other, shown, forked and resumed like any other; the parent's step links it.
Its id is the session of the parent's attempt, so a crash goes on with the same child.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rolecall.agents.protocol import Cancel, Played, Usage
from rolecall.errors import UsageError
from rolecall.threads import lifecycle, thread
from rolecall.threads.state import Status, ThreadRef, read_thread
from rolecall.threads.thread import Chain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rolecall.store.store import Store
    from rolecall.threads.engine import Engine
    from rolecall.threads.record import Recorder

DEEPEST = 8
"""How many workflows may play inside each other: a workflow that plays itself must come to an end."""


async def play(
    engine: Engine, parent: Recorder, cancel: Cancel, workflow: str, prompt: str, going_on: str | None
) -> Played:
    """Let the child run until it ends, is suspended or is interrupted. A child that an earlier step has used
    is done; only one whose parent's attempt did not come to a step is gone on with."""
    is_unfinished = going_on is not None and parent.going_on.since is None
    child = str(going_on) if is_unfinished else _started(engine, parent, workflow, prompt)
    parent.sign("session", {"session": child})
    if _status(engine.store, child) == "suspended":  # whoever resumed the parent means the child, too
        lifecycle.resume(engine.store, thread.find(engine.store, child), mask=engine.mask)

    def watch(kind: str, body: Mapping[str, Any]) -> None:
        if kind == "step":
            told = {"status": body["status"], "thread": child}
            parent.sign("tool_call", {"name": f"{workflow}/{body['role']}", "arguments": told})

    inner = replace(engine, watch=watch, environment=engine.environment_of(parent.turn.role(parent.role)))
    if _status(engine.store, child) not in thread.ENDED:  # one whose process died is taken over
        async for _ in inner.run(child, cancel=cancel):
            pass
    return _standing(engine.store, child)


def _started(engine: Engine, parent: Recorder, workflow: str, prompt: str) -> str:
    depth = _depth(engine.store, parent.thread)
    if depth >= DEEPEST:
        raise UsageError(
            f"workflows play inside each other {depth} deep, and {workflow!r} would be one more",
            hint="Look for a role that is played by the workflow it belongs to.",
        )
    node = engine.find_workflow(workflow, parent.workdir)
    ref = lifecycle.start(
        engine.store,
        node,
        prompt,
        cwd=parent.workdir,
        mask=engine.mask,
        bind=engine.bind,
        parent=parent.thread,
        work=engine.work,
    )
    return thread.id_of(ref)


def _depth(store: Store, name: str) -> int:
    depth, above = 0, read_thread(store, name)
    while above is not None and depth < DEEPEST:
        depth += 1
        above = read_thread(store, above.state.parent) if above.state.parent else None
    return depth


def _status(store: Store, name: str) -> Status:
    return thread.find(store, name).state.status


def _standing(store: Store, name: str) -> Played:
    ref = thread.find(store, name)
    last = Chain(store, ref.head).last
    return Played(
        name,
        ref.state.status,
        ref.state.reason,
        last.output if last else {},
        last.body if last else "",
        _used(store, ref),
    )


def _used(store: Store, ref: ThreadRef) -> Usage:
    """What all its steps and failed attempts have used."""
    used = [step.payload for step in Chain(store, ref.head)]
    waiting = store.ref(thread.attempt_name(thread.id_of(ref)))
    failed = [payload.get("attempt") for payload in used] + [waiting.target if waiting else None]
    while nodes := [node for node in failed if node]:
        attempts = [store.get(node).payload for node in nodes]
        used += attempts
        failed = [attempt.get("previous") for attempt in attempts]
    records = [payload.get("usage") or {} for payload in used]
    costs = [record["cost"] for record in records if record.get("cost")]
    total = {
        key: sum(record.get(key, 0) for record in records)
        for key in ("input_tokens", "output_tokens", "cached_tokens", "turns")
    }
    return Usage(**total, cost=round(sum(costs), 6) if costs else None)
