"""Format forecasts for `workflow try` and `run --dry`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolecall.cli.output import plural, table
from rolecall.threads.dry_run import Outlook
from rolecall.threads.forecast import NOTHING, Forecast, Range, Sum, add_up
from rolecall.threads.report import describe_savings, money


def view(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast for one thread as JSON: a range or null for each amount, and the number of past calls behind
    the forecast."""
    ranges = {amount: one.range and one.range._asdict() for amount, one in add_up([forecast]).items()}
    return {**ranges, "past": 0 if forecast == NOTHING else len(forecast.rests)}


def view_sums(sums: Mapping[str, Sum]) -> dict[str, Any]:
    """Return sums of forecasts as JSON. For each amount, `unknown` counts the threads without a forecast."""
    return {
        amount: {
            **(one.range._asdict() if one.range else dict.fromkeys(Range._fields)),
            "unknown": one.unknown,
        }
        for amount, one in sums.items()
    }


def word(sums: Mapping[str, Sum]) -> str:
    """Describe in words what the remaining steps might use: the cost or, if the tokens of more threads are known, the
    tokens."""
    amount = min(("cost", "tokens"), key=lambda amount: sums[amount].unknown)
    found, unknown = sums[amount]
    if found is None:
        return "unknown"
    words = [f"{value:,.0f}" if value < 10_000 else f"{value / 1000:,.0f}k" for value in found]
    low, median, high = map(money, found) if amount == "cost" else words
    text = f"{median}{' tokens' if amount == 'tokens' else ''}" if found.high else "nothing"
    text += f" ({low} to {high})" if low != high else ""
    return f"{text}, {unknown:,} unknown" if unknown else text


def view_outlook(outlook: Outlook) -> dict[str, Any]:
    reused = [{"number": one.number, "role": one.role, **one.origin._asdict()} for one in outlook.reused]
    return {**outlook._asdict(), "reused": reused, "forecast": view(outlook.forecast)}


def word_outlook(outlook: Outlook) -> Iterator[str]:
    yield f"{plural(len(outlook.reused), 'step')} would be reused"
    for one in outlook.reused:
        saved = describe_savings(one.origin.saved)
        saves = f" · saves {saved}" if saved else ""
        yield f"✓ {one.number} {one.role} · reused from …{one.origin.thread[-4:]}{saves}"
    if outlook.asks is None:
        yield f"no agent would be asked: {outlook.reason}"
        return
    yield f"{outlook.asks} would be asked: {outlook.reason}"
    known = f"{plural(outlook.threads, 'earlier thread')} of this workflow"
    yield f"the rest may cost: {word(add_up([outlook.forecast]))} (from {known})"


def word_outlooks(outlooks: Sequence[Outlook]) -> str:
    rows = [
        (number, len(one.reused), one.asks or "nobody", word(add_up([one.forecast])))
        for number, one in enumerate(outlooks, 1)
    ]
    sums = add_up(one.forecast for one in outlooks)
    shown = table(rows, ("thread", "steps reused", "would be asked", "the rest may cost"))
    return f"{shown}\n\nthe rest of all {len(rows):,} threads may cost: {word(sums)}"
