"""`rolecall trigger`: list the triggers of a project, fire a trigger manually, and pause and resume a trigger."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Callable

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.output import STORE, parse_json, read_input, table
from rolecall.errors import NotFound, UsageError
from rolecall.service import control, project_file
from rolecall.service.project_file import ProjectFile
from rolecall.service.triggers import by_hand
from rolecall.settings import config

_TRIGGER = argument("trigger", "TRIGGER", "WORKFLOW/NAME, or its name alone")
_DATA = 'Give what its prompt names: --data JSON, such as \'{"body": {"id": 7}}\'.'


def _load_project() -> ProjectFile:
    if project_file.find(os.getcwd()) is None:
        raise NotFound(f"this folder has no {project_file.FILE}", hint="`rolecall init` makes one.")
    return project_file.load(os.getcwd()).require()


@verb("trigger list", "list the triggers of the project, and what they did", "rolecall trigger list", STORE)
def list_triggers(options: Namespace) -> CommandResult:
    project = _load_project()
    with reader(options.store) as rolecall:
        rows = by_hand.list_triggers(project, rolecall.store_if_any)
        id_length = rolecall.short_id_length()
    if not rows:
        return CommandResult([], f"No trigger is configured in {project.folder}.")
    cells = []
    for row in rows:
        times = [one[5:16].replace("T", " ") if one else "–" for one in (row.last, row.next)]
        thread = row.thread[-id_length:] if row.thread else "–"
        cells.append((row.trigger, row.state, row.fired, *times, thread, row.does))
    lines = [table(cells, ("trigger", "state", "fired", "last (UTC)", "next (UTC)", "thread", "does"))]
    lines += [f"{row.trigger}: {row.problem}" for row in rows if row.problem]
    return CommandResult([row._asdict() for row in rows], lines)


@verb(
    "trigger fire",
    "start the thread of a trigger now, regardless of its schedule, dedupe key and cool-down",
    'rolecall trigger fire hello/morning\nrolecall trigger fire pushed --data \'{"body": {"id": 7}}\'',
    _TRIGGER,
    argument(
        "--data",
        "JSON",
        "the values its prompt names, instead of asking the source; @FILE reads a file, - standard input",
    ),
    STORE,
)
def fire(options: Namespace) -> CommandResult:
    project = _load_project()
    trigger = by_hand.find(project, options.trigger)
    given = parse_json(read_input(options.data)) if options.data is not None else None
    if given is not None and not isinstance(given, dict):
        raise UsageError("--data must be a JSON object", hint="""--data '{"body": {"id": 7}}'""")
    with Rolecall(options.store, folder=project.folder) as rolecall:
        signal = asyncio.run(by_hand.signal_of(project, trigger, given, hint=_DATA))
        hint = _DATA if given is None else ""
        ident = by_hand.fire(rolecall, project, trigger, signal, hint=hint)
        is_served = control.is_served(config.home(), options.store, rolecall.store)
    waits = "" if is_served else "\nno service is running; it waits for one: rolecall serve"
    return CommandResult({"trigger": trigger.id, "thread": ident, "service": is_served}, f"{ident}{waits}")


@verb(
    "trigger pause",
    "let a trigger start nothing until it is resumed",
    "rolecall trigger pause hello/morning",
    _TRIGGER,
    STORE,
)
def pause(options: Namespace) -> CommandResult:
    return _change(options, by_hand.pause, "paused")


@verb(
    "trigger resume",
    "let a paused trigger start threads again; signals during the pause are lost",
    "rolecall trigger resume hello/morning",
    _TRIGGER,
    STORE,
)
def resume(options: Namespace) -> CommandResult:
    return _change(options, by_hand.resume, "on")


def _change(options: Namespace, change: Callable[..., None], state: str) -> CommandResult:
    project = _load_project()
    trigger = by_hand.find(project, options.trigger)
    with Rolecall(options.store) as rolecall:
        change(rolecall.store, project, trigger)
    return CommandResult({"trigger": trigger.id, "state": state}, f"{trigger.id} is {state}")
