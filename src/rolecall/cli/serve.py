"""`rolecall serve`: the service that runs queued threads, and what to ask it."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from rolecall.cli import Verb
from rolecall.cli.output import add_format, add_store, printable, show, show_record, table
from rolecall.cli.thread_arguments import at_least_one
from rolecall.errors import Conflict, RolecallError, UsageError
from rolecall.settings import config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rolecall.service.policy import ServicePolicy
    from rolecall.service.project_file import Project
    from rolecall.service.supervisor import Companion

_GLANCE = 0.2
"""Seconds between two looks at the end of the log."""


def _serve(options: Namespace) -> int:
    from rolecall.service import project_file

    folder = os.path.abspath(options.project or os.getcwd())
    project = project_file.load(folder).checked()  # what is wrong with it is told here, not in a log
    if problem := project_file.unread(folder):
        print(printable(str(problem)), file=sys.stderr)
    if options.detach:
        return _detach(options, project)
    from rolecall.service import companion, serving

    def adjust(policy: ServicePolicy) -> ServicePolicy:
        return _adjusted(policy, options)

    has_project = project_file.find(folder) is not None
    url = _database(options)
    beside = (
        companion.of_project(folder, store_url=url or options.store, adjust=adjust) if has_project else None
    )
    if url is not None:
        is_told = has_project or options.limit or options.concurrency
        return _join(options, url, adjust(project.policy) if is_told else None, [beside] if beside else [])
    serving.serve(
        adjust(project.policy),
        store_url=options.store,
        companions=[beside or companion.of_no_project(folder)],
        show=_print_line,
        ready=lambda: _say_ready(options.ready_fd),
    )
    return 0


def _database(options: Namespace) -> str | None:
    """The database of the fleet that is to be joined; None: this is one machine for itself."""
    if options.database is None:
        if given := [name for name in ("machine", "slots", "lease") if getattr(options, name) is not None]:
            raise UsageError(f"--{given[0]} is for a machine of a fleet", hint="Say which: --database URL.")
        return None
    url: str = options.database or options.store or config.store_settings().url
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError(
            "a fleet needs the address of a PostgreSQL database",
            hint="rolecall serve --database postgresql://user@host/database",
        )
    return url


def _join(options: Namespace, url: str, policy: ServicePolicy | None, companions: Sequence[Companion]) -> int:
    try:
        from rolecall.service.fleet import serving
    except ImportError as error:
        raise UsageError(
            f"a fleet needs the package {error.name!r}", hint="Install it: pip install 'rolecall[fleet]'"
        ) from error
    given = {"name": options.machine, "slots": options.slots}
    given |= {"lease_ms": round(options.lease * 1000) if options.lease else None}
    serving.serve(
        url,
        policy,
        companions=companions,
        show=_print_line,
        ready=lambda: _say_ready(options.ready_fd),
        **{name: value for name, value in given.items() if value is not None},
    )
    return 0


def _adjusted(policy: ServicePolicy, options: Namespace) -> ServicePolicy:
    """The project's policy, and what the command says before it."""
    if options.limit:
        policy = replace(policy, limit=options.limit)
    if options.concurrency:
        policy = replace(policy, default=replace(policy.default, concurrency=options.concurrency))
    return policy


def _print_line(line: str) -> None:
    print(printable(line), flush=True)


def _say_ready(file: int | None) -> None:
    if file is not None:
        os.write(file, b"ready")
        os.close(file)


# -- in the background --


def _detach(options: Namespace, project: Project) -> int:
    """Start the service in a session of its own, and wait until it can be spoken to."""
    import subprocess

    from rolecall.service import control

    home = config.home()
    errors = _error_file(home)
    taken = _taken_port(project)
    read, write = os.pipe()
    # -P: a file of the project must not stand in for one of the modules that are imported.
    words = [sys.executable, "-P", "-m", "rolecall", "serve", "--ready-fd", str(write), *_again(options)]
    with errors:
        child = subprocess.Popen(  # noqa: S603 -- ourselves
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what is said there is in the log
            stderr=errors,
            env={**os.environ, **_told_in_private(options)},
            pass_fds=[write],
            start_new_session=True,
        )
    os.close(write)
    with open(read, "rb") as ready:
        is_ready = ready.read() == b"ready"
    if not is_ready:
        child.wait()
        with open(control.errors_path(home), encoding="utf-8", errors="replace") as told:
            print(told.read().strip(), file=sys.stderr)
        return child.returncode or 1
    triggers = [f"{one.id}: {one.describe()}" for one in project.triggers]
    lines = [f"the service runs as process {child.pid}", *(f"trigger {line}" for line in triggers)]
    shown = {"pid": child.pid, "home": home, "triggers": triggers, "problems": [taken] if taken else []}
    show(options, shown, lambda: "\n".join(lines))
    if taken:
        print(f"warning: {taken}", file=sys.stderr)
    child.returncode = 0  # it outlives us, which is meant
    return 0


