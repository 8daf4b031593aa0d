"""Compare two variants in pairs: the result of each task with both variants, and whether the difference is more than
chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rolecall.errors import Damaged, Hint, NotFound, UsageError
from rolecall.evals.records import StoredTask, find_run, to_json
from rolecall.evals.results import AMOUNTS, CellResult, Report
from rolecall.evals.statistics import (
    Change,
    Difference,
    Mean,
    Pair,
    Rate,
    Tally,
    classify_change,
    compare_means,
    compare_rates,
    estimate_mean,
    estimate_rate,
)
from rolecall.files.tree import Trees
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads import why
from rolecall.threads.key import describe_step, differences
from rolecall.threads.thread import FORK, Chain, Step


class Side(NamedTuple):
    """A variant of a run."""

    report: Report
    variant: str

    @property
    def name(self) -> str:
        return f"{self.report.id}:{self.variant}"


class AmountChange(NamedTuple):
    """The change of a score or an amount per thread, on the tasks for which both variants have a value."""

    name: str
    base: Mean
    variant: Mean
    difference: Difference


class Parting(NamedTuple):
    """The first step with a different result. If no step differs, `step` is None, and only the judges differ."""

    step: int | None
    role: str
    part: str
    """The first part of the step's key that differs, as named by `thread why`, or empty if both were asked the same."""
    asked: str
    """The differences between the steps' prompts and files, in words."""
    answered: str
    """The differences between the steps' results, in words."""

    def __str__(self) -> str:
        if self.step is None:
            return self.answered
        given = self.asked or "asked the same"
        return f"step {self.step} {self.role}: {given}; {self.answered}"


class TaskChange(NamedTuple):
    """What changed in the results of one task."""

    task: str
    change: Change
    base: Tally
    variant: Tally
    threads: tuple[str, str] | None = None
    """One thread of each variant, with different verdicts, or None if all verdicts agree."""
    parting: Parting | None = None
    """Where these two threads diverge, or None if their steps are not in this store."""


class Comparison(NamedTuple):
    base: str
    """The name of the base, in the form RUN:VARIANT."""
    variant: str
    suite: str
    base_rate: Rate
    rate: Rate
    difference: Difference
    amounts: tuple[AmountChange, ...]
    tasks: tuple[TaskChange, ...]
    left_out: Mapping[str, str]
    """The tasks that are not compared, each with the reason."""
    notes: tuple[str, ...]
    """Caveats about the figures."""

    def count(self, change: Change) -> int:
        return sum(task.change == change for task in self.tasks)

    def dump(self) -> JsonObject:
        """Return the comparison in its JSON form."""
        shown: dict[str, Any] = to_json(self)
        return shown


def find_pairs(store: Store, base: str, variant: str = "") -> list[tuple[Side, Side]]:
    """Return the pairs of variants to compare for one or two names. A name is RUN or RUN:VARIANT. For one run alone,
    compare its first variant with the others. For two runs, compare the variants with the same name, or the only
    variant of the base run with each variant of the other run."""
    if not variant:
        old = _find_sides(store, base)
        if len(old) == 1:
            hint = Hint("Name another run", "list_evals")
            raise UsageError(f"nothing can be compared with {old[0].name}", hint=hint)
        return [(old[0], one) for one in old[1:]]
    new = _find_sides(store, variant)
    matched = match_variants(_find_sides(store, base), [one.variant for one in new])
    return [(old, Side(new[0].report, name)) for old, name in matched]


def match_variants(base: Sequence[Side], variants: Sequence[str]) -> list[tuple[Side, str]]:
    """Return each variant with its base: the only variant of the base run, or the variant with the same name."""
    if len(base) == 1:
        return [(base[0], variant) for variant in variants]
    known = {one.variant: one for one in base}
    pairs = [(known[variant], variant) for variant in variants if variant in known]
    if not pairs:
        both = f"{', '.join(known)}, and {', '.join(variants)}"
        raise UsageError(f"no variant is in both runs: {both}", hint="Name the variants: RUN:VARIANT.")
    return pairs


def _find_sides(store: Store, name: str) -> list[Side]:
    run, _, variant = name.partition(":")
    return list_sides(Report(find_run(store, run)), variant)


def list_sides(report: Report, variant: str = "") -> list[Side]:
    """Return all variants of a run, or only the given one."""
    if variant and variant not in report.variants:
        hint = f"It has {', '.join(report.variants)}."
        raise UsageError(f"the run {report.id} has no variant {variant!r}", hint=hint)
    return [Side(report, one) for one in ([variant] if variant else report.variants)]


def compare(store: Store, trees: Trees, base: Side, variant: Side) -> Comparison:
    """Compare two sides on the tasks that are the same and that have verdicts on both sides."""
    pairs, left_out = pair_tasks(base, variant)
    if not pairs:
        why = f": {'; '.join(dict.fromkeys(left_out.values()))}" if left_out else ""
        raise UsageError(f"{base.name} and {variant.name} have no task in common that both judged{why}")
    rates = [estimate_rate(tallies) for tallies in zip(*pairs.values(), strict=True)]
    assert rates[0] and rates[1]  # noqa: S101 - there are tasks with verdicts
    amounts = []
    for name in ("score", *AMOUNTS):
        old, new = (side.report.amounts(side.variant, name) for side in (base, variant))
        both = [task for task in pairs if task in old and task in new]
        sides = [[known[task] for task in both] for known in (old, new)]
        means = [estimate_mean(side) for side in sides]
        if means[0] and means[1]:
            amounts.append(AmountChange(name, means[0], means[1], compare_means(*sides)))
    return Comparison(
        base.name,
        variant.name,
        variant.report.name,
        rates[0],
        rates[1],
        compare_rates(pairs.values()),
        tuple(amounts),
        tuple(_classify(store, trees, base, variant, task, pair) for task, pair in pairs.items()),
        left_out,
        tuple(_note(base, variant)),
    )


