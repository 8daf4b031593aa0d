"""A step that an external agent has put into the store itself: is it the one that was asked for?

Such an agent had the store in its hands, so nothing about its step is believed: it must extend the head that was
given out, with the attempts before it and totals that add up, of the type its role has to give, without secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecall import thread
from rolecall.errors import AgentError, NotFound
from rolecall.mask import Mask
from rolecall.store.store import Store
from rolecall.thread import ERROR_SCHEMA, STEP_SCHEMA, SUSPENSION_SCHEMA
from rolecall.turn import Turn


def found(store: Store, step: str, *, attempt: str | None) -> thread.Step:
    """The step `step`, if it is one and links the attempts from `attempt` on."""
    try:
        node = store.get(step)
    except NotFound as exc:
        raise _not_ours(f"it is not in the store: {step}") from exc
    if store.type(node.type).schema != STEP_SCHEMA:
        raise _not_ours(f"{step} is a node of another type")
    linked = node.payload.get("attempt")
    while linked is not None and linked != attempt:
        linked = store.get(linked).payload.get("previous")
    if linked != attempt:
        raise _not_ours("it does not link the attempts before it")
    return thread.Step(store, node)


def check(
    store: Store,
    step: thread.Step,
    turn: Turn,
    role: str,
    *,
    number: int,
    totals: Mapping[str, Any],
    mask: Mask,
) -> None:
    """Refuse a step that does not go on from where `turn` is. `totals` are those before it."""
    payload = step.payload
    used = thread.counted(payload.get("usage"), ms=payload["completed_at"] - payload["started_at"])
    expected = {
        "start": turn.chain.start.id,
        "prev": turn.chain.head if turn.last else None,
        "number": number,
        "role": role,
        "totals": thread.add_totals(totals, role, used),
    }
    wrong = [
        f"{key} is {payload[key]!r}, not {value!r}"
        for key, value in expected.items()
        if payload[key] != value
    ]
    if wrong:
        raise _not_ours("; ".join(wrong))
    _check_output(store, step, turn, role)
    _check_secrets(step, mask)


def _check_output(store: Store, step: thread.Step, turn: Turn, role: str) -> None:
    allowed = [dict(turn.role(role).schema), SUSPENSION_SCHEMA]
    if turn.playbook.moderator is not None:
        allowed.append(ERROR_SCHEMA)
    if store.type(store.get(step.payload["output"]).type).schema not in allowed:
        raise _not_ours(f"its output has another type than {role} has to give")


def _check_secrets(step: thread.Step, mask: Mask) -> None:
    told = {"its output": step.output, "its answer": step.raw, "its report": step.body}
    for what, value in told.items():
        if mask.value(value) != value:
            raise _not_ours(f"{what} holds a secret")


def _not_ours(reason: str) -> AgentError:
    return AgentError(
        f"the agent returned a step that is not the one asked for: {reason}",
        ending="failed",
        hint="It must open the same store and put one step on the head it was given, for the role it was given.",
    )
