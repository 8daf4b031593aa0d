"""The table of MCP tools by group, and how a tool is run.

A group is a module with a `TOOLS` list. The module is imported when tools are first listed or called, because
`initialize` must be answered quickly.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import InvalidPayload, RolecallError, UsageError
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import traceback

    from rolecall.mcp import hints
    from rolecall.nexus import state_file
    from rolecall.settings import capabilities
    from rolecall.store import schema as schemas
    from rolecall.store.canonical import JsonObject, Schema
else:
    capabilities = Module("rolecall.settings.capabilities")
    hints = Module("rolecall.mcp.hints")
    schemas = Module("rolecall.store.schema")
    state_file = Module("rolecall.nexus.state_file")
    traceback = Module("traceback")

GROUPS: Mapping[str, str] = {
    "nexus": "rolecall.mcp.nexus",
    "memory": "rolecall.mcp.memory",
    "threads": "rolecall.mcp.threads",
    "knowledge": "rolecall.mcp.knowledge",
}
"""The module of each group of tools."""
SKILLS = "skills"
"""The group that contains the prompts."""
ALL_GROUPS = (*GROUPS, SKILLS)
"""All groups. A host can leave out the groups that it does not want."""

_LARGEST_STRUCTURE = 64 * 1024
_LAST_TRIES = 5
"""The minimum number of attempts to take a lock, even if the call's patience ends earlier."""
_LONGEST_MESSAGE = 300
_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class ToolResult(NamedTuple):
    """A tool's result: its reply, or `{"error": …}`, as JSON on one line without tabs."""

    json: bytes
    is_error: bool

    @property
    def is_sent_twice(self) -> bool:
        """Whether the reply is also sent as `structuredContent`. This is optional, because all hosts accept the text
        alone."""
        return len(self.json) <= _LARGEST_STRUCTURE


class Caller:
    """The other end of a call. It records whether the caller still waits for the result, and reports progress. `on_set`
    registers functions that stop the work when the caller no longer waits."""

    def __init__(self, report: Callable[[JsonObject], object] | None = None) -> None:
        """`report` sends the fields of a progress notification. It is None if the caller did not ask for progress."""
        self.is_set = False
        self.patience_ends: float | None = None
        """When a call waiting for a lock gives up, on the `time.monotonic` clock; None means never."""
        self._report = report
        self._done = 0
        self._tries = 0
        self._stops: list[Callable[[], object]] = []
        self._lock = Lock()

    def tell(self, message: str, *, done: int | None = None, total: int | None = None) -> None:
        """Report progress. Without `done`, the progress increases by one, because each report must contain a higher
        number than the last."""
        if self._report is None or self.is_set or (done is not None and done <= self._done):
            return
        self._done = self._done + 1 if done is None else done
        known = {"total": total} if total is not None else {}
        self._report({"progress": self._done, **known, "message": message[:_LONGEST_MESSAGE]})

    def set(self) -> None:
        self.is_set = True
        self._stop()

    def has_given_up(self) -> bool:
        """Return whether a call that waits for a lock should give up. A lock that is free is taken even after the
        call's patience has ended."""
        self._tries += 1
        is_late = self.patience_ends is not None and monotonic() > self.patience_ends
        return self.is_set or (is_late and self._tries > _LAST_TRIES)

    def on_set(self, stop: Callable[[], object]) -> None:
        """Call `stop` as soon as the caller no longer waits for the result. If that is already the case, call `stop`
        immediately."""
        with self._lock:
            self._stops.append(stop)
        if self.is_set:
            self._stop()

    def _stop(self) -> None:
        with self._lock:  # each function is called once, even if two threads call this method
            stops, self._stops = self._stops, []
        for stop in stops:
            stop()


class ToolContext(NamedTuple):
    """What the tools work on, and the restrictions of the caller."""

    project: str
    store: str | None = None
    restrictions: tuple[str, ...] = ()
    agent: str | None = None
    """The calling agent's name in the catalogue, or None for the lead."""
    may_start_threads: bool = True
    """False inside a step if the role of the step may not start threads."""


