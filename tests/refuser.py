"""A command whose store refuses writes: the disk is full at the write it is told, once or from then on.

Started once, it forks a fresh process for every order it reads, because starting Python is most of what a child costs.
An order is a line of JSON: the arguments of `rolecall`, the number of the first write that fails and of the last, and
a file for the output. The answer has the exit code, or None where the process did not end in time, and how many
writes it came to.

Started with arguments, it is `rolecall` with these. It or the process of one of its steps fails once, after as many
writes as the file named by REFUSE says, and removes the file.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolecall import __main__ as program
from rolecall.service.workers import Workers
from rolecall.store import disk, files, journal
from rolecall.store.sqlite import SqliteBackend
from rolecall.threads import compose
from rolecall.workflow import registry

PATIENCE = 120.0


def arm(is_refused: Callable[[], bool]) -> None:
    """Ask before every write of a store in this process whether it fails."""
    move_refs, write_all = SqliteBackend._move_refs, disk.write_all

    def refuse() -> None:
        if is_refused():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def commit(*args: Any) -> Any:
        try:
            refuse()
        except OSError as error:
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full from error
        return move_refs(*args)

    def write(file: int, data: bytes) -> None:
        refuse()
        write_all(file, data)

    setattr(SqliteBackend, "_move_refs", commit)  # noqa: B010 -- it is a method to the type checker
    for module in (disk, journal):
        setattr(module, "write_all", write)  # noqa: B010


def perform(order: dict[str, Any], answer: int) -> None:
    count = 0

    def is_refused() -> bool:
        nonlocal count
        count += 1
        return bool(order["first"] <= count <= order["last"])

    code = 70
    try:
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        arm(is_refused)
        os.chdir(order["folder"])
        code = program.main(order["argv"])
    finally:
        sys.stdout.flush()
        os.write(answer, str(count).encode())
        os._exit(code)


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        perform(order, writing)
    os.close(writing)
    handle = os.pidfd_open(child)
    is_over = bool(select.select([handle], [], [], PATIENCE)[0])
    os.close(handle)
    if not is_over:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        count = int(pipe.read() or b"0")
    return {"code": os.waitstatus_to_exitcode(status) if is_over else None, "writes": count}


def counts_down() -> bool:
    """Whether the file named by REFUSE says that it is this write."""
    file = Path(os.environ["REFUSE"])
    if not file.exists():
        return False
    left = int(file.read_text()) - 1
    if left:
        file.write_text(str(left))
    else:
        file.unlink()
    return not left


def main() -> None:
    if sys.argv[1:]:
        arm(counts_down)
        os.environ["PYTHONPATH"] = os.path.dirname(__file__)
        Workers.__init__.__kwdefaults__ = {"entry": "refusing_worker"}
        sys.exit(program.main(sys.argv[1:]))
    assert registry and compose and files  # imported here for all forks
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
