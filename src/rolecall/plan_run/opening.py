"""Starts the thread of a task: its workflow, its prompt, and the sessions in which its agents start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rolecall.api import Crew, Project, Rolecall, Thread
from rolecall.nexus import brief, filenames, resume
from rolecall.nexus.catalog import Catalog
from rolecall.nexus.resume import Touch
from rolecall.plan_run import taskflow
from rolecall.plan_run.agent_watch import AgentWatch
from rolecall.plan_run.assignment import TaskJob, writes
from rolecall.plan_run.board import TaskBoard
from rolecall.plan_run.past import Instance
from rolecall.settings import config
from rolecall.workflow.model import Workdir
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.route import status_of

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

_LATER = "9999"
"""A timestamp later than any real one, for files that were found to have changed after an agent ended."""


class FirstSession(NamedTuple):
    """The session in which a role's first turn starts."""

    record: Mapping[str, str]
    """The session, in the engine's format."""
    instance: Instance | None = None
    """The instance that the session continues; None for a new session."""
    must_reread: bool = False


@dataclass
class Opening:
    project: Project
    rolecall: Rolecall
    crew: Crew
    catalog: Catalog
    board: TaskBoard
    watch: AgentWatch
    agent: str | None = None
    """The agent that plays every role, overriding the configuration."""
    workdir: Workdir | None = None

    def begin(self, job: TaskJob) -> tuple[Thread, FirstSession]:
        """Create a thread for a task without running any of it. Return the thread with the owner's session."""
        plain = Playbook(taskflow.make(job.players, self.catalog))

        def name_tools(role: str) -> str:
            """Return a note with the names that the role's agent uses for the tools mentioned in the role's body."""
            return brief.notes(getattr(self.crew.cast(plain, role).agent, "mcp_tool", ""))

        book = Playbook(taskflow.make(job.players, self.catalog, name_tools, self.workdir))
        owner, others = job.players.owner, self.watch.touches()
        own = self._session(book, owner, others, job.named or job.work_files, job.task)
        sessions = {owner: own}
        for role in taskflow.diagnosticians(job.players):  # other roles never resume an earlier session
            session = self._session(book, role, others)
            if session.instance is not None:
                sessions[role] = session
        tasks = self.board.tasks
        thread = self.rolecall.start(
            book,
            brief.brief(
                job.task,
                results=[self._result(tasks[dep]) for dep in job.task["deps"] if dep in tasks],
                decisions=self.project.context()["decisions"],
                works=[tasks[work] for work in job.works if work in tasks],
                knowledge=self.project.reading_list(),
                first=resume.REREAD if own.must_reread else "",
            ),
            folder=self.project.folder,
            agent=self.agent,
            sessions={role: session.record for role, session in sessions.items()},
            also=lambda ident, _draft: self.board.plan(job.task, ident),
        )
        for session in sessions.values():
            if session.instance is not None:
                self.watch.past.lend(session.instance.id, thread.id)
        self.board.begin(job.task, thread.id)
        return thread, own

    def _session(
        self,
        book: Playbook,
        role: str,
        others: Sequence[Touch],
        files: frozenset[str] = frozenset(),
        task: ProjectTask | None = None,
    ) -> FirstSession:
        cast = self.crew.cast(book, role)
        by, policy = config.mask().text(cast.name), task.get("owner_reuse_policy") if task else None
        named = task.get("owner_agent_id", "") if task else ""
        past, agent = self.watch.past, self.catalog.agent(role)
        prior = past.prior(role, by=by, named=named, files=files)
        known = prior.prior if prior else None
        if prior and known and not writes(agent):
            # An agent that is not allowed to write is judged by the files that its report names, and by when those
            # files changed.
            step = self.rolecall.find_step(prior.step)
            summary = step.output.get("summary", "") if isinstance(step.output, dict) else ""
            tree = filenames.ProjectFiles(self.project.folder)
            read = known.files | filenames.find_names([step.body, str(summary)], tree)
            known = known._replace(files=read)
            changed = filenames.find_changed_since(self.project.folder, read & files, known.at)
            others = [*others, *([Touch("somebody", changed, _LATER)] if changed else [])]
        decision = resume.decide(
            agent=role,
            tier=agent.resume_tier,
            policy=policy,
            files=files,
            prior=known,
            others=others,
            can_resume=getattr(cast.agent, "can_resume", False),
            missing=past.why_none(role, by=by, named=named) if prior is None else "",
        )
        if prior is None or decision.session is None:
            return FirstSession({"refusal": decision.reasons[-1].removeprefix("fresh: ")})
        # A task with the policy `resume` is resumed without a further check; for any other task, the engine checks the
        # files once more.
        is_asked = decision.must_reread and policy != resume.RESUME and writes(agent)
        record = {"thread": prior.thread, "step": prior.step, "tier": "bounded" if is_asked else "persistent"}
        record["why"] = decision.reasons[-1].removeprefix("resumed: ")
        return FirstSession(record, prior, decision.must_reread)

    def _result(self, task: ProjectTask) -> brief.TaskResult:
        """Return the result of the work itself, without the verdict of the check that it has passed."""
        run = self.board.run_of(task)
        thread = self.rolecall.thread_if_any(run.thread) if run else None
        if thread is None or thread.status != "completed":  # the task was completed by hand
            return brief.TaskResult(task)
        steps = thread.steps
        done = [step for step in steps if status_of(step.output) == taskflow.DONE]
        last = (done or steps)[-1:]
        output = last[0].output if last and isinstance(last[0].output, dict) else {}
        return brief.TaskResult(task, str(output.get("summary", "")), last[0].role if last else "", thread.id)
