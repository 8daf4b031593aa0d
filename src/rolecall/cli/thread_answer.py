"""`rolecall thread answer`: show a person the question and take the answer, which is either a role's output or a text
for an agent."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from rolecall.api import Question, Thread
from rolecall.cli import CommandResult, argument, asking, repeated, verb
from rolecall.cli.arguments import RUN, THREAD, describe_person, in_this_store, open_thread
from rolecall.cli.output import STORE, format_of, parse_json, read_input, tell, word_value
from rolecall.cli.thread_outcome import CODES, show_state, tell_continuation
from rolecall.cli.thread_play import play
from rolecall.errors import InvalidPayload, UsageError
from rolecall.store.canonical import JsonObject
from rolecall.store.schema import Type
from rolecall.threads.prompt import example_output, field_line, required_fields
from rolecall.workflow.model import STATUS_KEYS, StoredRole
from rolecall.workflow.reply import Shape
from rolecall.workflow.route import Next

_MOST_LINES = 20
"""How many lines of the previous answer are shown."""
_EMPTY_NAME = (
    "Your shell replaces $status with the value of a variable, which is empty. "
    "Write status=…, or use single quotes: '$status=…'."
)


def _field(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if not name:
        raise ArgumentTypeError(f"{text!r} has no name. {_EMPTY_NAME}")
    return name, value


@verb(
    "thread answer",
    "answer an agent's question, or play the role whose turn it is; asks on a terminal",
    "rolecall thread answer 01M7F72S --run\n"
    "rolecall thread answer 01M7F72S -p 'Use the second one' --run\n"
    "rolecall thread answer 01M7F72S --field status=approved --body 'Looks right.'",
    THREAD,
    argument(
        "-p --body",
        "TEXT",
        "the answer to a question, or the report of a role; @FILE reads a file, - reads standard input",
    ),
    repeated(
        "--field",
        "NAME=VALUE",
        "one field of the role's output, such as status=done; may be repeated",
        type=_field,
    ),
    argument(
        "--output", "JSON", "all fields of the role's output; @FILE reads a file, - reads standard input"
    ),
    *RUN,
    STORE,
)
def answer(options: Namespace) -> CommandResult | int:
    if options.agent and not options.run:
        raise UsageError("--agent names the agent of the next steps, so it needs --run")
    with open_thread(options, is_waiting=True) as thread:
        thread.refuse_running()  # raise the error before the person thinks about an answer
        question = thread.question()
        takes_output = question.due is not None or thread.state.status != "suspended"
        shown = (_play_role if takes_output else _send_text)(options, thread, question)
        if shown is not None:
            return shown
        if options.run:
            return play(options, thread, steps=None, is_run=True)
        show_state(options, thread, step=thread.head)
        tell_continuation(options, thread)
        return CODES.get(thread.state.status, 0)


def _can_ask(options: Namespace) -> bool:
    return format_of(options) == "text" and asking.can_ask()


def _send_text(options: Namespace, thread: Thread, question: Question) -> CommandResult | None:
    """Give the role the text for which it waits, or return the question if nobody can be asked."""
    if options.output is not None or options.field:
        raise UsageError(
            f"thread {thread.id} expects text, not fields: {thread.reason}",
            hint=f"Answer with `rolecall thread answer {thread.id} -p TEXT`.",
        )
    if options.body is None:
        command = in_this_store(options, f"rolecall thread answer {thread.id} -p '…' --run")
        shown = {
            "thread": thread.id,
            "currentRole": thread.role,
            "title": thread.state.title,
            "question": thread.reason,
            "task": question.task,
            "answer": command,
        }
        who = f"{thread.role} asks:" if question.is_asked else "The thread cannot continue by itself:"
        parts = [f"# {thread.state.title}", who, thread.reason]
        parts.append("The thread so far: " + in_this_store(options, f"rolecall thread read {thread.id}"))
        if not _can_ask(options):
            text = "\n\n".join([*parts, f"Answer with this command:\n  {command}"])
            return CommandResult(shown, text, CODES["suspended"] if options.run else 0)
        tell("\n\n".join(parts) + "\n")
        text = asking.ask_text("Your answer", is_required=True)
    else:
        text = read_input(options.body)
        if not text.strip():
            raise UsageError("the answer is empty", hint="Give the agent what it needs to know: -p TEXT.")
    thread.resume(text, is_run_here=options.run, by=describe_person())
    return None


def _play_role(options: Namespace, thread: Thread, question: Question) -> CommandResult | None:
    """Take the step of the next role, or return the question if nobody can be asked."""
    due, role = question.due, question.role
    is_asking = options.output is None and not options.field and options.body is None
    if not is_asking or due is None or role is None or thread.has_ended:
        output = {} if options.output is None else parse_json(read_input(options.output))
        if not isinstance(output, dict):
            raise UsageError("--output must be a JSON object", hint='For example \'{"status": "approved"}\'.')
        if "" in output:
            raise UsageError("a field of --output has no name", hint=_EMPTY_NAME)
        shape = Shape(role.schema if role else {})
        # A shell expands `$status`, so `status` means `$status` unless there is a field named `status`.
        is_short = "$status" in shape.declared and "status" not in shape.declared
        names = {"status": "$status"} if is_short else {}
        output = {names.get(name, name): value for name, value in output.items()}
        for given, text in options.field:
            name = names.get(given, given)
            output[name] = text if name in shape.strings else _parse_value(text)
        body = "" if options.body is None else read_input(options.body)
    else:
        parts = list(_question_text(options, thread, question, due, role))
        if not _can_ask(options):
            return _view_question(options, thread, question, due, role, parts)
        tell("\n\n".join(parts) + "\n")
        output = _ask_output(role.schema)
        body = asking.ask_text("Your report", is_required=False)
    thread.answer(output, body, is_run_here=options.run, by=describe_person())
    return None


def _parse_value(text: str) -> Any:
    try:
        return parse_json(text)
    except UsageError:  # a text; the schema validates the value in either case
        return text


def _ask_output(schema: JsonObject) -> JsonObject:
    """Ask for the fields one by one, and again if the values do not fit together."""
    whole = Shape(schema)
    while True:
        form, output = schema, dict[str, Any]()
        if whole.variants and whole.status_field:
            statuses = [variant.status for variant in whole.variants]
            chosen = asking.ask_choice(whole.status_field.lstrip("$"), statuses, is_required=True) or 0
            output[whole.status_field], form = statuses[chosen], whole.variants[chosen].schema
        required = required_fields(form)
        declared = Shape(form).declared
        for name in sorted(declared, key=lambda name: (name not in STATUS_KEYS, name not in required)):
            if name not in output:
                value = _ask_field(name, declared[name][0], schema, is_required=name in required)
                if value is not None:
                    output[name] = value
        misfits = whole.misfits(output)
        if not misfits:
            return output
        tell("\n".join(["These do not fit together:", *(f"  {misfit}" for misfit in misfits)]))


def _ask_field(name: str, item: JsonObject, schema: JsonObject, *, is_required: bool) -> Any:
    """Ask for the value of a field, and return None if the person skips the field."""
    if "const" in item:
        return item["const"]
    shown = name.lstrip("$")
    about = f" ({item['description'].strip()})" if item.get("description") else ""
    choices = item.get("enum") or ([True, False] if item.get("type") == "boolean" else None)
    if choices:
        words = map(word_value, choices)
        place = asking.ask_choice(f"{shown}{about}", [*words], is_required=is_required)
        return None if place is None else choices[place]

    is_list = item.get("type") == "array"
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    alone = Type({**definitions, "type": "object", "properties": {name: item}})

    def check(text: str) -> Any:
        if not text and not is_required:
            return None
        value = text if item.get("type") == "string" else _parse_value(text)
        if is_list and not isinstance(value, list):
            value = [part.strip() for part in text.split(",") if part.strip()]
            inner = item.get("items")
            if not isinstance(inner, Mapping) or inner.get("type") != "string":
                value = [_parse_value(part) for part in value]
        if not text and not is_list and item.get("minLength") != 0:
            raise UsageError("An answer is needed.")
        if misfits := alone.misfits({name: value}):
            raise InvalidPayload("\n  ".join(misfits), misfits)
        return value

    line = field_line(shown, item, is_required=is_required).splitlines()[0].strip("- .").replace("`", "")
    line = f"{line} (separated by commas)" if is_list else line.removesuffix(": string")
    return asking.ask(line if is_required else f"{line} (Enter: leave it out)", check)


def _question_text(
    options: Namespace, thread: Thread, question: Question, due: Next, role: StoredRole
) -> Iterator[str]:
    about = role.description.strip()
    yield f"# You are asked as {due.role}: {about}" if about else f"# You are asked as {due.role}"
    sections = {"Task": question.task, "Now": due.prompt, "Prompt": role.prompt}
    sections |= {"Procedure": role.procedure, "Output": role.output}
    for title, text in sections.items():
        if text.strip():
            yield f"## {title}\n\n{text.strip()}"
    before = question.before
    if before is not None and (lines := before.body.strip().splitlines()):
        more = [f"… {len(lines) - _MOST_LINES} more lines"] if lines[_MOST_LINES:] else []
        yield "\n".join([f"## From {before.role}\n", *lines[:_MOST_LINES], *more])
    if thread.state.steps:
        yield "The thread so far: " + in_this_store(options, f"rolecall thread read {thread.id}")


def _view_question(
    options: Namespace, thread: Thread, question: Question, due: Next, role: StoredRole, parts: list[str]
) -> CommandResult:
    shape = Shape(role.schema)
    forms = [variant.schema for variant in shape.variants] or [role.schema]
    commands = [_example_command(options, thread.id, form) for form in forms]
    shown = {
        "thread": thread.id,
        "currentRole": due.role,
        "description": role.description,
        "prompt": role.prompt,
        "task": question.task,
        "instruction": due.prompt,
        "schema": dict(role.schema),
        "answer": commands[0],
    }
    if shape.declared:
        parts += ["## Your answer"] + (["One of these forms."] if shape.variants else [])
        for variant in shape.variants or [None]:
            form = variant.schema if variant else role.schema
            lines = [f"Fields when {shape.status_field} is {variant.status}:" if variant else "Fields:"]
            required = required_fields(form)
            for name, items in Shape(form).declared.items():
                lines.append(field_line(name, items[0], is_required=name in required))
            parts.append("\n".join(lines).replace("`", ""))
        whole = "All at once as a JSON object: --output @FILE."
        parts.append(f"{whole} Free text in addition: --body TEXT or --body @FILE.")
    which = "one of these commands" if commands[1:] else "this command"
    how = "\n".join([f"Answer with {which} and your own values:", *(f"  {one}" for one in commands)])
    text = "\n\n".join([*parts, how])
    return CommandResult(shown, text, CODES["suspended"] if options.run else 0)


def _example_command(options: Namespace, ident: str, schema: JsonObject) -> str:
    # The store sorts the fields by name, but a person decides about the status first.
    example = dict(sorted(example_output(schema).items(), key=lambda field: field[0] not in STATUS_KEYS))
    words = [f"rolecall thread answer {ident}"]
    for name, value in example.items():
        if name == "$status" and "status" not in example:
            name = "status"  # not `$status`, which a shell would expand
        words.append(f"--field {quote(f'{name}={word_value(value)}')}")
    return in_this_store(options, " ".join([*words, "--body 'Your report.'"]))
