"""Watches the agents of all threads: keeps the list of agents, and detects when two agents touch the same file at once.

If the list of agents cannot be written, the work continues, and the report contains a remark about the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from rolecall.api import Project, Rolecall, Thread
from rolecall.errors import RolecallError
from rolecall.nexus.filenames import canonicalize
from rolecall.nexus.resume import Touch
from rolecall.plan_run.past import Past, instance_id, list_touched_files, moment
from rolecall.store.canonical import JsonObject
from rolecall.threads.thread import Step


class Overlap(NamedTuple):
    """A file that two tasks touched while both tasks were running."""

    file: str
    tasks: tuple[float, float]

    @property
    def text(self) -> str:
        one, other = self.tasks
        return f"tasks {one} and {other} have both touched {self.file} at the same time: look at it"


class _Span(NamedTuple):
    task: float
    files: frozenset[str]
    start: int
    end: int


class AgentWatch:
    def __init__(self, project: Project, rolecall: Rolecall, remark: Callable[[str], None]) -> None:
        self._project = project
        self._rolecall = rolecall
        self._remark = remark
        self._active: dict[str, dict[str, str]] = {}
        """The running agents of each thread: each agent's role, by the agent's id."""
        self._spans: list[_Span] = []
        self._remarks: set[str] = set()
        self.past = Past()
        self.overlaps: dict[Overlap, None] = {}

    def load(self, threads: Sequence[str]) -> None:
        """Read the history of this cycle's threads."""
        steps: list[tuple[str, Step]] = []
        lent: list[tuple[str, str]] = []
        for ident in threads:
            thread = self._rolecall.thread_if_any(ident)
            if thread is None:
                continue
            steps += [(ident, step) for step in thread.steps if not step.role.startswith("$")]
            if not thread.has_ended:  # its roles might still have to start in these sessions
                lent += [(session.get("step", ""), ident) for session in thread.state.sessions.values()]
        for ident, step in sorted(steps, key=lambda one: one[1].payload["completed_at"]):
            self.past.add(ident, step)
        for step_id, ident in lent:
            self.past.lend_step(step_id, ident)

        # None of our agents is running when a run begins, so an agent that is listed as running was left by a run that
        # died.
        ours = tuple(f"{ident}:" for ident in threads)
        for entry in self._entries():
            agent = entry.get("agent_id", "")
            if entry.get("status") == "running" and agent.startswith(ours):
                self._record_end(agent, entry.get("agent_name", ""))

    def touches(self) -> list[Touch]:
        """Return the files touched by our agents, and by the agents of the hosts that keep the same list."""
        theirs = [
            Touch(
                entry.get("agent_id", ""),
                frozenset(canonicalize(file, self._project.folder) for file in entry["files_touched"]),
                entry["stopped_at"],
            )
            for entry in self._entries()
            if entry.get("stopped_at") and entry.get("files_touched")
        ]
        return [*self.past.touches(), *theirs]

    def _entries(self) -> Sequence[JsonObject]:
        try:
            return self._project.agents()
        except RolecallError as exc:
            self._remark_once(f"the list of agents cannot be read: {exc.message}")
            return []

    # -- events --

    def start_step(self, thread: Thread, role: str, agent: str, number: int) -> None:
        instance = self.past.instance_of(agent, thread.session) or instance_id(thread.id, number)
        active = self._active.setdefault(thread.id, {})
        if instance not in active:
            active[instance] = role
            self._track(lambda: self._project.start_agent(instance, role))

    def finish_step(self, task: float, ident: str, step: Step, *, is_apart: bool = False) -> list[Overlap]:
        """Record a step, and return the files that another task has touched in the meantime. `is_apart` says that the
        task has a folder of its own, where no other task touches its files."""
        instance = self.past.add(ident, step)
        files, at = list_touched_files(step), moment(step.payload["completed_at"])
        self._active.setdefault(ident, {}).setdefault(instance.id, step.role)
        for agent in self._active.pop(ident):
            if agent == instance.id:
                self._record_end(agent, step.role, at, step.body, files)
            else:
                self._record_end(agent, step.role, at)

        if is_apart:
            return []
        span = _Span(task, files, step.payload["started_at"], step.payload["completed_at"])
        found = []
        for other in self._spans:
            if other.task != task and other.end >= span.start:
                for file in sorted(other.files & files):
                    overlap = Overlap(file, (min(other.task, task), max(other.task, task)))
                    if overlap not in self.overlaps:
                        self.overlaps[overlap] = None
                        found.append(overlap)
        if files:
            self._spans.append(span)
        return found

    def leave(self, ident: str, reason: str) -> None:
        """Record that no agent is working on this thread any longer."""
        for agent, role in self._active.pop(ident, {}).items():
            self._record_end(agent, role, message=reason)
        self.past.give_back(ident)

    def _record_end(
        self, agent: str, role: str, at: str = "", message: str = "", files: Collection[str] = ()
    ) -> None:
        self._track(
            lambda: self._project.end_agent(agent, role, at=at, message=message.strip(), files=sorted(files))
        )

    def _track(self, write: Callable[[], object]) -> None:
        try:
            write()
        except RolecallError as exc:
            self._remark_once(f"the list of agents was not written: {exc.message}")

    def _remark_once(self, text: str) -> None:
        if text not in self._remarks:
            self._remarks.add(text)
            self._remark(text)
