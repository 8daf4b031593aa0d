"""`rolecall cost`: what threads have cost, by day, workflow, role, agent or thread."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rolecall.api import reader
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.arguments import TIMES, parse_time
from rolecall.cli.output import STORE, table
from rolecall.threads.report import money

if TYPE_CHECKING:
    from rolecall.threads.spending import Spent

_BY = ("day", "workflow", "role", "agent", "thread")
_MOST = 40
"""How many rows the text output shows; JSON contains all rows."""


@verb(
    "cost",
    "show what threads have cost, with reported, estimated and unknown costs apart",
    "rolecall cost\nrolecall cost --by agent --since 7d\nrolecall cost --by day --since 2026-11-01 --json",
    argument("--by", "|".join(_BY), "what to group by (default: workflow)", choices=_BY, default="workflow"),
    argument("--since", "TIME", f"{TIMES}, or all (default: 30d)", type=parse_time, default="30d"),
    STORE,
)
def cost(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        total, rows = rolecall.cost(since=options.since, by=options.by)
    shown = {
        "since": options.since,
        "by": options.by,
        "rows": [_describe(row) for row in rows],
        "total": _describe(total),
    }
    return CommandResult(shown, _word(options.by, total, rows))


def _describe(group: Spent) -> dict[str, Any]:
    amount = group.amount
    per_completed = round(group.spent / group.completed, 6) if group.completed and not group.unknown else None
    return {
        "name": group.name,
        **({"title": group.title} if group.title else {}),
        **({"threads": group.threads, "completed": group.completed} if group.threads else {}),
        "steps": amount.steps,
        "attempts": amount.attempts,
        "tokens": amount.tokens,
        "minutes": round(amount.minutes, 2),
        "reported": round(amount.cost, 6),
        "estimated": round(group.estimated, 6),
        "unknown": group.unknown,
        **({"perCompleted": per_completed} if group.threads else {}),
    }


def _word(by: str, total: Spent, rows: list[Spent]) -> Iterator[str]:
    if not rows:
        yield "nothing was used in this period"
        return
    shown = [*rows[:_MOST], total]
    columns: dict[str, list[Any]] = {by: [row.name for row in shown]}
    if by == "thread":
        columns = {by: [*(row.name[-6:] for row in rows[:_MOST]), total.name]}
        columns["title"] = [row.title for row in shown]
    if by == "workflow":
        columns["completed"] = [f"{row.completed} of {row.threads}" if row.threads else "" for row in shown]
    columns["steps"] = [row.amount.steps for row in shown]
    columns["tokens"] = [row.amount.tokens or "" for row in shown]
    columns["reported"] = [money(row.amount.cost) if row.amount.cost else "" for row in shown]
    if total.estimated:
        columns["estimated"] = [money(row.estimated) if row.estimated else "" for row in shown]
    if total.unknown:
        columns["unknown"] = [row.unknown or "" for row in shown]
    if by == "workflow":
        known = [row.completed and row.spent and not row.unknown for row in shown]
        columns["each"] = [
            money(row.spent / row.completed) if is_known else ""
            for row, is_known in zip(shown, known, strict=True)
        ]
    yield table(list(zip(*columns.values(), strict=True)), list(columns))
    if rows[_MOST:]:
        yield f"and {len(rows) - _MOST} more: add --json"
    if by == "workflow":
        yield "each: reported and estimated cost per completed thread, if none of it is unknown"
    if total.estimated:
        yield "estimated: steps without a reported cost, priced like the same agent's other tokens"
    if total.unknown:
        yield "unknown: steps whose agent has never reported a cost; no amount includes them"
