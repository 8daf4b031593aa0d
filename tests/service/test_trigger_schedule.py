"""When a trigger is due: missed times once, no storms when clocks jump or hours come twice."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.service.triggers.schedule import begins_again, turn
from rolecall.service.triggers.trigger import Cron, Every, parse_duration, show_duration

HOUR = 3_600_000
DAY = 24 * HOUR


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    when = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(when.timestamp() * 1000)


def fired(schedule: Every | Cron, begin: int, end: int, step: int) -> list[int]:
    """The slots that are heeded by somebody who looks every `step` from `begin` to `end`."""
    last, slots = begin, []
    for now in range(begin, end + 1, step):
        slot = turn(schedule, last, now).slot
        if slot is not None:
            last = slot
            slots.append(slot)
    return slots


def test_an_interval_counts_from_when_it_was_first_seen() -> None:
    assert turn(Every(60), last=1000, now=60_999) == (None, 61_000)
    assert turn(Every(60), last=1000, now=61_000) == (61_000, 121_000)


def test_a_thousand_missed_intervals_are_made_up_for_once() -> None:
    slot, following = turn(Every(60), last=0, now=1000 * 60_000 + 17)
    assert slot == 1000 * 60_000
    assert following == 1001 * 60_000
    assert turn(Every(60), last=slot, now=1000 * 60_000 + 17).slot is None


@given(st.integers(1, 10**6), st.integers(0, 10**12), st.integers(0, 10**12))
def test_an_interval_is_never_due_twice_for_one_time(seconds: int, last: int, later: int) -> None:
    now = last + later
    found = turn(Every(seconds), last, now)
    if found.slot is not None:
        assert last < found.slot <= now
        assert turn(Every(seconds), found.slot, now).slot is None
    assert found.next > now


def test_a_missed_cron_is_made_up_for_once_with_its_latest_time() -> None:
    hourly = Cron("0 * * * *")
    last, now = at("2026-03-01T00:00"), at("2026-03-05T10:30")
    slot, following = turn(hourly, last, now)
    assert slot == at("2026-03-05T10:00")
    assert following == at("2026-03-05T11:00")
    assert turn(hourly, slot, now).slot is None


def test_a_time_that_a_spring_night_leaves_out_comes_once() -> None:
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    begin, end = at("2026-03-28T12:00", "Europe/Berlin"), at("2026-03-30T12:00", "Europe/Berlin")
    slots = fired(berlin, begin, end, 300_000)
    # 02:30 does not exist on the 29th: it is heeded when the clock is put forward.
    assert slots == [at("2026-03-29T03:00", "Europe/Berlin"), at("2026-03-30T02:30", "Europe/Berlin")]


def test_a_time_that_an_autumn_night_has_twice_comes_once() -> None:
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    begin, end = at("2026-10-24T12:00", "Europe/Berlin"), at("2026-10-26T12:00", "Europe/Berlin")
    assert fired(berlin, begin, end, 300_000) == [
        at("2026-10-25T02:30", "Europe/Berlin"),
        at("2026-10-26T02:30", "Europe/Berlin"),
    ]


def test_a_trigger_first_seen_in_the_second_of_two_equal_hours_does_not_fire_for_the_first() -> None:
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    seen = at("2026-10-25T02:10", "Europe/Berlin", fold=1)
    found = turn(berlin, seen, seen + 60_000)
    assert found == (None, at("2026-10-26T02:30", "Europe/Berlin"))


def test_every_half_hour_is_half_an_hour_apart_also_in_an_autumn_night() -> None:
    berlin = Cron("*/30 * * * *", "Europe/Berlin")
    begin = at("2026-10-24T22:00", "Europe/Berlin")
    slots = fired(berlin, begin, begin + 10 * HOUR, 300_000)
    assert [later - sooner for sooner, later in pairwise(slots)] == [HOUR // 2] * 19


def test_a_clock_that_was_put_back_does_not_repeat_what_was_heeded() -> None:
    hourly = Cron("0 * * * *")
    heeded = at("2026-03-05T10:00")
    assert turn(hourly, heeded, at("2026-03-05T09:59")).slot is None
    assert turn(hourly, heeded, at("2026-03-05T10:00")).slot is None
    assert turn(hourly, heeded, at("2026-03-05T11:00")).slot == at("2026-03-05T11:00")
    assert not begins_again(hourly, heeded, at("2026-03-05T09:00"))


def test_after_a_long_way_back_a_schedule_begins_again() -> None:
    assert begins_again(Every(60), last=DAY, now=0)
    assert not begins_again(Every(60), last=60_000, now=0)
    assert begins_again(Cron("0 * * * *"), last=3 * DAY, now=DAY)


def test_a_schedule_that_never_comes_round_is_never_due() -> None:
    now = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    leap_monday = Cron("0 0 29 2 1")
    assert turn(leap_monday, now, now).slot is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1.5h", 5400), ("15m", 900), ("10min", 600), ("1d", 86400), (" 2 h ", 7200)],
)
def test_durations_have_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(show_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["90", "s", "-5m", "1h30m", "1y", "", 90, None, ["1h"]])
def test_anything_else_is_no_duration(text: object) -> None:
    assert parse_duration(text) is None
