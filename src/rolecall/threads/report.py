"""Render a thread as Markdown for people to read; `html_report.py` makes the HTML page.

These are pure functions from plain values to text. A card describes a thread and its state, and a step view describes
one step; both are the dicts that the command line prints as JSON. This module is on the command line's read path.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import gmtime, localtime, strftime
from typing import Any

from rolecall.errors import Hint
from rolecall.store.canonical import JsonObject
from rolecall.threads.state import GROUP
from rolecall.threads.thread import FORK, LIMITS, PERSON

SHORT = 2_000
"""The default number of characters that a report shows of a long text."""

LONGEST_DIFF = 20_000
"""The default number of characters that a report shows of a diff."""

View = JsonObject


# -- words --


def shorten(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n… ({len(text) - limit:,} more characters)"


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def duration(ms: int | None) -> str:
    if ms is None:
        return ""
    if ms < 10_000:
        return f"{ms / 1000:.1f}".removesuffix(".0") + " s" if ms >= 50 else "0 s"
    if ms < 59_500:
        return f"{ms / 1000:.0f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def tokens(usage: View | None) -> int:
    """Return the tokens that a step or a role used, as counted for limits or as reported by the agent."""
    used = usage or {}
    return int(used.get("tokens") or (used.get("input_tokens") or 0) + (used.get("output_tokens") or 0))


def amount(value: float) -> str:
    """Format a number with thousands separators and without trailing zeros."""
    text = f"{value:,.4f}".rstrip("0").rstrip(".")
    return text if text != "0" or not value else f"{value:.1g}"


def money(dollars: float) -> str:
    """Format an amount in dollars to the cent, or to four digits if it is below a dollar and needs them."""
    return f"${dollars:,.2f}" if dollars >= 1 or round(dollars, 2) == round(dollars, 4) else f"${dollars:.4f}"


def describe_amount(name: str, value: float) -> str:
    """Format a `cost` in dollars, a number of `tokens`, or an amount with any other name, such as `minutes` or a
    score."""
    if name == "cost":
        return money(value)
    return f"{value:,.0f}" if name == "tokens" else f"{value:.2f}"


def describe_change(name: str, value: float) -> str:
    """Format a difference between two amounts, with its sign."""
    return f"{'−' if value < 0 else '+'}{describe_amount(name, abs(value))}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.0f} %"


def moment(ms: int) -> str:
    return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(ms / 1000))


def local_time(ms: int) -> str:
    """Format a future time in the machine's time zone, with its day unless that day is today."""
    at = localtime(ms / 1000)
    is_today = at[:3] == localtime()[:3]
    return strftime("%H:%M:%S" if is_today else "%a %d %b %H:%M", at)


def heading(step: View) -> str:
    if step["role"] == PERSON:
        return f"Step {step['number']}: a person answered"
    if step["role"] == FORK:
        return f"Step {step['number']}: forked"
    return f"Step {step['number']}: {step['role']}"


def facts(step: View) -> list[str]:
    """Return short facts about a step: agent, status, time, tokens and cost."""
    if step["role"] in (PERSON, FORK):
        return []
    said = [step["agent"], step.get("status") or ""]
    if reused := step.get("reused"):
        return [word for word in (*said, *describe_reuse(reused)) if word]
    used = tokens(step.get("usage"))
    cost = (step.get("usage") or {}).get("cost")
    said += [
        duration(step.get("durationMs")),
        f"{used:,} tokens" if used else "",
        money(cost) if cost else "",
    ]
    said += [f"reused {total}" if (total := reuse_total(step.get("saved"))) else ""]
    return [word for word in said if word]


def sandbox_text(view: View) -> str:
    """Describe the sandbox rules of a step or an attempt, and how they were enforced. Return an empty string if there
    was no sandbox."""
    use = view.get("sandbox")
    if not use:
        return ""
    if use["rules"] == "off":
        return "no sandbox (off)"
    how = ", ".join(line.removeprefix("files: ") for line in use.get("enforced", ()))
    return f"sandbox: {use['rules']} · {how or 'no process was started'}"


