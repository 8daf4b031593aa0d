"""`rolecall eval`: try variants of a workflow on a suite of tasks, and judge the results.

`eval run` has three exit codes beyond those of every command: 6 if some threads could not be run or judged, 7 if a
limit of the run is used up, and 130 if the run was interrupted. In all three cases the next `eval run` continues the
run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.arguments import in_this_store, parse_limit
from rolecall.cli.group_view import duration
from rolecall.cli.output import (
    STORE,
    LastLine,
    between,
    columns_of_terminal,
    format_of,
    plural,
    say,
    short,
    show,
    table,
    tell,
    warn,
    write_file,
)
from rolecall.cli.thread_play import EventRecords, View, run_attended
from rolecall.errors import UsageError
from rolecall.evals.statistics import Tally, estimate_rate
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.threads.report import describe_amount, local_time, money, percent

if TYPE_CHECKING:
    from rolecall.cli import Argument
    from rolecall.evals import check as proving
    from rolecall.evals.begin import EvalPlan
    from rolecall.evals.records import Calibration
    from rolecall.evals.results import Report, Summary
else:
    proving = Module("rolecall.evals.check")

Played = TypeVar("Played")
INFRASTRUCTURE, LIMITED, INTERRUPTED = 6, 7, 130
SIGNS = {"passed": "✓", "failed": "✗", "infrastructure": "⚠"}
DEFAULT_AT_ONCE = 4
_MOST_REASONS = 10
_LEAST_REASON = 20

SUITE = argument("suite", "SUITE", "the YAML file of a suite")
_ONLY = argument(
    "--only", "TAG", "only tasks with this tag or id; may be repeated", action="append", default=[]
)
_RUN = argument("run", "RUN", "a run, by a part of its id (default: the newest)", nargs="?", default="")


LIMITS: tuple[Argument, ...] = (
    _ONLY,
    argument(
        "--at-once",
        "N",
        f"how many threads run at once (default: {DEFAULT_AT_ONCE})",
        type=between(1),
        default=DEFAULT_AT_ONCE,
    ),
    argument(
        "--limit",
        "NAME=VALUE",
        "suspend the run at this limit: cost or minutes of all its threads",
        type=partial(parse_limit, kinds=("cost", "minutes")),
        action="append",
        default=[],
    ),
)
SELECTION: tuple[Argument, ...] = (
    *LIMITS,
    flag("--fresh", "ask every role, even if an earlier run has the answer"),
    flag("--new", "begin a new run even if an earlier one is unfinished"),
    flag("--stop-early", "start no further threads once the answer is clear"),
)
"""The options shared by commands that run a suite."""


# -- run --


@verb(
    "eval run",
    "run a suite: a thread for each variant, task and repeat; continues an interrupted run",
    "rolecall eval run evals/fix-bug.yaml\nrolecall eval run evals/fix-bug.yaml --only quick --limit cost=5",
    SUITE,
    *SELECTION,
    STORE,
)
def run(options: Namespace) -> int:
    with Rolecall(options.store) as rolecall:
        evals = rolecall.evals()
        plan = evals.plan(options.suite, only=options.only, is_fresh=options.fresh, is_new=options.new)
        report, is_stopped = follow(options, plan, evals.run)
        show(options, report.dump(), lambda: describe(report))
        return end(options, "run", report, is_stopped)


def follow(options: Namespace, plan: EvalPlan, play: Callable[..., Awaitable[Played]]) -> tuple[Played, bool]:
    """Run a plan and show its progress. Return the result of `play`, and whether the run was interrupted."""
    is_text = format_of(options) == "text"
    if is_text:
        _tell_plan(plan, is_compared=bool(getattr(options, "against", None)))
    done = plan.going_on.read_results() if plan.going_on else {}
    counts = {name: sum(one.outcome == name for one in done.values()) for name in ("passed", "failed")}
    view = CellLines(plan.threads, counts) if is_text else EventRecords(options, ("cell",))

    played, stopped = run_attended(
        view,
        lambda stopped: play(
            plan,
            at_once=options.at_once,
            limits=dict(options.limit),
            stop_early=options.stop_early,
            watch=stopped.watch,
            cancel=stopped.cancel,
        ),
    )
    return played, stopped.cancel.is_set()


def end(options: Namespace, command: str, report: Report, is_stopped: bool) -> int:
    """Return the exit code of a run: 0 if the run is finished; otherwise, also say how to continue the run. `command`
    is the `eval` command that continues it; if empty, the person is told to repeat the same command."""
    counts = report.counts
    if report.is_early or not counts["open"] + counts["infrastructure"]:
        return 0
    more = " --limit NAME=MORE" if report.status == "suspended" else ""
    again = f"the same command again{more}"
    if command:
        words = [
            "rolecall eval",
            command,
            quote(options.suite),
            *(f"--only {quote(tag)}" for tag in options.only),
        ]
        words += [
            name for name in ("--fresh", "--stop-early") if getattr(options, name[2:].replace("-", "_"))
        ]
        again = in_this_store(options, " ".join(words) + more)
    tell(f"continue: {again}")
    if is_stopped:
        return INTERRUPTED
    return LIMITED if report.status == "suspended" else INFRASTRUCTURE


def _tell_plan(plan: EvalPlan, *, is_compared: bool) -> None:
    suite = plan.suite
    parts = (plural(len(suite.variants), "variant"), plural(len(plan.tasks), "task"))
    say(
        f"{suite.name}: {' × '.join((*parts, plural(suite.repeat, 'repeat')))} = {plural(plan.threads, 'thread')}"
    )
    if is_compared or len(suite.variants) > 1:
        least = plan.smallest_difference
        shown = f"{least * 100:.0f} points" if least is not None else "none, with so few tasks"
        say(f"smallest detectable drop from a pass rate of 70 %: {shown}")
    for name, paths in plan.omitted.items():
        warn(f"{name}: {', '.join(paths[:5])} left out: large, or named like a secret")
    if (run := plan.going_on) is not None:
        done = sum(one.outcome != "infrastructure" for one in run.read_results().values())
        say(f"run {run.id} continues: {done} of {plan.threads} are done")


class CellLines(View):
    """A view that prints a line for each finished thread and, on a terminal, the state of the run below these lines."""

    def __init__(self, threads: int, counts: dict[str, int]) -> None:
        self._threads = threads
        self._counts = {**counts, "infrastructure": 0}
        self._now = LastLine()
        self._began = time.monotonic()
        self._progress: JsonObject = {}

    def event(self, kind: str, body: JsonObject) -> None:
        if kind == "progress":
            self._progress = body
        elif kind == "cell":
            self._counts[body["outcome"]] += 1
            self._now.clear()
            say(_cell_line(body, sum(self._counts.values()), self._threads))

    def tick(self) -> None:
        counts, now = self._counts, self._progress
        if not now:
            return
        parts = [f"{sum(counts.values())}/{self._threads}"]
        parts += [f"{count} {name}" for name, count in counts.items() if count]
        parts += [f"{now['running']} running"] if now["running"] else []
        spent, limits = now["spent"], now["limits"]
        if spent.get("cost") or "cost" in limits:
            parts.append(
                money(spent.get("cost", 0)) + (f" of {money(limits['cost'])}" if "cost" in limits else "")
            )
        if "minutes" in limits:
            parts.append(f"{spent['minutes']:.1f} of {limits['minutes']:g} minutes")
        self._now.draw(" · ".join([*parts, duration(time.monotonic() - self._began)]))

    def close(self) -> None:
        self._now.clear()


def _cell_line(body: JsonObject, done: int, threads: int) -> str:
    used, saved = body["usage"], body["saved"]
    parts = [
        f"{SIGNS[body['outcome']]} {done}/{threads} {body['variant']}",
        f"{body['task']} {body['repeat']}",
    ]
    is_reused = saved and not used.get("cost") and not used.get("tokens")
    parts += [body["outcome"], *(["reused"] if is_reused else [])]
    parts += [money(used["cost"])] if used.get("cost") else []
    parts += [duration(used["minutes"] * 60)] if used.get("minutes") else []
    line = " · ".join(parts)
    room = max(_LEAST_REASON, columns_of_terminal() - len(line) - 3) if sys.stdout.isatty() else 100
    return f"{line} · {_short_end(body['reason'], room)}" if body["reason"] else line


def _short_end(reason: str, limit: int) -> str:
    """Shorten a reason of the form `SPEAKER: TEXT` by cutting the beginning of the text, because programs report the
    problem last."""
    line = " ".join(reason.split())
    if len(line) <= limit:
        return line
    who, _, said = line.partition(": ")
    return f"{who}: …{said[len(who) + 3 - limit :]}" if len(who) * 2 < limit else f"…{line[1 - limit :]}"


# -- show and list --


@verb(
    "eval show",
    "show the results of a run",
    "rolecall eval show\nrolecall eval show 4J2Q --as html -o run.html",
    _RUN,
    flag("--cells", "list each thread with its verdicts"),
    argument(
        "--as",
        None,
        "text, or a page for the browser in one file (default: text)",
        dest="kind",
        choices=["text", "html"],
        default="text",
    ),
    argument("-o --output", "FILE", "write the page to a file instead of standard output"),
    argument("--base", "VARIANT", "on the page, show the differences from this variant", default=""),
    STORE,
)
def show_run(options: Namespace) -> CommandResult | None:
    with reader(options.store) as rolecall:
        if options.kind == "html":
            page = rolecall.evals().page(options.run, base=options.base)
            data = page.encode("utf-8", "backslashreplace")
            if options.output:
                write_file(options.output, data)
                shown = {"file": options.output, "bytes": len(data)}
                return CommandResult(shown, f"{options.output}: {len(data):,} bytes")
            if format_of(options) != "text":
                return CommandResult({"html": page})
            sys.stdout.buffer.write(data)
            return None
        if options.output or options.base:
            raise UsageError(f"{'-o' if options.output else '--base'} is for a page", hint="Add --as html.")
        report = rolecall.evals().report(options.run)
        return CommandResult(report.dump(), lambda: describe(report, with_cells=options.cells))


@verb("eval list", "list the runs, newest first", "rolecall eval list", STORE)
def list_evals(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        reports = list(rolecall.evals().reports())
    rows = [
        (
            one.id,
            one.name,
            one.status,
            len(one.cells),
            one.counts["passed"],
            _percent_of(one),
            local_time(one.at),
        )
        for one in reports
    ]
    text = table(rows, ("id", "suite", "status", "threads", "passed", "rate", "began"), ("began", "passed"))
    dumped = [{key: value for key, value in one.dump().items() if key != "cells"} for one in reports]
    return CommandResult(dumped, text if rows else "No suite has been run yet: rolecall eval run SUITE")


def _percent_of(report: Report) -> str:
    counts = report.counts
    judged = counts["passed"] + counts["failed"]
    return percent(counts["passed"] / judged) if judged else "–"


def describe(report: Report, *, with_cells: bool = False) -> str:
    """Format a run as text: its figures, a table of variants that fits 80 columns, and what went wrong."""
    counts = report.counts
    told = [f"{count} {name}" for name, count in counts.items() if count]
    lines = [f"{report.name} · {report.id} · {report.status}: {', '.join(told)}"]
    if report.reason:
        lines.append(report.reason)
    lines.append(f"used by this run: {report.describe_paid()}")
    k = report.suite.repeat
    summaries = report.summarize()
    rows = [_row(summary) for summary in summaries]
    headings = ["variant", "pass", "95 %", f"pass@{k}", f"pass^{k}", "score", "cost", "infra"]
    if k == 1:  # pass@1 and pass^1 are both the pass rate
        rows = [[*row[:3], *row[5:]] for row in rows]
        headings = [*headings[:3], *headings[5:]]
    lines += ["", table(rows, headings, ("infra",), whole=headings[1:])]
    each = [f"{name}/{what}" for what in ("run", "pass") for name in ("cost", "tokens", "min")]
    lines += ["", table([_amounts_row(summary) for summary in summaries], ("variant", *each), whole=each)]
    lines += [_calibration_line(one) for one in report.calibrations.values()]
    if with_cells:
        heads = ("", "variant", "task", "repeat", "thread")
        cells = [
            (SIGNS.get(one.outcome, " "), one.variant, one.task, one.repeat, one.thread)
            for one in report.cells
        ]
        others = sum(max(len(str(cell)) for cell in column) + 2 for column in zip(heads, *cells, strict=True))
        room = max(_LEAST_REASON, columns_of_terminal(elsewhere=sys.maxsize) - others)
        listed = [
            (*cell, _short_end(one.reason, room)) for cell, one in zip(cells, report.cells, strict=True)
        ]
        lines += ["", table(listed, (*heads, "reason"))]
    broken = [cell for cell in report.cells if cell.outcome == "infrastructure"]
    if broken and not with_cells:
        lines += ["", "not judged, and not counted:"]
        lines += [
            f"  {one.variant} · {one.task} {one.repeat}: {short(one.reason, 300)}"
            for one in broken[:_MOST_REASONS]
        ]
        if broken[_MOST_REASONS:]:
            lines.append(f"  and {len(broken) - _MOST_REASONS} more: rolecall eval show {report.id} --cells")
    return "\n".join(lines)


def _calibration_line(found: Calibration) -> str:
    rate = estimate_rate([Tally(1, 1)] * found.agreed + [Tally(0, 1)] * (found.total - found.agreed))
    if rate is None:
        return f"{found.judge} gave no verdict on its examples"
    low, high = (f"{end * 100:.0f}" for end in rate.interval)
    wrong = f"; not on {', '.join(map(str, found.wrong[:10]))}" if found.wrong else ""
    share = f"{percent(rate.value)}, 95 %: {low}–{high} %"
    return f"{found.judge} agrees with {found.agreed} of {found.total} known verdicts ({share}){wrong}"


def _row(summary: Summary) -> list[Any]:
    rate = summary.rate
    score = summary.score
    ends = f" ({score.interval.low:.2f}–{score.interval.high:.2f})" if score and score.interval else ""
    return [
        summary.variant,
        percent(rate.value) if rate else "–",
        f"{rate.interval.low * 100:.0f}–{rate.interval.high * 100:.0f} %" if rate else "–",
        percent(summary.pass_at),
        percent(summary.pass_every),
        f"{score.value:.2f}{ends}" if score else "–",
        money(summary.used["cost"]) if "cost" in summary.used else "–",
        summary.infrastructure or "",
    ]


def _amounts_row(summary: Summary) -> list[str]:
    """Return a table row with the average use per thread with a verdict, and per pass."""
    return [
        summary.variant,
        *(
            describe_amount(name, means[name].value) if name in means else "–"
            for means in (summary.per_run, summary.per_pass)
            for name in ("cost", "tokens", "minutes")
        ),
    ]


# -- check, export and promote --


@verb(
    "eval check",
    "prove the judges with the references and cheats of a suite, without asking an agent",
    "rolecall eval check evals/fix-bug.yaml\nrolecall eval check evals/fix-bug.yaml --only quick",
    SUITE,
    _ONLY,
    STORE,
)
def check(options: Namespace) -> CommandResult:
    with Rolecall(options.store) as rolecall:
        proofs = asyncio.run(rolecall.evals().check(options.suite, only=options.only))
    decisive = [proof for proof in proofs if proof.kind in ("reference", "cheat")]
    fooled = [proof for proof in proofs if proof.kind in proving.TRICKS and proof.outcome == "passed"]
    lines = []
    for proof in proofs:
        is_expected = proof.is_as_expected if proof.kind == "untouched" else proof not in fooled
        if proof not in decisive and is_expected:
            continue
        sign = "✓" if proof.is_as_expected else "✗" if proof in decisive else "⚠"
        reason = f": {short(proof.reason, 300)}" if proof.reason and not proof.is_as_expected else ""
        lines.append(f"{sign} {proof.task} · {proof.kind} · {proof.outcome}{reason}")
    if fooled:
        lines.append("⚠ an agent could pass this way without doing the task; docs/evals.md says what helps")
    wrong = [proof for proof in decisive if not proof.is_as_expected]
    if not decisive:
        lines.append("nothing is proven: the suite has no reference and no cheat")
    elif not wrong:
        lines.append("the judges are right about every reference and every cheat")
    return CommandResult(
        [proof._asdict() for proof in proofs], "\n".join(lines), code=1 if wrong or not decisive else 0
    )


@verb(
    "eval export",
    "write a run with its suite, threads and files to a bundle, which `cas import` can import",
    "rolecall eval export 4J2Q run.tgz",
    argument("run", "RUN", "a run, by a part of its id"),
    argument("path", "PATH", "a new file (.tgz compresses), or a folder (ends in /)"),
    STORE,
)
def export(options: Namespace) -> CommandResult:
    with Rolecall(options.store, create=False) as rolecall:
        copied = rolecall.evals().export(options.run, options.path)
    shown = {"nodes": copied.nodes, "refs": copied.refs, "path": options.path}
    problems = [f"{one.kind}: {one.node} {one.text}" for one in copied.problems]
    text = "\n".join([f"{plural(copied.nodes, 'node')} exported to {options.path}", *problems])
    return CommandResult({**shown, "problems": problems}, text, code=4 if problems else 0)


@verb(
    "eval promote",
    "turn a thread into a task: append it to a file of tasks, with its first files",
    "rolecall eval promote 9S8N --tasks evals/tasks.jsonl\nrolecall eval promote 9S8N --suite evals/fix-bug.yaml",
    argument("thread", "THREAD", "a thread's id, or a part of it that no other id contains"),
    argument("--tasks", "FILE", "the file of tasks (default: the file of --suite, or tasks.jsonl)"),
    argument("--suite", "SUITE", "append it to the file of tasks of this suite"),
    argument(
        "--id", "NAME", "the id of the task (default: the workflow's name and the end of the thread's id)"
    ),
    argument("--tag", "TAG", "a tag of the task; may be repeated", action="append", default=[]),
    STORE,
)
def promote(options: Namespace) -> CommandResult:
    if options.tasks and options.suite:
        raise UsageError("--tasks and --suite both name a file of tasks", hint="Give one of them.")
    with Rolecall(options.store, create=False) as rolecall:
        evals = rolecall.evals()
        file = evals.find_tasks_file(options.suite) if options.suite else options.tasks or "tasks.jsonl"
        done = evals.promote(rolecall.thread(options.thread), file, name=options.id or "", tags=options.tag)
    text = f"{done.task} is a task in {os.path.relpath(done.file)}; its files are in {os.path.relpath(done.folder)}"
    return CommandResult(done._asdict(), text)
