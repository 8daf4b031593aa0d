"""`rolecall eval bisect`: which version of a workflow, or of a program or model, broke a suite?"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from time import localtime, strftime
from typing import TYPE_CHECKING

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.eval import INFRASTRUCTURE, INTERRUPTED, LIMITS, SUITE
from rolecall.cli.output import STORE, color_diff, format_of, plural, say, warning
from rolecall.cli.thread_play import EventRecords, View, run_attended
from rolecall.store.canonical import JsonObject

if TYPE_CHECKING:
    from rolecall.evals.bisect import Bisected
    from rolecall.evals.recorded import Traced

_CANNOT_INSTALL = "`rolecall eval bisect --recorded` searches the recorded runs for what changed."


def _noise(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 0.5:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to below 0.5")
    return value


@verb(
    "eval bisect",
    "find the version of a workflow that broke a suite, among the stored versions; or, with --recorded, the "
    "program, model, agent or version with which recorded runs began to fail. Exit codes: 0 found, 1 nothing is "
    "broken, 6 not finished or not certain, 130 interrupted; repeat the command to continue",
    "rolecall eval bisect evals/fix-bug.yaml --from 3J5PZ3D1\n"
    "rolecall eval bisect evals/fix-bug.yaml --from 1.2 --to 1.9 --noise 0.2\n"
    "rolecall eval bisect evals/fix-bug.yaml --recorded",
    SUITE,
    argument(
        "--from",
        "VERSION",
        "a good version, by its id or its `version`, or a good run (default: the oldest)",
        dest="oldest",
        default="",
    ),
    argument("--to", "VERSION", "a bad version or run (default: the newest)", dest="newest", default=""),
    flag("--recorded", "search the recorded runs of the suite, without asking agents"),
    argument(
        "--noise", "SHARE", "how often an answer is wrong (default: estimated from repeats)", type=_noise
    ),
    *LIMITS,
    STORE,
)
def bisect(options: Namespace) -> CommandResult:
    chosen = {name: getattr(options, name) for name in ("oldest", "newest", "noise", "only")}
    if options.recorded:
        with Rolecall(options.store) as rolecall:
            traced = rolecall.evals().trace(options.suite, **chosen)
        code = {"found": 0, "not broken": 1, "uncertain": INFRASTRUCTURE}[traced.status]
        return CommandResult(traced.dump(), _describe_trace(traced), code)
    view = Looks() if format_of(options) == "text" else EventRecords(options, ("bisect", "cell"))
    with Rolecall(options.store) as rolecall:
        found, stopped = run_attended(
            view,
            lambda stopped: rolecall.evals().bisect(
                options.suite,
                **chosen,
                at_once=options.at_once,
                limits=dict(options.limit),
                watch=stopped.watch,
                cancel=stopped.cancel,
            ),
        )
    if found.status == "unfinished":
        code = INTERRUPTED if stopped.cancel.is_set() else INFRASTRUCTURE
        note = warning("not finished; repeat the command to continue")
        return CommandResult(found.dump(), _describe(found), code, note=note)
    return CommandResult(found.dump(), _describe(found), code=0 if found.status == "found" else 1)


class Looks(View):
    """A view that prints a line for each answer about a version."""

    def event(self, kind: str, body: JsonObject) -> None:
        if kind == "bisect":
            last = body["last"]
            sign = "✓" if last["passed"] else "✗"
            left, certainty = plural(body["left"], "version"), body["certainty"]
            say(f"{sign} {last['name']} · {left} left · {certainty * 100:.0f} % certain")


def _day(milliseconds: int) -> str:
    return strftime("%Y-%m-%d", localtime(milliseconds / 1000))


def _describe_trace(found: Traced) -> Iterator[str]:
    answers = f"{plural(found.answers, 'answer')}, of which {found.error * 100:.0f} % may be wrong"
    yield f"{plural(found.makeups, 'makeup')} recorded, {answers}"
    if found.tasks:
        yield f"{plural(len(found.tasks), 'task')} broke: {', '.join(found.tasks[:10])}"
    if found.reason:
        yield f"{found.status}: {found.reason}"
    if found.bad and found.good:
        sure = f"{(found.certainty or 0) * 100:.1f} % certain"
        yield f"the first bad run is {found.bad.run}, of {_day(found.bad.at)} ({sure})"
        yield f"made like the one before it: {found.good.run}, of {_day(found.good.at)}, but"
        yield from (f"  {change}" for change in found.changes)


def _describe(found: Bisected) -> Iterator[str]:
    if found.looks:
        asked = f"{found.asked} of {plural(found.versions, 'version')} were run"
        answers = f"{plural(len(found.looks), 'answer')}, of which {found.error * 100:.0f} % may be wrong"
        yield f"{found.workflow}: {asked}, {answers}"
    if found.tasks:
        yield f"{plural(len(found.tasks), 'task')} broke: {', '.join(found.tasks[:10])}"
    if found.status != "found":
        yield f"{found.status}: {found.reason}"
        if found.drift:
            yield from (*found.drift, _CANNOT_INSTALL)
    elif found.bad and found.good:
        yield f"the first bad version is {found.bad.node} ({(found.certainty or 0) * 100:.1f} % certain)"
        yield f"the one before it is {found.good.node}\n"
        yield from map(str, found.changes)
        yield f"\n{color_diff(found.diff)}".rstrip()
