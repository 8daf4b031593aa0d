"""`rolecall thread import`: import threads that the predecessor wrote."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from shlex import quote
from typing import Any

from rolecall.cli import Reply, argument, flag, verb
from rolecall.cli.arguments import in_this_store
from rolecall.cli.output import STORE, Progress
from rolecall.threads.import_uwf import has_config, import_threads, take_config
from rolecall.threads.workspace import open_store


@verb(
    "thread import",
    "take over threads that the predecessor wrote",
    "rolecall thread import ~/.uncaged/workflow",
    argument("folder", "DIR", "the storage folder of uwf, with threads.yaml in it"),
    argument("--cas", "DIR", "where its nodes are, when not (only) in DIR/cas"),
    flag("--keep-going", "take the intact nodes when some are damaged"),
    flag("--config", "also import providers, models, agents and keys that are not set here"),
    STORE,
)
def import_folder(options: Namespace) -> Reply:
    progress = Progress("imported")
    with open_store(options.store) as store:
        done = import_threads(
            store, options.folder, cas=options.cas, keep_going=options.keep_going, progress=progress
        )
    progress.clear()
    has_settings = has_config(options.folder)
    settings = take_config(options.folder)._asdict() if options.config and has_settings else None
    if has_settings and not options.config:
        command = in_this_store(options, f"rolecall thread import {quote(options.folder)} --config")
        print(
            f"note: its configuration was not imported; to add what is not set here: {command}",
            file=sys.stderr,
        )
    shown = done._asdict() | {
        "unread": [unread._asdict() for unread in done.unread],
        "problems": [problem._asdict() for problem in done.problems],
        "config": settings,
    }
    return Reply(shown, lambda: _text(shown), code=4 if done.unread else 0)


def _text(shown: Mapping[str, Any]) -> str:
    threads, workflows = len(shown["threads"]), len(shown["workflows"])
    lines = [f"{threads} threads, {workflows} workflows and {shown['nodes']} nodes imported"]
    lines += [f"kept as it is here: {name}" for name in shown["kept"]]
    lines += [f"not imported: {unread['name']}: {unread['reason']}" for unread in shown["unread"]]
    lines += [f"{problem['kind']}: {problem['node']} {problem['text']}" for problem in shown["problems"]]
    for what, keys in (shown["config"] or {}).items():
        lines += [f"configuration, {what}: {key}" for key in keys]
    return "\n".join(lines)