Effect: TypeAlias = Literal["reads", "adds", "changes"]
McpOutput: TypeAlias = "JsonObject | bytes"
"""An object, or its JSON if the JSON is already available."""
Run: TypeAlias = "Callable[..., McpOutput]"
"""A function of the tool's context, the caller, and the tool's arguments, which are passed by name."""


class McpTool(NamedTuple):
    name: str
    description: str
    schema: Schema
    """The JSON Schema of the tool's arguments."""
    run: Run | tuple[str, str]
    """A function, or the names of its module and of the function, so that a slow import is delayed until the first
    call."""
    effect: Effect
    classes: tuple[str, ...] = ()
    """The classes of actions that the tool performs. A restriction that denies one of these classes denies the tool."""
    is_for_lead: bool = False
    """Whether only the lead may call the tool, because the tool plans, decides or starts agents."""
    starts_threads: bool = False
    """Whether the tool starts or moves threads."""
    is_long: bool = False
    """Whether a call might take minutes. Other calls do not wait for such a call, and it can be cancelled."""
    reaches_out: bool = False
    """Whether the tool acts on more than the project's own files."""
    notes_reads: bool = False
    """Whether the tool only reads, but might record that something was read."""
    checks: bool = False
    """Whether the arguments are checked against the schema before the tool runs."""
    renamed: Mapping[str, str] = {}
    """Older names of arguments. In this version they still work, with a note on standard error."""

    @property
    def may_wait(self) -> bool:
        """Whether a call might have to wait for another writer."""
        return self.effect != "reads" or self.notes_reads

    @property
    def annotations(self) -> dict[str, bool]:
        """Hints about the tool that a host can show its user before a call."""
        reads = self.effect == "reads"
        more = {} if reads else {"destructiveHint": self.effect == "changes"}
        return {"readOnlyHint": reads, **more, "openWorldHint": self.reaches_out}


