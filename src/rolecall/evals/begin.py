"""Begin or continue a run: store the suite with its files, and find an unfinished run of the suite."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rolecall.errors import Conflict, RolecallError, UsageError
from rolecall.evals import folders, records
from rolecall.evals.judge import describe_problem
from rolecall.evals.records import EvalRun, JudgeFiles, StoredSuite, StoredTask
from rolecall.evals.statistics import find_smallest_difference
from rolecall.evals.suite import MOST_CELLS, FindMissing, Recorded, Suite
from rolecall.evals.tasks import EvalTask, TaskFiles
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees
from rolecall.settings.form import did_you_mean
from rolecall.store import holder
from rolecall.store.ids import NodeId
from rolecall.store.store import Store
from rolecall.threads import step_files, thread, tryout
from rolecall.threads.thread import Chain
from rolecall.workflow.playbook import Playbook


class EvalPlan(NamedTuple):
    """The plan for a run of a suite."""

    suite: StoredSuite
    tasks: tuple[NodeId, ...]
    """The ids of the chosen tasks."""
    omitted: Mapping[str, Sequence[str]]
    """The files of tasks and judges that are not recorded because they are too large or look like secrets."""
    going_on: EvalRun | None
    """The unfinished run that this plan continues, or None."""
    folder: str
    """The folder of the suite."""
    limits: Mapping[str, float]
    """The limits of the suite."""
    is_fresh: bool
    first: int = 0
    """How many times other runs have asked the same questions before."""
    hidden: tuple[str, ...] = ()
    """The folders of judges, which agents in a sandbox cannot see."""

    @property
    def threads(self) -> int:
        return len(self.tasks) * len(self.suite.variants) * self.suite.repeat

    @property
    def smallest_difference(self) -> float | None:
        """The smallest difference in pass rate that this suite detects in four out of five runs, or None if it detects
        no difference."""
        return find_smallest_difference(len(self.tasks), self.suite.repeat)


def plan(
    store: Store,
    trees: Trees,
    suite: Suite,
    *,
    cache: str,
    only: Sequence[str] = (),
    is_fresh: bool = False,
    is_new: bool = False,
    first: int = 0,
) -> EvalPlan:
    """Store a suite, and plan a run of its tasks that have one of the tags or ids in `only`. `first` is how many times
    other runs have asked the same questions before; the answers of those runs are not reused."""
    source, omitted = os.path.dirname(suite.path), dict[str, Sequence[str]]()
    found = list(find_tasks(store, trees, suite, cache, source))

    def take(folder: str) -> Snapshot | None:
        return folders.take_folder(trees, folder, source=source) if folder else None

    judges = [
        JudgeFiles(judge, take(judge.files), tuple(take(example.files) for example in judge.examples))
        for judge in suite.judges
    ]
    taken = [(task.id, files) for task, files in found]
    for name, files in [*taken, *((one.judge.name, one.files) for one in judges)]:
        if files is not None and files.omitted:
            omitted[name] = files.omitted
    node = records.put_suite(store, suite, found, judges)
    stored = records.load_suite(store, node)
    chosen = tuple(task.node for task in choose(stored.tasks, only))
    if len(chosen) * len(stored.variants) * stored.repeat > MOST_CELLS:
        raise UsageError(f"that is more than {MOST_CELLS:,} threads", hint="Choose some of the tasks.")
    wanted = (chosen, first, is_fresh)
    runs = [] if is_new else [run for run in records.list_runs(store, suite=node) if run.status != "done"]
    going_on = next((run for run in runs if (run.tasks, run.first, run.is_fresh) == wanted), None)
    hidden = tuple(os.path.realpath(judge.files) for judge in suite.judges if judge.files)
    return EvalPlan(stored, chosen, omitted, going_on, source, suite.limits, is_fresh, first, hidden)


class Changes(NamedTuple):
    """The changes that an experiment tries: another version of the workflow, other agents, or both."""

    workflow: Playbook | None
    agents: Mapping[str, str]


def make_experiment(suite: Suite, recorded: Recorded, changes: Changes, missing: FindMissing) -> Suite:
    """Return a suite whose tasks are forks of recorded threads of its workflow. If there are changes, the variants of
    the suite are `current`, which is its first variant, and `changed`."""
    first = suite.variants[0]
    book = suite.books[first.name]
    if any(changes):
        current = first._replace(name="current")
        changed = first._replace(name="changed", agents={**first.agents, **changes.agents})
        books = {"current": book, "changed": changes.workflow or book}
        suite = suite._replace(variants=(current, changed), books=books)
    for variant in suite.variants:
        roles = suite.books[variant.name].workflow.roles
        for role in (recorded.fork, *variant.agents):
            if role not in roles:
                hint = did_you_mean(role, roles, what="Its roles")
                raise UsageError(f"{suite.books[variant.name].workflow.name} has no role {role!r}", hint=hint)
        for role, error in missing(suite.books[variant.name], variant.agent, variant.agents):
            raise UsageError(f"{variant.name}: nobody can play {role}: {error.message}", hint=error.hint)
    name = book.workflow.name
    return suite._replace(recorded=recorded._replace(workflow=name), tasks=(), reference=None, cheat=None)


SomeTask = TypeVar("SomeTask", bound=EvalTask | StoredTask)


def choose(tasks: Sequence[SomeTask], only: Sequence[str]) -> list[SomeTask]:
    """Return the tasks with one of the tags or ids in `only`, or all tasks if `only` is empty."""
    known = {word for task in tasks for word in (task.id, *task.tags)}
    for word in only:
        if word not in known:
            hint = did_you_mean(word, sorted({tag for task in tasks for tag in task.tags}), what="Tags")
            raise UsageError(f"no task has the tag or id {word!r}", hint=hint)
    return [task for task in tasks if not only or {task.id, *task.tags}.intersection(only)]


def find_tasks(
    store: Store, trees: Trees, suite: Suite, cache: str, source: str
) -> Iterator[tuple[EvalTask, Snapshot | None]]:
    """Yield the tasks with their recorded files. All problems are collected into one error."""
    problems, taken = list[str](), dict[str, Snapshot]()
    if suite.recorded is not None:
        yield from read_recorded(store, suite.recorded)
        return
    for task in suite.tasks:
        try:
            if task.files.repository:
                commit = folders.find_commit(task, cache)
                yield task._replace(files=task.files._replace(commit=commit)), None
            elif folder := task.files.folder:
                if folder not in taken:
                    taken[folder] = folders.take_folder(trees, folder, source=source)
                yield task, taken[folder]
            else:
                yield task, folders.find_tree(store, task.id, task.files.tree) if task.files.tree else None
        except RolecallError as error:
            problems.append(f"\n  {describe_problem(error)}")
    if problems:
        raise UsageError(f"the files of tasks cannot be found:{''.join(problems)}")


def read_recorded(store: Store, recorded: Recorded) -> list[tuple[EvalTask, Snapshot | None]]:
    """Return the newest recorded threads as tasks, with their prompts and first files. A thread that is to be forked
    continues from just before the first step of a role, with the files as they were before that step."""
    found = list[tuple[EvalTask, Snapshot | None]]()
    named = [thread.find(store, ident) for ident in recorded.threads]
    for ref in named or tryout.read_recorded(store, recorded.workflow, since=recorded.since):
        if not named and (ref.state.parent or ref.state.eval):
            continue
        chain, fork = Chain(store, ref.head), ""
        try:
            if recorded.fork:
                steps = [step for step in chain if step.role == recorded.fork]
                if not steps:
                    continue
                fork = steps[-1].payload["prev"] or steps[-1].start
                tree = steps[-1].tree
                files = tree.found if tree else step_files.find_left(store, ref, fork).files
            else:
                files = step_files.find_left(store, ref, "start").files
        except RolecallError:  # no role has worked with files, or the files are not recorded
            continue
        task = EvalTask(ref.id, chain.start.prompt, TaskFiles(tree=files.tree), fork=fork)
        found.append((task, files))
    if not found:
        whose = f" before {recorded.fork}" if recorded.fork else ""
        raise UsageError(
            f"no thread of {recorded.workflow!r} in that time has recorded files{whose}",
            hint="Name another workflow, other threads or a longer time.",
        )
    return found[-recorded.most :]


def hold(store: Store, plan: EvalPlan, *, given: Mapping[str, float]) -> EvalRun:
    """Start the run, or take over the unfinished one. The limits in `given` replace the run's limits; a new run starts
    with the suite's limits. Raise Conflict if a living process is running it."""
    lease = holder.identify_self("eval")
    if (run := plan.going_on) is None:
        limits = {**plan.limits, **given}
        return records.start_run(
            store,
            plan.suite.node,
            plan.tasks,
            limits=limits,
            is_fresh=plan.is_fresh,
            lease=lease,
            first=plan.first,
        )
    held = run.ref.state.get("lease")
    if held and holder.is_alive(held, now=store.now()):
        raise Conflict(
            f"the evaluation {run.id} is being run by {holder.describe(held)}",
            hint="Wait for it, or stop that process.",
        )
    state = {**run.ref.state, "limits": {**run.limits, **given}, "lease": dict(lease)}
    run.ref = store.move(run.ref.name, run.ref, run.ref.target, state, durable=True)
    return run
