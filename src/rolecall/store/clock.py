"""The time: milliseconds of a monotonic clock, and timestamps for files."""

from __future__ import annotations

import time


def steady_ms() -> int:
    """Return the milliseconds of a monotonic clock, the same for all processes on this host. Time spent asleep is
    included if the system counts it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def timestamp() -> str:
    """Return the current time as written in files: RFC 3339, UTC, with milliseconds."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"
