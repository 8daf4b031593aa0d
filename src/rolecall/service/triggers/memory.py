"""The memory of a trigger, in the ref `trigger/<project>/<workflow>/<name>`.

The ref moves in the transaction that creates the thread for a signal, so a restart neither repeats nor loses a signal.
This module also decides, from the memory and the time, whether a signal starts a thread.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime

from rolecall.service.triggers.trigger import Trigger
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store

MOST_KEYS = 200
"""How many of the latest dedupe keys are kept."""


@dataclass(frozen=True)
class TriggerMemory:
    looks_at: str = ""
    """A digest of what the trigger looks at. If the digest changes, values seen earlier no longer count."""
    since: int = 0
    """When the trigger was first seen or last resumed. All times in this class are in milliseconds."""
    scheduled: int = 0
    """The last planned time that was handled."""
    seen: str = ""
    """The digest of the last value seen."""
    seen_at: int = 0
    """When that value was first seen or, if no value has been seen, when the trigger was resumed."""
    fired: int = 0
    """How many threads the trigger has started."""
    fired_at: int = 0
    thread: str = ""
    """The last thread that the trigger started."""
    keys: tuple[str, ...] = ()
    """Digests of the latest dedupe keys."""
    is_paused: bool = False
    problem: str = ""
    """The last problem, or empty after a success."""
    skipped: str = ""
    """Why the last skipped signal started no thread."""
    skipped_at: int = 0


@dataclass(frozen=True)
class Signal:
    """An occurrence that can start a thread."""

    data: JsonObject
    """The values that a prompt can use."""
    key: str = ""
    """Of the signals with the same key, only the first counts. If the key is empty, every signal counts."""
    signed: str = ""
    """A second key: the digest of a signed body, because the headers of a replayed request can differ."""
    slot: int = 0
    """The planned time to which the signal belongs, or 0."""
    seen: str = ""
    """The digest of the value seen. If it is empty, every signal counts."""
    seen_at: int = 0
    is_by_hand: bool = False
    """Whether a person fired the trigger. In that case, only an error prevents the start of a thread."""


def ref_name(project: str, trigger: Trigger) -> str:
    return f"trigger/{project}/{trigger.id}"


def recall(store: Store, project: str, trigger: Trigger, *, now: int) -> tuple[Ref | None, TriggerMemory]:
    """Return a trigger's ref and its memory, which starts from now if the trigger or its source is new."""
    ref = store.ref(ref_name(project, trigger))
    memory = from_state(ref.state) if ref is not None else TriggerMemory()
    looks_at = digest_of(repr((trigger.source, trigger.schedule)))
    if memory.looks_at == looks_at:
        return ref, memory
    return ref, replace(memory, looks_at=looks_at, since=now, scheduled=0, seen="", seen_at=0)


def is_new(ref: Ref | None, memory: TriggerMemory) -> bool:
    """Return whether the memory differs from the stored one because the trigger starts from now."""
    return ref is None or from_state(ref.state).looks_at != memory.looks_at


def save(store: Store, project: str, trigger: Trigger, ref: Ref | None, memory: TriggerMemory) -> Ref:
    """Save the memory. It survives the end of the process, but might not survive a power failure, after which some work
    is repeated."""
    return store.move(ref_name(project, trigger), ref, state=to_state(memory), durable=False)


def from_state(state: JsonObject) -> TriggerMemory:
    known = {field.name for field in fields(TriggerMemory)}
    kept = {key: value for key, value in state.items() if key in known}
    return TriggerMemory(**{**kept, "keys": tuple(state.get("keys", ()))})


def to_state(memory: TriggerMemory) -> JsonObject:
    return {key: value for key, value in (asdict(memory) | {"keys": list(memory.keys)}).items() if value}


def anchor(memory: TriggerMemory) -> int:
    """Return the time from which a schedule counts."""
    return max(memory.scheduled, memory.since)


# -- handling a signal --

COOLING = "it is cooling down"
UNCHANGED = "nothing changed"
FIRST = "this is the first look"
_QUIET = (UNCHANGED, FIRST)
"""Reasons that occur after every look and are not worth recording."""


def refusal(trigger: Trigger, memory: TriggerMemory, signal: Signal, now: int) -> str:
    """Return why a signal starts no thread, or an empty string if it does."""
    if signal.is_by_hand:
        return ""
    if memory.is_paused:
        return "the trigger is paused"
    if signal.slot and signal.slot <= memory.scheduled:
        return "this time was already handled"
    if signal.seen and signal.seen == memory.seen:
        return UNCHANGED
    # The first look counts if it found files that have changed since the trigger was resumed.
    if signal.seen and not memory.seen and not (memory.seen_at and signal.data.get("files")):
        return FIRST
    if signal.key and digest_of(signal.key) in memory.keys:
        return f"a signal with the key {signal.key[:80]!r} was already handled"
    if signal.signed and digest_of(signal.signed) in memory.keys:
        return "a request with the same signed body was already handled"
    # A clock that was set back must not prolong the cooldown.
    rested = now - memory.fired_at
    if memory.fired_at and 0 <= rested < trigger.cooldown * 1000:
        return COOLING
    return ""


def after_skip(memory: TriggerMemory, signal: Signal, reason: str, now: int) -> TriggerMemory:
    """Return the memory after a signal without a thread. A change during the cooldown is left for the next look."""
    after = replace(memory, scheduled=max(memory.scheduled, signal.slot))
    if signal.seen and reason == UNCHANGED:
        after = replace(after, problem="")
    elif signal.seen and reason != COOLING:
        after = replace(after, seen=signal.seen, seen_at=signal.seen_at, problem="")
    return after if reason in _QUIET else replace(after, skipped=reason, skipped_at=now)


def after_start(memory: TriggerMemory, signal: Signal, thread: str, now: int) -> TriggerMemory:
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
    )


def resume(memory: TriggerMemory, now: int) -> TriggerMemory:
    """Return the memory of a trigger that is resumed after a pause. Signals that arrived during the pause are lost."""
    return replace(memory, is_paused=False, since=now, seen="", seen_at=now, problem="")


def is_resumed(memory: TriggerMemory) -> bool:
    """Return whether a trigger has not looked at anything since it was resumed."""
    is_quiet = not memory.problem and memory.skipped_at < memory.seen_at
    return bool(memory.seen_at and not memory.seen and is_quiet)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
