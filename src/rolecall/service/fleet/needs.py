"""The requirements of a step, and whether this machine meets them.

A step runs only where its agent is installed. The machine that gets the order checks that as the engine does before a
run, from its configuration and programs. The thread's work folder must also exist there, and so must the file of a
workflow written in Python. A machine that lacks something reports it, and the order goes to another. A folder of the
thread's own must be the newest copy. If the machine with that copy cannot take the step, a machine that can make the
folder from the files in the store takes it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple

import rolecall.agents as agents
from rolecall.agents.presence import check_present
from rolecall.api import Rolecall
from rolecall.errors import RolecallError
from rolecall.files import git
from rolecall.settings import config
from rolecall.settings.models import builtin_options
from rolecall.settings.settings import configured_agent, shares_trees, unknown_agent
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import ThreadRef, files_name, read_members, read_note
from rolecall.threads.workfolder import find_owner, is_newest

_FRESH = {True: 30.0, False: 3.0}
"""Seconds to cache that an agent is present (True) or missing (False: it may be installed soon)."""
LEAST_DISK = 100 * 1024 * 1024
"""Free bytes that a machine needs to take work."""


class MakeableFolder(NamedTuple):
    """A folder that can be made here."""

    path: str
    source: str = ""
    """The repository or folder that it is made from; empty if it needs none."""
    base: str = ""
    """A commit that the repository must have."""


class Copy(NamedTuple):
    """The newest copy of a folder, which one machine has."""

    path: str
    copy: str
    """Its id, which the ref of its files has."""
    host: str


class Need(NamedTuple):
    agent: str = ""
    """The agent's configured name; empty if the step calls nobody or a person."""
    files: tuple[str, ...] = ()
    """Paths that must exist."""
    copies: tuple[Copy, ...] = ()
    places: tuple[MakeableFolder, ...] = ()
    host: str = ""
    """The host with the newest files of the thread's own folder; a machine there takes the step if it can."""
    instead_of: str = ""
    """What a machine with the thread's own folders would need, if no such machine can take the step."""

    def replace_in(self, slot: JsonObject) -> JsonObject:
        """The state of the thread's slot with this need."""
        fields = {"need": self.text, "host": self.host, "instead_of": self.instead_of}
        rest = {key: value for key, value in slot.items() if key not in fields}
        return rest | {key: value for key, value in fields.items() if value}

    @property
    def text(self) -> str:
        copies = [copy._asdict() for copy in self.copies]
        parts = [self.agent, *self.files, *copies, *self.places]
        return json.dumps(parts, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Need:
        agent, *parts = json.loads(text)
        files = (part for part in parts if isinstance(part, str))
        copies = (Copy(**part) for part in parts if isinstance(part, dict))
        places = (MakeableFolder(*part) for part in parts if isinstance(part, list))
        return cls(agent, tuple(files), tuple(copies), tuple(places))


def find_need(store: Store, ref: ThreadRef, agent: str) -> Need:
    """What the next step of a thread needs, given the name of its agent."""
    state = ref.state
    workflow = Rolecall(store).read_workflow(state.workflow)
    role = workflow.roles.get(state.role or "")
    places = [*state.folders.values()]
    if role is not None and role.group is not None and role.group.merge == "queue":
        # Members are merged where the first one was begun, so the others begin there too.
        first = next(read_members(store, ref.id), None)
        places += first.state.folders.values() if first else ()
    own = [folder.path for folder in places if not folder.is_removed]
    files = own or [state.cwd or ""]
    if (python := workflow.python) is not None:
        # Stored as FILE, FILE:VARIABLE or MODULE:VARIABLE.
        file = python if os.path.isabs(python) and python.endswith(".py") else python.rpartition(":")[0]
        files += [file] if os.path.isabs(file) else []
        if not state.agent and (role is None or role.agent is None):
            agent = ""  # its file provides an agent, or is one
    copies, last = [], None
    for path in own or [state.cwd or ""]:
        found = find_owner(store, ref, path)
        shared = store.ref(files_name(found[0], found[1])) if found else None
        if found and shared is not None:
            folder = found[2]
            copies.append(Copy(folder.path, shared.state.get("copy", ""), shared.state.get("host", "")))
            last = shared if last is None or shared.updated > last.updated else last
    host = last.state.get("host", "") if last else ""
    return Need(agent, tuple(filter(None, files)), tuple(copies), host=host)


def find_need_elsewhere(store: Store, ref: ThreadRef, need: Need) -> Need | None:
    """What the next step of a thread needs on a machine that gets the thread's own folders from the store; None if they
    are not there."""
    places = []
    for kind, folder in ref.state.folders.items():
        if folder.is_removed:
            continue
        shared = store.ref(files_name(ref.id, kind))
        if shared is None or shared.target is None:
            return None
        source = folder.source if folder.branch or shared.state.get("git") else ""
        places.append(MakeableFolder(folder.path, source, folder.base))
    # Changes by members or another workflow are sent once all of them are done.
    note, member = read_note(store, ref.id), next(read_members(store, ref.id), None)
    if not places or member or (note and note.note.by.startswith("workflow:")):
        return None
    paths = {place.path for place in places}
    files = tuple(file for file in need.files if file not in paths)
    return Need(need.agent, files, places=tuple(places), host=need.host, instead_of=need.text)


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
                return f"{file} does not exist"
        for copy in need.copies:
            if not is_newest(copy.path, copy.copy):
                return f"the newest files of {copy.path} are on {copy.host}"
        for place in need.places:
            if why := _find_obstacle(place):
                return why
        return self._lacks_agent(need.agent)

    def list_agents(self) -> list[str]:
        """The installed agents that have a name: those of the configuration, and those that need no program name."""
        names = dict.fromkeys([*(config.load().get("agents") or {}), *agents.PROGRAMS, "builtin"])
        return [name for name in names if not self._lacks_agent(name)]

    def _lacks_agent(self, agent: str) -> str:
        until, why = self._known.get(agent, (0.0, ""))
        if time.monotonic() < until:
            return why
        try:
            check_agent(agent)
            why = ""
        except RolecallError as error:
            why = error.message
        self._known[agent] = (time.monotonic() + _FRESH[not why], why)
        return why


def _find_obstacle(place: MakeableFolder) -> str:
    """Say why a folder cannot be made here; empty if it can."""
    if not shares_trees(config.load()):
        return (
            f"{place.path} does not exist, and threads' files are not shared with this machine (trees.share)"
        )
    if place.source and not os.path.exists(place.source):
        return f"{place.source} does not exist"
    if place.base and git.commit(place.source, place.base) is None:
        return f"{place.source} does not have the commit {place.base[:12]}"
    above = place.path
    while not os.path.exists(above):
        above = os.path.dirname(above)
    return "" if os.access(above, os.W_OK) else f"{place.path} cannot be made"


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
