"""The machines of a fleet. Each keeps a ref about itself in the store and renews it regularly.

The ref `machine/<name>` records the machine's process, how many steps the machine can take and is taking, what it
lacks, and its problems. The ref `fleet/policy` holds the policy that a machine last published for the fleet. Read-only
commands import this module, so it must not depend on PostgreSQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import msgspec

from rolecall.errors import Conflict, Hint
from rolecall.service import queue
from rolecall.service.policy import ServicePolicy
from rolecall.store import holder
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store

POLICY = "fleet/policy"
_PREFIX = "machine/"


@dataclass(frozen=True)
class MachineSettings:
    """The settings of a machine."""

    name: str
    executor: str
    """An identifier of one run of the machine's process, different from those of earlier and later runs."""
    slots: int
    lease_ms: int
    folders: tuple[str, ...] = ()
    """The folders to which steps write. The machine takes no work while a disk that holds one of them is full."""

    @property
    def margin(self) -> float:
        """How many seconds before the end of its lease a step is ended."""
        return min(10.0, self.lease_ms / 6000)


@dataclass(frozen=True)
class Facts:
    """What a machine publishes about itself."""

    slots: int = 1
    threads: Sequence[str] = ()
    steps: int = 0
    per_minute: int = 0
    leads: bool = False
    open: bool = True
    """Whether the machine takes work. It does not while its disk is full or while it is about to stop."""
    agents: Sequence[str] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    """What is missing for each need, keyed by the need's text."""
    problems: Mapping[str, str] = field(default_factory=dict)


class FleetMember(NamedTuple):
    name: str
    executor: str
    """An identifier of one run of the machine's process, different from those of earlier and later runs."""
    is_alive: bool
    facts: Facts
    process: str
    since: int
    seen_at: int
    deadline: int
    host: str

    def describe(self) -> JsonObject:
        """Return the machine as plain values. If the machine is gone, its current work and state are empty."""
        now = self.facts if self.is_alive else Facts()
        return {
            "machine": self.name,
            "alive": self.is_alive,
            "leads": now.leads,
            "process": self.process,
            "since": self.since,
            "seen_at": self.seen_at,
            "slots": self.facts.slots,
            "busy": len(now.threads),
            "threads": list(now.threads),
            "agents": list(now.agents),
            "steps": self.facts.steps,
            "per_minute": now.per_minute,
            "problems": dict(now.problems),
        }


def list_machines(store: Store) -> list[FleetMember]:
    """Return every known machine, sorted by name."""
    now, found = store.now(), []
    for ref in store.refs(_PREFIX):
        state = ref.state
        facts = msgspec.convert(state, Facts)
        name, process = ref.name.removeprefix(_PREFIX), holder.describe(state["process"])
        times = (state["since"], state["at"], state["deadline"])
        host = holder.name_of_host(state["process"])
        found.append(FleetMember(name, state["executor"], _is_alive(ref, now), facts, process, *times, host))
    return found


def _is_alive(ref: Ref, now: int) -> bool:
    """Return whether a machine is alive: on this host by its process, on others by its deadline."""
    is_current = bool(now < ref.state["deadline"])
    return is_current and holder.is_alive({**ref.state["process"], "deadline": now + 1}, now=now)


def forget(store: Store, name: str) -> None:
    """Remove the entry of a machine that is gone."""
    ref = store.ref(_PREFIX + name)
    if ref is not None and not _is_alive(ref, store.now()):
        store.move(ref.name, ref, durable=False)


class Presence:
    """This machine's entry in the store. The machine counts as alive as long as the entry is renewed."""

    def __init__(self, store: Store, name: str, executor: str, *, lease_ms: int) -> None:
        self._store = store
        self._name = _PREFIX + name
        self._executor = executor
        self._lease_ms = lease_ms
        self._since = store.now()
        self._has_left = False

    def enter(self, facts: Facts) -> None:
        """Register the machine; raise `Conflict` if another machine with this name is alive."""
        ref = self._store.ref(self._name)
        if ref is not None and _is_alive(ref, self._store.now()):
            raise Conflict(
                f"a machine {ref.name.removeprefix(_PREFIX)!r} is in this fleet already: "
                f"{holder.describe(ref.state['process'])}",
                hint=Hint("Give this one a name of its own", "name_machine"),
            )
        self._move(ref, facts)

    def tell(self, facts: Facts) -> None:
        """Publish the machine's facts. Raise `Conflict` if another machine has taken the name in the meantime."""
        while True:
            ref = self._store.ref(self._name)
            if self._has_left:  # checked after reading the ref, so that a removed ref is not put back
                return
            if ref is not None and ref.state.get("executor") != self._executor:
                raise Conflict(
                    f"another machine now has the name {self._name.removeprefix(_PREFIX)!r}",
                    hint=Hint("Give this one a name of its own", "name_machine"),
                )
            with suppress(Conflict):  # an earlier call, which the server answered late, has moved the ref
                self._move(ref, facts)
                return

    def leave(self) -> None:
        """Remove the entry, even if another thread is renewing it at this moment."""
        self._has_left = True
        while (ref := self._store.ref(self._name)) and ref.state.get("executor") == self._executor:
            with suppress(Conflict):
                self._store.move(self._name, ref, durable=False)

    def _move(self, ref: Ref | None, facts: Facts) -> None:
        now = self._store.now()
        own = {
            "executor": self._executor,
            "process": holder.identify_self(self._executor),
            "since": self._since,
            "at": now,
            "deadline": now + self._lease_ms,
        }
        self._store.move(self._name, ref, state={**asdict(facts), **own}, durable=False)


def status(store: Store) -> JsonObject:
    """Return the machines, their slots, the queue and the throughput, as plain values."""
    slots = queue.read_refs(store, "slot/")
    found = list_machines(store)
    alive = [one for one in found if one.is_alive]
    # Workflows whose threads wait for something that no machine has, and what is missing.
    needs = Counter((slot.name.split("/")[1], slot.state.get("need", "")) for slot in slots)
    lacks = [one.facts.lacks for one in alive]
    stuck = [
        {"workflow": workflow, "threads": count, "reason": lacks[0][need]}
        for (workflow, need), count in sorted(needs.items())
        if lacks and all(need in one for one in lacks)
    ]
    return {
        "machines": [one.describe() for one in found],
        "running": len(slots),
        "limit": (read_policy(store) or ServicePolicy()).limit,
        "queued": queue.lengths(store),
        "per_minute": sum(one.facts.per_minute for one in alive),
        "stuck": stuck,
    }


# -- the fleet's policy --


def publish(store: Store, policy: ServicePolicy, *, machine: str) -> bool:
    """Make a policy the policy of the whole fleet, and return whether it changed."""
    plain = asdict(policy)
    while True:
        ref = store.ref(POLICY)
        if ref is not None and ref.state.get("policy") == plain:
            return False
        try:
            store.move(POLICY, ref, state={"policy": plain, "machine": machine, "at": store.now()})
            return True
        except Conflict:
            continue


def read_policy(store: Store) -> ServicePolicy | None:
    """Return the policy that a machine published, or None if no machine has published one."""
    ref = store.ref(POLICY)
    return msgspec.convert(ref.state["policy"], ServicePolicy) if ref is not None else None
