"""Estimates and paired comparisons. The functions are pure: they turn counts and amounts into values with intervals,
and the same data gives the same figures each time.

The unit is the task, not the run. Five repeats of one task say less than one run each of five tasks, so an interval
that counted every run as independent would be too narrow. All intervals generalise to similar tasks.
`tests/evals/test_coverage.py` simulates suites and checks these promises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import add, itemgetter, mul
from random import Random
from statistics import NormalDist, fmean, variance
from typing import Any, Literal, NamedTuple

from rolecall.errors import UsageError

ALPHA = 0.05
"""The probability with which a test is allowed to report a difference that does not exist."""
RESAMPLES = 1000
BASE_RATE = 0.7
"""The pass rate of the base that is assumed when the smallest detectable difference is computed."""
POWER = 0.8
"""The probability with which a suite should detect an existing difference."""
STAKES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""The shares of their capital that separate gamblers bet. The mean of their capitals is the e-value."""
NOTHING_SHARED = "No task has a verdict of both variants, so there is nothing to compare."
_Z = NormalDist().inv_cdf(0.975)
"""The normal quantile for intervals that contain the true value in 95 % of cases."""
_SEED = 20
_MOST_DRAWS = 2_000_000
_MOST_ADDITIONS = 5_000_000
_FLIPS = 9_999
_FEW = 12
_BISECTIONS = 40

Change = Literal["fixed", "broken", "flaky", "unchanged"]


class Interval(NamedTuple):
    low: float
    high: float


class Tally(NamedTuple):
    """How many runs of one task passed, and how many have a verdict. Estimates leave out tasks without a verdict."""

    passed: int
    runs: int

    @property
    def rate(self) -> float:
        return self.passed / self.runs


class Pair(NamedTuple):
    """One task's runs with two variants. A comparison leaves a task out if one variant has no run with a verdict."""

    base: Tally
    variant: Tally


@dataclass(frozen=True)
class Rate:
    """A pass rate, which is the mean of the tasks' own rates."""

    value: float
    interval: Interval
    tasks: int
    runs: int


@dataclass(frozen=True)
class Mean:
    """A mean over tasks. For a single task, there is no interval."""

    value: float
    interval: Interval | None
    tasks: int


@dataclass(frozen=True)
class Difference:
    """How much higher the variant is than the base, and how often chance alone would produce such a difference."""

    value: float
    interval: Interval | None
    p_value: float
    method: str
    tasks: int


def estimate_rate(tallies: Sequence[Tally]) -> Rate | None:
    """Estimate the pass rate, with its Wilson interval. Return None if no task has a verdict.

    With repeats, the number of runs in Wilson's formula is replaced by the number of independent runs whose rate would
    vary as much as the tasks' rates do. That number is between the number of tasks (all repeats of each task agree) and
    the number of runs.
    """
    rates = [tally.rate for tally in tallies if tally.runs]
    if not rates:
        return None
    tasks, runs = len(rates), sum(tally.runs for tally in tallies)
    value = fmean(rates)

    independent, z = float(tasks), _Z
    if runs > tasks:
        z = _t(tasks)
        spread = variance(rates) / tasks if tasks > 1 else 0.0
        if spread:
            independent = min(max(value * (1 - value) / spread, tasks), runs)

    weight = z * z / independent
    middle = (value + weight / 2) / (1 + weight)
    half = z * math.sqrt(value * (1 - value) / independent + weight / independent / 4) / (1 + weight)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    within = Interval(min(low, value), max(high, value))  # include 0 and 1 in spite of rounding
    return Rate(value, within, tasks, runs)


def estimate_pass_at(tallies: Iterable[Tally], k: int) -> float | None:
    """Estimate the probability that at least one of `k` runs of a task passes (the unbiased estimate of pass@k), as a
    mean over the tasks that have `k` runs. Return None if no task has `k` runs."""
    shares = [1 - math.comb(runs - passed, k) / math.comb(runs, k) for passed, runs in tallies if runs >= k]
    return fmean(shares) if shares else None


def estimate_pass_every(tallies: Iterable[Tally], k: int) -> float | None:
    """Estimate the probability that all of `k` runs of a task pass (pass^k), as a mean over the tasks that have `k`
    runs. Return None if no task has `k` runs."""
    shares = [math.comb(passed, k) / math.comb(runs, k) for passed, runs in tallies if runs >= k]
    return fmean(shares) if shares else None


def estimate_mean(runs: Iterable[Sequence[float]]) -> Mean | None:
    """Estimate the mean of a score or an amount from the runs of each task. Return None if there are no runs. The
    interval is a bootstrap of tasks: it draws as many tasks as there are, with replacement, many times, and takes the
    range of the means. The range is a little wider than the percentiles, as a t interval is wider than a normal one."""
    values = [fmean(of_task) for of_task in runs if of_task]
    return Mean(fmean(values), _bootstrap(values), len(values)) if values else None


