"""Another workflow as an agent: `workflow:NAME`, or `workflow("NAME")` in Python.

The prompt of the role becomes the task of a thread of that workflow. What its last step delivered is the
answer; the role's schema has to fit it. The thread is the agent's session: it is gone on with after a crash,
and when it was suspended and the step is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rolecall.agents.protocol import Context, Ending, Played, Reply, with_frontmatter
from rolecall.errors import AgentError, UsageError

_ENDINGS: dict[str, Ending] = {
    "completed": "completed",
    "idle": "interrupted",
    "suspended": "suspended",
    "killed": "killed",
}


@dataclass(frozen=True)
class Subworkflow:
    workflow: str

    can_resume: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        return f"workflow:{self.workflow}"

    async def __call__(self, prompt: str, context: Context) -> Reply:
        if context.play is None:
            raise AgentError("a workflow can only play a role where there is an engine", ending="failed")
        if context.cancel.is_set():
            raise AgentError(f"{self.name} was cancelled before it started", ending="interrupted")
        played = await context.play(self.workflow, prompt, context.session)
        return Reply(
            with_frontmatter(played.output, played.body) if played.status == "completed" else "",
            session=played.thread,
            usage=played.usage.since(context.session_total),
            session_total=played.usage,
            ending=_ENDINGS.get(played.status, "failed"),
            reason=_reason(played),
            children=(played.thread,),
            hint=_hint(played, context.thread),
        )


def _reason(played: Played) -> str:
    if played.status == "completed":
        return ""
    why = f": {played.reason}" if played.reason else ""
    return f"its thread {played.thread} is {played.status}{why}"


def _hint(played: Played, parent: str) -> str:
    if played.status != "suspended":
        return f"Read thread {played.thread}."
    return f"Answer thread {played.thread}, then resume thread {parent}."


def workflow(name: str) -> Subworkflow:
    """Another workflow plays the role: `Role(agent=workflow("review-code"), …)`."""
    return Subworkflow(name)


def from_argument(argument: str) -> Subworkflow:
    if not argument.strip():
        raise UsageError("a workflow as an agent needs a name", hint="Write it as `workflow:review-code`.")
    return Subworkflow(argument.strip())
