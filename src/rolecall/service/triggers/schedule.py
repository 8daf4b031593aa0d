"""When a trigger is due, as pure functions of its schedule, the last planned time handled and the current time.

Times are wall-clock times in milliseconds. If several planned times were missed, because nothing ran or because the
clock was set forward, they are made up for only once. If the clock was set back, a planned time that was already
handled is not handled again; if it was set back far, the schedule starts over.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, NamedTuple

from rolecall.service.triggers.trigger import Cron, Every, Schedule
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import zoneinfo

    import cronsim
else:
    cronsim = Module("cronsim")  # comes with an extra; `find_flaws` reports that it is missing
    zoneinfo = Module("zoneinfo")  # every reader of a project file imports this module

_LONG_WAY_BACK_MS = 86_400_000
_NEVER_MS = 8_640_000_000_000_000


class ScheduleTurn(NamedTuple):
    """Whether a schedule is due."""

    slot: int | None
    """The planned time that is due, the latest one if there are several, or None if none is due."""
    next: int
    """The next planned time."""


def turn(schedule: Schedule, last: int, now: int) -> ScheduleTurn:
    """Compute whether a schedule is due. `last` is the last planned time handled, or the time the trigger was new."""
    if isinstance(schedule, Every):
        interval = round(schedule.seconds * 1000)
        passed = (now - last) // interval
        slot = last + passed * interval if passed > 0 else None
        return ScheduleTurn(slot, (last if slot is None else slot) + interval)
    following = _next(schedule, last)
    if following is None or following > now:
        return ScheduleTurn(None, following or _NEVER_MS)
    # To find the last planned time up to now, search backwards from the next full second.
    zone = zone_of(schedule)
    behind = datetime.fromtimestamp(now // 1000 + 1, UTC).astimezone(zone)
    latest = next((at for at in _times(schedule, behind, reverse=True) if at <= now), now)
    return ScheduleTurn(max(latest, following), _next(schedule, now) or _NEVER_MS)


def begins_again(schedule: Schedule, last: int, now: int) -> bool:
    """Return whether the clock was set back so far that the schedule should start over instead of waiting."""
    most = round(schedule.seconds * 1000) if isinstance(schedule, Every) else _LONG_WAY_BACK_MS
    return last > now + most


def _next(schedule: Cron, after: int) -> int | None:
    """Return the first planned time after `after`, or None if it is more than fifty years away."""
    # When clocks are set back, the next local time might already have passed.
    times = _times(schedule, datetime.fromtimestamp(after / 1000, zone_of(schedule)))
    return next((at for at in times if at > after), None)


def _times(schedule: Cron, at: datetime, *, reverse: bool = False) -> Iterator[int]:
    return (
        round(one.timestamp() * 1000) for one in cronsim.CronSim(schedule.expression, at, reverse=reverse)
    )


def zone_of(schedule: Cron) -> tzinfo:
    return UTC if schedule.timezone == "UTC" else zoneinfo.ZoneInfo(schedule.timezone)


def find_flaws(schedule: Cron) -> Iterator[tuple[str, str, str]]:
    """Yield the problems with a schedule as it is written: the key, the problem, and what to do."""
    try:
        zone_of(schedule)
    except (ValueError, OSError, LookupError):
        yield "timezone", f"{schedule.timezone!r} is not a time zone", "For example Europe/Berlin or UTC."
    try:
        if len(schedule.expression.split()) != 5:
            raise cronsim.CronSimError("it does not have five fields")
        next(cronsim.CronSim(schedule.expression, datetime(2024, 1, 1)))
    except ImportError:
        yield "cron", "needs the package 'cronsim', which is not installed", "pip install 'rolecall[service]'"
    except (cronsim.CronSimError, ValueError, AssertionError) as error:
        hint = 'Minute, hour, day, month, weekday: "0 3 * * 1-5"'
        yield "cron", f"{schedule.expression[:80]!r} is not a schedule: {error}", hint
    except StopIteration:
        yield "cron", f"{schedule.expression[:80]!r} never matches a date", ""
