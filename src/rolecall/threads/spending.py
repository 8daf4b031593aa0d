"""The usage of steps, by local day, workflow, role and agent.

A step is counted once, in the thread that took it. A fork does not count the steps that it shares, and a step played by
another thread is counted in that thread. Failed attempts are counted with the step that followed or, until there is
one, for the role whose turn it is. The counts stay in memory, so a second count reads only new steps.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from time import monotonic
from typing import NamedTuple, TypedDict

from rolecall.errors import Damaged, NotFound
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import is_thread_id
from rolecall.store.store import Store
from rolecall.threads.state import GROUP, Status, ThreadRef, read_note, read_thread
from rolecall.threads.thread import Chain
from rolecall.threads.views import attempts_from

_PAGE = 1_000


GROUPINGS = ("day", "workflow", "role", "agent", "thread")


class Account(NamedTuple):
    """The attributes by which amounts are grouped."""

    day: str
    """The local day, or empty for usage before the counted time."""
    workflow: str
    role: str
    agent: str


@dataclass(slots=True)
class Amount:
    steps: int = 0
    attempts: int = 0
    """The number of failed attempts."""
    tokens: int = 0
    cost: float = 0.0
    """The cost in dollars, as reported by agents."""
    unpriced: int = 0
    """The number of steps and attempts that used tokens but reported no cost."""
    unpriced_tokens: int = 0
    minutes: float = 0.0

    def add(self, usage: JsonObject, ms: int) -> None:
        tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
        self.tokens += tokens
        self.cost += usage.get("cost") or 0.0
        if tokens and usage.get("cost") is None:
            self.unpriced += 1
            self.unpriced_tokens += tokens
        self.minutes += ms / 60_000


@dataclass
class Spent:
    """The usage of one day, workflow, role, agent or thread, or the total."""

    name: str
    title: str = ""
    threads: int = 0
    """The number of threads that somebody started. Threads that play a role of another thread are not counted."""
    completed: int = 0
    amount: Amount = field(default_factory=Amount)
    estimated: float = 0.0
    """The estimated cost, in dollars, of steps and attempts that reported no cost. The estimate uses the average price
    of the agent's other tokens."""
    unknown: int = 0
    """The number of steps and attempts whose cost was not reported and cannot be estimated."""

    @property
    def spent(self) -> float:
        return self.amount.cost + self.estimated

    def add(self, amount: Amount, rate: float | None) -> None:
        _merge(self.amount, amount)
        if rate is None:
            self.unknown += amount.unpriced
        else:
            self.estimated += amount.unpriced_tokens * rate


class SpendingSummary(NamedTuple):
    total: Spent
    rows: list[Spent]


@dataclass(slots=True)
class _Known:
    head: str = ""
    """The last step that has been counted."""
    updated: int = 0
    workflow: str = ""
    title: str = ""
    parent: str = ""
    """The thread whose role this thread plays, or whose member it is; empty if somebody started this thread."""
    is_completed: bool = False
    amounts: dict[Account, Amount] = field(default_factory=dict)
    """The usage of the thread's steps, including the failed attempts before each step."""
    pending: dict[Account, Amount] = field(default_factory=dict)
    """The usage of failed attempts after the last step."""


class SpendingRow(TypedDict):
    """An `Account` and its `Amount` as JSON."""

    day: str
    workflow: str
    role: str
    agent: str
    steps: int
    attempts: int
    tokens: int
    cost: float
    unpriced: int
    unpriced_tokens: int
    minutes: float


class SpendingCount(TypedDict):
    """What threads have used, as far as they have been counted."""

    since: int
    threads: int
    """The number of threads, without those that play a role of another thread or are members of a group."""
    completed: int
    left: int
    """The number of threads that remain for the next call."""
    rows: list[SpendingRow]


