"""The past work of a cycle's agents, read from the threads of its tasks.

An instance of an agent is one of its sessions. The instance's id consists of a thread and the number of the instance's
first step in that thread. While a thread continues a session, the session is not offered to another thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from rolecall.nexus.filenames import canonicalize
from rolecall.nexus.resume import Prior, Touch
from rolecall.threads.sessions import files_of
from rolecall.threads.thread import Step


class Instance(NamedTuple):
    """An agent's state when it last ended."""

    id: str
    agent: str
    """The agent's id in the catalogue, which is the role that it played."""
    by: str
    """The engine's agent that played the role."""
    thread: str
    step: str
    session: str
    files: frozenset[str]
    at: str

    @property
    def prior(self) -> Prior:
        return Prior(self.agent, self.id, self.session, self.files, self.at)


class Past:
    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        self._of_session: dict[tuple[str, str], str] = {}
        """The instance of each pair of engine agent and session."""
        self._touched: dict[str, frozenset[str]] = {}
        self._lent: dict[str, str] = {}
        """The thread to which each instance is lent, by the instance's id."""

    def add(self, thread: str, step: Step) -> Instance:
        """Add a step; adding it again changes nothing."""
        session = str(step.payload.get("session", ""))
        ident = self.instance_of(step.agent, session) or instance_id(thread, step.number)
        before = self._instances.get(ident)
        own = list_touched_files(step)
        self._touched[thread] = self.files_of(thread) | own
        at = moment(step.payload["completed_at"])
        if before is None or at >= before.at:
            files = own | (before.files if before else frozenset())
            instance = Instance(ident, step.role, step.agent, thread, step.id, session, files, at)
            self._instances[ident] = instance
        if session:
            self._of_session[step.agent, session] = ident
        return self._instances[ident]

    def instance_of(self, by: str, session: str) -> str | None:
        """Return the instance of a session, or None if the session is unknown."""
        return self._of_session.get((by, session)) if session else None

    def prior(self, agent: str, *, by: str, named: str = "", files: Collection[str] = ()) -> Instance | None:
        """Find the instance of `agent` to resume: the one with the id `named`, or otherwise the latest, preferably
        one that knows the files. An instance that another thread uses is not available."""
        free = [
            one
            for one in self._instances.values()
            if one.agent == agent and one.by == by and one.session and one.id not in self._lent
        ]
        if named:
            return next((one for one in free if one.id == named), None)
        return max(free, key=lambda one: (bool(files) and one.files.issuperset(files), one.at), default=None)

    def why_none(self, agent: str, *, by: str, named: str = "") -> str:
        """Explain why no instance can be resumed. Return an empty string if there never was an instance."""
        known = [one for one in self._instances.values() if one.agent == agent]
        if named:
            known = [one for one in known if one.id == named]
            if not known:
                return f"the task names {named}, but no {agent} of this cycle has that id"
        if not known:
            return ""
        last = max(known, key=lambda one: one.at)
        if last.by != by:
            return f"the last session of {agent} was with {last.by}, and {by} plays it now"
        if last.id in self._lent:
            return f"another task uses the session of {last.id}"
        return f"the session of {last.id} is not on record"

    def lend(self, instance: str, thread: str) -> None:
        self._lent[instance] = thread

    def lend_step(self, step: str, thread: str) -> None:
        """Lend the instance that ended with this step."""
        self._lent.update({one.id: thread for one in self._instances.values() if one.step == step})

    def give_back(self, thread: str) -> None:
        self._lent = {instance: holder for instance, holder in self._lent.items() if holder != thread}

    def files_of(self, thread: str) -> frozenset[str]:
        """Return the files that were touched in a thread."""
        return self._touched.get(thread, frozenset())

    def touches(self) -> Iterator[Touch]:
        return (Touch(one.id, one.files, one.at) for one in self._instances.values() if one.files)


def instance_id(thread: str, number: int) -> str:
    return f"{thread}:{number}"


def list_touched_files(step: Step) -> frozenset[str]:
    """Return the files of a step: those that the agent was seen to write, and those that it reported."""
    output = step.output
    reported = output.get("files", ()) if isinstance(output, dict) else ()
    names = {*files_of(step), *(file for file in reported if isinstance(file, str))}
    folder = os.path.realpath(step.payload["cwd"])
    return frozenset(canonicalize(name.strip(), folder) for name in names if name.strip())


def moment(ms: int) -> str:
    """Format a timestamp from the store in the same way as the project's files."""
    seconds, rest = divmod(ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:03d}Z"