def make_tool(
    name: str,
    run: Run | tuple[str, str],
    description: str,
    required: Mapping[str, Schema],
    optional: Mapping[str, Schema] | None = None,
    *,
    effect: Effect = "reads",
    **more: Any,
) -> McpTool:
    """Create a tool whose arguments are checked against their schemas. `more` contains further fields of `McpTool`."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return McpTool(name, description, schema, run, effect, checks=True, **more)


def text(description: str, **bounds: int) -> Schema:
    return {"type": "string", **bounds, "description": description}


def texts(description: str, **bounds: int) -> Schema:
    return {"type": "array", "items": {"type": "string"}, **bounds, "description": description}


def whole(description: str, **bounds: int) -> Schema:
    return {"type": "integer", **bounds, "description": description}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


class McpToolbox:
    """The tools of the selected groups, for one project and one caller."""

    def __init__(self, place: ToolContext, groups: Iterable[str] = ALL_GROUPS) -> None:
        self.place = place
        self.groups = tuple(groups)
        self._tools: dict[str, McpTool] = {}

    @property
    def capabilities(self) -> JsonObject:
        """The capabilities that the server announces. Prompts are offered only to the lead, because skills are
        instructions for the lead."""
        found: dict[str, JsonObject] = {"tools": {}}
        if {"nexus", "memory", "threads"} & {*self.groups}:
            found["resources"] = {"subscribe": True}
        if SKILLS in self.groups and self.place.agent is None and not self.place.restrictions:
            found["prompts"] = {}
        return found

    def list_tools(self) -> list[McpTool]:
        """Return the tools that the caller is allowed to call."""
        return [tool for tool in self._load().values() if not self._denial(tool)]

    def find(self, name: str) -> McpTool | None:
        """Return the tool with this name, or None. A tool that may not be called is returned too, so that the refusal
        can say why."""
        return self._load().get(name)

    def _load(self) -> dict[str, McpTool]:
        if not self._tools:
            modules = (import_module(GROUPS[group]) for group in self.groups if group in GROUPS)
            self._tools = {tool.name: tool for module in modules for tool in module.TOOLS}
        return self._tools

    def _denial(self, tool: McpTool) -> str:
        """Return the reason why a tool may not be called here, or an empty text if it may be called."""
        agent, restrictions = self.place.agent, self.place.restrictions
        if tool.is_for_lead and agent is not None:
            return f"{tool.name} is for the lead, and this server was started for {agent}"
        if tool.starts_threads and not self.place.may_start_threads:
            return f"{tool.name} starts or moves threads, which this role may not do"
        if not restrictions:
            return ""
        try:
            if tool.is_for_lead:
                capabilities.check_lead(restrictions, tool.name)
            capabilities.check_allowed(restrictions, tool.name, tool.classes)
        except UsageError as error:
            return error.message
        return ""

    def run(self, tool: McpTool, arguments: JsonObject, caller: Caller) -> ToolResult:
        """Run a tool and return its reply. An error becomes the reply, so that the server continues."""
        if denial := self._denial(tool):
            return _fail(denial)
        # A call waiting for the project's lock gives up when it is cancelled, and writes nothing.
        before = state_file.is_taken_back.set(caller.has_given_up)
        try:
            for old, new in tool.renamed.items():
                if old in arguments and new not in arguments:
                    print(f"note: `{old}` of {tool.name} is now `{new}`", file=sys.stderr)
                    arguments = {new if name == old else name: arguments[name] for name in arguments}
            _check_arguments(tool, arguments)
            run = tool.run if callable(tool.run) else getattr(import_module(tool.run[0]), tool.run[1])
            reply = run(self.place, caller, **arguments)
            if not isinstance(reply, bytes):
                reply = encode(reply)
            elif b"\\" in reply and _MAYBE_HALF.search(reply):
                # JSON allows an escape of half a surrogate pair, but many clients refuse it.
                reply = encode(json.loads(reply))
            else:  # a message must be one line; in JSON, these characters occur only between values
                reply = reply.replace(b"\n", b" ").replace(b"\r", b" ").replace(b"\t", b" ")
            return ToolResult(reply, is_error=False)
        except RolecallError as error:
            return _fail(error.message, hints.word(error.hint, {known.name for known in self.list_tools()}))
        except (Exception, SystemExit) as error:  # an error must fail the call, not the server
            traceback.print_exc()
            return _fail(f"{tool.name} failed: {type(error).__name__}: {error}")
        finally:
            state_file.is_taken_back.reset(before)


def _check_arguments(tool: McpTool, arguments: JsonObject) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # JSON can express it, but no file, store or agent can hold it
        raise UsageError(
            "the arguments hold half of a surrogate pair, which is not a character",
            hint="Send the character itself, or both halves of its pair.",
        ) from error
    if not tool.checks:
        return
    try:
        misfits = schemas.Type(tool.schema).misfits(arguments)
    except ValueError as error:
        raise UsageError(f"the arguments cannot be checked: {error}") from error
    if misfits:
        raise InvalidPayload(f"the arguments do not fit: {'; '.join(misfits)}", misfits)


def encode(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair; many clients would refuse a message with its escape
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def _fail(message: str, hint: str = "") -> ToolResult:
    return ToolResult(encode({"error": f"{message}\n{hint}" if hint else message}), is_error=True)


def choose_groups(*, only: Iterable[str] = (), without: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the selected groups. An unknown name is an error, because a misspelt exclusion would otherwise leave tools
    enabled."""
    only, without = tuple(only), tuple(without)
    for name in (*only, *without):
        if name not in ALL_GROUPS:
            raise UsageError(f"unknown group of tools {name!r}", hint=f"Groups: {', '.join(ALL_GROUPS)}.")
    return tuple(name for name in ALL_GROUPS if (not only or name in only) and name not in without)
