"""`rolecall thread answer`: what a person is asked, and the answer that becomes the step."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rolecall import lifecycle, registry, thread, workspace
from rolecall.cli.output import parse_json, read_input, show
from rolecall.cli.thread_arguments import in_this_store, one_thread
from rolecall.cli.thread_run import CODES, show_standing, tell_continuation, tell_service
from rolecall.errors import UsageError
from rolecall.thread import Chain

if TYPE_CHECKING:
    from rolecall.route import Next
    from rolecall.turn import Turn


def run_answer(options: Namespace) -> int:
    from rolecall.route import Next
    from rolecall.turn import Turn, next_of

    with workspace.open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        chain = Chain(store, ref.target or "")
        turn = Turn(thread.id_of(ref), chain, registry.load_node(store, chain.start.workflow))
        way = next_of(turn)
        is_asking = options.output is None and not options.field and options.body is None
        if is_asking and isinstance(way, Next) and ref.state.get("status") not in thread.ENDED:
            _show_question(options, turn, way)
            return 0
        output = _given_output(options, turn.role(way.role).schema if isinstance(way, Next) else {})
        body = "" if options.body is None else read_input(options.body)
        ref = lifecycle.answer(store, ref, turn.playbook, output, body=body, mask=workspace.mask())
        tell_service(ref)
        show_standing(options, store, ref, step=ref.target)
        tell_continuation(options, store, ref)
    return CODES.get(ref.state["status"], 0)


def _given_output(options: Namespace, schema: Mapping[str, Any]) -> dict[str, Any]:
    from rolecall.reply import Shape

    output = {} if options.output is None else parse_json(read_input(options.output))
    if not isinstance(output, dict):
        raise UsageError("--output must be a JSON object", hint='For example \'{"status": "approved"}\'.')
    texts = Shape(schema).strings
    return output | {name: text if name in texts else _value(text) for name, text in options.field}


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: the schema judges it either way."""
    try:
        return parse_json(text)
    except UsageError:
        return text


# -- the question --


def _show_question(options: Namespace, turn: Turn, way: Next) -> None:
    role = turn.role(way.role)
    commands = [_command(options, turn.thread, form) for form in _forms(role.schema)]
    shown = {
        "thread": turn.thread,
        "currentRole": way.role,
        "description": role.description,
        "goal": role.goal,
        "task": turn.task,
        "instruction": way.prompt,
        "schema": dict(role.schema),
        "answer": commands[0],
    }
    show(options, shown, lambda: "\n\n".join(_question(options, turn, way, commands)))


def _question(options: Namespace, turn: Turn, way: Next, commands: list[str]) -> Iterator[str]:
    role = turn.role(way.role)
    about = role.description.strip()
    yield f"# You are asked as {way.role}: {about}" if about else f"# You are asked as {way.role}"
    sections = {"Task": turn.task, "Now": way.prompt, "Goal": role.goal}
    sections |= {"Procedure": role.procedure, "Output": role.output}
    for title, text in sections.items():
        if text.strip():
            yield f"## {title}\n\n{text.strip()}"
    if turn.last is not None:
        yield "What was done so far: " + in_this_store(options, f"rolecall thread read {turn.thread}")
    yield from _fields(role.schema)
    which = "one of these commands" if commands[1:] else "this command"
    yield "\n".join([f"Answer with {which}, with your own values in it:", *(f"  {one}" for one in commands)])


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    """What there is to fill in; nothing when the answer is free."""
    from rolecall.reply import Shape

    shape = Shape(schema)
    if not shape.declared:
        return
    yield "## Your answer"
    if shape.variants:
        yield "One of these forms."
    for variant in shape.variants or [None]:
        form = variant.schema if variant else schema
        title = f"Fields when {shape.status_field} is {variant.status}:" if variant else "Fields:"
        yield f"{title}\n{_listed(form)}"
    yield "All at once as a JSON object: --output @FILE. Free text besides: --body TEXT or --body @FILE."


def _listed(schema: Mapping[str, Any]) -> str:
    from rolecall.prompt import field_line, required_fields
    from rolecall.reply import Shape

    required = required_fields(schema)
    declared = Shape(schema).declared.items()
    lines = (field_line(name, items[0], is_required=name in required) for name, items in declared)
    return "\n".join(lines).replace("`", "")


def _forms(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    from rolecall.reply import Shape

    return [variant.schema for variant in Shape(schema).variants] or [schema]


def _command(options: Namespace, ident: str, schema: Mapping[str, Any]) -> str:
    from shlex import quote

    from rolecall.prompt import example_output
    from rolecall.route import STATUS_KEYS

    # The store sorts names; the status is what a person decides first.
    example = sorted(example_output(schema).items(), key=lambda field: field[0] not in STATUS_KEYS)
    fields = (
        f"--field {quote(f'{name}={value if isinstance(value, str) else json.dumps(value)}')}"
        for name, value in example
    )
    words = " ".join([f"rolecall thread answer {ident}", *fields, "--body 'Your report.'"])
    return in_this_store(options, words)


# -- arguments --


def answer_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    parser.add_argument(
        "--output", metavar="JSON", help="the role's output; @FILE reads a file, - standard input"
    )
    parser.add_argument(
        "--field",
        type=_field,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one field of the output; may be repeated",
    )
    parser.add_argument("--body", metavar="TEXT", help="the report; @FILE reads a file, - standard input")


def _field(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
