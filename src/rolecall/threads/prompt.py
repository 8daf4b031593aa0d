"""Build the prompt of a step. The code is pure: the same values give the same text. Text that rarely changes comes
first.

The order is fixed: deliverable, scope, role, task with passages from the repository, earlier steps, instruction. An
agent that continues a session has already read everything before the new steps, so it gets only what is new. `reply.py`
handles the opposite direction. Secrets are not masked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rolecall.store.canonical import JsonObject
from rolecall.threads.state import GROUP
from rolecall.workflow.model import SUSPEND, StoredRole
from rolecall.workflow.reply import ReplyProblem, Shape, render

HISTORY_QUOTA = 8000
"""The default number of characters of earlier steps that are shown. The newest step counts for at most half of this
quota, so that a long step does not hide the plan before it."""
NEWEST_STEP_LIMIT = 100_000
"""The maximum number of characters shown of one step's body. The newest step is shown even if it exceeds the quota."""

_SCOPE = """# Scope

Deliver what your role is asked for and nothing else. Leave the work of other roles to them, even where \
you could do it yourself."""


class ShownStep(NamedTuple):
    """An earlier step as the next role sees it."""

    number: int
    """The step's number in the thread, counted from 1."""
    role: str
    output: JsonObject
    body: str = ""
    agent: str = ""
    is_cut: bool = False
    """Whether a part of the output was left out."""


class PromptPart(NamedTuple):
    """One named part of a prompt."""

    name: str
    text: str
    step: int | None = None
    """The number of the earlier step that `show_step` rendered as this text."""


class Prompt(NamedTuple):
    """The prompt of a step, as the parts in which it is stored."""

    parts: tuple[PromptPart, ...]
    shown: tuple[ShownStep, ...] = ()
    """The earlier steps in the prompt, oldest first."""

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts) + "\n"


def assemble(
    role: StoredRole,
    *,
    name: str,
    task: str,
    newest_first: Iterable[ShownStep],
    instruction: str,
    show_command: str,
    knowledge: str = "",
    last_turn: int | None = None,
    quota: int = HISTORY_QUOTA,
) -> Prompt:
    """Build the prompt of one step.

    Args:
        newest_first: the earlier steps, read only as far as they are shown.
        instruction: the rendered prompt of the edge that leads to the role.
        show_command: the command that shows omitted steps.
        knowledge: passages from the repository, for a role that asks for them.
        last_turn: the number of the role's last step, if its session continues; None for a new session.
    """
    since = last_turn or 0
    shown = choose_steps(newest_first, since=since, quota=quota, show_command=show_command)
    happened: list[PromptPart] = []
    if shown:
        title = "# What happened since your last turn" if since else "# What happened"
        happened.append(PromptPart("happened", title))
        first, last = since + 1, shown[0][0].number - 1
        if count := last - since:
            which = f"Step {first} is" if count == 1 else f"Steps {first} to {last} ({count} steps) are"
            text = f"{which} not shown here. To read more: `{show_command}`"
            happened.append(PromptPart("happened", text))
        happened += (part for _, part in shown)
    now = PromptPart("instruction", f"# Now\n\n{instruction.strip()}" if instruction.strip() else "")
    if last_turn is not None:
        parts = [*happened, now, PromptPart("reminder", _reminder(role.schema))]
    else:
        parts = [
            PromptPart("deliver", deliverable(role.schema)),
            PromptPart("scope", _SCOPE),
            PromptPart("role", _role(role, name)),
            PromptPart("task", f"# Task\n\n{task}"),
            PromptPart("knowledge", f"# From this repository\n\n{knowledge}" if knowledge else ""),
            *happened,
            now,
        ]
    return Prompt(tuple(part for part in parts if part.text), tuple(step for step, _ in shown))


def correction(problem: ReplyProblem, schema: JsonObject) -> str:
    """Return the message that asks the agent, in the same session, to correct an answer that could not be parsed."""
    found = "".join(f"\n- {misfit}" for misfit in problem.misfits)
    return (
        f"Your answer could not be read: {problem.reason}.{found}\n\n"
        "Do not repeat the work. Send only the corrected answer, whole, in exactly this form.\n\n"
        f"{deliverable(schema)}\n"
    )


