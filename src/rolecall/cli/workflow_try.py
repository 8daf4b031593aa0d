"""`rolecall workflow try`: show what an edited workflow would have done with recorded threads."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, forecast, verb
from rolecall.cli.arguments import TIMES, parse_time
from rolecall.cli.output import STORE, plural, table
from rolecall.errors import NotFound, UsageError
from rolecall.threads.forecast import add_up
from rolecall.threads.tryout import Divergence, Trial


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
        trials = list(
            rolecall.try_workflow(
                options.workflow, options.threads, since=options.on or 0, runs_code=options.code
            )
        )
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
    return CommandResult(value, lambda: _word(trials, length), code=code)


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


def _word(trials: list[Trial], id_length: int) -> str:
    """Return a line for each way in which threads would differ, the most frequent way first."""
    alike: dict[tuple[str | None, str], list[Trial]] = {}
    for trial in trials:
        if trial.difference:
            alike.setdefault((trial.difference.role, str(trial.difference)), []).append(trial)
    unread = [trial for trial in trials if trial.problem]
    count = sum(map(len, alike.values()))
    lines = [f"{plural(len(trials), 'thread')}, {count:,} would differ"]
    if alike:
        rows = [
            (
                len(some),
                "…" + some[0].thread[-id_length:],
                _place([trial.difference for trial in some if trial.difference]),
                what,
                forecast.word(add_up(trial.forecast for trial in some)),
            )
            for (_, what), some in sorted(alike.items(), key=lambda entry: -len(entry[1]))
        ]
        lines += ["", table(rows, ("threads", "such as", "from", "what differs", "the rest may cost"))]
        if len(rows) > 1:
            sums = add_up(trial.forecast for trial in trials if trial.difference)
            lines += ["", f"the rest of all {count:,} threads may cost: {forecast.word(sums)}"]
    lines += [f"{trial.thread} cannot be tried: {trial.problem}" for trial in unread]
    return "\n".join(lines)


def _place(found: list[Divergence]) -> str:
    first, last = min(one.step for one in found), max(one.step for one in found)
    if found[0].role is None:
        first, last = first - 1, last - 1
    steps = str(first) if first == last else f"{first} to {last}"
    return f"{steps} {found[0].role}" if found[0].role else f"after {steps}"
