"""The agents that a role can name, and their adapters: `from rolecall.agents import claude`.

A spec is `name` or `name:argument`. `command`, `run`, `external`, `scripted`, `acp` and `workflow` read the argument
themselves; the others take options: `claude:model=opus timeout=600`, or a model alone, `claude:opus`. There is no
fallback: an unknown name is an error before anything runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rolecall.agents.adapter_table import ADAPTERS as ADAPTERS
from rolecall.agents.adapter_table import PROGRAMS as PROGRAMS
from rolecall.agents.adapter_table import WITH_ARGUMENT as WITH_ARGUMENT
from rolecall.settings import capabilities
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import dataclasses

    import rolecall.agents.options as _options
    import rolecall.agents.program as _program
    from rolecall.agents.adapters.acp import acp as acp
    from rolecall.agents.adapters.builtin import builtin as builtin
    from rolecall.agents.adapters.claude import claude as claude
    from rolecall.agents.adapters.codex import codex as codex
    from rolecall.agents.adapters.command import command as command
    from rolecall.agents.adapters.copilot import copilot as copilot
    from rolecall.agents.adapters.cursor import cursor as cursor
    from rolecall.agents.adapters.external import external as external
    from rolecall.agents.adapters.gemini import gemini as gemini
    from rolecall.agents.adapters.hermes import hermes as hermes
    from rolecall.agents.adapters.opencode import opencode as opencode
    from rolecall.agents.adapters.qwen import qwen as qwen
    from rolecall.agents.adapters.run import run as run
    from rolecall.agents.adapters.scripted import scripted as scripted
    from rolecall.agents.adapters.subworkflow import workflow as workflow
    from rolecall.agents.protocol import Agent
    from rolecall.store.canonical import JsonObject
else:
    dataclasses = Module("dataclasses")
    # A step played by a plain command does not need the module that reads options, which imports YAML.
    _options = Module("rolecall.agents.options")
    _program = Module("rolecall.agents.program")

_SERVER = "rolecall"
"""The name of the tool server with the project's own tools, the same in every host."""


def __getattr__(name: str) -> Any:
    """Return the factory of an adapter, so that `agents.claude(model="opus")` works."""
    if name not in ADAPTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(ADAPTERS[name]), name)


def resolve(spec: str, options: JsonObject | None = None) -> Agent:
    """Return the agent for a spec such as `command:prog --flag` or `claude:opus`. Options in the spec override
    `options`, which come from the configuration."""
    name, _, argument = spec.partition(":")
    if name in WITH_ARGUMENT and not options:
        agent: Agent = import_module(ADAPTERS[name]).from_argument(argument)
    else:
        agent = _options.resolve(name, argument, options or {})
    return agent


def make(name: str, options: JsonObject) -> Any:
    """Create an adapter from the options in a configuration or a spec."""
    return _options.make(name, options)


def parse_argument(name: str, argument: str) -> dict[str, str]:
    """Parse the argument of a spec: `key=value` words; a word without `=` is the model."""
    return _options.parse_argument(name, argument)


def add_tools(agent: Any, environment: Mapping[str, str]) -> Any:
    """Add the tool server with the project's own tools to an agent that accepts tool servers, unless the agent already
    has that server."""
    if any(server.name == _SERVER for server in agent.mcp):
        return agent
    # Not every agent passes its environment on to the tool servers that it starts.
    env = {name: environment[name] for name in capabilities.STORE_VARIABLES if name in environment}
    env[capabilities.THREADS_VARIABLE] = "1"
    own = _program.McpServer(_SERVER, sys.executable, ("-P", "-m", "rolecall", "mcp"), env)
    return dataclasses.replace(agent, mcp=(*agent.mcp, own))