def deliverable(schema: JsonObject) -> str:
    """Describe the form of answer that `reply.parse` expects for a schema."""
    shape = Shape(schema)
    if not shape.declared:
        return f"# What to deliver\n\nAnswer in Markdown.\n\n{_suspend(shape)}"
    opening = (
        "# What to deliver\n\n"
        "Begin your answer with YAML frontmatter: a line `---`, the fields, a line `---`. Nothing comes before "
        "it, and it is not put into a code fence. Below it, write your report in Markdown."
    )
    if shape.variants:
        blocks = [
            f"## {shape.status_field}: {variant.status}\n\n{_form(variant.schema)}"
            for variant in shape.variants
        ]
        body = "Use exactly one of these forms.\n\n" + "\n\n".join(blocks)
    else:
        body = _form(shape.schema)
        if any(keyword in schema for keyword in ("oneOf", "anyOf", "if", "not")):
            body += f"\n\nTogether they must fit this JSON Schema: `{json.dumps(shape.schema, ensure_ascii=False)}`"
    closing = "Use no other fields. Put text that contains `: ` or `#` in quotes."
    return "\n\n".join((opening, body, closing, _suspend(shape)))


# -- the form of an answer --


def _form(schema: JsonObject) -> str:
    required = required_fields(schema)
    fields = "\n".join(
        field_line(name, items[0], is_required=name in required)
        for name, items in Shape(schema).declared.items()
    )
    return f"Fields:\n{fields}\n\nFor example:\n\n{render(example_output(schema), 'Your report.').rstrip()}"


def required_fields(schema: JsonObject) -> set[str]:
    names = set(schema.get("required", ()))
    for branch in schema.get("allOf", ()):
        names |= required_fields(branch)
    return names


def example_output(schema: JsonObject) -> dict[str, Any]:
    """Return an example output with the required fields, or with all fields if no field is required."""
    required = required_fields(schema)
    every = {name: _example(items[0]) for name, items in Shape(schema).declared.items()}
    return {name: value for name, value in every.items() if name in required} or every


def field_line(name: str, item: JsonObject, *, is_required: bool, indent: str = "") -> str:
    """Describe a field on one line, followed by indented lines for the fields inside it."""
    need = "required" if is_required else "optional"
    about = f". {item['description'].strip()}" if item.get("description") else ""
    line = f"{indent}- `{name}` ({need}): {_kind(item)}{about}"
    inner = item.get("items", item) if isinstance(item.get("items", item), Mapping) else {}
    nested = inner.get("properties", {})
    lines = [
        field_line(key, part, is_required=key in inner.get("required", ()), indent=indent + "  ")
        for key, part in nested.items()
    ]
    return "\n".join([line, *lines])


def _kind(item: JsonObject) -> str:
    if "const" in item:
        return f"always `{_literal(item['const'])}`"
    if "enum" in item:
        return "one of " + ", ".join(f"`{_literal(value)}`" for value in item["enum"])
    if any(keyword in item for keyword in ("anyOf", "oneOf", "allOf", "not", "if")):
        return f"a value that fits the JSON Schema `{json.dumps(item, ensure_ascii=False)}`"
    kinds = item.get("type", "any value")
    kind = " or ".join(kinds) if isinstance(kinds, list) else kinds
    if kind == "array":
        kind = f"list, each item: {_kind(item['items'])}" if "items" in item else "list"
    bounds = [words.format(item[keyword]) for keyword, words in _BOUNDS.items() if keyword in item]
    bounds += ["no item twice"] if item.get("uniqueItems") else []
    return ", ".join([kind, *bounds])


_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching `{}`",
    "format": "in the format {}",
}


