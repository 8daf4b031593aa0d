"""Processes that tests know by their ids."""

from __future__ import annotations

import os
import select

PATIENCE = 180.0


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
