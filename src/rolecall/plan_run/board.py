"""The state of a cycle's tasks: which tasks can be run, which belong to somebody else, and what is written back to
them.

The task list and the threads are authoritative and are read again each time; `runs.json` only maps tasks to threads.
Lead and other harnesses can change the list at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rolecall.api import Project, Rolecall, Thread
from rolecall.errors import Damaged, Hint, NotFound
from rolecall.nexus import project_paths
from rolecall.nexus.run_record import TaskRun, key
from rolecall.nexus.tool_error import NotThere
from rolecall.plan_run.assignment import Assigned, TaskJob, is_leads
from rolecall.plan_run.schedule import Want
from rolecall.store.canonical import JsonObject
from rolecall.store.holder import describe
from rolecall.threads.state import RESUME

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

COMPLETED, WAITING, FAILED, STOPPED = "completed", "waiting", "failed", "stopped"
SET_ASIDE = "set_aside"
"""The status of a task that was done in a worktree but not merged."""
BLOCKED, NEVER, LEADS, ELSEWHERE = "blocked", "never", "lead", "elsewhere"
"""Statuses in the report. A task is `waiting` if it waits for a person, `blocked` if it depends on another task, and
`never` if it cannot begin at all."""

Assign: TypeAlias = "Callable[[Sequence[ProjectTask]], Assigned]"
_OPENED_AGAIN = "was opened again after this run had completed it; run the plan again to do it once more"
"""The reason given for a task that was reopened by hand. The run does not repeat the task automatically, because two
programs that disagree about a task would repeat it endlessly."""


_NO_CONFLICT: JsonObject = {}


class LeftTask(NamedTuple):
    """A task that this run does not start, with its status in the report and the reason."""

    status: str
    word: str
    """The words that complete the sentence "task 3 …", as in `is Lead's`."""
    reason: str = ""
    """The same reason in more detail."""
    conflict: JsonObject = _NO_CONFLICT
    """What the task's work conflicts with, as data."""


class BoardState(NamedTuple):
    wants: list[Want]
    left: dict[float, LeftTask]
    done: set[float]
    unsettled: list[ProjectTask]
    """The tasks whose thread completed outside this run, and that the list does not yet show as completed."""


