"""The project's file, `rolecall.yaml`: YAML text -> Project, with every problem collected and placed.

    name:       the project, by default its folder's name
    extract:    {provider | baseUrl, model, apiKeyEnv, timeout}     the model that reads answers
    service:    {limit, rates, spend_per_day, worker}               see service/policy.py
    workflows:  {NAME: {concurrency, overflow, max_queue, priority, triggers}}
    hooks:      {host, port}                                        where HTTP triggers are called
    knowledge:  {include, exclude, embedding, chunk, weights}       see knowledge/settings.py

There is no registry of agents here: roles name theirs. What a workflow is, is not known here either; whether those
that are named exist is `projectcheck.py`'s to say. Only `find` and `load` touch files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.service import policy
from rolecall.service.policy import ServicePolicy
from rolecall.service.triggers import trigger
from rolecall.service.triggers.trigger import Trigger
from rolecall.settings import settings, yaml12
from rolecall.settings.form import did_you_mean
from rolecall.settings.repository import nearest
from rolecall.settings.yaml12 import Marks, Place, Problem

if TYPE_CHECKING:
    from rolecall.knowledge.settings import Settings as Knowledge

FILE = "rolecall.yaml"
NERVE_FILE = "nerve.yaml"
KEYS = ("name", "extract", "service", "workflows", "hooks", "knowledge")
_EXTRACT_KEYS = ("provider", "baseUrl", "model", "apiKeyEnv", "timeout")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True)
class Hooks:
    """Where HTTP triggers are called. Whoever opens it to others than this machine says so."""

    host: str = "127.0.0.1"
    port: int = 8710


@dataclass(frozen=True)
class Project:
    folder: str
    name: str
    """Under which its triggers keep their state; two checkouts of one project are one project."""
    extract: Mapping[str, Any] | None = None
    policy: ServicePolicy = field(default_factory=ServicePolicy)
    triggers: tuple[Trigger, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    knowledge: Knowledge | None = None
    """None: `knowledge.yaml` says it, or nobody does."""


class Reading(NamedTuple):
    """What a file says, and everything that is wrong with it; what is wrong counts as not said."""

    project: Project
    problems: tuple[Problem, ...]
    marks: Marks | None = None
    """Where everything stands; None when there is no file, or none that can be read."""

    def place(self, path: tuple[str, ...], *, key: bool = False) -> Place:
        """Where something is said, or would be."""
        nowhere = Place(os.path.join(self.project.folder, FILE), 0, 0)
        return self.marks.at(path, key=key) if self.marks else nowhere

    def checked(self) -> Project:
        """The project, or `UsageError` with every problem on a line of its own."""
        if self.problems:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise UsageError(f"{FILE} cannot be used:{lines}")
        return self.project


# -- files --


def find(folder: str) -> str | None:
    """The file of the project around a folder; None: there is none."""
    return nearest(FILE, folder)


def load(folder: str) -> Reading:
    """The project around a folder. Without a file it is the folder itself, with nothing configured."""
    path = find(folder)
    if path is None:
        return Reading(_empty(os.path.abspath(folder)), ())
    from rolecall.workflow.yaml import read_text

    try:
        return parse(read_text(path), path=path)
    except FileNotFoundError:  # a link that leads nowhere
        problem = Problem("error", f"{path} leads nowhere", path, 1, 1)
    except UsageError as error:
        problem = Problem("error", error.message, path, 1, 1, error.hint)
    return Reading(_empty(os.path.dirname(path)), (problem,))


def unread(folder: str) -> Problem | None:
    """The warning about a nerve.yaml, the predecessor's project file, in or around a folder; None if there is none."""
    path = nearest(NERVE_FILE, folder)
    if path is None:
        return None
    hint = f"Move what it says to {FILE}, then remove it."
    if find(folder) is None:
        hint = f"Rename it to {FILE}, then validate the project to see what to change."
    hint += (
        " `extract`, `knowledge` and the limits of `workflows` stay as they are; a sense becomes a trigger "
        "of the workflow it starts."
    )
    return Problem("warning", f"{NERVE_FILE} is not read", path, 1, 1, hint)


def _empty(folder: str) -> Project:
    return Project(folder, _name_of(folder))


