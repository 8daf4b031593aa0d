"""`rolecall trigger`: list the triggers of a project, fire one manually, pause and resume it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import Any

from rolecall.api import Rolecall, reader
from rolecall.cli import Reply, argument, verb
from rolecall.cli.output import STORE, format_of, parse_json, read_input, table
from rolecall.errors import Conflict, NotFound, UsageError
from rolecall.service import control, project_file
from rolecall.service.project_file import Project
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers import schedule
from rolecall.service.triggers.memory import Memory, Signal, time_text
from rolecall.service.triggers.trigger import Command, Files, Sense, Trigger
from rolecall.settings import config
from rolecall.settings.form import did_you_mean

_ATTEMPTS = 20
_TRIGGER = argument("trigger", "TRIGGER", "WORKFLOW/NAME, or its name alone")


def _load_project() -> Project:
    if project_file.find(os.getcwd()) is None:
        raise NotFound(f"this folder has no {project_file.FILE}", hint="`rolecall init` makes one.")
    return project_file.load(os.getcwd()).checked()


def _find(project: Project, text: str) -> Trigger:
    found = [one for one in project.triggers if text in (one.id, one.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{text!r} is the name of several triggers: {', '.join(one.id for one in found)}")
    known = [one.id for one in project.triggers]
    raise NotFound(f"unknown trigger {text!r}", hint=did_you_mean(text, known, what="Triggers"))


def _now() -> int:
    return int(time() * 1000)


def _retry(move: Callable[[], Any]) -> Any:
    """Move a ref that the service also moves; if the service was first, look again and retry."""
    for _ in range(_ATTEMPTS):
        try:
            return move()
        except Conflict:
            continue
    return move()


# -- list --


@verb("trigger list", "list the triggers of the project, and what they did", "rolecall trigger list", STORE)
def list_triggers(options: Namespace) -> Reply | None:
    project = _load_project()
    with reader(options.store) as rolecall:
        store = rolecall.store_if_any
        rows: list[dict[str, Any]] = []
        for trigger in project.triggers:
            now = _now()
            memory = memories.recall(store, project.name, trigger, now=now)[1] if store else Memory()
            next_time = None
            if trigger.schedule is not None and not memory.is_paused:
                turn = schedule.turn(trigger.schedule, memories.anchor(memory) or now, now)
                next_time = time_text(turn.next if turn.slot is None else now)
            rows.append(
                {
                    "trigger": trigger.id,
                    "does": trigger.describe(),
                    "state": "paused" if memory.is_paused else "on",
                    "fired": memory.fired,
                    "last": time_text(memory.fired_at) if memory.fired_at else None,
                    "next": next_time,
                    "thread": memory.thread or None,
                    "skipped": memory.skipped or None,
                    "problem": memory.problem or None,
                }
            )
        id_length = rolecall.short_id_length()
    if not rows and format_of(options) == "text":
        print(f"No trigger is configured in {project.folder}.")
        return None
    cells = [
        (
            row["trigger"],
            row["state"],
            row["fired"],
            _moment(row["last"]),
            _moment(row["next"]),
            row["thread"][-id_length:] if row["thread"] else "–",
            row["does"],
        )
        for row in rows
    ]
    lines = [table(cells, ("trigger", "state", "fired", "last (UTC)", "next (UTC)", "thread", "does"))]
    lines += [f"{row['trigger']}: {row['problem']}" for row in rows if row["problem"]]
    return Reply(rows, "\n".join(lines))


def _moment(text: str | None) -> str:
    return text[5:16].replace("T", " ") if text else "–"


# -- fire --


@verb(
    "trigger fire",
    "start the thread of a trigger now, whatever its schedule, dedupe key and cool-down say",
    'rolecall trigger fire hello/morning\nrolecall trigger fire pushed --data \'{"body": {"id": 7}}\'',
    _TRIGGER,
    argument(
        "--data",
        "JSON",
        "the values its prompt names, instead of asking the source; @FILE reads a file, - standard input",
    ),
    STORE,
)
def fire(options: Namespace) -> Reply:
    import asyncio  # only this verb reads the source and starts a thread

    from rolecall.service.triggers import firing

    project = _load_project()
    trigger = _find(project, options.trigger)
    mask = config.mask()
    signal = asyncio.run(_signal(options, project, trigger))
    with Rolecall(options.store, folder=project.folder) as rolecall:
        store = rolecall.store
        loaded = rolecall.load_workflow(trigger.workflow, is_kept=True)
        node = loaded.id or rolecall.put(loaded.playbook)

        def start() -> str:
            now = store.now()
            ref, memory = memories.recall(store, project.name, trigger, now=now)
            try:
                order = firing.order_for(
                    project, trigger, signal, ref, memory, workflow=node, now=now, mask=mask.text
                )
            except UsageError as error:
                if options.data is not None:
                    raise
                hint = 'Give what its prompt names: --data JSON, such as \'{"body": {"id": 7}}\'.'
                raise UsageError(error.message, hint=hint) from error
            return firing.start(store, order, mask=mask, work=config.work_folder())

        ident = _retry(start)
        is_served = control.is_served(config.home(), options.store, store)
    control.poke(config.home(), ident)
    waits = "" if is_served else "\nno service is running; it waits for one: rolecall serve"
    return Reply({"trigger": trigger.id, "thread": ident, "service": is_served}, f"{ident}{waits}")


async def _signal(options: Namespace, project: Project, trigger: Trigger) -> Signal:
    """Return what the source reports now, or the value of --data."""
    from rolecall.service.triggers import sources

    given = parse_json(read_input(options.data)) if options.data is not None else None
    if given is not None and not isinstance(given, dict):
        raise UsageError("--data must be a JSON object", hint="""--data '{"body": {"id": 7}}'""")
    env, look = config.environment(), sources.Look({})
    match trigger.source:
        case Command() as source if given is None:
            look = await sources.look_at_command(source, project.folder, env)
        case Sense() as source if given is None:
            look = await sources.look_with_sense(source, project.folder, env)
        case Files() as source if given is None:
            look = sources.look_at_files(source, project.folder, since_ms=0)
    if look.problem:
        raise UsageError(f"{trigger.id}: {look.problem}")
    if look.data is None:
        raise UsageError(
            f"{trigger.id} has no signal now", hint="Give it one: --data '{…}', with what its prompt names."
        )
    return Signal({"scheduled": time_text(_now()), **look.data, **(given or {})}, is_by_hand=True)


# -- pause and resume --


@verb(
    "trigger pause",
    "let a trigger start nothing until it is resumed",
    "rolecall trigger pause hello/morning",
    _TRIGGER,
    STORE,
)
def pause(options: Namespace) -> Reply:
    return _change(options, "paused", lambda memory, _: replace(memory, is_paused=True))


@verb(
    "trigger resume",
    "let a paused trigger start threads again; what happened meanwhile is not made up for",
    "rolecall trigger resume hello/morning",
    _TRIGGER,
    STORE,
)
def resume(options: Namespace) -> Reply:
    def change(memory: Memory, now: int) -> Memory:
        return memories.resume(memory, now) if memory.is_paused else memory

    return _change(options, "on", change)


def _change(options: Namespace, state: str, change: Callable[[Memory, int], Memory]) -> Reply:
    project = _load_project()
    trigger = _find(project, options.trigger)
    with Rolecall(options.store) as rolecall:
        store = rolecall.store

        def move() -> None:
            now = store.now()
            ref, memory = memories.recall(store, project.name, trigger, now=now)
            memories.save(store, project.name, trigger, ref, change(memory, now))

        _retry(move)
    control.poke(config.home())
    return Reply({"trigger": trigger.id, "state": state}, f"{trigger.id} is {state}")
