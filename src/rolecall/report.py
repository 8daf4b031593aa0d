"""A thread as a person reads it: Markdown, and one HTML page that needs nothing besides itself.

Pure: plain values in, text out. A card says what a thread is and how it stands, a step view says what
one step did; both are the dicts the command line prints as JSON. On the command line's read path, so what
only the HTML page needs is imported there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolecall.thread import FORK, LIMITS, PERSON

SHORT = 2_000
"""Characters of a long text that a report shows unless it is asked for all of it."""

View = Mapping[str, Any]


# -- words --


def shortened(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n… ({len(text) - limit:,} more characters)"


def duration(ms: int | None) -> str:
    if ms is None:
        return ""
    if ms < 60_000:
        return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def tokens(usage: View | None) -> int:
    """What a step or a role used: as counted for limits, or as the agent told it."""
    used = usage or {}
    return int(used.get("tokens") or (used.get("input_tokens") or 0) + (used.get("output_tokens") or 0))


def amount(value: float) -> str:
    """A number with its thousands apart, without an exponent or zeros that say nothing."""
    text = f"{value:,.4f}".rstrip("0").rstrip(".")
    return text if text != "0" or not value else f"{value:.1g}"


def moment(ms: int) -> str:
    from time import gmtime, strftime

    return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(ms / 1000))


def heading(step: View) -> str:
    if step["role"] == PERSON:
        return f"Step {step['number']}: a person answered"
    if step["role"] == FORK:
        return f"Step {step['number']}: forked"
    return f"Step {step['number']}: {step['role']}"


def facts(step: View) -> list[str]:
    """The small print of a step: agent, status, time, tokens, cost."""
    if step["role"] in (PERSON, FORK):
        return []
    used = tokens(step.get("usage"))
    cost = (step.get("usage") or {}).get("cost")
    said = [step["agent"], step.get("status") or "", duration(step.get("durationMs"))]
    said += [f"{used:,} tokens" if used else "", f"${cost:.4f}" if cost else ""]
    return [word for word in said if word]


Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Headings, and rows as long as they."""


def usage_table(usage: View, steps: Iterable[View] = ()) -> Table | None:
    """Role by role what was used, in the order of the steps, and the whole below; only what was used at all."""
    by_role = usage.get("roles") or {}
    if not by_role:
        return None
    seen = (step["role"] for step in steps if step["role"] in by_role)
    every = [*((role, by_role[role]) for role in dict.fromkeys((*seen, *by_role))), ("all", usage)]
    kept = [key for key in LIMITS if any(_used(used, key) for _, used in every)]
    rows = [(name, *(_used(used, key) for key in kept)) for name, used in every]
    return ("role", *("cost $" if key == "cost" else key for key in kept)), rows


def _used(used: View, key: str) -> float | str:
    """A number to be shown; empty for nothing, which would look like something that was measured."""
    value = used.get(key, 0)
    return round(value, {"cost": 4, "minutes": 2}[key]) or "" if key in ("cost", "minutes") else value or ""


def _written(cell: Any) -> str:
    return amount(cell) if isinstance(cell, (int, float)) else str(cell)


# -- Markdown --


def fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


_BRIEF_CALLS = 12
_BRIEF_EDGE = 600


def step_markdown(step: View, *, goal: str = "") -> str:
    """One step as `thread read` shows it; `goal` is what its role is for, said once per role."""
    parts = [f"## {heading(step)}", f"*{' · '.join([*facts(step), step['hash']])}*"]
    parts += [f"*Attempt failed: {_one_line(attempt['error'])}*" for attempt in step.get("attempts") or ()]
    if step["role"] == PERSON:
        return "\n\n".join([*parts, *_answer(step["output"])])
    if step["role"] == FORK:
        return "\n\n".join(
            [*parts, f"From here on this thread goes its own way (from {step['output']['from']})."]
        )
    if goal:
        parts.append(f"<prompt>\n{goal.strip()}\n</prompt>")
    if step.get("edgePrompt", "").strip():
        parts.append(_quoted(shortened(step["edgePrompt"].strip(), _BRIEF_EDGE)))
    parts += _remarks(step)
    if calls := [call for turn in step.get("turns") or () for call in turn["tool_calls"]]:
        parts.append(_calls_in_brief(calls, step["hash"]))
    parts.append(fenced(pretty(step["output"]), "json"))
    if step.get("body", "").strip():
        parts.append(f"<output>\n{step['body'].strip()}\n</output>")
    return "\n\n".join(parts)


