"""A run as HTML: one self-contained page, and the same parts for the web page.

Colours only repeat what the text says. Nothing here needs a script or an inline style, both of which the web page
forbids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from rolecall.errors import RolecallError, UsageError
from rolecall.evals.records import StoredJudge, StoredTask
from rolecall.evals.results import AMOUNTS, CellResult, Report
from rolecall.evals.statistics import (
    Interval,
    Mean,
    Pair,
    Rate,
    classify_change,
    compare_means,
    compare_rates,
    estimate_mean,
)
from rolecall.evals.tasks import describe_command
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads.html_page import fill_page, render_fields, render_text, safe
from rolecall.threads.report import describe_amount, describe_change, moment, money, percent
from rolecall.workflow import registry

SIGNS = {"passed": "✓", "failed": "✗", "infrastructure": "⚠", "": "…"}
_MOST_TEXT = 150_000
"""The maximum number of characters of all prompts on a page together, and of all reasons together, so that the page can
be mailed."""
_LONGEST_PROMPT, _LONGEST_REASON, _LONGEST_TITLE = 4000, 500, 100
_COLOURS = 8
_WORDS = {"passed": "passed", "failed": "failed", "infrastructure": "not judged", "open": "not run"}
_CHANGES = ("fixed", "broken", "flaky", "unchanged")

_STYLE = """
main { max-width: 72rem; }
:root { --pass: #c9ecd5; --fail: #fbd3d1; --mute: #e7e9ec; }
@media (prefers-color-scheme: dark) { :root { --pass: #1d4a31; --fail: #5a2524; --mute: #30363d; } }
.figures th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.figures td { white-space: nowrap; } .words td { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
 .figures .number { text-align: right; }
.range { width: 130px; height: 14px; vertical-align: -2px; margin-right: .5rem; }
.range .all { fill: var(--mute); } .range .span { fill: var(--v, var(--link)); opacity: .45; }
.range .at { fill: var(--v, var(--link)); } .range .zero { fill: var(--soft); }
.v0 { --v: #3e63dd; } .v1 { --v: #d6409f; } .v2 { --v: #2b9a66; } .v3 { --v: #f76b15; } .v4 { --v: #8e4ec6; }
.v5 { --v: #0797b9; } .v6 { --v: #a18072; } .v7 { --v: #b5a100; }
.plot { width: 100%; max-width: 40rem; height: auto; display: block; }
.plot text { font: 12px system-ui, sans-serif; fill: var(--soft); } .plot .name { fill: var(--ink); font-size: 13px; }
.plot .rule { stroke: var(--line); } .plot .lead { stroke: var(--soft); fill: none; opacity: .45; }
.plot .whisker { stroke: var(--v); stroke-width: 1.5; opacity: .8; } .plot circle { fill: var(--v); }
.cells { overflow: auto; max-height: 46rem; border: 1px solid var(--line); border-radius: 6px; width: fit-content;
  max-width: 100%; }
.cells table { border-collapse: separate; border-spacing: 2px; margin: 0; }
.cells th, .cells td { padding: .15rem .6rem; border: 0; white-space: nowrap; font-size: .9rem; }
.cells th { max-width: 12rem; overflow: hidden; text-overflow: ellipsis; background: var(--paper); position: sticky; }
.cells thead th { top: 0; z-index: 1; }
.cells tbody th { left: 0; font-weight: 400; max-width: 20rem; } .cells thead th:first-child { left: 0; z-index: 2; }
@media (max-width: 34rem) { .cells tbody th { max-width: 9rem; } .plot text, .plot .name { font-size: 15px; } }
.cells td { text-align: center; border-radius: 3px; min-width: 4.5rem; }
.cells td a { color: inherit; padding: 0 .12em; }
.cells .pass { background: var(--pass); } .cells .fail { background: var(--fail); }
.cells .none { background: var(--mute); }
.cells .part { background: linear-gradient(90deg, var(--pass) var(--share), var(--fail) var(--share)); }
.s1 { --share: 10%; } .s2 { --share: 20%; } .s3 { --share: 30%; } .s4 { --share: 40%; } .s5 { --share: 50%; }
.s6 { --share: 60%; } .s7 { --share: 70%; } .s8 { --share: 80%; } .s9 { --share: 90%; }
.cells b { font-weight: 600; margin-right: .3em; }
:target { outline: 2px solid var(--link); outline-offset: 2px; scroll-margin-top: 1rem; }
.threads td { font-size: .85rem; } .threads td:nth-child(5) { font-family: ui-monospace, monospace; }
.threads td:last-child { white-space: normal; }
@media print { .cells { max-height: none; } }
"""


class PageSection(NamedTuple):
    title: str
    html: str


def make_page(store: Store, report: Report, *, mask: Mask, base: str = "") -> str:
    """Return a run as one page that can be mailed and opened anywhere. Differences are relative to the variant
    `base`."""
    figures = Figures(store, report, mask=mask, link=lambda cell: f"#c{cell.number}", base=base)
    title = mask.text(f"{report.name}: {figures.describe_counts()}")
    parts = [f"<h1>{safe(mask.text(report.name))}</h1>", f'<p class="small">{figures.describe_status()}</p>']
    for section in [figures.show_setting(), *figures.list_sections(), figures.list_threads()]:
        if section.html:
            parts.append(f"<section><h2>{safe(section.title)}</h2>\n{section.html}</section>")
    return fill_page(title, "\n".join(parts), _STYLE)


class Figures:
    """The parts of a run's page. `link` returns the address of a thread. Threads in `running` have an address even
    before they have a result."""

    def __init__(
        self,
        store: Store,
        report: Report,
        *,
        mask: Mask,
        link: Callable[[CellResult], str],
        base: str = "",
        running: Collection[str] = (),
    ) -> None:
        if base and base not in report.variants:
            raise UsageError(f"the run has no variant {base!r}", hint=f"It has {', '.join(report.variants)}.")
        self._store = store
        self._report = report
        self._mask = mask
        self._link = link
        self._running = running
        self.base = base or (report.variants[0] if len(report.variants) == 2 else "")
        self._summaries = report.summarize()
        self._colours = {name: f"v{index % _COLOURS}" for index, name in enumerate(report.variants)}
        chosen = {cell.task for cell in report.cells}
        self._tasks = [task for task in report.suite.tasks if task.id in chosen]

    def _safe(self, text: object) -> str:
        return safe(self._mask.text(str(text)))

    def list_sections(self) -> list[PageSection]:
        """Return the sections with the findings."""
        return [
            PageSection("Variants", self._show_variants()),
            PageSection(f"Differences from {self.base}", self._show_differences()),
            PageSection("Cost and quality", self._plot() + self._show_amounts()),
            PageSection("Tasks", self._show_cells()),
        ]

    def describe_counts(self) -> str:
        counts = self._report.counts
        return ", ".join(f"{counts[key]:,} {word}" for key, word in _WORDS.items() if counts[key])

    def describe_status(self) -> str:
        report = self._report
        said = [report.status, self.describe_counts(), report.reason]
        return self._safe(" · ".join(word for word in said if word))

    # -- variants --

    def _show_variants(self) -> str:
        k = self._report.suite.repeat
        summaries = self._summaries
        has_score = any(one.score for one in summaries)
        headings = ["variant", "pass rate, 95 % interval", "passed"]
        headings += [f"pass@{k}", f"pass^{k}"] if k > 1 else []
        headings += ["score"] if has_score else []
        headings += ["cost", "not judged"]
        rows = []
        for one in summaries:
            rate, bar = one.rate, "–"
            if rate:
                bar = _draw_range(rate.value, rate.interval, self._colours[one.variant], low=0, high=1)
                bar += safe(_describe_rate(rate))
            row = [self._name(one.variant), bar, f"{one.passed} of {one.passed + one.failed}"]
            row += [percent(one.pass_at), percent(one.pass_every)] if k > 1 else []
            row += [_describe_mean("score", one.score)] if has_score else []
            cost = money(one.used["cost"]) if "cost" in one.used else "–"
            rows.append([*row, cost, str(one.infrastructure or "–")])
        return _table(headings, rows, numbers=2)

    def _show_amounts(self) -> str:
        headings = ["variant", *(f"{name} per {what}" for what in ("thread", "pass") for name in AMOUNTS)]
        rows = []
        for one in self._summaries:
            both = (one.per_run, one.per_pass)
            means = [_describe_mean(name, amounts.get(name)) for amounts in both for name in AMOUNTS]
            rows.append([self._name(one.variant), *means])
        return _table(headings, rows, numbers=1) if any(one.per_run for one in self._summaries) else ""

    def _name(self, variant: str) -> str:
        return f'<span class="{self._colours[variant]}">{self._safe(variant)}</span>'

    # -- differences --

    def _show_differences(self) -> str:
        if not self.base:
            return ""
        report, rows, changed = self._report, [], []
        old = report.tallies(self.base)
        for variant in report.variants:
            new = report.tallies(variant)
            pairs = {task: Pair(old[task], tally) for task, tally in new.items() if task in old}
            if variant == self.base or not pairs:
                continue
            changes = {task: classify_change(pair) for task, pair in pairs.items()}
            difference = compare_rates(pairs.values())
            span = difference.interval
            text = f"{difference.value * 100:+.0f} points"
            text += f" ({span.low * 100:+.0f} to {span.high * 100:+.0f})" if span else ""
            bar = _draw_range(difference.value, span, self._colours[variant], low=-1, high=1)
            row = [self._name(variant), bar + safe(text.replace("-", "−")), f"{difference.p_value:.2g}"]
            row += [str(sum(one == change for one in changes.values())) for change in _CHANGES]
            row += [self._compare_amount(variant, "score"), self._compare_amount(variant, "cost")]
            rows.append(row)
            for change in ("fixed", "broken", "flaky"):
                if tasks := [task for task, one in changes.items() if one == change]:
                    changed.append((f"{variant}: {change}", _cut(", ".join(tasks), 2000)))
        if not rows:
            return '<p class="small">No task has a verdict in both.</p>'
        headings = ["variant", "pass rate, 95 % interval", "p", *_CHANGES, "score", "cost per thread"]
        return _table(headings, rows, numbers=2) + render_fields(self._mask.value(changed))

    def _compare_amount(self, variant: str, key: str) -> str:
        old, new = (self._report.amounts(name, key) for name in (self.base, variant))
        both = [task for task in new if task in old]
        if not both:
            return "–"
        found = compare_means([old[task] for task in both], [new[task] for task in both])
        return describe_change(key, found.value) + (f" (p {found.p_value:.2g})" if found.interval else "")

    # -- cost and quality --

    def _plot(self) -> str:
        """Return a plot of pass rates over the cost of a thread, or over its tokens or minutes if no cost is known."""
        for key in AMOUNTS:
            points = []
            for one in self._summaries:
                mean = estimate_mean(self._report.amounts(one.variant, key).values())
                if mean and one.rate:
                    points.append(Point(one.variant, mean, one.rate))
            if any(point.mean.value for point in points):
                known = {point.name for point in points}
                note = ""
                if missing := ", ".join(name for name in self._report.variants if name not in known):
                    why = f"Not shown, because no {key} is known: {self._safe(missing)}."
                    note = f'<p class="small">{why}</p>'
                return f'<div class="wide" tabindex="0">{self._draw_plot(points, key)}</div>{note}'
        return ""

    def _draw_plot(self, points: Sequence[Point], key: str) -> str:
        left, top, right, bottom = 54, 14, 370, 250
        height = max(bottom + 44, top + 18 * len(points) + 20)
        ends = [p.mean.interval.high if p.mean.interval else p.mean.value for p in points]
        most, ticks = _choose_ticks(max(ends))
        show = money if key == "cost" else lambda value: f"{value:,.4g}"

        def across(value: float) -> float:
            return left + (right - left) * value / most

        def down(rate: float) -> float:
            return bottom - (bottom - top) * rate

        parts = []
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = down(share)
            parts.append(f'<path class="rule" d="M{left} {y:.1f}H{right}"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{percent(share)}</text>')
        for value in ticks:
            where = f'x="{across(value):.1f}" y="{bottom + 18}"'
            parts.append(f'<text {where} text-anchor="middle">{show(value)}</text>')
        unit = f"{key} per thread"
        parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 36}" text-anchor="middle">{unit}</text>')
        ordered = sorted(points, key=lambda point: -point.rate.value)
        wanted = [down(point.rate.value) for point in ordered]
        places = _spread(wanted, least=18, low=top + 4, high=height - 12)
        for point, place in zip(ordered, places, strict=True):
            x, y = across(point.mean.value), down(point.rate.value)
            span, rate = point.mean.interval, point.rate.interval
            whiskers = f"M{x:.1f} {down(rate.low):.1f}V{down(rate.high):.1f}"
            whiskers += f"M{across(span.low):.1f} {y:.1f}H{across(span.high):.1f}" if span else ""
            label = f"{point.name}: {_describe_rate(point.rate)}, {show(point.mean.value)}"
            name = point.name if len(point.name) <= 20 else f"{point.name[:19]}…"
            parts.append(
                f'<g class="{self._colours[point.name]}"><title>{self._safe(label)}</title>'
                f'<path class="lead" d="M{x:.1f} {y:.1f}L{right + 10} {place:.1f}h8"/>'
                f'<path class="whisker" d="{whiskers}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
                f'<circle cx="{right + 24}" cy="{place:.1f}" r="4"/>'
                f'<text class="name" x="{right + 34}" y="{place + 4:.1f}">{self._safe(name)}</text></g>'
            )
        about = f"pass rate over {unit}, with 95 % intervals"
        return f'<svg class="plot" viewBox="0 0 560 {height}" role="img" aria-label="{about}">{"".join(parts)}</svg>'

    # -- tasks by variants --

    def _show_cells(self) -> str:
        report = self._report
        cells: dict[tuple[str, str], list[CellResult]] = {}
        for cell in report.cells:
            cells.setdefault((cell.task, cell.variant), []).append(cell)
        heads = "".join(f'<th scope="col">{self._safe(name)}</th>' for name in report.variants)
        rows = []
        for task in self._tasks:
            title = self._safe(_cut(" ".join(task.prompt.split()), _LONGEST_TITLE))
            row = "".join(self._show_cell(cells[task.id, variant]) for variant in report.variants)
            rows.append(f'<tr><th scope="row" title="{title}">{self._safe(task.id)}</th>{row}</tr>')
        legend = "Each sign is a thread: ✓ passed, ✗ failed, ⚠ could not run or be judged and does not count."
        table = f'<thead><tr><th scope="col">task</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody>'
        box = '<div class="cells" tabindex="0" role="region" aria-label="tasks by variants">'
        return f'<p class="small">{legend}</p>{box}<table>{table}</table></div>'

    def _show_cell(self, cells: Sequence[CellResult]) -> str:
        shown = [cell for cell in cells if cell.outcome or cell.thread in self._running]
        if not shown:
            return "<td></td>"
        judged = [cell for cell in shown if cell.is_judged]
        passed = sum(cell.outcome == "passed" for cell in judged)
        kind = "none" if any(cell.outcome for cell in shown) else "busy"
        if judged:
            tenth = min(9, max(1, round(10 * passed / len(judged))))
            kind = "pass" if passed == len(judged) else f"part s{tenth}" if passed else "fail"
        signs = f"<b>{passed}/{len(judged)}</b>" if len(cells) > 1 and judged else ""
        longest = min(_LONGEST_TITLE, _MOST_TEXT // len(self._report.cells))
        for cell in shown:
            why = _cut(cell.reason, longest) if cell.outcome != "passed" else ""
            tooltip = f' title="{self._safe(why)}"' if why else ""
            signs += f'<a href="{safe(self._link(cell))}"{tooltip}>{SIGNS[cell.outcome]}</a>'
        return f'<td class="{kind}">{signs}</td>'

    # -- what was run --

    def show_setting(self) -> PageSection:
        report, suite = self._report, self._report.suite
        size = (len(report.variants), len(self._tasks), suite.repeat)
        facts = [
            ("suite", f"{suite.name} ({suite.node})"),
            ("run", f"{report.id} ({report.node})"),
            ("began", moment(report.at)),
            ("threads", f"{len(report.cells):,}: variants × tasks × repeats = {' × '.join(map(str, size))}"),
            ("used by this run", report.describe_paid()),
            ("limits", ", ".join(f"{key}={value:g}" for key, value in report.limits.items())),
            ("judges", [self._describe_judge(one) for one in suite.judges]),
        ]
        shown = render_fields(self._mask.value([(name, value) for name, value in facts if value]))
        rows = []
        for variant in suite.variants:
            name = ""
            with suppress(RolecallError):  # the node is damaged
                name = registry.read_node(self._store, variant.workflow)[0].name
            workflow = f"{self._safe(name)} <code>{safe(variant.workflow)}</code>"
            given = [f"every role: {variant.agent}"] if variant.agent else []
            given += [f"{role}: {agent}" for role, agent in variant.agents.items()]
            players: dict[str, None] = {}
            for one in (one for cell in report.cells if cell.variant == variant.name for one in cell.agents):
                version = f" {one['version']}" if one.get("version") else ""
                players[f"{one['role']}: {one.get('agent', '?')}{version}"] = None
            agents = "<br>".join(map(self._safe, given)) or "as the workflow says"
            played = "<br>".join(map(self._safe, players)) or "–"
            rows.append([self._name(variant.name), workflow, agents, played])
        table = _table(["variant", "workflow", "agents", "played by"], rows)
        return PageSection("What was run", shown + table)

    def _describe_judge(self, stored: StoredJudge) -> str:
        judge = stored.judge
        if judge.command:
            said = f"{judge.name}: command {describe_command(judge.command)}"
        elif judge.expression:
            said = f"{judge.name}: expression {judge.expression}"
        else:
            rubric = _cut(judge.rubric.strip(), 1000)
            said = f"{judge.name}: agent {judge.agent}, votes: {judge.votes}, rubric: {rubric}"
        if found := self._report.calibrations.get(judge.name):
            said += f", agrees with {found.agreed} of {found.total} known verdicts"
        return said + (", decides" if judge.gate else "")

    # -- texts --

    def list_threads(self) -> PageSection:
        """Return a section with each task, its prompt and its threads."""
        rows: dict[str, str] = {}
        order = self._report.variants
        longest = min(_LONGEST_REASON, _MOST_TEXT // max(1, len(self._report.cells)))
        ended = (cell for cell in self._report.cells if cell.outcome)
        for cell in sorted(ended, key=lambda cell: (order.index(cell.variant), cell.number)):
            cost = money(cell.used["cost"]) if "cost" in cell.used else ""
            score = f"{cell.score:.2f}" if cell.score is not None else ""
            # Leave out the tags and quotes that HTML does not need, because there can be thousands of rows.
            row = (
                f"<tr id=c{cell.number}><td>{self._safe(cell.variant)} {cell.repeat}<td>{SIGNS[cell.outcome]}"
            )
            row += f"<td>{score}<td>{cost}<td>{safe(cell.thread)}<td>{self._safe(_cut(cell.reason, longest))}"
            rows[cell.task] = rows.get(cell.task, "") + row
        parts = ['<p class="small">Read a thread with <code>rolecall thread read ID</code>.</p>']
        for task, text in self.render_tasks():
            shown = rows.get(task.id, "")
            table = f'<table class="threads figures"><tbody>{shown}</tbody></table>' if shown else ""
            parts.append(
                f"<details><summary>{self._safe(' · '.join([task.id, *task.tags]))}</summary>"
                f'{text}<div class="wide" tabindex="0">{table}</div></details>'
            )
        return PageSection("Threads", "".join(parts))

    def render_tasks(self) -> Iterator[tuple[StoredTask, str]]:
        """Yield each task, with its prompt and first files as HTML."""
        longest = min(_LONGEST_PROMPT, _MOST_TEXT // max(1, len(self._tasks)))
        for task in self._tasks:
            files = f"tree {task.files.tree}" if task.files else ""
            files = f"{task.repository} at {task.commit}" if task.repository else files
            facts = [("setup", describe_command(task.setup)), ("files", files)]
            about = render_fields(self._mask.value([one for one in facts if one[1]]))
            yield task, render_text(self._mask.text(task.prompt), longest) + about


class Point(NamedTuple):
    name: str
    mean: Mean
    rate: Rate


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int | None = None) -> str:
    """Return an HTML table. The columns from the index `numbers` on contain numbers; if `numbers` is None, all columns
    contain text."""

    def kind(index: int) -> str:
        return ' class="number"' if numbers is not None and index >= numbers else ""

    head = "".join(f"<th{kind(index)}>{safe(text)}</th>" for index, text in enumerate(headings))
    cells = ("".join(f"<td{kind(index)}>{cell}</td>" for index, cell in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    words = " words" if numbers is None else ""
    return f'<div class="wide" tabindex="0"><table class="figures{words}">{table}</table></div>'


def _describe_rate(rate: Rate) -> str:
    return f"{percent(rate.value)} ({rate.interval.low * 100:.0f}–{rate.interval.high * 100:.0f})"


def _describe_mean(name: str, mean: Mean | None) -> str:
    if mean is None:
        return "–"
    ends = [describe_amount(name, end) for end in mean.interval or ()]
    return describe_amount(name, mean.value) + (f" ({'–'.join(ends)})" if ends else "")


def _draw_range(value: float, span: Interval | None, colour: str, *, low: float, high: float) -> str:
    """Draw a value and its interval between two bounds. The text next to the drawing says the same."""

    def across(at: float) -> float:
        return 2 + 126 * (min(high, max(low, at)) - low) / (high - low)

    parts = ['<rect class="all" x="2" y="5" width="126" height="4" rx="2"/>']
    if low < 0:
        parts.append(f'<rect class="zero" x="{across(0) - 0.5:.1f}" y="2" width="1" height="10"/>')
    if span:
        start, end = across(span.low), across(span.high)
        width = f"{max(1, end - start):.1f}"
        parts.append(f'<rect class="span" x="{start:.1f}" y="4" width="{width}" height="6" rx="2"/>')
    parts.append(f'<rect class="at" x="{across(value) - 1.5:.1f}" y="1" width="3" height="12" rx="1"/>')
    return f'<svg class="range {colour}" viewBox="0 0 130 14" aria-hidden="true">{"".join(parts)}</svg>'


def _choose_ticks(most: float) -> tuple[float, list[float]]:
    """Return the end of an axis that starts at 0 and has room for `most`, and three to six round values on the axis."""
    size = 10 ** math.floor(math.log10(most / 4))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * 5 >= most)
    count = math.ceil(most / step - 1e-9)
    return step * count, [step * index for index in range(count + 1)]


def _spread(wanted: Sequence[float], *, least: float, low: float, high: float) -> list[float]:
    """Return positions for labels near the ascending `wanted` positions, with a minimum distance between them."""
    places = list[float]()
    for place in wanted:
        places.append(max(place, low if not places else places[-1] + least))
    limit = high
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - least
    return places


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