def _literal(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _example(item: JsonObject) -> Any:
    """Return an example value of the right type. Use constants and the author's examples literally."""
    for keyword in ("const", "default"):
        if keyword in item:
            return item[keyword]
    for keyword in ("enum", "examples"):
        if item.get(keyword):
            return item[keyword][0]
    branches = item.get("oneOf") or item.get("anyOf") or item.get("allOf")
    if branches and "type" not in item:
        return _example(branches[0])
    kinds = item.get("type", "string")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        return {name: _example(part) for name, part in item.get("properties", {}).items()}
    if kind == "array":
        return [_example(item.get("items", {}))] * max(1, int(item.get("minItems", 1)))
    if kind in ("integer", "number"):
        return item.get("minimum", min(1, item.get("maximum", 1)))
    return {"boolean": True, "null": None}.get(kind, "text" + "." * (int(item.get("minLength", 0)) - 4))


def _suspend(shape: Shape) -> str:
    status = shape.status_field or "$status"
    asked = render({status: SUSPEND, "reason": "what has to be decided, and between what"}).rstrip()
    return (
        f"If you cannot continue without a person, answer with this instead, and nothing is lost:\n\n{asked}"
    )


def _reminder(schema: JsonObject) -> str:
    shape = Shape(schema)
    begin = "It is your turn again in the same role and scope."
    if not shape.declared:
        return f"# Reminder\n\n{begin} Answer as before."
    known = ", ".join(f"`{name}`" for name in shape.declared)
    if shape.variants:
        known = " or ".join(f"`{shape.status_field}: {variant.status}`" for variant in shape.variants)
    return (
        f"# Reminder\n\n{begin} Begin the answer with the frontmatter in the form you were given ({known})."
    )


# -- the role and the earlier steps --


def _role(role: StoredRole, name: str) -> str:
    parts = [f"# Your role: {name}"]
    if role.description.strip():
        parts.append(role.description.strip())
    sections = {
        "Goal": role.prompt,
        "Capabilities": "\n".join(f"- {capability}" for capability in role.capabilities),
        "Procedure": role.procedure,
        "Output": role.output,
    }
    parts += [f"## {title}\n\n{text.strip()}" for title, text in sections.items() if text.strip()]
    return "\n\n".join(parts)


def choose_steps(
    newest_first: Iterable[ShownStep], *, since: int, quota: int = HISTORY_QUOTA, show_command: str
) -> list[tuple[ShownStep, PromptPart]]:
    """Return the steps after number `since` that a prompt shows, oldest first, each with the part of the prompt that
    shows it. These are the newest step, and as many others as fit into the quota."""
    shown: list[tuple[ShownStep, PromptPart]] = []
    left = quota
    for step in newest_first:
        if step.number <= since:
            break
        is_whole = len(step.body) <= NEWEST_STEP_LIMIT and not step.is_cut and not _cut_members(step)[1]
        part = PromptPart("step", show_step(step, show_command), step.number if is_whole else None)
        if shown and len(part.text) > left:
            break
        left -= len(part.text) if shown else min(len(part.text), quota // 2)
        shown.append((step, part))
    return shown[::-1]


def _cut_members(step: ShownStep) -> tuple[dict[str, Any], int]:
    """Return a step's output, and the number of members left out of it because their group is too large to show."""
    output, left = dict(step.output), NEWEST_STEP_LIMIT
    members = output.get("members", []) if step.agent == GROUP else []
    for place, member in enumerate(members):
        left -= len(json.dumps(member, ensure_ascii=False))
        if left < 0:
            return {**output, "members": members[:place]}, len(members) - place
    return output, 0


def show_step(step: ShownStep, show_command: str) -> str:
    """Render an earlier step for a prompt. A stored prompt refers to steps by id and relies on this function to render
    them in the same way again, so a new format needs a new function with a form number of its own."""
    by = f" ({step.agent})" if step.agent else ""
    lines = [f"## Step {step.number}: {step.role}{by}", ""]
    output, omitted = _cut_members(step)
    lines.append(f"Output: `{json.dumps(output, ensure_ascii=False)}`")
    if omitted:
        lines += ["", f"[{omitted:,} more members. To read them: `{show_command}`]"]
    body = step.body.strip()
    if len(body) > NEWEST_STEP_LIMIT:
        cut = f"[{len(body) - NEWEST_STEP_LIMIT:,} more characters. To read them: `{show_command}`]"
        body = f"{body[:NEWEST_STEP_LIMIT]}\n{cut}"
    if body:
        # The tags separate the headings of a report from the prompt's own headings.
        lines += ["", f"<report step={step.number}>", body, "</report>"]
    return "\n".join(lines)