def _remarks(step: View) -> list[str]:
    """What a reader should know before the answer: what went against the rules, and who did the work."""
    notes = [f"> **Note:** {note}" for note in step.get("notes") or ()]
    return notes + [f"*Played by thread {child}*" for child in step.get("children") or ()]


def _calls_in_brief(calls: Sequence[View], step: str) -> str:
    """Tool calls, a line each: name, arguments, what came back."""
    lines = [_call_in_brief(call) for call in calls[:_BRIEF_CALLS]]
    if len(calls) > _BRIEF_CALLS:
        lines.append(f"- and {len(calls) - _BRIEF_CALLS} more: `rolecall thread step-details {step}`")
    return "\n".join(lines)


def call_text(arguments: Any) -> str:
    """What a tool was called with, in a line. Of a command it is the command alone: what an agent says of it besides,
    such as a description or a time limit, is no part of it."""
    given = arguments if isinstance(arguments, Mapping) else {}
    values = [given["command"]] if given.get("command") else given.values()
    return " ".join(
        " ".join(map(_word, value)) if isinstance(value, list) else _word(value) for value in values
    )


def _word(value: Any) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


def _call_in_brief(call: View) -> str:
    given = call_text(call["arguments"])
    words = [f"- `{call['name']}`"]
    if given.strip():
        words.append(f"`{_one_line(given, 100).replace('`', chr(39))}`")
    if call["result"].strip():
        words.append(f"→ {_one_line(call['result'], 100)}")
    return " ".join(words)


def _answer(output: View) -> list[str]:
    asked = _quoted(f"{output['role']} had asked: {output['reason']}") if output.get("reason") else ""
    return [part for part in (asked, str(output["answer"])) if part]


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def start_markdown(card: View, prompt: str) -> str:
    return f"# {card['name'] or card['workflow']}\n\n*thread {card['thread']} · {card['status']}*\n\n{prompt.strip()}"


def detail_markdown(step: View, *, with_prompt: bool = False, limit: int | None = SHORT) -> str:
    """Everything about one step: what was asked and said, tools, files, failed attempts."""
    shown = {**step, "attempts": [], "turns": [], "body": shortened(step.get("body", ""), limit)}
    parts = [step_markdown(shown)]
    told = {
        "session": " · ".join(filter(None, (step.get("session"), step.get("sessionReason")))),
        **{key: step.get(key) for key in ("cwd", "ending", "reason")},
    }
    if told := {key: value for key, value in told.items() if value}:
        parts.append("\n".join(f"- {key}: {value}" for key, value in told.items()))
    if step.get("usage"):
        parts.append("- usage: " + ", ".join(f"{key} {value}" for key, value in step["usage"].items()))
    if step.get("files"):
        parts.append("### Files\n\n" + "\n".join(f"- {name}" for name in step["files"]))
    if with_prompt and step.get("prompt"):
        parts.append("### Prompt\n\n" + fenced(shortened(step["prompt"], limit)))
    parts += _turns_markdown(_besides(step), limit)
    for attempt in step.get("attempts") or ():
        parts.append(attempt_markdown(attempt, with_prompt=with_prompt, limit=limit))
    return "\n\n".join(parts)


def attempt_markdown(attempt: View, *, with_prompt: bool = False, limit: int | None = SHORT) -> str:
    """An attempt that came to no step: why, and all that the agent gave."""
    parts = [
        f"### Failed attempt: {attempt['role']}",
        f"*{' · '.join([*facts(attempt), attempt['hash']])}*",
        shortened(attempt["error"], limit),
    ]
    if attempt.get("raw"):
        parts.append(fenced(shortened(attempt["raw"], limit)))
    if with_prompt and attempt.get("prompt"):
        parts.append("Prompt:\n\n" + fenced(shortened(attempt["prompt"], limit)))
    return "\n\n".join([*parts, *_turns_markdown(_besides(attempt), limit)])


