"""`rolecall conformance`: hold our tools against fixtures, and say by test_id what came of it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb
from rolecall.cli.output import Progress, add_format, show, table
from rolecall.errors import NotFound

if TYPE_CHECKING:
    from rolecall.nexus.conformance import Report, Result
    from rolecall.nexus.fixture import Fixtures, Mistake

_OVER = {
    "tools": ("tools",),
    "mcp": ("mcp",),
    "hooks": ("hooks",),
    "hook-command": ("hook-command",),
    "both": ("tools", "mcp"),
    "all": ("tools", "mcp", "hooks", "hook-command"),
}
"""What --over may say, and the doors that it means: two for tools, two for events."""
_HOOK_DOORS = ("hooks", "hook-command")


def _run(options: Namespace) -> int:
    from rolecall.hosts import fixture_events
    from rolecall.nexus import conformance, fixture
    from rolecall.settings import config

    fixtures = _chosen(fixture.load(options.folder), options.only)
    has_events = any(case.kind == "lifecycle" for case in fixtures.cases)
    has_calls = any(case.kind != "lifecycle" for case in fixtures.cases)
    doors = [*(conformance.DOORS if has_calls else ()), *(_HOOK_DOORS if has_events else ())]
    over = tuple(door for door in _OVER[options.over] if options.over != "all" or door in doors)
    environ = config.environment()
    tells = (
        {"hooks": fixture_events.in_process(), "hook-command": fixture_events.by_command(environ)}
        if has_events
        else {}
    )
    progress = Progress("cases")
    try:
        results = conformance.run(fixtures.cases, over, environ=environ, tells=tells, done=progress)
    finally:
        progress.clear()
    report = conformance.Report(results, fixtures.mistakes, fixtures.passed_over)
    show(options, _json(report), lambda: _text(report, over))
    return 0 if report.is_good else 1


def _chosen(fixtures: Fixtures, only: list[str]) -> Fixtures:
    """The cases that were named; a mistake that is no case's might be any of them."""
    if not only:
        return fixtures
    cases = [case for case in fixtures.cases if case.test_id in only]
    mistakes = [mistake for mistake in fixtures.mistakes if mistake.test_id in (*only, "")]
    known = {*(case.test_id for case in cases), *(mistake.test_id for mistake in mistakes)}
    for test_id in only:
        if test_id not in known:
            raise NotFound(f"there is no case {test_id!r}", hint=_others(fixtures, test_id))
    return fixtures._replace(cases=cases, mistakes=mistakes)


def _others(fixtures: Fixtures, test_id: str) -> str:
    from rolecall.settings.form import did_you_mean

    return did_you_mean(test_id, [case.test_id for case in fixtures.cases], what="Cases")


# -- the report --


def _json(report: Report) -> dict[str, Any]:
    return {
        "passed": report.is_good,
        "summary": report.counts,
        "cases": [
            {**result._asdict(), "failures": [failure._asdict() for failure in result.failures]}
            for result in report.results
        ],
        "mistakes": [mistake._asdict() for mistake in report.mistakes],
        "passed_over": list(report.passed_over),
    }


def _text(report: Report, over: tuple[str, ...]) -> str:
    rows = [(result.test_id, *_standings(result, over), result.file) for result in report.results]
    blocks = [table(rows, ("test_id", *over, "file"))] if rows else []
    blocks += [_explained(result) for result in report.results if result.failures]
    if report.mistakes:
        blocks.append("\n".join(["malformed:", *map(_mistake_line, report.mistakes)]))
    if report.passed_over:
        blocks.append(f"passed over, because they are schemas: {', '.join(report.passed_over)}")
    return "\n\n".join([*blocks, _summary(report)])


def _standings(result: Result, over: tuple[str, ...]) -> list[str]:
    if result.status == "not run":
        return ["not run"] * len(over)
    failed = {failure.over for failure in result.failures}
    stood = {door: "failed" if door in failed else "passed" for door in result.over}
    return [stood.get(door, "-") for door in over]


def _explained(result: Result) -> str:
    lines = [f"{result.test_id} in {result.file} failed:"]
    for failure in result.failures:
        where = ", ".join(part for part in (failure.at, failure.what, failure.path) if part)
        lines.append(f"  over {failure.over}, {where}: expected {failure.expected}, found {failure.found}")
    return "\n".join(lines)


def _mistake_line(mistake: Mistake) -> str:
    case = f" ({mistake.test_id})" if mistake.test_id else ""
    place = f", {mistake.place}" if mistake.place else ""
    return f"  {mistake.file}{place}{case}: {mistake.problem}"


def _summary(report: Report) -> str:
    counts = report.counts
    words = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    reasons = ", ".join(dict.fromkeys(result.reason for result in report.results if result.reason))
    words += [f"{counts['not_run']} not run: {reasons}"] if counts["not_run"] else []
    words += [f"{counts['malformed']} malformed"] if counts["malformed"] else []
    return ", ".join(words)


# -- arguments --


def _run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a folder of fixtures, or one file")
    parser.add_argument(
        "--over",
        choices=tuple(_OVER),
        default="all",
        help="how tools are called (tools: in process, mcp: by a `rolecall mcp` child, both) and events told (hooks: in"
        " process, hook-command: to `rolecall hook`); all of it is the default",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEST_ID", help="only this case; may be repeated"
    )
    add_format(parser)


VERBS = {
    "run": Verb(
        _run,
        "run conformance fixtures against the project's tools and hooks",
        "rolecall conformance run fixtures\nrolecall conformance run fixtures --over mcp --only task_close_full",
        _run_arguments,
    ),
}
