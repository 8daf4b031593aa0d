"""Check a step that an external agent put into the store itself.

The engine trusts nothing about such a step: the step must extend the head that the agent was given, have an output of
the role's type, and contain no secrets. A step from `rolecall.agentkit` is kept unchanged, so its attempts and totals
must be correct as well. If a step has only uwf's fields, the engine copies its output and conversation into a step of
its own.
"""

from __future__ import annotations

from typing import Any

from rolecall.errors import AgentError, NotFound, UsageError
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.schema import Type
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.loaded_thread import LoadedThread
from rolecall.threads.thread import ERROR_SCHEMA, STEP_SCHEMA, SUSPENSION_SCHEMA
from rolecall.workflow.model import SUSPEND
from rolecall.workflow.route import status_of


def read_step(store: Store, step: str, *, attempt: str | None) -> thread.Step:
    """Read the step with the id `step`. The attempts linked from a step that our own library wrote must lead back to
    `attempt`."""
    try:
        node = store.get(step)
    except NotFound as exc:
        raise _not_ours(f"it is not in the store: {step}") from exc
    fields = node.payload if isinstance(node.payload, dict) else {}
    for key in ("start", "role", "output", "detail"):
        if not isinstance(fields.get(key, ""), str):
            raise _not_ours(f"{key} must be a text: a step names its nodes by their ids")
    try:
        read = thread.Step(store, node)
        linked = read.payload.get("attempt")
    except (NotFound, UsageError) as exc:
        raise _not_ours(f"{step} is not a step, or its detail is not in the store") from exc
    if read.is_ours and store.type(node.type).schema != STEP_SCHEMA:
        raise _not_ours("it has a number, but its type is not that of a step")
    while read.is_ours and linked is not None and linked != attempt:
        linked = store.get(linked).payload.get("previous")
    if read.is_ours and linked != attempt:
        raise _not_ours("it does not link the attempts before it")
    return read


def check(
    store: Store,
    step: thread.Step,
    loaded: LoadedThread,
    role: str,
    *,
    number: int,
    totals: JsonObject,
    mask: Mask,
) -> None:
    """Raise `AgentError` unless the step extends the thread's head, plays `role` and has an acceptable output. `totals`
    is the thread's usage before the step."""
    payload = step.payload
    expected: dict[str, Any] = {
        "start": loaded.chain.start.id,
        "prev": loaded.chain.head if loaded.last else None,
        "role": role,
    }
    if step.is_ours:
        used = thread.count_usage(payload.get("usage"), ms=payload["completed_at"] - payload["started_at"])
        expected |= {"number": number, "totals": thread.add_totals(totals, role, used)}
    wrong = [
        f"{key} is {payload.get(key)!r}, not {value!r}"
        for key, value in expected.items()
        if payload.get(key) != value
    ]
    if wrong:
        raise _not_ours("; ".join(wrong))
    allowed = [dict(loaded.role(role).schema), SUSPENSION_SCHEMA]
    if loaded.playbook.moderator is not None:
        allowed.append(ERROR_SCHEMA)
    try:
        node = store.get(payload["output"])
    except (KeyError, NotFound) as exc:
        raise _not_ours("its output is not in the store") from exc
    if step.is_ours:
        if store.type(node.type).schema not in allowed:
            raise _not_ours(f"its output does not have the type that {role} must deliver")
    else:
        schema = SUSPENSION_SCHEMA if is_suspension(node.payload) else allowed[0]
        if misfits := Type(schema).misfits(node.payload):
            raise _not_ours(f"its output is not what {role} must deliver: {'; '.join(map(str, misfits))}")
    for what, value in (("output", step.output), ("answer", step.raw), ("report", step.body)):
        if mask.value(value) != value:
            raise _not_ours(f"its {what} holds a secret")


def is_suspension(output: Any) -> bool:
    return status_of(output) == SUSPEND


def _not_ours(reason: str) -> AgentError:
    return AgentError(
        f"the agent returned a step that is not the one asked for: {reason}",
        ending="failed",
        hint="The agent must open the same store and append one step to the given head, for the given role.",
    )
