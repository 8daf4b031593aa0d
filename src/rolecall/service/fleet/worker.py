"""The process of one step on a fleet machine: has its own connection, and waits while the server is unavailable."""

from __future__ import annotations

from typing import Any

from rolecall.service import worker
from rolecall.service.fleet.shared import SharedBackend
from rolecall.service.worker import StepOrder, warm_up
from rolecall.settings import config
from rolecall.store.canonical import JsonObject
from rolecall.store.clock import steady_ms

__all__ = ["run", "warm_up"]


def run(words: JsonObject, notes: int) -> None:
    order = StepOrder(**words)
    backend: Any = SharedBackend(config.store_settings().url, size=1)
    worker.take_step(order, notes, backend, now=lambda: steady_ms() + order.clock_ahead_ms)
