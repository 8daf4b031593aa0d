"""Carry out the tasks of a cycle, each in its own thread, several at once.

Whenever a task ends, the runner reads the task list again and starts the tasks that can begin. The threads record what
was done, so the next run continues them after a kill. A failure does not stop the other tasks. A task that needs a
person waits, and everything that does not depend on it continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rolecall.agents.protocol import Cancel
from rolecall.errors import RolecallError
from rolecall.nexus import run_record
from rolecall.nexus.catalog import Catalog
from rolecall.plan_run import report, schedule, taskflow
from rolecall.plan_run.agent_watch import AgentWatch
from rolecall.plan_run.assignment import Job
from rolecall.plan_run.board import COMPLETED, FAILED, STOPPED, WAITING, Board, Left
from rolecall.plan_run.opening import Opening
from rolecall.plan_run.past import touched_files
from rolecall.plan_run.report import Row
from rolecall.threads import lifecycle, thread, views
from rolecall.threads.engine import Engine, Outcome
from rolecall.threads.state import read_thread
from rolecall.threads.thread import Chain, Step
from rolecall.workflow.route import status_of

Tell = Callable[[str, float | None, Mapping[str, Any]], None]
"""(kind of event, task, details)"""


@dataclass
class Runner:
    project: str
    engines: Callable[[str | None], Engine]
    """Returns the engine for the agent that plays every role; None for the configured agents."""
    catalog: Catalog
    board: Board
    cancel: Cancel
    tell: Tell
    limit: int = 3
    agent: str | None = None
    """The agent that plays every role, overriding the configuration."""

    def __post_init__(self) -> None:
        engine = self.engines(self.agent)
        self.store = engine.store
        self.watch = AgentWatch(self.project, self.store, partial(self._remark, None))
        self._opening = Opening(self.project, engine, self.catalog, self.board, self.watch, self.agent)
        self._running: dict[float, asyncio.Task[None]] = {}
        self._files: dict[float, frozenset[str]] = {}
        """The files that the running tasks write, as far as they are known."""
        self._paused: dict[float, tuple[Job, str]] = {}
        """Tasks that wait for a file in the middle of their thread."""
        self.remarks: dict[float, list[str]] = {}
        """Observations about each task, besides its outcome."""

    async def run(self) -> list[Row]:
        """Run until everything left needs a person, and return a row for each task that was open."""
        with run_record.run_alone(self.project):
            self.board.load()
            was_done = {number for number, task in self.board.tasks.items() if task["status"] == "completed"}
            self.watch.load([run.thread for run in self.board.runs.values()])
            self.board.files_of = self.watch.past.files_of
            try:
                await self._loop()
            finally:  # however the run ends, no agent keeps running
                for work in self._running.values():
                    work.cancel()
                await asyncio.gather(*self._running.values(), return_exceptions=True)
            return report.rows(
                self.store, self.board, limit=self.limit, without=was_done, remarks=self.remarks
            )

    async def _loop(self) -> None:
        while True:
            self.board.read()
            self._start_ready()
            if not self._running:
                break
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            for number, work in list(self._running.items()):
                if work.done():
                    del self._running[number], self._files[number]
                    work.result()
        for job, ident in self._paused.values():
            self._leave(job, ident)

    def _start_ready(self) -> None:
        if self.cancel.is_set():
            return
        stands = self.board.standing(self._running)
        for task in stands.unsettled:
            self._remark(task["id"], *self.board.settle(task))
            self.tell("settled", task["id"], {"status": COMPLETED, "reason": "its thread is done"})
        now = schedule.startable(stands.wants, done=stands.done, running=self._files, limit=self.limit)
        wanted = {want.id: want for want in stands.wants}
        for number in now.start:
            self._paused.pop(number, None)
            self._files[number] = wanted[number].files
            self._running[number] = asyncio.create_task(self._play(self.board.jobs[number]))

    # -- one task --

    async def _play(self, job: Job) -> None:
        ident = ""
        try:
            ident = self._thread_of(job)
            self._remark(job.id, self.board.mark(job.task, "in_progress"))
            self._remark(job.id, *self.board.mark_works(job.task, "in_progress"))
            playing = self.engines(self.agent or self.board.agent_of(job.task))
            engine = replace(playing, watch=partial(self._watch, job, ident))
            while True:
                outcome = await engine.step(ident, cancel=self.cancel)
                if outcome.status != "idle" or outcome.took is None or self.cancel.is_set():
                    break
                if self._has_to_wait(job, outcome):
                    self._paused[job.id] = (job, ident)
                    return
            self._leave(job, ident)
        except RolecallError as exc:
            ref = read_thread(self.store, ident) if ident else None
            if ref is not None and ref.state.has_ended:  # a person ended it in the meantime
                self._leave(job, ident)
            else:
                reason = f"{exc.message}. {exc.hint}" if exc.hint else exc.message
                self._set_aside(job, ident, Left(FAILED, "could not be run", reason), reason)

    def _has_to_wait(self, job: Job, outcome: Outcome) -> bool:
        """Whether a check must wait before its work is redone, because another task is writing the same files."""
        is_redoing = outcome.status == "idle" and outcome.role in job.players.doers and job.players.is_check
        if not is_redoing or self._files[job.id] >= job.work_files:
            return False
        others = {file for number, files in self._files.items() if number != job.id for file in files}
        if shared := job.work_files & others:
            self.tell("paused", job.id, {"thread": outcome.thread, "file": min(shared)})
            return True
        self._files[job.id] |= job.work_files
        return False

    def _leave(self, job: Job, ident: str) -> None:
        """Record the state of a thread after it stopped: done, waiting for a person, ended or interrupted."""
        ref = thread.find(self.store, ident)
        status = views.status_of(self.store, ref)
        if status == "completed":
            self._remark(job.id, *self.board.settle(job.task))
            self._report_end(job, ident, COMPLETED, "")
        elif status == "suspended":
            self._set_aside(job, ident, Left(WAITING, "waits for a person"), report.question(self.store, ref))
        elif status in thread.ENDED:
            self._set_aside(job, ident, Left(FAILED, "has failed"), ref.state.reason)
        else:
            self._set_aside(job, ident, Left(STOPPED, "was stopped"), "interrupted")

    def _set_aside(self, job: Job, ident: str, left: Left, reason: str) -> None:
        self.board.left[job.id] = left
        self._remark(job.id, self.board.mark(job.task, "pending"))
        self._remark(job.id, *self.board.mark_works(job.task, "pending"))
        self._report_end(job, ident, left.status, reason)

    def _report_end(self, job: Job, ident: str, status: str, reason: str) -> None:
        self.watch.leave(ident, reason)
        ref = read_thread(self.store, ident) if ident else None
        onward = thread.continuation(ref) if ref else None
        self.tell("settled", job.id, {"thread": ident, "status": status, "reason": reason, "command": onward})

    def _thread_of(self, job: Job) -> str:
        """The id of the task's thread: the one already begun, or a new one."""
        ref = self.board.begun(job.task)
        if ref is None:
            begun = self._opening.begin(job)
            who = {
                "owner": job.players.owner,
                "checker": job.players.checker,
                "session": dict(begun.session.told),
            }
            self.tell("begun", job.id, {"thread": begun.thread, "title": job.task["title"], **who})
            return begun.thread
        if ref.state.status == "suspended":
            lifecycle.resume(self.store, ref, mask=self._opening.engine.mask)
        for step in Chain(self.store, ref.head):  # finish what a runner that died left undone
            self._judge(job, step)
        self.tell("goes_on", job.id, {"thread": thread.id_of(ref), "title": job.task["title"]})
        return thread.id_of(ref)

    # -- observations --

    def _watch(self, job: Job, ident: str, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "step_started":
            self.watch.start_step(ident, str(body["role"]), str(body["agent"]), int(body["number"]))
        elif kind == "step":
            step = Step(self.store, self.store.get(body["step"]))
            for overlap in self.watch.finish_step(job.id, ident, step):
                self._remark(job.id, overlap.text)
                other = next(number for number in overlap.tasks if number != job.id)
                self.remarks.setdefault(other, []).append(overlap.text)
            self._files[job.id] |= touched_files(step)  # tasks that start later avoid these files
            self._judge(job, step)
        self.tell(kind, job.id, {"thread": ident, **body})

    def _judge(self, job: Job, step: Step) -> None:
        """Reopen the work if a check rejects it."""
        is_verdict = job.players.is_check and step.role == job.players.checker
        if is_verdict and status_of(step.output) == taskflow.verdicts(step.role)[1]:
            self._remark(job.id, *self.board.take_back(job.task, job.works))

    def _remark(self, number: float | None, *texts: str) -> None:
        for text in filter(None, texts):
            if number is not None:
                self.remarks.setdefault(number, []).append(text)
            self.tell("remark", number, {"text": text})
