"""The verbs for runs of suites: a list of runs, and the parts of the page of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rolecall.web.verbs import Ask, JsonObject, get

if TYPE_CHECKING:
    from rolecall.evals.records import EvalRun
    from rolecall.evals.results import Report

_KNOWN: dict[tuple[str, str | None], JsonObject] = {}
"""The data already read from runs, by the id and the newest result of each run."""
_MOST_KNOWN = 500


@get(
    "/evals",
    "Runs of suites, newest first. `next` is the cursor that continues with older ones, null at the end.",
    is_slow=True,
    after="the cursor",
    max="how many, at most 100 (default 20)",
)
def list_runs(ask: Ask) -> Any:
    most = ask.number("max", 20, most=100)
    after = ask.query.get("after", "")
    evals = ask.rolecall.evals()
    found = [run for run in evals.runs() if not after or run.id < after]
    rows = []
    for run in found[:most]:
        known = _KNOWN.get(_key_of(run)) or _describe(run, evals.report(run.id))
        rows.append({**known, "status": _status_of(run)})
    return {"runs": rows, "next": rows[-1]["run"] if rows and found[most:] else None}


@get(
    "/evals/{run}",
    "A run: its figures, and its page in sections, each with a title and HTML. `base` is the variant from which "
    "differences are shown.",
    is_slow=True,
    base="a variant; with two variants the first is the default",
)
def show_run(ask: Ask) -> Any:
    evals = ask.rolecall.evals()
    run = evals.find(ask.path["run"])
    report = evals.report(run.id)
    running = {entry["thread"] for entry in ask.rolecall.entries(status="running")} if run.is_running else ()
    figures = evals.figures(
        report, lambda cell: f"/threads/{cell.thread}", base=ask.query.get("base", ""), running=running
    )
    sections = [*figures.list_sections(), figures.show_setting()]
    return {
        **_describe(run, report),
        "status": _status_of(run),
        "reason": report.reason,
        "base": figures.base,
        "sections": [one._asdict() for one in sections if one.html],
    }


@get("/evals/{run}/tasks", "The tasks of a run: ids, tags, and what each asks for as HTML.", is_slow=True)
def show_tasks(ask: Ask) -> Any:
    evals = ask.rolecall.evals()
    figures = evals.figures(evals.report(ask.path["run"]), lambda _cell: "")
    return {
        "tasks": [
            {"task": task.id, "tags": list(task.tags), "html": text} for task, text in figures.render_tasks()
        ]
    }


def _status_of(run: EvalRun) -> str:
    return "running" if run.is_running else run.status


def _key_of(run: EvalRun) -> tuple[str, str | None]:
    return run.id, run.ref.target


def _describe(run: EvalRun, report: Report) -> JsonObject:
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[_key_of(run)] = {
        "run": report.id,
        "suite": report.name,
        "startedAt": report.at,
        "variants": report.variants,
        "threads": len(report.cells),
        "counts": report.counts,
        "cost": report.paid.get("cost"),
    }
    return _KNOWN[_key_of(run)]
