"""The machines of a fleet: each keeps a ref about itself in the store and renews it regularly.

`machine/<name>` has the process, how many steps it can take and is taking, what it lacks and its problems.
`fleet/policy` is the policy of the fleet, from the machine that last published one. Read-only commands import this
module, so it must not depend on PostgreSQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from rolecall.errors import Conflict, Hint
from rolecall.service.policy import Rate, ServicePolicy, WorkerLimits, WorkflowPolicy
from rolecall.store import holder
from rolecall.store.backend import Ref
from rolecall.store.store import Store

POLICY = "fleet/policy"
_PREFIX = "machine/"


class Member(NamedTuple):
    name: str
    executor: str
    """Identifies one run of the machine's process, as opposed to earlier and later ones."""
    is_alive: bool
    facts: Mapping[str, Any]

    @property
    def slots(self) -> int:
        """How many steps it can take at once."""
        return int(self.facts.get("slots", 1))

    @property
    def is_open(self) -> bool:
        """Whether it takes work: not while its disk is full or it is about to stop."""
        return bool(self.facts.get("open", True))


def list_machines(store: Store) -> list[Member]:
    """Every known machine, sorted by name."""
    now = store.now()
    return [
        Member(
            ref.name.removeprefix(_PREFIX), str(ref.state.get("executor", "")), _is_alive(ref, now), ref.state
        )
        for ref in store.refs(_PREFIX)
    ]


def _is_alive(ref: Ref, now: int) -> bool:
    """Whether a machine is alive. On this host its process is checked; on other hosts only its deadline is known."""
    is_current = bool(now < ref.state.get("deadline", 0))
    return is_current and holder.is_alive({**ref.state.get("process", {}), "deadline": now + 1}, now=now)


def forget(store: Store, name: str) -> None:
    """Remove the entry of a machine that is gone."""
    ref = store.ref(_PREFIX + name)
    if ref is not None and not _is_alive(ref, store.now()):
        store.move(ref.name, ref, durable=False)


class Presence:
    """This machine's entry in the store, alive as long as it is renewed."""

    def __init__(self, store: Store, name: str, executor: str, *, lease_ms: int) -> None:
        self._store = store
        self._name = _PREFIX + name
        self._executor = executor
        self._lease_ms = lease_ms
        self._since = store.now()
        self._has_left = False

    def enter(self, facts: Mapping[str, Any]) -> None:
        """Register the machine; raise `Conflict` if another machine with this name is alive."""
        ref = self._store.ref(self._name)
        if ref is not None and _is_alive(ref, self._store.now()):
            raise Conflict(
                f"a machine {ref.name.removeprefix(_PREFIX)!r} is in this fleet already: "
                f"{holder.describe(ref.state.get('process', {}))}",
                hint=Hint("Give this one a name of its own", "name_machine"),
            )
        self._move(ref, facts)

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Publish the machine's facts; raise `Conflict` if another machine took the name after a long silence."""
        ref = self._store.ref(self._name)
        if self._has_left:  # checked after reading the ref, so that a removed ref is not put back
            return
        if ref is not None and ref.state.get("executor") != self._executor:
            raise Conflict(
                f"another machine has the name {self._name.removeprefix(_PREFIX)!r} now",
                hint=Hint("Give this one a name of its own", "name_machine"),
            )
        self._move(ref, facts)

    def leave(self) -> None:
        """Remove the entry, even if another thread is renewing it at this moment."""
        self._has_left = True
        while (ref := self._store.ref(self._name)) and ref.state.get("executor") == self._executor:
            with suppress(Conflict):
                self._store.move(self._name, ref, durable=False)

    def _move(self, ref: Ref | None, facts: Mapping[str, Any]) -> None:
        now = self._store.now()
        own = {
            "executor": self._executor,
            "process": holder.me(self._executor),
            "since": self._since,
            "at": now,
            "deadline": now + self._lease_ms,
        }
        self._store.move(self._name, ref, state={**facts, **own}, durable=False)


# -- for display --


def status(store: Store) -> dict[str, Any]:
    """The machines, their slots, the queue and the throughput, as plain values."""
    from rolecall.service import queue

    slots = store.refs("slot/")
    found = list_machines(store)
    alive = [one for one in found if one.is_alive]
    policy = published(store) or ServicePolicy()
    return {
        "machines": [_shown(one) for one in found],
        "running": len(slots),
        "limit": policy.limit,
        "queued": queue.lengths(store),
        "per_minute": sum(one.facts.get("per_minute", 0) for one in alive),
        "stuck": _stuck(slots, alive),
    }


def _shown(one: Member) -> dict[str, Any]:
    facts = one.facts
    return {
        "machine": one.name,
        "alive": one.is_alive,
        "leads": one.is_alive and bool(facts.get("leads")),
        "process": holder.describe(facts.get("process", {})),
        "since": facts.get("since", 0),
        "seen_at": facts.get("at", 0),
        "slots": facts.get("slots", 0),
        "busy": len(facts.get("threads", ())) if one.is_alive else 0,
        "threads": list(facts.get("threads", ())) if one.is_alive else [],
        "steps": facts.get("steps", 0),
        "per_minute": facts.get("per_minute", 0) if one.is_alive else 0,
        "problems": dict(facts.get("problems", {})) if one.is_alive else {},
    }


def _stuck(slots: Sequence[Ref], alive: Sequence[Member]) -> list[dict[str, Any]]:
    """The workflows whose threads wait for something no machine has: how many threads, and what is missing."""
    waiting = Counter((slot.name.split("/")[1], slot.state.get("need", "")) for slot in slots)
    lacks = [one.facts.get("lacks", {}) for one in alive]
    return [
        {"workflow": workflow, "threads": count, "reason": lacks[0][need]}
        for (workflow, need), count in sorted(waiting.items())
        if lacks and all(need in one for one in lacks)
    ]


# -- the fleet's policy --


def publish(store: Store, policy: ServicePolicy, *, machine: str) -> bool:
    """Make a policy the policy of the whole fleet, and return whether it changed."""
    while True:
        ref = store.ref(POLICY)
        if ref is not None and ref.state.get("policy") == _out(policy):
            return False
        try:
            store.move(POLICY, ref, state={"policy": _out(policy), "machine": machine, "at": store.now()})
            return True
        except Conflict:
            continue


def published(store: Store) -> ServicePolicy | None:
    ref = store.ref(POLICY)
    return _in(ref.state["policy"]) if ref is not None else None


def _out(policy: ServicePolicy) -> dict[str, Any]:
    return asdict(policy)


def _in(told: Mapping[str, Any]) -> ServicePolicy:
    return ServicePolicy(
        limit=told["limit"],
        workflows={name: WorkflowPolicy(**rule) for name, rule in told["workflows"].items()},
        default=WorkflowPolicy(**told["default"]),
        rates={name: Rate(**rate) for name, rate in told["rates"].items()},
        spend_per_day=told["spend_per_day"],
        worker=WorkerLimits(**told["worker"]),
    )
