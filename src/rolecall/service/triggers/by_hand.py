"""Operations that a person performs on a project's triggers: list, fire, pause and resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.api import Rolecall
from rolecall.errors import Conflict, NotFound, UsageError
from rolecall.service import control
from rolecall.service.project_file import ProjectFile
from rolecall.service.triggers import firing, schedule, sources
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.memory import Signal, TriggerMemory, time_text
from rolecall.service.triggers.trigger import Sense, Trigger, WatchedCommand, WatchedFiles
from rolecall.settings import config
from rolecall.settings.form import did_you_mean
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store

if TYPE_CHECKING:
    from rolecall.threads.requests import Request

_ATTEMPTS = 20


def find(project: ProjectFile, text: str) -> Trigger:
    """Return the trigger with an id, or with a name that no other trigger has."""
    found = [one for one in project.triggers if text in (one.id, one.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{text!r} is the name of several triggers: {', '.join(one.id for one in found)}")
    known = [one.id for one in project.triggers]
    raise NotFound(f"unknown trigger {text!r}", hint=did_you_mean(text, known, what="Triggers"))


class TriggerStatus(NamedTuple):
    """What a trigger does, whether it is on, and what happened last."""

    trigger: str
    does: str
    state: str
    fired: int
    last: str | None
    next: str | None
    thread: str | None
    skipped: str | None
    problem: str | None


def list_triggers(project: ProjectFile, store: Store | None) -> list[TriggerStatus]:
    found = []
    for trigger in project.triggers:
        now = now_ms()
        memory = memories.recall(store, project.name, trigger, now=now)[1] if store else TriggerMemory()
        next_time = None
        if trigger.schedule is not None and not memory.is_paused:
            turn = schedule.turn(trigger.schedule, memories.anchor(memory) or now, now)
            next_time = time_text(turn.next if turn.slot is None else now)
        found.append(
            TriggerStatus(
                trigger.id,
                does=trigger.describe(),
                state="paused" if memory.is_paused else "on",
                fired=memory.fired,
                last=time_text(memory.fired_at) if memory.fired_at else None,
                next=next_time,
                thread=memory.thread or None,
                skipped=memory.skipped or None,
                problem=memory.problem or None,
            )
        )
    return found


async def signal_of(project: ProjectFile, trigger: Trigger, given: JsonObject | None, *, hint: str) -> Signal:
    """Return what the trigger's source reports now, or the `given` values instead. `hint` says how to give values."""
    env, look = config.environment(), sources.SourceLook({})
    match trigger.source:
        case WatchedCommand() as source if given is None:
            look = await sources.look_at_command(source, project.folder, env)
        case Sense() as source if given is None:
            look = await sources.look_with_sense(source, project.folder, env)
        case WatchedFiles() as source if given is None:
            look = sources.look_at_files(source, project.folder, since_ms=0)
    if look.problem:
        raise UsageError(f"{trigger.id}: {look.problem}")
    if look.data is None:
        raise UsageError(f"{trigger.id} has no signal now", hint=hint)
    return Signal({"scheduled": time_text(now_ms()), **look.data, **(given or {})}, is_by_hand=True)


def fire(
    rolecall: Rolecall,
    project: ProjectFile,
    trigger: Trigger,
    signal: Signal,
    *,
    hint: str = "",
    request: Request | None = None,
) -> str:
    """Start the thread of a trigger now, regardless of its schedule, dedupe key and cooldown, and return the thread's
    id. `hint` is the advice if the trigger's prompt names values that the signal lacks; `request` is as in
    `Rolecall.start`."""
    mask, store = config.mask(), rolecall.store
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
            raise UsageError(error.message, hint=hint or error.hint) from error
        return firing.start(rolecall, order, request)

    ident: str = _retry(start)
    control.poke(config.home(), ident)
    return ident


def pause(store: Store, project: ProjectFile, trigger: Trigger) -> None:
    _change(store, project, trigger, lambda memory, _now: replace(memory, is_paused=True))


def resume(store: Store, project: ProjectFile, trigger: Trigger) -> None:
    def change(memory: TriggerMemory, now: int) -> TriggerMemory:
        return memories.resume(memory, now) if memory.is_paused else memory

    _change(store, project, trigger, change)


def _change(
    store: Store,
    project: ProjectFile,
    trigger: Trigger,
    change: Callable[[TriggerMemory, int], TriggerMemory],
) -> None:
    def move() -> None:
        now = store.now()
        ref, memory = memories.recall(store, project.name, trigger, now=now)
        memories.save(store, project.name, trigger, ref, change(memory, now))

    _retry(move)
    control.poke(config.home())


def now_ms() -> int:
    return int(time() * 1000)


def _retry(move: Callable[[], Any]) -> Any:
    """Move a ref that the service also moves. If the service was faster, read the ref again and retry."""
    for _ in range(_ATTEMPTS):
        try:
            return move()
        except Conflict:
            continue
    return move()
