"""Find the version that broke something, with a judge that might be wrong. Pure: the caller asks the judge.

A search is a value that is determined by its answers. To continue a run that was interrupted, build the search again
from the recorded answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import comb

from rolecall.errors import UsageError

_MOST_ANSWERS = 101


def count_needed(error: float) -> int:
    """Return how many answers about one version are needed so that their majority is wrong in at most one of a hundred
    cases. The result is at most `_MOST_ANSWERS`."""
    for answers in range(1, _MOST_ANSWERS, 2):
        wrong = range(answers // 2 + 1, answers + 1)
        if sum(comb(answers, n) * error**n * (1 - error) ** (answers - n) for n in wrong) <= 0.01:
            return answers
    return _MOST_ANSWERS


def estimate_error(wrong: int, answers: int) -> float:
    """Estimate the probability that an answer is wrong from these counts, adding one answer of each kind for unseen
    cases."""
    return min(0.45, (wrong + 1) / (answers + 2))


@dataclass(frozen=True)
class Search:
    """The search for the first bad version among `versions` versions, numbered from 0 in their order. All versions
    before the first bad one are good, and all versions after it are bad.

    The method is probabilistic bisection. It keeps, for each version, the probability that this version is the first
    bad one, asks about the version that splits these probabilities in half, and weighs the answer by how often the
    judge is wrong. It can ask about the same version several times. With an error of 0, this is plain bisection.
    """

    versions: int
    error: float = 0.0
    """The probability that the judge is wrong, or an upper bound. It must be below one half."""
    enough: float = 0.98
    """The certainty at which the search ends."""
    results: tuple[tuple[int, bool], ...] = ()
    """The answers so far, each as a version and whether it passed."""

    def __post_init__(self) -> None:
        if not 0 <= self.error < 0.5:
            raise UsageError(
                f"A judge that is wrong with a probability of {self.error:g} cannot guide a search.",
                hint="The probability must be below one half. Let each answer be a majority of several verdicts.",
            )

    @cached_property
    def mistakes(self) -> tuple[int, ...]:
        """For each version, how many answers are wrong if that version is the first bad one. The last number is for the
        case that all versions are good."""
        passes, failures_over_passes = 0, [0] * self.versions
        for version, passed in self.results:
            passes += passed
            failures_over_passes[version] += -1 if passed else 1
        return tuple(accumulate(failures_over_passes, initial=passes))

    @cached_property
    def chances(self) -> tuple[float, ...]:
        """For each version, the probability that it is the first bad one. The last number is for the case that all
        versions are good."""
        odds, fewest = self.error / (1 - self.error), min(self.mistakes)
        weights = [odds ** (mistakes - fewest) for mistakes in self.mistakes]
        total = sum(weights)
        return tuple(weight / total for weight in weights)

    @property
    def answer(self) -> int:
        """The version that is most likely the first bad one, or `versions` if most likely all are good."""
        return max(range(self.versions + 1), key=self.chances.__getitem__)

    @property
    def certainty(self) -> float:
        """The probability that the answer is right."""
        return self.chances[self.answer]

    def next_version(self) -> int | None:
        """Return the version to ask about next, or None if the answer is certain enough."""
        if self.certainty >= self.enough:
            return None
        bad = list(accumulate(self.chances[:-1]))
        return min(range(self.versions), key=lambda version: abs(bad[version] - 0.5))
