"""Find every problem with a project before anything runs: its file, its workflows, the agents they need, its triggers
and senses, and the endpoint that reads answers.

Files in Python are loaded in child processes. One request goes to the endpoint, unless the check is offline. Nothing is
created.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecall.checks import workflow_file
from rolecall.checks.machine import Check
from rolecall.checks.workflow_file import Report
from rolecall.errors import UsageError
from rolecall.service import project_file
from rolecall.service.project_file import Reading
from rolecall.service.triggers import sources
from rolecall.service.triggers.trigger import Command, Files, Hook, Sense, Trigger
from rolecall.settings.form import did_you_mean
from rolecall.settings.yaml12 import Place, Problem
from rolecall.workflow import registry

SHORTEST_SECRET = 16


@dataclass(frozen=True)
class Surroundings:
    """What a project is checked against."""

    env: Mapping[str, str]
    settings: Mapping[str, Any]
    """The configuration of the home."""
    config_path: str
    stored: Sequence[str] = ()
    """Names of stored workflows."""
    is_offline: bool = False
    patience: float = workflow_file.PATIENCE


@dataclass(frozen=True)
class Checkup:
    reading: Reading
    reports: tuple[Report, ...]
    endpoints: tuple[Check, ...]
    problems: tuple[Problem, ...]

    @property
    def is_valid(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)


async def check(folder: str, around: Surroundings) -> Checkup:
    """Check the project around a folder."""
    reading = project_file.load(folder)
    place = reading.project.folder
    paths = [str(entry.path) for entry in registry.listed(None, folder=place)]
    reports = await workflow_file.check(paths, folder=place, env=around.env, patience=around.patience)
    senses = await _sense_problems(reading, around)
    endpoints = await _endpoints(reading, reports, around)
    found = [
        *reading.problems,
        *filter(None, [project_file.unread(place)]),
        *_name_problems(reading, paths, around),
        *_rate_problems(reading, around),
        *_trigger_problems(reading, around),
        *senses,
        *(problem for report in reports for problem in (*report.problems, *report.agents)),
        *_lost_folders(place),
        *_endpoint_problems(reading, endpoints, around),
    ]
    return Checkup(reading, tuple(reports), tuple(endpoints), tuple(dict.fromkeys(found)))


# -- names --


def _name_problems(reading: Reading, paths: Sequence[str], around: Surroundings) -> Iterator[Problem]:
    known = [registry.name_of(path) for path in paths] + list(around.stored)
    for name in reading.project.policy.workflows:
        if name not in known:
            message = f"there is no workflow {name!r}"
            hint = did_you_mean(name, known, what="Workflows")
            yield Problem("error", message, *reading.place(("workflows", name), key=True), hint)


def _rate_problems(reading: Reading, around: Surroundings) -> Iterator[Problem]:
    from rolecall.agents import ADAPTERS

    known = [*(around.settings.get("agents") or {}), *ADAPTERS]
    for name in reading.project.policy.rates:
        if name not in known:
            hint = did_you_mean(name, known, what="Agents")
            place = reading.place(("service", "rates", name), key=True)
            yield Problem("error", f"there is no agent {name!r} whose calls could be counted", *place, hint)


def _lost_folders(folder: str) -> Iterator[Problem]:
    """Report folders that have roles but no workflow file."""
    for name in registry.FOLDERS:
        place = os.path.join(folder, name)
        for below in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            path = os.path.join(place, below)
            has_roles = os.path.isdir(os.path.join(path, "roles"))
            if has_roles and not any(
                os.path.isfile(os.path.join(path, f"index{end}")) for end in registry.ENDINGS
            ):
                yield Problem(
                    "error", "this folder has roles and no workflow", path, 0, 0, "Add an index.yaml."
                )


# -- triggers --


def _trigger_problems(reading: Reading, around: Surroundings) -> Iterator[Problem]:
    for trigger in reading.project.triggers:
        match trigger.source:
            case Command(argv=argv):
                yield from _command_problems(reading, trigger, argv[0], around)
            case Hook(secret_env=variable):
                yield from _hook_problems(reading, trigger, variable, around)
            case Files():
                yield from _package_problems(reading, trigger, "files", "watchfiles")


def _command_problems(
    reading: Reading, trigger: Trigger, program: str, around: Surroundings
) -> Iterator[Problem]:
    from rolecall.agents.presence import find_program

    folder = Path(reading.project.folder)
    path, can_run = find_program(program, env=around.env, folder=folder)
    if not can_run:
        message = f"the program {program!r} {'is not executable' if path else 'was not found'}"
        hint = f"chmod +x {path}" if path else "Install it, or correct the name."
        yield Problem("error", message, *_at(reading, trigger, "command"), hint)


def _hook_problems(
    reading: Reading, trigger: Trigger, variable: str, around: Surroundings
) -> Iterator[Problem]:
    place = _at(reading, trigger, "http")
    secret = around.env.get(variable, "")
    if not secret:
        hint = f"Write {variable}=… into `.env` in the home; without it nobody is let in."
        yield Problem(
            "error", f"the variable {variable!r}, which holds the hook's secret, is not set", *place, hint
        )
    elif len(secret) < SHORTEST_SECRET:
        hint = f"Take {SHORTEST_SECRET} characters or more, by chance: openssl rand -hex 32"
        yield Problem("warning", f"the secret in {variable!r} is short", *place, hint)
    yield from _package_problems(reading, trigger, "http", "h11")


def _package_problems(reading: Reading, trigger: Trigger, key: str, package: str) -> Iterator[Problem]:
    from importlib.util import find_spec

    if find_spec(package) is None:
        message = f"this needs the package {package!r}, which is not installed"
        yield Problem("error", message, *_at(reading, trigger, key), "pip install 'rolecall[service]'")


async def _sense_problems(reading: Reading, around: Surroundings) -> list[Problem]:
    """Load every sense in use, without calling it, and return the problems."""
    folder = reading.project.folder
    used: dict[str, Trigger] = {}
    for trigger in reading.project.triggers:
        if isinstance(trigger.source, Sense):
            used.setdefault(trigger.source.name, trigger)
    paths = {name: sources.sense_file(folder, name) for name in used}

    gate = asyncio.Semaphore(workflow_file.AT_ONCE)

    async def one(path: str) -> dict[str, Any]:
        async with gate:
            return await sources.call_sense(
                path, folder, around.env, timeout=around.patience, is_called=False
            )

    found: list[Problem] = []
    for name, answer in zip(used, await asyncio.gather(*(one(paths[name]) for name in used)), strict=True):
        if "error" not in answer:
            continue
        if not os.path.isfile(paths[name]):
            place = _at(reading, used[name], "sense")
            found.append(Problem("error", f"there is no file {paths[name]}", *place))
        else:
            line = answer["line"] if isinstance(answer.get("line"), int) else 1
            found.append(Problem("error", str(answer["error"]), paths[name], line, 1))
    return found


def _at(reading: Reading, trigger: Trigger, key: str) -> Place:
    return reading.place(("workflows", trigger.workflow, "triggers", trigger.name, key), key=True)


# -- the endpoint that reads answers --


async def _endpoints(reading: Reading, reports: Sequence[Report], around: Surroundings) -> list[Check]:
    from rolecall.checks.machine import check_extract
    from rolecall.settings.settings import extract_endpoint

    said = reading.project.extract
    settings = around.settings if said is None else {**around.settings, "extract": said}
    overrides = [level for report in reports for level in report.extracts]
    if not around.is_offline:
        return await check_extract(overrides, settings, around.env)
    found: dict[str, Check] = {}
    for level in [None, *overrides]:
        try:
            extract_endpoint(settings, around.env, level)
        except UsageError as error:
            found[error.message] = Check("extract", "problem", error.message, error.hint)
    return list(found.values())


def _endpoint_problems(
    reading: Reading, endpoints: Sequence[Check], around: Surroundings
) -> Iterator[Problem]:
    is_said_here = reading.project.extract is not None
    place = reading.place(("extract",), key=True) if is_said_here else Place(around.config_path, 0, 0)
    for one in endpoints:
        if one.state != "ok":
            is_error = one.state == "problem"
            yield Problem("error" if is_error else "warning", f"extract: {one.text}", *place, one.fix)
