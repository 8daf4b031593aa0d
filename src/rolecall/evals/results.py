"""The results of a run as values: its cells, and a summary of each variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rolecall.evals.records import OUTCOMES, EvalRun, Verdict, sum_amounts, to_json
from rolecall.evals.statistics import (
    Mean,
    Rate,
    Tally,
    estimate_mean,
    estimate_pass_at,
    estimate_pass_every,
    estimate_per_pass,
    estimate_rate,
)
from rolecall.store.canonical import JsonObject
from rolecall.threads.report import duration, money

AMOUNTS = ("cost", "tokens", "minutes")


class CellResult(NamedTuple):
    """A thread of a run, with its result if it has one."""

    number: int
    variant: str
    task: str
    tags: tuple[str, ...]
    repeat: int
    """The number of the repeat, counted from 1."""
    thread: str
    outcome: str = ""
    """The outcome: `passed`, `failed`, `infrastructure`, or empty if there is no result yet."""
    reason: str = ""
    score: float | None = None
    verdicts: tuple[Verdict, ...] = ()
    head: str | None = None
    """The last step of the thread."""
    paid: Mapping[str, float] = {}
    """The usage in this run, such as `cost`, `tokens` and `minutes`."""
    used: Mapping[str, float] = {}
    """The usage in this run, plus the original usage of reused steps."""
    agents: Sequence[Mapping[str, str]] = ()

    @property
    def is_judged(self) -> bool:
        return self.outcome in ("passed", "failed")


class Summary(NamedTuple):
    """The summary of a variant in a run."""

    variant: str
    threads: int
    passed: int
    failed: int
    infrastructure: int
    rate: Rate | None
    pass_at: float | None
    """The probability that at least one of `repeat` threads passes."""
    pass_every: float | None
    """The probability that all of `repeat` threads pass."""
    score: Mean | None
    used: Mapping[str, float]
    """The usage of all threads: `tokens`, `minutes` and, if an agent reported any, `cost`."""
    per_run: Mapping[str, Mean]
    """The mean usage of each thread with a verdict."""
    per_pass: Mapping[str, Mean]
    """The usage for each pass, which is the usage of all threads divided by the number of passes."""


class Report:
    """A run, read only from its nodes, so that every machine computes the same report."""

    def __init__(self, run: EvalRun) -> None:
        self.id = run.id
        self.node = run.node
        self.suite = run.suite
        self.name = run.suite.name
        self.status = run.status
        self.reason = run.reason
        self.is_early = run.is_early
        self.at = run.at
        self.limits = run.limits
        self.head = run.ref.target
        results = run.read_results()
        self.calibrations = run.read_calibrations()
        """How often the agents that judge agree with known verdicts, keyed by the judge's name."""
        self.cells = []
        for cell in run.cells:
            known: dict[str, Any] = {}
            if result := results.get(cell.number):
                keys = result.usage.keys() | result.saved.keys()
                same = ("outcome", "reason", "score", "verdicts", "head", "agents")
                used = {key: result.usage.get(key, 0) + result.saved.get(key, 0) for key in keys}
                known = {name: getattr(result, name) for name in same} | {"paid": result.usage, "used": used}
            own = (cell.number, cell.variant.name, cell.task.id, cell.task.tags, cell.repeat + 1, cell.thread)
            self.cells.append(CellResult(*own, **known))

    @property
    def variants(self) -> list[str]:
        return [variant.name for variant in self.suite.variants]

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells with each outcome, and of `open` cells."""
        found = {outcome: sum(cell.outcome == outcome for cell in self.cells) for outcome in OUTCOMES}
        return {**found, "open": len(self.cells) - sum(found.values())}

    @cached_property
    def paid(self) -> dict[str, float]:
        """The usage of the run itself, including that of its judges."""
        of_judges = [verdict.usage for cell in self.cells for verdict in cell.verdicts]
        of_judges += [one.usage for one in self.calibrations.values()]
        return sum_amounts([*(cell.paid for cell in self.cells), *of_judges])

    def describe_paid(self) -> str:
        """Return the usage of the run itself, in words."""
        paid, ms = self.paid, round(self.paid.get("minutes", 0) * 60_000)
        parts = [money(paid["cost"])] if paid.get("cost") else []
        parts += [f"{paid['tokens']:,.0f} tokens"] if paid.get("tokens") else []
        return ", ".join([*parts, *([duration(ms)] if ms else [])]) or "nothing"

    def tallies(self, variant: str) -> dict[str, Tally]:
        """Return how many threads of each task have passed, and how many have a verdict."""
        found: dict[str, Tally] = {}
        for cell in self.cells:
            if cell.variant == variant and cell.is_judged:
                before = found.get(cell.task, Tally(0, 0))
                found[cell.task] = Tally(before.passed + (cell.outcome == "passed"), before.runs + 1)
        return found

    def amounts(self, variant: str, key: str) -> dict[str, list[float]]:
        """Return the `cost`, `tokens`, `minutes` or `score` of the judged threads of each task. Threads for which the
        amount is unknown are left out."""
        found: dict[str, list[float]] = {}
        for cell in self.cells:
            value = cell.score if key == "score" else cell.used.get(key)
            if cell.variant == variant and cell.is_judged and value is not None:
                found.setdefault(cell.task, []).append(value)
        return found

    def summarize(self) -> list[Summary]:
        summaries = []
        for variant in self.variants:
            cells = [cell for cell in self.cells if cell.variant == variant]
            outcomes = [cell.outcome for cell in cells]
            by_task = self.tallies(variant)
            tallies = list(by_task.values())
            used = sum_amounts(cell.used for cell in cells)
            per_run, per_pass = dict[str, Mean](), dict[str, Mean]()
            for name in AMOUNTS:
                amounts = self.amounts(variant, name)
                if mean := estimate_mean(amounts.values()):
                    per_run[name] = mean
                if each := estimate_per_pass([amounts.get(task, []) for task in by_task], tallies):
                    per_pass[name] = each
            summary = Summary(
                variant,
                len(cells),
                outcomes.count("passed"),
                outcomes.count("failed"),
                outcomes.count("infrastructure"),
                estimate_rate(tallies),
                estimate_pass_at(tallies, self.suite.repeat),
                estimate_pass_every(tallies, self.suite.repeat),
                estimate_mean(self.amounts(variant, "score").values()),
                {name: used[name] for name in AMOUNTS if name in used},
                per_run,
                per_pass,
            )
            summaries.append(summary)
        return summaries

    def dump(self) -> JsonObject:
        """Return the report in its JSON form."""
        return {
            "eval": self.id,
            "suite": self.name,
            "status": self.status,
            "reason": self.reason,
            "stoppedEarly": self.is_early,
            "startedAt": self.at,
            "nodes": {"suite": self.suite.node, "run": self.node, "result": self.head},
            "counts": self.counts,
            "paid": self.paid,
            "limits": dict(self.limits),
            "variants": [
                {**to_json(summary), "workflow": stored.workflow, "agents": dict(stored.agents)}
                for summary, stored in zip(self.summarize(), self.suite.variants, strict=True)
            ],
            "calibrations": to_json([*self.calibrations.values()]),
            "cells": to_json(self.cells),
        }