def _taken_port(project: Project) -> str:
    """Why the service cannot listen for the project's hooks; empty if it can, or if there are none."""
    import socket

    from rolecall.service.triggers.trigger import Hook

    if not any(isinstance(one.source, Hook) for one in project.triggers):
        return ""
    hooks = project.hooks
    family = socket.AF_INET6 if ":" in hooks.host else socket.AF_INET
    try:
        with socket.create_server((hooks.host, hooks.port), family=family):
            return ""
    except OSError as error:
        return (
            f"cannot listen for hooks at {hooks.host}:{hooks.port}: {os.strerror(error.errno or 0)}; the service"
            " tries again every 15 s. Free the port, or set `hooks: port` in rolecall.yaml."
        )


def _error_file(home: str) -> IO[bytes]:
    """Where the service writes what belongs into no log; that of one that runs is left to it."""
    from rolecall.service import control

    if control.held_by(home) is not None:
        raise control.running_already(home)
    try:
        os.makedirs(home, exist_ok=True)
        return open(control.errors_path(home), "wb")
    except OSError as error:
        raise control.unwritable(home, error) from error


def _again(options: Namespace) -> list[str]:
    """The options of this command, for the one that does it."""
    named = {"--project": options.project, "--limit": options.limit}
    named |= {"--concurrency": options.concurrency, "--machine": options.machine, "--slots": options.slots}
    named |= {"--lease": options.lease}
    words = [word for name, value in named.items() if value for word in (name, str(value))]
    return words if options.database is None else ["--database", *words]


def _told_in_private(options: Namespace) -> dict[str, str]:
    """An address may hold a password, and everybody on a machine sees the words of its commands."""
    url = _database(options) or options.store
    return {} if url is None else {"ROLECALL_STORE": url}


# -- what is asked of it --


def _status(options: Namespace) -> int:
    from rolecall.service import control

    found = control.held_by(config.home())
    if found is None:
        shown: dict[str, Any] = {"running": False, "home": config.home()}
        show(options, shown, lambda: "no service is running; start one with `rolecall serve --detach`")
        return 1
    told = control.asked(config.home(), {"do": "status"})
    if not told:
        raise Conflict("the service is just ending", hint="Ask again.")
    shown = {"running": True, "home": config.home(), "pid": found["pid"]}
    shown |= {"threads": told.pop("running", [])} | told
    show(options, shown, lambda: _status_text(shown))
    return 0


def _status_text(shown: dict[str, Any]) -> str:
    queued = ", ".join(f"{count:,} of {name}" for name, count in shown["queued"].items()) or "none"
    lines = [
        f"the service runs as process {shown['pid']}, {len(shown['threads'])} of {shown['limit']} threads",
        f"waiting: {queued}",
    ]
    lines += [f"problem: {problem}" for problem in shown["problems"].values()]
    lines += [f"problem: {one['thread']}: {one['trouble']}" for one in shown["threads"] if "trouble" in one]
    if shown["spent"]:
        lines.append(f"spent today: ${shown['spent']:.2f}")
    reasons = list(dict.fromkeys(shown["waits"].values()))
    lines += [f"  because {reason}" for reason in reasons[:5]]
    if shown["threads"]:
        rows = [(one["thread"], one["workflow"], str(one["pid"] or "")) for one in shown["threads"]]
        lines.append(table(rows, ("id", "workflow", "process")))
    return "\n".join(lines)


