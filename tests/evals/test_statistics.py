"""Estimates and comparisons: exact values, with SciPy as the oracle."""

from __future__ import annotations

import math
from itertools import combinations
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from scipy import stats

from evals.simulation import MIXED, SIMILAR, run_both
from rolecall.errors import UsageError
from rolecall.evals import statistics
from rolecall.evals.statistics import (
    Interval,
    Pair,
    Tally,
    classify_change,
    compare_means,
    compare_rates,
    estimate_mean,
    estimate_pass_at,
    estimate_pass_every,
    estimate_per_pass,
    estimate_rate,
    is_worse,
)

FAIL, PASS = Tally(0, 1), Tally(1, 1)
TALLIES = some.integers(1, 6).flatmap(
    lambda runs: some.builds(Tally, passed=some.integers(0, runs), runs=some.just(runs))
)


@given(passed=some.integers(0, 60), failed=some.integers(0, 60))
def test_the_interval_of_single_runs_is_wilsons(passed: int, failed: int) -> None:
    rate = estimate_rate([PASS] * passed + [FAIL] * failed)
    if not passed + failed:
        assert rate is None
        return
    expected = stats.binomtest(passed, passed + failed).proportion_ci(method="wilson")
    assert rate and rate.interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_repeats_that_always_agree_count_as_one_run() -> None:
    once = estimate_rate([PASS] * 300 + [FAIL] * 100)
    repeated = estimate_rate([Tally(5, 5)] * 300 + [Tally(0, 5)] * 100)
    assert once and repeated and once.interval == pytest.approx(repeated.interval, abs=1e-3)
    assert repeated.runs == 2000


def test_repeats_that_are_independent_count_in_full() -> None:
    random = Random(0)
    tallies = [Tally(sum(random.random() < 0.6 for _ in range(4)), 4) for _ in range(400)]
    passed = sum(tally.passed for tally in tallies)
    rate = estimate_rate(tallies)
    expected = stats.binomtest(passed, 1600).proportion_ci(method="wilson")
    assert rate and rate.interval == pytest.approx((expected.low, expected.high), abs=2e-3)


@given(some.lists(TALLIES, min_size=1, max_size=20))
def test_an_interval_contains_its_rate_and_stays_within_0_and_1(tallies: list[Tally]) -> None:
    rate = estimate_rate(tallies)
    assert rate and 0 <= rate.interval.low <= rate.value <= rate.interval.high <= 1


def test_a_task_without_a_verdict_is_left_out() -> None:
    assert estimate_rate([PASS, FAIL, Tally(0, 0)]) == estimate_rate([PASS, FAIL])
    assert estimate_rate([Tally(0, 0)]) is None
    assert estimate_mean([[1.0], []]) == estimate_mean([[1.0]])
    assert estimate_mean([[]]) is None
    assert compare_rates([Pair(PASS, FAIL), Pair(Tally(0, 0), PASS)]).tasks == 1
    assert compare_means([[1.0], []], [[2.0], [3.0]]).tasks == 1


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_rates([Pair(PASS, Tally(0, 0))])
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_means([[1.0]], [[]])
    with pytest.raises(UsageError, match="nothing to compare"):
        is_worse([])


@given(runs=some.lists(some.booleans(), min_size=1, max_size=7), data=some.data())
def test_pass_at_and_pass_every_are_shares_of_the_choices_of_runs(
    runs: list[bool], data: some.DataObject
) -> None:
    k = data.draw(some.integers(1, len(runs)))
    choices = list(combinations(runs, k))
    tally = Tally(sum(runs), len(runs))
    assert estimate_pass_at([tally], k) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert estimate_pass_every([tally], k) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_pass_at_needs_a_task_with_enough_runs() -> None:
    assert estimate_pass_at([Tally(1, 2)], 3) is None
    assert estimate_pass_every([Tally(1, 2)], 3) is None
    assert estimate_pass_at([Tally(1, 2), Tally(3, 3)], 3) == 1


def test_the_bootstrap_agrees_with_scipys() -> None:
    random = Random(1)
    values = [random.lognormvariate(0, 0.5) for _ in range(400)]
    mean = estimate_mean([[value] for value in values])
    expected = stats.bootstrap((values,), lambda x, axis: x.mean(axis), method="percentile", rng=0)
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert mean and mean.value == pytest.approx(math.fsum(values) / 400)
    assert mean.interval == pytest.approx(tuple(expected.confidence_interval), abs=width / 20)


def test_one_task_has_a_mean_and_no_interval() -> None:
    mean = estimate_mean([[1.0, 3.0]])
    assert mean and mean.value == 2 and mean.interval is None


def test_the_cost_of_a_solved_task_includes_the_failures() -> None:
    per_pass = estimate_per_pass([[1.0, 2.0], [3.0, 4.0]], [Tally(1, 2), Tally(1, 2)])
    assert per_pass and per_pass.value == 5 and per_pass.interval == Interval(3, 7)
    assert estimate_per_pass([[1.0, 2.0]], [Tally(0, 2)]) is None


