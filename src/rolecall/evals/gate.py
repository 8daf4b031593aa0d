"""Decide whether a run is worse than a base, at the end of the run or as soon as the answer is clear.

A base is a run, or the name of a saved run, which is the ref `eval-base/<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rolecall.errors import Hint, NotFound, UsageError
from rolecall.evals.compare import (
    Comparison,
    Side,
    compare,
    find_same,
    list_sides,
    match_variants,
    pair_tasks,
)
from rolecall.evals.records import EvalRun, Result, StoredSuite, find_run
from rolecall.evals.results import Report
from rolecall.evals.statistics import ALPHA, EarlyAnswer, Pair, Tally, decide_early, is_worse
from rolecall.files.tree import Trees
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store

Decision = Literal["passed", "worse", "undecided"]


class Gated(NamedTuple):
    """The decision of a gate about a run."""

    decision: Decision
    reason: str
    report: Report
    comparisons: tuple[Comparison, ...]

    def dump(self) -> JsonObject:
        return {
            "decision": self.decision,
            "reason": self.reason,
            "eval": self.report.id,
            "status": self.report.status,
            "counts": self.report.counts,
            "comparisons": [one.dump() for one in self.comparisons],
        }


# -- the base --


def save_base(store: Store, name: str, report: Report) -> None:
    """Save a finished run as a base under a name."""
    if report.status != "done" or report.is_early:
        raise UsageError(f"the run {report.id} is not complete, so it cannot be a base")
    ref = f"eval-base/{name}"
    store.move(ref, store.ref(ref), report.node, {"eval": report.id})


def find_base(store: Store, name: str) -> list[Side]:
    """Return the variants of a base, which is a saved name or a run, with or without :VARIANT."""
    run, _, variant = name.partition(":")
    saved = store.ref(f"eval-base/{run}") if run and "/" not in run else None
    try:
        report = Report(find_run(store, saved.state["eval"] if saved else run))
    except NotFound:
        hint = Hint("Save the result of a run as a base", "save_base", name=run)
        raise NotFound(f"there is no base and no run {run!r}", hint=hint) from None
    return list_sides(report, variant)


def list_bases(base: Sequence[Side], suite: StoredSuite, tasks: Sequence[str]) -> dict[str, dict[str, Tally]]:
    """Return, for each variant of a suite, the verdicts of its base on those chosen tasks that are the same in the
    base's run."""
    found = dict[str, dict[str, Tally]]()
    chosen = [task for task in suite.tasks if task.node in tasks]
    for old, variant in match_variants(base, [one.name for one in suite.variants]):
        same, tallies = find_same(old.report, chosen), old.report.tallies(old.variant)
        found[variant] = {task: tally for task, tally in tallies.items() if task in same}
        if not found[variant]:
            raise UsageError(f"{old.name} has no verdict on a task of this suite", hint="Save a new base.")
    return found


# -- early answers --


@dataclass(frozen=True)
class Early:
    """Checks during a run whether the answer is already clear."""

    run: EvalRun
    bases: Mapping[str, Mapping[str, Tally]] | None = None
    """The verdicts of each variant's base, keyed by task. If None, the first variant is the base."""

    def __call__(self, results: Sequence[Result]) -> str:
        """Return why the rest of the run is unnecessary, in words, or an empty string if it is needed. For a gate, one
        variant that is worse is enough."""
        answers = self.find_answers(results)
        clear = {name: one for name, one in answers.items() if one.answer}
        is_worse = self.bases is not None and any(one.answer == "worse" for one in clear.values())
        if len(clear) < len(answers) and not is_worse:
            return ""
        reasons = [
            f"{name} is {one.answer} after {one.tasks} tasks (e-value {one.e_value:.3g})"
            for name, one in clear.items()
        ]
        return f"stopped early: {', '.join(reasons)}"

    def find_answers(self, results: Sequence[Result]) -> dict[str, EarlyAnswer]:
        """Return the evidence about each variant, from results in the order in which they arrived. A task counts once
        all its threads have a result. At most one in twenty runs wrongly calls a variant different; a gate spends half
        of this error probability here and leaves the other half to its final test."""
        cells = {cell.number: cell for cell in self.run.cells}
        ended: dict[str, dict[str, Tally]] = {variant.name: {} for variant in self.run.suite.variants}
        place, of_cell = dict[tuple[str, str], int](), dict[tuple[str, str], list[str]]()
        for number, result in enumerate(results):
            variant, task = cells[result.number].variant.name, cells[result.number].task.id
            outcomes = of_cell.setdefault((variant, task), [])
            outcomes.append(result.outcome)
            if len(outcomes) == self.run.suite.repeat:
                passed = outcomes.count("passed")
                ended[variant][task] = Tally(passed, passed + outcomes.count("failed"))
                place[variant, task] = number
        first = next(iter(ended))
        bases = self.bases or {name: ended[first] for name in ended if name != first}
        alpha = ALPHA / len(bases) / (2 if self.bases else 1)
        answers = {}
        for name, base in bases.items():
            needed = (name,) if self.bases else (name, first)
            both = [task for task in ended[name] if task in base]
            order = sorted((max(place[one, task] for one in needed), task) for task in both)
            pairs = [Pair(base[task], ended[name][task]) for _, task in order]
            answers[name] = decide_early(pairs, alpha=alpha)
        return answers


# -- the decision --


def decide(store: Store, trees: Trees, base: Sequence[Side], run: EvalRun, early: Early | None) -> Gated:
    """Decide whether a run is worse than its base. Counting all variants together, at most one in twenty runs that are
    equally good is called worse."""
    report = Report(run)
    pairs = [(old, Side(report, variant)) for old, variant in match_variants(base, report.variants)]
    alpha = ALPHA / len(pairs) / (2 if early else 1)
    results = sorted(run.read_results().values(), key=lambda one: one.at)
    answers = early.find_answers(results) if early else {}
    worse = list[str]()
    comparisons = list[Comparison]()
    for old, new in pairs:
        tasks, _ = pair_tasks(old, new)
        if tasks:
            comparisons.append(compare(store, trees, old, new))
        answer = answers[new.variant].answer if new.variant in answers else None
        if answer == "worse" or (answer is None and tasks and is_worse(tasks.values(), alpha=alpha)):
            worse.append(new.variant)
    counts = report.counts
    decision: Decision = "passed"
    reason = "not worse than the base"
    if counts["open"] and not report.is_early:
        decision, reason = "undecided", f"{counts['open']} threads have no result yet"
    elif worse:
        decision, reason = "worse", f"worse than the base: {', '.join(worse)}"
    elif counts["infrastructure"] and not report.is_early:
        decision, reason = "undecided", f"{counts['infrastructure']} threads could not run or be judged"
    compared = {new.variant for _, new in pairs}
    if added := [variant for variant in report.variants if variant not in compared]:
        reason += f"; not compared, because the base has none: {', '.join(added)}"
    return Gated(decision, reason, report, tuple(comparisons))
