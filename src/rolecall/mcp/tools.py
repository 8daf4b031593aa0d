"""The table of tools that can be called over MCP, by group, and how one is carried out.

A group is a module with `TOOLS`; it is imported when tools are listed or called for the first time, because
`initialize` has to be answered at once. A further group is one more line in `GROUPS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import InvalidPayload, RolecallError, UsageError
from rolecall.mcp.protocol import Call, Cancel, Outcome, encode

GROUPS: Mapping[str, str] = {
    "nexus": "rolecall.mcp.nexus",
    "memory": "rolecall.mcp.memory",
    "threads": "rolecall.mcp.threads",
    "knowledge": "rolecall.mcp.knowledge",
}
"""Every group of tools and its module. A host may leave out what it does not want."""

_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Place(NamedTuple):
    """What tools work on, and what whoever calls them may not do."""

    project: str
    store: str | None = None
    restrictions: tuple[str, ...] = ()
    agent: str | None = None
    """The agent of the catalogue that calls; None is the lead, or whoever stands in for it."""
    may_start_threads: bool = True
    """False inside a step whose role may not start threads."""


Effect: TypeAlias = Literal["reads", "adds", "changes"]
Reply: TypeAlias = "Mapping[str, Any] | bytes"
"""An object, or its JSON where that is had without making the object first."""
Run: TypeAlias = "Callable[[Place, dict[str, Any], Cancel], Reply]"


class Tool(NamedTuple):
    name: str
    description: str
    schema: dict[str, Any]
    """The JSON Schema of its arguments."""
    run: Run
    effect: Effect
    classes: tuple[str, ...] = ()
    """Classes of actions it takes: a restriction that denies one of them denies the tool."""
    is_for_lead: bool = False
    """Planning, deciding and sending out agents is nobody else's."""
    starts_threads: bool = False
    """Whether the tool starts or moves threads."""
    is_long: bool = False
    """It may take minutes, so it must not hold up other calls; it ends when it is cancelled."""
    reaches_out: bool = False
    """It has to do with more than the project's own files."""
    notes_reads: bool = False
    """It reads and may write something about that down."""

    @property
    def may_wait(self) -> bool:
        """Whether it may have to wait until somebody else has written."""
        return self.effect != "reads" or self.notes_reads

    @property
    def annotations(self) -> dict[str, bool]:
        """What a host may tell its user before the tool is called."""
        reads = self.effect == "reads"
        more = {} if reads else {"destructiveHint": self.effect == "changes"}
        return {"readOnlyHint": reads, **more, "openWorldHint": self.reaches_out}


def schema_of(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of arguments by name, and of no others."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def checked_tool(
    name: str,
    run: Run,
    description: str,
    required: dict[str, Any],
    optional: dict[str, Any] | None = None,
    *,
    effect: Effect = "reads",
    **more: Any,
) -> Tool:
    """A tool that is called only with arguments that fit their schemas; `more` are fields of `Tool`."""
    schema = schema_of(required, optional)
    return Tool(name, description, schema, _fitting(run, schema), effect, **more)


def _fitting(run: Run, schema: dict[str, Any]) -> Run:
    def check(place: Place, arguments: dict[str, Any], cancel: Cancel) -> Reply:
        from rolecall.store.schema import Type

        try:
            misfits = Type(schema).misfits(arguments)
        except ValueError as error:  # they nest deeper than can be looked into
            raise UsageError(f"the arguments cannot be checked: {error}") from error
        if misfits:
            raise InvalidPayload(f"the arguments do not fit: {'; '.join(misfits)}", misfits)
        return run(place, arguments, cancel)

    return check


