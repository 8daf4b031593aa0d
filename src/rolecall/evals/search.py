"""Finds the version that broke something, with a judge that may be wrong. Pure: the caller asks the judge.

A search is a value: its answers determine everything else, so a run that was interrupted continues by building the
search again from the recorded answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import comb

from rolecall.errors import UsageError

_MOST_ANSWERS = 101


def count_needed(error: float) -> int:
    """How many answers about one version are needed so that their majority is wrong in at most one of a hundred
    cases."""
    for answers in range(1, _MOST_ANSWERS, 2):
        wrong = range(answers // 2 + 1, answers + 1)
        if sum(comb(answers, n) * error**n * (1 - error) ** (answers - n) for n in wrong) <= 0.01:
            return answers
    return _MOST_ANSWERS


def estimate_error(wrong: int, answers: int) -> float:
    """How often an answer is wrong, estimated from these counts, with one more of each kind for unseen cases."""
    return min(0.45, (wrong + 1) / (answers + 2))


@dataclass(frozen=True)
class Search:
    """The search for the first bad version among `versions` versions, numbered from 0 in their order: all before it
    are good, all from it on are bad.

    The method is probabilistic bisection: it keeps the probability of each version being the first bad one, asks
    about the version that splits them in half, and weighs the answer by how often the judge is wrong. It may ask about
    a version again. With an error of 0 this is plain bisection.
    """

    versions: int
    error: float = 0.0
    """How often the judge is wrong, or an upper bound, below one half."""
    enough: float = 0.98
    """How certain the answer must be."""
    told: tuple[tuple[int, bool], ...] = ()
    """The answers so far: a version, and whether it passed."""

    def __post_init__(self) -> None:
        if not 0 <= self.error < 0.5:
            raise UsageError(
                f"A judge that is wrong with a probability of {self.error:g} cannot guide a search.",
                hint="The probability must be below one half. Let each answer be a majority of several verdicts.",
            )

    @cached_property
    def mistakes(self) -> tuple[int, ...]:
        """For each version, how many answers are wrong if it is the first bad one; the last number is for the case that
        all are good."""
        passes, failures_over_passes = 0, [0] * self.versions
        for version, passed in self.told:
            passes += passed
            failures_over_passes[version] += -1 if passed else 1
        return tuple(accumulate(failures_over_passes, initial=passes))

    @cached_property
    def chances(self) -> tuple[float, ...]:
        """The probability of each version being the first bad one; the last number is for the case that all are
        good."""
        odds, fewest = self.error / (1 - self.error), min(self.mistakes)
        weights = [odds ** (mistakes - fewest) for mistakes in self.mistakes]
        total = sum(weights)
        return tuple(weight / total for weight in weights)

    @property
    def answer(self) -> int:
        """The version that is most likely the first bad one; `versions` if all are most likely good."""
        return max(range(self.versions + 1), key=self.chances.__getitem__)

    @property
    def certainty(self) -> float:
        """The probability that the answer is right."""
        return self.chances[self.answer]

    def next_version(self) -> int | None:
        """The version to ask about; None if the answer is certain enough."""
        if self.certainty >= self.enough:
            return None
        bad = list(accumulate(self.chances[:-1]))
        return min(range(self.versions), key=lambda version: abs(bad[version] - 0.5))
