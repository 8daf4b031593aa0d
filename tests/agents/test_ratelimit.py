"""Limits that agents report as text, in the words of the real programs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rolecall.agents.ratelimit import Limit, find_limit

NOW = datetime(2026, 11, 16, 14, 0, tzinfo=UTC)
UNKNOWN = "unknown"
SAID = {
    "Claude AI usage limit reached|1794841200": "2026-11-16 15:00",
    "Claude usage limit reached. Your limit will reset at 1pm (Etc/GMT+5).": "2026-11-16 18:00",
    "You've hit your session limit · resets 12:50am (America/Bogota)": "2026-11-17 05:50",
    "You've hit your limit · resets 3pm (Europe/London)": "2026-11-16 15:00",
    "Weekly limit reached ∙ resets Nov 19 at 9am (UTC)": "2026-11-19 09:00",
    "You've hit your weekly limit · resets Jan 2, 1:30pm (America/New_York)": "unknown",
    "api_error: limit (limit reached, resets_at 1794841200)": "2026-11-16 15:00",
    "You've hit your usage limit. Upgrade to Pro (https://example.org) or try again in 2 days 17 hours 14 minutes.": (
        "2026-11-19 07:14"
    ),
    "You've hit your usage limit, or try again at Dec 5th, 2026 8:19 PM.": "2026-12-05 20:19",
    "You've hit your usage limit. Try again at 1:45 PM.": "2026-11-16 13:45",  # just past
    "You've hit your usage limit. Try again at 9:00 AM.": "2026-11-17 09:00",
    "Rate limit reached for a model on tokens per min. Please try again in 20.000s. Visit": "2026-11-16 14:00:20",
    '{"type":"usage_limit_reached","resets_at":1794844800,"resets_in_seconds":7200}': "2026-11-16 16:00",
    "You have exhausted your capacity on this model. Your quota will reset after 21h53m56s.": (
        "2026-11-17 11:53:56"
    ),
    'RESOURCE_EXHAUSTED {"@type": "RetryInfo", "retryDelay": "36s"}': "2026-11-16 14:00:36",
    "HTTP 429 Too Many Requests; Retry-After: 30": "2026-11-16 14:00:30",
    "the endpoint refused with HTTP 429: busy (it asks to wait 3600 s)": "2026-11-16 15:00",
    "Rate limited, resets at 2026-11-16T15:00:00Z": "2026-11-16 15:00",
    '429 {"error": "rate limit", "reset_at": "2026-11-16T15:00:00+00:00"}': "2026-11-16 15:00",
    "2026-11-16T13:59:59Z ERROR rate limit exceeded": UNKNOWN,
    "limit reached until 15:00": "2026-11-16 15:00",
    "limit reached until 25:00": UNKNOWN,
    "usage limit reached, resets at 9 AM PST": UNKNOWN,
    "usage limit reached, try again at 5:00 PM (EST).": UNKNOWN,
    "usage limit reached|9999999999": UNKNOWN,
    "rate limit exceeded": UNKNOWN,
    "Quota exceeded for quota metric 'Requests per day'": UNKNOWN,
    "the limit of 100 turns is reached": "",
    "Please try again in 5 minutes.": "",
    "exit code 1": "",
}


@pytest.mark.parametrize(("text", "expected"), SAID.items())
def test_a_limit_and_its_end_are_found(text: str, expected: str) -> None:
    found = find_limit(text, now=int(NOW.timestamp() * 1000), zone=UTC)
    if expected in ("", UNKNOWN):
        assert found == (Limit(None) if expected else None)
        return
    assert found is not None and found.until is not None
    assert datetime.fromtimestamp(found.until / 1000, UTC) == datetime.fromisoformat(f"{expected}+00:00")


def test_only_the_end_of_a_text_counts() -> None:
    text = "usage limit reached|1794841200\n" + "and so on\n" * 1000
    assert find_limit(text, now=int(NOW.timestamp() * 1000)) is None


def test_hostile_text_is_read_quickly() -> None:
    for piece in ("1 s ", "resets 1", "hit your limit ", "exceeded a ", "try again in 1h"):
        find_limit("rate limit " + piece * 100_000, now=0)
