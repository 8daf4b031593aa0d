"""`rolecall validate`: everything that is wrong with a project, at once."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb
from rolecall.cli.output import add_format, add_store, show
from rolecall.errors import NotFound, RolecallError, UsageError

if TYPE_CHECKING:
    from rolecall.service.project_check import Checkup
    from rolecall.settings.yaml12 import Problem


def _validate(options: Namespace) -> int:
    from rolecall.service import project_check, project_file
    from rolecall.threads import workspace

    folder = os.path.abspath(options.folder)
    if not os.path.isdir(folder):
        raise NotFound(f"there is no folder {folder}")
    around = _surroundings(options)
    found = asyncio.run(project_check.check(folder, around))
    if not found.reports and found.reading.marks is None and not found.problems:
        raise UsageError(
            f"there is no {project_file.FILE} and no workflow in {folder}",
            hint="`rolecall init` makes them.",
        )
    mask = workspace.mask()
    show(options, mask.value(_shown(found)), lambda: mask.text("\n".join(_lines(found))))
    return 0 if found.is_valid else 2


def _surroundings(options: Namespace) -> Any:
    from rolecall.service.project_check import Surroundings
    from rolecall.settings import config

    return Surroundings(
        env=config.environment(),
        settings=config.load(),
        config_path=config.config_path(),
        stored=_stored_names(options.store),
        is_offline=options.offline,
    )


def _stored_names(url: str | None) -> list[str]:
    """The workflows that were put; a store that is not there, or does not open, has none."""
    from rolecall.threads.workspace import open_store

    try:
        with open_store(url, create=False) as store:
            return [ref.name.partition("/")[2] for ref in store.refs("workflow/")]
    except RolecallError:
        if url is not None:
            raise
        return []


def _shown(found: Checkup) -> dict[str, Any]:
    project = found.reading.project
    return {
        "project": project.name,
        "folder": project.folder,
        "valid": found.is_valid,
        "workflows": [
            {"file": report.path, "name": report.workflow.name if report.workflow else None}
            for report in found.reports
        ],
        "triggers": [{"trigger": one.id, "does": one.describe()} for one in project.triggers],
        "endpoints": [check._asdict() for check in found.endpoints],
        "problems": [
            problem._asdict() | {"line": problem.line or None, "column": problem.column or None}
            for problem in found.problems
        ],
    }


def _lines(found: Checkup) -> Iterator[str]:
    for problem in found.problems:
        yield problem_line(problem)
    counts = {kind: sum(one.severity == kind for one in found.problems) for kind in ("error", "warning")}
    told = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count]
    workflows, triggers = len(found.reports), len(found.reading.project.triggers)
    what = [
        f"{workflows} workflow{'' if workflows == 1 else 's'}",
        f"{triggers} trigger{'' if triggers == 1 else 's'}",
    ]
    yield f"{found.reading.project.folder}: {'valid' if found.is_valid else 'not valid'}: {', '.join([*what, *told])}"


def problem_line(problem: Problem) -> str:
    """A problem with its place, as far as it has one."""
    return str(problem) if problem.line else str(problem).replace(":0:0:", ":", 1)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", default=".", help="the project (default: this folder)"
    )
    parser.add_argument("--offline", action="store_true", help="do not ask the endpoint that reads answers")
    add_format(parser)
    add_store(parser)


VERBS = {
    "": Verb(
        _validate,
        "check the project's file, its workflows, their agents, triggers and senses; report everything at once",
        "rolecall validate\nrolecall validate ~/projects/shop --offline",
        _arguments,
    )
}
