"""The adapters by name. Adapters and what they need import this, not the package, whose `__init__` names them all."""

SPOKEN = {
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
"""Coding agents that run as programs, and the programs."""

ADAPTERS = {**SPOKEN, **{name: f"rolecall.agents.adapters.{name}" for name in (*PROGRAMS, "builtin")}}
"""The module of each adapter, which is imported when needed and has a factory of the same name. `human` is not an
adapter: a role played by a person suspends the thread until the person answers."""
