"""The search for the version that broke something, with a judge of known errors."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rolecall.errors import UsageError
from rolecall.evals.search import Search


def run(random: Random, search: Search, first_bad: int, *, error: float) -> Search:
    for _ in range(1000):
        version = search.next_version()
        if version is None:
            return search
        search = search.tell(version, (version < first_bad) != (random.random() < error))
    raise AssertionError(f"no end after 1,000 answers: {search.certainty}")


@pytest.mark.parametrize("error", [0.05, 0.1, 0.2, 0.3])
def test_a_noisy_search_over_64_versions_is_right_in_95_percent(error: float) -> None:
    random, right, asked = Random(1), 0, 0
    for _ in range(200):
        first_bad = random.randrange(65)
        search = run(random, Search(64, error), first_bad, error=error)
        right += search.answer == first_bad
        asked += len(search.told)
    assert right >= 0.95 * 200
    assert asked / 200 <= {0.05: 15, 0.1: 20, 0.2: 35, 0.3: 75}[error]


def test_a_search_costs_a_fraction_of_asking_about_every_version() -> None:
    random, error = Random(2), 0.2

    def ask_all(repeats: int) -> float:
        """How often the most likely version is right after so many answers about each."""
        right = 0
        for _ in range(200):
            first_bad = random.randrange(65)
            told = tuple(
                (version, (version < first_bad) != (random.random() < error))
                for version in range(64)
                for _ in range(repeats)
            )
            right += Search(64, error, told=told).answer == first_bad
        return right / 200

    needed = next(repeats for repeats in range(1, 20) if ask_all(repeats) >= 0.97)
    asked = (
        sum(len(run(random, Search(64, error), random.randrange(65), error=error).told) for _ in range(200))
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
    assert len(search.told) <= versions.bit_length()
    assert len({version for version, _ in search.told}) == len(search.told)


@given(some.integers(1, 40), some.lists(some.booleans(), max_size=30))
def test_a_search_continues_from_recorded_answers(versions: int, verdicts: list[bool]) -> None:
    search = Search(versions, 0.2)
    for passed in verdicts:
        version = search.next_version()
        if version is None:
            break
        assert 0 <= version < versions
        search = search.tell(version, passed)
    again = Search(versions, 0.2, told=search.told)
    assert again == search and again.next_version() == search.next_version()
    assert sum(again.chances) == pytest.approx(1)


@pytest.mark.parametrize("error", [-0.1, 0.5, 1.0])
def test_a_judge_that_is_as_often_wrong_as_right_is_an_error(error: float) -> None:
    with pytest.raises(UsageError, match="cannot guide a search"):
        Search(8, error)


def test_answers_that_contradict_each_other_are_an_error_if_the_judge_is_never_wrong() -> None:
    with pytest.raises(UsageError, match="contradict"):
        Search(8).tell(3, False).tell(5, True)
    assert Search(8, 0.1).tell(3, False).tell(5, True).certainty < 0.5
