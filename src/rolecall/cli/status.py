"""`rolecall status`: the project around this folder, the threads that run or wait, the service, and the next
command."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from rolecall.cli import Verb, under_this_name
from rolecall.cli.output import add_format, add_store, show
from rolecall.cli.thread_read import Listing, active_threads, first_command, list_text
from rolecall.service import control, project_file
from rolecall.settings import config
from rolecall.threads.workspace import store_if_any
from rolecall.workflow import registry

_MOST = 10
"""How many threads are listed."""
_FIRST = ("crashed", "damaged", "suspended", "running", "queued", "idle")
"""Threads with these statuses come first."""


def _status(options: Namespace) -> None:
    folder = os.getcwd()
    project = project_file.find(folder)
    store = store_if_any(options.store)
    try:
        workflows = [entry.name for entry in registry.listed(store, folder=folder)]
        listing = active_threads(options, store) if store else Listing([])
        threads = sorted(listing.entries, key=lambda entry: _FIRST.index(entry["status"]))
        service = control.held_by(config.home())
        onward = _next(threads, is_served=service is not None) or under_this_name(first_command(store))
    finally:
        if store:
            store.close()
    shown: dict[str, Any] = {
        "project": os.path.dirname(project) if project else None,
        "workflows": workflows,
        "threads": threads,
        "service": {"pid": service["pid"]} if service else None,
        "next": onward,
    }
    show(options, shown, lambda: _text(shown, listing._replace(entries=threads[:_MOST])))


def _next(threads: list[dict[str, Any]], *, is_served: bool) -> str | None:
    for entry in threads:
        if entry["status"] == "queued" and not is_served:
            return under_this_name("rolecall serve --detach")
        if entry["status"] not in ("queued", "running") and entry["continue"]:
            return str(entry["continue"])
    return None


def _text(shown: dict[str, Any], listing: Listing) -> str:
    threads, service = shown["threads"], shown["service"]
    lines = [
        f"project    {shown['project'] or 'no rolecall.yaml here'}",
        f"workflows  {', '.join(shown['workflows']) or 'none'}",
        f"service    {'process ' + str(service['pid']) if service else 'not running'}",
    ]
    if threads:
        more = [f"and {len(threads) - _MOST} more: rolecall thread list"] if len(threads) > _MOST else []
        lines += ["", list_text(listing), *map(under_this_name, more), ""]
    else:
        lines.append("threads    none at work")
    return "\n".join([*lines, f"next       {shown['next']}"])


def _arguments(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


VERBS = {
    "": Verb(
        _status,
        "show the project, the threads at work, the service and the next command",
        "rolecall status",
        _arguments,
    )
}
