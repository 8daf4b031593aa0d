"""Decide whether a role's agent continues an earlier session, and provide a memory for agents that have no sessions.

The role's `resume` decides: `ephemeral`, the default, begins a new session each time; `bounded` resumes the session
unless files of the role's last turn have changed since then; `persistent` always resumes it. The session of an
interrupted attempt is always resumed. A fork resumes a session of its source only as a copy. A thread can be started
with roles that begin in a session of an earlier thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import reduce
from itertools import islice
from typing import NamedTuple

from rolecall.agents.protocol import Usage
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import AttemptNote, ThreadState, read_thread
from rolecall.threads.thread import Step

LOOK_BACK = 200
"""The number of steps to look back for a session. A session older than that no longer fits the thread's current
work."""
REREAD = "Others may have worked here since your last turn: read the files again before you change anything."


class SessionChoice(NamedTuple):
    """The session in which to ask the agent, and the reason, which the step records."""

    reason: str
    session: str | None = None
    since: int | None = None
    """The number of the role's last step in the session; the prompt shows only later steps. If None, it shows all."""
    is_fork: bool = False
    total: Usage | None = None


class Fork(NamedTuple):
    """The point at which a thread was forked from another thread."""

    at: str
    """The last step that both threads share."""
    went_on: frozenset[str] | None
    """The sessions that the other thread has used since the fork, or None if they are unknown."""


class Origin(NamedTuple):
    """The step of an earlier thread whose session a role continues in its first turn."""

    thread: str = ""
    step: Step | None = None
    """The step, or None if it is no longer in the store."""
    tier: str = ""
    """`bounded` resumes the session only if the files of that step are unchanged; `persistent` always resumes it."""
    why: str = ""
    """The reason for resuming the session, if the tier is not the reason."""
    refusal: str = ""
    """Why the role begins in a new session although an earlier session was requested."""


def origin_of(store: Store, state: ThreadState, role: str) -> Origin | None:
    """Return the session in which the thread's state says that a role begins, or None if the role begins in a new
    one."""
    stored = state.sessions.get(role)
    if not stored:
        return None
    if "refusal" in stored:
        return Origin(refusal=stored["refusal"])
    step = Step(store, store.get(stored["step"])) if store.has(stored["step"]) else None
    return Origin(stored["thread"], step, stored["tier"], stored.get("why", ""))


def fork_of(store: Store, state: ThreadState) -> Fork | None:
    """Return where a thread was forked, according to its state, or None if the thread is not a fork."""
    at = state.forked_from
    return Fork(at, _sessions_since(store, state.forked_thread, at)) if at else None


def _sessions_since(store: Store, name: str | None, at: str) -> frozenset[str] | None:
    """Return the sessions that a thread has used after the step `at`, or None if they are unknown."""
    source = read_thread(store, name) if name else None
    used: set[str] = set()
    for step in islice(thread.Chain(store, source.head), LOOK_BACK) if source else ():
        if step.id == at:
            return frozenset(used)
        used.add(step.payload.get("session", ""))
    return None


def decide(
    steps: Iterable[Step],
    *,
    role: str,
    agent: str,
    tier: str | None,
    workdir: str,
    can_fork: bool,
    fork: Fork | None = None,
    origin: Origin | None = None,
    interrupted: AttemptNote | None = None,
    lost: frozenset[str] = frozenset(),
) -> SessionChoice:
    """Choose the session for an agent that can resume sessions. `steps` are the thread's steps, newest first.
    `interrupted` is the note of an earlier attempt at this step. `lost` are sessions that the agent no longer knows."""
    if interrupted and interrupted.by == agent and interrupted.session and interrupted.session not in lost:
        total = usage_of(interrupted.session_total)
        return SessionChoice("resumed: the attempt before was interrupted", interrupted.session, total=total)
    if origin is not None and all(step.role != role for step in islice(steps, LOOK_BACK)):
        return _begin_in(origin, agent, workdir, lost)
    if tier not in ("bounded", "persistent"):
        return SessionChoice(f"new: {tier or 'ephemeral'}")
    is_fork = False
    for step in islice(steps, LOOK_BACK):
        is_fork = is_fork or (fork is not None and step.id == fork.at)
        if step.role != role or step.agent != agent:
            continue
        asked, shared = step, fork if is_fork else None
        if step.reused is not None:  # the session belongs to the thread of the reused step
            asked = step.origin or step
            shared = Fork(asked.id, _sessions_since(step.store, step.reused.thread, asked.id))
        if session := asked.payload.get("session"):
            if session in lost:
                return SessionChoice("new: the agent does not know its session any more")
            if reason := _find_obstacle(asked, session, tier, workdir, shared, can_fork):
                return SessionChoice(f"new: {reason}")
            how, total = "forked" if shared else "resumed", usage_of(asked.payload.get("session_total"))
            reason = f"{how}: {tier}, from step {step.number}"
            return SessionChoice(reason, session, step.number, shared is not None, total)
        if step.reused is not None:
            return SessionChoice("new: the step before was reused, and its session is not known")
    return SessionChoice(f"new: {role} has no session with {agent} yet")


