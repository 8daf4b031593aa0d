"""The process that holds a lease, distinguished from a later process with the same id.

A lease names its holder by host, process id and start time. On the same host the operating system says whether that
process is still alive; for another host only the deadline is known.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NotRequired, TypedDict

from rolecall.store.canonical import JsonObject

LEASE_MS = 60_000
"""Milliseconds that a lease lasts without renewal. Other hosts have to wait this long."""


class Process(TypedDict):
    """A process on a host. `born` is None if the start time of the process is unknown."""

    host: str
    pid: int
    born: str | None
    token: NotRequired[str]
    """Distinguishes two runs of the same process."""


def identify_self(token: str) -> Process:
    """Return this process as the holder of a lease. `token` distinguishes two runs of the same process."""
    return {**_process_once(os.getpid()), "token": token}


@lru_cache(1)
def _process_once(pid: int) -> Process:
    """Return our own process, which stays the same as long as its id does."""
    return process(pid)


def process(pid: int) -> Process:
    """Identify a process on this host uniquely, even across reboots and reused process ids."""
    return {"host": _host(), "pid": pid, "born": _born(pid)}


def is_alive(lease: JsonObject, *, now: int) -> bool:
    """Return whether the holder of a lease might still be at work."""
    if lease.get("host") != _host():
        return bool(now < lease.get("deadline", 0))
    pid = lease.get("pid", 0)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    born = _born(pid)
    return born is None or born == lease.get("born")


def name_of_host(process: JsonObject) -> str:
    return str(process.get("host", "")).partition("/")[0]


def is_of_this_boot(lease: JsonObject) -> bool:
    """Return whether the holder of a lease was started since the last boot, as far as that can be known."""
    theirs, ours = (str(host).split("/")[1:2] for host in (lease.get("host"), _host()))
    return not theirs or theirs == ours or "" in (*theirs, *ours)


def describe(lease: JsonObject) -> str:
    return f"process {lease.get('pid')} on {str(lease.get('host', '')).partition('/')[0]}"


def _host() -> str:
    """Return the host's name, boot id and process id namespace. A process id means nothing after a reboot, or in
    another container with the same host name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        numbering = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        boot = numbering = ""
    return f"{os.uname().nodename}/{boot}/{numbering}"


def _born(pid: int) -> str | None:
    """Return the start time of a process, in the system's own unit, or None if it is unknown.

    The start time is empty for a process that has ended but was not reaped by its parent.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name can contain spaces and parentheses, so count the fields after it.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
