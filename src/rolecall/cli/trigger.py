"""`rolecall trigger`: what starts threads by itself: list it, fire it by hand, pause it, let it go on."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb
from rolecall.cli.output import add_format, add_store, format_of, parse_json, read_input, show, table
from rolecall.errors import Conflict, NotFound, UsageError
from rolecall.threads import thread

if TYPE_CHECKING:
    from rolecall.service.project_file import Project
    from rolecall.service.triggers.memory import Memory, Signal
    from rolecall.service.triggers.trigger import Trigger
    from rolecall.store.store import Store

_ATTEMPTS = 20


def _list(options: Namespace) -> None:
    from rolecall.threads.workspace import store_if_any

    project = _project()
    with store_if_any(options.store) or nullcontext() as store:
        rows = [_row(store, project, trigger) for trigger in project.triggers]
        id_length = thread.short_id_length(store) if store else 0
    if not rows and format_of(options) == "text":
        print(f"No trigger is configured in {project.folder}.")
        return
    show(options, rows, lambda: "\n".join([_table(rows, id_length), *_troubles(rows)]))


def _table(rows: list[dict[str, Any]], id_length: int) -> str:
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
    return table(cells, ("trigger", "state", "fired", "last (UTC)", "next (UTC)", "thread", "does"))


def _moment(text: str | None) -> str:
    return text[5:16].replace("T", " ") if text else "–"


def _troubles(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['trigger']}: {row['problem']}" for row in rows if row["problem"]]


def _row(store: Store | None, project: Project, trigger: Trigger) -> dict[str, Any]:
    from rolecall.service.triggers import memory as memories
    from rolecall.service.triggers.firing import time_text

    now = _now()
    memory = memories.recall(store, project.name, trigger, now=now)[1] if store else memories.Memory()
    return {
        "trigger": trigger.id,
        "does": trigger.describe(),
        "state": "paused" if memory.is_paused else "on",
        "fired": memory.fired,
        "last": time_text(memory.fired_at) if memory.fired_at else None,
        "next": _next(trigger, memory, now),
        "thread": memory.thread or None,
        "skipped": memory.skipped or None,
        "problem": memory.problem or None,
    }


def _next(trigger: Trigger, memory: Memory, now: int) -> str | None:
    from rolecall.service.triggers import memory as memories
    from rolecall.service.triggers import schedule
    from rolecall.service.triggers.firing import time_text

    if trigger.schedule is None or memory.is_paused:
        return None
    turn = schedule.turn(trigger.schedule, memories.anchor(memory) or now, now)
    return time_text(turn.next if turn.slot is None else now)


# -- fire --


def _fire(options: Namespace) -> None:
    import asyncio

    from rolecall.service import control
    from rolecall.service.triggers import firing
    from rolecall.service.triggers import memory as memories
    from rolecall.settings import config
    from rolecall.threads import workspace

    project = _project()
    trigger = _named(project, options.trigger)
    mask = workspace.mask()
    signal = asyncio.run(_signal(options, project, trigger))
    with workspace.open_store(options.store) as store:
        node = _workflow(options, store, project, trigger)

        def fire(now: int) -> str:
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

        thread = _again(lambda: fire(store.now()))
        is_served = control.is_served(config.home(), options.store, store)
    control.poke(config.home(), thread)
    shown = {"trigger": trigger.id, "thread": thread, "service": is_served}
    waits = "" if is_served else "\nno service is running; it waits for one: rolecall serve"
    show(options, shown, lambda: f"{thread}{waits}")


async def _signal(options: Namespace, project: Project, trigger: Trigger) -> Signal:
    """What the source says now, or what was given in its place."""
    from rolecall.service.triggers import sources
    from rolecall.service.triggers.firing import time_text
    from rolecall.service.triggers.memory import Signal
    from rolecall.service.triggers.trigger import Command, Files, Sense
    from rolecall.settings import config

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


def _now() -> int:
    from time import time

    return int(time() * 1000)


def _workflow(options: Namespace, store: Store, project: Project, trigger: Trigger) -> str:
    from rolecall.threads.workspace import load_workflow
    from rolecall.workflow import registry

    found = registry.find(store, trigger.workflow, folder=project.folder)
    if found.path is None:
        return str(found.node)
    return registry.register(store, load_workflow(found.path, store=options.store))


# -- pause and resume --


def _pause(options: Namespace) -> None:
    _change(options, "paused", lambda memory, _: replace(memory, is_paused=True))


def _resume(options: Namespace) -> None:
    from rolecall.service.triggers.memory import resumed

    _change(options, "on", lambda memory, now: resumed(memory, now) if memory.is_paused else memory)


def _change(options: Namespace, state: str, change: Callable[[Memory, int], Memory]) -> None:
    from rolecall.service import control
    from rolecall.service.triggers import memory as memories
    from rolecall.settings import config
    from rolecall.threads import workspace

    project = _project()
    trigger = _named(project, options.trigger)
    with workspace.open_store(options.store) as store:

        def moved() -> None:
            now = store.now()
            ref, memory = memories.recall(store, project.name, trigger, now=now)
            memories.save(store, project.name, trigger, ref, change(memory, now))

        _again(moved)
    control.poke(config.home())
    show(options, {"trigger": trigger.id, "state": state}, lambda: f"{trigger.id} is {state}")


def _again(move: Callable[[], Any]) -> Any:
    """The service moves the same ref; of two at once both count, one after the other."""
    for _ in range(_ATTEMPTS):
        try:
            return move()
        except Conflict:
            continue
    return move()


# -- what is named --


def _project() -> Project:
    from rolecall.service import project_file

    if project_file.find(os.getcwd()) is None:
        raise NotFound(f"there is no {project_file.FILE} here", hint="`rolecall init` makes one.")
    return project_file.load(os.getcwd()).checked()


def _named(project: Project, text: str) -> Trigger:
    from rolecall.settings.form import did_you_mean

    found = [one for one in project.triggers if text in (one.id, one.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{text!r} is the name of several triggers: {', '.join(one.id for one in found)}")
    known = [one.id for one in project.triggers]
    raise NotFound(f"there is no trigger {text!r}", hint=did_you_mean(text, known, what="Triggers"))


# -- the table of verbs --


def _common(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


def _one(parser: ArgumentParser) -> None:
    parser.add_argument("trigger", metavar="TRIGGER", help="WORKFLOW/NAME, or its name alone")
    _common(parser)


def _fire_arguments(parser: ArgumentParser) -> None:
    _one(parser)
    parser.add_argument(
        "--data",
        metavar="JSON",
        help="what its prompt names, instead of a look; @FILE reads a file, - standard input",
    )


VERBS = {
    "list": Verb(
        _list, "list the triggers of the project, and what they did", "rolecall trigger list", _common
    ),
    "fire": Verb(
        _fire,
        "start the thread of a trigger now, whatever its schedule, dedupe key and cool-down say",
        'rolecall trigger fire hello/morning\nrolecall trigger fire pushed --data \'{"body": {"id": 7}}\'',
        _fire_arguments,
    ),
    "pause": Verb(
        _pause,
        "let a trigger start nothing until it is resumed",
        "rolecall trigger pause hello/morning",
        _one,
    ),
    "resume": Verb(
        _resume,
        "let a paused trigger go on; what happened in the meantime is not made up for",
        "rolecall trigger resume hello/morning",
        _one,
    ),
}