def estimate_per_pass(amounts: Sequence[Sequence[float]], tallies: Sequence[Tally]) -> Mean | None:
    """Estimate the cost of one solved task, in money, tokens or minutes: the sum over all runs, including failed ones,
    divided by the number of runs that passed. Return None if no run passed, or if the amount of a run is unknown. The
    interval is a bootstrap of tasks; it is None if so few runs passed that its upper end is unknown."""
    totals = [math.fsum(of_task) for of_task in amounts]
    passed = [tally.passed for tally in tallies]
    if not any(passed) or [len(of_task) for of_task in amounts] != [tally.runs for tally in tallies]:
        return None

    interval = None
    if len(totals) > 1:
        ratios = sorted(
            sum(draw(totals)) / solved if (solved := sum(draw(passed))) else math.inf
            for draw in _resamplings(len(totals))
        )
        interval = _cut(ratios, len(totals))
        if math.isinf(interval.high):
            interval = None
    return Mean(math.fsum(totals) / sum(passed), interval, len(totals))


def compare_rates(pairs: Iterable[Pair]) -> Difference:
    """Estimate the difference in pass rate, paired by task.

    The p value is exact, except for very many runs. If the variants are equal, each task's difference is as likely to
    favour either variant, so the test counts the assignments of signs that give a sum at least as large. With one run
    per task, this is the exact McNemar test (without mid-p). The interval is a t interval of the tasks' differences.
    """
    steps, scale = _list_steps(pairs)
    tail, is_exact = _find_tail(steps, abs(sum(steps)))
    method = "exact McNemar test" if scale == 1 else "exact sign-flip test by task"

    # If all tasks agree, nothing shows how much tasks vary, so add one better and one worse task (Bonett, Price).
    seen = steps if len(set(steps)) > 1 else [*steps, scale, -scale]
    middle = sum(seen) / len(seen) / scale
    half = _t(len(seen)) * math.sqrt(variance(seen) / len(seen)) / scale
    return Difference(
        sum(steps) / len(steps) / scale,
        Interval(max(-1.0, middle - half), min(1.0, middle + half)),
        min(1.0, 2 * tail),
        method if is_exact else "sign-flip test by task, with random signs",
        len(steps),
    )


def compare_means(base: Iterable[Sequence[float]], variant: Iterable[Sequence[float]]) -> Difference:
    """Estimate the difference in a score or an amount from the runs of the same tasks in the same order. The interval
    is a bootstrap of the tasks' differences, and the p value comes from a sign-flip test of these differences."""
    both = zip(base, variant, strict=True)
    # rounded, so that 0.1 + 0.2 is 0.3
    values = [round(fmean(new) - fmean(old), 12) for old, new in both if old and new]
    if not values:
        raise UsageError(NOTHING_SHARED)
    sizes = [abs(value) for value in values if value]
    tail = (_list_signs if len(sizes) <= _FEW else _draw_signs)(sizes, abs(math.fsum(values)))
    return Difference(
        fmean(values),
        _bootstrap(values),
        min(1.0, 2 * tail),
        "paired bootstrap by task, sign-flip test",
        len(values),
    )


def is_worse(pairs: Iterable[Pair], *, alpha: float = ALPHA) -> bool:
    """Return whether the pass rate of a variant is lower than that of its base by more than chance explains (a
    one-sided paired test). Of the variants that are as good as their base, a share of at most `alpha` is called
    worse."""
    steps, _ = _list_steps(pairs)
    return _find_tail(steps, -sum(steps))[0] <= alpha


def classify_change(pair: Pair, *, alpha: float = ALPHA) -> Change:
    """Classify what happened to one task. It is fixed or broken if all its runs changed from one verdict to the other,
    or if more runs changed than chance is likely to explain (Fisher's exact test). Otherwise it is flaky if its runs
    have different verdicts."""
    base, variant = pair
    passed, runs = base.passed + variant.passed, base.runs + variant.runs
    if passed in (0, runs):
        return "unchanged"
    ways = [
        math.comb(base.runs, here) * math.comb(variant.runs, passed - here)
        for here in range(max(0, passed - variant.runs), min(passed, base.runs) + 1)
    ]
    seen = math.comb(base.runs, base.passed) * math.comb(variant.runs, variant.passed)
    p_value = sum(way for way in ways if way <= seen) / math.comb(runs, passed)
    if {base.rate, variant.rate} == {0.0, 1.0} or p_value <= alpha:
        return "fixed" if variant.rate > base.rate else "broken"
    return "flaky"


def _t(tasks: int) -> float:
    """Return the quantile of Student's t distribution for a mean over `tasks` tasks, to the first order of its
    expansion."""
    return _Z * (1 + (_Z * _Z + 1) / (4 * max(1, tasks - 1)))


