"""How many threads may run, and what becomes of those that may not: the values, and how a project writes them.

    service:
      limit: 16                    # threads at once, of all workflows
      rates: {claude: 30/min}      # calls of an agent
      spend_per_day: 20            # dollars, as the agents report them
      worker: {memory_mb: 4096, cpu_minutes: 240}
    workflows:
      review-code: {concurrency: 3, overflow: queue, max_queue: 20, priority: 5}
      clean-up: {concurrency: 1, overflow: drop}

Plain values, and a reader that reports every problem at once. Which file the sections stand in is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

Overflow = Literal["queue", "drop"]
HIGHEST = 9
"""Priorities go from 0 to this; the higher one is admitted first."""
MOST_CALLS = 1_000
"""The most calls a rate may speak of: each of them is remembered until it is old enough."""

WORKFLOW_KEYS = ("concurrency", "overflow", "max_queue", "priority")
SERVICE_KEYS = ("limit", "rates", "spend_per_day", "worker")
WORKER_KEYS = ("memory_mb", "cpu_minutes")
_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
_RATE = re.compile(r"\s*([0-9]{1,9})\s*/\s*(?:([0-9]{1,6})\s*)?([a-z]+)\s*")
_NAME = re.compile(r"[A-Za-z0-9@._$-]+")


@dataclass(frozen=True)
class WorkflowPolicy:
    concurrency: int = 1
    """Threads of the workflow at once."""
    overflow: Overflow = "queue"
    """What becomes of a thread when as many run already: it waits, or it is discarded."""
    max_queue: int | None = None
    """How many may wait; of more, the oldest of the lowest priority is discarded. None: any number."""
    priority: int = 0
    """Of its threads where nobody gives one."""


@dataclass(frozen=True)
class Rate:
    """At most `count` calls within any `per_seconds`."""

    count: int
    per_seconds: int

    def __str__(self) -> str:
        unit = {1: "s", 60: "min", 3600: "h", 86400: "day"}.get(self.per_seconds, f"{self.per_seconds}s")
        return f"{self.count}/{unit}"


@dataclass(frozen=True)
class WorkerLimits:
    """What one process of a step may use; the processes that it starts have the same limits, each for itself."""

    memory_mb: int | None = 4096
    cpu_minutes: int | None = 240


@dataclass(frozen=True)
class ServicePolicy:
    limit: int = 16
    """Threads at once, of all workflows."""
    workflows: Mapping[str, WorkflowPolicy] = field(default_factory=dict)
    default: WorkflowPolicy = WorkflowPolicy()
    """Of workflows that are not named."""
    rates: Mapping[str, Rate] = field(default_factory=dict)
    """By the name of an agent, or by its kind: what stands before the colon of `command:prog`."""
    spend_per_day: float | None = None
    """Dollars that may be spent before no further thread is admitted that day."""
    worker: WorkerLimits = WorkerLimits()

    def of(self, workflow: str) -> WorkflowPolicy:
        return self.workflows.get(workflow, self.default)

    def metered(self, agent: str) -> str | None:
        """The name under which calls of an agent are counted; None: they are not."""
        return next((name for name in (agent, agent.partition(":")[0]) if name in self.rates), None)


# -- reading --


class Problem(NamedTuple):
    """Something wrong with a section: where, what, and what to do about it."""

    path: tuple[str, ...]
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f". {self.hint}" if self.hint else ""
        return f"{'.'.join(self.path)}: {self.message}{hint}"


def read(
    service: Any, workflows: Any, *, other_keys: Collection[str] = ("triggers",)
) -> tuple[ServicePolicy, list[Problem]]:
    """The policy that two sections of a project's file say; what is wrong with them counts as not said.

    `other_keys` are those of a workflow that somebody else reads.
    """
    reader = _Reader()
    top = reader.mapping(("service",), service, SERVICE_KEYS)
    worker = reader.mapping(("service", "worker"), top.get("worker"), WORKER_KEYS)
    read_workflows = {
        str(name): reader.workflow(str(name), value, other_keys)
        for name, value in reader.mapping(("workflows",), workflows).items()
    }
    defaults = WorkerLimits()
    policy = ServicePolicy(
        limit=reader.count(("service", "limit"), top, ServicePolicy.limit) or 0,
        workflows=read_workflows,
        rates=reader.rates(top.get("rates")),
        spend_per_day=reader.amount(("service", "spend_per_day"), top),
        worker=WorkerLimits(
            reader.count(("service", "worker", "memory_mb"), worker, defaults.memory_mb, least=64),
            reader.count(("service", "worker", "cpu_minutes"), worker, defaults.cpu_minutes),
        ),
    )
    return policy, reader.problems


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def workflow(self, name: str, value: Any, other_keys: Collection[str]) -> WorkflowPolicy:
        path, known = ("workflows", name), WorkflowPolicy()
        given = self.mapping(path, value, (*WORKFLOW_KEYS, *other_keys))
        overflow = given.get("overflow", known.overflow)
        if overflow not in get_args(Overflow):
            self._say((*path, "overflow"), f"{overflow!r} is neither queue nor drop")
            overflow = known.overflow
        if overflow == "drop" and given.get("max_queue") is not None:
            self._say((*path, "max_queue"), "nothing waits where overflow is drop", "Leave one of them out.")
        return WorkflowPolicy(
            concurrency=self.count((*path, "concurrency"), given, known.concurrency) or 1,
            overflow=overflow,
            max_queue=self.count((*path, "max_queue"), given, None, least=0),
            priority=self.count((*path, "priority"), given, known.priority, least=0, most=HIGHEST) or 0,
        )

    def mapping(self, path: tuple[str, ...], value: Any, keys: Collection[str] = ()) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._say(path, f"is {value!r}, and must be a mapping")
            return {}
        for key in value if keys else ():
            if key not in keys:
                self._say((*path, str(key)), f"the key {key!r} is not known", _known(str(key), keys))
        return value

    def count(
        self,
        path: tuple[str, ...],
        given: Mapping[str, Any],
        default: int | None,
        *,
        least: int = 1,
        most: int | None = None,
    ) -> int | None:
        value = given.get(path[-1])
        if value is None:
            return default
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            bounds = f"{least} or more" if most is None else f"from {least} to {most}"
            self._say(path, f"{value!r} is no whole number {bounds}")
            return default
        return int(value)

    def amount(self, path: tuple[str, ...], given: Mapping[str, Any]) -> float | None:
        value = given.get(path[-1])
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < float("inf"):
            self._say(path, f"{value!r} is no amount of dollars", "Write a number such as 20 or 7.5.")
            return None
        return float(value)

    def rates(self, section: Any) -> dict[str, Rate]:
        path = ("service", "rates")
        found = {}
        for agent, text in self.mapping(path, section).items():
            if not _NAME.fullmatch(str(agent)):
                self._say((*path, str(agent)), "is no name of an agent")
                continue
            rate = parse_rate(str(text))
            if rate is None:
                hint = f"Write 30/min, 5/s or 1/10s, with at most {MOST_CALLS:,} calls."
                self._say((*path, str(agent)), f"{text!r} is no rate", hint)
                continue
            found[str(agent)] = rate
        return found

    def _say(self, path: tuple[str, ...], message: str, hint: str = "") -> None:
        self.problems.append(Problem(path, message, hint))


def parse_rate(text: str) -> Rate | None:
    """`30/min`, `5/s`, `1/10s`; None: it is no rate."""
    match = _RATE.fullmatch(text)
    unit = match[3] if match and match[3] in _SECONDS else (match[3] if match else "").removesuffix("s")
    if match is None or unit not in _SECONDS:
        return None
    rate = Rate(int(match[1]), int(match[2] or 1) * _SECONDS[unit])
    return rate if 1 <= rate.count <= MOST_CALLS and rate.per_seconds >= 1 else None


def _known(key: str, keys: Collection[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, keys, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return f"{guess}Known keys: {', '.join(keys)}."
