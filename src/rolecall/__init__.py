"""Rolecall runs teams of coding agents through workflows that cannot lose work.

The names below are public. Each is imported when it is first used, so that the command line starts quickly;
`__init__.pyi` declares the names for type checkers.
"""

__version__ = "0.1.0"

_HOMES = {
    "rolecall.agents.adapters.command": ("command",),
    "rolecall.agents.adapters.external": ("external",),
    "rolecall.agents.protocol": ("Agent", "Context", "Reply", "Usage"),
    "rolecall.api": ("Event", "Project", "Rolecall", "Run", "Thread", "open"),
    "rolecall.errors": ("AgentError", "ExtractError", "RolecallError", "UsageError"),
    "rolecall.threads": ("agentkit",),
    "rolecall.workflow.model": ("END", "Limits", "Sandbox"),
    "rolecall.workflow.playbook": ("Message", "RoleResult", "ThreadContext"),
    "rolecall.workflow.python": ("Joined", "MemberResult", "Role", "Workflow", "compile"),
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name):
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            found = import_module(module)
            return getattr(found, name) if hasattr(found, name) else import_module(f"{module}.{name}")
    raise AttributeError(f"module 'rolecall' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