def describe_reuse(reused: View) -> list[str]:
    """Return the source of a reused step, and what its reuse saved."""
    saved = describe_savings(reused.get("saved") or {})
    return [f"reused from …{reused['thread'][-4:]}", *([f"saved {saved}"] if saved else [])]


def describe_savings(saved: View) -> str:
    """Format what reuse has saved: the cost or, if no cost is known, the tokens."""
    if saved.get("cost"):
        return money(saved["cost"])
    return f"{used:,} tokens" if (used := tokens(saved)) else ""


def reuse_total(saved: View | None) -> str:
    """Say how many steps were reused, and what that saved. Return an empty string if no step was reused."""
    if not saved or not saved.get("steps"):
        return ""
    return ", ".join(
        [plural(saved["steps"], "step"), *([f"saved {text}"] if (text := describe_savings(saved)) else [])]
    )


def change_text(change: View) -> str:
    """Describe a changed file with its added and removed lines, such as `src/login.py +12 -3`."""
    added, removed = change["added"], change["removed"]
    marks = [change["kind"]] if change["kind"] != "changed" else []
    if added is None:
        marks.append("binary")
    elif not marks and not added and not removed:
        marks.append("mode")
    lines = [f"+{added:,}"] if added else []
    lines += [f"-{removed:,}"] if removed else []
    path = change["path"].replace("\n", "\\n")
    return " ".join([path, *([f"({', '.join(marks)})"] if marks else []), *lines])


def changes_text(step: View, most: int | None = None) -> list[str]:
    """List the files that a step changed, one per line, at most `most` of them."""
    changes = step.get("changes") or ()
    rest = len(changes[most:]) * (most is not None) + step.get("moreChanges", 0)
    return [*map(change_text, changes[:most]), *([f"and {rest:,} more"] if rest else [])]


def changes_total(step: View) -> str:
    """Say how many files a step changed and, if all changes are known, how many lines. Return an empty string if there
    are no changes."""
    changes, more = step.get("changes") or (), step.get("moreChanges", 0)
    if not changes:
        return ""
    files = plural(len(changes) + more, "file")
    added, removed = (sum(change[key] or 0 for change in changes) for key in ("added", "removed"))
    return files if more else f"{files} +{added:,} -{removed:,}"


Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""The headings, and rows of the same length as the headings."""


def usage_table(usage: View, steps: Iterable[View] = ()) -> Table | None:
    """Return the usage per role, in the order of the steps, with the total in the last row. Leave out unused
    columns."""
    by_role = usage.get("roles") or {}
    if not by_role:
        return None
    seen = (step["role"] for step in steps if step["role"] in by_role)
    every = [*((role, by_role[role]) for role in dict.fromkeys((*seen, *by_role))), ("all", usage)]
    kept = [key for key in LIMITS if any(_figure(used, key) for _, used in every)]
    rows = [(name, *(_figure(used, key) for key in kept)) for name, used in every]
    return ("role", *("time" if key == "minutes" else key for key in kept)), rows


def _figure(used: View, key: str) -> float | str:
    """Format a figure for the table. Return an empty string for zero, which would look like a measurement."""
    value = used.get(key)
    if not value:
        return ""
    if key == "minutes":
        return "" if value < 0.001 else duration(round(value * 60_000))
    shown: float | str = money(value) if key == "cost" else value
    return shown


def format_cell(cell: Any) -> str:
    return amount(cell) if isinstance(cell, (int, float)) else str(cell)


# -- Markdown --


def code_block(text: str, language: str = "") -> str:
    """Return a code block whose fence is longer than any fence in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


_BRIEF_CALLS = 12
_BRIEF_EDGE = 600
_BRIEF_MEMBERS = 12
BRIEF_CHANGES = 12
MEMBERS = 50
"""The default number of a group's members that a report shows in full."""


