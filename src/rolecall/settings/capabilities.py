"""What a role may not do: restrictions, and the classes of actions that each of them denies. Plain values.

A role's `capabilities` may contain any words; those in `RESTRICTIONS` are enforced. An adapter declares how its agent
denies each class of actions. A role that needs a denial the adapter cannot give is refused before the run, because a
restriction that is only in the prompt restricts nothing.
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
"""Changing the work folder through a shell. If no sandbox can deny that, the shell itself is denied."""

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
"""The variable with the role's restrictions, set for every process of an agent. Our own verbs obey it in any shell."""
THREADS_VARIABLE = "ROLECALL_MAY_START_THREADS"
"""The variable that tells every process of an agent that its role may start threads."""
SANDBOX_VARIABLE = "ROLECALL_SANDBOX"
"""With the value `off`, this machine counts as one that cannot enforce sandboxes."""
STORE_VARIABLES = ("ROLECALL_HOME", "ROLECALL_STORE")
"""The variables that lead to the store of threads."""
BY_OURSELVES = (*TASK_CREATION, *TASK_UPDATE)
"""Classes that go through our own verbs, which check VARIABLE, so adapters need not deny them."""

_TO_THE_LEAD = "Leave it to the role that leads the work."


def restrictions(capabilities: Iterable[str]) -> tuple[str, ...]:
    """The role's capabilities that are restrictions."""
    return tuple(word for word in capabilities if word in RESTRICTIONS)


def denied_classes(capabilities: Iterable[str], *, sandboxed: bool = False) -> tuple[str, ...]:
    """The classes of actions that an agent is to deny, in the order of CLASSES. In a sandbox the kernel denies writing
    through a shell, so the agent may keep its shell."""
    found = {name for word in restrictions(capabilities) for name in RESTRICTIONS[word]}
    found -= set(SHELL_WRITES) if sandboxed else set()
    return tuple(name for name in CLASSES if name in found)


def denied_tools(
    table: Mapping[str, tuple[str, ...]], capabilities: Iterable[str], *, sandboxed: bool = False
) -> tuple[str, ...]:
    """What an agent's `table` lists for the denied classes of actions, each once."""
    classes = denied_classes(capabilities, sandboxed=sandboxed)
    tools = (tool for name in classes for tool in table.get(name, ()))
    return tuple(dict.fromkeys(tools))


def must_not_write(capabilities: Iterable[str]) -> bool:
    """Whether the role must leave the work folder unchanged."""
    return "read_only" in set(capabilities)


def check_supported(
    agent: str,
    capabilities: Iterable[str],
    deniable: Collection[str],
    *,
    by_kernel: Collection[str] = (),
    role: str = "",
) -> None:
    """Refuse a `role` whose restrictions neither this agent nor the kernel can enforce."""
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
    """Refuse an action if a restriction denies any of its classes."""
    for word in restrictions:
        if not set(RESTRICTIONS.get(word, ())).isdisjoint(classes):
            raise UsageError(f"{action} is denied to this role by {word}", hint=_TO_THE_LEAD)


def check_lead(restrictions: Iterable[str], action: str) -> None:
    """Refuse actions of the lead (plan, decide, add rules, delete notes) to a process with any restriction: it plays a
    role, so it is not the lead."""
    word = next((word for word in restrictions if word in RESTRICTIONS), "")
    if word:
        raise UsageError(f"{action} is for the lead, and this role is held to {word}", hint=_TO_THE_LEAD)


def check_host(words: Iterable[str], action: str, *, is_host: bool) -> None:
    """Refuse an action that only hosts start if a restricted process, such as an agent's shell, shows no host key."""
    held = restrictions(words)
    if held and not is_host:
        raise UsageError(
            f"{action} is for hosts, but this process is restricted by {held[0]} and shows no host key",
            hint=Hint(
                "If a host started it, install Rolecall in the host again", "install_host", host="HOST"
            ),
        )
