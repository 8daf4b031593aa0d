"""Sees what the agents of all threads do: keeps the list of agents, and notices when two touch one file at once.

It is told of every event of every thread. That the list of agents cannot be written does not stop the work, but it is
said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rolecall.errors import RolecallError
from rolecall.nexus import project_paths, tracker
from rolecall.nexus.resume import Touch
from rolecall.plan_run.filenames import same
from rolecall.plan_run.past import Past, instance_id, moment, touched
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import read_thread
from rolecall.threads.thread import Step


class Overlap(NamedTuple):
    """A file that two tasks have touched while both were at work."""

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


class Witness:
    def __init__(self, project: str, store: Store, remark: Callable[[str], None]) -> None:
        self._project = project
        self._store = store
        self._remark = remark
        self._active: dict[str, dict[str, str]] = {}
        """Of each thread the agents that are at work, by id, and who they are."""
        self._spans: list[_Span] = []
        self._said: set[str] = set()
        self.past = Past()
        self.overlaps: dict[Overlap, None] = {}

    def load(self, threads: Sequence[str]) -> None:
        """What was done before, by the threads of this cycle."""
        found = [
            (step.payload["completed_at"], ident, step) for ident in threads for step in self._steps(ident)
        ]
        for _, ident, step in sorted(found, key=lambda one: one[0]):
            self.past.add(ident, step)
        for ident in threads:
            self._lend_again(ident)
        self._end_left_behind(tuple(f"{ident}:" for ident in threads))

    def _end_left_behind(self, ours: tuple[str, ...]) -> None:
        """No agent of ours is at work when a run begins: one that is listed so was left by a run that died."""
        for entry in self._listed():
            agent = entry.get("agent_id", "")
            if entry.get("status") == "running" and agent.startswith(ours):
                self._ended(agent, entry.get("agent_name", ""), project_paths.now(), "", frozenset())

    def _lend_again(self, ident: str) -> None:
        """A thread that is not over keeps the sessions that it was to begin in."""
        ref = read_thread(self._store, ident)
        if ref is None or ref.state.has_ended:
            return
        for told in ref.state.sessions.values():
            self.past.lend_step(told.get("step", ""), ident)

    def _steps(self, ident: str) -> Iterator[Step]:
        ref = read_thread(self._store, ident)
        steps = thread.Chain(self._store, ref.head) if ref else ()
        return (step for step in steps if not step.role.startswith("$"))

    def others(self) -> list[Touch]:
        """What agents have touched: ours, and those of the hosts that keep the same list."""
        with_files = (
            entry for entry in self._listed() if entry.get("stopped_at") and entry.get("files_touched")
        )
        theirs = (
            Touch(
                entry.get("agent_id", ""),
                frozenset(same(file, self._project) for file in entry["files_touched"]),
                entry["stopped_at"],
            )
            for entry in with_files
        )
        return [*self.past.touches(), *theirs]

    def _listed(self) -> list[dict[str, Any]]:
        try:
            return tracker.entries(self._project)
        except RolecallError as exc:
            self._say(f"the list of agents cannot be read: {exc.message}")
            return []

    # -- events --

    def started(self, ident: str, role: str, agent: str, number: int) -> None:
        note = self._store.ref(thread.attempt_name(ident))
        session = str(note.state.get("session", "")) if note else ""
        instance = self.past.instance_of(agent, session) or instance_id(ident, number)
        at_work = self._active.setdefault(ident, {})
        if instance not in at_work:
            at_work[instance] = role
            self._track(
                lambda: tracker.spawned(
                    self._project, agent_name=role, agent_id=instance, at=project_paths.now()
                )
            )

    def stepped(self, task: float, ident: str, step: Step) -> list[Overlap]:
        """A step was taken; the files that another task has touched meanwhile."""
        instance = self.past.add(ident, step)
        files, at = touched(step), moment(step.payload["completed_at"])
        self._active.setdefault(ident, {}).setdefault(instance.id, step.role)
        for agent in self._active.pop(ident):
            is_it = agent == instance.id
            self._ended(agent, step.role, at, step.body if is_it else "", files if is_it else frozenset())
        span = _Span(task, files, step.payload["started_at"], step.payload["completed_at"])
        return list(self._overlapping(span))

    def left(self, ident: str, reason: str) -> None:
        """Nobody works at this thread any more."""
        for agent, role in self._active.pop(ident, {}).items():
            self._ended(agent, role, project_paths.now(), reason, frozenset())
        self.past.give_back(ident)

    def _ended(self, agent: str, role: str, at: str, message: str, files: frozenset[str]) -> None:
        self._track(
            lambda: tracker.completed(
                self._project,
                agent_id=agent,
                agent_name=role,
                at=at,
                last_message=message.strip(),
                files=sorted(files),
            )
        )

    def _overlapping(self, span: _Span) -> Iterator[Overlap]:
        for other in self._spans:
            if other.task != span.task and other.end >= span.start:
                for file in sorted(other.files & span.files):
                    overlap = Overlap(file, (min(other.task, span.task), max(other.task, span.task)))
                    if overlap not in self.overlaps:
                        self.overlaps[overlap] = None
                        yield overlap
        if span.files:
            self._spans.append(span)

    def _track(self, write: Callable[[], object]) -> None:
        try:
            write()
        except RolecallError as exc:
            self._say(f"the list of agents was not written: {exc.message}")

    def _say(self, text: str) -> None:
        """Once: it is met again at every step."""
        if text not in self._said:
            self._said.add(text)
            self._remark(text)
