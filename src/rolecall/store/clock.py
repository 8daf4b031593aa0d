"""The time: from a monotonic clock, and as a timestamp for files."""

from __future__ import annotations

import time


def steady_ms() -> int:
    """Milliseconds on a monotonic clock, the same for all processes of this host. It includes time spent asleep if the
    system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def timestamp() -> str:
    """The current time as written in files: RFC 3339, UTC, milliseconds."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"
