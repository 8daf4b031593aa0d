"""`rolecall cost`: what threads have cost, by day, workflow, role, agent or thread."""

from __future__ import annotations

from argparse import Namespace
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
    return CommandResult(shown, lambda: _text(options.by, total, rows))


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


def _text(by: str, total: Spent, rows: list[Spent]) -> str:
    if not rows:
        return "nothing was used in this period"
    has_threads = by == "workflow"
    headings = [by, *(["title"] if by == "thread" else ["completed"] if has_threads else [])]
    headings += ["steps", "tokens", "reported"]
    headings += ["estimated"] if total.estimated else []
    headings += ["unknown"] if total.unknown else []
    headings += ["each"] if has_threads else []

    def cells(row: Spent) -> list[Any]:
        found: list[Any] = [row.name]
        if by == "thread":
            found = [row.name if row is total else row.name[-6:], row.title]
        elif has_threads:
            found.append(f"{row.completed} of {row.threads}" if row.threads else "")
        found += [
            row.amount.steps,
            row.amount.tokens or "",
            money(row.amount.cost) if row.amount.cost else "",
        ]
        found += [money(row.estimated) if row.estimated else ""] if total.estimated else []
        found += [row.unknown or ""] if total.unknown else []
        if has_threads:
            is_known = row.completed and row.spent and not row.unknown
            found.append(money(row.spent / row.completed) if is_known else "")
        return found

    lines = [table([cells(row) for row in [*rows[:_MOST], total]], headings)]
    lines += [f"and {len(rows) - _MOST} more: add --json"] if rows[_MOST:] else []
    if has_threads:
        lines.append("each: reported and estimated cost per completed thread, if none of it is unknown")
    if total.estimated:
        lines.append("estimated: steps without a reported cost, priced like the same agent's other tokens")
    if total.unknown:
        lines.append("unknown: steps whose agent has never reported a cost; no amount includes them")
    return "\n".join(lines)
