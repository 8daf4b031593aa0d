"""`rolecall status`: show the project here, the running and waiting threads, the service, and the next command."""

from __future__ import annotations

import os
from argparse import Namespace

from rolecall.api import reader
from rolecall.cli import Reply, verb
from rolecall.cli.output import STORE, under_this_name
from rolecall.cli.thread_read import active_threads, first_command
from rolecall.service import control, project_file
from rolecall.settings import config

_MOST = 10
"""The most threads listed."""
_ORDER = ("crashed", "damaged", "suspended", "waiting", "running", "queued", "idle")


@verb(
    "status",
    "show the project, the threads at work, the service and the next command",
    "rolecall status",
    STORE,
)
def status(options: Namespace) -> Reply:
    folder = os.getcwd()
    project = project_file.find(folder)
    service = control.held_by(config.home())
    with reader(options.store) as rolecall:
        workflows = rolecall.workflows()
        listing = active_threads(options, rolecall)
        threads = sorted(listing.entries, key=lambda entry: _ORDER.index(entry["status"]))
        onward = ""
        for entry in threads:
            if entry["status"] == "queued" and service is None:
                onward = "rolecall serve --detach"
            elif entry["status"] == "waiting":
                onward = f"rolecall thread show {entry['thread']} --members"
            elif entry["status"] not in ("queued", "running") and entry["continue"]:
                onward = entry["continue"]
            if onward:
                break
        onward = under_this_name(onward or first_command(rolecall))
    shown = {
        "project": os.path.dirname(project) if project else None,
        "workflows": workflows,
        "threads": threads,
        "service": {"pid": service["pid"]} if service else None,
        "next": onward,
    }

    lines = [
        f"project    {shown['project'] or 'no rolecall.yaml here'}",
        f"workflows  {', '.join(workflows) or 'none'}",
        f"service    {'process ' + str(service['pid']) if service else 'not running'}",
    ]
    if threads:
        lines += ["", listing._replace(entries=threads[:_MOST]).text()]
        if len(threads) > _MOST:
            lines.append(under_this_name(f"and {len(threads) - _MOST} more: rolecall thread list"))
        lines.append("")
    else:
        lines.append("threads    none at work")
    return Reply(shown, "\n".join([*lines, f"next       {onward}"]))