def _stop(options: Namespace) -> None:
    from rolecall.service import control

    reply = control.held_by(config.home()) or {}
    control.ended(config.home(), finish=options.finish)
    show(options, {"stopped": True, "pid": reply.get("pid")}, lambda: "the service has stopped")


def _logs(options: Namespace) -> None:
    from rolecall.service import control

    path = control.log_path(config.home())
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()[-options.lines :]
            for line in [*_lines_before(path, options.lines - len(lines)), *lines]:
                _show_line(options, line)
            if options.follow:
                _follow(options, file, path)
    except FileNotFoundError:
        raise RolecallError(
            f"there is no log at {path}", hint="The service writes it: `rolecall serve --detach`."
        ) from None


def _show_line(options: Namespace, line: str) -> None:
    text = line.rstrip("\n")
    show_record(options, {"line": text}, lambda: text)


def _lines_before(path: str, count: int) -> list[str]:
    """The last lines of the log that was put aside when it had become long."""
    if count == 0:
        return []
    try:
        with open(f"{path}.1", encoding="utf-8", errors="replace") as file:
            return file.readlines()[-count:]
    except FileNotFoundError:
        return []


def _follow(options: Namespace, file: Any, path: str) -> None:
    """Until it is interrupted, through restarts of the service too: one that was killed says nothing itself."""
    from time import sleep

    from rolecall.service import control

    was_running = True
    while True:
        # Both are asked before the file is read to its end, so nothing is missed.
        is_running, is_last = control.held_by(config.home()) is not None, _is_at(file, path)
        for line in file.readlines():  # lines are written whole
            _show_line(options, line)
        if was_running and not is_running:
            print("no service is running; what the next one logs is shown", file=sys.stderr, flush=True)
        was_running = is_running
        if not is_last:
            with suppress(FileNotFoundError):  # it is just being put aside
                new = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 -- until we are stopped
                file.close()
                file = new
                continue
        sleep(_GLANCE)


def _is_at(file: Any, path: str) -> bool:
    """Whether a file is still the one at its path."""
    try:
        return os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


# -- arguments --


def _serve_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument(
        "--project", metavar="DIR", help="whose rolecall.yaml counts (default: this folder's)"
    )
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="threads at once, of all workflows")
    parser.add_argument(
        "--concurrency",
        type=at_least_one,
        metavar="N",
        help="threads at once of each workflow that rolecall.yaml does not name (default: 1)",
    )
    parser.add_argument("--ready-fd", type=int, help=SUPPRESS)
    fleet = parser.add_argument_group("many machines")
    fleet.add_argument(
        "--database",
        nargs="?",
        const="",
        metavar="URL",
        help="be a machine of the fleet that has this PostgreSQL database (default: the configured store)",
    )
    fleet.add_argument("--machine", metavar="NAME", help="its name in the fleet (default: the host's)")
    fleet.add_argument("--slots", type=at_least_one, metavar="N", help="steps at once on it (default: 8)")
    fleet.add_argument(
        "--lease",
        type=_lease,
        metavar="SECONDS",
        help="after so long without a word from it others take its threads up (default: 60)",
    )
    add_format(parser)
    add_store(parser)


def _lease(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 3 <= seconds <= 3600:
        raise ArgumentTypeError(f"{text!r} is no number of seconds from 3 to 3600")
    return seconds


def _stop_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--finish", action="store_true", help="let the steps that run come to their end")
    add_format(parser)


def _logs_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines are added")
    parser.add_argument(
        "--lines", type=at_least_one, default=50, metavar="N", help="the last N (default: 50)"
    )
    add_format(parser)


VERBS = {
    "": Verb(
        _serve,
        "run queued threads, as many at once as may be",
        "rolecall serve\nrolecall serve --detach --limit 8\nrolecall serve status\nrolecall serve logs -f\n"
        "rolecall serve stop",
        _serve_arguments,
    ),
    "status": Verb(_status, "show what the service is doing", "rolecall serve status", add_format),
    "stop": Verb(
        _stop,
        "stop the service; its threads go on when it runs again",
        "rolecall serve stop\nrolecall serve stop --finish",
        _stop_arguments,
    ),
    "logs": Verb(_logs, "print what the service has logged", "rolecall serve logs -f", _logs_arguments),
}