def _begin_in(origin: Origin, agent: str, workdir: str, lost: frozenset[str]) -> SessionChoice:
    """Begin in a session of an earlier thread. That session knows nothing about this thread, so the prompt is
    complete."""
    if origin.refusal:
        return SessionChoice(f"new: {origin.refusal}")
    step = origin.step
    session = step.payload.get("session") if step else None
    if step is None or not session:
        return SessionChoice(f"new: {origin.thread} has no session to begin in")
    if step.agent != agent:
        return SessionChoice(f"new: the session of {origin.thread} belongs to {step.agent}")
    if session in lost:
        return SessionChoice("new: the agent does not know its session any more")
    if reason := _find_obstacle(step, session, origin.tier, workdir, None, False):
        return SessionChoice(f"new: {reason}")
    remark = f"resumed: {origin.why or origin.tier}, from step {step.number} of {origin.thread}"
    return SessionChoice(remark, session, total=usage_of(step.payload.get("session_total")))


def _find_obstacle(
    step: Step, session: str, tier: str, workdir: str, fork: Fork | None, can_fork: bool
) -> str | None:
    if step.payload["cwd"] != workdir:  # some agents would work in the session's own folder
        return f"the session belongs to {step.payload['cwd']}"
    if fork is not None and not can_fork:
        return "the session belongs to another thread"
    if fork is not None and (fork.went_on is None or session in fork.went_on):
        return "another thread has gone on in the session"
    if tier != "bounded":
        return None
    # Compare the modification times of the files, because not every agent reports its changes.
    files = files_of(step)
    if not files:
        return "bounded, and it is not known which files the last turn was about"
    for name in sorted(files):
        try:
            changed = os.stat(os.path.join(workdir, name)).st_mtime_ns // 1_000_000
        except OSError:
            return f"bounded, and {name} has been removed since"
        if changed > step.payload["completed_at"]:
            return f"bounded, and {name} has changed since"
    return None


def files_of(step: Step) -> set[str]:
    """Return the files that a step and its failed attempts touched. Attempts count, because a correction does not touch
    the files again."""
    files = set(step.detail.get("files", ()))
    for attempt in step.attempts():
        if attempt.get("detail"):
            files |= set(step.store.get(attempt["detail"]).payload.get("files", ()))
    return files


def usage_of(record: JsonObject | None) -> Usage | None:
    return Usage(**record) if record else None


def add_usages(records: Iterable[JsonObject]) -> Usage:
    """Return the total usage of steps and failed attempts."""
    return reduce(Usage.plus, (usage_of(record.get("usage")) or Usage() for record in records), Usage())


class StoredMemory:
    """Sessions stored as chains of nodes under the refs `session/<id>`, which survive a crash."""

    def __init__(self, store: Store, mask: Mask) -> None:
        self._store = store
        self._mask = mask

    def read(self, session: str) -> list[str]:
        ref = self._store.ref(thread.session_name(session))
        node = ref.target if ref else None
        texts: list[str] = []
        while node:
            payload = self._store.get(node).payload
            texts.append(payload["text"])
            node = payload["prev"]
        return texts[::-1]

    def add(self, session: str, text: str) -> None:
        name = thread.session_name(session)
        ref = self._store.ref(name)
        draft = self._store.draft()
        fields = {"prev": ref.target if ref else None, "text": self._mask.text(text)}
        draft.move(name, ref, draft.put_as(thread.SESSION_SCHEMA, fields))
        draft.commit(durable=False)  # survives a crash of the process; the step's commit waits for the disk
