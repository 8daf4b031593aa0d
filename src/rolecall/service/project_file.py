"""The project's file, `rolecall.yaml`: YAML text -> Project, with every problem collected and placed.

    name:       the project's name; its folder's name if left out
    extract:    {provider | baseUrl, model, apiKeyEnv, timeout}     the model that reads answers
    service:    {limit, rates, spend_per_day, worker}               see service/policy.py
    workflows:  {NAME: {concurrency, overflow, max_queue, priority, triggers}}
    hooks:      {host, port}                                        the address of the server for HTTP triggers
    knowledge:  {include, exclude, embedding, chunk, weights}       see knowledge/settings.py

The file is declared as a form, which also provides its JSON Schema. `project_check.py` checks that the workflows named
in the file exist. Only `find` and `load` touch files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.knowledge import settings as knowledge
from rolecall.service import policy
from rolecall.service.policy import ServicePolicy, WorkflowPolicy
from rolecall.service.triggers.trigger import Trigger
from rolecall.service.triggers.trigger_form import TRIGGERS
from rolecall.settings import form, settings, yaml12
from rolecall.settings.form import At, Field, MapOf, Number, Record, Section, Text, Unreadable
from rolecall.settings.repository import nearest
from rolecall.settings.yaml12 import Marks, Position, Problem
from rolecall.store.canonical import JsonObject, Schema
from rolecall.workflow.yaml import read_text

FILE = "rolecall.yaml"
NERVE_FILE = "nerve.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True)
class Hooks:
    """The address at which HTTP triggers are called; by default only this machine can reach it."""

    host: str = "127.0.0.1"
    port: int = 8710


@dataclass(frozen=True)
class ProjectFile:
    folder: str
    name: str
    """The name under which the project's triggers keep their state. Two checkouts of one project share it."""
    extract: JsonObject | None = None
    policy: ServicePolicy = field(default_factory=ServicePolicy)
    triggers: tuple[Trigger, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    knowledge: knowledge.KnowledgeSettings | None = None
    """None if the file has no `knowledge` section; the settings might then be in `knowledge.yaml`."""


class ProjectReading(NamedTuple):
    """The content of a file without the parts that have problems, and every problem."""

    project: ProjectFile
    problems: tuple[Problem, ...]
    marks: Marks | None = None
    """The positions of all parts, or None if no file could be read."""

    def place(self, path: tuple[str, ...], *, key: bool = False) -> Position:
        """Return the position of a part of the file, or of the nearest part that contains it."""
        nowhere = Position(os.path.join(self.project.folder, FILE), 0, 0)
        return self.marks.at(path, key=key) if self.marks else nowhere

    def require(self) -> ProjectFile:
        """Return the project, or raise `UsageError` with every problem on its own line."""
        if self.problems:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise UsageError(f"{FILE} cannot be used:{lines}")
        return self.project


# -- files --


def find(folder: str) -> str | None:
    """Return the path of the project file in a folder or the nearest folder above it, or None if there is none."""
    return nearest(FILE, folder)


def load(folder: str) -> ProjectReading:
    """Return the project that contains a folder. Without a file, the project is the folder, with nothing configured."""
    path = find(folder)
    if path is None:
        return ProjectReading(_empty(os.path.abspath(folder)), ())
    try:
        return parse(read_text(path), path=path)
    except FileNotFoundError:  # a broken link
        problem = Problem("error", f"{path} leads nowhere", path, 1, 1)
    except UsageError as error:
        problem = Problem("error", error.message, path, 1, 1, error.hint)
    return ProjectReading(_empty(os.path.dirname(path)), (problem,))


def check_nerve_file(folder: str) -> Problem | None:
    """Return a warning if a folder, or one above it, has a `nerve.yaml`, the project file of Rolecall's predecessor."""
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


def _empty(folder: str) -> ProjectFile:
    return ProjectFile(folder, _name_of(folder))


def _name_of(folder: str) -> str:
    """Return a folder's name, without the characters that are not allowed in a project's name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(folder)).strip("-.")
    return name[:60] if _NAME.fullmatch(name[:60]) else "project"


# -- the text --


class _Workflow(NamedTuple):
    """The file's entry for one workflow."""

    policy: WorkflowPolicy
    triggers: Mapping[str, Trigger]


class _WorkflowForm(Record[_Workflow]):
    """The form of a workflow's entry, which can be empty."""

    def read(self, value: Any, at: At) -> _Workflow | Unreadable:
        return super().read({} if value is None else value, at)

    def schema(self) -> Schema:
        return {**super().schema(), "type": ["object", "null"]}


_WORKFLOW = _WorkflowForm(
    lambda triggers=None, **rule: _Workflow(WorkflowPolicy(**rule), triggers or {}),
    "a workflow",
    {**policy.WORKFLOW_FIELDS, "triggers": Field(TRIGGERS, "What starts threads automatically, by name.")},
    check=lambda found, at: policy.check_workflow(found.policy, at),
)
_HOOKS = Record(
    Hooks,
    "hooks",
    {
        "host": Field(Text("an address such as 127.0.0.1", least=1), "The address to listen on (127.0.0.1)."),
        "port": Field(Number("a port", whole=True, least=0, most=65535), "The port (8710)."),
    },
)
_FORM = Section(
    FILE,
    {
        "name": Field(
            Text("a name", pattern=_NAME.pattern, hint="Letters, digits, '.', '_' and '-', at most 60."),
            "The name of the project; by default the name of its folder.",
        ),
        "extract": Field(settings.EXTRACT_OF_PROJECT, "The model that reads answers without output."),
        "service": Field(policy.SERVICE, "For `rolecall serve`."),
        "workflows": Field(MapOf(_WORKFLOW), "How threads of a workflow run, and what starts them."),
        "hooks": Field(_HOOKS, "The address of HTTP triggers."),
        "knowledge": Field(knowledge.SETTINGS, "What is indexed for `rolecall knowledge`."),
    },
)
KEYS = _FORM.keys


def json_schema() -> Schema:
    """Return the JSON Schema of the file, for editors."""
    return form.json_schema(_FORM, "Rolecall project")


def parse(text: str, *, path: str) -> ProjectReading:
    """Parse the text of the project file at `path`."""
    folder = os.path.dirname(os.path.abspath(path))
    node, problems = yaml12.read(text, source=path)
    if node is None:
        return ProjectReading(_empty(folder), tuple(problems))
    reading = form.Reading(node, problems)
    read = _FORM.read({} if node.value is None else node.value, At(reading))
    found: JsonObject = {} if isinstance(read, Unreadable) else read
    workflows: Mapping[str, _Workflow] = found.get("workflows", {})
    marks = Marks(node)
    project = ProjectFile(
        folder=folder,
        name=found.get("name") or _name_of(folder),
        extract=found.get("extract") or None,
        policy=ServicePolicy(
            workflows={name: one.policy for name, one in workflows.items()}, **found.get("service", {})
        ),
        triggers=tuple(trigger for one in workflows.values() for trigger in one.triggers.values()),
        hooks=found.get("hooks", Hooks()),
        knowledge=found.get("knowledge"),
    )
    return ProjectReading(project, form.in_order(reading.problems, path), marks)
