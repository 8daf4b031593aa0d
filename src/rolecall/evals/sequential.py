"""Decides during a run of two variants whether the answer is already clear. Pure, like `statistics.py`.

A test that is repeated after every task finds differences that do not exist far too often. The e-value does not: it is
the capital of a gambler who starts with 1 and before each task bets on which variant will be better. If the variants
are equal, every bet is fair, and the capital ever reaches 20 with a probability of at most 1/20, however often one
looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rolecall.evals.statistics import ALPHA, Pair

STAKES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""The shares of the capital that are bet, each by a separate gambler; the mean of their capitals is the e-value."""


@dataclass(frozen=True)
class EarlyAnswer:
    """The evidence after some tasks."""

    answer: Literal["better", "worse"] | None
    """How the variant compares with the base; None while it is open."""
    e_value: float
    """The evidence for a difference at the time the answer became clear, otherwise now."""
    tasks: int
    """After how many tasks the answer became clear, otherwise how many there are."""


def decide_early(pairs: Iterable[Pair], *, alpha: float = ALPHA) -> EarlyAnswer:
    """Look after each task, in the order in which both variants finished them, until the e-value is `1 / alpha` (a
    betting martingale on the tasks' differences in pass rate). A later task does not change an answer."""
    better, worse = [1.0] * len(STAKES), [1.0] * len(STAKES)
    e_value, tasks = 1.0, 0
    for tasks, (base, variant) in enumerate(
        (pair for pair in pairs if pair.base.runs and pair.variant.runs), 1
    ):
        if gain := variant.rate - base.rate:
            better = [capital * (1 + stake * gain) for capital, stake in zip(better, STAKES, strict=True)]
            worse = [capital * (1 - stake * gain) for capital, stake in zip(worse, STAKES, strict=True)]
            up, down = fmean(better), fmean(worse)
            e_value = (up + down) / 2
            if e_value >= 1 / alpha:
                return EarlyAnswer("better" if up > down else "worse", e_value, tasks)
    return EarlyAnswer(None, e_value, tasks)
