"""Another workflow as an agent: `workflow:NAME`, or `workflow("NAME")` in Python.

The role's prompt becomes the task of a thread of that workflow, and the thread's last output is the answer, which must
match the role's schema. The thread is the agent's session: a repeated step continues it, whether after a crash or a
suspension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rolecall.agents.protocol import Context, Ending, Reply
from rolecall.errors import AgentError, UsageError
from rolecall.workflow.reply import render

_ENDINGS: dict[str, Ending] = {
    "completed": "completed",
    "idle": "interrupted",
    "limited": "suspended",
    "suspended": "suspended",
    "waiting": "suspended",
    "killed": "killed",
}


@dataclass(frozen=True)
class Subworkflow:
    workflow: str

    can_resume: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset()
    is_workflow: ClassVar[bool] = True
    """Whether the agent is a workflow, whose steps can be reused individually instead of its result as a whole."""

    @property
    def name(self) -> str:
        return f"workflow:{self.workflow}"

    async def __call__(self, prompt: str, context: Context) -> Reply:
        if context.play is None:
            raise AgentError("a workflow can only play a role inside an engine")
        if context.cancel.is_set():
            raise AgentError(f"{self.name} was cancelled before it started", ending="interrupted")
        played = await context.play(self.workflow, prompt, context.session)
        reason = hint = ""
        if played.status != "completed":
            why = f": {played.reason.removesuffix('.')}" if played.reason else ""
            reason = f"its thread {played.thread} is {played.status}{why}"
            hint = f"Read thread {played.thread}."
        if played.status == "waiting":
            hint = f"Answer its members, then resume thread {context.thread}."
        if played.status == "suspended":
            hint = f"Answer thread {played.thread}, then resume thread {context.thread}."
        return Reply(
            render(played.output, played.body) if played.status == "completed" else "",
            session=played.thread,
            usage=played.usage.since(context.session_total),
            session_total=played.usage,
            ending=_ENDINGS.get(played.status, "failed"),
            reason=reason,
            children=(played.thread,),
            hint=hint,
        )


def workflow(name: str) -> Subworkflow:
    """Create an agent that runs another workflow: `Role(agent=workflow("review-code"), …)`."""
    return Subworkflow(name)


def from_argument(argument: str) -> Subworkflow:
    if not argument.strip():
        raise UsageError("a workflow as an agent needs a name", hint="Write it as `workflow:review-code`.")
    return Subworkflow(argument.strip())
