"""The time: of a clock that nobody sets, and as files have it."""

from __future__ import annotations

import time


def steady_ms() -> int:
    """Milliseconds since some moment, the same for all processes of this host. It goes on while the machine sleeps,
    where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def timestamp() -> str:
    """Now, as files have it: RFC 3339, UTC, milliseconds."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"
