"""The requirements of a step, and whether this machine meets them.

A step runs only on a machine where its agent is installed. The machine that gets the order checks its configuration and
programs, as the engine does before a run. The thread's work folder must also exist on that machine, and so must the
file of a workflow written in Python. A machine that lacks something reports what is missing, and the order goes to
another machine. A folder that belongs to the thread must be its newest copy. If the machine with that copy cannot take
the step, the step goes to a machine that can make the folder from the files in the store.
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
from rolecall.settings.settings import get_agent_spec, shares_trees, unknown_agent
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import ThreadRef, files_name, read_members, read_note
from rolecall.threads.workfolder import find_owner, is_newest

_FRESH = {True: 30.0, False: 3.0}
"""Seconds for which to cache that an agent is present (True) or missing (False: the agent might be installed soon)."""
LEAST_DISK = 100 * 1024 * 1024
"""Free bytes that a machine needs to take work."""


class MakeableFolder(NamedTuple):
    """A folder that a machine can make from the files in the store."""

    path: str
    source: str = ""
    """The repository or folder from which it is made, or empty if none is needed."""
    base: str = ""
    """A commit that the repository must contain."""


class Copy(NamedTuple):
    """The newest copy of a folder, which only one machine has."""

    path: str
    copy: str
    """The id of the copy, as recorded in the ref of the folder's files."""
    host: str


class Need(NamedTuple):
    agent: str = ""
    """The agent's configured name, or empty if the step calls no agent or is for a person."""
    files: tuple[str, ...] = ()
    """Paths that must exist on the machine."""
    copies: tuple[Copy, ...] = ()
    places: tuple[MakeableFolder, ...] = ()
    host: str = ""
    """The host with the newest files of the thread's own folder. A machine on that host takes the step if it can."""
    instead_of: str = ""
    """The text of the need that this one replaces, if no machine with the thread's own folders can take the step."""

    def replace_in(self, slot: JsonObject) -> JsonObject:
        """Return the state of the thread's slot with this need in place of the previous one."""
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
    """Return what the next step of a thread needs, given the name of its agent."""
    state = ref.state
    workflow = Rolecall(store).read_workflow(state.workflow)
    role = workflow.roles.get(state.role or "")
    places = [*state.folders.values()]
    if role is not None and role.group is not None and role.group.merge == "queue":
        # Members are merged on the machine where the first one began, so the others must begin there too.
        first = next(read_members(store, ref.id), None)
        places += first.state.folders.values() if first else ()
    own = [folder.path for folder in places if not folder.is_removed]
    files = own or [state.cwd or ""]
    if (python := workflow.python) is not None:
        # The value has the form FILE, FILE:VARIABLE or MODULE:VARIABLE.
        file = python if os.path.isabs(python) and python.endswith(".py") else python.rpartition(":")[0]
        files += [file] if os.path.isabs(file) else []
        if not state.agent and (role is None or role.agent is None):
            agent = ""  # the workflow's file provides the agent, or is the agent
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
    """Return what the next step of a thread needs on a machine that must make the thread's folders from the store, or
    None if the store does not have their current files."""
    places = []
    for kind, folder in ref.state.folders.items():
        if folder.is_removed:
            continue
        shared = store.ref(files_name(ref.id, kind))
        if shared is None or shared.target is None:
            return None
        source = folder.source if folder.branch or shared.state.get("git") else ""
        places.append(MakeableFolder(folder.path, source, folder.base))
    # The files are stored only once all members, or the other workflow, have ended.
    note, member = read_note(store, ref.id), next(read_members(store, ref.id), None)
    if not places or member or (note and note.note.by.startswith("workflow:")):
        return None
    paths = {place.path for place in places}
    files = tuple(file for file in need.files if file not in paths)
    return Need(need.agent, files, places=tuple(places), host=need.host, instead_of=need.text)


def find_full_disk(folders: Sequence[str]) -> str:
    """Describe the first problem with the disks that hold these folders, or return an empty string if there is none."""
    for folder in folders:
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            return f"no work is taken: {folder}: {error.strerror}"
        if free < LEAST_DISK:
            return f"no work is taken: {folder} has {free // 1_000_000} MB left on its disk"
    return ""


class Here:
    """What is available on this machine. Use an instance from one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}

    def lacks(self, need: Need) -> str:
        """Describe what this machine lacks for a step, or return an empty string if it lacks nothing."""
        for file in need.files:
            if not os.path.exists(file):
                return f"{file} does not exist"
        for copy in need.copies:
            if not is_newest(copy.path, copy.copy):
                return f"the newest files of {copy.path} are on {copy.host}"
        if need.places and not shares_trees(config.load()):
            path = need.places[0].path
            return f"{path} does not exist, and threads' files are not shared with this machine (trees.share)"
        for place in need.places:
            if place.source and not os.path.exists(place.source):
                return f"{place.source} does not exist"
            if place.base and git.commit(place.source, place.base) is None:
                return f"{place.source} does not have the commit {place.base[:12]}"
            above = place.path
            while not os.path.exists(above):
                above = os.path.dirname(above)
            if not os.access(above, os.W_OK):
                return f"{place.path} cannot be made"
        return self._lacks_agent(need.agent)

    def list_agents(self) -> list[str]:
        """Return the installed agents: configured ones, adapters with a program of their own, and `builtin`."""
        names = dict.fromkeys([*(config.load().get("agents") or {}), *agents.PROGRAMS, "builtin"])
        return [name for name in names if not self._lacks_agent(name)]

    def _lacks_agent(self, agent: str) -> str:
        until, why = self._known.get(agent, (0.0, ""))
        if time.monotonic() >= until:
            why = ""
            try:
                check_agent(agent)
            except RolecallError as error:
                why = error.message
            self._known[agent] = (time.monotonic() + _FRESH[not why], why)
        return why


def check_agent(agent: str) -> None:
    """Raise an error if an agent is not configured on this machine, or if its program or package is not installed."""
    if not agent:
        return
    settings, environment = config.load(), config.environment()
    spec, options = get_agent_spec(settings, agent)
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
