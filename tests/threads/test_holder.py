"""A lease's holder is one very process: not a later one with its number, not one that is dead already."""

from __future__ import annotations

import os
import signal
import subprocess

from rolecall.store import holder

NOW = 1_000_000


def lease_of(pid: int) -> dict[str, object]:
    return {
        **holder.identify_self("token"),
        "pid": pid,
        "born": holder._born(pid),
        "deadline": NOW + holder.LEASE_MS,
    }


def test_this_process_is_alive_whatever_the_deadline() -> None:
    mine = {**holder.identify_self("token"), "deadline": 0}
    assert holder.is_alive(mine, now=NOW)
    assert holder.describe(mine).startswith(f"process {os.getpid()} on ") and "/" not in holder.describe(mine)


def test_a_process_is_dead_once_it_ended_even_before_anybody_noticed() -> None:
    with subprocess.Popen(["sleep", "300"]) as child:
        lease = lease_of(child.pid)
        assert holder.is_alive(lease, now=NOW)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not holder.is_alive(lease, now=NOW)
    assert not holder.is_alive(lease, now=NOW)


def test_another_process_with_the_same_number_is_not_the_holder() -> None:
    assert not holder.is_alive({**lease_of(os.getpid()), "born": "1"}, now=NOW)


def test_a_boot_ago_is_another_host() -> None:
    lease = {**lease_of(os.getpid()), "host": "here/another-boot"}
    assert holder.is_alive(lease, now=NOW) and not holder.is_alive(lease, now=NOW + holder.LEASE_MS)
    assert not holder.is_alive({"host": "elsewhere"}, now=NOW)
