"""Whether a role's agent goes on in a session it had, and why; and a memory for agents that have none.

The role's `resume` decides: `ephemeral` (the default) starts anew each time; `bounded` goes on only while
nobody else has touched the files of the role's last turn; `persistent` goes on. An attempt that died in the
middle is gone on with in any case, and a session that is another thread's past only in a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rolecall import thread
from rolecall.agents.protocol import Usage
from rolecall.mask import Mask
from rolecall.store.store import Store
from rolecall.thread import Step

LOOK_BACK = 200
"""How many steps back a session is looked for: an older one has forgotten what the thread is about."""
REREAD = "Others may have worked here since your last turn: read the files again before you change anything."


@dataclass(frozen=True)
class Decision:
    """In which session the agent is asked, and the reason, which is kept with the step."""

    reason: str
    session: str | None = None
    since: int | None = None
    """The number of the role's step after which only what is new is told; None: all of it."""
    is_fork: bool = False
    total: Usage | None = None


def decide(
    steps: Iterable[Step],
    *,
    role: str,
    agent: str,
    tier: str | None,
    workdir: str,
    can_fork: bool,
    forked_from: str | None = None,
    interrupted: Mapping[str, Any] | None = None,
    lost: frozenset[str] = frozenset(),
) -> Decision:
    """For an agent that can resume. `steps` are the thread's, newest first; `interrupted` is the note of an
    attempt at this very step; `lost` are sessions the agent has said it does not know."""
    if interrupted and interrupted.get("session") not in (None, *lost):
        total = usage_of(interrupted.get("session_total"))
        return Decision("resumed: the attempt before was interrupted", interrupted["session"], total=total)
    if tier not in ("bounded", "persistent"):
        return Decision(f"new: {tier or 'ephemeral'}")
    between: list[Step] = []
    is_fork = False
    for step in islice(steps, LOOK_BACK):
        is_fork = is_fork or step.id == forked_from
        session = step.payload.get("session")
        if step.role == role and step.agent == agent and session:
            if session in lost:
                return Decision("new: the agent does not know its session any more")
            if (
                step.payload["cwd"] != workdir
            ):  # agents keep sessions by folder, and some go on in the old one
                return Decision(f"new: the session belongs to {step.payload['cwd']}")
            return _again(step, str(session), between, tier=tier, is_fork=is_fork, can_fork=can_fork)
        between.append(step)
    return Decision(f"new: {role} has no session with {agent} yet")


def _again(
    step: Step, session: str, between: list[Step], *, tier: str, is_fork: bool, can_fork: bool
) -> Decision:
    if is_fork and not can_fork:
        return Decision("new: the session belongs to the thread this one was forked from")
    if tier == "bounded":
        own = files_of(step)
        if not own:
            return Decision("new: bounded, and it is not known which files the last turn was about")
        for other in between:
            if other.role != step.role and (common := sorted(own & files_of(other))):
                return Decision(f"new: bounded, and {other.role} has changed {common[0]} since")
    how = "forked" if is_fork else "resumed"
    return Decision(
        f"{how}: {tier}, from step {step.number}",
        session,
        step.number,
        is_fork,
        usage_of(step.payload.get("session_total")),
    )


def files_of(step: Step) -> set[str]:
    return set(step.detail.get("files", ()))


def usage_of(record: Mapping[str, Any] | None) -> Usage | None:
    return Usage(**record) if record else None


class StoredMemory:
    """A session as a chain of nodes under the ref `session/<id>`: what is added is there after a crash."""

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
        draft.commit(durable=False)  # a process that dies loses nothing of this; the step waits for the disk
