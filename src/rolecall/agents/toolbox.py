"""The built-in agent's tools: read, write and search files in the work folder, and run commands there.

Each tool is a function with its description for the model. Tools that the role's restrictions deny (DENIES) are not
offered. File tools cannot leave the work folder (confined.py). A command starts in the work folder but can access
everything the user can, unless the role has a sandbox; `no_shell_exec` denies a role all commands.

Every result is text of limited size. A failed call tells the model the reason, so that the model can try something
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from rolecall.agents.confined import CallRefused, Folder
from rolecall.agents.filesearch import Walk, matches
from rolecall.agents.process import run as run_process
from rolecall.agents.protocol import Context
from rolecall.agents.transcript import shorten
from rolecall.errors import AgentError
from rolecall.settings import capabilities
from rolecall.store.canonical import Schema
from rolecall.store.schema import Type, glob_test, pattern_test

LONGEST_RESULT = 40_000
_MOST_LINES = 2_000
_MOST_LISTED = 1_000
_LONGEST_PATTERN = 1_000
_PATIENCE = 10.0
_COMMAND_SECONDS = 120.0
_MOST_COMMAND_SECONDS = 3_600.0
_COMMAND_OUTPUT = 256 * 1024

DENIES: Mapping[str, tuple[str, ...]] = {
    "file_creation": ("write_file",),
    "file_modification": ("write_file", "edit_file"),
    "file_deletion": ("delete_file",),
    "partial_file_edit": ("edit_file",),
    "structured_document_edit": ("write_file", "edit_file"),
    **dict.fromkeys((*capabilities.SHELL, *capabilities.SHELL_WRITES), ("run_command",)),
    **dict.fromkeys(capabilities.BY_OURSELVES, ()),
}
"""The tools to deny for each class of actions. No tool here changes tasks."""


class ToolOutput(NamedTuple):
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class ModelTool:
    name: str
    description: str
    schema: Schema
    run: Callable[..., Awaitable[str]]

    @cached_property
    def arguments(self) -> Type:
        return Type(self.schema)


TOOLS: list[ModelTool] = []
Run = TypeVar("Run", bound=Callable[..., Awaitable[str]])


def _tool(description: str, required: Sequence[str], **properties: Any) -> Callable[[Run], Run]:
    """Add a function to the tools; `properties` are the schemas of its arguments."""
    schema = {"properties": properties, "required": list(required), "additionalProperties": False}

    def add(run: Run) -> Run:
        TOOLS.append(ModelTool(run.__name__, description, {"type": "object", **schema}, run))
        return run

    return add


def offer(restrictions: Iterable[str], *, sandboxed: bool = False) -> list[ModelTool]:
    """Return the tools that are offered to a role with these restrictions."""
    denied = capabilities.denied_tools(DENIES, restrictions, sandboxed=sandboxed)
    return [tool for tool in TOOLS if tool.name not in denied]


class ModelToolbox:
    """The tools for one call of the agent. `touches` is called with the path of every changed file. `patience` is the
    maximum number of seconds for a listing or a search."""

    def __init__(
        self, context: Context, touches: Callable[[str], None], *, patience: float = _PATIENCE
    ) -> None:
        self.patience = patience
        self.folder = Folder(context.workdir, context.sandbox)
        self.context = context
        self.touches = touches
        tools = offer(context.capabilities, sandboxed=context.is_confined)
        self.tools = {tool.name: tool for tool in tools}

    async def use(self, name: str, arguments: Any) -> ToolOutput:
        """Carry out one of the model's tool calls. An error also becomes a result."""
        tool = self.tools.get(name)
        if tool is None:
            return ToolOutput(f"unknown tool {name!r}; the tools are {', '.join(self.tools)}", is_error=True)
        if misfits := tool.arguments.misfits(arguments):
            return ToolOutput(f"{name} was called with wrong arguments: {'; '.join(misfits)}", is_error=True)
        try:
            return ToolOutput(shorten(await tool.run(self, **arguments), LONGEST_RESULT))
        except CallRefused as refusal:
            return ToolOutput(str(refusal), is_error=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return ToolOutput(f"{name} failed: {reason}", is_error=True)


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


_PATH = _text("Path of the file, relative to the work folder.")


@_tool(
    f"Read a text file of the work folder. Long files come in pieces of at most {_MOST_LINES} lines; "
    "the first line of the result then says which.",
    ["path"],
    path=_PATH,
    first_line={"type": "integer", "minimum": 1, "description": "The first line to read. Default: 1."},
    lines={"type": "integer", "minimum": 1, "description": "How many lines."},
)
async def read_file(box: ModelToolbox, path: str, first_line: int = 1, lines: int = _MOST_LINES) -> str:
    content = await asyncio.to_thread(box.folder.read, path)
    if b"\0" in content[:8192]:
        raise CallRefused(f"{path!r} is not a text file; it has {len(content):,} bytes")
    text = content.decode("utf-8", "replace").split("\n")
    shown = text[first_line - 1 : first_line - 1 + min(lines, _MOST_LINES)]
    # Cut at a line break, so that the model knows where to continue.
    size = 0
    for count, line in enumerate(shown):
        size += len(line) + 1
        if size > LONGEST_RESULT - 200 and count:
            shown = shown[:count]
            break
    if len(shown) == len(text):
        return "\n".join(shown)
    last = first_line - 1 + len(shown)
    return f"[lines {first_line} to {last} of {len(text)}]\n" + "\n".join(shown)


@_tool(
    "List files and folders (these end with a slash) of the work folder. `*` and `?` stay within a name, "
    "`**/` is any number of folders: `*` is what lies at the top, `src/**/*.py` all Python below src.",
    [],
    pattern=_text("Default: `*`.", maxLength=_LONGEST_PATTERN),
)
async def list_files(box: ModelToolbox, pattern: str = "*") -> str:
    fits = _compile_glob(pattern)

    def list_matches() -> str:
        walk = Walk(box.folder.root, box.patience)
        found: list[str] = []
        for path in walk:
            if not fits(path.rstrip("/")) or not box.folder.may_read(path):
                continue
            if len(found) == _MOST_LISTED:
                return "\n".join([*found, f"[only the first {_MOST_LISTED} are shown; narrow the pattern]"])
            found.append(path)
        if walk.is_cut:
            found.append("[there is too much to look at; narrow the pattern]")
        return "\n".join(found) or "[nothing matches]"

    return await asyncio.to_thread(list_matches)


@_tool(
    "Find the lines that match a regular expression, as `path:line: text`.",
    ["pattern"],
    pattern=_text("Each line is searched separately.", minLength=1, maxLength=_LONGEST_PATTERN),
    files=_text("Which files, as for list_files. Default: all, `**/*`.", maxLength=_LONGEST_PATTERN),
)
async def search(box: ModelToolbox, pattern: str, files: str = "**/*") -> str:
    fits = _compile_glob(files)

    def is_searched(path: str) -> bool:
        return fits(path) and box.folder.may_read(path)

    try:
        has_match = pattern_test(pattern)
    except ValueError as error:
        raise CallRefused(f"{pattern!r} is not a regular expression") from error

    def list_matches() -> str:
        found = matches(box.folder.root, has_match, is_searched, box.patience)
        return "".join(f"{line}\n" for line in found) or "[nothing matches]"

    return await asyncio.to_thread(list_matches)


def _compile_glob(pattern: str) -> Callable[[str], bool]:
    try:
        return glob_test(pattern.removeprefix("./").rstrip("/"))
    except ValueError as error:
        raise CallRefused(f"{pattern!r} is not a file name pattern") from error


@_tool(
    "Write a whole text file of the work folder; folders above it are created.",
    ["path", "content"],
    path=_PATH,
    content=_text("All of the file."),
)
async def write_file(box: ModelToolbox, path: str, content: str) -> str:
    encoded = content.encode("utf-8")
    is_new = await asyncio.to_thread(box.folder.write, path, encoded)
    box.touches(path)
    return f"{path!r} was {'created' if is_new else 'replaced'}: {len(encoded):,} bytes"


@_tool(
    "Replace a piece of a text file in the work folder. The piece must occur exactly once in the file.",
    ["path", "old", "new"],
    path=_PATH,
    old=_text("The exact piece of the file, with its spaces and line breaks.", minLength=1),
    new=_text("The text that replaces it."),
)
async def edit_file(box: ModelToolbox, path: str, old: str, new: str) -> str:
    text = (await asyncio.to_thread(box.folder.read, path)).decode("utf-8")
    count = text.count(old)
    if count != 1:
        said = "does not occur" if not count else f"occurs {count} times"
        raise CallRefused(f"the text to replace {said} in {path!r}; give a piece that occurs exactly once")
    await asyncio.to_thread(box.folder.write, path, text.replace(old, new).encode("utf-8"))
    box.touches(path)
    return f"{path!r} was changed at line {text[: text.index(old)].count(chr(10)) + 1}"


@_tool("Delete a file of the work folder.", ["path"], path=_PATH)
async def delete_file(box: ModelToolbox, path: str) -> str:
    await asyncio.to_thread(box.folder.delete, path)
    box.touches(path)
    return f"{path!r} was deleted"


@_tool(
    "Run a command in the work folder and wait for its end: `argv` is a program and its arguments, `shell` "
    "a line for /bin/sh. Nothing can be typed into it, and what it leaves running is ended with it.",
    [],
    argv={"type": "array", "items": {"type": "string"}, "minItems": 1},
    shell=_text("Used in place of argv, for pipes and the like.", minLength=1),
    seconds={
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": _MOST_COMMAND_SECONDS,
        "description": f"How long it may take. Default: {_COMMAND_SECONDS:g}.",
    },
)
async def run_command(
    box: ModelToolbox,
    argv: list[str] | None = None,
    shell: str | None = None,
    seconds: float = _COMMAND_SECONDS,
) -> str:
    if (argv is None) == (shell is None):
        raise CallRefused("give either `argv` or `shell`, and not both")
    context = box.context
    try:
        ended = await run_process(
            argv or ["/bin/sh", "-c", shell or ""],
            cwd=context.workdir,
            env=context.env,
            timeout=seconds,
            on_start=lambda child: context.emit("process", child._asdict()),
            max_output=_COMMAND_OUTPUT,
            sandbox=context.sandbox,
        )
    except AgentError as error:  # the program could not be started
        raise CallRefused(f"{error.message}. {error.hint}") from error
    how = f"[ended after {seconds:g} s]" if ended.ending == "timeout" else f"[exit status {ended.code}]"
    if ended.left:
        how += f" [processes that could not be ended: {', '.join(map(str, ended.left))}]"
    half = LONGEST_RESULT // 2 - 200
    parts = [how, shorten(ended.stdout.rstrip(), half)]
    if ended.stderr.strip():
        parts += ["[stderr]", shorten(ended.stderr.rstrip(), half)]
    return "\n".join(part for part in parts if part)
