"""The verb that shows what threads have used, by day, workflow, role and agent."""

from __future__ import annotations

from time import time
from typing import Any

from rolecall.web.verbs import Ask, get

_SECONDS = 1.5


@get(
    "/spend",
    "What threads used: rows of day, workflow, role and agent. `unpriced` counts steps whose agent reported no cost. "
    "While `left` is above 0, ask again: counting continues where it stopped.",
    is_slow=True,
    days="how many days back, at most 366 (default 30)",
)
def show_spend(ask: Ask) -> Any:
    days = ask.number("days", 30, most=366)
    since = int(time() * 1000) - days * 86_400_000
    return ask.rolecall.spend(since=since, seconds=_SECONDS) | {"days": days}


@get(
    "/limits",
    "Threads that have not ended and have used 80 % of a limit or more, the nearest first; `more` says that older "
    "threads were not looked at.",
    is_slow=True,
)
def list_near_limits(ask: Ask) -> Any:
    found = ask.rolecall.near_limits()
    return {**found, "threads": [{**one, "continue": None} for one in found["threads"]]}
