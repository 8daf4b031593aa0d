"""The inputs of an installation in a host: the location, the command, the agents and the skills.

A host's `install` module has

    TITLE, PROGRAM           its name for people, and its program: "Claude Code", "claude"
    pieces(setup)            everything to be installed, as pieces of `installation.py`
    sweeps(setup)            glob patterns for files of ours that `pieces` no longer names
    roots(setup)             folders that existed before us and stay when they are empty
    next_steps(setup)        what the person still has to do, a sentence each
    commands(setup)          the commands that are in the files now, for `doctor`
    obstacles(setup)         why the host would ignore part of the installation, as far as its own files show
    sample(event, folder)    a payload of the host for an event in a project; before a tool, the tool is an edit
    is_refusal(stdout)       whether a hook's answer denies a tool call
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from rolecall.settings.settings import Settings, tier_model

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Catalog, CatalogAgent

Scope: TypeAlias = Literal["project", "user"]

SERVER = "rolecall"
"""The name of our MCP server in every host; its tools are named after it."""


class HostSetup(NamedTuple):
    scope: Scope
    project: str
    """The project's folder, absolute; empty in the user's scope."""
    home: str
    """The user's home folder, absolute."""
    command: tuple[str, ...]
    """The command that starts Rolecall; its first word is an absolute path."""
    catalog: Catalog
    env: Mapping[str, str]
    """The environment, whose variables may set where a host keeps its configuration."""
    settings: Settings = MappingProxyType({})
    """The configuration, which has the models of the agents."""
    key: str = ""
    """The host key, which distinguishes the host from an agent's shell; empty before the first installation."""

    def server_command(self, agent: str = "") -> tuple[str, ...]:
        """The command that starts the MCP server; for a catalogue agent, a server that enforces its limits."""
        # The host has the skills as files, so Lead's server need not offer them again.
        return (
            *self.command,
            "mcp",
            *self._options(),
            *(("--as", agent) if agent else ("--without", "skills")),
        )

    def hook_command(self, host: str, event: str) -> tuple[str, ...]:
        return (*self.command, "hook", host, event, *self._options())

    def model(self, host: str, agent: CatalogAgent) -> dict[str, str]:
        """The model of an agent's tier, as a field for its file in a host; empty if none is set."""
        model = tier_model(self.settings, (host,), agent.model_tier)
        return {"model": model} if model else {}

    def _options(self) -> tuple[str, ...]:
        project = ("--project", self.project) if self.scope == "project" else ()
        return (*project, *(("--host-key", self.key) if self.key else ()))


class Commands(NamedTuple):
    """The commands that a host would run, as words; empty for a missing command."""

    servers: Mapping[str, tuple[str, ...]]
    """By the host's name: Lead's server, and those of agents that have their own."""
    hooks: Mapping[str, tuple[str, ...]]
    """By the host's name for the event."""


class Obstacle(NamedTuple):
    """Why something would not work, and what the person can do about it."""

    text: str
    fix: str


def is_ours(words: Iterable[str], *verb: str) -> bool:
    """Whether these words start any Rolecall with `verb` (`hook claude`, `mcp`), as a script or with Python's `-m`."""
    given = tuple(words)
    at = next((at for at in range(1, len(given)) if given[at : at + len(verb)] == verb), 0)
    program = given[:at]
    is_script = len(program) == 1 and program[0].rpartition("/")[2] == "rolecall"
    return is_script or program[1:] == ("-P", "-m", "rolecall")


def split_words(line: object) -> tuple[str, ...]:
    """The words of a shell command; empty if it is invalid."""
    try:
        return tuple(shlex.split(line)) if isinstance(line, str) else ()
    except ValueError:  # an unclosed quote, so it is not ours
        return ()


def server_words(value: object) -> tuple[str, ...]:
    """The command of a server as written in hosts' files; empty if it does not start ours."""
    if not isinstance(value, Mapping):
        return ()
    args = value.get("args")
    words = (str(value.get("command")), *(map(str, args) if isinstance(args, list) else ()))
    return words if is_ours(words, "mcp") else ()
