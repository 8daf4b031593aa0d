"""A thread as one self-contained HTML page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from rolecall.errors import RolecallError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import handover, report
from rolecall.threads.html_page import (
    TONES,
    count_rest,
    fill_page,
    fold_text,
    render_fields,
    render_text,
    safe,
)
from rolecall.threads.report import View
from rolecall.threads.state import ThreadRef
from rolecall.threads.thread import FORK, PERSON
from rolecall.workflow import draw, registry
from rolecall.workflow.model import END, FAIL, START, STATUS_KEYS

_STYLE = """
main > *, article > * { min-width: 0; }
.usage td:not(:first-child), .usage th:not(:first-child) { text-align: right; }
.usage tr:last-child td { font-weight: 600; border-bottom: 0; }
article { border-left: 3px solid var(--role, var(--line)); padding: .1rem 0 .1rem 1rem; margin: 1.5rem 0;
  scroll-margin-top: 1rem; }
.failed { border-left: 3px solid var(--bad); padding-left: .8rem; margin: .6rem 0; }
nav ol { list-style: none; padding: 0; margin: 0; columns: 3 12rem; column-gap: 1.5rem; }
nav li { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; } nav .step { padding-left: 1rem; }
.graph { max-width: 100%; max-height: 44rem; height: auto; display: block; margin: 0 auto; }
.chart { width: 100%; height: 8rem; display: block; } .chart rect { fill: var(--role); }
.costs { height: 1.2rem; }
.r0 { --role: #3e63dd; } .r1 { --role: #d6409f; } .r2 { --role: #2b9a66; }
.r3 { --role: #f76b15; } .r4 { --role: #8e4ec6; } .r5 { --role: #0797b9; }
.legend span { display: inline-block; margin-right: 1.1rem; }
.legend i { display: inline-block; width: .7em; height: .7em; background: var(--role); border-radius: 2px;
  margin-right: .4em; }
.diff { padding: .5rem 0; } .diff span { display: block; padding: 0 .85rem; min-height: 1.5em; }
.diff .more { background: color-mix(in srgb, var(--good) 14%, transparent); }
.diff .less { background: color-mix(in srgb, var(--bad) 14%, transparent); } .diff .at { color: var(--soft); }
@media (max-width: 34rem) { article { padding-left: .7rem; } }
@media print { .graph { max-height: none; } }
"""
_COLOURS = 6
_AT_THE_TOP = ("reason", "steps", "reused", "continue with")
"""The rows that the top of a page already shows."""
_MOST_MEMBERS = 500
"""The maximum number of a group's members on a page, unless the page has no `limit`."""


def page(
    store: Store,
    ref: ThreadRef,
    card: View,
    steps: Sequence[View],
    *,
    mask: Mask,
    limit: int | None = report.SHORT,
    warn: Callable[[str], object] = lambda _text: None,
) -> str:
    """Return the page of a thread, with the thread's path through the workflow and the changes in its own folders."""
    files: dict[str, None] = {}
    for step in steps:
        paths = [change["path"] for change in step.get("changes") or ()]
        files |= dict.fromkeys(paths or step.get("files") or ())
    diffs = {}
    for kind, folder in ref.state.folders.items():
        try:
            changed = handover.changed_files(folder)
            if changed is not None:
                files, diffs[kind] = dict.fromkeys(changed), mask.text(handover.diff(kind, folder))
        except RolecallError as error:  # the repository is missing or broken
            warn(f"the thread's {kind} is not in the report: {error.message}")
    graph = ""
    with suppress(RolecallError):  # the workflow is damaged
        workflow, _ = registry.read_node(store, card["workflow"])
        path = [START, *(step["role"] for step in steps if not step["role"].startswith("$"))]
        path += {"completed": [END], "failed": [FAIL]}.get(card["status"], [])
        edges = {(source, edge.role) for source, edges in workflow.graph.items() for edge in edges}
        graph = draw.to_svg(workflow, taken=edges & set(pairwise(path))) if workflow.graph else ""
    return render(card, steps, graph=graph, files=list(files), diffs=diffs, limit=limit)


def render(
    card: View,
    steps: Sequence[View],
    *,
    graph: str = "",
    files: Sequence[str] = (),
    diffs: Mapping[str, str] | None = None,
    limit: int | None = report.SHORT,
) -> str:
    """Render a thread as one page that can be mailed and opened anywhere. `graph` is an SVG image of the thread's
    workflow. `diffs` maps the kind of each of the thread's folders to the changes in that folder."""
    title = card["title"] or card["name"] or card["thread"]
    roles = dict.fromkeys(step["role"] for step in steps)
    colours = {role: f"r{index % _COLOURS}" for index, role in enumerate(roles)}
    result = ""
    last = next((step for step in reversed(steps) if step["role"] not in (PERSON, FORK)), None)
    if last is not None and steps[1:]:  # the answer of a single step is shown anyway
        name = f'<a href="#step-{last["number"]}">{safe(_step_name(last))}</a>'
        result = f"<h3>{name}</h3>{_answer(last, limit)}"
    picture = ""
    if graph:  # as an image, so that its styles and names do not clash with those of the page
        data = f"data:image/svg+xml;base64,{b64encode(graph.encode('utf-8', 'backslashreplace')).decode()}"
        picture = f'<img class="graph" alt="the workflow with the path taken" src="{data}">'
    sections = {
        "Task": render_text(card["prompt"], limit),
        "Result": result,
        "Workflow": picture,
        "Files": _files(files, diffs or {}, limit),
        "Steps": "\n".join(_step(step, colours, limit) for step in steps),
        "Failed attempts": "\n".join(_attempt(attempt, limit) for attempt in card["attempts"]),
        "Time and tokens": _usage(card, steps)
        + _costs(card, colours)
        + (_timeline(steps, colours) if steps[1:] else ""),
        "Thread": render_fields([row for row in report.describe_thread(card) if row[0] not in _AT_THE_TOP]),
    }
    shown = {name: content for name, content in sections.items() if content}
    parts = [f"<h1>{safe(title)}</h1>", _summary(card, steps)]
    for name, content in shown.items():
        parts.append(f'<section id="{_anchor(name)}"><h2>{safe(name)}</h2>\n{content}</section>')
        if name == "Task" or (name == next(iter(shown)) and "Task" not in shown):
            parts.append(_contents(shown, steps))
    return fill_page(title, "\n".join(parts), _STYLE)


# -- the top of the page --


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _summary(card: View, steps: Sequence[View]) -> str:
    usage, status = card["usage"], card["status"]
    spent = report.duration(round(usage["minutes"] * 60_000)) if usage.get("minutes") else ""
    said = [
        card["name"] or "",
        report.plural(len(steps), "step"),
        spent,
        f"{usage['tokens']:,} tokens" if usage.get("tokens") else "",
        report.money(usage["cost"]) if usage.get("cost") else "",
        f"reused {reused}" if (reused := report.reuse_total(usage.get("saved"))) else "",
        report.moment(card["created"]) if card["created"] else "",
    ]
    why = f'<div class="text plain">{safe(card["reason"])}</div>' if card["reason"] else ""
    onward = f"<pre>{safe(card['continue'])}</pre>" if card["continue"] else ""
    tone = TONES.get(status, "")
    return (
        f'<div class="small"><span class="status {tone}">{safe(status)}</span> · '
        f"{safe(' · '.join(word for word in said if word))}</div>{why}{onward}"
    )


def _contents(shown: Mapping[str, str], steps: Sequence[View]) -> str:
    items = []
    for name in shown:
        items.append(f'<li><a href="#{_anchor(name)}">{safe(name)}</a></li>')
        for step in steps if name == "Steps" else ():
            place = f"#step-{step['number']}"
            items.append(f'<li class="step"><a href="{place}">{safe(_step_name(step))}</a></li>')
    return f'<nav aria-label="Contents"><h2>Contents</h2><ol>{"".join(items)}</ol></nav>'


def _step_name(step: View) -> str:
    status = step.get("status") if step["role"] not in (PERSON, FORK) else ""
    return report.heading(step).removeprefix("Step ") + (f", {status}" if status else "")


# -- files --


def _files(files: Sequence[str], diffs: Mapping[str, str], limit: int | None) -> str:
    listed = "".join(f"<li><code>{safe(name)}</code></li>" for name in files)
    parts = [f"<ul>{listed}</ul>"] if listed else []
    for kind, text in diffs.items():
        if text.strip():
            said = safe(f"Differences in the thread's {kind}, as it was when this page was written")
            parts.append(f"<details open><summary>{said}</summary>{_diff(text, limit)}</details>")
    return "".join(parts)


def _diff(text: str, limit: int | None) -> str:
    cut = text if limit is None else text[: report.LONGEST_DIFF]
    lines = []
    for line in cut.splitlines():
        is_head = line.startswith(("+++", "---", "diff ", "index ", "@@", "new file", "deleted file"))
        kind = "at" if is_head else {"+": "more", "-": "less"}.get(line[:1], "")
        lines.append(f'<span class="{kind}">{safe(line)}</span>' if kind else f"<span>{safe(line)}</span>")
    return f'<pre class="diff">{"".join(lines)}</pre>{count_rest(text, cut)}'


# -- steps --


def _step(step: View, colours: Mapping[str, str], limit: int | None) -> str:
    small = " · ".join([*report.facts(step), report.moment(step["timestamp"]), step["id"]])
    parts = [f"<h3>{safe(report.heading(step))}</h3>", f'<div class="small">{safe(small)}</div>']
    if sandbox := report.sandbox_text(step):
        parts.append(f'<div class="small">{safe(sandbox)}</div>')
    parts += [_attempt(attempt, limit) for attempt in step.get("attempts") or ()]
    if step["role"] == PERSON:
        said = step["output"]
        if said.get("reason"):
            parts.append(f'<div class="small">{safe(said["role"])} had asked: {safe(said["reason"])}</div>')
        parts.append(render_text(str(said["answer"]), limit))
    elif step["role"] == FORK:
        parts.append(f"<p>The fork begins here (from {safe(step['output']['from'])}).</p>")
    else:
        parts += [f'<div class="text"><b>Note:</b> {safe(note)}</div>' for note in step.get("notes") or ()]
        for child in step.get("children") or ():
            parts.append(f'<div class="small">Played by thread {safe(child)}</div>')
        parts.append(_answer(step, limit))
    parts.append(_work(step, limit))
    return f'<article id="step-{step["number"]}" class="{colours[step["role"]]}">{"".join(parts)}</article>'


def _answer(step: View, limit: int | None) -> str:
    """Return the output and the text of a step. For a group, return its members, each folded, unfinished members
    first."""
    output, members = step["output"], report.members_of(step)
    if members is None:
        shown_output = f"<pre>{safe(report.pretty(output))}</pre>"
        if isinstance(output, Mapping):  # without the status, which the heading shows
            shown_output = render_fields([row for row in output.items() if row[0] not in STATUS_KEYS])
        return shown_output + render_text(step.get("body") or "", limit)
    ordered = sorted(members, key=lambda member: member["status"] == "done")
    shown = ordered if limit is None else ordered[:_MOST_MEMBERS]
    parts = [f'<p class="small">{safe(report.describe_join(output))}.</p>']
    for member in shown:
        tone = {"done": "good", "stopped": "wait", "set_aside": "wait"}.get(member["status"], "bad")
        title = (
            f'{safe(report.member_title(member))} <span class="status {tone}">{safe(member["status"])}</span>'
        )
        keys = ("reason", "item", "output", "branch", "conflict", "id")
        about = render_fields([(key, member[key]) for key in keys if member.get(key)])
        parts.append(f"<details><summary>{title}</summary>{about}</details>")
    if rest := len(members) - len(shown):
        parts.append(f'<p class="small">… and {rest:,} more members</p>')
    if body := step.get("body"):
        text = render_text(body, limit)
        parts.append(f"<details><summary>Reports of the members</summary>{text}</details>")
    return "".join(parts)


def _attempt(attempt: View, limit: int | None) -> str:
    parts = [f"<h3>Failed attempt: {safe(attempt['role'])}</h3>"]
    parts.append(f'<div class="small">{safe(" · ".join([*report.facts(attempt), attempt["id"]]))}</div>')
    parts.append(f'<div class="text plain">{safe(report.shorten(attempt["error"], limit))}</div>')
    if sandbox := report.sandbox_text(attempt):
        parts.append(f'<div class="small">{safe(sandbox)}</div>')
    if attempt.get("raw"):
        parts.append(fold_text("What the agent gave", attempt["raw"], limit))
    parts.append(_work(attempt, limit))
    return f'<section class="failed">{"".join(parts)}</section>'


def _work(view: View, limit: int | None) -> str:
    """Return the files, the prompt and the conversation of a step or a failed attempt."""
    parts = []
    if names := ", ".join(f"<code>{safe(line)}</code>" for line in report.files_of(view)):
        parts.append(f'<div class="small">Files: {names}</div>')
    if diff := view.get("diff"):
        parts.append(f"<details><summary>Changes</summary>{_diff(diff, limit)}</details>")
    if view.get("prompt"):
        parts.append(fold_text("Prompt", view["prompt"], limit))
    if turns := report.list_other_turns(view):
        calls = sum(len(turn["tool_calls"]) for turn in turns)
        said = f"Conversation: {report.plural(len(turns), 'turn')}"
        said += f", {report.plural(calls, 'tool call')}" if calls else ""
        parts.append(f"<details><summary>{said}</summary>")
        for turn in turns:
            parts.append(f'<div class="small">{safe(turn["role"])}</div>')
            parts.append(render_text(turn["text"], limit))
            for call in turn["tool_calls"]:
                text = report.pretty(call["arguments"]) + (f"\n\n{call['result']}" if call["result"] else "")
                name = f"{call['name']} {report.call_text(call['arguments'])}".strip()
                parts.append(fold_text(name if len(name) <= 100 else name[:99] + "…", text, limit))
        parts.append("</details>")
    return "".join(parts)


# -- figures --


def _usage(card: View, steps: Sequence[View]) -> str:
    used = report.usage_table(card["usage"], steps)
    if used is None or set(used[0]) <= {"role", "steps", "time"}:
        return ""  # the list of steps shows the same figures
    headings, rows = used
    head = "".join(f"<th>{safe(cell)}</th>" for cell in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{safe(report.format_cell(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    table = f'<table class="usage"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _costs(card: View, colours: Mapping[str, str]) -> str:
    """Return a bar with the reported cost of each role, the most expensive role first."""
    costs = {
        role: used["cost"] for role, used in (card["usage"].get("roles") or {}).items() if used.get("cost")
    }
    total = sum(costs.values())
    if len(costs) < 2:
        return ""
    bars, at, said = [], 0.0, []
    for role, cost in sorted(costs.items(), key=lambda entry: -entry[1]):
        width, label = 1000 * cost / total, f"{role}: {report.money(cost)}, {round(100 * cost / total)} %"
        place = f'class="{colours.get(role, "")}" x="{at:.2f}" width="{max(width - 2, 1):.2f}"'
        bars.append(f'<rect {place} y="0" height="20"><title>{safe(label)}</title></rect>')
        at += width
        said.append(label)
    frame = '<svg class="chart costs" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img"'
    frame += ' aria-label="reported cost of each role">'
    return f'<p class="small">reported cost · {safe(" · ".join(said))}</p>{frame}{"".join(bars)}</svg>'


def _timeline(steps: Sequence[View], colours: Mapping[str, str]) -> str:
    """Return a bar chart of the steps, with time upwards and tokens downwards."""
    width = min(1000 / len(steps), 80)
    longest = max((step.get("durationMs") or 0 for step in steps), default=0) or 1
    most = max(report.tokens(step.get("usage")) for step in steps)
    frame = f'<svg class="chart" viewBox="0 20 1000 {156 if most else 92}" preserveAspectRatio="none"'
    frame += ' role="img" aria-label="time and tokens of each step">'
    # The chart is stretched to the width of the window, so the caption is placed outside the chart.
    said = f"time of each step, up to {report.duration(longest)}"
    said += f"; below it tokens, up to {most:,}" if most else ""
    legend = "".join(f'<span><i class="{name}"></i>{safe(role)}</span>' for role, name in colours.items())
    bars = []
    for index, step in enumerate(steps):
        ms, used = step.get("durationMs") or 0, report.tokens(step.get("usage"))
        up, down = 90 * ms / longest, 60 * used / most if most else 0
        place = f'class="{colours[step["role"]]}" x="{index * width:.2f}"'
        place += f' width="{max(width * 0.85, 0.5):.2f}"'
        title = f"<title>{safe(f'{report.heading(step)}: {report.duration(ms)}, {used:,} tokens')}</title>"
        bars.append(f'<rect {place} y="{110 - up:.1f}" height="{max(up, 1):.1f}">{title}</rect>')
        if down:
            bars.append(f'<rect {place} y="114" height="{down:.1f}" opacity=".55">{title}</rect>')
    chart = f"{frame}{''.join(bars)}</svg>"
    return f'<p class="small">{safe(said)}</p>{chart}<p class="legend small">{legend}</p>'
