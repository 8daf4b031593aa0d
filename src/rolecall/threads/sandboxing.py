"""Limits what the processes of a step may reach: who enforces the restrictions of its role, and what the step records.

Only a role with a `sandbox`, or with restrictions that imply one, needs `agents/sandbox.py`; it is imported then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from rolecall.agents.confinement import is_wanted
from rolecall.errors import UsageError
from rolecall.settings import capabilities
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.workflow.model import Sandbox, StoredWorkflow, describe_sandbox, sandbox_of

if TYPE_CHECKING:
    from rolecall.agents import sandbox as sandboxes
    from rolecall.agents.sandbox import Layers, Policy
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
    """Refuse a role if neither the agent, known as `name`, nor the kernel can enforce its restrictions and those
    `inherited` from our own process, or if the kernel cannot enforce its sandbox here."""
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
    if deniable is not None:  # the author of a plain function is responsible for it
        named = role if names_role else ""
        capabilities.check_supported(name, words, deniable, by_kernel=by_kernel, role=named)


def describe_use(sandbox: Sandbox | None, words: Collection[str], policy: Policy | None) -> JsonObject:
    """What a step records: the rules, and how they were enforced. Empty if no sandbox was requested or refused."""
    if sandbox is not None and sandbox.is_off:
        return {"rules": describe_sandbox(sandbox)}
    if policy is not None:
        return {"rules": describe_sandbox(sandbox or Sandbox(), words), "enforced": list(policy.enforced)}
    if sandbox is not None:
        missing = "missing: it was played in a process of Rolecall"
        return {"rules": describe_sandbox(sandbox, words), "enforced": [missing]}
    return {}
