"""When a trigger is due, as pure functions of its schedule, the last time handled and the current time.

Times are milliseconds of the wall clock. Times missed because nothing ran, or because the clock was set forward, are
made up for only once. If the clock was set back, a time already handled is not handled again; if it was set back far,
the schedule starts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from rolecall.service.triggers.trigger import Cron, Every, Schedule

_LONG_WAY_BACK_MS = 86_400_000
_NEVER_MS = 8_640_000_000_000_000


class Turn(NamedTuple):
    """Whether a schedule is due."""

    slot: int | None
    """The planned time that is due, the latest if there are several; None if none is."""
    next: int
    """When it is due again."""


def turn(schedule: Schedule, last: int, now: int) -> Turn:
    """Compute the turn of a schedule. `last` is the last planned time handled, or when the trigger was first seen."""
    if isinstance(schedule, Every):
        return _every(round(schedule.seconds * 1000), last, now)
    return _cron(schedule, last, now)


def begins_anew(schedule: Schedule, last: int, now: int) -> bool:
    """Whether the clock was set back so far that the schedule should start again instead of waiting."""
    most = round(schedule.seconds * 1000) if isinstance(schedule, Every) else _LONG_WAY_BACK_MS
    return last > now + most


def _every(interval: int, last: int, now: int) -> Turn:
    passed = (now - last) // interval
    slot = last + passed * interval if passed > 0 else None
    return Turn(slot, (last if slot is None else slot) + interval)


def _cron(schedule: Cron, last: int, now: int) -> Turn:
    following = _next(schedule, last)
    if following is None or following > now:
        return Turn(None, following or _NEVER_MS)
    slot = max(_latest(schedule, now), following)
    return Turn(slot, _next(schedule, now) or _NEVER_MS)


def _next(schedule: Cron, after: int) -> int | None:
    """The first time after `after`; None if there is none within fifty years."""
    from cronsim import CronSim

    # When clocks are set back, the next local time may already have passed.
    times = CronSim(schedule.expression, _at(after, zone_of(schedule)))
    return next((_ms(at) for at in times if _ms(at) > after), None)


def _latest(schedule: Cron, now: int) -> int:
    """The last time up to `now`, which must exist."""
    from cronsim import CronSim

    behind = _at(now, zone_of(schedule)).replace(microsecond=0)
    behind = (behind.astimezone(UTC) + timedelta(seconds=1)).astimezone(behind.tzinfo)
    for at in CronSim(schedule.expression, behind, reverse=True):
        if _ms(at) <= now:
            return _ms(at)
    return now


def zone_of(schedule: Cron) -> tzinfo:
    from zoneinfo import ZoneInfo

    return UTC if schedule.timezone == "UTC" else ZoneInfo(schedule.timezone)


def _at(ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(ms / 1000, zone)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def find_flaws(schedule: Cron) -> Iterator[tuple[str, str, str]]:
    """Problems with a schedule as it is written: the key, the problem, and what to do."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        yield "cron", "needs the package 'cronsim', which is not installed", "pip install 'rolecall[service]'"
        return
    try:
        zone_of(schedule)
    except (ValueError, OSError, LookupError):
        yield "timezone", f"there is no time zone {schedule.timezone!r}", "For example Europe/Berlin or UTC."
    try:
        if len(schedule.expression.split()) != 5:
            raise CronSimError("it has not five fields")
        next(CronSim(schedule.expression, datetime(2024, 1, 1)))
    except (CronSimError, ValueError, AssertionError) as error:
        hint = 'Minute, hour, day, month, weekday: "0 3 * * 1-5"'
        yield "cron", f"{schedule.expression[:80]!r} is not a schedule: {error}", hint
    except StopIteration:
        yield "cron", f"{schedule.expression[:80]!r} never comes round", ""
