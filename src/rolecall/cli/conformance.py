"""`rolecall conformance`: run fixtures against our tools and hooks, and report each case by its test_id."""

from __future__ import annotations

from argparse import Namespace

from rolecall.checks import fixture_events
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.output import ProgressLine, table
from rolecall.errors import NotFound
from rolecall.nexus import conformance, fixture
from rolecall.nexus.conformance import ConformanceReport
from rolecall.settings import config
from rolecall.settings.form import did_you_mean

_OVER = {
    "tools": ("tools",),
    "mcp": ("mcp",),
    "hooks": ("hooks",),
    "hook-command": ("hook-command",),
    "both": ("tools", "mcp"),
    "all": ("tools", "mcp", "hooks", "hook-command"),
}
"""The values of --over and the interfaces they stand for: two for tools, two for events."""
_HOOK_DOORS = ("hooks", "hook-command")


@verb(
    "conformance run",
    "run conformance fixtures against the project's tools and hooks",
    "rolecall conformance run fixtures\nrolecall conformance run fixtures --over mcp --only task_close_full",
    argument("folder", "DIR", "a folder of fixtures, or one file"),
    argument(
        "--over",
        None,
        "how to call tools (tools: in process, mcp: by a `rolecall mcp` child, both) and to send events (hooks: in"
        " process, hook-command: to `rolecall hook`); the default is all of it",
        choices=tuple(_OVER),
        default="all",
    ),
    argument("--only", "TEST_ID", "only this case; may be repeated", action="append", default=[]),
)
def run(options: Namespace) -> CommandResult:
    fixtures = fixture.load(options.folder)
    if options.only:
        fixtures = _choose(fixtures, options.only)
    has_events = any(case.kind == "lifecycle" for case in fixtures.cases)
    has_calls = any(case.kind != "lifecycle" for case in fixtures.cases)
    doors = [*(conformance.DOORS if has_calls else ()), *(_HOOK_DOORS if has_events else ())]
    over = tuple(door for door in _OVER[options.over] if options.over != "all" or door in doors)
    environ = config.environment()
    tells = {}
    if has_events:
        tells = {"hooks": fixture_events.in_process(), "hook-command": fixture_events.by_command(environ)}
    progress = ProgressLine("cases")
    try:
        results = conformance.run(fixtures.cases, over, environ=environ, tells=tells, done=progress)
    finally:
        progress.clear()
    report = ConformanceReport(results, fixtures.mistakes, fixtures.passed_over)
    shown = {
        "passed": report.is_good,
        "summary": report.counts,
        "cases": [
            {**result._asdict(), "failures": [failure._asdict() for failure in result.failures]}
            for result in report.results
        ],
        "mistakes": [mistake._asdict() for mistake in report.mistakes],
        "passed_over": list(report.passed_over),
    }
    return CommandResult(shown, lambda: _text(report, over), code=0 if report.is_good else 1)


def _choose(fixtures: fixture.Fixtures, only: list[str]) -> fixture.Fixtures:
    """Select the named cases; an error without a test_id may belong to any of them, so it is kept."""
    cases = [case for case in fixtures.cases if case.test_id in only]
    mistakes = [mistake for mistake in fixtures.mistakes if mistake.test_id in (*only, "")]
    known = {*(case.test_id for case in cases), *(mistake.test_id for mistake in mistakes)}
    for test_id in only:
        if test_id not in known:
            others = did_you_mean(test_id, [case.test_id for case in fixtures.cases], what="Cases")
            raise NotFound(f"unknown case {test_id!r}", hint=others)
    return fixtures._replace(cases=cases, mistakes=mistakes)


def _text(report: ConformanceReport, over: tuple[str, ...]) -> str:
    rows = []
    for result in report.results:
        failed = {failure.over for failure in result.failures}
        outcomes = {door: "failed" if door in failed else "passed" for door in result.over}
        missing = "not run" if result.status == "not run" else "-"
        rows.append((result.test_id, *(outcomes.get(door, missing) for door in over), result.file))
    blocks = [table(rows, ("test_id", *over, "file"))] if rows else []
    for result in report.results:
        lines = []
        for failure in result.failures:
            where = ", ".join(part for part in (failure.at, failure.what, failure.path) if part)
            found = f"expected {failure.expected}, found {failure.found}"
            lines.append(f"  over {failure.over}, {where}: {found}")
        if lines:
            blocks.append("\n".join([f"{result.test_id} in {result.file} failed:", *lines]))
    lines = []
    for mistake in report.mistakes:
        case = f" ({mistake.test_id})" if mistake.test_id else ""
        place = f", {mistake.place}" if mistake.place else ""
        lines.append(f"  {mistake.file}{place}{case}: {mistake.problem}")
    if lines:
        blocks.append("\n".join(["malformed:", *lines]))
    if report.passed_over:
        blocks.append(f"passed over, because they are schemas: {', '.join(report.passed_over)}")
    counts = report.counts
    summary = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    reasons = ", ".join(dict.fromkeys(result.reason for result in report.results if result.reason))
    summary += [f"{counts['not_run']} not run: {reasons}"] if counts["not_run"] else []
    summary += [f"{counts['malformed']} malformed"] if counts["malformed"] else []
    return "\n\n".join([*blocks, ", ".join(summary)])
