"""Processes that tests know by their ids."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

PATIENCE = 180.0


def wait_for_environment(pid: int) -> None:
    """Wait until the kernel shows the environment of a process, which it does a moment after the process has begun its
    program."""
    environment, deadline = Path(f"/proc/{pid}/environ"), time.monotonic() + PATIENCE
    while not environment.read_bytes():
        assert time.monotonic() < deadline, f"process {pid} has no environment"
        os.sched_yield()


def stop_between_writes(pid: int, store: Path) -> None:
    """Stop a process that writes to a store in sqlite. In the middle of a write it would keep the store's lock."""
    deadline = time.monotonic() + PATIENCE
    with closing(sqlite3.connect(store, timeout=PATIENCE, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"T", b"Z"):
            assert time.monotonic() < deadline, f"process {pid} goes on"
            os.sched_yield()


def gone(pid: int) -> None:
    """Wait until a process has ended: one that was killed goes on for a moment."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} goes on"
    finally:
        os.close(handle)
