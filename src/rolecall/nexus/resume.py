"""Whether an agent goes on in a session it had when it gets another task, and why. A value from values.

The order is that of the contract: an edit by somebody else in between, the task's own policy, the agent's tier, and
last whether there is a session that the host can resume. A session that is missing is no error: the agent starts
fresh. What happens inside one thread is not decided here but in `rolecall.threads.sessions`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

FRESH, SAME_ARTIFACT, RESUME = "fresh", "resume_if_same_artifact", "resume"
"""What a task may say itself, of `overview.REUSE_POLICIES`."""
REREAD = "Read the files again before you change anything; they may have changed."
"""What an agent is told first that goes on with files it knows."""


class Prior(NamedTuple):
    """The last session of an agent."""

    agent: str
    """Its id in the catalogue."""
    id: str
    """This very instance, as trackers know it."""
    session: str
    """What the host resumes by; empty: it is not on record."""
    files: frozenset[str] = frozenset()
    """What it has touched."""
    at: str = ""
    """When it ended: RFC 3339 in UTC, so that times compare as texts."""


class Touch(NamedTuple):
    """Files that an instance of an agent has touched, and when it ended."""

    id: str
    files: frozenset[str]
    at: str


class Decision(NamedTuple):
    session: str | None
    """The session to go on in; None: a new one."""
    reasons: tuple[str, ...]
    """What was looked at, in order; the last one decided."""
    must_reread: bool = False
    """Whether the agent has to be told REREAD."""


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
) -> Decision:
    """Whether `agent` resumes the session of `prior` for a task about `files`. `others` are all instances that
    have ended; `can_resume` says whether the host can resume a session at all, `missing` why there is no `prior`,
    if known."""
    is_bounded = tier == "bounded" or policy == SAME_ARTIFACT
    known = prior if prior is not None and prior.agent == agent else None
    wish, reason = _wished(tier, policy, frozenset(files), known, others, is_bounded=is_bounded)
    if not wish:
        return Decision(None, (f"fresh: {reason}",))
    hindrance = (missing if prior is None else "") or _hindrance(agent, known, can_resume)
    if known is None or hindrance:
        return Decision(None, (reason, f"fresh: {hindrance}"))
    return Decision(known.session, (f"resumed: {reason}",), is_bounded)


def _wished(
    tier: str | None,
    policy: str | None,
    files: frozenset[str],
    prior: Prior | None,
    others: Sequence[Touch],
    *,
    is_bounded: bool,
) -> tuple[bool, str]:
    """Whether the session should be gone on with if it can be, and what says so."""
    edit = _edit_since(prior, files, others) if is_bounded and prior else None
    if edit:
        return False, edit
    if policy == FRESH:
        return False, "the task says so"
    if policy == RESUME:
        return True, "the task says so"
    if is_bounded:
        whose = "the task's policy" if policy == SAME_ARTIFACT else "bounded"
        return _same_files(prior, files, whose)
    if tier == "persistent":
        return True, "persistent"
    return False, tier or "no tier, which counts as ephemeral"


def _edit_since(prior: Prior, files: frozenset[str], others: Sequence[Touch]) -> str | None:
    known = files | prior.files
    for other in others:
        if other.id != prior.id and other.at > prior.at and (shared := other.files & known):
            return f"{min(shared)} was touched by {other.id} since"
    return None


def _same_files(prior: Prior | None, files: frozenset[str], whose: str) -> tuple[bool, str]:
    if prior is None:
        return True, whose  # whether there is a session is asked last
    if not files:
        return False, f"{whose}, and the task names no file"
    missing = files - prior.files
    if missing:
        return False, f"{whose}, and {min(missing)} was not among the files of its last session"
    return True, f"{whose}, about the same files"


def _hindrance(agent: str, prior: Prior | None, can_resume: bool) -> str:
    if prior is None or not prior.session:
        return f"{agent} has no session yet"
    return "" if can_resume else "it cannot be resumed here"
