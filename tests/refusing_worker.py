"""The process of a step whose store refuses a write, as `refuser.py` does for the service around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refuser import arm, counts_down

from rolecall.service import worker
from rolecall.service.worker import warm_up

__all__ = ["run", "warm_up"]


def run(words: Mapping[str, Any], notes: int) -> None:
    arm(counts_down)
    worker.run(words, notes)