def members_of(step: View) -> Sequence[View] | None:
    """Return the members in the output of a group's step, or None for any other step."""
    is_group = step["agent"] == GROUP and isinstance(step["output"], Mapping)
    return step["output"].get("members") if is_group else None


def member_title(member: View) -> str:
    """Describe a member by its number, and by its item or role."""
    about = member.get("role") or ("" if "item" not in member else item_text(member["item"]))
    return f"{member['number']} {_one_line(about, 80)}".rstrip()


def item_text(item: Any) -> str:
    """Return a member's item on one line: the value of its only field, a text, or JSON."""
    if isinstance(item, dict) and len(item) == 1:
        [item] = item.values()
    return _word(item)


def describe_join(output: View) -> str:
    """Say how the members of a group ended, such as `7 of 8 members are done, 1 failed`."""
    endings = ("failed", "stopped", "set_aside")
    others = [f"{output[status]:,} {status.replace('_', ' ')}" for status in endings if output.get(status)]
    return ", ".join([f"{output['done']:,} of {output['count']:,} members are done", *others])


def step_markdown(
    step: View, *, role_prompt: str = "", phrase: Callable[[Hint], str] = Hint.call, unfolded: int | None = 0
) -> str:
    """Render one step as `thread read` shows it. `role_prompt` is the prompt of the step's role, shown once per role.
    `phrase` words the hint on how to read more. `unfolded` is the number of group members shown in full, or None for
    all."""
    parts = [f"## {heading(step)}", f"*{' · '.join([*facts(step), step['id']])}*"]
    parts += [f"*Attempt failed: {_one_line(attempt['error'])}*" for attempt in step.get("attempts") or ()]
    if step["role"] == PERSON:
        said = step["output"]
        asked = [_quote(f"{said['role']} had asked: {said['reason']}")] if said.get("reason") else []
        return "\n\n".join([*parts, *asked, str(said["answer"])])
    if step["role"] == FORK:
        parts.append(f"The fork begins here (from {step['output']['from']}).")
        return "\n\n".join(parts)
    if role_prompt:
        parts.append(f"<prompt>\n{role_prompt.strip()}\n</prompt>")
    if sandbox := sandbox_text(step):
        parts.append(f"*{sandbox}*")
    if step.get("edgePrompt", "").strip():
        parts.append(_quote(shorten(step["edgePrompt"].strip(), _BRIEF_EDGE)))
    parts += [f"> **Note:** {note}" for note in step.get("notes") or ()]
    parts += [f"*Played by thread {child}*" for child in step.get("children") or ()]
    if calls := [call for turn in step.get("turns") or () for call in turn["tool_calls"]]:
        parts.append(_calls_in_brief(calls, phrase(Hint("See them", "show_step", step=step["id"]))))
    if changes := changes_text(step, BRIEF_CHANGES):
        parts.append("Files:\n\n" + "\n".join(f"- {line}" for line in changes))
    if (members := members_of(step)) is not None:
        more = phrase(Hint("See them", "show_step", step=step["id"]))
        parts += _members_markdown(step["output"], members, unfolded, more)
    else:
        parts.append(code_block(pretty(step["output"]), "json"))
    if step.get("body", "").strip() and (members is None or unfolded != 0):
        parts.append(f"<output>\n{step['body'].strip()}\n</output>")
    return "\n\n".join(parts)


