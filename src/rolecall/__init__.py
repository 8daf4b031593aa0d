"""Rolecall runs teams of coding agents through workflows that cannot lose work.

The names below are public. Each is imported when it is first used, so that the command line starts quickly.
"""

TYPE_CHECKING = False  # the value of typing.TYPE_CHECKING, without importing typing for `--version`

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rolecall.agents.adapters.command import command
    from rolecall.agents.adapters.external import external
    from rolecall.agents.protocol import Agent, Context, Reply, Usage
    from rolecall.api import Event, Project, Rolecall, Run, Thread, open
    from rolecall.errors import AgentError, ExtractError, RolecallError, UsageError
    from rolecall.threads import agentkit
    from rolecall.workflow.model import END, Limits, Sandbox
    from rolecall.workflow.playbook import Message, RoleResult, ThreadContext
    from rolecall.workflow.python import Joined, MemberResult, Role, Workflow, compile

__all__ = [
    "END",
    "Agent",
    "AgentError",
    "Context",
    "Event",
    "ExtractError",
    "Joined",
    "Limits",
    "MemberResult",
    "Message",
    "Project",
    "Reply",
    "Role",
    "RoleResult",
    "Rolecall",
    "RolecallError",
    "Run",
    "Sandbox",
    "Thread",
    "ThreadContext",
    "Usage",
    "UsageError",
    "Workflow",
    "agentkit",
    "command",
    "compile",
    "external",
    "open",
]

_HOMES = {
    "rolecall.agents.adapters.command": ("command",),
    "rolecall.agents.adapters.external": ("external",),
    "rolecall.agents.protocol": ("Agent", "Context", "Reply", "Usage"),
    "rolecall.api": ("Event", "Project", "Rolecall", "Run", "Thread", "open"),
    "rolecall.workflow.python": ("Joined", "MemberResult", "Role", "Workflow", "compile"),
    "rolecall.errors": ("AgentError", "ExtractError", "RolecallError", "UsageError"),
    "rolecall.workflow.playbook": ("Message", "RoleResult", "ThreadContext"),
    "rolecall.workflow.model": ("END", "Limits", "Sandbox"),
}

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name):
        for module, names in _HOMES.items():
            if name in names:
                from importlib import import_module

                return getattr(import_module(module), name)
        if name == "agentkit":
            from importlib import import_module

            return import_module("rolecall.threads.agentkit")
        raise AttributeError(f"module 'rolecall' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
