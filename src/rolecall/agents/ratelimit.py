"""Recognises errors in which a provider reports that a limit is reached, and finds when the limit ends.

Most agents report limits only as text. The text can give the end as a moment ("resets 3pm (Europe/London)",
"|1762952400"), a date, or a duration ("try again in 2 days 3 hours", "Retry-After: 30"). Callers must not pass what an
agent or a command wrote about its work, because it could mention limits. The functions have no side effects.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

LONGEST_DAYS = 40
"""The latest end, in days from now, that is trusted; for a later one, a person decides when to continue."""
_READ = 1_500
"""The number of characters read at the end of a text: an agent stops at its limit, so the report comes last."""
_JUST_PAST = timedelta(minutes=30)
"""The maximum age at which a time of day without a date still means today rather than tomorrow."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Strings rather than compiled patterns, so that importing this module compiles nothing. Every search takes time linear
# in the length of the text.
_LIMIT = (
    r"\blimit (?:is |was )?(?:reached|exceeded|hit)"
    r"|(?:hit|reached|exceeded?) (?:your|the|its) [\w\- ]{0,40}\b(?:limit|quota)\b"
    r"|(?:rate|usage|session|weekly|daily)[ _\-]?limit|ratelimit|too many requests"
    r"|\bHTTP 429\b|status(?:[_ ]?code)?\W{1,3}429\b|\b429\b.{0,40}(?:requests|exhausted|quota)"
    r"|quota (?:exceeded|will reset)|exceeded .{0,20}quota|RESOURCE_EXHAUSTED"
    r"|exhausted your (?:capacity|quota)|asks to wait|\bretry-after: ?\d"
)
_AGAIN = r"(?:resets?|reset_at|try again|retry(?:ing)?|available(?: again)?|until|wait)"
_UNIT = r"(?:ms|milliseconds?|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)"
_TIME_PART = rf"(\d+(?:\.\d+)?)\s?({_UNIT})(?![a-z])"
_TOGETHER = rf"\d+(?:\.\d+)?\s?{_UNIT}(?:[\s,]{{0,3}}(?:and\s)?\d+(?:\.\d+)?\s?{_UNIT})*"  # also 1h2m3s
_EPOCH = r"(?:limit reached\||resets?_?at\"?\s?[:=]?\s?\"?)(?P<at>\d{10}(?:\d{3})?)\b"
_SECONDS = (
    r"(?:retry[-_ ]?after(?:[-_ ]seconds)?|resets?_in_seconds)[\"']?\s?[:=]?\s?[\"']?"
    r"(?P<count>\d+(?:\.\d+)?)(?![\d:\w])"
)
_DURATION = rf"(?:{_AGAIN}|retryDelay)\W{{0,5}}(?:(?:in|after|for)\s)?\W{{0,2}}(?P<all>{_TOGETHER})"
_ISO = (
    rf"{_AGAIN}[^\n]{{0,20}}?"  # the time must not be the timestamp of a log line
    r"(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)\s?(?P<zone>Z|UTC|[+\-]\d\d:?\d\d)?"
)
_CLOCK = (
    rf"{_AGAIN}\W{{0,4}}(?:at |on )?"
    rf"(?:(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?"
    r"(?:,? (?P<year>\d{4}))?,? (?:at )?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?(?::\d\d)?\s?(?P<half>[ap]\.?m\b)?"
    # An abbreviation can mean several zones, so a time with an abbreviation is not used.
    r"(?:\s?\(?(?:(?P<zone>UTC|GMT|[A-Z][A-Za-z_]+/[A-Za-z_/+\-0-9]+)"
    r"|(?P<unclear>[PMCEA][SD]?T|CES?T|BST|IST|JST|MSK|A[CEW][SD]T)\b)\)?)?"
)


class Limit(NamedTuple):
    """A limit that an agent has reached."""

    until: int | None
    """When the limit ends, in milliseconds; None if the agent does not say."""


def names_limit(error: str) -> bool:
    """Return whether an error message reports a limit."""
    return re.search(_LIMIT, error[-_READ:], re.IGNORECASE) is not None


def find_limit(text: str, *, now: int, zone: tzinfo | None = None) -> Limit | None:
    """Return the limit reported at the end of a text, or None. `zone` is the time zone for times that name none; the
    default is the machine's time zone."""
    if not names_limit(text):
        return None
    until = _find_moment(text[-_READ:], datetime.fromtimestamp(now / 1000, UTC), zone)
    if until is None or until > datetime.fromtimestamp(now / 1000, UTC) + timedelta(days=LONGEST_DAYS):
        return Limit(None)
    return Limit(int(until.timestamp() * 1000))


def _find_moment(text: str, now: datetime, zone: tzinfo | None) -> datetime | None:
    """Return the last time in the text. If the text gives times in several forms, the most exact form counts."""
    if found := _last(_EPOCH, text):
        stamp = int(found["at"])
        return datetime.fromtimestamp(stamp / 1000 if stamp > 10**12 else stamp, UTC)
    if found := _last(_SECONDS, text):
        return now + timedelta(seconds=min(float(found["count"]), 10**9))
    if found := _last(_DURATION, text):
        durations = re.findall(_TIME_PART, found["all"].lower())
        names = [("ms" if unit.startswith(("ms", "milli")) else unit[0]) for _, unit in durations]
        seconds = sum(float(count) * _UNITS[name] for (count, _), name in zip(durations, names, strict=True))
        return now + timedelta(seconds=min(seconds, 10**9))
    try:
        if found := _last(_ISO, text):
            at = datetime.fromisoformat(found["at"].replace(" ", "T"))
            named = (found["zone"] or "").upper()
            if named in ("Z", "UTC"):
                return at.replace(tzinfo=UTC)
            if named:
                return datetime.fromisoformat(f"{found['at'].replace(' ', 'T')}{named}")
            return at.replace(tzinfo=zone) if zone else at.astimezone()
        for found in reversed(list(re.finditer(_CLOCK, text, re.IGNORECASE))):
            if found["half"] or found["minute"]:  # a bare number need not be a time
                if found["unclear"]:
                    return None
                return _next_time(found, now, zone)
    except (ValueError, OverflowError):  # such as 25:00
        pass
    return None


def _next_time(found: re.Match[str], now: datetime, zone: tzinfo | None) -> datetime:
    """Return the moment that a time of day means, with or without a date."""
    hour, minute = int(found["hour"]), int(found["minute"] or 0)
    if half := (found["half"] or "").lower():
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    if named := found["zone"]:
        try:
            zone = UTC if named.upper() in ("UTC", "GMT") else ZoneInfo(named)
        except (KeyError, ValueError, OSError):  # no such zone here
            zone = None
    here = now.astimezone(zone)
    at = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if found["month"]:
        month, year = _MONTHS.index(found["month"][:3].lower()) + 1, int(found["year"] or here.year)
        at = at.replace(year=year, month=month, day=int(found["day"]))
        if not found["year"] and at < here - timedelta(days=180):
            at = at.replace(year=year + 1)
    elif at < here - _JUST_PAST:
        at += timedelta(days=1)
    return at


def _last(pattern: str, text: str) -> re.Match[str] | None:
    return next(reversed(list(re.finditer(pattern, text, re.IGNORECASE))), None)
