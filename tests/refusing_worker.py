"""The process of a step whose store refuses a write, as `refuser.py` does for the service around it."""

from __future__ import annotations

from refuser import arm, counts_down

from rolecall.service import worker
from rolecall.service.worker import run

__all__ = ["run", "warm_up"]


def warm_up() -> None:
    worker.warm_up()
    arm(counts_down)