def test_the_cost_of_a_solved_task_is_unknown_if_that_of_a_run_is() -> None:
    assert estimate_per_pass([[1.0, 2.0], [3.0]], [Tally(1, 2), Tally(1, 2)]) is None


def test_the_cost_of_a_solved_task_has_no_interval_if_hardly_any_is_solved() -> None:
    per_pass = estimate_per_pass([[1.0]] * 30, [PASS] + [FAIL] * 29)
    assert per_pass and per_pass.value == 30 and per_pass.interval is None


@given(fixed=some.integers(0, 40), broken=some.integers(0, 40), same=some.integers(1, 40))
def test_the_p_value_of_single_runs_is_mcnemars(fixed: int, broken: int, same: int) -> None:
    pairs = [Pair(FAIL, PASS)] * fixed + [Pair(PASS, FAIL)] * broken + [Pair(PASS, PASS)] * same
    difference = compare_rates(pairs)
    changed = fixed + broken
    assert difference.value == pytest.approx((fixed - broken) / len(pairs))
    assert difference.method == "exact McNemar test"
    assert difference.p_value == pytest.approx(stats.binomtest(fixed, changed).pvalue if changed else 1)
    worse = stats.binomtest(broken, changed, alternative="greater").pvalue if changed else 1
    assert is_worse(pairs, alpha=worse * 1.001) and not is_worse(pairs, alpha=worse * 0.999)


@example([Pair(PASS, FAIL), Pair(Tally(1, 6), FAIL), Pair(FAIL, PASS), Pair(FAIL, Tally(1, 6))])
@given(some.lists(some.builds(Pair, TALLIES, TALLIES), min_size=2, max_size=8))
def test_the_p_value_of_repeats_is_that_of_all_signs(pairs: list[Pair]) -> None:
    # In sixtieths, so that SciPy's sums have no rounding: rates have up to 6 runs.
    gains = [float(round(60 * (pair.variant.rate - pair.base.rate))) for pair in pairs]
    expected = stats.permutation_test(
        (gains, [0.0] * len(gains)),
        lambda x, y, axis: (x - y).sum(axis),
        permutation_type="samples",
        vectorized=True,
    )
    difference = compare_rates(pairs)
    assert difference.p_value == pytest.approx(expected.pvalue)
    assert compare_means([[0.0]] * len(gains), [[gain] for gain in gains]).p_value == pytest.approx(
        expected.pvalue
    )


def test_amounts_that_differ_by_rounding_alone_are_equal() -> None:
    difference = compare_means([[0.3]] * 6, [[0.1 + 0.2]] * 6)
    assert (difference.value, difference.p_value) == (0, 1)


def test_random_signs_agree_with_all_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = run_both(Random(3), SIMILAR, 60, 3, lambda rate: rate * 0.8)
    exact = compare_rates(pairs)
    monkeypatch.setattr(statistics, "_MOST_ADDITIONS", 0)
    drawn = compare_rates(pairs)
    assert drawn.method.endswith("random signs") and exact.method == "exact sign-flip test by task"
    assert drawn.p_value == pytest.approx(exact.p_value, rel=0.1, abs=0.003)
    assert drawn.interval == exact.interval


def test_a_thousand_tasks_are_compared_exactly() -> None:
    difference = compare_rates(run_both(Random(4), MIXED, 1000, 3, lambda rate: rate * 0.9))
    assert difference.method == "exact sign-flip test by task"
    assert difference.p_value < 0.05


def test_variants_without_a_difference_have_an_interval_with_a_width() -> None:
    difference = compare_rates([Pair(PASS, PASS)] * 50)
    assert difference.value == 0 and difference.p_value == 1
    assert difference.interval and difference.interval.low < -0.02 and difference.interval.high > 0.02
    single = compare_rates([Pair(FAIL, PASS)])
    assert single.interval == Interval(-1, 1) and single.p_value == 1


@given(base=TALLIES, variant=TALLIES)
def test_a_task_is_fixed_or_broken_only_with_evidence(base: Tally, variant: Tally) -> None:
    change = classify_change(Pair(base, variant))
    table = [[base.passed, base.runs - base.passed], [variant.passed, variant.runs - variant.passed]]
    clear = stats.fisher_exact(table).pvalue <= 0.05 or {base.rate, variant.rate} == {0, 1}
    assert (change in ("fixed", "broken")) == clear
    if clear:
        assert change == ("fixed" if variant.rate > base.rate else "broken")
    else:
        assert (change == "unchanged") == (base.rate == variant.rate and base.rate in (0, 1))


@pytest.mark.parametrize(
    ("base", "variant", "change"),
    [
        ((0, 1), (1, 1), "fixed"),
        ((3, 3), (0, 3), "broken"),
        ((0, 5), (4, 5), "fixed"),
        ((0, 3), (2, 3), "flaky"),
        ((2, 3), (2, 3), "flaky"),
        ((3, 3), (3, 3), "unchanged"),
        ((0, 3), (0, 3), "unchanged"),
    ],
)
def test_each_change_has_its_word(base: tuple[int, int], variant: tuple[int, int], change: str) -> None:
    assert classify_change(Pair(Tally(*base), Tally(*variant))) == change
