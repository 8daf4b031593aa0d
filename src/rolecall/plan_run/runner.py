"""Carries out the tasks of a cycle, each in its own thread, several at the same time.

Whenever a task ends, the runner reads the task list again and starts the tasks that can begin. The threads record what
was done, so the next run continues them after a kill. A failure does not stop the other tasks. A task that needs a
person waits, and everything that does not depend on the task continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rolecall.agents.protocol import Cancel
from rolecall.api import Crew, Project, Rolecall, Thread
from rolecall.errors import AgentError, RolecallError, UsageError
from rolecall.files.merge import SetAside
from rolecall.nexus.catalog import Catalog
from rolecall.plan_run import report, schedule, taskflow
from rolecall.plan_run.agent_watch import AgentWatch
from rolecall.plan_run.assignment import TaskJob
from rolecall.plan_run.board import COMPLETED, FAILED, SET_ASIDE, STOPPED, WAITING, LeftTask, TaskBoard
from rolecall.plan_run.opening import Opening
from rolecall.plan_run.past import list_touched_files
from rolecall.plan_run.report import Row
from rolecall.store.canonical import JsonObject
from rolecall.threads.state import ENDED
from rolecall.threads.thread import Step
from rolecall.workflow.model import Workdir
from rolecall.workflow.route import status_of

Tell = Callable[[str, float | None, JsonObject], None]
"""A function that reports an event: its kind, the task if there is one, and the details."""


@dataclass
class PlanRunner:
    project: Project
    rolecall: Rolecall
    crews: Callable[[str | None], Crew]
    """Returns the crew in which the given agent plays every role; for None, the crew of the configured agents."""
    catalog: Catalog
    board: TaskBoard
    cancel: Cancel
    tell: Tell
    at_once: int = 3
    agent: str | None = None
    """The agent that plays every role, overriding the configuration."""
    workdir: Workdir | None = None
    """The folder in which new tasks are done; None for the project's folder."""
    check: Sequence[str] = ()
    """The command that must succeed after the work of a task has been merged."""

    def __post_init__(self) -> None:
        self.watch = AgentWatch(self.project, self.rolecall, partial(self._remark, None))
        self._opening = Opening(
            self.project,
            self.rolecall,
            self.crews(self.agent),
            self.catalog,
            self.board,
            self.watch,
            self.agent,
            self.workdir,
        )
        self._running: dict[float, asyncio.Task[None]] = {}
        self._files: dict[float, frozenset[str]] = {}
        """The files that each running task writes, as far as they are known."""
        self._paused: dict[float, tuple[TaskJob, Thread]] = {}
        """The tasks that are waiting for a file in the middle of their thread."""
        self.remarks: dict[float, list[str]] = {}
        """Observations about each task, in addition to its outcome."""

    async def run(self) -> list[Row]:
        """Run tasks until none can begin or `cancel` is set, and return a row for each task that was open."""
        with self.project.run_alone():
            self.board.load()
            was_done = {number for number, task in self.board.tasks.items() if task["status"] == "completed"}
            self.watch.load([run.thread for run in self.board.runs.values()])
            self.board.files_of = self.watch.past.files_of
            try:
                await self._run_tasks()
            finally:  # however the run ends, no agent keeps running
                for work in self._running.values():
                    work.cancel()
                await asyncio.gather(*self._running.values(), return_exceptions=True)
            return report.rows(
                self.rolecall, self.board, at_once=self.at_once, without=was_done, remarks=self.remarks
            )

    async def _run_tasks(self) -> None:
        while True:
            self.board.read()
            if not self.cancel.is_set():
                stands = self.board.find_state(self._running)
                for task in stands.unsettled:  # their threads completed outside this run
                    run = self.board.run_of(task)
                    thread = self.rolecall.thread_if_any(run.thread) if run else None
                    if thread and (left := await self._merge(thread)):
                        self.board.left[task["id"]] = left
                        body = {"thread": thread.id, "status": left.status, "reason": left.reason}
                    else:
                        self._remark(task["id"], *self.board.settle(task))
                        body = {"status": COMPLETED, "reason": "its thread is done"}
                    self.tell("settled", task["id"], body)
                if stands.unsettled:
                    stands = self.board.find_state(self._running)
                wanted = {want.id: want for want in stands.wants}
                now = schedule.choose_startable(
                    stands.wants, done=stands.done, running=self._files, at_once=self.at_once
                )
                for number in now.start:
                    self._paused.pop(number, None)
                    self._files[number] = wanted[number].files
                    self._running[number] = asyncio.create_task(self._play(self.board.jobs[number]))
            if not self._running:
                break
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            for number, work in list(self._running.items()):
                if work.done():
                    del self._running[number], self._files[number]
                    work.result()
        for job, thread in self._paused.values():
            await self._leave(job, thread)

    # -- one task --

    async def _play(self, job: TaskJob) -> None:
        thread: Thread | None = None
        try:
            thread = self._open(job)
            self._remark(job.id, self.board.mark(job.task, "in_progress"))
            self._remark(job.id, *self.board.mark_works(job.task, "in_progress"))
            crew = self.crews(self.agent or self.board.agent_of(job.task))
            watch = partial(self._watch, job, thread)
            while True:
                outcome = await crew.step(thread.id, watch=watch, cancel=self.cancel)
                if outcome.status != "idle" or outcome.took is None or self.cancel.is_set():
                    break
                if outcome.role in job.players.doers and self._has_to_wait(job, thread):
                    self._paused[job.id] = (job, thread)
                    return
            await self._leave(job, thread)
        except RolecallError as exc:
            if thread is not None and thread.has_ended:  # a person ended the thread in the meantime
                await self._leave(job, thread)
            else:
                reason = exc.explain()
                self._set_aside(job, thread, LeftTask(FAILED, "could not be run", reason), reason)

    def _has_to_wait(self, job: TaskJob, thread: Thread) -> bool:
        """Return whether a check must wait before its work is redone, because another task writes the same files."""
        if not job.players.is_check or self._files[job.id] >= job.work_files:
            return False
        others = {file for number, files in self._files.items() if number != job.id for file in files}
        if shared := job.work_files & others:
            self.tell("paused", job.id, {"thread": thread.id, "file": min(shared)})
            return True
        self._files[job.id] |= job.work_files
        return False

    async def _leave(self, job: TaskJob, thread: Thread) -> None:
        status = thread.status
        if status == "completed" and (left := await self._merge(thread)):
            self._set_aside(job, thread, left, left.reason)
        elif status == "completed":
            self._remark(job.id, *self.board.settle(job.task))
            self._report_end(job, thread, COMPLETED, "")
        elif status == "suspended":
            self._set_aside(job, thread, LeftTask(WAITING, "waits for a person"), report.question(thread))
        elif status in ENDED:
            self._set_aside(job, thread, LeftTask(FAILED, "has failed"), thread.reason)
        else:
            self._set_aside(job, thread, LeftTask(STOPPED, "was stopped"), "interrupted")

    async def _merge(self, thread: Thread) -> LeftTask | None:
        """Merge the work that a task did in a worktree into the project, or return why the work was not merged."""
        worktree = thread.state.folders.get("worktree")
        if worktree is None or worktree.is_removed:
            return None
        try:
            result = await thread.queue_merge(self.check, cancel=self.cancel)
        except AgentError:  # `cancel` was set
            return LeftTask(STOPPED, "was stopped", "interrupted")
        except UsageError as exc:
            return LeftTask(SET_ASIDE, "could not be merged", exc.explain())
        if not isinstance(result, SetAside):
            return None
        threads = {change.thread for file in result.files for change in file.changed_by}
        tasks = [
            str(number)
            for number, task in self.board.tasks.items()
            if (run := self.board.run_of(task)) and run.thread in threads
        ]
        whose = f", also changed by task {' and '.join(tasks)}" if tasks else ""
        return LeftTask(SET_ASIDE, "was set aside", f"{result.reason}{whose}", result.as_json())

    def _set_aside(self, job: TaskJob, thread: Thread | None, left: LeftTask, reason: str) -> None:
        self.board.left[job.id] = left
        self._remark(job.id, self.board.mark(job.task, "pending"))
        self._remark(job.id, *self.board.mark_works(job.task, "pending"))
        self._report_end(job, thread, left.status, reason)

    def _report_end(self, job: TaskJob, thread: Thread | None, status: str, reason: str) -> None:
        ident = thread.id if thread else ""
        self.watch.leave(ident, reason)
        onward = thread.continuation if thread else None
        self.tell("settled", job.id, {"thread": ident, "status": status, "reason": reason, "command": onward})

    def _open(self, job: TaskJob) -> Thread:
        thread = self.board.begun(job.task)
        if thread is None:
            thread, session = self._opening.begin(job)
            who = {
                "owner": job.players.owner,
                "checker": job.players.checker,
                "session": dict(session.record),
            }
            self.tell("begun", job.id, {"thread": thread.id, "title": job.task["title"], **who})
            worktree = thread.state.folders.get("worktree")
            if worktree and (count := worktree.omitted):
                self._remark(
                    job.id, f"its worktree does not have the project's uncommitted changes ({count})"
                )
            return thread
        if thread.state.status == "suspended":
            thread.resume(is_run_here=True)
        for step in thread.steps:  # finish what a previous runner left undone when it died
            self._judge(job, step)
        self.tell("goes_on", job.id, {"thread": thread.id, "title": job.task["title"]})
        return thread

    # -- observations --

    def _watch(self, job: TaskJob, thread: Thread, kind: str, body: JsonObject) -> None:
        if kind == "step_started":
            self.watch.start_step(thread, str(body["role"]), str(body["agent"]), int(body["number"]))
        elif kind == "step":
            step = self.rolecall.find_step(body["step"])
            is_apart = "worktree" in thread.state.folders
            for overlap in self.watch.finish_step(job.id, thread.id, step, is_apart=is_apart):
                self._remark(job.id, overlap.text)
                other = next(number for number in overlap.tasks if number != job.id)
                self.remarks.setdefault(other, []).append(overlap.text)
            self._files[job.id] |= list_touched_files(step)  # tasks that start later avoid these files
            self._judge(job, step)
        self.tell(kind, job.id, {"thread": thread.id, **body})

    def _judge(self, job: TaskJob, step: Step) -> None:
        """Reopen the checked tasks if a check rejects their work."""
        is_verdict = job.players.is_check and step.role == job.players.checker
        if is_verdict and status_of(step.output) == taskflow.verdicts(step.role)[1]:
            self._remark(job.id, *self.board.take_back(job.task, job.works))

    def _remark(self, number: float | None, *texts: str) -> None:
        for text in filter(None, texts):
            if number is not None:
                self.remarks.setdefault(number, []).append(text)
            self.tell("remark", number, {"text": text})
