"""Find what broke a suite among the runs in the store: a program, a model, an agent or the workflow.

An older program cannot be installed and run again, but its results are recorded together with its version. Runs with
the same workflow, agents and programs form one makeup. The makeups are searched in the order in which they were first
seen, without asking any agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from rolecall.errors import UsageError
from rolecall.evals.begin import EvalPlan
from rolecall.evals.records import find_run, list_runs, to_json
from rolecall.evals.results import CellResult, Report
from rolecall.evals.search import Search, estimate_error
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store


class Player(NamedTuple):
    """The player of a role: the agent with its options, such as the model, and the version of its program."""

    role: str
    agent: str
    version: str = ""


class Makeup(NamedTuple):
    """A combination of a workflow and its players, which several runs can share."""

    workflow: str
    """The id of the workflow's node."""
    players: tuple[Player, ...]
    run: str
    """The id of the first run with this makeup."""
    at: int
    """When that run began, in milliseconds."""


class Traced(NamedTuple):
    """The evidence in recorded runs about what broke a suite."""

    status: Literal["found", "not broken", "uncertain"]
    reason: str
    makeups: int
    answers: int
    tasks: tuple[str, ...]
    """The tasks that broke."""
    error: float
    """The assumed probability that an answer is wrong."""
    certainty: float | None = None
    bad: Makeup | None = None
    """The first bad makeup."""
    good: Makeup | None = None
    """The makeup before the first bad one."""
    changes: tuple[str, ...] = ()
    """The differences between these two makeups."""

    def dump(self) -> JsonObject:
        shown: JsonObject = to_json(self)
        return shown


def trace(
    store: Store, plan: EvalPlan, *, oldest: str = "", newest: str = "", noise: float | None = None
) -> Traced:
    """Find the first bad makeup for the first variant of the plan's suite, among the runs from `oldest` to `newest`. A
    run counts if it had the same judges and some of the same tasks. `noise` is the probability that an answer is
    wrong."""
    first, last = (find_run(store, name).at if name else None for name in (oldest, newest))
    variant = plan.suite.variants[0].name
    makeups, cells = list[Makeup](), list[_Seen]()
    for run in reversed(list_runs(store)):
        is_within = (first is None or run.at >= first) and (last is None or run.at <= last)
        same_judges = [one.node for one in run.suite.judges] == [one.node for one in plan.suite.judges]
        if not is_within or not same_judges or run.suite.name != plan.suite.name:
            continue
        tasks = {task.id for task in run.suite.tasks if task.node in plan.tasks}
        cells_here = [one for one in Report(run).cells if one.variant == variant and one.task in tasks]
        judged = [one for one in cells_here if one.is_judged]
        if not judged:
            continue
        workflow = next(one.workflow for one in run.suite.variants if one.name == variant)
        made = Makeup(workflow, list_players(judged), run.id, run.at)
        place = next((at for at, one in enumerate(makeups) if one[:2] == made[:2]), len(makeups))
        makeups += [made] if place == len(makeups) else []
        cells += [_Seen(place, run.id, cell.repeat, cell.task, cell.outcome == "passed") for cell in judged]
    if len(makeups) < 2:
        had = "only one makeup" if makeups else "no runs"
        hint = "Runs count if they had the same tasks and judges."
        raise UsageError(f"the store has {had} of {plan.suite.name!r} to search in", hint=hint)

    broken = _find_broken(cells, len(makeups) - 1)
    answers = _read_answers(cells, broken)
    results = tuple((place - 1, passed) for place, passed in answers if place)
    if noise is None:
        wrong = min(Search(len(makeups) - 1, results=results).mistakes)
        wrong += sum(not passed for place, passed in answers if place == 0)
        is_doubtful = wrong or len(answers) > len(makeups)
        noise = estimate_error(wrong, len(answers)) if is_doubtful else 0.0
    search = Search(len(makeups) - 1, noise, results=results)
    ended = (len(makeups), len(answers), broken, search.error)
    if not broken or search.answer == search.versions:
        reason = f"{makeups[-1].run} breaks no task that {makeups[0].run} passes"
        return Traced("not broken", reason, *ended)
    good, bad = makeups[search.answer], makeups[search.answer + 1]
    found = Traced("found", "", *ended, search.certainty, bad, good, tuple(compare(good, bad)))
    if search.certainty < search.enough:
        return found._replace(status="uncertain", reason="the recorded runs contradict each other")
    return found


def compare(good: Makeup, bad: Makeup) -> Iterable[str]:
    """Yield a line for each difference between two makeups."""
    if good.workflow != bad.workflow:
        yield f"the workflow is {bad.workflow}, was {good.workflow}"
    yield from compare_players(good.players, bad.players)


def list_players(cells: Iterable[CellResult]) -> tuple[Player, ...]:
    return tuple(sorted({Player(**player) for cell in cells for player in cell.agents}))


def compare_players(then: Sequence[Player], later: Sequence[Player]) -> Iterable[str]:
    """Yield a line for each difference between the players."""
    for role in sorted({one.role for one in (*then, *later)}):
        was, now = ([one for one in players if one.role == role] for players in (then, later))
        for what, at in (("agent", 1), ("program", 2)):
            before, after = (" and ".join(sorted({one[at] for one in side})) for side in (was, now))
            if was and now and before != after:
                yield f"the {what} of {role} is {after or 'unknown'}, was {before or 'unknown'}"
        if not was or not now:
            yield f"{role} was {'not asked before' if now else 'asked before, but is no longer'}"


class _Seen(NamedTuple):
    """The verdict on one thread."""

    makeup: int
    run: str
    repeat: int
    task: str
    passed: bool


def _find_broken(cells: Sequence[_Seen], last: int) -> tuple[str, ...]:
    """Return the tasks that mostly passed in the first makeup, but not in the last."""
    passed = dict[tuple[int, str], list[bool]]()
    for one in cells:
        passed.setdefault((one.makeup, one.task), []).append(one.passed)
    shares = {key: sum(all_of) / len(all_of) for key, all_of in passed.items()}
    tasks = sorted({one.task for one in cells})
    return tuple(task for task in tasks if shares.get((0, task), 0) > 0.5 >= shares.get((last, task), 1))


def _read_answers(cells: Sequence[_Seen], broken: Sequence[str]) -> list[tuple[int, bool]]:
    """Return the makeup of each repeat of each run, and whether most of the broken tasks passed in it."""
    votes = dict[tuple[int, str, int], list[bool]]()
    for one in cells:
        if one.task in broken:
            votes.setdefault((one.makeup, one.run, one.repeat), []).append(one.passed)
    return [(makeup, sum(passed) * 2 > len(passed)) for (makeup, _, _), passed in votes.items()]