def pair_tasks(base: Side, variant: Side) -> tuple[dict[str, Pair], dict[str, str]]:
    """Return the tasks that are the same and that have verdicts on both sides, and the other tasks with the reasons why
    they are left out."""
    old, new = (_find_tasks(side.report) for side in (base, variant))
    judged = [side.report.tallies(side.variant) for side in (base, variant)]
    same = find_same(base.report, new.values())
    left_out = dict[str, str]()
    for task in {**old, **new}:
        if task not in old or task not in new:
            left_out[task] = f"only in {(base if task in old else variant).name}"
        elif task not in same:
            left_out[task] = "its prompt, setup or files differ"
        elif task not in judged[0] or task not in judged[1]:
            missing = [side.name for side, of in zip((base, variant), judged, strict=True) if task not in of]
            left_out[task] = f"no verdict in {' and '.join(missing)}"
    pairs = {task: Pair(judged[0][task], now) for task, now in judged[1].items() if task not in left_out}
    return pairs, left_out


def find_same(report: Report, tasks: Iterable[StoredTask]) -> set[str]:
    """Return the ids of those tasks that the run also contains, with the same content."""
    known = _find_tasks(report)
    return {task.id for task in tasks if task.id in known and _content(known[task.id]) == _content(task)}


def _find_tasks(report: Report) -> dict[str, StoredTask]:
    chosen = {cell.task for cell in report.cells}
    return {task.id: task for task in report.suite.tasks if task.id in chosen}


def _content(task: StoredTask) -> tuple[Any, ...]:
    return (task.prompt, task.setup, task.files.tree if task.files else "", task.repository, task.commit)


def _classify(store: Store, trees: Trees, base: Side, variant: Side, task: str, pair: Pair) -> TaskChange:
    change = TaskChange(task, classify_change(pair), *pair)
    if pair.base.rate == pair.variant.rate:
        return change
    is_better = pair.variant.rate > pair.base.rate
    old = _pick(base, task, "failed" if is_better else "passed")
    new = _pick(variant, task, "passed" if is_better else "failed")
    parting = find_parting(store, trees, old.head, new.head) if old.head and new.head else None
    return change._replace(threads=(old.thread, new.thread), parting=parting)


def _pick(side: Side, task: str, outcome: str) -> CellResult:
    wanted = (side.variant, task, outcome)
    return next(one for one in side.report.cells if (one.variant, one.task, one.outcome) == wanted)


def _note(base: Side, variant: Side) -> Iterator[str]:
    judges = [
        {one.judge.name: (one.judge, one.files and one.files.tree) for one in side.report.suite.judges}
        for side in (base, variant)
    ]
    changed = [name for name in {**judges[0], **judges[1]} if judges[0].get(name) != judges[1].get(name)]
    if changed:
        yield f"the judges differ, so verdicts may not mean the same: {', '.join(changed)}"
    for report in {side.report.id: side.report for side in (base, variant)}.values():
        counts = report.counts
        if report.is_early:
            yield f"{report.id} {report.reason}; the interval and the p value assume that it did not"
        elif counts["open"]:
            yield f"{report.id} is not finished: {counts['open']} of its threads have no result"
        if counts["infrastructure"]:
            yield f"{report.id}: {counts['infrastructure']} threads could not run or be judged; they do not count"


# -- where two threads diverge --

_MOST_CHARACTERS = 40


def find_parting(store: Store, trees: Trees, base: str, variant: str) -> Parting | None:
    """Return where the chains that end in these nodes diverge, or None if they are not in this store."""
    try:
        chains = [
            [step for step in reversed(list(Chain(store, head))) if step.role != FORK]
            for head in (base, variant)
        ]
        for number, (was, now) in enumerate(zip_longest(*chains), 1):
            if was is None or now is None or was.role != now.role:
                roles = [step.role if step else "" for step in (now, was)]
                way = [f"goes to {roles[0]}" if now else "ends", f"went to {roles[1]}" if was else "ended"]
                return Parting(number, roles[0] or roles[1], "", "", f"it {way[0]} here, the base {way[1]}")
            if answered := _compare_results(was, now):
                parts = differences(was.parts, now.parts) if was.parts and now.parts else []
                parts = [part for part in parts if part != "repetition"]
                asked = why.describe_part(store, trees, was, now, parts[0]) if parts else ""
                return Parting(number, now.role, next(iter(parts), ""), asked, answered)
    except (NotFound, Damaged):
        return None
    return Parting(None, "", "", "", "every step has the same result, so only the judges differ")


def _compare_results(was: Step, now: Step) -> str:
    """Return the differences between the results of two steps in words, or an empty string if the results are the
    same."""
    old, new = (describe_step(step.past) for step in (was, now))
    if old[1] != new[1]:
        both = [value if isinstance(value, dict) else {"output": value} for value in (old[1], new[1])]
        keys = [key for key in {**both[1], **both[0]} if both[0].get(key) != both[1].get(key)]
        key = "$status" if "$status" in keys else "status" if "status" in keys else keys[0]
        return f"{key} is {_word(both[1].get(key))}, was {_word(both[0].get(key))}"
    if was.tree and now.tree and was.tree.left.tree != now.tree.left.tree:
        return "it left other files"
    return "" if old[2] == new[2] else "it answered with another text"


def _word(value: Any) -> str:
    if value is None:
        return "missing"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
