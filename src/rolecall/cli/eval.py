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
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, flag, repeated, verb
from rolecall.cli.arguments import at_once, in_this_store, parse_limit
from rolecall.cli.group_view import duration
from rolecall.cli.output import (
    STORE,
    LastLine,
    columns_of_terminal,
    format_of,
    plural,
    say,
    short,
    table,
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
_ONLY = repeated("--only", "TAG", "only tasks with this tag or id; may be repeated")
_RUN = argument("run", "RUN", "a run, by a part of its id (default: the newest)", nargs="?", default="")


LIMITS: tuple[Argument, ...] = (
    _ONLY,
    at_once("threads", DEFAULT_AT_ONCE),
    repeated(
        "--limit",
        "NAME=VALUE",
        "suspend the run at this limit: cost or minutes of all its threads",
        type=partial(parse_limit, kinds=("cost", "minutes")),
    ),
)
SELECTION: tuple[Argument, ...] = (
    *LIMITS,
    flag("--fresh", "ask every role, even if an earlier run has the answer"),
    flag("--new", "begin a new run even if an earlier one is unfinished"),
    flag("--stop-early", "start no further threads once the answer is clear"),
)
"""The options shared by commands that run a suite."""


@verb(
    "eval run",
    "run a suite: a thread for each variant, task and repeat; continues an interrupted run",
    "rolecall eval run evals/fix-bug.yaml\nrolecall eval run evals/fix-bug.yaml --only quick --limit cost=5",
    SUITE,
    *SELECTION,
    STORE,
)
def run(options: Namespace) -> CommandResult:
    with Rolecall(options.store) as rolecall:
        evals = rolecall.evals()
        plan = evals.plan(options.suite, only=options.only, is_fresh=options.fresh, is_new=options.new)
        report, is_stopped = follow(options, plan, evals.run)
        code, note = end(options, "run", report, is_stopped)
    return CommandResult(report.dump(), describe(report), code, note=note)


def follow(options: Namespace, plan: EvalPlan, play: Callable[..., Awaitable[Played]]) -> tuple[Played, bool]:
    """Run a plan and show its progress. Return the result of `play`, and whether the run was interrupted."""
    done = plan.going_on.read_results() if plan.going_on else {}
    counts = {name: sum(one.outcome == name for one in done.values()) for name in ("passed", "failed")}
    view: View = EventRecords(options, ("cell",))
    if format_of(options) == "text":
        view, suite = CellLines(plan.threads, counts), plan.suite
        parts = (plural(len(suite.variants), "variant"), plural(len(plan.tasks), "task"))
        product = " × ".join((*parts, plural(suite.repeat, "repeat")))
        say(f"{suite.name}: {product} = {plural(plan.threads, 'thread')}")
        if getattr(options, "against", None) or len(suite.variants) > 1:
            least = plan.smallest_difference
            shown = f"{least * 100:.0f} points" if least is not None else "none, with so few tasks"
            say(f"smallest detectable drop from a pass rate of 70 %: {shown}")
        for name, paths in plan.omitted.items():
            warn(f"{name}: {', '.join(paths[:5])} left out: large, or named like a secret")
        if plan.going_on is not None:
            count = sum(one.outcome != "infrastructure" for one in done.values())
            say(f"run {plan.going_on.id} continues: {count} of {plan.threads} are done")

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


def end(options: Namespace, command: str, report: Report, is_stopped: bool) -> tuple[int, str]:
    """Return the exit code of a run, and how to continue it if it is not finished. `command` is the `eval` command that
    continues it; if empty, it is the same command."""
    counts = report.counts
    if report.is_early or not counts["open"] + counts["infrastructure"]:
        return 0, ""
    more = " --limit NAME=MORE" if report.status == "suspended" else ""
    again = f"the same command again{more}"
    if command:
        words = ["rolecall eval", command, quote(options.suite)]
        words += [f"--only {quote(tag)}" for tag in options.only]
        words += ["--fresh"] if options.fresh else []
        words += ["--stop-early"] if options.stop_early else []
        again = in_this_store(options, " ".join(words) + more)
    code = LIMITED if report.status == "suspended" else INFRASTRUCTURE
    return INTERRUPTED if is_stopped else code, f"continue: {again}"


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
            used, done = body["usage"], f"{sum(self._counts.values())}/{self._threads}"
            parts = [f"{SIGNS[body['outcome']]} {done} {body['variant']}", f"{body['task']} {body['repeat']}"]
            parts.append(body["outcome"])
            parts += ["reused"] if body["saved"] and not used.get("cost") and not used.get("tokens") else []
            parts += [money(used["cost"])] if used.get("cost") else []
            parts += [duration(used["minutes"] * 60)] if used.get("minutes") else []
            line = " · ".join(parts)
            room = max(_LEAST_REASON, columns_of_terminal() - len(line) - 3) if sys.stdout.isatty() else 100
            self._now.clear()
            say(f"{line} · {_short_end(body['reason'], room)}" if body["reason"] else line)

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


def _short_end(reason: str, limit: int) -> str:
    """Shorten a reason of the form `SPEAKER: TEXT` by cutting the beginning of the text, because programs report the
    problem last."""
    line = " ".join(reason.split())
    if len(line) <= limit:
        return line
    who, _, said = line.partition(": ")
    return f"{who}: …{said[len(who) + 3 - limit :]}" if len(who) * 2 < limit else f"…{line[1 - limit :]}"


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
        return CommandResult(report.dump(), describe(report, with_cells=options.cells))


@verb("eval list", "list the runs, newest first", "rolecall eval list", STORE)
def list_evals(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        reports = list(rolecall.evals().reports())
    rows = []
    for one in reports:
        passed, judged = one.counts["passed"], one.counts["passed"] + one.counts["failed"]
        rate = percent(passed / judged) if judged else "–"
        rows.append((one.id, one.name, one.status, len(one.cells), passed, rate, local_time(one.at)))
    text = table(rows, ("id", "suite", "status", "threads", "passed", "rate", "began"), ("began", "passed"))
    dumped = [{key: value for key, value in one.dump().items() if key != "cells"} for one in reports]
    return CommandResult(dumped, text if rows else "No suite has been run yet: rolecall eval run SUITE")


def describe(report: Report, *, with_cells: bool = False) -> Iterator[str]:
    """Yield the text of a run: its figures, a table of variants that fits 80 columns, and what went wrong."""
    tallies = [f"{count} {name}" for name, count in report.counts.items() if count]
    yield f"{report.name} · {report.id} · {report.status}: {', '.join(tallies)}"
    if report.reason:
        yield report.reason
    yield f"used by this run: {report.describe_paid()}\n"
    k = report.suite.repeat
    summaries = report.summarize()
    rows = [_row(summary) for summary in summaries]
    headings = ["variant", "pass", "95 %", f"pass@{k}", f"pass^{k}", "score", "cost", "infra"]
    if k == 1:  # pass@1 and pass^1 are both the pass rate
        rows = [[*row[:3], *row[5:]] for row in rows]
        headings = [*headings[:3], *headings[5:]]
    yield table(rows, headings, ("infra",), whole=headings[1:]) + "\n"
    each = [f"{name}/{what}" for what in ("run", "pass") for name in ("cost", "tokens", "min")]
    amounts = [[summary.variant] for summary in summaries]
    for row, summary in zip(amounts, summaries, strict=True):
        for means in (summary.per_run, summary.per_pass):
            for name in ("cost", "tokens", "minutes"):
                row.append(describe_amount(name, means[name].value) if name in means else "–")
    yield table(amounts, ("variant", *each), whole=each)
    for found in report.calibrations.values():
        rate = estimate_rate([Tally(1, 1)] * found.agreed + [Tally(0, 1)] * (found.total - found.agreed))
        if rate is None:
            yield f"{found.judge} gave no verdict on its examples"
            continue
        low, high = (f"{end * 100:.0f}" for end in rate.interval)
        wrong = f"; not on {', '.join(map(str, found.wrong[:10]))}" if found.wrong else ""
        share = f"{percent(rate.value)}, 95 %: {low}–{high} %"
        yield f"{found.judge} agrees with {found.agreed} of {found.total} known verdicts ({share}){wrong}"
    if with_cells:
        heads = ("", "variant", "task", "repeat", "thread")
        cells = [
            (SIGNS.get(one.outcome, " "), one.variant, one.task, one.repeat, one.thread)
            for one in report.cells
        ]
        others = sum(max(len(str(cell)) for cell in column) + 2 for column in zip(heads, *cells, strict=True))
        room = max(_LEAST_REASON, columns_of_terminal(elsewhere=sys.maxsize) - others)
        reasons = [_short_end(one.reason, room) for one in report.cells]
        yield "\n" + table(
            [(*cell, reason) for cell, reason in zip(cells, reasons, strict=True)], (*heads, "reason")
        )
        return
    broken = [cell for cell in report.cells if cell.outcome == "infrastructure"]
    if broken:
        yield "\nnot judged, and not counted:"
    for one in broken[:_MOST_REASONS]:
        yield f"  {one.variant} · {one.task} {one.repeat}: {short(one.reason, 300)}"
    if broken[_MOST_REASONS:]:
        yield f"  and {len(broken) - _MOST_REASONS} more: rolecall eval show {report.id} --cells"


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
    code = 1 if wrong or not decisive else 0
    return CommandResult([proof._asdict() for proof in proofs], lines, code)


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
    text = [f"{plural(copied.nodes, 'node')} exported to {options.path}", *problems]
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
    repeated("--tag", "TAG", "a tag of the task; may be repeated"),
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