class TaskBoard:
    def __init__(
        self,
        project: Project,
        rolecall: Rolecall | None,
        assign: Assign,
        *,
        only: Collection[float] | None = None,
    ) -> None:
        """Create the board. Without a `Rolecall`, no thread has begun. `only` contains the numbers of the tasks to run;
        among these, a task whose thread has ended is given a new thread."""
        self._project = project
        self._rolecall = rolecall
        self._assign = assign
        self._only = only
        self.tasks: dict[float, ProjectTask] = {}
        self.jobs: dict[float, TaskJob] = {}
        self.runs: dict[str, TaskRun] = {}
        self.goal = ""
        self.left: dict[float, LeftTask] = {}
        """The tasks that this run started and did not finish; they are not retried automatically."""
        self._settled: set[str] = set()
        """The threads that this run finished."""
        self.unknown: dict[float, ProjectTask] = {}
        self.files_of: Callable[[str], frozenset[str]] = lambda _thread: frozenset()

    def look(self) -> None:
        """Read the tasks and their runs without writing."""
        self.runs = self._project.task_runs()
        self.read()
        unknown = [number for number in self._only or () if number not in self.tasks]
        if unknown:
            hint = Hint("See the tasks of this cycle", "list_tasks")
            raise NotFound(f"unknown task {unknown[0]}", hint=hint)

    def load(self) -> None:
        """Read the tasks and their runs when a run begins, and settle the tasks whose threads ended outside a run."""
        with self._project.lock():  # under the lock, a damaged file is copied
            self.look()
        for task in self.tasks.values():
            run = self.run_of(task)
            if task["status"] == "completed" and run and not run.is_settled:
                thread = self._thread(run)
                if thread is not None and thread.status == "completed":
                    self._keep(task, run._replace(is_settled=True, redoes=()))

    def read(self) -> None:
        found = self._project.tasks()
        self.goal = found.get("goal", "")
        tasks = found.get("tasks", [])
        by_id = {task["id"]: task for task in tasks}
        if len(by_id) < len(tasks):  # a record about one of the two tasks would also fit the other
            number, count = Counter(task["id"] for task in tasks).most_common(1)[0]
            path = project_paths.state(self._project.folder, project_paths.TASKS)
            hint = "Give each a number of its own, then try again."
            raise Damaged(f"{path} has {count} tasks with the number {number}", hint=hint)
        self.tasks = by_id
        # Any program can write the list, so a task could be new or have changed since it was assigned.
        for task in tasks:
            if task["status"] == "completed" or is_leads(task):
                continue
            job = self.jobs.get(task["id"])
            known = job.task if job else self.unknown.get(task["id"])
            if known is None or {**known, "status": ""} != {**task, "status": ""}:
                self.jobs, unknown = self._assign(tasks)
                self.unknown = {one["id"]: one for one in unknown}
                break

    def is_asked_for(self, number: float) -> bool:
        return self._only is None or number in self._only

    def run_of(self, task: ProjectTask) -> TaskRun | None:
        return self.runs.get(key(task))

    # -- judging tasks --

    def find_state(self, running: Collection[float] = ()) -> BoardState:
        """Return the state of all tasks except those in `running`."""
        redone = {work: number for number, run in self._open_runs() for work in run.redoes}
        left = dict(self.left)
        for number, one in self.left.items():
            run = self.run_of(self.tasks[number]) if number in self.tasks else None
            thread = self._thread(run) if run and one.status == WAITING else None
            if thread is not None and thread.status != "suspended":  # a person has answered in the meantime
                del left[number]
        wants, done, unsettled = [], set(), []
        for number, task in self.tasks.items():
            if task["status"] == "completed":
                done.add(number)
            elif number not in running and number not in left:
                stands = self._judge(task, redone)
                if isinstance(stands, Want):
                    wants.append(stands)
                elif stands is None:
                    done.add(number)
                    unsettled.append(task)
                else:
                    left[number] = stands
        return BoardState(wants, left, done, unsettled)

    def _open_runs(self) -> list[tuple[float, TaskRun]]:
        return [
            (number, run)
            for number, task in self.tasks.items()
            if task["status"] != "completed" and (run := self.run_of(task)) and not run.is_settled
        ]

    def _judge(self, task: ProjectTask, redone: Mapping[float, float]) -> Want | LeftTask | None:
        """Return a `Want` if the task can run, a `LeftTask` if it is left out, and None if it has been done."""
        number = task["id"]
        if is_leads(task):
            return LeftTask(LEADS, "is Lead's")
        if not self.is_asked_for(number):
            return LeftTask(BLOCKED, "was not asked for")
        if number not in self.jobs:
            return LeftTask(NEVER, f"has the owner {task.get('owner')!r}, whom nobody knows")
        if number in redone:
            is_redone = self.begun(self.tasks[redone[number]]) is not None
            if is_redone or self._only is None:
                thread_of_check = "whose thread does it again" if is_redone else "whose thread has ended"
                return LeftTask(BLOCKED, f"failed the check of task {redone[number]}, {thread_of_check}")
        run = self.run_of(task)
        if run and run.is_settled and run.thread in self._settled:
            return LeftTask(BLOCKED, "was opened again after this run had completed it", _OPENED_AGAIN)
        if run is None or run.is_settled:
            is_taken = task["status"] == "in_progress"
            return LeftTask(ELSEWHERE, "is in progress, and not by us") if is_taken else self._want(task)

        thread = self._thread(run)
        if thread is None and run.is_planned:  # the run that planned the thread died before creating it
            return self._want(task)
        status = thread.status if thread else "gone"
        if thread is None or status in ("failed", "killed", "gone"):
            if self._only is not None:
                return self._want(task)
            words = {"killed": "was killed", "gone": "has a thread that is not in this store"}
            return LeftTask(FAILED, words.get(status, "has failed"))
        if status == "completed":
            return None
        if status == "running":
            return LeftTask(ELSEWHERE, f"is being run by {describe(thread.state.lease)}")
        # If an agent gave no answer, another attempt might be enough; every other problem needs a person.
        if status == "suspended" and thread.state.onward != RESUME:
            return LeftTask(WAITING, "waits for a person")
        return self._want(task, is_begun=True)

    def _want(self, task: ProjectTask, *, is_begun: bool = False) -> Want:
        job, run = self.jobs[task["id"]], self.run_of(task)
        files = job.work_files if run and run.redoes else job.files
        known = self.files_of(run.thread) if run else frozenset()
        return Want(job.id, tuple(task["deps"]), files | known, is_begun)

    def begun(self, task: ProjectTask) -> Thread | None:
        """Return the unfinished thread of a task, which the run continues, or None."""
        run = self.run_of(task)
        thread = self._thread(run) if run and not run.is_settled else None
        return thread if thread and not thread.has_ended else None

    def agent_of(self, task: ProjectTask) -> str | None:
        """Return the agent that was chosen to play every role when the task's thread began, or None."""
        thread = self.begun(task)
        return thread.state.agent if thread else None

    def _thread(self, run: TaskRun) -> Thread | None:
        return self._rolecall.thread_if_any(run.thread) if self._rolecall else None

    # -- writing back --

    def plan(self, task: ProjectTask, ident: str) -> None:
        """Record the thread that will carry out a task, before the thread is created."""
        for number, run in self._open_runs():
            if task["id"] in run.redoes:
                self._keep(self.tasks[number], run._replace(redoes=()))
        self._keep(task, TaskRun(ident, is_planned=True))

    def begin(self, task: ProjectTask, ident: str) -> None:
        """Record that a task's thread has been created."""
        self._keep(task, TaskRun(ident))

    def mark(self, task: ProjectTask, status: str) -> str:
        """Set the status of a task. Return a remark if the task no longer exists or has been replaced by another."""
        self.read()
        there = self.tasks.get(task["id"])
        if there is None or key(there) != key(task):
            return f"task {task['id']} is not in the task list any more, so it was not set to {status}"
        is_completed_by_hand = status == "pending" and there["status"] == "completed"
        if there["status"] != status and not is_completed_by_hand:
            try:
                reply = self._project.update_task(task["id"], status)
            except NotThere as exc:
                return f"task {task['id']} was not set to {status}: {exc.message}"
            self.tasks[task["id"]] = reply["task"]
        return ""

    def take_back(self, task: ProjectTask, works: Sequence[float]) -> list[str]:
        """Reopen the tasks whose work a check has rejected; the thread of the check does them again."""
        run = self.run_of(task)
        if run is None or run.redoes:
            return []
        self._keep(task, run._replace(redoes=tuple(works)))
        return self.mark_works(task, "in_progress")

    def mark_works(self, task: ProjectTask, status: str) -> list[str]:
        """Set the status of the tasks that this check has reopened."""
        run = self.run_of(task)
        works = [self.tasks[number] for number in run.redoes if number in self.tasks] if run else []
        return [problem for work in works if (problem := self.mark(work, status))]

    def settle(self, task: ProjectTask) -> list[str]:
        """Mark a task as completed, and only then its run as settled, because a later run settles unsettled tasks."""
        problems = [*self.mark_works(task, "completed"), self.mark(task, "completed")]
        run = self.run_of(task)
        if run is not None:
            self._settled.add(run.thread)
            self._keep(task, run._replace(is_settled=True, redoes=()))
        return [problem for problem in problems if problem]

    def _keep(self, task: ProjectTask, run: TaskRun) -> None:
        self.runs[key(task)] = run
        self._project.save_task_runs(self.runs, (*self.tasks.values(), task))
