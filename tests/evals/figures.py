"""Prints the figures of docs/evals-statistics.md: `SOAK=1 PYTHONPATH=tests python -m evals.figures`, two minutes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from statistics import fmean

from evals.simulation import (
    EASY,
    HARD,
    MIXED,
    SIMILAR,
    SUITES,
    Difficulty,
    mean_of,
    run_both,
    run_breaking,
    run_suite,
)
from evals.test_search import run, run_with_ends
from rolecall.evals.search import Search
from rolecall.evals.statistics import (
    compare_rates,
    decide_early,
    estimate_mean,
    estimate_rate,
    find_smallest_difference,
    is_worse,
)

DIFFICULTIES: dict[str, Difficulty] = {"mixed": MIXED, "similar": SIMILAR, "hard": HARD, "easy": EASY}


def print_coverage() -> None:
    print("\nHow often a 95 % interval contains the truth")
    for tasks, repeats in ((30, 1), (50, 1), (30, 3), (50, 3), (100, 3), (50, 10)):
        shares = []
        for difficulty in DIFFICULTIES.values():
            random, truth, hits = Random(10), mean_of(difficulty), 0
            for _ in range(SUITES):
                rate = estimate_rate(run_suite(random, difficulty, tasks, repeats))
                hits += bool(rate and rate.interval.low <= truth <= rate.interval.high)
            shares.append(f"{100 * hits / SUITES:.1f} {100 * mean_naive(difficulty, tasks, repeats):.1f}")
        print(
            f"  pass rate, {tasks} x {repeats}, {', '.join(DIFFICULTIES)} (beside: each run as independent): {shares}"
        )
    for tasks in (15, 30, 50, 100):
        for sigma in (0.5, 1.0):
            random, hits = Random(11), 0
            for _ in range(SUITES):
                mean = estimate_mean([[random.lognormvariate(-(sigma**2) / 2, sigma)] for _ in range(tasks)])
                hits += bool(mean and mean.interval and mean.interval.low <= 1 <= mean.interval.high)
            print(f"  mean cost, {tasks} tasks, log-normal with sigma {sigma}: {100 * hits / SUITES:.1f}")


def mean_naive(difficulty: Difficulty, tasks: int, repeats: int) -> float:
    """How often the interval contains the truth if every run counts as a task of its own."""
    random, truth, hits = Random(10), mean_of(difficulty), 0
    for _ in range(SUITES):
        tallies = run_suite(random, difficulty, tasks, repeats)
        rate = estimate_rate(
            [type(each)(int(run < each.passed), 1) for each in tallies for run in range(each.runs)]
        )
        hits += bool(rate and rate.interval.low <= truth <= rate.interval.high)
    return hits / SUITES


def lower_by(points: float) -> Callable[[float], float]:
    return lambda rate: rate * (1 - points / 0.7)


def print_gate() -> None:
    print(
        "\nHow often the gate stops a variant, 50 tasks x 3 and 50 x 1, by the drop from a pass rate of 70 %"
    )
    for drop in (0.0, 0.1, 0.2):
        random = Random(12)
        stopped = [
            fmean(is_worse(run_both(random, MIXED, 50, repeats, lower_by(drop))) for _ in range(SUITES))
            for repeats in (3, 1)
        ]
        print(f"  {100 * drop:.0f} points: {stopped}")


def print_smallest() -> None:
    print("\nThe smallest difference from a pass rate of 70 % that is shown in 80 % of suites")
    for tasks in (20, 30, 50, 100, 200):
        for repeats in (1, 3, 5):
            random, least = Random(16), find_smallest_difference(tasks, repeats) or 1.0
            suites = (run_breaking(random, tasks, repeats, least) for _ in range(500))
            shown = fmean(compare_rates(pairs).p_value <= 0.05 for pairs in suites)
            print(f"  {tasks} tasks x {repeats}: {least:.3f}, shown in {100 * shown:.1f} %")


def print_early() -> None:
    print(
        "\nEarly answers, 100 tasks x 1 and x 3, by the drop: share answered, mean tasks used; fixed test's power"
    )
    for drop in (0.0, 0.1, 0.2, 0.3, 0.4):
        for repeats in (1, 3):
            random = Random(13)
            suites = [run_both(random, MIXED, 100, repeats, lower_by(drop)) for _ in range(1000)]
            answers = [decide_early(suite) for suite in suites]
            fixed = fmean(compare_rates(suite).p_value <= 0.05 for suite in suites)
            answered = fmean(each.answer is not None for each in answers)
            print(f"  {drop} x {repeats}: {answered}, {fmean(each.tasks for each in answers):.1f}; {fixed}")


def print_search() -> None:
    print("\nSearches over 64 versions: right, mean and most questions, beside asking about every version")
    for error in (0.0, 0.05, 0.1, 0.2, 0.3):
        random = Random(14)
        firsts = [random.randrange(65) for _ in range(1000)]
        searches = [run(random, Search(64, error), first, error=error) for first in firsts]
        right = fmean(search.answer == first for search, first in zip(searches, firsts, strict=True))
        asked = [len(search.results) for search in searches]
        for repeats in count(1):
            results = [
                tuple(
                    (v, (v < first) != (random.random() < error)) for v in range(64) for _ in range(repeats)
                )
                for first in firsts
            ]
            found = (Search(64, error, results=each).answer for each in results)
            if fmean(answer == first for answer, first in zip(found, firsts, strict=True)) >= 0.97:
                break
        share = fmean(asked) / (64 * repeats)
        print(
            f"  {error}: {right}, {fmean(asked):.1f}, {max(asked)}; all: 64 x {repeats}, so {100 * share:.1f} %"
        )
    random = Random(15)
    ended = [run_with_ends(random, 0.2) for _ in range(5000)]
    rights, questions = fmean(is_right for is_right, _ in ended), fmean(answers for _, answers in ended)
    print(f"  0.2, with both ends: {rights}, {questions:.1f}; {100 * questions / (64 * 11):.1f} % of 64 x 11")


if __name__ == "__main__":
    print_search()
    print_smallest()
    print_gate()
    print_early()
    print_coverage()
