"""`rolecall fleet`: the machines that share a database, what they do, and what waits for them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from rolecall.cli import Verb
from rolecall.cli.output import add_format, show, table
from rolecall.errors import NotFound, StorageError
from rolecall.settings import config
from rolecall.threads import workspace

_FIRST_MACHINE = "The first machine makes it: `rolecall serve --database URL`."


def _status(options: Namespace) -> int:
    shown = _told_by_machine() if options.store is None else None
    if shown is None:
        from rolecall.service.fleet import machines

        try:
            with workspace.open_store(options.store, create=False) as store:
                shown = machines.status(store)
        except NotFound as error:
            raise NotFound(str(error), hint=_FIRST_MACHINE) from error
    known = shown
    show(options, known, lambda: _text(known))
    return 0 if any(machine["alive"] for machine in known["machines"]) else 1


def _told_by_machine() -> dict[str, Any] | None:
    """What the machine that runs in this home says of its fleet; None: none does, so the configured store counts."""
    from rolecall.service import control

    held = control.held_by(config.home())
    if held is None or not str(held.get("store")).startswith(("postgresql://", "postgres://")):
        return None
    told = control.asked(config.home(), {"do": "fleet"})
    if not told:
        raise StorageError(
            "the machine in this home does not reach the database of its fleet",
            hint="`rolecall serve status` says since when; it goes on by itself once the server answers.",
        )
    return told


def _text(shown: Mapping[str, Any]) -> str:
    there = [machine for machine in shown["machines"] if machine["alive"]]
    queued = ", ".join(f"{count:,} of {name}" for name, count in shown["queued"].items()) or "none"
    lines = [
        f"{_counted(len(there), 'machine')}, {shown['running']} of {shown['limit']} threads, "
        f"{_counted(shown['per_minute'], 'step')} a minute",
        f"waiting: {queued}",
    ]
    lines += [f"nobody can run {one['workflow']}: {one['reason']}" for one in shown["stuck"]]
    rows = [_row(machine) for machine in shown["machines"]]
    if rows:
        lines.append(table(rows, ("machine", "state", "steps", "a minute", "process")))
        for machine in shown["machines"]:
            lines += [f"{machine['machine']}: {problem}" for problem in machine["problems"].values()]
    else:
        lines.append("No machine has served this store. On each: `rolecall serve --database URL`.")
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _row(machine: Mapping[str, Any]) -> tuple[Any, ...]:
    state = ("leads" if machine["leads"] else "there") if machine["alive"] else "gone"
    busy = f"{machine['busy']} of {machine['slots']}"
    return (machine["machine"], state, busy, machine["per_minute"], machine["process"])


def _status_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        "--store",
        dest="store",
        metavar="URL",
        help="the fleet's database (default: that of the machine in this home, or the configured store)",
    )
    add_format(parser)


VERBS = {
    "status": Verb(
        _status,
        "show the machines of a fleet, their slots, the queue and the throughput",
        "rolecall fleet status\nrolecall fleet status --database postgresql://user@host/database",
        _status_arguments,
    ),
}