def _besides(view: View) -> list[View]:
    """The turns without the answer itself, which is shown already."""
    answer = (view.get("raw") or "").strip()
    turns = [
        {**turn, "text": "" if turn["text"].strip() == answer else turn["text"]} for turn in view["turns"]
    ]
    return [turn for turn in turns if turn["text"] or turn["tool_calls"]]


def _turns_markdown(turns: Sequence[View], limit: int | None) -> list[str]:
    parts = []
    for index, turn in enumerate(turns, 1):
        parts.append(f"### Turn {index}: {turn['role']}")
        if turn["text"].strip():
            parts.append(fenced(shortened(turn["text"].strip(), limit)))
        for call in turn["tool_calls"]:
            parts.append(
                f"Tool `{call['name']}`\n\n" + fenced(shortened(pretty(call["arguments"]), limit), "json")
            )
            if call["result"]:
                parts.append(fenced(shortened(call["result"], limit)))
    return parts


def markdown(card: View, steps: Sequence[View], *, limit: int | None = SHORT) -> str:
    """A whole thread as a Markdown document."""
    parts = [
        f"# {card['title'] or card['name']}",
        "\n".join(f"- {name}: {value}" for name, value in _standing(card)),
    ]
    if used := usage_table(card["usage"], steps):
        parts.append("## Usage\n\n" + _markdown_table(*used))
    parts.append("## Task\n\n" + shortened(card["prompt"].strip(), limit))
    parts += [detail_markdown(step, with_prompt=limit is None, limit=limit) for step in steps]
    parts += [
        attempt_markdown(attempt, with_prompt=limit is None, limit=limit) for attempt in card["attempts"]
    ]
    return "\n\n".join(parts) + "\n"


def _standing(card: View) -> list[tuple[str, str]]:
    said = [
        ("thread", card["thread"]),
        ("workflow", f"{card['name']} ({card['workflow']})"),
        ("status", card["status"]),
        ("reason", card["reason"]),
        ("next role", card["currentRole"]),
        ("steps", card["steps"]),
        ("started", moment(card["created"]) if card["created"] else ""),
        ("work folder", card["cwd"]),
        *own_folders(card),
        ("forked from", card["forkedFrom"]),
        ("go on with", card["continue"]),
    ]
    return [(name, str(value)) for name, value in said if value not in (None, "")]


def own_folders(card: View) -> list[tuple[str, str]]:
    """The thread's own work folders, by their kind."""
    return [
        (kind, f"{folder['path']}{_branch(folder)}{' (removed)' if 'removed' in folder else ''}")
        for kind, folder in (card.get("folders") or {}).items()
    ]


