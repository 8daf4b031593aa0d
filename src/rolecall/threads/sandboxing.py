"""Limit what the processes of a step can reach: decide who enforces the restrictions of the step's role, and what the
step records.

Only a role with a `sandbox`, or with restrictions that imply one, needs `agents/sandbox.py`, which is imported only
then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from rolecall.agents.confinement import is_wanted
from rolecall.errors import UsageError
from rolecall.settings import capabilities
from rolecall.store.lazy import Module
from rolecall.workflow.model import Sandbox, StoredWorkflow, describe_sandbox, sandbox_of

if TYPE_CHECKING:
    from rolecall.agents import sandbox as sandboxes
    from rolecall.agents.sandbox import Layers, Policy
    from rolecall.threads.view_types import SandboxUse
else:
    sandboxes = Module("rolecall.agents.sandbox")


def no_layers() -> Layers:
    return sandboxes.Layers()


def check_role(
    name: str,
    agent: Any,
    workflow: StoredWorkflow,
    role: str,
    *,
    layers: Callable[[], Layers],
    inherited: Iterable[str] = (),
    names_role: bool = True,
) -> None:
    """Raise `UsageError` if neither the agent, known as `name`, nor the kernel can enforce the role's restrictions and
    those `inherited` from our own process, or if the role's sandbox cannot be enforced on this machine."""
    own, sandbox = workflow.roles[role], sandbox_of(workflow, role)
    words = (*own.capabilities, *inherited)
    deniable = getattr(agent, "deniable", None)
    by_kernel: tuple[str, ...] = ()
    if is_wanted(sandbox, words) and getattr(agent, "runs_in_sandbox", False):
        found = layers()
        by_kernel = found.deniable
        if sandbox is not None:
            sandboxes.check_enforceable(sandbox, found, owner=f"the role {role!r}")
    elif sandbox is not None and not (sandbox.is_off or sandbox.best_effort) and deniable is not None:
        is_workflow = getattr(agent, "is_workflow", False)
        more = " The roles of that workflow can have a sandbox." if is_workflow else ""
        raise UsageError(
            f"the sandbox of the role {role!r} has no effect on {name}, which plays it",
            hint=f"Give the role the line `sandbox: off`, or choose another agent.{more}",
        )
    if deniable is not None:  # the author of a plain function is responsible for that function
        named = role if names_role else ""
        capabilities.check_supported(name, words, deniable, by_kernel=by_kernel, role=named)


def describe_use(sandbox: Sandbox | None, words: Collection[str], policy: Policy | None) -> SandboxUse | None:
    """Return what a step records: the rules and how they were enforced. Return None if a sandbox was neither
    requested nor switched off nor applied."""
    if sandbox is not None and sandbox.is_off:
        return {"rules": describe_sandbox(sandbox)}
    if policy is not None:
        return {"rules": describe_sandbox(sandbox or Sandbox(), words), "enforced": list(policy.enforced)}
    if sandbox is not None:
        missing = "missing: it was played in a process of Rolecall"
        return {"rules": describe_sandbox(sandbox, words), "enforced": [missing]}
    return None
