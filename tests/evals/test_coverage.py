"""Simulated proofs: intervals contain the true value as often as they promise."""

from __future__ import annotations

from random import Random

import pytest

from evals.simulation import EASY, HARD, MIXED, SIMILAR, SUITES, Difficulty, mean_of, run_both, run_suite
from rolecall.evals import statistics
from rolecall.evals.statistics import (
    compare_means,
    compare_rates,
    estimate_mean,
    estimate_per_pass,
    estimate_rate,
)


def assert_covers(hits: int) -> None:
    # About four standard deviations of the share: 2 points for 2,000 suites, 4.5 for 400.
    allowed = 0.02 * (2000 / SUITES) ** 0.5
    assert abs(hits / SUITES - 0.95) <= allowed, f"{hits} of {SUITES} intervals contain the true value"


@pytest.mark.parametrize(
    ("tasks", "repeats", "difficulty"),
    [
        (30, 3, MIXED),
        (30, 3, HARD),
        (50, 3, MIXED),
        (50, 3, SIMILAR),
        (50, 3, HARD),
        (50, 3, EASY),
        (100, 3, EASY),
    ],
)
def test_the_interval_of_a_pass_rate_covers(tasks: int, repeats: int, difficulty: Difficulty) -> None:
    random, truth, hits = Random(1), mean_of(difficulty), 0
    for _ in range(SUITES):
        rate = estimate_rate(run_suite(random, difficulty, tasks, repeats))
        assert rate
        hits += rate.interval.low <= truth <= rate.interval.high
    assert_covers(hits)


@pytest.mark.parametrize("tasks", [10, 30, 50])
def test_the_interval_of_a_pass_rate_of_single_runs_covers_on_average_over_rates(tasks: int) -> None:
    # n runs have n + 1 results, so for one rate the coverage jumps; what Wilson's interval promises is the average.
    random, hits = Random(2), 0
    for _ in range(SUITES):
        truth = random.uniform(0.05, 0.95)
        rate = estimate_rate(run_suite(random, (3 * truth, 3 * (1 - truth)), tasks, 1))
        assert rate
        hits += rate.interval.low <= truth <= rate.interval.high
    assert_covers(hits)


@pytest.mark.parametrize(
    ("tasks", "repeats", "gain"), [(30, 1, 0.0), (30, 1, 0.2), (50, 3, 0.0), (50, 3, 0.1), (100, 3, 0.1)]
)
def test_the_interval_of_a_difference_in_pass_rate_covers(tasks: int, repeats: int, gain: float) -> None:
    random, hits, solved = Random(3), 0, gain / (1 - mean_of(MIXED))
    for _ in range(SUITES):
        pairs = run_both(random, MIXED, tasks, repeats, lambda rate: rate + solved * (1 - rate))
        interval = compare_rates(pairs).interval
        assert interval
        hits += interval.low <= gain <= interval.high
    assert_covers(hits)


@pytest.mark.parametrize("tasks", [20, 40])
def test_the_interval_of_a_mean_score_covers(tasks: int) -> None:
    random, hits = Random(4), 0
    for _ in range(SUITES):
        levels = [random.betavariate(2, 1) for _ in range(tasks)]
        mean = estimate_mean([[level * random.uniform(0.5, 1) for _ in range(3)] for level in levels])
        assert mean and mean.interval
        hits += mean.interval.low <= 0.5 <= mean.interval.high
    assert_covers(hits)


def test_the_interval_of_a_difference_in_cost_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_FLIPS", 1)  # the p value takes most of the time
    random, hits = Random(5), 0
    for _ in range(SUITES):
        sizes = [random.lognormvariate(0, 0.5) for _ in range(50)]
        base = [[size * random.uniform(0.5, 1.5) for _ in range(3)] for size in sizes]
        variant = [[size * random.uniform(0.7, 1.7) for _ in range(3)] for size in sizes]
        interval = compare_means(base, variant).interval
        assert interval
        hits += interval.low <= 0.2 * 1.1331484530668263 <= interval.high  # exp(0.5 ** 2 / 2)
    assert_covers(hits)


def test_the_interval_of_the_cost_of_a_solved_task_covers() -> None:
    random, hits = Random(6), 0
    truth = (0.7 * 1.5 + 0.3 * 3) / 0.7
    for _ in range(SUITES):
        tallies = run_suite(random, MIXED, 30, 3)
        costs = [
            [random.uniform(1, 2) if run < passed else random.uniform(2, 4) for run in range(runs)]
            for passed, runs in tallies
        ]
        per_pass = estimate_per_pass(costs, tallies)
        assert per_pass and per_pass.interval
        hits += per_pass.interval.low <= truth <= per_pass.interval.high
    assert_covers(hits)


def test_figures_are_the_same_each_time() -> None:
    random = Random(7)
    runs = [[random.random() for _ in range(3)] for _ in range(40)]
    others = [[random.random() for _ in range(3)] for _ in range(40)]
    assert estimate_mean(runs) == estimate_mean(list(runs))
    assert compare_means(runs, others) == compare_means(runs, others)
