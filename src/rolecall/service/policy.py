"""How many threads may run at once, and what happens to the others: the values, and how a project's file sets them.

service:
  limit: 16                    # threads at once, of all workflows
  rates: {claude: 30/min}      # calls of an agent
  spend_per_day: 20            # dollars, as the agents report them
  worker: {memory_mb: 4096, cpu_minutes: 240}
workflows:
  review-code: {concurrency: 3, overflow: queue, max_queue: 20, priority: 5}
  clean-up: {concurrency: 1, overflow: drop}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from rolecall.settings.form import At, Choice, Field, Form, MapOf, Number, Record, Section, Unreadable
from rolecall.store.canonical import Schema

Overflow = Literal["queue", "drop"]
HIGHEST = 9
"""The highest priority; 0 is the lowest. Threads with a higher priority are admitted first."""
MOST_CALLS = 1_000
"""The most calls that a rate can allow. It is limited because each call is stored until it expires."""

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
_RATE = re.compile(r"\s*([0-9]{1,9})\s*/\s*(?:([0-9]{1,6})\s*)?([a-z]+)\s*")
_AGENT = r"[A-Za-z0-9@._$-]+"


@dataclass(frozen=True)
class WorkflowPolicy:
    concurrency: int = 1
    overflow: Overflow = "queue"
    max_queue: int | None = None
    """How many threads may wait. If there are more, the oldest one of the lowest priority is discarded."""
    priority: int = 0


@dataclass(frozen=True)
class StartRate:
    """At most `count` calls within any period of `per_seconds`."""

    count: int
    per_seconds: int

    def __str__(self) -> str:
        unit = {1: "s", 60: "min", 3600: "h", 86400: "day"}.get(self.per_seconds, f"{self.per_seconds}s")
        return f"{self.count}/{unit}"


class MeteredCall(NamedTuple):
    """A call of a rate-limited agent: the name under which it is counted, and its rate."""

    name: str
    rate: StartRate


@dataclass(frozen=True)
class WorkerLimits:
    """Limits for the process of a step. The processes that the step starts have the same limits."""

    memory_mb: int | None = 4096
    cpu_minutes: int | None = 240


@dataclass(frozen=True)
class ServicePolicy:
    limit: int = 16
    workflows: Mapping[str, WorkflowPolicy] = field(default_factory=dict)
    default: WorkflowPolicy = WorkflowPolicy()
    rates: Mapping[str, StartRate] = field(default_factory=dict)
    """The rates, keyed by the name of an agent or by its kind, which is the part before the colon in `command:prog`."""
    spend_per_day: float | None = None
    worker: WorkerLimits = WorkerLimits()

    def of(self, workflow: str) -> WorkflowPolicy:
        return self.workflows.get(workflow, self.default)

    def meter(self, agent: str) -> MeteredCall | None:
        """Return the name and rate under which an agent's calls are counted, or None if they are not limited."""
        name = next((name for name in (agent, agent.partition(":")[0]) if name in self.rates), None)
        return MeteredCall(name, self.rates[name]) if name else None


def parse_rate(text: str) -> StartRate | None:
    """Parse a rate such as `30/min`, `5/s` or `1/10s`. Return None if the text is not a rate."""
    match = _RATE.fullmatch(text)
    unit = match[3] if match and match[3] in _SECONDS else (match[3] if match else "").removesuffix("s")
    if match is None or unit not in _SECONDS:
        return None
    rate = StartRate(int(match[1]), int(match[2] or 1) * _SECONDS[unit])
    return rate if 1 <= rate.count <= MOST_CALLS and rate.per_seconds >= 1 else None


# -- how a project's file sets them --


class _RateForm(Form[StartRate]):
    def read(self, value: Any, at: At) -> StartRate | Unreadable:
        hint = f"Write 30/min, 5/s or 1/10s, with at most {MOST_CALLS:,} calls."
        return parse_rate(str(value)) or at.expect("a rate", value, hint)

    def schema(self) -> Schema:
        return {"type": "string"}


def _count(least: int = 1, most: int | None = None) -> Number:
    return Number(whole=True, least=least, most=most)


_WORKER = Record(
    WorkerLimits,
    "worker",
    {
        "memory_mb": Field(_count(64), "Memory of each process (4096)."),
        "cpu_minutes": Field(_count(), "Processor time of each process (240)."),
    },
)
SERVICE = Section(
    "service",
    {
        "limit": Field(_count(), "Threads at once, over all workflows (16)."),
        "rates": Field(
            MapOf(_RateForm(), key=_AGENT, key_wanted="It is not the name of an agent."),
            "Calls of an agent: {claude: 30/min}.",
        ),
        "spend_per_day": Field(
            Number("an amount of dollars", least=0, hint="Write a number such as 20 or 7.5."),
            "Dollars after which no more threads are admitted that day.",
        ),
        "worker": Field(_WORKER, "Limits of the processes of one step."),
    },
)
WORKFLOW_FIELDS: dict[str, Field | Form[Any]] = {
    "concurrency": Field(_count(), "Threads of this workflow at once (1)."),
    "overflow": Field(
        Choice(*get_args(Overflow)),
        "Whether threads that arrive while the workflow is busy wait (queue) or are discarded.",
    ),
    "max_queue": Field(_count(0), "How many threads may wait; if more do, the oldest is discarded."),
    "priority": Field(_count(0, HIGHEST), "Threads with a higher priority are admitted first (0)."),
}


def check_workflow(policy: WorkflowPolicy, at: At) -> None:
    if policy.overflow == "drop" and policy.max_queue is not None:
        (at / "max_queue").report("nothing waits where overflow is drop", "Leave one of them out.")
