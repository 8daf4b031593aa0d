"""What a thread needs from a person: a question with the form for its answer, or another action that continues the
thread."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from rolecall.api import Thread
from rolecall.errors import RolecallError
from rolecall.threads.prompt import example_output, required_fields
from rolecall.web import markdown
from rolecall.web.verbs import JsonObject, Schema
from rolecall.workflow.model import StoredRole
from rolecall.workflow.reply import Shape

_LONGEST = 20_000
_KINDS = {"answer_thread": "answer", "raise_limit": "raise", "resume_thread": "retry"}


def kind_of(thread: Thread, status: str) -> str | None:
    """Return what the thread needs: `answer` if a role or a question waits for a person, `raise` if a limit was
    reached, `retry` if the thread was suspended for another reason, `crashed`, or None."""
    if status == "crashed":
        return "crashed"
    onward = thread.continuation
    return _KINDS.get(onward.code) if onward is not None and status == "suspended" else None


def read_instruction(thread: Thread) -> str:
    """Return the instruction of the role that waits for a person, or an empty text if finding the instruction would
    require running a workflow's code."""
    with suppress(RolecallError):
        if thread.rolecall.read_workflow(thread.workflow).python is None:
            due = thread.question().due
            return due.prompt if due else ""
    return ""


def describe_question(thread: Thread, status: str) -> JsonObject | None:
    """Return what a thread needs from a person, or None if it needs nothing. If no form can be made, `problem` says
    why."""
    kind = kind_of(thread, status)
    if kind is None:
        return None
    onward = thread.continuation
    found: JsonObject = {"kind": kind, "reason": thread.reason, "head": thread.head, "role": thread.role}
    if kind == "raise" and onward is not None:
        name, _, value = str(onward.arguments["limit"]).partition("=")
        return found | {"limit": name, "value": float(value) if value else None}
    if kind != "answer":
        return found
    try:
        workflow = thread.rolecall.read_workflow(thread.workflow)
        if workflow.python is not None:  # the code of a workflow is not run just to show a question
            due = thread.state.role or ""
            return found | (
                _describe_form(due, workflow.roles[due]) if due in workflow.roles else {"kind": "reply"}
            )
        question = thread.question()
    except RolecallError as error:
        return found | {"kind": "reply", "problem": error.message}
    before = question.before
    if before is not None:
        html = markdown.render(before.body[:_LONGEST])
        found["before"] = {"role": before.role, "number": before.number, "step": before.id, "html": html}
    if question.due is None or question.role is None:
        return found | {"kind": "reply", "isAsked": question.is_asked}
    instruction = {"instructionHtml": markdown.render(question.due.prompt)}
    return found | _describe_form(question.due.role, question.role) | instruction


class _Form(NamedTuple):
    status: str | None
    """The status of an answer in this form, or None if the role has only one form."""
    schema: Schema
    required: list[str]

    @classmethod
    def of(cls, schema: Mapping[str, Any], status: str | None = None) -> _Form:
        return cls(status, dict(schema), sorted(required_fields(schema)))


def _describe_form(name: str, role: StoredRole) -> JsonObject:
    shape = Shape(role.schema)
    forms = [_Form.of(variant.schema, variant.status) for variant in shape.variants] or [
        _Form.of(role.schema)
    ]
    return {
        "role": name,
        "description": role.description,
        "promptHtml": markdown.render(role.prompt),
        "procedureHtml": markdown.render(role.procedure),
        "schema": dict(role.schema),
        "statusField": shape.status_field,
        "forms": [form._asdict() for form in forms],
        "fields": {name: dict(items[0]) for name, items in shape.declared.items()},
        "example": dict(example_output(role.schema)),
    }
