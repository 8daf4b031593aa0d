"""`rolecall fleet`: show the machines that share a database, the threads they run, and the threads that wait."""

from __future__ import annotations

from argparse import Namespace

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.output import plural, table
from rolecall.errors import NotFound, StorageError
from rolecall.service import control
from rolecall.service.fleet import machines
from rolecall.settings import config


@verb(
    "fleet status",
    "show the machines of a fleet, their slots, the queue and the throughput",
    "rolecall fleet status\nrolecall fleet status --database postgresql://user@host/database",
    argument(
        "--database --store",
        "URL",
        "the fleet's database (default: the database of this home's machine, or the configured store)",
        dest="store",
    ),
)
def status(options: Namespace) -> CommandResult:
    held = control.find_service(config.home()) if options.store is None else None
    if held and config.is_postgres(str(held.get("store"))):
        shown = control.ask(config.home(), {"do": "fleet"})
        if not shown:
            raise StorageError(
                "the machine of this home cannot reach its fleet's database",
                hint="`rolecall serve status` says since when; work continues by itself once the server answers.",
            )
    else:
        try:
            with Rolecall(options.store, create=False) as rolecall:
                shown = machines.status(rolecall.store)
        except NotFound as error:
            raise NotFound(
                str(error), hint="The first machine creates it: `rolecall serve --database URL`."
            ) from error
    found = shown["machines"]
    count = sum(machine["alive"] for machine in found)
    queued = ", ".join(f"{count:,} of {name}" for name, count in shown["queued"].items()) or "none"
    lines = [
        f"{plural(count, 'machine')}, {shown['running']} of {shown['limit']} threads, "
        f"{plural(shown['per_minute'], 'step')} a minute",
        f"waiting: {queued}",
    ]
    lines += [f"no machine can run {one['workflow']}: {one['reason']}" for one in shown["stuck"]]
    rows = []
    for machine in found:
        state = ("leads" if machine["leads"] else "there") if machine["alive"] else "gone"
        busy = f"{machine['busy']} of {machine['slots']}"
        rows.append((machine["machine"], state, busy, machine["per_minute"], machine["process"]))
    nobody = "No machine has served this store. On each machine, run `rolecall serve --database URL`."
    lines.append(table(rows, ("machine", "state", "steps", "a minute", "process")) if rows else nobody)
    for machine in found:
        lines += [f"{machine['machine']}: {problem}" for problem in machine["problems"].values()]
    return CommandResult(shown, lines, code=0 if count else 1)
