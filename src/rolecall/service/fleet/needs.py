"""The requirements of a step, and whether this machine meets them.

A step runs only where its agent is installed. The machine that gets the order checks that as the engine does before a
run, from its configuration and programs. The thread's work folder must also exist there, and so must the file of a
workflow written in Python. A machine that lacks something reports it, and the order goes to another.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple

from rolecall import agents
from rolecall.agents.presence import check_present
from rolecall.errors import RolecallError
from rolecall.settings import config
from rolecall.settings.settings import builtin_options, configured_agent, unknown_agent
from rolecall.store.store import Store
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import ThreadRef, read_members
from rolecall.workflow import registry

_FRESH = {True: 30.0, False: 3.0}
"""Seconds to cache that an agent is present (True) or missing (False: it may be installed soon)."""
LEAST_DISK = 100 * 1024 * 1024
"""Free bytes that a machine needs to take work."""


class Need(NamedTuple):
    agent: str = ""
    """The agent's configured name; empty if the step calls nobody or a person."""
    files: tuple[str, ...] = ()
    """Paths that must exist."""

    @property
    def text(self) -> str:
        return json.dumps([self.agent, *self.files], separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Need:
        agent, *files = json.loads(text)
        return cls(agent, tuple(files))


def find_need(store: Store, ref: ThreadRef, agent: str) -> Need:
    """What the next step of a thread needs, given the name of its agent."""
    state = ref.state
    workflow = registry.read_node(store, state.workflow)[0]
    role = workflow.roles.get(state.role or "")
    places = [*state.folders.values()]
    if role is not None and role.group is not None and role.group.merge == "queue":
        # Members are merged where the first one was begun, so the others begin there too.
        first = next(read_members(store, ref.id), None)
        places += first.state.folders.values() if first else ()
    own = [folder["path"] for folder in places if "removed" not in folder]
    files = own or [state.cwd or ""]
    if (python := workflow.python) is not None:
        # Stored as FILE, FILE:VARIABLE or MODULE:VARIABLE.
        file = python if os.path.isabs(python) and python.endswith(".py") else python.rpartition(":")[0]
        files += [file] if os.path.isabs(file) else []
        if not state.agent and (role is None or role.agent is None):
            agent = ""  # its file provides an agent, or is one
    return Need(agent, tuple(filter(None, files)))


def find_full_disk(folders: Sequence[str]) -> str:
    """Describe the first problem with the disks under these folders."""
    for folder in folders:
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            return f"no work is taken: {folder}: {error.strerror}"
        if free < LEAST_DISK:
            return f"no work is taken: {folder} has {free // 1_000_000} MB left on its disk"
    return ""


class Here:
    """What this machine has. Used from one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}

    def lacks(self, need: Need) -> str:
        """Describe what this machine lacks for a step; empty if nothing."""
        for file in need.files:
            if not os.path.exists(file):
                return f"{file} is not there"
        until, why = self._known.get(need.agent, (0.0, ""))
        if time.monotonic() < until:
            return why
        try:
            check_agent(need.agent)
            why = ""
        except RolecallError as error:
            why = error.message
        self._known[need.agent] = (time.monotonic() + _FRESH[not why], why)
        return why


def check_agent(agent: str) -> None:
    """Refuse an agent that is not configured here, or whose program or package is not installed."""
    if not agent:
        return
    settings, environment = config.load(), config.environment()
    spec, options = configured_agent(settings, agent)
    kind, _, argument = spec.partition(":")
    if kind in (HUMAN, "workflow"):  # a person, or another workflow whose steps belong to this one
        return
    if kind not in agents.ADAPTERS:
        raise unknown_agent(settings, agent, (*agents.ADAPTERS, HUMAN))
    if kind == "builtin":
        options = builtin_options(settings, environment, {**options, **agents.parse_argument(kind, argument)})
        made = agents.make(kind, options)
    else:
        made = agents.resolve(spec, options)
    check_present(made, env=environment)
