"""`rolecall` alone and `rolecall status`: show the project, what waits for a person, what runs, and the next
commands."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Collection
from time import time
from typing import TYPE_CHECKING

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, verb
from rolecall.cli.arguments import in_this_store, omit_latest
from rolecall.cli.output import STORE, columns_of_terminal, fold, short, under_this_name
from rolecall.cli.thread_read import ThreadListing, active_threads, first_command
from rolecall.service import control
from rolecall.settings import config, repository

if TYPE_CHECKING:
    from rolecall.cli.thread_read import PrintedThread

_MOST = 4
"""How many threads of each kind are listed, so that the status fits on a screen."""
_ORDER = ("crashed", "damaged", "suspended", "waiting", "idle", "running", "queued")


@verb(
    "status",
    "show the project, what waits for you, what runs and the next commands",
    "rolecall status",
    STORE,
)
def status(options: Namespace) -> CommandResult:
    project = repository.nearest("rolecall.yaml", os.getcwd())
    service = control.find_service(config.home())
    with reader(options.store) as rolecall:
        workflows = rolecall.workflows()
        listing = active_threads(options, rolecall)
        threads = sorted(listing.entries, key=lambda entry: _ORDER.index(entry["status"]))
        own = []
        for entry in threads:  # a thread of an evaluation continues together with its evaluation
            state = rolecall.thread(entry["thread"]).state
            is_stopped = entry["status"] in ("suspended", "crashed", "idle")
            if not (is_stopped and state.eval) or state.waits_for_person:
                own.append(entry)
        waiting = {entry["thread"] for entry in own if _waits_for_person(rolecall, entry)}
        commands = _next_commands(options, rolecall, own, waiting, has_service=service is not None)
        typed = [omit_latest(rolecall, under_this_name(command)) for command in commands]
        waits = _name_folders(rolecall, [one for one in own if one["thread"] in waiting])
        works = _name_folders(rolecall, [one for one in own if one["thread"] not in waiting])
    for ident in [entry["thread"] for entry in threads]:
        typed = [command.replace(ident, ident[-listing.id_length :]) for command in typed]
    shown = {
        "project": os.path.dirname(project) if project else None,
        "workflows": workflows,
        "threads": threads,
        "service": {"pid": service["pid"]} if service else None,
        "next": under_this_name(next(iter(commands))),
        "commands": [{"command": under_this_name(one), "about": about} for one, about in commands.items()],
    }

    names = fold(", ".join(workflows) or "none", max(20, columns_of_terminal() - 11))
    lines = [
        f"project    {shown['project'] or 'no rolecall.yaml here'}",
        *(f"{'' if at else 'workflows':11}{line}" for at, line in enumerate(names)),
        f"service    {'process ' + str(service['pid']) if service else 'not running'}",
    ]
    if own:
        lines += _thread_lines("waits for you", waits, listing)
        lines += _thread_lines("at work", works, listing)
        lines.append("")
    else:
        lines.append("threads    none at work")
    width = max(map(len, typed))
    fits = 13 + width + max(map(len, commands.values())) <= columns_of_terminal()
    for at, (command, about) in enumerate(zip(typed, commands.values(), strict=True)):
        line = f"{'' if at else 'next':11}{command}"
        lines += [f"{line:{11 + width}}  {about}"] if fits else [line, f"{'':13}{about}"]
    return CommandResult(shown, lines)


def _waits_for_service(rolecall: Rolecall, entry: PrintedThread) -> bool:
    """Whether a thread is queued, or was interrupted when the service ended, so that the service will continue it."""
    if entry["status"] == "idle":
        return rolecall.thread(entry["thread"]).state.service is not None
    return entry["status"] == "queued"


def _waits_for_person(rolecall: Rolecall, entry: PrintedThread) -> bool:
    """Whether a thread makes no progress until a person acts. A thread whose agent has reached a limit waits for a time
    instead, and a thread whose group is at work waits for its members."""
    if entry["status"] == "waiting":
        return rolecall.thread(entry["thread"]).needs_person
    if entry["status"] == "running" or _waits_for_service(rolecall, entry):
        return False
    return entry.get("until", 0) <= time() * 1000


def _name_folders(rolecall: Rolecall, entries: list[PrintedThread]) -> list[PrintedThread]:
    """Return the entries, with the folder of a thread from another folder in its title if the thread is listed."""
    here = os.path.realpath(rolecall.folder)
    here = repository.root_around(here) or here
    named = []
    for entry in entries[:_MOST]:
        folder = rolecall.thread(entry["thread"]).state.cwd or here
        is_here = os.path.commonpath([here, os.path.realpath(folder)]) == here
        if not is_here:
            entry = {**entry, "title": f"in {os.path.basename(folder)}: {entry['title'] or ''}"}
        named.append(entry)
    return named + entries[_MOST:]


def _thread_lines(heading: str, entries: list[PrintedThread], listing: ThreadListing) -> list[str]:
    if not entries:
        return []
    more = len(entries) - _MOST
    lines = ["", heading, listing._replace(entries=entries[:_MOST]).text()]
    return [*lines, under_this_name(f"and {more} more: rolecall thread list")] if more > 0 else lines


def _next_commands(
    options: Namespace,
    rolecall: Rolecall,
    threads: list[PrintedThread],
    waiting: Collection[str],
    *,
    has_service: bool,
) -> dict[str, str]:
    """Return the three most useful commands, each with its purpose. The first one continues a thread that cannot
    continue without a person."""
    found: dict[str, str] = {}
    for entry in threads:
        if not has_service and _waits_for_service(rolecall, entry):
            found["rolecall serve --detach"] = "run what is queued"
        elif entry["thread"] in waiting:
            group = rolecall.thread(entry["thread"]).current_group() if entry["status"] == "waiting" else None
            if group and any(member["status"] == "waiting" for member in group["members"]):
                found[f"rolecall thread show {entry['thread']} --members"] = "see which member waits"
            elif entry["continue"]:
                found[entry["continue"]] = short(f"continue {entry['title'] or entry['name']}", 30)
        if found:
            break
    latest = rolecall.latest_thread()
    start = first_command(rolecall, latest.state.name if latest else "")
    if not threads:
        found[start] = _ABOUT.get(start, "start a thread")
    if latest:
        verb = "read" if latest.has_ended else "watch" if latest.status in ("running", "queued") else "show"
        found[in_this_store(options, f"rolecall thread {verb} {latest.id}")] = "look at the latest thread"
    for command in (start, "rolecall new", "rolecall doctor", "rolecall --help"):
        found.setdefault(command, _ABOUT.get(command, "start a thread"))
    return dict(list(found.items())[:3])


_ABOUT = {
    "rolecall init": "make a project",
    "rolecall new": "see ready-made workflows",
    "rolecall doctor": "see which agents are ready",
    "rolecall --help": "see the commands",
}
