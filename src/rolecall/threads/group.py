"""Decide what a group does next. The decision is a pure function of the members' `GroupProgress` and the arguments of
`plan`.

`members.py` starts, runs and stops the members as decided, and joins their results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from rolecall.store.canonical import JsonObject
from rolecall.threads.state import Status, ThreadState
from rolecall.workflow.model import Group

ALIKE = 3
"""If this many members fail for the same reason before any member is done, no more members are started."""
_WHOLE = ("steps", "turns", "tokens")
"""The amounts that are counted in whole numbers."""
_VARYING = re.compile(r"[0-9A-HJKMNP-TV-Z]{13,26}|\d+")

Amounts = Mapping[str, float]
"""Amounts such as tokens and cost, by the names of the limits."""


class Fate(StrEnum):
    """The outcome so far of a member that was started."""

    OPEN = "open"
    WAITS = "waits"
    """The member waits for a person."""
    SHORT = "short"
    """The member has used up its share of one of the parent's limits, and can continue with a larger share."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


def fate_of(state: ThreadState) -> Fate:
    match state.status:
        case Status.COMPLETED:
            return Fate.DONE
        case Status.KILLED | Status.DISCARDED:
            return Fate.STOPPED
        case Status.FAILED:
            return Fate.FAILED
        case Status.SUSPENDED:
            if state.waits_for_person:
                return Fate.WAITS
            limit = state.onward.limit.partition("=")[0] if state.onward else ""
            return Fate.SHORT if limit and "." not in limit else Fate.FAILED
    return Fate.OPEN


def events_of(state: ThreadState, kind: str, body: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield a member's recorded event in the form in which `members.py` reports it to watchers of the group. Leave out
    events about the service's queue."""
    is_by_service = body.get("by") == "service"
    if kind == "queued" or (kind == "started" and not is_by_service):
        yield "started", {"title": state.title}
    elif not is_by_service or kind == "crashed":
        yield kind, body
    has_stopped = kind in ("suspended", "failed", "killed", "discarded")
    if state.is_over and (has_stopped or body.get("status") == Status.COMPLETED):
        yield "over", {"status": fate_of(state).value, "reason": state.reason}


@dataclass
class GroupProgress:
    """The state of a group's members. Its size depends on the number of unfinished members, not on the size of the
    group."""

    count: int
    next: int = 1
    """The lowest number of a member that has not been started yet."""
    open: dict[int, Amounts] = field(default_factory=dict)
    """The members that run or can run, and the amounts reserved for each."""
    waits: dict[int, Amounts] = field(default_factory=dict)
    short: dict[int, Amounts] = field(default_factory=dict)
    done: int = 0
    failed: int = 0
    stopped: int = 0
    spent: dict[str, float] = field(default_factory=dict)
    """The amounts used by members that have ended."""
    first: list[str] = field(default_factory=list)
    """How the first members ended: the reason of a failed member, without its variable parts, or an empty string for
    any other member."""
    reason: str = ""
    """The full reason of the latest failure."""
    lacks: str = ""
    """The limit that prevented a member from being started, if that limit suspends the group."""

    def note(
        self, number: int, fate: Fate, *, amounts: Amounts, reason: str = "", is_new: bool = True
    ) -> None:
        """Record the outcome of a member. `amounts` are reserved for the member or, if it has ended, were used by it. A
        failure with `is_new` false does not count as one of the first failures, because a person has resumed the group
        since."""
        unfinished = {Fate.OPEN: self.open, Fate.WAITS: self.waits, Fate.SHORT: self.short}
        for place in unfinished.values():
            place.pop(number, None)
        if fate in unfinished:
            unfinished[fate][number] = amounts
            return
        self.done += fate is Fate.DONE
        self.failed += fate is Fate.FAILED
        self.stopped += fate is Fate.STOPPED
        self.spent = {key: self.spent.get(key, 0) + amounts.get(key, 0) for key in {*self.spent, *amounts}}
        if fate is Fate.FAILED:
            self.reason = reason
        if is_new and len(self.first) < ALIKE:
            # A reason begins with the role, which differs between members of a team.
            cause = _VARYING.sub("#", reason.partition(": ")[2] or reason)
            self.first.append(cause if fate is Fate.FAILED else "")

    @property
    def has_unstarted(self) -> bool:
        return self.next <= self.count

    @property
    def fails_alike(self) -> bool:
        return len(self.first) == ALIKE and len(set(self.first)) == 1 and bool(self.first[0])

    def total(self, key: str) -> float:
        held = [*self.open.values(), *self.waits.values(), *self.short.values()]
        return self.spent.get(key, 0) + sum(amounts.get(key, 0) for amounts in held)

    def dump(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}


def load_progress(stored: JsonObject) -> GroupProgress:
    known = dict(stored)
    for key in ("open", "waits", "short"):
        known[key] = {int(number): amounts for number, amounts in stored.get(key, {}).items()}
    return GroupProgress(**known)


class Decision(NamedTuple):
    start: Mapping[int, Amounts] = {}
    """The limits of each member to start, or to continue with a larger share, by the member's number."""
    stop: str = ""
    """Why the unfinished members are stopped, or empty to let them run."""
    join: bool = False
    suspend: str = ""
    lacks: str = ""
    """The limit whose remaining amount is too small for the next member."""


def plan(
    group: Group,
    progress: GroupProgress,
    *,
    now: int,
    deadline: int | None = None,
    limits: Amounts | None = None,
    used: Amounts | None = None,
    own: Callable[[int], Amounts] = lambda _number: {},
) -> Decision:
    """Decide what comes next. `limits` are the parent's limits, and `used` are the amounts that the parent itself has
    used. `own` returns the limits of a member's role."""
    if not (progress.open or progress.waits or progress.short or progress.has_unstarted):
        return Decision(join=True)
    if deadline is not None and now >= deadline:
        return Decision(stop=f"the group's deadline of {group.deadline:g} minutes has passed", join=True)
    if group.join == "first" and progress.done:
        return Decision(stop="another member was the first to be done", join=True)
    if group.on_failure == "stop" and progress.failed:
        return Decision(stop=f"another member has failed: {progress.reason}", join=True)
    if progress.fails_alike and progress.has_unstarted:
        reason = f"the first {ALIKE} members failed for the same reason: {progress.reason}"
        return Decision() if progress.open else Decision(suspend=reason)
    if progress.lacks:
        return Decision() if progress.open else _lack(progress.lacks)

    room = max(0, group.at_once - len(progress.open))
    last = min(progress.count, progress.next + room - 1)
    todo = [*progress.short, *range(progress.next, last + 1)][:room]
    left = {
        key: limit - (used or {}).get(key, 0) - progress.total(key) for key, limit in (limits or {}).items()
    }
    start: dict[int, Amounts] = {}
    for place, number in enumerate(todo):
        lacks = next((key for key, amount in left.items() if amount < (key in _WHOLE or 1e-6)), "")
        if lacks:
            return Decision(start, lacks=lacks) if progress.open or start else _lack(lacks)
        granted = {}
        for key, amount in left.items():
            share = min(amount, own(number).get(key, amount / (len(todo) - place)))
            share = max(1, share // 1) if key in _WHOLE else round(share, 6)
            left[key] = amount - share
            granted[key] = progress.short.get(number, {}).get(key, 0) + share
        start[number] = granted
    return Decision(start)


def _lack(limit: str) -> Decision:
    return Decision(suspend=f"too little is left of the limit on {limit} for the next member", lacks=limit)
