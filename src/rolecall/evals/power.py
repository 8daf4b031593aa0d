"""Computes before any run what a suite can detect. Pure, like `statistics.py`."""

from __future__ import annotations

import math
from statistics import NormalDist

from rolecall.evals.statistics import ALPHA

BASE_RATE = 0.7
"""The pass rate of the base for which a difference is computed."""
POWER = 0.8
"""The probability with which a suite should detect an existing difference."""
_STEPS = 40


def find_smallest_difference(tasks: int, repeats: int = 1) -> float | None:
    """The smallest drop in pass rate that a comparison by task detects with a probability of `POWER`; None if it would
    not even detect the largest possible drop.

    The model: a share of the tasks changes from always to never passing, and that share is the difference. The other
    tasks do not change, and two runs of them have different verdicts half as often as coin tosses at the base rate
    would. Repeats reduce only this second part. The result follows from the normal approximation to the exact test,
    corrected for its steps.
    """
    noise = BASE_RATE * (1 - BASE_RATE)
    for_alpha, for_power = map(NormalDist().inv_cdf, (1 - ALPHA / 2, POWER))

    def is_shown(difference: float) -> bool:
        square = difference + (1 - difference) * noise / repeats  # the mean square of the tasks' differences
        spread = max(0.0, square - difference**2)
        least = for_alpha * math.sqrt(square / tasks) + for_power * math.sqrt(spread / tasks)
        return difference - 1 / (tasks * repeats) >= least

    low, high = 0.0, BASE_RATE
    if not is_shown(high):
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high
