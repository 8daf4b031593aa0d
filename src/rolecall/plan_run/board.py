"""How the tasks of a cycle stand: which can be run, which are somebody else's, and what is written back to them.

The task list and the threads are the truth, and they are looked at again whenever it is asked; `runs.json` only says
which thread is whose. Lead and other harnesses may change the list meanwhile. Nothing here waits or runs anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rolecall.errors import Damaged, Hint, NotFound
from rolecall.nexus import dispatch, project_paths, state_file
from rolecall.nexus.tool_error import NotThere
from rolecall.plan_run import ledger
from rolecall.plan_run.assignment import Assigned, Job, is_leads
from rolecall.plan_run.ledger import Run
from rolecall.plan_run.report import BLOCKED, ELSEWHERE, FAILED, LEADS, NEVER, WAITING
from rolecall.plan_run.schedule import Want
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import thread, views
from rolecall.threads.state import ThreadRef, read_thread

Task = Mapping[str, Any]
Assign = Callable[[Sequence[Task]], Assigned]
_OF_THE_RUN = ("status",)
"""What of a task changes by being run; everything else is what somebody wants of it."""
_OPENED_AGAIN = "was opened again after this run had completed it; run the plan again to do it once more"
"""Not by itself: two programs that disagree about a task would have it done again and again."""


class Left(NamedTuple):
    """A task that is not for this run to start: as what it counts, and what there is to say of it."""

    status: str
    word: str
    """Goes on after "task 3": `is Lead's`."""
    reason: str = ""
    """The same at length."""


class Standing(NamedTuple):
    wants: list[Want]
    left: dict[float, Left]
    done: set[float]
    unsettled: list[Task]
    """Those of the done whose thread has come to its end without us, and the list does not say so yet."""


class Board:
    def __init__(
        self, project: str, store: Store | None, assign: Assign, *, only: Collection[float] | None = None
    ) -> None:
        """Without a store no thread has begun. `only` are the tasks that were asked for by number; one of those
        is begun anew where its thread has ended."""
        self._project = project
        self._store = store
        self._assign = assign
        self._only = only
        self.tasks: dict[float, Task] = {}
        self.jobs: dict[float, Job] = {}
        self.runs: dict[str, Run] = {}
        self.goal = ""
        self.left: dict[float, Left] = {}
        """What was run here and did not come to its end: it is not tried again by itself."""
        self._settled: set[str] = set()
        """Threads that were brought to their end here."""
        self.unknown: dict[float, Task] = {}
        """Tasks whose owner nobody knows."""
        self.files_of: Callable[[str], frozenset[str]] = lambda _thread: frozenset()
        """What a thread is known to have touched."""

    def look(self) -> None:
        """Take stock. Nothing is written."""
        self.runs = ledger.load(self._project)
        self.read()
        self._check_asked()

    def load(self) -> None:
        """The same before anything runs."""
        with state_file.locked(self._project):  # keeps a copy of what is damaged
            self.look()
        for task in self.tasks.values():
            run = self.run_of(task)
            if task["status"] == "completed" and run and not run.is_settled and self._is_done(run):
                self._keep(task, run._replace(is_settled=True, redoes=()))

    def read(self) -> None:
        found = dispatch.call(self._project, "task_list")
        self.goal = found.get("goal", "")
        tasks = found.get("tasks", [])
        by_id = {task["id"]: task for task in tasks}
        if len(by_id) < len(tasks):
            raise _ambiguous(self._project, tasks)
        self.tasks = by_id
        if any(self._lacks_job(task) for task in tasks):
            self.jobs, unknown = self._assign(tasks)
            self.unknown = {task["id"]: task for task in unknown}

    def _lacks_job(self, task: Task) -> bool:
        """Whether a task is new, or is another one than when it was assigned: the list is anybody's to write."""
        if task["status"] == "completed" or is_leads(task):
            return False
        job = self.jobs.get(task["id"])
        known = job.task if job else self.unknown.get(task["id"])
        return known is None or (known != task and _wanted(known) != _wanted(task))

    def _check_asked(self) -> None:
        unknown = [number for number in self._only or () if number not in self.tasks]
        if unknown:
            raise NotFound(
                f"there is no task {unknown[0]}", hint=Hint("See the tasks of this cycle", "list_tasks")
            )

    def is_asked_for(self, number: float) -> bool:
        return self._only is None or number in self._only

    def run_of(self, task: Task) -> Run | None:
        return self.runs.get(ledger.key(task))

    # -- how things stand --

    def standing(self, running: Collection[float] = ()) -> Standing:
        """Of all tasks but those that are running."""
        redone = {work: number for number, run in self._open_runs() for work in run.redoes}
        left = {number: one for number, one in self.left.items() if not self._has_gone_on(number, one)}
        wants, done, unsettled = [], set(), []
        for number, task in self.tasks.items():
            if task["status"] == "completed":
                done.add(number)
            elif number not in running and number not in left:
                stands = self._stands(task, redone)
                if isinstance(stands, Want):
                    wants.append(stands)
                elif stands is None:
                    done.add(number)
                    unsettled.append(task)
                else:
                    left[number] = stands
        return Standing(wants, left, done, unsettled)

    def _has_gone_on(self, number: float, left: Left) -> bool:
        """Whether a person has answered meanwhile what was asked."""
        run = self.run_of(self.tasks[number]) if number in self.tasks else None
        ref = self._ref(run) if run and left.status == WAITING else None
        return ref is not None and ref.state.status != "suspended"

    def _open_runs(self) -> list[tuple[float, Run]]:
        found = (
            (number, self.run_of(task))
            for number, task in self.tasks.items()
            if task["status"] != "completed"
        )
        return [(number, run) for number, run in found if run is not None and not run.is_settled]

    def _stands(self, task: Task, redone: Mapping[float, float]) -> Want | Left | None:
        """To be run, left, or done by now (None)."""
        number = task["id"]
        if is_leads(task):
            return Left(LEADS, "is Lead's")
        if not self.is_asked_for(number):
            return Left(BLOCKED, "was not asked for")
        if number not in self.jobs:
            return Left(NEVER, f"is of {task.get('owner')!r}, whom nobody knows")
        if number in redone and not self._can_begin_anew(redone[number]):
            is_redone = self.begun(self.tasks[redone[number]]) is not None
            thread_of_check = "whose thread does it again" if is_redone else "whose thread has ended"
            return Left(BLOCKED, f"failed the check of task {redone[number]}, {thread_of_check}")
        run = self.run_of(task)
        if run and run.is_settled and run.thread in self._settled:
            return Left(BLOCKED, "was opened again after this run had completed it", _OPENED_AGAIN)
        if run is None or run.is_settled:
            is_taken = task["status"] == "in_progress"
            return Left(ELSEWHERE, "is in progress, and not by us") if is_taken else self._want(task)
        return self._goes_on(task, run)

    def _goes_on(self, task: Task, run: Run) -> Want | Left | None:
        """A task whose thread has begun."""
        ref = self._ref(run)
        if ref is None and run.is_planned:  # and whoever planned it came no further
            return self._want(task)
        status = views.status_of(self._store, ref) if ref and self._store else "gone"
        if ref is None or status in ("failed", "killed", "gone"):
            if self._only is not None:
                return self._want(task)
            word = {"killed": "was killed", "gone": "has a thread that is not in this store"}.get(
                status, "has failed"
            )
            return Left(FAILED, word)
        if status == "completed":
            return None
        if status == "running":
            return Left(ELSEWHERE, f"is being run by {holder.describe(ref.state.lease)}")
        if status == "suspended" and not _is_worth_a_try(ref):
            return Left(WAITING, "waits for a person")
        return self._want(task, is_begun=True)

    def _can_begin_anew(self, number: float) -> bool:
        """Whether a check that has failed for good is in nobody's way: the work was asked for by number."""
        return self._only is not None and self.begun(self.tasks[number]) is None

    def _want(self, task: Task, *, is_begun: bool = False) -> Want:
        job, run = self.jobs[task["id"]], self.run_of(task)
        files = job.work_files if run and run.redoes else job.files
        known = self.files_of(run.thread) if run else frozenset()
        return Want(job.id, tuple(task["deps"]), files | known, is_begun)

    def _is_done(self, run: Run) -> bool:
        ref = self._ref(run)
        return ref is not None and ref.state.status == "completed"

    def begun(self, task: Task) -> ThreadRef | None:
        """The thread that a run goes on with."""
        run = self.run_of(task)
        ref = self._ref(run) if run and not run.is_settled else None
        return ref if ref and not ref.state.has_ended else None

    def agent_of(self, task: Task) -> str | None:
        """Who was to play every role when the thread of a task was begun."""
        ref = self.begun(task)
        return ref.state.agent if ref and ref.state.agent else None

    def _ref(self, run: Run) -> ThreadRef | None:
        return read_thread(self._store, run.thread) if self._store else None

    # -- what is written back --

    def plan(self, task: Task, ident: str) -> None:
        """This thread will carry the task out; it is made next."""
        for number, run in self._open_runs():
            if task["id"] in run.redoes:
                self._keep(self.tasks[number], run._replace(redoes=()))
        self._keep(task, Run(ident, is_planned=True))

    def begin(self, task: Task, ident: str) -> None:
        """The thread is there."""
        self._keep(task, Run(ident))

    def mark(self, task: Task, status: str) -> str:
        """Set the status of a task. If it is not there any more, or is another one by now, what to say about it."""
        self.read()
        there = self.tasks.get(task["id"])
        if there is None or ledger.key(there) != ledger.key(task):
            return f"task {task['id']} is not in the task list any more, so it was not set to {status}"
        is_by_hand = status == "pending" and there["status"] == "completed"  # and stays what somebody made it
        if there["status"] != status and not is_by_hand:
            try:
                reply = dispatch.call(self._project, "task_update", {"id": task["id"], "status": status})
            except NotThere as exc:
                return f"task {task['id']} was not set to {status}: {exc.message}"
            self.tasks[task["id"]] = reply["task"]
        return ""

    def take_back(self, task: Task, works: Sequence[float]) -> list[str]:
        """A check has found its work wanting: the work is not done any more, and this thread does it again."""
        run = self.run_of(task)
        if run is None or run.redoes:
            return []
        self._keep(task, run._replace(redoes=tuple(works)))
        return self.mark_works(task, "in_progress")

    def mark_works(self, task: Task, status: str) -> list[str]:
        """The same status for the tasks that this one has taken back."""
        run = self.run_of(task)
        works = [self.tasks[number] for number in run.redoes if number in self.tasks] if run else []
        return [problem for work in works if (problem := self.mark(work, status))]

    def settle(self, task: Task) -> list[str]:
        """The thread of a task is done. The list first: a run that is not settled is looked at again."""
        problems = [*self.mark_works(task, "completed"), self.mark(task, "completed")]
        run = self.run_of(task)
        if run is not None:
            self._settled.add(run.thread)
            self._keep(task, run._replace(is_settled=True, redoes=()))
        return [problem for problem in problems if problem]

    def _keep(self, task: Task, run: Run) -> None:
        self.runs[ledger.key(task)] = run
        ledger.save(self._project, self.runs, {ledger.key(one) for one in (*self.tasks.values(), task)})


def _ambiguous(project: str, tasks: Sequence[Task]) -> Damaged:
    """Two tasks of one number: what is written down about one would be read as the other's."""
    counted = Counter(task["id"] for task in tasks)
    number = next(number for number, count in counted.items() if count > 1)
    return Damaged(
        f"{project_paths.state(project, project_paths.TASKS)} has {counted[number]} tasks with the number {number}",
        hint="Give each a number of its own, then try again.",
    )


def _wanted(task: Task) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name not in _OF_THE_RUN}


def _is_worth_a_try(ref: ThreadRef) -> bool:
    """Whether nothing but another attempt is needed: an agent gave no answer, which may be over by now."""
    return bool(ref.state.onward == f"resume {thread.id_of(ref)} --run")
