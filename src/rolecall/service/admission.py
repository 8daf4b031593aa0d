"""Decide which threads may run now, given the policy, the current state and the time. Nothing is read or written here.

One machine and a fleet call the same function. It is total, and the same input always gives the same answer.

Threads are ordered by priority, then by time. A thread held back because its workflow is full does not block others,
and an agent that has reached its rate limit delays only the threads that need it. Threads that are already running come
first, so that work in progress finishes before new work begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rolecall.service.policy import ServicePolicy, StartRate
from rolecall.threads.report import moment, plural

DAY_MS = 86_400_000
MEMBERS = ""
"""The key under which the group members of all workflows are counted."""


@dataclass(frozen=True)
class Waiting:
    """A thread that waits to be admitted."""

    thread: str
    workflow: str
    priority: int
    since: int
    """When the thread was queued, in milliseconds."""
    agent: str = ""
    """The agent that the thread's next step calls, or empty if calls to that agent are not rate-limited."""
    is_begun: bool = False
    """Whether the thread ran before and was resumed. Such a thread is never discarded, however busy its workflow is."""
    is_member: bool = False
    """Whether the thread is a member of a group, which itself limits how many of its members run at once."""
    until: int = 0
    """When the limit that a provider has set for the agent ends, in milliseconds, or 0 if there is no limit."""


@dataclass(frozen=True)
class Due:
    """An admitted thread whose next step has not been started by any process."""

    thread: str
    since: int
    agent: str = ""


@dataclass(frozen=True)
class QueueState:
    """The facts on which `decide` bases its decision."""

    waiting: Sequence[Waiting] = ()
    admitted: Mapping[str, int] = field(default_factory=dict)
    """The number of admitted threads of each workflow. Group members count under `MEMBERS`."""
    due: Sequence[Due] = ()
    calls: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The times of recent calls, keyed by the agent's name in the policy's rates."""
    spent: float = 0.0
    """Dollars spent since midnight UTC."""


@dataclass(frozen=True)
class Admission:
    step: tuple[str, ...] = ()
    """The due threads that take their next step now."""
    admit: tuple[str, ...] = ()
    """The threads to admit, in order. Each takes its first step now."""
    discard: Mapping[str, str] = field(default_factory=dict)
    """The threads that will never run, each with the reason."""
    wait: Mapping[str, str] = field(default_factory=dict)
    """The threads that keep waiting, each with the reason."""
    look_again_at: int | None = None
    """When the passage of time alone can change the decision, or None if only an event can change it."""


def decide(policy: ServicePolicy, state: QueueState, now: int) -> Admission:
    meter = _Meter(policy, state, now)
    wait: dict[str, str] = {}
    step = []
    for due in sorted(state.due, key=lambda due: (due.since, due.thread)):
        if reason := meter.refuses(due.agent):
            wait[due.thread] = reason
        else:
            step.append(due.thread)
    admitted: Counter[str] = Counter(state.admitted)
    admit, left = [], []
    for one in sorted(state.waiting, key=turn_of):
        most, running, total = policy.of(one.workflow).concurrency, admitted[one.workflow], admitted.total()
        if one.until > now:
            reason = f"its agent has reached a limit until {moment(one.until)}"
            meter.look_again(one.until)
        elif running >= most and not one.is_member:
            reason = f"{one.workflow} has {plural(running, 'thread')} running (concurrency {most})"
        elif total >= policy.limit:
            reason = f"the service has {plural(total, 'thread')} running (limit {policy.limit})"
        else:
            reason = meter.refuses_to_admit(one.agent)
        if reason:
            wait[one.thread] = reason
            left.append(one)
        else:
            admitted[MEMBERS if one.is_member else one.workflow] += 1
            admit.append(one.thread)
    discard = _find_discarded(policy, left, admitted)
    still = {thread: reason for thread, reason in wait.items() if thread not in discard}
    return Admission(tuple(step), tuple(admit), discard, still, meter.look_again_at)


def turn_of(one: Waiting) -> tuple[int, int, str]:
    """Return the sort key of a waiting thread: higher priority first, then first come, first served."""
    return (-one.priority, one.since, one.thread)


class _Meter:
    """Keeps track of what the rates and the daily budget still allow. Each call that is not refused is counted."""

    def __init__(self, policy: ServicePolicy, state: QueueState, now: int) -> None:
        self._policy = policy
        self._now = now
        self._spent = state.spent
        self._calls = {
            name: select_recent(state.calls.get(name, ()), rate, now) for name, rate in policy.rates.items()
        }
        self.look_again_at: int | None = None

    def refuses_to_admit(self, agent: str) -> str:
        most = self._policy.spend_per_day
        if most is not None and self._spent >= most:
            self.look_again((self._now // DAY_MS + 1) * DAY_MS)
            return f"${self._spent:.2f} was spent today (spend_per_day {most:g})"
        return self.refuses(agent)

    def refuses(self, agent: str) -> str:
        call = self._policy.meter(agent)
        if call is None:
            return ""
        (name, rate), calls = call, self._calls[call.name]
        if len(calls) < rate.count:
            calls.append(self._now)
            return ""
        # Every call in the list is recent. The next call is allowed when the oldest of the last `rate.count` calls
        # expires.
        if rate.count > 0:
            self.look_again(sorted(calls)[-rate.count] + rate.per_seconds * 1000)
        return f"{name} has reached its call rate ({rate})"

    def look_again(self, at: int) -> None:
        at = max(at, self._now + 1)
        self.look_again_at = at if self.look_again_at is None else min(self.look_again_at, at)


def select_recent(calls: Sequence[int], rate: StartRate, now: int) -> list[int]:
    """Return the calls that count toward a rate. Clocks can differ between machines or be set back, so a call that
    appears to come from the far future does not count."""
    return [at for at in calls if abs(now - at) < rate.per_seconds * 1000]


def _find_discarded(policy: ServicePolicy, left: Sequence[Waiting], admitted: Counter[str]) -> dict[str, str]:
    by_workflow: dict[str, list[Waiting]] = {}
    for one in left:
        if not one.is_begun:
            by_workflow.setdefault(one.workflow, []).append(one)
    discard: dict[str, str] = {}
    for workflow, waiting in by_workflow.items():
        rule = policy.of(workflow)
        if rule.overflow == "drop":
            # Keep as many threads as the workflow has free slots, because only the service's limit, a rate or the daily
            # budget makes these threads wait.
            free = max(0, rule.concurrency - admitted[workflow])
            why = f"{workflow} was busy (concurrency {rule.concurrency}, overflow drop)"
            discard |= {one.thread: why for one in waiting[free:]}
        elif rule.max_queue is not None and len(waiting) > rule.max_queue:
            why = (
                f"more than {rule.max_queue} threads of {workflow} were waiting (max_queue {rule.max_queue})"
            )
            oldest_first = sorted(waiting, key=lambda one: (one.priority, one.since, one.thread))
            discard |= {one.thread: why for one in oldest_first[: len(waiting) - max(0, rule.max_queue)]}
    return discard
