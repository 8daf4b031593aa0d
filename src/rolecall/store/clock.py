"""A clock that nobody sets."""

from __future__ import annotations

import time


def steady_ms() -> int:
    """Milliseconds since some moment, the same for all processes of this host. It goes on while the machine sleeps,
    where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
