"""The inputs of an installation in a host: the location, the command, the agents and the skills.

A host's `install` module has

    TITLE, PROGRAM           the host's name for people, and its program: "Claude Code", "claude"
    list_entries(setup)      everything to be installed, as entries of `installation.py`
    sweeps(setup)            glob patterns for our own files, to find those that `list_entries` no longer names
    roots(setup)             folders that existed before the installation, and stay even if they become empty
    next_steps(setup)        what the person still has to do, one sentence for each step
    commands(setup)          the commands that are currently in the files, for `doctor`
    obstacles(setup)         why the host would ignore part of the installation, as far as its own files show
    sample(event, folder)    a sample payload of the host for an event in a project; a tool call is an edit
    is_refusal(stdout)       whether a hook's answer denies a tool call
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from rolecall.errors import Hint, UsageError
from rolecall.nexus import catalog as catalogs
from rolecall.nexus.catalog import Catalog, CatalogAgent
from rolecall.settings import config
from rolecall.settings.repository import root_around
from rolecall.settings.settings import Settings, tier_model

Scope: TypeAlias = Literal["project", "user"]

SERVER = "rolecall"
"""The name of our MCP server in every host; its tools are named after it."""


class HostSetup(NamedTuple):
    scope: Scope
    project: str
    """The absolute path of the project's folder; empty in the user's scope."""
    home: str
    """The absolute path of the user's home folder."""
    command: tuple[str, ...]
    """The command that starts Rolecall; its first word is an absolute path."""
    catalog: Catalog
    env: Mapping[str, str]
    """The environment, whose variables can set the place where a host keeps its configuration."""
    settings: Settings = MappingProxyType({})
    """The configuration, which sets the models of the agents."""
    key: str = ""
    """The key that tells the host from an agent's shell; empty before the first installation."""

    def server_command(self, agent: str = "") -> tuple[str, ...]:
        """Return the command that starts the MCP server, with the limits of a catalogue agent if one is given."""
        # The host has the skills as files, so Lead's server need not offer them again.
        about = ("--as", agent) if agent else ("--without", "skills")
        return (*self.command, "mcp", *self._options(), *about)

    def hook_command(self, host: str, event: str) -> tuple[str, ...]:
        return (*self.command, "hook", host, event, *self._options())

    def model(self, host: str, agent: CatalogAgent) -> dict[str, str]:
        """Return the model of an agent's tier as a field of the agent's file, or an empty dict if none is set."""
        model = tier_model(self.settings, (host,), agent.model_tier)
        return {"model": model} if model else {}

    def _options(self) -> tuple[str, ...]:
        project = ("--project", self.project) if self.scope == "project" else ()
        return (*project, *(("--host-key", self.key) if self.key else ()))


def user_setup(*, is_removal: bool = False) -> HostSetup:
    """Return the setup for every project of the user."""
    # Entries are recognised by their form, so a removal needs only the built-in catalogue, even if the configuration is
    # unreadable.
    agents = catalogs.load() if is_removal else catalogs.load(config.catalog_folder())
    known = {} if is_removal else config.load()
    home = os.path.abspath(os.path.expanduser("~"))
    return HostSetup("user", "", home, own_command(), agents, config.environment(), known, config.host_key())


def project_setup(folder: str, *, is_removal: bool = False) -> HostSetup:
    setup = user_setup(is_removal=is_removal)
    project = os.path.realpath(folder)  # hosts see the folder with links resolved
    if project == os.path.realpath(setup.home):  # here, project files and user files are the same
        hint = Hint("Install for the user", "install_for_user")
        raise UsageError(f"{project} is your home, not a project", hint=hint)
    return setup._replace(scope="project", project=project)


def check_paths(setup: HostSetup) -> None:
    """Raise `UsageError` if a path is not UTF-8, because no host's files can contain such a path."""
    for path in (*setup.command, setup.project, config.home()):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the path {path!r} is not UTF-8, so no host's files can name it") from None


def setups_around(folder: str) -> list[HostSetup]:
    """Return the setups that can apply to a folder: of the project around it, of the folder itself, and of the user."""
    user = user_setup()
    home = os.path.realpath(user.home)
    folders = dict.fromkeys((root_around(folder), folder))
    projects = [place for place in folders if place and place != home]
    return [*(user._replace(scope="project", project=place) for place in projects), user]


def own_command() -> tuple[str, ...]:
    """Return a command that starts this Rolecall from any folder: its script, or Python with the module."""
    is_command = os.path.basename(sys.argv[0]) in ("rolecall", "uwf")  # and not a program that imports us
    for program in (*sys.argv[:is_command], sys.executable):
        script = os.path.join(os.path.dirname(os.path.abspath(program)), "rolecall")
        if not os.path.isfile(script) or not os.access(script, os.X_OK):
            continue
        with open(script, "rb") as file:
            first = file.readline(4096)
        interpreter = first[2:].split()[:1] if first.startswith(b"#!") else []
        if all(map(os.path.exists, interpreter)):  # false if the environment was moved
            return (script,)
    return (os.path.abspath(sys.executable), "-P", "-m", "rolecall")


class Commands(NamedTuple):
    """The commands that a host would run, as words; a missing command is empty."""

    servers: Mapping[str, tuple[str, ...]]
    """The command of each server, by its name in the host: Lead's, and those of agents with their own."""
    hooks: Mapping[str, tuple[str, ...]]
    """The command of each hook, by the host's name for the event."""


class Obstacle(NamedTuple):
    """Why something would not work, and what the person can do about it."""

    text: str
    fix: str


def is_ours(words: Iterable[str], *verb: str) -> bool:
    """Return whether these words start Rolecall with `verb`, as a script or with Python's `-m`, from any path."""
    given = tuple(words)
    at = next((at for at in range(1, len(given)) if given[at : at + len(verb)] == verb), 0)
    program = given[:at]
    is_script = len(program) == 1 and program[0].rpartition("/")[2] == "rolecall"
    return is_script or program[1:] == ("-P", "-m", "rolecall")


def split_words(line: object) -> tuple[str, ...]:
    """Return the words of a shell command, or an empty tuple if the command is invalid."""
    try:
        return tuple(shlex.split(line)) if isinstance(line, str) else ()
    except ValueError:  # the command has an unclosed quote, so it is not ours
        return ()


def server_words(value: object) -> tuple[str, ...]:
    """Return the command of a server entry in a host's file if it starts our server, or an empty tuple."""
    if not isinstance(value, Mapping):
        return ()
    args = value.get("args")
    words = (str(value.get("command")), *(map(str, args) if isinstance(args, list) else ()))
    return words if is_ours(words, "mcp") else ()
