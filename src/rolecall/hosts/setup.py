"""What hosts are wired from: where, with which command, with which agents and skills. Values.

A host module of this package has

    TITLE, PROGRAM           what people call it, and the program it is: "Claude Code", "claude"
    pieces(setup)            everything that is to be there, as pieces of `piece.py`
    sweeps(setup)            patterns of paths where files of ours may lie that `pieces` names no longer
    roots(setup)             folders that were there before us, and stay when they are empty
    next_steps(setup)        what the person still has to do, a sentence each
    commands(setup)          the commands as they stand in the files now, for `doctor`
    obstacles(setup)         why the host would leave out part of what is installed, as far as its own files tell
    sample(event, folder)    a payload of the host for that event, about a project in `folder`; before a tool, an edit
    is_refusal(stdout)       whether a hook's answer is that a tool may not run
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rolecall.settings.settings import tier_model

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Agent, Catalog

Scope: TypeAlias = Literal["project", "user"]

SERVER = "rolecall"
"""What our MCP server is called in every host; the names of its tools follow from it."""


class Setup(NamedTuple):
    scope: Scope
    project: str
    """The project's folder, absolute; empty in the scope of the user."""
    home: str
    """The user's home folder, absolute."""
    command: tuple[str, ...]
    """The words that start Rolecall, the first one an absolute path."""
    catalog: Catalog
    env: Mapping[str, str]
    """The environment: hosts have variables that say where their configuration is."""
    settings: Mapping[str, Any] = {}
    """The configuration, for the models of the agents."""
    key: str = ""
    """The host key, which distinguishes the host from an agent's shell; empty if there is none yet."""

    def server_command(self, agent: str = "") -> tuple[str, ...]:
        """Starts the MCP server; for an agent of the catalogue, one that holds it to its limits."""
        return (*self.command, "mcp", *self._options(), *(("--agent", agent) if agent else ()))

    def hook_command(self, host: str, event: str) -> tuple[str, ...]:
        return (*self.command, "hook", host, event, *self._options())

    def model(self, host: str, agent: Agent) -> dict[str, str]:
        """The model of an agent by its tier, as a field of its file in a host; empty if none is set."""
        model = tier_model(self.settings, (host,), agent.model_tier)
        return {"model": model} if model else {}

    def _options(self) -> tuple[str, ...]:
        project = ("--project", self.project) if self.scope == "project" else ()
        return (*project, *(("--host-key", self.key) if self.key else ()))


class Commands(NamedTuple):
    """What a host would run, word by word; no words where ours went missing."""

    servers: Mapping[str, tuple[str, ...]]
    """By the name the host has for it: Lead's, and those of agents where they have their own."""
    hooks: Mapping[str, tuple[str, ...]]
    """By the host's name for the event."""


class Obstacle(NamedTuple):
    """Why something would not work, and what the person can do about it."""

    text: str
    fix: str


def shell(words: Iterable[str]) -> str:
    """The words as a line for a POSIX shell, whatever characters paths have."""
    return shlex.join(words)


def is_ours(words: Iterable[str], *verb: str) -> bool:
    """Whether these words start Rolecall with `verb` (`hook claude`, `mcp`): from wherever, in whatever version."""
    given = list(words)
    for at in range(1, len(given)):
        if tuple(given[at : at + len(verb)]) == verb:
            return is_rolecall(given[:at])
    return False


def is_rolecall(words: Iterable[str]) -> bool:
    """Whether these words are a way to start Rolecall: its script, or Python with its module."""
    given = list(words)
    name = given[-1].replace("\\", "/").rpartition("/")[2] if given else ""
    return (len(given) == 1 and name in ("rolecall", "rolecall.exe")) or given[1:] == ["-P", "-m", "rolecall"]


def words_of(line: object) -> tuple[str, ...]:
    """The words of a shell line; none where it is no such line."""
    try:
        return tuple(shlex.split(line)) if isinstance(line, str) else ()
    except ValueError:  # quotes that are not closed: somebody else's
        return ()


def server_words(value: Any) -> tuple[str, ...]:
    """The command of a server as hosts have it in their files; none where it does not start ours."""
    if not isinstance(value, Mapping):
        return ()
    listed = value.get("args")
    words = (str(value.get("command")), *(map(str, listed) if isinstance(listed, list) else ()))
    return words if is_ours(words, "mcp") else ()
