"""How a module declares verbs of the JSON interface, and the arguments of a verb.

A verb is a function of an `Ask`. It returns a JSON value, or a `GoesOn` if a thread should run afterwards. A verb runs
in a worker thread with its own `Rolecall`, so it is allowed to block. A verb that loads a workflow in Python runs in
another process (`child.py`). The routes (`app.py`) and the document that describes them (`schema.py`) are made from the
table of verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import InvalidPayload, UsageError
from rolecall.store.schema import Type

if TYPE_CHECKING:
    from rolecall.api import Rolecall, Thread
    from rolecall.threads.requests import Request

JsonObject = dict[str, Any]
"""An object in a reply, such as an entry of a list."""
Schema = JsonObject
"""A JSON Schema."""
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def record(required: Mapping[str, Schema] | None = None, **optional: Schema) -> Schema:
    """Return the schema of an object that has these fields and no others."""
    known = dict(required or {})
    return {
        "type": "object",
        "properties": {**known, **optional},
        "required": sorted(known),
        "additionalProperties": False,
    }


@dataclass(frozen=True, kw_only=True)
class Call:
    """An accepted request, as plain values. Its body fits the verb's schema."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: JsonObject
    by: Mapping[str, str]
    """The person who makes the request, and the door."""
    is_read_only: bool
    request: Request | None = None
    """Identifies the request if the client might repeat it."""


@dataclass(frozen=True, kw_only=True)
class Ask(Call):
    """A call, with everything that a verb needs in order to answer it."""

    rolecall: Rolecall
    problems: Mapping[str, str] = field(default_factory=dict)
    """The reasons why threads could not be run, by their ids."""

    @property
    def thread(self) -> Thread:
        return self.rolecall.thread(self.path["thread"])

    def number(self, name: str, default: int, *, most: int) -> int:
        text = self.query.get(name, "")
        if not text:
            return default
        if not text.isdecimal() or int(text) > most:
            raise UsageError(f"{name} must be a number from 0 to {most}, not {text!r}")
        return int(text)


class GoesOn(NamedTuple):
    """The result of a verb after which a thread should run. The reply contains the thread's id and status, the field
    `runs`, which names what runs the thread, and any `problem`."""

    thread: str
    is_run: bool = True
    """Whether the thread should run at all."""
    reply: Mapping[str, str] = {}
    """Further fields of the reply."""


class ApiVerb(NamedTuple):
    method: str
    path: str
    summary: str
    run: Callable[[Ask], Any]
    query: Mapping[str, str]
    """The query parameters, with the meaning of each."""
    body: Schema | None
    is_slow: bool | Callable[[Call], bool]
    """Whether a call might take seconds. Other calls do not wait for such a call."""
    loads: Callable[[Ask], str | None] | None = None
    """Returns the name of the workflow that the verb loads. If the workflow is written in Python, loading it runs its
    code."""
    is_repeatable: bool = False
    """Whether a repeated request with the same `Idempotency-Key` creates nothing."""

    @property
    def is_writing(self) -> bool:
        return self.method != "GET"

    def check(self, given: Any) -> None:
        if self.body is not None and (problems := Type(self.body).misfits(given)):
            raise InvalidPayload("the request does not fit: " + "; ".join(problems), problems)


VERBS: list[ApiVerb] = []
"""Every verb, in the order of the modules that declare verbs."""

Declare = Callable[[Callable[[Ask], Any]], Callable[[Ask], Any]]


def get(
    path: str, summary: str, /, *, is_slow: bool | Callable[[Call], bool] = False, **query: str
) -> Declare:
    """Declare a verb that only reads."""

    def declare(run: Callable[[Ask], Any]) -> Callable[[Ask], Any]:
        VERBS.append(ApiVerb("GET", path, summary, run, query, None, is_slow))
        return run

    return declare


def post(
    path: str,
    summary: str,
    body: Schema,
    *,
    is_slow: bool = False,
    loads: Callable[[Ask], str | None] | None = None,
    is_repeatable: bool = False,
) -> Declare:
    """Declare a verb that changes something. `body` is the schema of the request body."""

    def declare(run: Callable[[Ask], Any]) -> Callable[[Ask], Any]:
        VERBS.append(ApiVerb("POST", path, summary, run, {}, body, is_slow, loads, is_repeatable))
        return run

    return declare
