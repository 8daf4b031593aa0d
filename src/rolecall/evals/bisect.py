"""Find the version of a workflow that broke a suite.

The oldest and the newest version are run first. For each version between them, the question is whether it passes the
tasks that the newest version has broken. Each question is a run, and the answers are recorded (in the ref
`eval-bisect/<digest>`), so a search that was killed can continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

from rolecall.errors import Hint, NotFound, UsageError
from rolecall.evals.begin import EvalPlan
from rolecall.evals.compare import Side, pair_tasks
from rolecall.evals.recorded import compare_players, list_players
from rolecall.evals.records import list_runs, to_json
from rolecall.evals.results import Report
from rolecall.evals.search import Search, count_needed, estimate_error
from rolecall.evals.suite import Suite
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads.key import digest
from rolecall.threads.thread import make_type
from rolecall.workflow.document import WorkflowChange, changes, diff
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.registry import Version

_TEXT = {"type": "string"}
_REF = {"type": "string", "format": "ocas_ref"}
_LOOK_SCHEMA = {
    "type": "object",
    "properties": {"version": {"type": "integer"}, "passed": {"type": "boolean"}, "run": _TEXT},
    "required": ["passed", "run", "version"],
    "additionalProperties": False,
}
BISECT_SCHEMA = make_type(
    "rolecall.eval_bisect",
    {
        "versions": {"type": "array", "items": _REF},
        "ends": _TEXT,
        "error": {"type": "number"},
        "tasks": {"type": "array", "items": _TEXT},
        "looks": {"type": "array", "items": _LOOK_SCHEMA},
    },
)
_UNLIKELY = 0.01


class Look(NamedTuple):
    """The answer of one run to the question about a version."""

    version: int
    """The number of the version, counted from 0. Version 0 is the oldest one, which is good."""
    passed: bool
    run: str


class SearchState(NamedTuple):
    """The stored form of a search's answers."""

    versions: tuple[str, ...]
    """The ids of the workflow's nodes, oldest first."""
    ends: str
    """The id of the run of the oldest and the newest version."""
    error: float
    tasks: tuple[str, ...]
    """The tasks that mostly pass with the oldest version, but not with the newest."""
    looks: tuple[Look, ...] = ()

    @property
    def search(self) -> Search:
        """The search among the versions after the oldest."""
        results = tuple((look.version - 1, look.passed) for look in self.looks if look.version)
        return Search(len(self.versions) - 1, self.error, results=results)


Ending = Literal["found", "not broken", "unfinished"]


class Bisected(NamedTuple):
    status: Ending
    reason: str
    workflow: str
    versions: int
    """The number of versions, including the oldest and the newest."""
    tasks: tuple[str, ...]
    """The tasks that broke."""
    error: float
    """The assumed probability that an answer is wrong."""
    looks: tuple[Look, ...]
    certainty: float | None = None
    bad: Version | None = None
    """The first bad version."""
    good: Version | None = None
    """The version before the first bad one."""
    changes: tuple[WorkflowChange, ...] = ()
    """The differences between these two versions."""
    diff: str = ""
    drift: tuple[str, ...] = ()
    """The agents and programs that have changed since the recorded runs that passed the tasks that now fail."""

    @property
    def asked(self) -> int:
        """The number of versions that were run."""
        return len({look.version for look in self.looks})

    def dump(self) -> JsonObject:
        shown: dict[str, Any] = to_json(self)
        return {**shown, "changes": [str(one) for one in self.changes], "asked": self.asked}


