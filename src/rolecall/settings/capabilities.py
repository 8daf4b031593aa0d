"""What a role is not allowed to do: restrictions, and the classes of actions that each restriction denies.

A role's `capabilities` can contain any words; those in `RESTRICTIONS` are enforced. An adapter declares how its agent
denies each class of actions. If a role needs a denial that the adapter cannot provide, the role is refused before the
run, because a restriction that is only in the prompt restricts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rolecall.errors import Hint, UsageError

FILES = (
    "file_creation",
    "file_modification",
    "file_deletion",
    "partial_file_edit",
    "structured_document_edit",
)
SHELL = ("shell_command_exec", "subprocess_spawn", "interactive_shell_session")
TASK_CREATION = ("nexus_task_creation",)
TASK_UPDATE = ("nexus_task_state_transition", "nexus_task_metadata_modification")
SHELL_WRITES = ("shell_file_write",)
"""The class of writes to the work folder through a shell. If no sandbox can deny these writes, the shell itself is
denied."""

RESTRICTIONS: Mapping[str, tuple[str, ...]] = {
    "no_file_edit": FILES,
    "no_shell_exec": SHELL,
    "no_task_create": TASK_CREATION,
    "no_task_update": TASK_UPDATE,
    "read_only": (*FILES, *SHELL_WRITES),
}
CLASSES = tuple(sorted({name for names in RESTRICTIONS.values() for name in names}))
IMPLY_SANDBOX = ("read_only", "no_file_edit", "no_shell_exec")
"""Restrictions that imply a sandbox where the machine can enforce one."""

VARIABLE = "ROLECALL_RESTRICTIONS"
"""The environment variable that contains the role's restrictions. It is set for every process of an agent, and our own
commands obey these restrictions in any shell."""
THREADS_VARIABLE = "ROLECALL_MAY_START_THREADS"
"""The environment variable that tells every process of an agent that its role may start threads."""
SANDBOX_VARIABLE = "ROLECALL_SANDBOX"
"""The environment variable that, with the value `off`, makes this machine count as one that cannot enforce
sandboxes."""
STORE_VARIABLES = ("ROLECALL_HOME", "ROLECALL_STORE")
"""The environment variables that locate the store of threads."""
BY_OURSELVES = (*TASK_CREATION, *TASK_UPDATE)
"""Classes of actions that go through our own commands, which check VARIABLE. Adapters need not deny these classes."""

_TO_THE_LEAD = "Leave it to the role that leads the work."


def restrictions(capabilities: Iterable[str]) -> tuple[str, ...]:
    """Return the capabilities of a role that are restrictions."""
    return tuple(word for word in capabilities if word in RESTRICTIONS)


def denied_classes(capabilities: Iterable[str], *, sandboxed: bool = False) -> tuple[str, ...]:
    """Return the classes of actions that an agent must deny, in the order of CLASSES. In a sandbox, the kernel denies
    writes through a shell, so the agent can keep its shell."""
    found = {name for word in restrictions(capabilities) for name in RESTRICTIONS[word]}
    found -= set(SHELL_WRITES) if sandboxed else set()
    return tuple(name for name in CLASSES if name in found)


def denied_tools(
    table: Mapping[str, tuple[str, ...]], capabilities: Iterable[str], *, sandboxed: bool = False
) -> tuple[str, ...]:
    """Return the tools that `table` lists for the denied classes of actions, each once."""
    classes = denied_classes(capabilities, sandboxed=sandboxed)
    tools = (tool for name in classes for tool in table.get(name, ()))
    return tuple(dict.fromkeys(tools))


def must_not_write(capabilities: Iterable[str]) -> bool:
    """Return whether the role must leave the work folder unchanged."""
    return "read_only" in set(capabilities)


def check_supported(
    agent: str,
    capabilities: Iterable[str],
    deniable: Collection[str],
    *,
    by_kernel: Collection[str] = (),
    role: str = "",
) -> None:
    """Raise an error if neither this agent nor the kernel can enforce the restrictions of `role`."""
    for word in restrictions(capabilities):
        if not set(RESTRICTIONS[word]) <= {*deniable, *by_kernel, *BY_OURSELVES}:
            raise UsageError(
                f"the agent {agent!r} cannot be held to {word!r}{f', as the role {role!r} must be' if role else ''}",
                hint=Hint(
                    "See which agents can",
                    "list_restrictions",
                    before="Choose another agent, or take the restriction out of the role's `capabilities` in your own "
                    "copy of the workflow.",
                ),
            )


def check_allowed(restrictions: Iterable[str], action: str, classes: Collection[str]) -> None:
    """Raise an error if a restriction denies any class of an action."""
    for word in restrictions:
        if not set(RESTRICTIONS.get(word, ())).isdisjoint(classes):
            raise UsageError(f"{action} is denied to this role by {word}", hint=_TO_THE_LEAD)


def check_lead(restrictions: Iterable[str], action: str) -> None:
    """Raise an error if a process with any restriction starts an action of the lead (plan, decide, add rules, delete
    notes). Such a process plays a role, so it is not the lead."""
    word = next((word for word in restrictions if word in RESTRICTIONS), "")
    if word:
        raise UsageError(f"{action} is for the lead, and this role is held to {word}", hint=_TO_THE_LEAD)


def check_host(words: Iterable[str], action: str, *, is_host: bool) -> None:
    """Raise an error if a restricted process, such as an agent's shell, starts an action that only hosts may start,
    without showing a host key."""
    held = restrictions(words)
    if held and not is_host:
        raise UsageError(
            f"{action} is for hosts, but this process is restricted by {held[0]} and shows no host key",
            hint=Hint(
                "If a host started it, install Rolecall in the host again", "install_host", host="HOST"
            ),
        )
