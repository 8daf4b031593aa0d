"""The gate, early answers, and what a suite can show, on simulated runs of agents with known rates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from evals.simulation import MIXED, SUITES, run_both, run_breaking
from rolecall.evals.gate import Early
from rolecall.evals.records import Cell, Result, StoredTask
from rolecall.evals.statistics import ALPHA, Pair, Tally, compare_rates, find_smallest_difference, is_worse
from rolecall.evals.suite import Variant
from rolecall.store.ids import NodeId, ThreadId

RUNS, TASKS, REPEAT = 400 if "SOAK" in os.environ else 100, 60, 2


def make_run(variants: int) -> Any:
    """What `Early` reads of a run: its suite and its cells, all repeats of a task together."""
    stored = [Variant(f"v{number}", NodeId(""), None, {}) for number in range(variants)]
    tasks = [StoredTask(NodeId(""), f"t{number}", "", (), (), None, "", "") for number in range(TASKS)]
    wanted = [(one, task, repeat) for task in tasks for repeat in range(REPEAT) for one in stored]
    cells = tuple(Cell(number, *cell, ThreadId("")) for number, cell in enumerate(wanted, 1))
    return SimpleNamespace(cells=cells, suite=SimpleNamespace(variants=stored, repeat=REPEAT))


def draw(random: Random, run: Any, rates: dict[str, list[float]]) -> Iterator[Result]:
    for cell in run.cells:
        rate = rates[cell.variant.name][int(cell.task.id[1:])]
        outcome = (
            "infrastructure" if random.random() < 0.02 else "passed" if random.random() < rate else "failed"
        )
        yield Result(cell.number, "", outcome, (), 0)


def play(random: Random, early: Early, rates: dict[str, list[float]]) -> tuple[str, list[Result]]:
    """The reason to stop, looked for after every task, and the results until then."""
    results = list[Result]()
    for result in draw(random, early.run, rates):
        results.append(result)
        if len(results) % (REPEAT * len(rates)) == 0 and (reason := early(results)):
            return reason, results
    return "", results


def tally(random: Random, rates: list[float]) -> dict[str, Tally]:
    return {
        f"t{number}": Tally(sum(random.random() < rate for _ in range(REPEAT)), REPEAT)
        for number, rate in enumerate(rates)
    }


def gate_stops(random: Random, old: list[float], new: list[float]) -> tuple[bool, int]:
    """What a gate with --stop-early says, and after how many results."""
    base = tally(random, old)
    early = Early(make_run(1), {"v0": base})
    reason, results = play(random, early, {"v0": new})
    if reason:
        return "is worse" in reason, len(results)
    ended: dict[str, list[str]] = {}
    for cell, result in zip(early.run.cells, results, strict=True):
        ended.setdefault(cell.task.id, []).append(result.outcome)
    pairs = [
        Pair(base[task], Tally(seen.count("passed"), seen.count("passed") + seen.count("failed")))
        for task, seen in ended.items()
    ]
    return is_worse(pairs, alpha=ALPHA / 2), len(results)


@pytest.mark.parametrize("repeats", [1, 3])
def test_of_equal_variants_at_most_one_in_twenty_fails_a_gate(repeats: int) -> None:
    random = Random(22)
    failed = sum(is_worse(run_both(random, MIXED, 50, repeats)) for _ in range(SUITES))
    assert failed <= 0.05 * SUITES


@pytest.mark.parametrize(("tasks", "repeats"), [(30, 1), (50, 3)])
def test_the_smallest_difference_that_a_suite_can_show_is_shown_in_four_of_five_runs(
    tasks: int, repeats: int
) -> None:
    random, least = Random(23), find_smallest_difference(tasks, repeats)
    assert least is not None
    shown = sum(
        compare_rates(run_breaking(random, tasks, repeats, least)).p_value <= ALPHA for _ in range(SUITES)
    )
    assert 0.75 * SUITES <= shown <= 0.95 * SUITES


def test_of_equal_variants_at_most_one_in_twenty_fails_a_gate_that_may_stop_early() -> None:
    random = Random(20)
    failed = 0
    for _ in range(RUNS):
        rates = [random.random() for _ in range(TASKS)]
        failed += gate_stops(random, rates, rates)[0]
    assert failed / RUNS <= 0.05


def test_what_is_much_worse_fails_it_after_part_of_the_run() -> None:
    random = Random(21)
    seen = [gate_stops(random, [0.9] * TASKS, [0.2] * TASKS) for _ in range(50)]
    assert all(worse for worse, _ in seen)
    assert max(count for _, count in seen) < TASKS * REPEAT * 0.5


def test_of_equal_variants_at_most_one_run_in_twenty_stops_early() -> None:
    random, stopped = Random(22), 0
    for _ in range(RUNS):
        rates = [random.random() for _ in range(TASKS)]
        stopped += bool(play(random, Early(make_run(2)), {"v0": rates, "v1": rates})[0])
    assert stopped / RUNS <= 0.05


def test_a_run_of_different_variants_stops_early() -> None:
    random = Random(23)
    for _ in range(20):
        reason, results = play(random, Early(make_run(2)), {"v0": [0.2] * TASKS, "v1": [0.9] * TASKS})
        assert reason.startswith("stopped early: v1 is better after") and len(results) < TASKS * REPEAT