def _branch(folder: View) -> str:
    return f" on {folder['branch']}" if "branch" in folder else ""


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    lines += [" | ".join(_written(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


# -- HTML --

# No script, no font, no image, no link: the page asks nothing of anybody, and the policy says so.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2024; --soft: #60656c; --line: #dfe2e6; --tint: #f5f6f8;
  --good: #18794e; --bad: #c62a2f; --wait: #946800; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e6e8ea; --soft: #9ba1a6; --line: #33373b;
  --tint: #1e2124; --good: #4cc38a; --bad: #ff7a7f; --wait: #f0c000; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  text-align: right; font-variant-numeric: tabular-nums; } th:first-child, td:first-child { text-align: left; }
tr:last-child td { font-weight: 600; border-bottom: 0; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .85rem;
  margin: .6rem 0; overflow: auto; max-height: 36rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, monospace; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: .6rem 0; }
article { border-left: 3px solid var(--line); padding: .1rem 0 .1rem 1rem; margin: 1.25rem 0; }
.small { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); } details { margin: .4rem 0; } details details { margin-left: 1rem; }
.failed { border-left: 3px solid var(--bad); padding-left: .8rem; }
.status { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
svg { width: 100%; height: 10rem; display: block; } rect { fill: var(--role); } article { border-color: var(--role); }
.r0 { --role: #3e63dd; } .r1 { --role: #d6409f; } .r2 { --role: #2b9a66; }
.r3 { --role: #f76b15; } .r4 { --role: #8e4ec6; } .r5 { --role: #0797b9; }
.legend span { display: inline-block; margin-right: 1.1rem; }
.legend i { display: inline-block; width: .7em; height: .7em; background: var(--role); border-radius: 2px;
  margin-right: .4em; }
.wide { overflow-x: auto; }
@media (max-width: 34rem) { main { padding: 1.25rem .9rem 3rem; } h1 { font-size: 1.3rem; }
  th, td { padding-right: .5rem; font-size: .8rem; white-space: nowrap; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .35rem; } article { padding-left: .7rem; } }
@media print { details::details-content { content-visibility: visible; } pre { max-height: none; } }
"""
_COLOURS = 6
_TONES = {
    "completed": "good",
    "failed": "bad",
    "killed": "bad",
    "discarded": "bad",
    "crashed": "bad",
    "damaged": "bad",
}
_TONES |= {"suspended": "wait"}


def html(card: View, steps: Sequence[View], *, limit: int | None = SHORT) -> str:
    """A whole thread as one page that can be mailed and opened anywhere."""
    title = card["title"] or card["name"] or card["thread"]
    colours = _colours(steps)
    content = [f"<h1>{_safe(title)}</h1>", _standing_html(card)]
    if used := usage_table(card["usage"], steps):
        content += ["<h2>Usage</h2>", _usage_html(*used)]
    if steps:
        content += ["<h2>Time and tokens</h2>", _timeline(steps, colours)]
    content += ["<h2>Task</h2>", f'<div class="text">{_safe(shortened(card["prompt"].strip(), limit))}</div>']
    content.append("<h2>Steps</h2>")
    content += [_step_html(step, colours, limit) for step in steps]
    content += [_attempt_html(attempt, limit) for attempt in card["attempts"]]
    return _PAGE.format(title=_safe(title), style=_STYLE, content="\n".join(content))


def _safe(value: Any) -> str:
    """Text that can be nothing but text: markup escaped, characters that steer or turn writing shown."""
    from html import escape

    steering = (
        *range(9),
        11,
        12,
        *range(14, 32),
        *range(127, 160),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
    shown = str(value).translate({code: f"\\u{code:04x}" for code in steering})
    return escape(shown)


def _colours(steps: Sequence[View]) -> dict[str, str]:
    roles = dict.fromkeys(step["role"] for step in steps)
    return {role: f"r{index % _COLOURS}" for index, role in enumerate(roles)}


def _standing_html(card: View) -> str:
    rows = []
    for name, value in _standing(card):
        tone = f' class="status {_TONES.get(value, "")}"' if name == "status" else ""
        rows.append(f"<dt>{_safe(name)}</dt><dd{tone}>{_safe(value)}</dd>")
    return f"<dl>{''.join(rows)}</dl>"


def _usage_html(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in headings)
    body = "".join(f"<tr>{''.join(f'<td>{_safe(_written(cell))}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _timeline(steps: Sequence[View], colours: Mapping[str, str]) -> str:
    """A bar per step: its time upwards, its tokens downwards."""
    width = min(1000 / len(steps), 80)
    longest = max((step.get("durationMs") or 0 for step in steps), default=0) or 1
    most = max(tokens(step.get("usage")) for step in steps)
    bars = []
    for index, step in enumerate(steps):
        ms, used = step.get("durationMs") or 0, tokens(step.get("usage"))
        up, down = 90 * ms / longest, 60 * used / most if most else 0
        place = (
            f'class="{colours[step["role"]]}" x="{index * width:.2f}" width="{max(width * 0.85, 0.5):.2f}"'
        )
        told = _safe(f"{heading(step)}: {duration(ms)}, {used:,} tokens")
        bars.append(
            f'<rect {place} y="{110 - up:.1f}" height="{max(up, 1):.1f}"><title>{told}</title></rect>'
        )
        if down:
            bars.append(
                f'<rect {place} y="114" height="{down:.1f}" opacity=".55"><title>{told}</title></rect>'
            )
    # Stretched to the width of the window, so its words stand outside: they would be stretched with it.
    said = f"time of each step, up to {duration(longest)}" + (
        f"; below it tokens, up to {most:,}" if most else ""
    )
    legend = "".join(f'<span><i class="{name}"></i>{_safe(role)}</span>' for role, name in colours.items())
    frame = f'<svg viewBox="0 20 1000 {156 if most else 92}" preserveAspectRatio="none" role="img"'
    frame += ' aria-label="time and tokens of each step">'
    return (
        f'<p class="small">{_safe(said)}</p>{frame}{"".join(bars)}</svg><p class="legend small">{legend}</p>'
    )


def _step_html(step: View, colours: Mapping[str, str], limit: int | None) -> str:
    small = " · ".join([*facts(step), moment(step["timestamp"]), step["hash"]])
    parts = [f"<h3>{_safe(heading(step))}</h3>", f'<div class="small">{_safe(small)}</div>']
    parts += [_attempt_html(attempt, limit) for attempt in step.get("attempts") or ()]
    if step["role"] == PERSON:
        parts += [f'<div class="text">{_safe(part)}</div>' for part in _answer(step["output"])]
    else:
        parts += [f'<div class="text"><b>Note:</b> {_safe(note)}</div>' for note in step.get("notes") or ()]
        parts += [
            f'<div class="small">Played by thread {child}</div>' for child in step.get("children") or ()
        ]
        parts.append(f"<pre>{_safe(pretty(step['output']))}</pre>")
    if step.get("body", "").strip():
        parts.append(f'<div class="text">{_safe(shortened(step["body"].strip(), limit))}</div>')
    if step.get("files"):
        parts.append(_folded("Files", "\n".join(step["files"]), None))
    if step.get("prompt"):
        parts.append(_folded("Prompt", step["prompt"], limit))
    parts.append(_turns_html(_besides(step), limit))
    colour = colours[step["role"]]
    return f'<article id="step-{step["number"]}" class="{colour}">{"".join(parts)}</article>'


def _attempt_html(attempt: View, limit: int | None) -> str:
    parts = [f"<h3>Failed attempt: {_safe(attempt['role'])}</h3>"]
    parts.append(f'<div class="small">{_safe(" · ".join([*facts(attempt), attempt["hash"]]))}</div>')
    parts.append(f'<div class="text">{_safe(shortened(attempt["error"], limit))}</div>')
    if attempt.get("raw"):
        parts.append(_folded("What the agent gave", attempt["raw"], limit))
    if attempt.get("prompt"):
        parts.append(_folded("Prompt", attempt["prompt"], limit))
    parts.append(_turns_html(_besides(attempt), limit))
    return f'<section class="failed">{"".join(parts)}</section>'


def _folded(name: str, text: str, limit: int | None) -> str:
    return f"<details><summary>{_safe(name)}</summary><pre>{_safe(shortened(text, limit))}</pre></details>"


def _turns_html(turns: Sequence[View], limit: int | None) -> str:
    if not turns:
        return ""
    calls = sum(len(turn["tool_calls"]) for turn in turns)
    said = f"Conversation: {len(turns)} turn{'s' if turns[1:] else ''}" + (
        f", {calls} tool call{'s' if calls > 1 else ''}" if calls else ""
    )
    parts = []
    for turn in turns:
        parts.append(f'<div class="small">{_safe(turn["role"])}</div>')
        if turn["text"].strip():
            parts.append(f'<div class="text">{_safe(shortened(turn["text"].strip(), limit))}</div>')
        for call in turn["tool_calls"]:
            told = pretty(call["arguments"]) + (f"\n\n{call['result']}" if call["result"] else "")
            parts.append(_folded(f"Tool {call['name']}", told, limit))
    return f"<details><summary>{said}</summary>{''.join(parts)}</details>"
