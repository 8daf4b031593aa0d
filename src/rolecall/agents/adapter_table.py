"""The adapters by name. Adapters and the modules they use import this module instead of the package, whose `__init__`
names every adapter."""

WITH_ARGUMENT = {
    "acp": "rolecall.agents.adapters.acp",
    "command": "rolecall.agents.adapters.command",
    "external": "rolecall.agents.adapters.external",
    "run": "rolecall.agents.adapters.run",
    "scripted": "rolecall.agents.adapters.scripted",
    "workflow": "rolecall.agents.adapters.subworkflow",
}
"""Adapters that parse their own argument with the module's `from_argument`."""

PROGRAMS = {
    "claude": "claude",
    "codex": "codex",
    "copilot": "copilot",
    "cursor": "cursor-agent",
    "gemini": "gemini",
    "hermes": "hermes",
    "opencode": "opencode",
    "qwen": "qwen",
}
"""The coding agents that run as programs, with the name of each program."""

ADAPTERS = {**WITH_ARGUMENT, **{name: f"rolecall.agents.adapters.{name}" for name in (*PROGRAMS, "builtin")}}
"""The module of each adapter. A module is imported when needed, and has a factory with the name of the adapter. `human`
is not an adapter: a role that a person plays suspends the thread until the person answers."""
