"""The search for the version that broke something, with a judge of known errors."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rolecall.errors import UsageError
from rolecall.evals.search import Search, count_needed


def run(random: Random, search: Search, first_bad: int, *, error: float) -> Search:
    for _ in range(1000):
        version = search.next_version()
        if version is None:
            return search
        passed = (version < first_bad) != (random.random() < error)
        search = replace(search, results=(*search.results, (version, passed)))
    raise AssertionError(f"no end after 1,000 answers: {search.certainty}")


@pytest.mark.parametrize("error", [0.05, 0.1, 0.2, 0.3])
def test_a_noisy_search_over_64_versions_is_right_in_95_percent(error: float) -> None:
    random, right, asked = Random(1), 0, 0
    for _ in range(200):
        first_bad = random.randrange(65)
        search = run(random, Search(64, error), first_bad, error=error)
        right += search.answer == first_bad
        asked += len(search.results)
    assert right >= 0.95 * 200
    assert asked / 200 <= {0.05: 15, 0.1: 20, 0.2: 35, 0.3: 75}[error]


def run_with_ends(random: Random, error: float) -> tuple[bool, int]:
    """Whether a search over 64 versions is right that, as `eval bisect --noise` does, first makes sure that the oldest
    one is good and the newest is bad; and how many answers it takes."""
    first_bad, ends = random.randrange(1, 64), count_needed(error)
    oldest, newest = ([random.random() < error for _ in range(ends)] for _ in range(2))
    results = tuple((62, is_wrong) for is_wrong in newest)
    search = run(random, Search(63, error, results=results), first_bad - 1, error=error)
    are_ends_right = max(sum(oldest), sum(newest)) * 2 < ends
    return are_ends_right and search.answer == first_bad - 1, ends + len(search.results)


def test_a_search_that_first_makes_sure_of_its_ends_is_right_in_95_percent() -> None:
    random = Random(3)
    right, asked = zip(*(run_with_ends(random, 0.2) for _ in range(600)), strict=True)
    assert sum(right) >= 0.95 * 600
    assert sum(asked) / 600 <= 0.1 * 64 * 11  # 11 answers about each version are right as often


def test_a_search_costs_a_fraction_of_asking_about_every_version() -> None:
    random, error = Random(2), 0.2

    def ask_all(repeats: int) -> float:
        """How often the most likely version is right after so many answers about each."""
        right = 0
        for _ in range(200):
            first_bad = random.randrange(65)
            results = tuple(
                (version, (version < first_bad) != (random.random() < error))
                for version in range(64)
                for _ in range(repeats)
            )
            right += Search(64, error, results=results).answer == first_bad
        return right / 200

    needed = next(repeats for repeats in range(1, 20) if ask_all(repeats) >= 0.97)
    asked = (
        sum(
            len(run(random, Search(64, error), random.randrange(65), error=error).results) for _ in range(200)
        )
        / 200
    )
    assert asked <= 0.15 * 64 * needed


def test_a_judge_that_is_better_than_assumed_does_no_harm() -> None:
    random = Random(3)
    firsts = [random.randrange(65) for _ in range(200)]
    right = sum(run(random, Search(64, 0.2), first, error=0.05).answer == first for first in firsts)
    assert right >= 0.97 * 200


@given(versions=some.integers(1, 200), data=some.data())
def test_without_errors_it_is_a_plain_bisection(versions: int, data: some.DataObject) -> None:
    first_bad = data.draw(some.integers(0, versions))
    search = run(Random(0), Search(versions), first_bad, error=0)
    assert search.answer == first_bad and search.certainty == 1
    assert len(search.results) <= versions.bit_length()
    assert len({version for version, _ in search.results}) == len(search.results)


@given(some.integers(1, 40), some.lists(some.booleans(), max_size=30))
def test_a_search_continues_from_recorded_answers(versions: int, verdicts: list[bool]) -> None:
    search = Search(versions, 0.2)
    for passed in verdicts:
        version = search.next_version()
        if version is None:
            break
        assert 0 <= version < versions
        search = replace(search, results=(*search.results, (version, passed)))
    again = Search(versions, 0.2, results=search.results)
    assert again == search and again.next_version() == search.next_version()
    assert sum(again.chances) == pytest.approx(1)


@pytest.mark.parametrize("error", [-0.1, 0.5, 1.0])
def test_a_judge_that_is_as_often_wrong_as_right_is_an_error(error: float) -> None:
    with pytest.raises(UsageError, match="cannot guide a search"):
        Search(8, error)


def test_answers_that_contradict_each_other_leave_doubt() -> None:
    assert Search(8, 0.1, results=((3, False), (5, True))).certainty < 0.5
