"""`rolecall serve`: the service that runs queued threads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.output import STORE, between, printable, tell, warn
from rolecall.errors import UsageError, explain_missing
from rolecall.service import control, project_file
from rolecall.service.policy import ServicePolicy
from rolecall.service.project_file import ProjectFile
from rolecall.service.triggers.trigger import Hook
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.service import serving
    from rolecall.service.fleet import serving as fleet
else:
    fleet = Module("rolecall.service.fleet.serving")
    serving = Module("rolecall.service.serving")  # not needed for --detach

_FOR_FLEET = ("machine", "slots", "lease")


def _lease(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 3 <= seconds <= 3600:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 3 to 3600")
    return seconds


def _fleet(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--database",
        nargs="?",
        const="",
        metavar="URL",
        help="join the fleet that has this PostgreSQL database (default: the configured store)",
    )
    group.add_argument(
        "--machine", metavar="NAME", help="the machine's name in the fleet (default: the host's name)"
    )
    group.add_argument("--slots", type=between(1), metavar="N", help="steps at once on it (default: 8)")
    group.add_argument(
        "--lease",
        type=_lease,
        metavar="SECONDS",
        help="after this much silence, other machines take over its threads (default: 60)",
    )


@verb(
    "serve",
    "run queued threads, in parallel up to --at-once",
    "rolecall serve\nrolecall serve --detach --at-once 8\nrolecall serve status\nrolecall serve logs -f\n"
    "rolecall serve stop",
    flag("--detach", "run in the background"),
    argument("--project", "DIR", "whose rolecall.yaml to read (default: this folder's)"),
    argument("--at-once", "N", "threads at once, of all workflows", type=between(1)),
    argument(
        "--concurrency",
        "N",
        "threads at once of each workflow that rolecall.yaml does not name (default: 1)",
        type=between(1),
    ),
    argument(
        "--web",
        "PORT",
        "also serve the web page (default: on a free port); the log says where its sign-in link is",
        type=between(0, 65535),
        nargs="?",
        const=0,
    ),
    argument("--ready-fd", None, SUPPRESS, type=int),
    _fleet,
    STORE,
)
def serve(options: Namespace) -> CommandResult | int:
    folder = os.path.abspath(options.project or os.getcwd())
    project = project_file.load(folder).require()  # reports problems of the file here, not in a log
    if problem := project_file.check_nerve_file(folder):
        tell(str(problem))
    url = _database(options)
    if options.detach:
        return _detach(options, project, url)

    def adjust(policy: ServicePolicy) -> ServicePolicy:
        if options.at_once:
            policy = replace(policy, limit=options.at_once)
        if options.concurrency:
            policy = replace(policy, default=replace(policy.default, concurrency=options.concurrency))
        return policy

    def tell_ready() -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"ready")
            os.close(options.ready_fd)

    def show(line: str) -> None:
        print(printable(line), flush=True)

    has_project = project_file.find(folder) is not None
    companions = [serving.of_project(folder, store_url=url or options.store, adjust=adjust)]
    if options.web is not None:
        companions.append(serving.of_page(folder, store_url=url or options.store, port=options.web))
    if traces := serving.of_traces(store_url=url or options.store):
        companions.append(traces)
    if url is None:
        policy = adjust(project.policy)
        serving.serve(policy, store_url=options.store, companions=companions, show=show, ready=tell_ready)
        return 0
    with explain_missing("fleet", "a fleet"):
        serve_fleet = fleet.serve
    given = {"name": options.machine, "slots": options.slots}
    given |= {"lease_ms": round(options.lease * 1000) if options.lease else None}
    has_policy = has_project or options.at_once or options.concurrency
    serve_fleet(
        url,
        adjust(project.policy) if has_policy else None,
        companions=companions,
        show=show,
        ready=tell_ready,
        **{name: value for name, value in given.items() if value is not None},
    )
    return 0


def _database(options: Namespace) -> str | None:
    """Return the database of the fleet to join, or None if this machine works alone."""
    if options.database is None:
        if given := [name for name in _FOR_FLEET if getattr(options, name) is not None]:
            raise UsageError(f"--{given[0]} is for a machine of a fleet", hint="Say which: --database URL.")
        return None
    url: str = options.database or options.store or config.store_settings().url
    if not config.is_postgres(url):
        raise UsageError(
            "a fleet needs the address of a PostgreSQL database",
            hint="rolecall serve --database postgresql://user@host/database",
        )
    return url


def _detach(options: Namespace, project: ProjectFile, url: str | None) -> CommandResult | int:
    """Start the service in its own session, and wait until it answers."""
    home = config.home()
    if control.find_service(home) is not None:
        raise control.already_running_error(home)
    try:
        os.makedirs(home, exist_ok=True)
        errors = open(control.errors_path(home), "wb")  # noqa: SIM115 -- closed below, once the child has it
    except OSError as error:
        raise control.start_error(home, error) from error
    taken = _check_port(project)
    read, write = os.pipe()
    # With -P, no file in the project can replace an imported module.
    words = [sys.executable, "-P", "-m", "rolecall", "serve", "--ready-fd", str(write)]
    words += [] if options.database is None else ["--database"]
    words += [] if options.web is None else ["--web", str(options.web)]
    for name in ("project", "at_once", "concurrency", *_FOR_FLEET):
        if value := getattr(options, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    # The address is passed in the environment: it can contain a password, and every user can see command lines.
    address = url or options.store
    with errors:
        child = subprocess.Popen(  # noqa: S603 -- our own program
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the log has the same output
            stderr=errors,
            env=config.child_environment(**({} if address is None else {"ROLECALL_STORE": address})),
            pass_fds=[write],
            start_new_session=True,
        )
    os.close(write)
    with open(read, "rb") as ready:
        is_ready = ready.read() == b"ready"
    if not is_ready:
        child.wait()
        with open(control.errors_path(home), encoding="utf-8", errors="replace") as said:
            tell(said.read().strip())
        return child.returncode or 1
    child.returncode = 0  # the service is meant to outlive this process, so nothing waits for it
    if taken:
        warn(taken)
    triggers = [f"{one.id}: {one.describe()}" for one in project.triggers]
    lines = [f"the service runs as process {child.pid}", *(f"trigger {line}" for line in triggers)]
    shown = {"pid": child.pid, "home": home, "triggers": triggers, "problems": [taken] if taken else []}
    return CommandResult(shown, lines)


def _check_port(project: ProjectFile) -> str:
    """Return the reason why the service cannot listen for the project's hooks, or an empty text."""
    if not any(isinstance(one.source, Hook) for one in project.triggers):
        return ""
    host, port = project.hooks.host, project.hooks.port
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return ""
    except OSError as error:
        return (
            f"cannot listen for hooks at {host}:{port}: {os.strerror(error.errno or 0)}; the service"
            " tries again every 15 s. Free the port, or set `hooks: port` in rolecall.yaml."
        )