class Toolbox:
    """The tools of some groups, for one place."""

    def __init__(self, place: Place, groups: Iterable[str] = tuple(GROUPS)) -> None:
        self._place = place
        self._groups = tuple(groups)
        self._tools: dict[str, Tool] | None = None

    def listed(self) -> list[Tool]:
        """Those that may be called here."""
        return [tool for tool in self._known().values() if not self._denial(tool)]

    def find(self, name: str) -> Tool | None:
        """A tool of the groups, whether it may be called or not: the refusal says why."""
        return self._known().get(name)

    def _known(self) -> dict[str, Tool]:
        if self._tools is None:
            modules = (import_module(GROUPS[group]) for group in self._groups)
            self._tools = {tool.name: tool for module in modules for tool in module.TOOLS}
        return self._tools

    def _denial(self, tool: Tool) -> str:
        """Why a tool may not be called here; empty when it may."""
        agent, restrictions = self._place.agent, self._place.restrictions
        if tool.is_for_lead and agent is not None:
            return f"{tool.name} is for the lead, and this server was started for {agent}"
        if tool.starts_threads and not self._place.may_start_threads:
            return f"{tool.name} starts or moves threads, which this role may not do"
        if not restrictions:
            return ""
        from rolecall.settings.capabilities import check_allowed, check_lead

        try:
            if tool.is_for_lead:
                check_lead(restrictions, tool.name)
            check_allowed(restrictions, tool.name, tool.classes)
        except UsageError as error:
            return error.message
        return ""

    def carry_out(self, call: Call) -> Outcome:
        return self.run(call.tool, call.arguments, call.cancel)

    def run(self, tool: Tool, arguments: dict[str, Any], cancel: Cancel) -> Outcome:
        """What a tool replies. Whatever goes wrong in it is its reply, and the server goes on."""
        if denial := self._denial(tool):
            return _failed(denial)
        try:
            _check_characters(arguments)
            with _giving_up_with(cancel):
                return Outcome(_json(tool.run(self._place, arguments, cancel)), is_error=False)
        except RolecallError as error:
            return self._refused(error)
        except (Exception, SystemExit) as error:  # a front door: the call fails, the server does not
            import traceback

            traceback.print_exc()
            return _failed(f"{tool.name} failed: {type(error).__name__}: {error}")

    def _refused(self, error: RolecallError) -> Outcome:
        from rolecall.mcp import hints

        return _failed(error.message, hints.word(error.hint, {tool.name for tool in self.listed()}))


@contextmanager
def _giving_up_with(cancel: Cancel) -> Iterator[None]:
    """Whoever waits for the project's lock meanwhile gives up with the call, and writes nothing."""
    from rolecall.nexus.state_file import is_taken_back

    before = is_taken_back.set(cancel.has_given_up)
    try:
        yield
    finally:
        is_taken_back.reset(before)


def _check_characters(arguments: dict[str, Any]) -> None:
    """JSON can say half of a surrogate pair; no file, no store and no agent can be given it."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            "the arguments hold half of a surrogate pair, which is no character",
            hint="Send the character itself, or both halves of its pair.",
        ) from error


def _json(reply: Reply) -> bytes:
    if not isinstance(reply, bytes):
        return encode(reply)
    if _MAYBE_HALF.search(reply):  # an escape of half a pair is JSON, and many clients refuse it
        return encode(json.loads(reply))
    # Whoever wrote the file: in JSON these only stand between values, and a message is one line.
    return reply.replace(b"\n", b" ").replace(b"\r", b" ").replace(b"\t", b" ")


def _failed(message: str, hint: str = "") -> Outcome:
    return Outcome(encode({"error": f"{message}\n{hint}" if hint else message}), is_error=True)


def chosen(*, only: Iterable[str] = (), without: Iterable[str] = ()) -> tuple[str, ...]:
    """The groups that are left; a name that is no group is an error, or a typing error would switch tools on."""
    only, without = tuple(only), tuple(without)
    for name in (*only, *without):
        if name not in GROUPS:
            raise UsageError(f"there is no group of tools {name!r}", hint=f"Groups: {', '.join(GROUPS)}.")
    return tuple(name for name in GROUPS if (not only or name in only) and name not in without)
