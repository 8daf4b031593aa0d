"""Early answers: how often they are wrong, and what they save."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from evals.simulation import HARD, MIXED, SIMILAR, SUITES, Difficulty, run_both
from rolecall.evals.statistics import Pair, Tally, decide_early

FAIL, PASS = Tally(0, 1), Tally(1, 1)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("difficulty", [MIXED, HARD])
def test_equal_variants_differ_at_any_look_in_at_most_5_percent(repeats: int, difficulty: Difficulty) -> None:
    random = Random(1)
    wrong = sum(
        decide_early(run_both(random, difficulty, 100, repeats)).answer is not None for _ in range(SUITES)
    )
    assert wrong <= 0.05 * SUITES


def test_variants_that_each_solve_other_tasks_are_equal() -> None:
    # The rates of single tasks differ; only their mean is the same.
    random = Random(2)
    suites = (run_both(random, SIMILAR, 100, 3, lambda rate: 1 - rate) for _ in range(SUITES // 2))
    assert sum(decide_early(suite).answer is not None for suite in suites) <= 0.05 * (SUITES // 2)


def test_a_large_difference_is_found_after_a_part_of_the_tasks() -> None:
    random = Random(3)
    answers = [
        decide_early(run_both(random, MIXED, 100, 3, lambda rate: rate * 0.55)) for _ in range(SUITES // 4)
    ]
    assert fmean(each.answer == "worse" for each in answers) >= 0.99
    assert not any(each.answer == "better" for each in answers)
    assert fmean(each.tasks for each in answers) <= 40


def test_the_answer_stays_and_says_when_it_became_clear() -> None:
    clear = decide_early([Pair(FAIL, PASS)] * 20)
    assert clear.answer == "better" and clear.tasks < 10 and clear.e_value >= 20
    assert decide_early([Pair(FAIL, PASS)] * 20 + [Pair(PASS, FAIL)] * 50) == clear
    opposite = decide_early([Pair(PASS, FAIL)] * 20)
    assert (opposite.answer, opposite.tasks, opposite.e_value) == ("worse", clear.tasks, clear.e_value)


def test_what_has_no_verdict_or_does_not_differ_leaves_the_answer_open() -> None:
    pairs = [Pair(PASS, PASS), Pair(FAIL, FAIL), Pair(PASS, Tally(0, 0))] * 10
    still_open = decide_early(pairs)
    assert (still_open.answer, still_open.e_value, still_open.tasks) == (None, 1, 20)
    assert decide_early([]).tasks == 0


def test_the_evidence_of_single_runs_is_a_mean_of_likelihood_ratios() -> None:
    # Uniform stakes are a uniform prior on the chance of winning: the beta-binomial likelihood ratio against 1/2.
    pairs = [Pair(FAIL, PASS)] * 5 + [Pair(PASS, FAIL)] * 2
    expected = 2**7 * math.factorial(5) * math.factorial(2) / math.factorial(8)
    assert decide_early(pairs).e_value == pytest.approx(expected, rel=0.01)
