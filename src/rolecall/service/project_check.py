"""Find every problem with a project before anything runs. The check covers its file, its workflows, the agents they
need, its triggers and senses, and the endpoint that reads answers.

Python files are loaded in child processes. One request goes to the endpoint, unless the check is offline. Nothing is
created.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rolecall.agents import ADAPTERS
from rolecall.agents.presence import find_program
from rolecall.checks import workflow_file
from rolecall.checks.machine import Check, check_extract
from rolecall.checks.workflow_file import FileReport
from rolecall.errors import UsageError
from rolecall.service import project_file
from rolecall.service.project_file import ProjectReading
from rolecall.service.triggers import sources
from rolecall.service.triggers.trigger import Hook, Sense, Trigger, WatchedCommand, WatchedFiles
from rolecall.settings.form import did_you_mean
from rolecall.settings.models import extract_endpoint
from rolecall.settings.settings import Settings
from rolecall.settings.yaml12 import Position, Problem
from rolecall.workflow import gallery
from rolecall.workflow.places import ENDINGS, FOLDERS, name_of
from rolecall.workflow.registry import files_by_name

SHORTEST_SECRET = 16


@dataclass(frozen=True)
class Surroundings:
    """The environment against which a project is checked."""

    env: Mapping[str, str]
    settings: Settings
    """The configuration of the home."""
    config_path: str
    stored: Sequence[str] = ()
    is_offline: bool = False
    patience: float = workflow_file.PATIENCE


@dataclass(frozen=True)
class Checkup:
    reading: ProjectReading
    reports: tuple[FileReport, ...]
    endpoints: tuple[Check, ...]
    problems: tuple[Problem, ...]

    @property
    def is_valid(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)


async def check(folder: str, around: Surroundings) -> Checkup:
    """Check the project that contains a folder."""
    reading = project_file.load(folder)
    place = reading.project.folder
    paths = list(files_by_name(place).values())
    reports = await workflow_file.check(paths, folder=place, env=around.env, patience=around.patience)
    senses = await _sense_problems(reading, around)
    endpoints = await _check_endpoints(reading, reports, around)
    found = [
        *reading.problems,
        *filter(None, [project_file.check_nerve_file(place)]),
        *_name_problems(reading, paths, around),
        *(problem for one in reading.project.triggers for problem in _trigger_problems(reading, one, around)),
        *senses,
        *(problem for report in reports for problem in (*report.problems, *report.agents)),
    ]
    for parent in (os.path.join(place, name) for name in FOLDERS):
        for path in sorted(Path(parent).glob("*/roles")):
            if path.is_dir() and not any((path.parent / f"index{end}").is_file() for end in ENDINGS):
                folder = str(path.parent)
                found.append(
                    Problem(
                        "error", "this folder has roles and no workflow", folder, 0, 0, "Add an index.yaml."
                    )
                )
    is_own = reading.project.extract is not None
    spot = reading.place(("extract",), key=True) if is_own else Position(around.config_path, 0, 0)
    for one in endpoints:
        if one.state != "ok":
            severity: Literal["error", "warning"] = "error" if one.state == "problem" else "warning"
            found.append(Problem(severity, f"extract: {one.text}", *spot, one.fix))
    return Checkup(reading, tuple(reports), tuple(endpoints), tuple(dict.fromkeys(found)))


def _name_problems(reading: ProjectReading, paths: Sequence[str], around: Surroundings) -> Iterator[Problem]:
    policy = reading.project.policy
    workflows = [name_of(path) for path in paths] + [*around.stored, *gallery.names()]
    for name in policy.workflows:
        if name not in workflows:
            hint = did_you_mean(name, workflows, what="Workflows")
            at = reading.place(("workflows", name), key=True)
            yield Problem("error", f"the workflow {name!r} does not exist", *at, hint)
    agents = [*(around.settings.get("agents") or {}), *ADAPTERS]
    for name in policy.rates:
        if name not in agents:
            hint = did_you_mean(name, agents, what="Agents")
            at = reading.place(("service", "rates", name), key=True)
            yield Problem(
                "error", f"the agent {name!r} does not exist, so it has no calls to count", *at, hint
            )


def _trigger_problems(reading: ProjectReading, trigger: Trigger, around: Surroundings) -> Iterator[Problem]:
    package = ""
    match trigger.source:
        case WatchedCommand(argv=(program, *_)):
            folder = Path(reading.project.folder)
            path, can_run = find_program(program, env=around.env, folder=folder)
            if not can_run:
                message = f"the program {program!r} {'is not executable' if path else 'was not found'}"
                hint = f"chmod +x {path}" if path else "Install it, or correct the name."
                yield Problem("error", message, *_at(reading, trigger, "command"), hint)
        case Hook(secret_env=variable):
            key, package = "http", "h11"
            secret = around.env.get(variable, "")
            if not secret:
                message = f"the variable {variable!r}, which holds the hook's secret, is not set"
                hint = f"Write {variable}=… into `.env` in the home; without it every request is refused."
                yield Problem("error", message, *_at(reading, trigger, key), hint)
            elif len(secret) < SHORTEST_SECRET:
                hint = f"Use at least {SHORTEST_SECRET} random characters: openssl rand -hex 32"
                yield Problem(
                    "warning", f"the secret in {variable!r} is short", *_at(reading, trigger, key), hint
                )
        case WatchedFiles():
            key, package = "files", "watchfiles"
    if package and find_spec(package) is None:
        message = f"this needs the package {package!r}, which is not installed"
        yield Problem("error", message, *_at(reading, trigger, key), "pip install 'rolecall[service]'")


async def _sense_problems(reading: ProjectReading, around: Surroundings) -> list[Problem]:
    folder = reading.project.folder
    used: dict[str, Trigger] = {}
    for trigger in reading.project.triggers:
        if isinstance(trigger.source, Sense):
            used.setdefault(trigger.source.name, trigger)
    paths = {name: sources.sense_file(folder, name) for name in used}
    gate = asyncio.Semaphore(workflow_file.AT_ONCE)

    async def load(path: str) -> sources.SenseAnswer:
        async with gate:
            env, patience = around.env, around.patience
            return await sources.call_sense(path, folder, env, timeout=patience, is_called=False)

    found: list[Problem] = []
    for name, answer in zip(used, await asyncio.gather(*(load(paths[name]) for name in used)), strict=True):
        if answer.error and os.path.isfile(paths[name]):
            found.append(Problem("error", answer.error, paths[name], answer.line, 1))
        elif answer.error:
            found.append(Problem("error", answer.error, *_at(reading, used[name], "sense")))
    return found


def _at(reading: ProjectReading, trigger: Trigger, key: str) -> Position:
    return reading.place(("workflows", trigger.workflow, "triggers", trigger.name, key), key=True)


async def _check_endpoints(
    reading: ProjectReading, reports: Sequence[FileReport], around: Surroundings
) -> list[Check]:
    """Check the endpoint that reads answers. If the check is offline, check only its configuration."""
    own = reading.project.extract
    overrides = [level for report in reports for level in report.extracts]
    if not around.is_offline:
        return await check_extract(overrides, around.settings, around.env, project=own)
    settings = around.settings if own is None else {**around.settings, "extract": own}
    found: dict[str, Check] = {}
    for level in [None, *overrides]:
        try:
            extract_endpoint(settings, around.env, level)
        except UsageError as error:
            found[error.message] = Check("extract", "problem", error.message, error.hint)
    return list(found.values())
