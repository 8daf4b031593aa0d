"""The process of a step on a fleet machine. It has its own connection, and waits while the server is unavailable."""

from __future__ import annotations

from typing import Any

from rolecall.service import worker
from rolecall.service.fleet.shared import SharedBackend
from rolecall.service.worker import StepOrder, warm_up
from rolecall.settings import config
from rolecall.store.canonical import JsonObject
from rolecall.store.clock import steady_ms

__all__ = ["run", "warm_up"]


_backend: Any = None


def run(words: JsonObject, notes: int) -> bool:
    global _backend
    order = StepOrder(**words)
    _backend = _backend or SharedBackend(config.store_settings().url, size=1)
    return worker.take_step(order, notes, _backend, now=lambda: steady_ms() + order.clock_ahead_ms)
