"""`rolecall workflow try`: show what an edited workflow would have done with recorded threads."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, forecast, verb
from rolecall.cli.arguments import TIMES, parse_time
from rolecall.cli.output import STORE, plural, table
from rolecall.errors import NotFound, UsageError
from rolecall.threads.forecast import add_up
from rolecall.threads.tryout import Trial


@verb(
    "workflow try",
    "walk recorded threads through an edited workflow; no agent is asked and nothing is stored",
    "rolecall workflow try .workflows/fix-bug.yaml\n"
    "rolecall workflow try fix-bug --on 30d\n"
    "rolecall workflow try ./fix-bug-2.yaml 01M7F72S 7Z8C --json",
    argument("workflow", "NEW", "the edited workflow: a path, a name or an id"),
    argument(
        "threads", "THREAD", "threads to try it on (default: all of the workflow with its name)", nargs="*"
    ),
    argument("--on", "TIME", f"only threads that began since: {TIMES}", type=parse_time),
    flag("--code", "run the code of a workflow in Python, if you trust it"),
    STORE,
)
def try_workflow(options: Namespace) -> CommandResult:
    if options.threads and options.on is not None:
        raise UsageError("--on and threads were given", hint="Give one of them.")
    with Rolecall(options.store, create=False) as rolecall:
        since, runs_code = options.on or 0, options.code
        trials = [*rolecall.try_workflow(options.workflow, options.threads, since=since, runs_code=runs_code)]
        if not trials:
            raise NotFound(
                f"no thread is recorded to try {options.workflow} on",
                hint="Name threads of another workflow, or an earlier time.",
            )
        length = rolecall.short_id_length()
    differing = [trial for trial in trials if trial.difference]
    unread = [trial for trial in trials if trial.problem]
    value = {
        "workflow": options.workflow,
        "threads": len(trials),
        "unchanged": len(trials) - len(differing) - len(unread),
        "differ": len(differing),
        "unread": len(unread),
        "forecast": forecast.view_sums(add_up(trial.forecast for trial in differing)) if differing else None,
        "trials": [_view(trial) for trial in trials],
    }
    code = 1 if differing else 4 if unread else 0
    return CommandResult(value, _word(trials, length), code=code)


def _view(trial: Trial) -> dict[str, Any]:
    found = trial.difference
    shown = found and {
        "step": found.step,
        "role": found.role,
        "changes": [{**change._asdict(), "text": str(change)} for change in found.changes],
        "asks": found.asks,
    }
    return {
        "thread": trial.thread,
        "title": trial.title,
        "status": trial.status,
        "steps": trial.steps,
        "difference": shown,
        "forecast": forecast.view(trial.forecast) if found else None,
        "problem": trial.problem or None,
    }


def _word(trials: list[Trial], id_length: int) -> Iterator[str]:
    """Yield a table of the ways in which threads would differ, the most frequent way first."""
    alike: dict[tuple[str | None, str], list[Trial]] = {}
    for trial in trials:
        if trial.difference:
            alike.setdefault((trial.difference.role, str(trial.difference)), []).append(trial)
    unread = [trial for trial in trials if trial.problem]
    count = sum(map(len, alike.values()))
    yield f"{plural(len(trials), 'thread')}, {count:,} would differ"
    rows = []
    for (role, what), some in sorted(alike.items(), key=lambda entry: -len(entry[1])):
        numbers = [trial.difference.step - (role is None) for trial in some if trial.difference]
        first, last = min(numbers), max(numbers)
        steps = str(first) if first == last else f"{first} to {last}"
        place = f"{steps} {role}" if role else f"after {steps}"
        cost = forecast.word(add_up(trial.forecast for trial in some))
        rows.append((len(some), "…" + some[0].thread[-id_length:], place, what, cost))
    if rows:
        headings = ("threads", "such as", "from", "what differs", "the rest may cost")
        yield f"\n{table(rows, headings)}"
    if len(rows) > 1:
        sums = add_up(trial.forecast for trial in trials if trial.difference)
        yield f"\nthe rest of all {count:,} threads may cost: {forecast.word(sums)}"
    yield from (f"{trial.thread} cannot be tried: {trial.problem}" for trial in unread)
