"""What is remembered of a trigger, in the ref `trigger/<project>/<workflow>/<name>`.

It moves in the transaction that makes the thread a signal started, so that a restart neither starts one twice nor
forgets. Whether a signal starts a thread is decided here too, by what is remembered and the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rolecall.service.triggers.trigger import Trigger
from rolecall.store.backend import Ref
from rolecall.store.store import Store

MOST_KEYS = 200
"""How many dedupe keys are remembered, the latest ones."""
_LONGEST = 500


@dataclass(frozen=True)
class Memory:
    looks_at: str = ""
    """A digest of what the trigger looks at; when that becomes another, what was seen before says nothing."""
    since: int = 0
    """When it was first seen, or taken up again, in milliseconds like all times here."""
    scheduled: int = 0
    """The planned time that was heeded last."""
    seen: str = ""
    """The digest of the value that was seen last."""
    seen_at: int = 0
    """When it was seen first; with nothing seen, when it was resumed."""
    fired: int = 0
    """How many threads it has started."""
    fired_at: int = 0
    thread: str = ""
    """The one it started last."""
    keys: tuple[str, ...] = ()
    """Digests of the latest dedupe keys."""
    is_paused: bool = False
    problem: str = ""
    """What went wrong last; empty once something went well."""
    problem_at: int = 0
    skipped: str = ""
    """Why the last signal that started no thread started none."""
    skipped_at: int = 0


@dataclass(frozen=True)
class Signal:
    """Something happened that may start a thread."""

    data: Mapping[str, Any]
    """What a prompt can name."""
    key: str = ""
    """Of signals with the same key only the first counts; empty: each counts."""
    signed: str = ""
    """A second key: the digest of a signed body. Headers are not signed, so a replayed request can carry any other
    key."""
    slot: int = 0
    """The planned time it belongs to; 0: none."""
    seen: str = ""
    """The digest of the value that was seen; empty: every signal counts."""
    seen_at: int = 0
    is_by_hand: bool = False
    """Somebody asked for it, so nothing but a mistake keeps it from starting a thread."""


def ref_name(project: str, trigger: Trigger) -> str:
    return f"trigger/{project}/{trigger.id}"


def recall(store: Store, project: str, trigger: Trigger, *, now: int) -> tuple[Ref | None, Memory]:
    """The ref, and what is remembered; a trigger that was never seen, or looks at something else now, begins now."""
    ref = store.ref(ref_name(project, trigger))
    memory = from_state(ref.state) if ref is not None else Memory()
    looks_at = _looks_at(trigger)
    if memory.looks_at == looks_at:
        return ref, memory
    return ref, replace(memory, looks_at=looks_at, since=now, scheduled=0, seen="", seen_at=0)


def is_new(ref: Ref | None, memory: Memory) -> bool:
    """Whether what was recalled is not what is kept, because the trigger begins now."""
    return ref is None or from_state(ref.state).looks_at != memory.looks_at


def save(store: Store, project: str, trigger: Trigger, ref: Ref | None, memory: Memory) -> Ref:
    """Nothing of this may be lost with the process; with the power it may, and is done again."""
    return store.move(ref_name(project, trigger), ref, state=to_state(memory), durable=False)


def from_state(state: Mapping[str, Any]) -> Memory:
    known = {field.name for field in fields(Memory)}
    kept = {key: value for key, value in state.items() if key in known}
    return Memory(**{**kept, "keys": tuple(state.get("keys", ()))})


def to_state(memory: Memory) -> dict[str, Any]:
    return {key: value for key, value in (asdict(memory) | {"keys": list(memory.keys)}).items() if value}


def anchor(memory: Memory) -> int:
    """What a schedule counts from."""
    return max(memory.scheduled, memory.since)


# -- what a signal does --

COOLING = "it is cooling down"
UNCHANGED = "nothing changed"
FIRST = "this is the first look"
_QUIET = (UNCHANGED, FIRST)
"""What happens at every look, and is nothing to tell of."""


def refusal(trigger: Trigger, memory: Memory, signal: Signal, now: int) -> str:
    """Why a signal starts no thread; empty: it does."""
    if signal.is_by_hand:
        return ""
    if memory.is_paused:
        return "the trigger is paused"
    if signal.slot and signal.slot <= memory.scheduled:
        return "this time was already handled"
    if signal.seen and signal.seen == memory.seen:
        return UNCHANGED
    if signal.seen and not memory.seen and not _is_change(memory, signal):
        return FIRST
    if signal.key and digest_of(signal.key) in memory.keys:
        return f"a signal with the key {signal.key[:80]!r} was already handled"
    if signal.signed and digest_of(signal.signed) in memory.keys:
        return "a request with the same signed body was already handled"
    # A clock that was put back must not make a short rest a long one.
    rested = now - memory.fired_at
    if memory.fired_at and 0 <= rested < trigger.cooldown * 1000:
        return COOLING
    return ""


def after_skip(memory: Memory, signal: Signal, reason: str, now: int) -> Memory:
    """What is remembered of a signal that started no thread. A change that came while the trigger cooled down
    is still one when it is looked at again."""
    after = replace(memory, scheduled=max(memory.scheduled, signal.slot))
    if signal.seen and reason == UNCHANGED:
        after = replace(after, problem="", problem_at=0)
    elif signal.seen and reason != COOLING:
        after = replace(after, seen=signal.seen, seen_at=signal.seen_at, problem="", problem_at=0)
    return after if reason in _QUIET else replace(after, skipped=reason, skipped_at=now)


def after_start(memory: Memory, signal: Signal, thread: str, now: int) -> Memory:
    keys = [digest_of(key) for key in (signal.key, signal.signed) if key]
    return replace(
        memory,
        scheduled=max(memory.scheduled, signal.slot),
        seen=signal.seen or memory.seen,
        seen_at=signal.seen_at or memory.seen_at,
        fired=memory.fired + 1,
        fired_at=now,
        thread=thread,
        keys=(*memory.keys, *keys)[-MOST_KEYS * (len(keys) or 1) :],
        problem="",
        problem_at=0,
    )


def after_trouble(memory: Memory, slot: int, problem: str, now: int) -> Memory:
    return replace(memory, scheduled=max(memory.scheduled, slot), problem=problem[:_LONGEST], problem_at=now)


def resumed(memory: Memory, now: int) -> Memory:
    """A trigger that was paused goes on; what happened in the meantime is not made up for."""
    return replace(memory, is_paused=False, since=now, seen="", seen_at=now, problem="", problem_at=0)


def is_resumed(memory: Memory) -> bool:
    """Whether nothing was looked at since a trigger was resumed."""
    is_quiet = not memory.problem and memory.skipped_at < memory.seen_at
    return bool(memory.seen_at and not memory.seen and is_quiet)


def _is_change(memory: Memory, signal: Signal) -> bool:
    """Whether the first look after a trigger was resumed has found files that were changed since it was."""
    return bool(memory.seen_at and signal.data.get("files"))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _looks_at(trigger: Trigger) -> str:
    return digest_of(repr((trigger.source, trigger.schedule)))