@lru_cache(maxsize=2)
def _resamplings(tasks: int) -> list[Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """Return random draws of as many tasks as there are, the same draws each time. Each draw is a function that picks
    from a list."""
    draw = Random(_SEED)  # noqa: S311 -- keeps no secret
    numbers = list(range(tasks))
    count = min(RESAMPLES, _MOST_DRAWS // tasks)
    return [itemgetter(*draw.choices(numbers, k=tasks)) for _ in range(count)]


def _bootstrap(values: Sequence[float]) -> Interval | None:
    tasks = len(values)
    if tasks < 2:
        return None
    return _cut(sorted(sum(draw(values)) / tasks for draw in _resamplings(tasks)), tasks)


def _cut(values: Sequence[float], tasks: int) -> Interval:
    """Return the middle part of sorted values. For the means of resamples of few tasks, the part is a little larger
    than the level, because such means vary less than the mean itself."""
    share = NormalDist().cdf(-_t(tasks) * math.sqrt(tasks / (tasks - 1)))
    outside = int(share * len(values))
    return Interval(values[outside], values[-1 - outside])


def _list_steps(pairs: Iterable[Pair]) -> tuple[list[int], int]:
    """Return how much better each task is with the variant, in whole steps, and how many steps make up the whole pass
    rate."""
    judged = [pair for pair in pairs if pair.base.runs and pair.variant.runs]
    if not judged:
        raise UsageError(NOTHING_SHARED)
    scale = math.lcm(*(tally.runs for pair in judged for tally in pair))
    steps = [
        variant.passed * (scale // variant.runs) - base.passed * (scale // base.runs)
        for base, variant in judged
    ]
    return steps, scale


def _find_tail(steps: Sequence[int], least: int) -> tuple[float, bool]:
    """Return the probability that steps of this size in random directions add up to at least `least`, and whether that
    probability is exact."""
    sizes = [abs(step) for step in steps if step]
    if len(sizes) * sum(sizes) > _MOST_ADDITIONS:
        return _draw_signs(sizes, least), False
    counts = [1]  # the number of assignments for each sum of the positive sizes
    for size in sizes:
        gap = [0] * size
        counts = list(map(add, counts + gap, gap + counts))
    return sum(counts[max(0, (least + sum(sizes) + 1) // 2) :]) / (1 << len(sizes)), True


def _list_signs(sizes: Sequence[float], least: float) -> float:
    least -= 1e-9 * sum(sizes)
    sums = [math.fsum(map(mul, sizes, signs)) for signs in product((1, -1), repeat=len(sizes))]
    return sum(each >= least for each in sums) / len(sums)


def _draw_signs(sizes: Sequence[float], least: float) -> float:
    """Estimate the probability from random signs. The observed signs count as one of the draws, which keeps the test
    valid."""
    draw = Random(_SEED)  # noqa: S311 -- keeps no secret
    least -= 1e-9 * sum(sizes)
    hits: int = sum(sum(map(mul, sizes, draw.choices((1, -1), k=len(sizes)))) >= least for _ in range(_FLIPS))
    return (hits + 1) / (_FLIPS + 1)


# -- before a run: what a suite can detect --


def find_smallest_difference(tasks: int, repeats: int = 1) -> float | None:
    """Return the smallest drop in pass rate that a comparison by task detects with a probability of `POWER`, or None if
    it would not even detect the largest possible drop.

    The model assumes that a share of the tasks changes from always passing to never passing, and that this share is the
    difference. The other tasks do not change; two runs of such a task have different verdicts half as often as two
    tosses of a coin with the base rate would. Repeats reduce only this second part. The result follows from the normal
    approximation to the exact test, corrected for its steps.
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
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high


# -- during a run: whether the answer is already clear --


@dataclass(frozen=True)
class EarlyAnswer:
    """The evidence after some of the tasks."""

    answer: Literal["better", "worse"] | None
    """How the variant compares with the base, or None while that is open."""
    e_value: float
    """The evidence for a difference, at the time when the answer became clear or, if it is not clear, now."""
    tasks: int
    """The number of tasks after which the answer became clear or, if it is not clear, the number of tasks so far."""


def decide_early(pairs: Iterable[Pair], *, alpha: float = ALPHA) -> EarlyAnswer:
    """Test after each task, in the order in which both variants finished the tasks, until the e-value is `1 / alpha` (a
    betting martingale on the tasks' differences in pass rate). A later task does not change an answer.

    A test that is repeated after every task finds differences that do not exist far too often. The e-value does not. It
    is the capital of a gambler who starts with 1 and before each task bets on which variant will be better. If the
    variants are equal, every bet is fair, and the probability that the capital ever reaches 20 is at most 1/20, however
    often it is checked.
    """
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
