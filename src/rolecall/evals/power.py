"""Says before any run what a suite can show. Pure, like `statistics.py`."""

from __future__ import annotations

import math
from statistics import NormalDist

from rolecall.evals.statistics import ALPHA, Side

POWER = 0.8
"""How likely a suite should show a difference that exists."""
_STEPS = 40


def find_smallest_difference(
    tasks: int,
    repeats: int = 1,
    *,
    base_rate: float = 0.5,
    disagreement: float | None = None,
    side: Side = "different",
    alpha: float = ALPHA,
    power: float = POWER,
) -> float | None:
    """The smallest difference in pass rate that a comparison by task shows with a probability of `power`; None if it
    would not even show the largest difference that is possible.

    What is assumed: a share of the tasks changes from never to always passing (or back), and that share is the
    difference. On the others nothing changes, and two runs have different verdicts with the probability
    `disagreement`, by default half of what independent coin tosses at the base rate would give. Repeats reduce only
    this second part. The result follows from the normal approximation to the exact test, corrected for its steps.
    """
    noise = base_rate * (1 - base_rate) if disagreement is None else disagreement
    quantile = NormalDist().inv_cdf
    for_alpha, for_power = quantile(1 - (alpha / 2 if side == "different" else alpha)), quantile(power)

    def is_shown(difference: float) -> bool:
        square = difference + (1 - difference) * noise / repeats  # the mean square of the tasks' differences
        spread = max(0.0, square - difference**2)
        least = for_alpha * math.sqrt(square / tasks) + for_power * math.sqrt(spread / tasks)
        return difference - 1 / (tasks * repeats) >= least

    low, high = 0.0, {"better": 1 - base_rate, "worse": base_rate}.get(side, max(base_rate, 1 - base_rate))
    if not is_shown(high):
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high
