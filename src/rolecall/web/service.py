"""The verbs for the service: its queue, slots, rates and triggers, and the machines of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rolecall.errors import NotFound, RolecallError
from rolecall.service import control, project_file
from rolecall.service.fleet import machines
from rolecall.service.project_file import ProjectFile
from rolecall.service.triggers import by_hand
from rolecall.service.triggers.trigger import Trigger
from rolecall.settings import config
from rolecall.web.verbs import OBJECT, Ask, GoesOn, JsonObject, get, post, record

_MOST_LINES = 200
_GIVE = "Give the values that its prompt names."


@get("/service", "What the service does: threads, queue, rates, triggers, and machines if there is a fleet.")
def show_service(ask: Ask) -> Any:
    home = config.home()
    held = control.find_service(home)
    status = control.ask(home, {"do": "status"}) if held else {}
    fleet = control.ask(home, {"do": "fleet"}) if held else {}  # empty if the service is not part of a fleet
    store = ask.rolecall.store_if_any
    if not held and store is not None and store.is_shared:  # other machines might serve the store
        fleet = machines.status(store)
    triggers, problems, policy = [], list[str](), None
    if project_file.find(ask.rolecall.folder) is not None:
        reading = project_file.load(ask.rolecall.folder)
        policy, problems = reading.project.policy, [str(one) for one in reading.problems]
        try:
            triggers = [one._asdict() for one in by_hand.list_triggers(reading.project, store)]
        except RolecallError as error:
            problems.append(error.message)
    return {
        "running": bool(held),
        "pid": held.get("pid") if held else None,
        "status": status,
        "fleet": fleet or None,
        "triggers": triggers,
        "triggersProblem": "\n".join(problems) or None,
        "rates": {name: str(rate) for name, rate in policy.rates.items()} if policy else {},
        "spendPerDay": policy.spend_per_day if policy else None,
        "hasProject": policy is not None,
    }


@get("/service/log", f"The last {_MOST_LINES} lines of the service's log.")
def show_log(_ask: Ask) -> Any:
    try:
        with open(control.log_path(config.home()), encoding="utf-8", errors="replace") as file:
            return {"lines": [line.rstrip("\n") for line in file.readlines()[-_MOST_LINES:]]}
    except FileNotFoundError:
        return {"lines": []}


@post(
    "/triggers/{trigger:path}/fire",
    "Start the thread of a trigger now.",
    record(data=OBJECT),
    is_slow=True,
    loads=lambda ask: _find_trigger(ask)[1].workflow,
    is_repeatable=True,
)
def fire(ask: Ask) -> Any:
    project, trigger = _find_trigger(ask)
    signal = asyncio.run(by_hand.signal_of(project, trigger, ask.body.get("data"), hint=_GIVE))
    thread = by_hand.fire(ask.rolecall, project, trigger, signal, hint=_GIVE, request=ask.request)
    return GoesOn(thread, reply={"trigger": trigger.id})


@post("/triggers/{trigger:path}/pause", "Let a trigger start nothing until it is resumed.", record())
def pause(ask: Ask) -> Any:
    return _change(ask, by_hand.pause, "paused")


@post("/triggers/{trigger:path}/resume", "Let a paused trigger start threads again.", record())
def resume(ask: Ask) -> Any:
    return _change(ask, by_hand.resume, "on")


def _change(ask: Ask, change: Callable[..., None], state: str) -> JsonObject:
    project, trigger = _find_trigger(ask)
    change(ask.rolecall.store, project, trigger)
    return {"trigger": trigger.id, "state": state}


def _find_trigger(ask: Ask) -> tuple[ProjectFile, Trigger]:
    if project_file.find(ask.rolecall.folder) is None:
        raise NotFound(
            f"{ask.rolecall.folder} has no {project_file.FILE}", hint="Triggers are written there."
        )
    project = project_file.load(ask.rolecall.folder).require()
    return project, by_hand.find(project, ask.path["trigger"])
