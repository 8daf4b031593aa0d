"""The comment about a thread on the forge, which every job updates."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rolecall.api import Thread
from rolecall.forge.event import OUR_MARK
from rolecall.settings.mask import Mask
from rolecall.threads.prompt import example_output
from rolecall.threads.report import (
    amount,
    change_text,
    code_block,
    format_cell,
    money,
    pretty,
    shorten,
    usage_table,
)
from rolecall.workflow.model import STATUS_KEYS
from rolecall.workflow.reply import Shape, render

_MOST = 60_000
"""The maximum number of characters in a comment's text. GitHub accepts comments of at most 65,536 characters."""
_MOST_TEXT = 8_000
_MOST_STEPS = 20_000
_MOST_FILES = 50
_SIGNS = {
    "completed": "✅",
    "suspended": "✋",
    "waiting": "✋",
    "failed": "❌",
    "killed": "⛔",
    "discarded": "⛔",
}


def mark_of(thread: Thread) -> str:
    """Return the invisible first line of Rolecall's comment about a thread."""
    return f"{OUR_MARK} {thread.id} -->"


def write(thread: Thread, *, job: str, note: str, branch: str, request: str, mask: Mask) -> str:
    """Return the comment about a thread. `job` is the URL of the job, `note` an additional remark, and `request` the
    URL of the pull or merge request."""
    state, status = thread.state, thread.status
    said = "waits for you" if thread.needs_person else status
    parts = [f"### {_SIGNS.get(status, '⏳')} Rolecall: `{state.name}` {said}"]
    parts += [f"> **Note:** {escape_markup(note)}"] if note else []
    asked = thread.asking
    if thread.needs_person:
        question = escape_markup(shorten(_question(asked), _MOST_TEXT))
        parts += [f"**{escape_markup(asked.role or 'The thread')}**: {question}"]
    elif state.reason:
        parts += [escape_markup(shorten(state.reason, _MOST_TEXT))]
    result = thread.result()
    if result:
        heading = f"**{result['role']}**" + (f": {result['status']}" if result["status"] else "")
        parts += [escape_markup(heading), escape_markup(shorten(result["text"], _MOST_TEXT))]
        output = result["output"] if isinstance(result["output"], Mapping) else {}
        if fields := {key: value for key, value in output.items() if key not in STATUS_KEYS}:
            parts.append(code_block(shorten(pretty(fields), _MOST_TEXT), "json"))
    if thread.needs_person:
        parts.append(_how_to_answer(asked))
    newest = {change["path"]: change for step in thread.file_changes() for change in step["changes"]}
    if changes := [change_text(change) for change in newest.values()]:
        parts.append(_fold(f"Files changed: {len(changes)}", code_block("\n".join(changes[:_MOST_FILES]))))
    links = [f"[branch `{branch}`]({request})" if request else f"branch `{branch}`"] if branch else []
    usage = thread.summary()["usage"]
    if (table := usage_table(usage, thread.step_entries()[1:])) is not None:
        headings, rows = table
        lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
        lines += ["| " + " | ".join(format_cell(cell) for cell in row) + " |" for row in rows]
        parts.append(_fold("Usage", "\n".join(lines)))
    parts.append(_fold("Steps", escape_markup(thread.read(max_chars=_MOST_STEPS))))
    used = [f"{amount(usage['tokens'])} tokens"] if usage.get("tokens") else []
    used += [money(usage["cost"])] if usage.get("cost") else []
    footer = [f"thread `{thread.id}`", *links, *used, f"[job]({job})" if job else ""]
    end = f"<sub>{' · '.join(filter(None, footer))}</sub>"
    text = mask.text("\n\n".join(part for part in parts if part))
    if len(text) > _MOST:
        text = text[:_MOST] + "\n\n… the rest is in the thread."
        text += "\n```" * (text.count("\n```") % 2) + "\n</details>"
    return f"{mark_of(thread)}\n{text}\n\n{mask.text(end)}\n"


def _question(thread: Thread) -> str:
    due, role = (question := thread.question()).due, question.role
    if due is None or role is None or thread.state.onward is not None:
        return thread.reason
    return next(filter(None, (due.prompt.strip(), role.prompt.strip(), role.description)), thread.reason)


def _how_to_answer(thread: Thread) -> str:
    question, state = thread.question(), thread.state
    if state.onward is not None:
        limit = f" {state.onward.limit}" if state.onward.limit else ""
        lines = [f"/rolecall resume{limit}", "/rolecall kill"]
    elif question.due is not None and question.role is not None:
        schema = question.role.schema
        shape = Shape(schema)
        forms = [variant.schema for variant in shape.variants] or [schema]
        lines = [_example(form, shape.status_field) for form in forms]
        if not shape.variants and shape.statuses and list(shape.declared) == [shape.status_field]:
            lines = [f"/rolecall answer {status}: your reasons" for status in shape.statuses]
    else:
        lines = ["/rolecall answer your answer"]
    return "To continue, write a comment that begins like this:\n\n" + code_block("\n\n".join(lines))


def _example(schema: Mapping[str, object], status_field: str | None) -> str:
    example = example_output(schema)
    others = {key: value for key, value in example.items() if key != status_field}
    status = f"{example[status_field]}: " if status_field in example else ""
    if len(others) <= 1 and all(isinstance(value, str) for value in others.values()):
        return f"/rolecall answer {status}{'your reasons' if not others else 'your ' + next(iter(others))}"
    return f"/rolecall answer\n{render(example, 'Your report.')}".rstrip()


def _fold(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def escape_markup(text: str) -> str:
    """Escape text written by agents and others so that it has no effect on the forge. Otherwise, GitLab would carry out
    a line such as `/merge` in Rolecall's name, and `@name` would notify people."""
    text = text.replace("<!--", "&lt;!--")
    text = re.sub(r"(?m)^([\s>*+-]*)/(?=\w)", "\\1\\\\/", text)
    return re.sub(r"(?<![\w`])@(?=\w)", "@\u200b", text)