def _members_markdown(
    output: View, members: Sequence[View], unfolded: int | None, more: str
) -> Iterable[str]:
    """Render the members of a group, unfinished members first; show the first `unfolded` members with their outputs."""
    yield describe_join(output) + "."
    ordered = sorted(members, key=lambda member: member["status"] == "done")
    if unfolded == 0:
        lines = [
            f"- {member_title(member)}: {member['status']}"
            + (f": {_one_line(member['reason'], 200)}" if member.get("reason") else "")
            + (f" ({member['id']})" if member["id"] else "")
            for member in ordered[:_BRIEF_MEMBERS]
        ]
        rest = len(members) - len(lines)
        yield "\n".join([*lines, *([f"- and {rest:,} more" + (f": {more}" if more else "")] if rest else [])])
        return
    for member in ordered[:unfolded]:
        subtitle = " · ".join(filter(None, (member["status"], member["id"])))
        yield f"### {member_title(member)}\n\n*{subtitle}*"
        if member.get("reason"):
            yield member["reason"]
        shown = {key: member[key] for key in ("item", "output", "branch", "conflict") if member.get(key)}
        if shown:
            yield code_block(pretty(shown), "json")
    if unfolded is not None and members[unfolded:]:
        yield f"*(and {len(members) - unfolded:,} more members)*"


def _calls_in_brief(calls: Sequence[View], more: str) -> str:
    lines = []
    for call in calls[:_BRIEF_CALLS]:
        words, given = [f"- `{call['name']}`"], call_text(call["arguments"])
        if given.strip():
            words.append(f"`{_one_line(given, 100).replace('`', chr(39))}`")
        if call["result"].strip():
            words.append(f"→ {_one_line(call['result'], 100)}")
        lines.append(" ".join(words))
    if len(calls) > _BRIEF_CALLS:
        lines.append(f"- and {len(calls) - _BRIEF_CALLS} more" + (f": {more}" if more else ""))
    return "\n".join(lines)


def call_text(arguments: Any) -> str:
    """Return the arguments of a tool call on one line. For a command, leave out the agent's description and time
    limit."""
    given = arguments if isinstance(arguments, Mapping) else {}
    values = [given["command"]] if given.get("command") else given.values()
    return " ".join(
        " ".join(map(_word, value)) if isinstance(value, list) else _word(value) for value in values
    )


def _word(value: Any) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def start_markdown(card: View, prompt: str) -> str:
    return f"# {card['name'] or card['workflow']}\n\n*thread {card['thread']} · {card['status']}*\n\n{prompt.strip()}"


def detail_markdown(step: View, *, with_prompt: bool = False, limit: int | None = SHORT) -> str:
    """Render everything about one step: answer, tool calls, files, failed attempts and, if requested, the prompt."""
    shown = {**step, "attempts": [], "turns": [], "changes": [], "moreChanges": 0}
    shown["body"] = shorten(step.get("body", ""), limit)
    parts = [step_markdown(shown, unfolded=None if limit is None else MEMBERS)]
    fields = {
        "session": " · ".join(filter(None, (step.get("session"), step.get("sessionReason")))),
        **{key: step.get(key) for key in ("cwd", "ending", "reason")},
    }
    if fields := {key: value for key, value in fields.items() if value}:
        parts.append("\n".join(f"- {key}: {value}" for key, value in fields.items()))
    if step.get("usage"):
        parts.append("- usage: " + ", ".join(f"{key} {value}" for key, value in step["usage"].items()))
    if files := files_of(step):
        parts.append("### Files\n\n" + "\n".join(f"- {line}" for line in files))
    if with_prompt and step.get("prompt"):
        parts.append("### Prompt\n\n" + code_block(shorten(step["prompt"], limit)))
    parts += _work_markdown(step, limit)
    for attempt in step.get("attempts") or ():
        parts.append(attempt_markdown(attempt, with_prompt=with_prompt, limit=limit))
    return "\n\n".join(parts)


def files_of(step: View) -> list[str]:
    """List the files that a step changed, and files that were not recorded. If no changes are known, list the files
    that the agent named instead."""
    omitted = [f"{path} (not recorded)" for path in step.get("omitted") or ()]
    return [*(changes_text(step) or step.get("files") or ()), *omitted]


