"""`rolecall eval bisect`: which version of a workflow, or of a program or model, broke a suite?"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from time import localtime, strftime
from typing import TYPE_CHECKING

from rolecall.api import Rolecall
from rolecall.cli import argument, flag, verb
from rolecall.cli.eval import INFRASTRUCTURE, INTERRUPTED, LIMITS, SUITE
from rolecall.cli.output import STORE, colored_diff, format_of, plural, say, show, warn
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
        "--noise",
        "SHARE",
        "how often an answer is wrong (default: estimated from repeats)",
        type=_noise,
    ),
    *LIMITS,
    STORE,
)
def bisect(options: Namespace) -> int:
    if options.recorded:
        with Rolecall(options.store) as rolecall:
            traced = rolecall.evals().trace(
                options.suite,
                oldest=options.oldest,
                newest=options.newest,
                noise=options.noise,
                only=options.only,
            )
        show(options, traced.dump(), lambda: _describe_trace(traced))
        return {"found": 0, "not broken": 1, "uncertain": INFRASTRUCTURE}[traced.status]
    is_text = format_of(options) == "text"
    view = Looks() if is_text else EventRecords(options, ("bisect", "cell"))

    with Rolecall(options.store) as rolecall:
        found, stopped = run_attended(
            view,
            lambda stopped: rolecall.evals().bisect(
                options.suite,
                oldest=options.oldest,
                newest=options.newest,
                noise=options.noise,
                only=options.only,
                at_once=options.at_once,
                limits=dict(options.limit),
                watch=stopped.watch,
                cancel=stopped.cancel,
            ),
        )
    show(options, found.dump(), lambda: _describe(found))
    if found.status == "unfinished":
        warn("not finished; repeat the command to continue")
        return INTERRUPTED if stopped.cancel.is_set() else INFRASTRUCTURE
    return 0 if found.status == "found" else 1


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


def _describe_trace(found: Traced) -> str:
    lines = [
        f"{plural(found.makeups, 'makeup')} recorded, {plural(found.answers, 'answer')}, of which "
        f"{found.error * 100:.0f} % may be wrong"
    ]
    if found.tasks:
        lines.append(f"{plural(len(found.tasks), 'task')} broke: {', '.join(found.tasks[:10])}")
    if found.reason:
        lines.append(f"{found.status}: {found.reason}")
    if found.bad and found.good:
        sure = f"{(found.certainty or 0) * 100:.1f} % certain"
        lines.append(f"the first bad run is {found.bad.run}, of {_day(found.bad.at)} ({sure})")
        lines.append(f"made like the one before it: {found.good.run}, of {_day(found.good.at)}, but")
        lines += [f"  {change}" for change in found.changes]
    return "\n".join(lines)


def _describe(found: Bisected) -> str:
    tasks = f"{plural(len(found.tasks), 'task')} broke: {', '.join(found.tasks[:10])}" if found.tasks else ""
    asked = (
        f"{found.asked} of {plural(found.versions, 'version')} were run, {plural(len(found.looks), 'answer')}"
    )
    lines = (
        [f"{found.workflow}: {asked}, of which {found.error * 100:.0f} % may be wrong"] if found.looks else []
    )
    lines += [tasks] if tasks else []
    if found.status != "found":
        lines.append(f"{found.status}: {found.reason}")
        if found.drift:
            lines += [*found.drift, _CANNOT_INSTALL]
        return "\n".join(lines)
    bad, good = found.bad, found.good
    if bad and good:
        lines.append(f"the first bad version is {bad.node} ({(found.certainty or 0) * 100:.1f} % certain)")
        lines += [
            f"the one before it is {good.node}",
            "",
            *map(str, found.changes),
            "",
            colored_diff(found.diff),
        ]
    return "\n".join(lines).rstrip()
