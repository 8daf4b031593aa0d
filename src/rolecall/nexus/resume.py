"""Decides whether an agent resumes an earlier session for another task, and why. The functions have no side effects.

The contract defines the order of the criteria: an edit by another agent in the meantime, the task's own policy, the
agent's tier, and finally whether the host can resume the session. If there is no such session, the agent starts fresh.
`rolecall.threads.sessions` decides about sessions within one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

FRESH, SAME_ARTIFACT, RESUME = "fresh", "resume_if_same_artifact", "resume"
"""The policies that a task can set, from `overview.REUSE_POLICIES`."""
REREAD = "Read the files again before you change anything; they may have changed."
"""The first instruction to an agent that resumes work on files it knows."""


class Prior(NamedTuple):
    """The last session of an agent."""

    agent: str
    """The agent's id in the catalogue."""
    id: str
    """The id of this instance, as trackers record it."""
    session: str
    """The session id that the host resumes; empty if it was not recorded."""
    files: frozenset[str] = frozenset()
    """The files that the agent touched in the session."""
    at: str = ""
    """The time when the session ended, as RFC 3339 in UTC, so that times can be compared as strings."""


class Touch(NamedTuple):
    """The files that an instance of an agent touched, and the time when it ended."""

    id: str
    files: frozenset[str]
    at: str


class ResumeDecision(NamedTuple):
    session: str | None
    """The session to continue; None for a new one."""
    reasons: tuple[str, ...]
    """The criteria that were considered, in order; the last one decided."""
    must_reread: bool = False
    """Whether REREAD must be added to the agent's prompt."""


def decide(
    *,
    agent: str,
    tier: str | None,
    policy: str | None = None,
    files: Collection[str] = (),
    prior: Prior | None = None,
    others: Sequence[Touch] = (),
    can_resume: bool = True,
    missing: str = "",
) -> ResumeDecision:
    """Decide whether `agent` resumes the session of `prior` for a task about `files`. `others` are all instances that
    have ended, `can_resume` says whether the host resumes sessions at all, `missing` explains a missing `prior`."""
    is_bounded = tier == "bounded" or policy == SAME_ARTIFACT
    known = prior if prior is not None and prior.agent == agent else None
    wanted = frozenset(files)
    if is_bounded and known:
        for other in others:
            shared = other.files & (wanted | known.files)
            if other.id != known.id and other.at > known.at and shared:
                return _start_fresh(f"{min(shared)} was touched by {other.id} since")
    if policy == FRESH:
        return _start_fresh("the task says so")
    if policy == RESUME:
        reason = "the task says so"
    elif is_bounded:
        reason = "the task's policy" if policy == SAME_ARTIFACT else "bounded"
        if known and not wanted:
            return _start_fresh(f"{reason}, and the task names no file")
        if known and (unknown := wanted - known.files):
            return _start_fresh(f"{reason}, and {min(unknown)} was not among the files of its last session")
        reason += ", about the same files" if known else ""
    elif tier == "persistent":
        reason = "persistent"
    else:
        return _start_fresh(tier or "no tier, which counts as ephemeral")

    if prior is None and missing:
        return ResumeDecision(None, (reason, f"fresh: {missing}"))
    if known is None or not known.session:
        return ResumeDecision(None, (reason, f"fresh: {agent} has no session yet"))
    if not can_resume:
        return ResumeDecision(None, (reason, "fresh: it cannot be resumed here"))
    return ResumeDecision(known.session, (f"resumed: {reason}",), is_bounded)


def _start_fresh(reason: str) -> ResumeDecision:
    return ResumeDecision(None, (f"fresh: {reason}",))
