"""`rolecall serve status`, `stop` and `logs`: commands for the service that runs in this home."""

from __future__ import annotations

import os
from argparse import Namespace
from contextlib import suppress
from time import sleep
from typing import IO

from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.output import between, show_record, table, tell
from rolecall.errors import Conflict, RolecallError
from rolecall.service import control
from rolecall.settings import config


@verb("serve status", "show what the service is doing", "rolecall serve status")
def show_status(_options: Namespace) -> CommandResult:
    home = config.home()
    found = control.find_service(home)
    if found is None:
        text = "no service is running; start one with `rolecall serve --detach`"
        return CommandResult({"running": False, "home": home}, text, code=1)
    reply = control.ask(home, {"do": "status"})
    if not reply:
        raise Conflict("the service is just ending", hint="Ask again.")
    threads = reply.get("running", [])
    shown = {**reply, "running": True, "home": home, "pid": found["pid"], "threads": threads}
    queued = ", ".join(f"{count:,} of {name}" for name, count in shown["queued"].items()) or "none"
    lines = [
        f"the service runs as process {shown['pid']}, {len(threads)} of {shown['limit']} threads",
        f"waiting: {queued}",
    ]
    lines += [f"problem: {problem}" for problem in shown["problems"].values()]
    lines += [f"problem: {one['thread']}: {one['trouble']}" for one in threads if "trouble" in one]
    if shown["spent"]:
        lines.append(f"spent today: ${shown['spent']:.2f}")
    lines += [f"  because {reason}" for reason in list(dict.fromkeys(shown["waits"].values()))[:5]]
    if threads:
        rows = [(one["thread"], one["workflow"], str(one["pid"] or "")) for one in threads]
        lines.append(table(rows, ("id", "workflow", "process")))
    return CommandResult(shown, lines)


@verb(
    "serve stop",
    "stop the service; its threads continue when it runs again",
    "rolecall serve stop\nrolecall serve stop --finish",
    flag("--finish", "let running steps finish first"),
)
def stop(options: Namespace) -> CommandResult:
    found = control.find_service(config.home()) or {}
    control.stop(config.home(), finish=options.finish)
    return CommandResult({"stopped": True, "pid": found.get("pid")}, "the service has stopped")


@verb(
    "serve logs",
    "print the service's log",
    "rolecall serve logs -f",
    flag("-f --follow", "print new lines as they are added"),
    argument("--lines", "N", "the last N (default: 50)", type=between(1), default=50),
)
def print_logs(options: Namespace) -> None:
    path = control.log_path(config.home())
    try:
        file = _open(path)
    except FileNotFoundError:
        raise RolecallError(
            f"{path} does not exist", hint="The service writes it: `rolecall serve --detach`."
        ) from None
    lines = file.readlines()[-options.lines :]
    if missing := options.lines - len(lines):
        with suppress(FileNotFoundError), _open(f"{path}.1") as older:
            lines = [*older.readlines()[-missing:], *lines]
    _print_lines(options, lines)
    if options.follow:
        _follow(options, file, path)
    file.close()


def _open(path: str) -> IO[str]:
    return open(path, encoding="utf-8", errors="replace")


def _print_lines(options: Namespace, lines: list[str]) -> None:
    for line in lines:
        text = line.rstrip("\n")
        show_record(options, {"line": text}, text)


def _follow(options: Namespace, file: IO[str], path: str) -> None:
    """Print new lines until interrupted, even when the service is restarted."""
    was_running = True
    while True:
        # Check for a running service and a rotated log before reading the log to its end, so that no line is missed.
        is_running, is_current = control.find_service(config.home()) is not None, False
        with suppress(FileNotFoundError):
            is_current = os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
        _print_lines(options, file.readlines())  # lines are always written completely
        if was_running and not is_running:  # a killed service writes no last line
            tell("no service is running; waiting for the next one")
        was_running = is_running
        if not is_current:
            with suppress(FileNotFoundError):  # the log is being rotated
                new = _open(path)
                file.close()
                file = new
                continue
        sleep(0.2)
