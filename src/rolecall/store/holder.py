"""Who is running a thread: a process, told apart from a later one with the same number.

A lease names its holder by host, process id and the time the process was born. On the same host the
operating system says whether that very process still lives; of another host only the deadline is known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

LEASE_MS = 60_000
"""How long a lease is good without being renewed; what another host has to wait for."""


def me(token: str) -> dict[str, Any]:
    """This process as a lease's holder; `token` tells two runs of one process apart."""
    return {**process(os.getpid()), "token": token}


def process(pid: int) -> dict[str, Any]:
    """A process of this host, told apart from any other that ever was or will be."""
    return {"host": _host(), "pid": pid, "born": _born(pid)}


def is_alive(lease: Mapping[str, Any], *, now: int) -> bool:
    """Whether the holder of a lease may still be at work."""
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


def is_of_this_boot(lease: Mapping[str, Any]) -> bool:
    """Whether the holder of a lease was started since the machine was, as far as can be told."""
    theirs, ours = (str(host).split("/")[1:2] for host in (lease.get("host"), _host()))
    return not theirs or theirs == ours or "" in (*theirs, *ours)


def describe(lease: Mapping[str, Any]) -> str:
    return f"process {lease.get('pid')} on {str(lease.get('host', '')).partition('/')[0]}"


def _host() -> str:
    """The host's name, its boot and, in a container, which one it is: after a reboot the same process number means
    nothing, and nothing in another container that has the host's name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        numbering = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        boot = numbering = ""
    return f"{os.uname().nodename}/{boot}/{numbering}"


def _born(pid: int) -> str | None:
    """When a process was started, in whatever unit the system gives; None where it does not.

    A process that has ended and waits for its parent to notice was never born."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name may hold spaces and brackets, so fields are counted from its end.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
