"""`rolecall eval compare` and `eval gate`: is one variant better than another, and is it good enough to replace the
other?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, repeated, verb
from rolecall.cli.arguments import TIMES, parse_agent, parse_time
from rolecall.cli.eval import INFRASTRUCTURE, SELECTION, SUITE, end, follow
from rolecall.cli.eval import describe as describe_run
from rolecall.cli.output import STORE, between, columns_of_terminal, pair, plural, table, tell, warning
from rolecall.errors import UsageError
from rolecall.threads.report import describe_amount, describe_change, percent

if TYPE_CHECKING:
    from rolecall.evals.compare import Comparison
    from rolecall.evals.statistics import Change, Difference

WORSE = 1
ALPHA = 0.05
_CHANGES: dict[Change, str] = {"broken": "✗", "fixed": "✓", "flaky": "~"}
_UNCHANGED: Change = "unchanged"
_MOST_TASKS = 20
_WIDTH = 78


@verb(
    "eval compare",
    "compare two variants task by task: what was fixed, what was broken, and whether that is more than chance",
    "rolecall eval compare\nrolecall eval compare 4J2Q 9S8N\nrolecall eval compare 4J2Q:opus 9S8N:haiku --json",
    argument(
        "base", "BASE", "a run (a part of its id; default: the newest), or RUN:VARIANT", nargs="?", default=""
    ),
    argument(
        "variant",
        "VARIANT",
        "the variant to compare with BASE, named in the same way (default: the other variants of BASE)",
        nargs="?",
        default="",
    ),
    STORE,
)
def compare(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        found = rolecall.evals().compare(options.base, options.variant)
    return CommandResult([one.dump() for one in found], describe(found))


@verb(
    "eval gate",
    "run a suite and fail if it is worse than a base. Exit codes: 0 not worse, 1 worse, 6 not decided because threads "
    "could not run or be judged, 7 not decided because a limit was reached, 130 interrupted",
    "rolecall eval gate evals/fix-bug.yaml --save main\n"
    "rolecall eval gate evals/fix-bug.yaml --against main\n"
    "rolecall eval gate evals/fix-bug.yaml --against 4J2Q:opus --stop-early",
    SUITE,
    argument("--against", "BASE", "a name given with --save, a run, or RUN:VARIANT"),
    argument(
        "--save", "NAME", "save the complete run as a base under this name, unless --against finds it worse"
    ),
    *SELECTION,
    STORE,
)
def gate(options: Namespace) -> CommandResult | int:
    if not options.against and not options.save:
        raise UsageError("there is nothing to compare with", hint="Give --against BASE or --save NAME.")
    if options.stop_early and not options.against:
        raise UsageError("a run that stops early cannot be a base", hint="Leave out --stop-early.")
    with Rolecall(options.store) as rolecall:
        evals = rolecall.evals()
        plan = evals.plan(options.suite, only=options.only, is_fresh=options.fresh, is_new=options.new)
        if not options.against:
            report, is_stopped = follow(options, plan, evals.run)
            code, note = end(options, f"gate --save {quote(options.save)}", report, is_stopped)
            if code:
                tell(note)
                return code
            evals.save_base(options.save, report)
            return CommandResult(report.dump(), f"{report.id} is the base {options.save}")
        gated, is_stopped = follow(options, plan, partial(evals.gate, base=options.against))
        is_saved = bool(options.save) and gated.decision == "passed" and not gated.report.is_early
        if is_saved:
            evals.save_base(options.save, gated.report)
    code, note = 0, ""
    if gated.decision == "worse":
        code = WORSE
    elif gated.decision == "undecided":
        code, note = end(options, f"gate --against {quote(options.against)}", gated.report, is_stopped)
        code = code or INFRASTRUCTURE
    else:
        fewest = min(one.difference.tasks for one in gated.comparisons)
        if 2.0**-fewest * len(gated.comparisons) > ALPHA:
            never = f"with {plural(fewest, 'task')} this gate can never fail"
            note = warning(f"{never}: even if all of them broke, that could be chance")
    text = chain(
        describe(gated.comparisons), [""] * bool(gated.comparisons), [f"{gated.decision}: {gated.reason}"]
    )
    return CommandResult({**gated.dump(), "saved": is_saved}, text, code, note=note)


@verb(
    "eval experiment",
    "fork recorded threads before a role and continue each in two variants; you pay only for what follows",
    "rolecall eval experiment evals/fix-bug.yaml --fork reviewer --agent reviewer=claude:model=haiku\n"
    "rolecall eval experiment evals/fix-bug.yaml --fork reviewer --workflow new.yaml --since 30d --stop-early",
    argument("suite", "SUITE", "the suite that names the workflow and the judges"),
    argument("--fork", "ROLE", "fork each thread before the first step of this role", required=True),
    repeated("--thread", "THREAD", "a thread to fork; may be repeated (default: all)"),
    argument("--since", "TIME", f"only threads that began since: {TIMES}", type=parse_time, default=0),
    argument(
        "--most",
        "N",
        "at most this many threads, the newest first (default: 100)",
        type=between(1),
        default=100,
    ),
    argument("--workflow", "FILE", "the changed workflow, compared with the suite's workflow"),
    repeated(
        "--agent",
        "ROLE=AGENT",
        "another agent for a role, compared with the suite's agent; may be repeated",
        type=pair,
    ),
    *SELECTION[1:],
    STORE,
)
def experiment(options: Namespace) -> CommandResult:
    with Rolecall(options.store) as rolecall:
        evals = rolecall.evals()
        plan = evals.plan_experiment(
            options.suite,
            options.fork,
            threads=[rolecall.thread(name) for name in options.thread],
            since=options.since,
            most=options.most,
            workflow=options.workflow,
            agents={role: parse_agent(agent) for role, agent in options.agent},
            is_fresh=options.fresh,
            is_new=options.new,
        )
        report, is_stopped = follow(options, plan, evals.run)
        is_compared = len(report.variants) > 1 and all(report.tallies(variant) for variant in report.variants)
        found = evals.compare(report.id) if is_compared else []
    shown = {**report.dump(), "comparisons": [one.dump() for one in found]}
    code, note = end(options, "", report, is_stopped)
    return CommandResult(
        shown, chain(describe_run(report), [""] * bool(found), describe(found)), code, note=note
    )


def describe(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield comparisons as text that fits 80 columns."""
    for number, found in enumerate(comparisons):
        if number:
            yield ""
        yield f"{found.suite}: {plural(found.difference.tasks, 'task')}, in pairs"
        yield f"  base     {found.base}"
        yield f"  variant  {found.variant}"
        yield ""
        rates = [
            f"{percent(rate.value)} ({rate.interval.low * 100:.0f}–{rate.interval.high * 100:.0f})"
            for rate in (found.base_rate, found.rate)
        ]
        points = _word_difference(found.difference, lambda value: f"{value * 100:+.0f}".replace("-", "−"))
        rows = [("pass rate", *rates, *points)]
        for amount in found.amounts:
            means = [describe_amount(amount.name, mean.value) for mean in (amount.base, amount.variant)]
            word = partial(describe_change, amount.name)
            rows.append((amount.name, *means, *_word_difference(amount.difference, word)))
        headings = ("", "base", "variant", "difference (95 %)", "p")
        text = table(rows, headings, whole=headings)
        if max(map(len, text.split("\n"))) > columns_of_terminal():  # print each interval below its value
            below = []
            for row in rows:
                parts = (cell.replace(" (", "\n(").split("\n") for cell in row)
                below += [line for line in zip_longest(*parts, fillvalue="") if any(line)]
            text = table(below, headings, whole=headings)
        yield text
        yield f"p: {found.difference.method}"
        yield ""
        yield ", ".join(f"{found.count(change)} {change}" for change in (*_CHANGES, _UNCHANGED))
        changed = [task for change in _CHANGES for task in found.tasks if task.change == change]
        before = ""
        for task in changed[:_MOST_TASKS]:
            base, variant = task.base, task.variant
            passes = f"{base.passed} of {base.runs} → {variant.passed} of {variant.runs}"
            yield f"{_CHANGES[task.change]} {task.task}: {task.change}, {passes}"
            parting = str(task.parting or "")
            if parting and parting != before:  # tasks often break for the same reason
                yield from _indent(
                    f"they part at {parting}" if task.parting and task.parting.step else parting
                )
            before = parting
        if changed[_MOST_TASKS:]:
            yield f"and {len(changed) - _MOST_TASKS} more: add --json"
        if found.left_out:
            yield ""
            yield "not compared:"
            for reason in dict.fromkeys(found.left_out.values()):
                names = [name for name, one in found.left_out.items() if one == reason]
                more = f" and {len(names) - _MOST_TASKS} more" if names[_MOST_TASKS:] else ""
                yield from _indent(f"{reason}: {', '.join(names[:_MOST_TASKS])}{more}")
        for note in found.notes:
            yield from wrap(f"note: {note}", _WIDTH)


def _indent(text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _word_difference(found: Difference, word: Callable[[float], str]) -> tuple[str, str]:
    low_high = f" ({word(found.interval.low)} to {word(found.interval.high)})" if found.interval else ""
    return f"{word(found.value)}{low_high}", f"{found.p_value:.2g}"