def choose_versions(history: Sequence[Version], oldest: str, newest: str, name: str) -> list[Version]:
    """Return the versions from `oldest` to `newest`, oldest first, from a history that has the newest first. A version
    is named by the beginning of its id or by its own `version`. The defaults are the first and the last version."""
    known = list[Version]()
    for version in reversed(history):
        if not known or known[-1].node != version.node:
            known.append(version)
    ends = []
    for wanted, default in ((oldest, 0), (newest, len(known) - 1)):
        found = [default]
        if wanted:
            start = wanted.upper()
            found = [
                at for at, one in enumerate(known) if one.node.startswith(start) or one.version == wanted
            ]
        if not found:
            raise NotFound(f"there is no version {wanted!r} of the workflow {name!r}")
        ends.append(found[-1])
    if ends[0] >= ends[1] or known[ends[0]].node == known[ends[1]].node:
        before = "The older one comes first."
        hint = Hint("List the versions", "workflow_history", before=before, workflow=name)
        raise UsageError(f"there are no versions of {name!r} between these two to search", hint=hint)
    return known[ends[0] : ends[1] + 1]


class Bisection(NamedTuple):
    """A search. The caller provides every part that asks agents or loads workflows."""

    store: Store
    suite: Suite
    versions: Sequence[Version]
    load: Callable[[str], Playbook]
    plan: Callable[[Suite, Sequence[str], int], EvalPlan]
    """Takes a suite, task ids (none for all tasks), and how often other runs asked the same questions. Returns the plan
    of a run."""
    play: Callable[[EvalPlan], Awaitable[Report]]
    watch: Callable[[str, JsonObject], None]
    noise: float | None = None
    """The probability that an answer is wrong. If None, it is estimated from the repeats with the oldest and the newest
    version."""

    async def find(self) -> Bisected:
        """Search until the answer is certain enough, or until a run cannot be finished."""
        first, last = self.versions[0], self.versions[-1]
        repeat = max(self.suite.repeat, count_needed(self.noise or 0))
        ends_plan = self.plan(self._suite_of([first, last])._replace(repeat=repeat), (), 0)
        nodes = [one.node for one in self.versions]
        ref = f"eval-bisect/{digest([ends_plan.suite.node, *ends_plan.tasks, nodes, self.noise])}"
        known = self._read(ref)
        if known is None:
            ends = await self.play(ends_plan)
            if ends.counts["open"] or ends.counts["infrastructure"]:
                return self._end("unfinished", self._describe_open(ends))
            known = self._judge_ends(ends)
            if not known.tasks:
                drift = self._find_drift(ends)
                reason = f"{_label(last)} breaks no task that {_label(first)} passes"
                return self._end("not broken", reason, known)._replace(drift=tuple(drift))
            self._write(ref, known)
        self._tell(known)
        while (at := known.search.next_version()) is not None:
            number = at + 1
            before = sum(look.version == number for look in known.looks)
            asked = self._suite_of([self.versions[number]])._replace(repeat=1)
            report = await self.play(self.plan(asked, known.tasks, before))
            if report.counts["open"] or report.counts["infrastructure"]:
                return self._end("unfinished", self._describe_open(report), known)
            passed = report.counts["passed"] * 2 > len(report.cells)
            known = known._replace(looks=(*known.looks, Look(number, passed, report.id)))
            self._write(ref, known)
            self._tell(known)
        search = known.search
        if search.answer == search.versions:
            return self._end("not broken", "asked again, no version is bad", known)
        good, bad = self.versions[search.answer], self.versions[search.answer + 1]
        was, now = (self.load(one.node).workflow for one in (good, bad))
        return self._end("found", "", known)._replace(
            certainty=search.certainty,
            good=good,
            bad=bad,
            changes=tuple(changes(was, now)),
            diff=diff(was, now, names=(_label(good), _label(bad))),
        )

    def _suite_of(self, versions: Sequence[Version]) -> Suite:
        """Return the suite with these versions of the workflow as its variants, each with the agents of the first
        variant."""
        own = self.suite.variants[0]
        books = {_label(one): self.load(one.node) for one in versions}
        variants = []
        for name, book in books.items():
            agents = {role: agent for role, agent in own.agents.items() if role in book.workflow.roles}
            variants.append(own._replace(name=name, workflow=name, agents=agents))
        return self.suite._replace(variants=tuple(variants), books=books)

    def _judge_ends(self, ends: Report) -> SearchState:
        """Return the broken tasks, the probability that an answer is wrong, and the answers of the repeats with the
        oldest and the newest version."""
        sides = [Side(ends, variant) for variant in ends.variants]
        pairs, _ = pair_tasks(*sides)
        broken = tuple(task for task, (old, new) in pairs.items() if old.rate > 0.5 >= new.rate)
        looks = list[Look]()
        for version, side in ((0, sides[0]), (len(self.versions) - 1, sides[1])):
            cells = [one for one in ends.cells if one.variant == side.variant and one.task in broken]
            for repeat in dict.fromkeys(cell.repeat for cell in cells):
                outcomes = [cell.outcome for cell in cells if cell.repeat == repeat]
                looks.append(Look(version, outcomes.count("passed") * 2 > len(outcomes), ends.id))
        error = self.noise
        if error is None:
            wrong = sum(look.passed == bool(look.version) for look in looks)
            is_repeated = self.suite.repeat > 1  # otherwise nothing shows how often an answer is wrong
            error = estimate_error(wrong, len(looks)) if is_repeated else 0.0
        nodes = tuple(one.node for one in self.versions)
        return SearchState(nodes, ends.id, error, broken, tuple(looks))

    def _find_drift(self, ends: Report) -> list[str]:
        """Return how agents differ from those in recorded runs in which the oldest version passed the tasks that it now
        fails."""
        oldest = ends.variants[0]
        failing = {task for task, tally in ends.tallies(oldest).items() if not tally.passed}
        found = dict[str, None]()
        for run in list_runs(self.store):
            if run.id == ends.id or not failing:
                continue
            report = Report(run)
            same = {one.name for one in report.suite.variants if one.workflow == self.versions[0].node}
            for cell in report.cells:
                if cell.variant in same and cell.task in failing and cell.outcome == "passed":
                    now = next(one for one in ends.cells if (one.variant, one.task) == (oldest, cell.task))
                    for change in compare_players(list_players([cell]), list_players([now])):
                        found[f"{cell.task} passed in {run.id}; since then {change}"] = None
        return list(found)

    def _tell(self, known: SearchState) -> None:
        search = known.search
        last = {**known.looks[-1]._asdict(), "name": _label(self.versions[known.looks[-1].version])}
        left = sum(chance > _UNLIKELY for chance in search.chances[:-1])
        body = {"looks": len(known.looks), "left": left, "certainty": search.certainty, "last": last}
        self.watch("bisect", body)

    def _end(self, status: Ending, reason: str, known: SearchState | None = None) -> Bisected:
        name = self.suite.books[self.suite.variants[0].name].workflow.name
        found = (known.tasks, known.error, known.looks) if known else ((), 0.0, ())
        return Bisected(status, reason, name, len(self.versions), *found)

    def _describe_open(self, report: Report) -> str:
        counts = report.counts
        what = "could not run or be judged" if counts["infrastructure"] else "have no result yet"
        return report.reason or f"{counts['open'] + counts['infrastructure']} threads of {report.id} {what}"

    def _read(self, name: str) -> SearchState | None:
        ref = self.store.ref(name)
        if ref is None or ref.target is None:
            return None
        payload = self.store.get(ref.target).payload
        lists = {key: tuple(payload[key]) for key in ("versions", "tasks")}
        return SearchState(**{**payload, **lists, "looks": tuple(Look(**one) for one in payload["looks"])})

    def _write(self, name: str, known: SearchState) -> None:
        draft = self.store.draft()
        node = draft.put_as(BISECT_SCHEMA, to_json(known))
        draft.move(name, self.store.ref(name), node, {"looks": len(known.looks)})
        draft.commit(durable=True)


def _label(version: Version) -> str:
    """Return the display name of a version: its own `version`, if it has one, and the beginning of its id."""
    return f"{version.version}@{version.node[:8]}" if version.version else version.node[:8]
