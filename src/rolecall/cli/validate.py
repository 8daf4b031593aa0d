"""`rolecall validate`: report all problems of a project at once."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.hints import view_problem, word, word_problem
from rolecall.cli.output import STORE, plural
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.service import project_check, project_file
from rolecall.settings import config


@verb(
    "validate",
    "check the project's file, its workflows, their agents, triggers and senses; report everything at once",
    "rolecall validate\nrolecall validate ~/projects/shop --offline",
    argument("folder", "DIR", "the project (default: this folder)", nargs="?", default="."),
    flag("--offline", "do not contact the endpoint of the model that reads answers"),
    STORE,
)
def validate(options: Namespace) -> CommandResult:
    folder = os.path.abspath(options.folder)
    if not os.path.isdir(folder):
        raise NotFound(f"the folder {folder} does not exist")
    stored: list[str] = []
    try:
        with Rolecall(options.store, create=False) as rolecall:
            stored = rolecall.stored_workflows()
    except RolecallError:  # a configured store that is missing or cannot be opened has no workflows to offer
        if options.store is not None:
            raise
    surroundings = project_check.Surroundings(
        env=config.environment(),
        settings=config.load(),
        config_path=config.config_path(),
        stored=stored,
        is_offline=options.offline,
    )
    found = asyncio.run(project_check.check(folder, surroundings))
    if not found.reports and found.reading.marks is None and not found.problems:
        raise UsageError(
            f"{folder} has neither a {project_file.FILE} nor a workflow", hint="`rolecall init` makes them."
        )
    project = found.reading.project
    problems = [word_problem(problem) for problem in found.problems]
    shown = {
        "project": project.name,
        "folder": project.folder,
        "valid": found.is_valid,
        "workflows": [
            {"file": one.path, "name": one.workflow.name if one.workflow else None} for one in found.reports
        ],
        "triggers": [{"trigger": one.id, "does": one.describe()} for one in project.triggers],
        "endpoints": [{**check._asdict(), "fix": word(check.fix)} for check in found.endpoints],
        "problems": [view_problem(problem) for problem in problems],
    }
    lines = [str(problem) for problem in problems]
    parts = [plural(len(found.reports), "workflow"), plural(len(project.triggers), "trigger")]
    for kind in ("error", "warning"):
        if count := sum(one.severity == kind for one in found.problems):
            parts.append(plural(count, kind))
    verdict = "valid" if found.is_valid else "not valid"
    lines.append(f"{project.folder}: {verdict}: {', '.join(parts)}")
    mask = config.mask()
    return CommandResult(mask.value(shown), mask.text("\n".join(lines)), code=0 if found.is_valid else 2)