class Ledger:
    """The amounts of all threads in a store. The first count reads all threads; a later count reads only threads that
    have recorded an event since. Usage before `since`, in milliseconds, is counted only to find prices."""

    def __init__(self, since: int = 0) -> None:
        self._since = since
        self._known: dict[str, _Known] = {}
        self._waiting: deque[str] | None = None
        """The threads still to be read, newest first, or None before the first call to `read`."""
        self._position = 0
        """The number of the last event that was considered."""

    def read(self, store: Store, *, since: int, seconds: float) -> SpendingCount:
        """Return the amounts of threads that moved after `since`, in milliseconds. Counting stops after `seconds`
        seconds; the reply then says how many threads are left, and the next call continues."""
        until = monotonic() + seconds
        if (waiting := self._waiting) is None:
            self._position = store.newest_event()
            waiting = deque(name.removeprefix("thread/") for name in store.backend.names("thread/"))
            self._waiting = waiting
        else:
            changed: dict[str, None] = {}
            while events := store.events(after=self._position, limit=_PAGE):
                changed |= dict.fromkeys(event.stream for event in events if is_thread_id(event.stream))
                self._position = events[-1].seq
            waiting.extendleft(changed)
        while waiting and monotonic() < until:
            ident = waiting.popleft()
            with suppress(NotFound, Damaged):  # count as much of a damaged thread as can be read
                if (ref := read_thread(store, ident)) is not None:
                    known = self._known.setdefault(ident, _Known())
                    known.updated = ref.ref.updated
                    known.workflow, known.title = intern(ref.state.name), ref.state.title
                    known.parent = ref.state.parent or ""
                    known.is_completed = ref.state.status == Status.COMPLETED
                    self._count(store, ref, known)
        first_day, rows = _day(since), dict[Account, Amount]()
        found = [known for known in self._known.values() if known.updated >= since]
        for one in found:
            for account, amount in (*one.amounts.items(), *one.pending.items()):
                if account.day >= first_day:
                    _merge(rows.setdefault(account, Amount()), amount)
        return {
            "since": since,
            "threads": sum(not one.parent for one in found),
            "completed": sum(one.is_completed and not one.parent for one in found),
            "left": len(waiting),
            "rows": [_show(account, amount) for account, amount in sorted(rows.items())],
        }

    def summarize(self, *, by: str) -> SpendingSummary:
        """Return the usage so far for each day, workflow, role, agent or thread, as chosen by `by`. Sort days by date,
        and anything else by cost, the highest first. Usage of a thread that plays a role counts for the thread that
        somebody started, and for the workflow of that thread."""
        # The price of a token for each agent, from its steps and attempts that reported a cost.
        sums: dict[str, Amount] = {}
        for one in self._known.values():
            for account, amount in (*one.amounts.items(), *one.pending.items()):
                _merge(sums.setdefault(account.agent, Amount()), amount)
        priced = {agent: amount.tokens - amount.unpriced_tokens for agent, amount in sums.items()}
        rates = {
            agent: sums[agent].cost / count for agent, count in priced.items() if count and sums[agent].cost
        }
        total, groups = Spent("all"), dict[str, Spent]()
        for ident, one in self._known.items():
            started = ident
            while (parent := self._known[started].parent) in self._known:
                started = parent
            root = self._known[started]
            whole = {"thread": started, "workflow": root.workflow}.get(by)
            touched = [total]
            if whole is not None:
                title = root.title if by == "thread" else ""
                touched.append(groups.setdefault(whole, Spent(whole, title)))
            if one is root and one.updated >= self._since:
                for group in touched:
                    group.threads += 1
                    group.completed += one.is_completed
            for account, amount in (*one.amounts.items(), *one.pending.items()):
                if not account.day:
                    continue
                name = getattr(account, by) if whole is None else whole
                for group in (total, groups.setdefault(name, Spent(name))):
                    group.add(amount, rates.get(account.agent))
        rows = [one for one in groups.values() if one.amount.steps or one.amount.attempts]
        rows.sort(key=lambda one: one.name)
        if by != "day":
            rows.sort(key=lambda one: (-one.spent, -one.amount.tokens))
        return SpendingSummary(total, rows)

    def _count(self, store: Store, ref: ThreadRef, known: _Known) -> None:
        """Count the steps taken since the thread was last counted, and recount the attempts after the last step."""
        note, known.pending = read_note(store, ref.id), {}
        # A thread that cannot be read to its start is not counted again.
        head, known.head = known.head, ref.head
        self._count_attempts(store, note.attempt if note else None, ref.state.name, known.pending)
        for step in Chain(store, ref.head):
            if step.id in (head, ref.state.forked_from):
                break
            payload = step.payload
            self._count_attempts(store, payload.get("attempt"), ref.state.name, known.amounts)
            if step.role.startswith("$") or step.agent == GROUP or payload.get("children"):
                continue
            ended = payload["completed_at"]
            amount = self._amount_of(known.amounts, ended, ref.state.name, step.role, step.agent)
            amount.steps += 1
            amount.add(payload.get("usage") or {}, ended - payload["started_at"])

    def _count_attempts(
        self, store: Store, newest: str | None, workflow: str, amounts: dict[Account, Amount]
    ) -> None:
        for one in attempts_from(store, newest, with_texts=False):
            amount = self._amount_of(amounts, one["timestamp"], workflow, one["role"], one["agent"])
            amount.attempts += 1
            amount.add(one["usage"], one["durationMs"])

    def _amount_of(self, amounts: dict[Account, Amount], at: int, *rest: str) -> Amount:
        return amounts.setdefault(Account(_day(at) if at >= self._since else "", *rest), Amount())


def _show(account: Account, amount: Amount) -> SpendingRow:
    return {
        "day": account.day,
        "workflow": account.workflow,
        "role": account.role,
        "agent": account.agent,
        "steps": amount.steps,
        "attempts": amount.attempts,
        "tokens": amount.tokens,
        "cost": amount.cost,
        "unpriced": amount.unpriced,
        "unpriced_tokens": amount.unpriced_tokens,
        "minutes": amount.minutes,
    }


def _merge(total: Amount, more: Amount) -> None:
    for name in Amount.__slots__:
        setattr(total, name, getattr(total, name) + getattr(more, name))


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().date().isoformat()
