"""`rolecall conformance`: run fixtures against Rolecall's tools and hooks, and report each case by its `test_id`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from rolecall.checks import conformance
from rolecall.cli import CommandResult, argument, repeated, verb
from rolecall.cli.output import count_progress, table
from rolecall.nexus.conformance import ConformanceReport


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
        choices=tuple(conformance.OVER),
        default="all",
    ),
    repeated("--only", "TEST_ID", "only this case; may be repeated"),
)
def run(options: Namespace) -> CommandResult:
    with count_progress("cases") as progress:
        report = conformance.run(options.folder, over=options.over, only=options.only, done=progress)
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
    return CommandResult(shown, _word(report), code=0 if report.is_good else 1)


def _word(report: ConformanceReport) -> Iterator[str]:
    rows, over = [], report.over
    for result in report.results:
        failed = {failure.over for failure in result.failures}
        outcomes = {door: "failed" if door in failed else "passed" for door in result.over}
        missing = "not run" if result.status == "not run" else "-"
        rows.append((result.test_id, *(outcomes.get(door, missing) for door in over), result.file))
    if rows:
        yield table(rows, ("test_id", *over, "file")) + "\n"
    for result in report.results:
        if result.failures:
            yield f"{result.test_id} in {result.file} failed:"
            for failure in result.failures:
                where = ", ".join(filter(None, (failure.at, failure.what, failure.path)))
                found = f"expected {failure.expected}, found {failure.found}"
                yield f"  over {failure.over}, {where}: {found}"
            yield ""
    if report.mistakes:
        yield "malformed:"
        for mistake in report.mistakes:
            case = f" ({mistake.test_id})" if mistake.test_id else ""
            where = f":{mistake.line}:{mistake.column}" if mistake.line else ""
            place = f", {mistake.place}" if mistake.place else ""
            yield f"  {mistake.file}{where}{place}{case}: {mistake.problem}"
        yield ""
    if report.passed_over:
        yield f"skipped, because they are schemas: {', '.join(report.passed_over)}\n"
    counts = report.counts
    summary = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    reasons = ", ".join(dict.fromkeys(result.reason for result in report.results if result.reason))
    summary += [f"{counts['not_run']} not run: {reasons}"] if counts["not_run"] else []
    summary += [f"{counts['malformed']} malformed"] if counts["malformed"] else []
    yield ", ".join(summary)
