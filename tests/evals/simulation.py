"""Simulated suites of known rates: what the statistics promise is counted over many of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

from rolecall.evals.statistics import BASE_RATE, Pair, Tally

SUITES = 2000 if "SOAK" in os.environ else 400
Difficulty = tuple[float, float]
"""The two parameters of the beta distribution that the tasks' own pass rates are drawn from."""
MIXED = (1.4, 0.6)  # a pass rate of 0.7: many tasks always pass, some never
SIMILAR = (6.0, 6.0)  # a pass rate of 0.5: no task is very easy or very hard
HARD = (0.3, 0.7)
EASY = (4.25, 0.75)


def mean_of(difficulty: Difficulty) -> float:
    return difficulty[0] / sum(difficulty)


def run_task(random: Random, rate: float, repeats: int) -> Tally:
    return Tally(sum(random.random() < rate for _ in range(repeats)), repeats)


def run_suite(random: Random, difficulty: Difficulty, tasks: int, repeats: int) -> list[Tally]:
    return [run_task(random, random.betavariate(*difficulty), repeats) for _ in range(tasks)]


def run_both(
    random: Random, difficulty: Difficulty, tasks: int, repeats: int, change: Callable[[float], float] = float
) -> list[Pair]:
    """Two variants on the same tasks; `change` gives the rate of the second one from that of the first."""
    rates = [random.betavariate(*difficulty) for _ in range(tasks)]
    return [Pair(run_task(random, rate, repeats), run_task(random, change(rate), repeats)) for rate in rates]


def run_breaking(random: Random, tasks: int, repeats: int, share: float) -> list[Pair]:
    """Two variants of which the second breaks a share of the tasks. On half of the others two runs differ as often as
    coin tosses do."""

    def run() -> Pair:
        if random.random() < share:
            return Pair(Tally(repeats, repeats), Tally(0, repeats))
        rate = BASE_RATE if random.random() < 0.5 else 1.0
        return Pair(run_task(random, rate, repeats), run_task(random, rate, repeats))

    return [run() for _ in range(tasks)]