def _name_of(folder: str) -> str:
    """A folder's name, with what a name cannot have replaced."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(folder)).strip("-.")
    return name[:60] if _NAME.fullmatch(name[:60]) else "project"


# -- the text --


def parse(text: str, *, path: str) -> Reading:
    """The project a text describes; `path` is its file."""
    folder = os.path.dirname(os.path.abspath(path))
    node, problems = yaml12.read(text, source=path)
    if node is None:
        return Reading(_empty(folder), tuple(problems))
    reader = _Reader(node.value, Marks(node), problems)
    project = reader.project(folder)
    placed = sorted(set(problems), key=lambda one: (one.line, one.column, one.message))
    return Reading(project, tuple(placed), Marks(node))


class _Reader:
    def __init__(self, value: Any, marks: Marks, problems: list[Problem]) -> None:
        self._marks = marks
        self._problems = problems
        self._top = self._mapping((), {} if value is None else value, KEYS)

    def project(self, folder: str) -> Project:
        return Project(
            folder=folder,
            name=self._name() or _name_of(folder),
            extract=self._extract(),
            policy=self._policy(),
            triggers=self._triggers(),
            hooks=self._hooks(),
            knowledge=self._knowledge(),
        )

    def _name(self) -> str:
        name = self._top.get("name")
        if name is None:
            return ""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self._report(
                ("name",), "is no name of a project", "Letters, digits, '.', '_' and '-', at most 60."
            )
            return ""
        return name

    def _extract(self) -> Mapping[str, Any] | None:
        section = self._mapping(("extract",), self._top.get("extract"), ())
        if "apiKey" in section:
            hint = "Name a variable of the environment with `apiKeyEnv`; this file is shared."
            self._report(
                ("extract", "apiKey"), "a key does not belong into the project's file", hint, key=True
            )
        known = {key: value for key, value in section.items() if key in _EXTRACT_KEYS}
        for key in section:
            if key not in known and key != "apiKey":
                self._unknown(("extract", key), _EXTRACT_KEYS)
        for problem in settings.shape_problems({"extract": known}):
            self._report(_path_in(problem), problem)
        return known or None

    def _policy(self) -> ServicePolicy:
        found, problems = policy.read(self._top.get("service"), self._top.get("workflows"))
        self._take(problems)
        return found

    def _triggers(self) -> tuple[Trigger, ...]:
        workflows = self._top.get("workflows")
        found: list[Trigger] = []
        for name, entry in workflows.items() if isinstance(workflows, Mapping) else ():
            if isinstance(entry, Mapping):
                triggers, problems = trigger.read(str(name), entry.get("triggers"))
                found += triggers
                self._take(problems)
        return tuple(found)

    def _hooks(self) -> Hooks:
        section = self._mapping(("hooks",), self._top.get("hooks"), ("host", "port"))
        host, port = section.get("host", Hooks.host), section.get("port", Hooks.port)
        if not isinstance(host, str) or not host.strip():
            self._report(("hooks", "host"), "must be an address such as 127.0.0.1")
            host = Hooks.host
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
            self._report(("hooks", "port"), f"{port!r} is no port")
            port = Hooks.port
        return Hooks(host, port)

    def _knowledge(self) -> Knowledge | None:
        from rolecall.knowledge.settings import read

        if self._top.get("knowledge") is None:
            return None
        found, problems = read(self._top["knowledge"], self._marks, within=("knowledge",))
        self._problems += problems
        return found

    # -- problems --

    def _mapping(self, path: tuple[str, ...], value: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._report(path, f"{'.'.join(path) or 'the file'} must be a mapping")
            return {}
        for key in value if known else ():
            if key not in known:
                self._unknown((*path, key), known)
        return value

    def _unknown(self, path: tuple[str, ...], known: tuple[str, ...]) -> None:
        hint = did_you_mean(path[-1], known, what="Keys")
        self._report(path, f"{'.'.join(path)!r} is not a key of {FILE}", hint, key=True)

    def _take(self, problems: list[policy.Problem]) -> None:
        for problem in problems:
            self._report(problem.path, f"{'.'.join(problem.path)}: {problem.message}", problem.hint)

    def _report(self, path: tuple[str, ...], message: str, hint: str = "", *, key: bool = False) -> None:
        # Where a value is missing, its owner's key says more about the place than the value around it.
        place = self._marks.at(path, key=key)
        self._problems.append(Problem("error", message, *place, hint))


def _path_in(problem: str) -> tuple[str, ...]:
    """The key that a problem of the configuration begins with."""
    return tuple(problem.partition(" ")[0].split("."))