def attempt_markdown(attempt: View, *, with_prompt: bool = False, limit: int | None = SHORT) -> str:
    """Render a failed attempt with its reason and all output of the agent."""
    parts = [
        f"### Failed attempt: {attempt['role']}",
        f"*{' · '.join([*facts(attempt), attempt['id']])}*",
        shorten(attempt["error"], limit),
        *([f"*{sandbox}*"] if (sandbox := sandbox_text(attempt)) else []),
    ]
    if attempt.get("raw"):
        parts.append(code_block(shorten(attempt["raw"], limit)))
    if files := files_of(attempt):
        parts.append("Files:\n\n" + "\n".join(f"- {line}" for line in files))
    if with_prompt and attempt.get("prompt"):
        parts.append("Prompt:\n\n" + code_block(shorten(attempt["prompt"], limit)))
    return "\n\n".join([*parts, *_work_markdown(attempt, limit)])


def list_other_turns(view: View) -> list[View]:
    """Return the turns without the answer, which is shown elsewhere."""
    answer = (view.get("raw") or "").strip()
    turns = [
        {**turn, "text": "" if turn["text"].strip() == answer else turn["text"]} for turn in view["turns"]
    ]
    return [turn for turn in turns if turn["text"] or turn["tool_calls"]]


def _work_markdown(view: View, limit: int | None) -> list[str]:
    """Render the diff and the turns of a step or a failed attempt."""
    diff = shorten(view.get("diff") or "", None if limit is None else LONGEST_DIFF)
    parts = [code_block(diff, "diff")] if diff else []
    for index, turn in enumerate(list_other_turns(view), 1):
        parts.append(f"### Turn {index}: {turn['role']}")
        if turn["text"].strip():
            parts.append(code_block(shorten(turn["text"].strip(), limit)))
        for call in turn["tool_calls"]:
            parts.append(
                f"Tool `{call['name']}`\n\n" + code_block(shorten(pretty(call["arguments"]), limit), "json")
            )
            if call["result"]:
                parts.append(code_block(shorten(call["result"], limit)))
    return parts


def markdown(card: View, steps: Sequence[View], *, limit: int | None = SHORT) -> str:
    """Render a whole thread as a Markdown document."""
    parts = [
        f"# {card['title'] or card['name']}",
        "\n".join(f"- {name}: {value}" for name, value in describe_thread(card)),
    ]
    parts.append("## Task\n\n" + shorten(card["prompt"].strip(), limit))
    if used := usage_table(card["usage"], steps):
        headings, rows = used
        lines = [headings, ["---" for _ in headings]]
        lines += [[format_cell(cell).replace("|", "\\|") for cell in row] for row in rows]
        parts.append("## Usage\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts += [detail_markdown(step, with_prompt=limit is None, limit=limit) for step in steps]
    parts += [
        attempt_markdown(attempt, with_prompt=limit is None, limit=limit) for attempt in card["attempts"]
    ]
    return "\n\n".join(parts) + "\n"


def describe_thread(card: View) -> list[tuple[str, Any]]:
    """Return the facts that a report gives about a thread, by name."""
    said = [
        ("thread", card["thread"]),
        ("workflow", f"{card['name']} ({card['workflow']})"),
        ("status", card["status"]),
        ("reason", card["reason"]),
        ("waits until", moment(card["until"]) if "until" in card else ""),
        ("next role", card["currentRole"]),
        ("steps", card["steps"]),
        ("reused", reuse_total(card["usage"].get("saved"))),
        ("started", moment(card["created"]) if card["created"] else ""),
        ("work folder", card["cwd"]),
        *own_folders(card),
        ("forked from", card["forkedFrom"]),
        ("continue with", card["continue"]),
    ]
    return [(name, value) for name, value in said if value not in (None, "")]


def own_folders(card: View) -> list[tuple[str, str]]:
    """Describe the thread's own work folders, by kind."""
    found = []
    for kind, folder in (card.get("folders") or {}).items():
        branch = f" on {folder['branch']}" if "branch" in folder else ""
        found.append((kind, f"{folder['path']}{branch}{' (removed)' if 'removed' in folder else ''}"))
    return found
