"""An agent that answers from a file, for demos, tests, and trying out a workflow without a model.

The file (YAML or JSON) lists each role's actions on its first visit, its second, and so on:

    roles:
      developer:
        - edit: {src/calc.py: {old: "a - b", new: "a + b"}}    # or path: whole new content
          run: [[python3, -m, unittest]]                       # or {argv: [...], exit: 1}
          output: {status: done}                               # or answer: the whole text
          body: Fixed the sign.
        - hang: true
    after_last: error                                          # or repeat

An entry may also have `session`, `usage`, `emit` (a list of {kind, ...}), `fail` ({ending, reason}), `hang` (wait until
cancelled) and `again` (entries for a correction or a retry of the same visit). Older scripts say `meta` or
`frontmatter` for `output` and `content` for `body`. Only the context determines which entry is next, because each step
may run in another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents.confined import CallRefused, Folder
from rolecall.agents.process import run as run_process
from rolecall.agents.protocol import ENDINGS, EVENT_KINDS, Context, Ending, Reply, ToolCall, Turn, Usage
from rolecall.errors import AgentError, NotFound, UsageError
from rolecall.settings import form
from rolecall.settings.form import (
    AnyText,
    Anything,
    At,
    Choice,
    Either,
    Field,
    Form,
    ListOf,
    MapOf,
    Number,
    Record,
    Section,
    Text,
)
from rolecall.store.canonical import JsonObject
from rolecall.workflow.reply import render

_RUN_TIMEOUT = 600.0
_MAX_SCRIPT = 64 * 1024 * 1024


@dataclass(frozen=True)
class ScriptedCommand:
    """A command to run, and the exit status it must have."""

    argv: tuple[str, ...]
    exit: int = 0


@dataclass(frozen=True)
class ScriptedEdit:
    """A text that must occur exactly once in a file, and its replacement."""

    old: str
    new: str


@dataclass(frozen=True)
class ScriptedFailure:
    ending: Ending = "failed"
    reason: str = "the script says so"


@dataclass(frozen=True)
class Visit:
    """What the agent does in one visit, in this order: emit, edit, run, hang, fail or answer."""

    answer: str | None = None
    output: JsonObject | None = None
    body: str = ""
    edit: Mapping[str, str | ScriptedEdit] | None = None
    run: tuple[ScriptedCommand, ...] = ()
    session: str | None = None
    usage: Usage | None = None
    emit: tuple[JsonObject, ...] = ()
    hang: bool = False
    fail: ScriptedFailure | None = None
    again: tuple[Visit, ...] = ()

    @cached_property
    def text(self) -> str:
        if self.answer is not None:
            return self.answer
        return self.body if self.output is None else render(self.output, self.body)


@dataclass(frozen=True)
class Script:
    name: ClassVar[str] = "scripted"
    runs_in_sandbox: ClassVar[bool] = True

    path: Path
    roles: Mapping[str, tuple[Visit, ...]]
    after_last: str = "error"

    async def __call__(self, prompt: str, context: Context) -> Reply:  # noqa: ARG002 -- a script ignores its prompt
        visit = self.find_visit(context)
        if visit.session is not None:
            context.emit("session", {"session": visit.session})
        for event in visit.emit:
            context.emit(event["kind"], {key: value for key, value in event.items() if key != "kind"})
        calls = [_edit(context, path, change) for path, change in (visit.edit or {}).items()]
        for command in visit.run:
            calls.append(await _run(context, command))
        if visit.usage is not None:
            context.emit("usage", asdict(visit.usage))
        reply = Reply(
            visit.text,
            session=visit.session,
            usage=visit.usage,
            turns=(Turn("assistant", visit.text, tuple(calls)),),
            files=tuple(visit.edit or ()),
            ending=visit.fail.ending if visit.fail else "completed",
            reason=visit.fail.reason if visit.fail else "",
        )
        if visit.hang:
            await context.cancel.wait()
            return replace(reply, ending="interrupted", reason="the scripted agent was cancelled")
        return reply

    def find_visit(self, context: Context) -> Visit:
        visits = self.roles.get(context.role)
        if not visits:
            raise AgentError(
                f"the script {str(self.path)!r} has nothing for role {context.role!r}",
                hint=f"It knows: {', '.join(sorted(self.roles)) or 'no role'}.",
            )
        # Count from the newest step, and no further than the script needs, so that a long thread is not read
        # completely.
        earlier = (step for step in reversed(context.steps) if step.role == context.role)
        last = len(visits) - 1
        number = sum(1 for _ in islice(earlier, last if self.after_last == "repeat" else last + 1))
        if number > last:
            raise AgentError(
                f"the script {str(self.path)!r} has only {len(visits)} entries for role {context.role!r}",
                hint="Add an entry, or say `after_last: repeat`.",
            )
        tries = (visits[number], *visits[number].again)
        return tries[min(context.attempt, len(tries) - 1)]


# -- reading the file --


class _Event(Form[JsonObject]):
    def read(self, value: Any, at: At) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in EVENT_KINDS:
            return at.expect(f"an event whose kind is one of {', '.join(EVENT_KINDS)}", kind)
        return value


def _check_visit(visit: Visit, at: At) -> None:
    if visit.answer is not None and (visit.output is not None or visit.body):
        at.report("has both an answer and output or body", "`answer` is the whole text.")


_WORDS = ListOf(AnyText(), "a list that begins with a program", least=1)
_ENTRY: Mapping[str, Field | Form[Any]] = {"argv": Field(_WORDS, required=True), "exit": Number(whole=True)}
_COMMAND = Either(
    "a list of words, or {argv, exit}",
    {list: form.Converted(_WORDS, ScriptedCommand), dict: Record(ScriptedCommand, "a command", _ENTRY)},
)
_EDIT = {"old": Field(Text(least=1), required=True), "new": Field(Text(), required=True)}
_CHANGE = Either(
    "both old and new text, or the whole content",
    {str: Text(), dict: Record(ScriptedEdit, "an edit", _EDIT)},
)
_VISIT = Record(
    Visit,
    "an entry",
    {
        "answer": Text(),
        "output": Field(MapOf(Anything()), aliases=("meta", "frontmatter")),
        "body": Field(Text(), aliases=("content",)),
        "edit": MapOf(_CHANGE),
        "run": ListOf(_COMMAND),
        "session": Text(),
        "usage": Record(Usage, "usage", {field.name: Number() for field in fields(Usage)}),
        "emit": ListOf(_Event()),
        "hang": form.Flag(),
        "fail": Record(ScriptedFailure, "fail", {"ending": Choice(*ENDINGS), "reason": Text()}),
    },
    check=_check_visit,
)
_VISIT.fields["again"] = Field(ListOf(_VISIT))
_SCRIPT = Section(
    "a script", {"roles": Field(MapOf(ListOf(_VISIT)), default={}), "after_last": Choice("error", "repeat")}
)


def scripted(path: Path) -> Script:
    """Create an agent that answers from the file at `path`. Raise `UsageError` with all problems of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f"the script {str(path)!r} cannot be read: {getattr(error, 'strerror', error)}",
            hint="Name a YAML or JSON file.",
        ) from error
    if path.suffix != ".json":
        loaded = form.load(_SCRIPT, text, source=str(path), max_bytes=_MAX_SCRIPT)
    else:
        # YAML cannot read the surrogate pairs that JSON uses for characters such as emoji.
        loaded = form.load_json(_SCRIPT, text, source=str(path))
    return Script(path, **loaded.require())


def from_argument(argument: str) -> Script:
    if not argument:
        raise UsageError("a scripted agent needs a file", hint="Write it as `scripted:path/to/script.yaml`.")
    return scripted(Path(argument))


# -- playing it --


def _edit(context: Context, path: str, change: str | ScriptedEdit) -> ToolCall:
    folder = Folder(context.workdir, context.sandbox)
    try:
        if isinstance(change, ScriptedEdit):
            text = folder.read(path).decode("utf-8") if (context.workdir / path).is_file() else ""
            count = text.count(change.old)
            if count != 1:
                raise AgentError(
                    f"the scripted edit of {path!r} finds its old text {count} times, not once: {change.old!r}",
                    hint="Give more of the surrounding text, or the whole new content.",
                )
            content = text.replace(change.old, change.new)
        else:
            content = change
        folder.write(path, content.encode("utf-8"))
    except CallRefused as refusal:
        raise AgentError(f"the scripted edit failed: {refusal}") from refusal
    context.emit("tool_call", {"name": "edit", "arguments": {"path": path}})
    return ToolCall("edit", {"path": path}, f"{len(content)} characters written")


async def _run(context: Context, command: ScriptedCommand) -> ToolCall:
    arguments = {"argv": list(command.argv)}
    context.emit("tool_call", {"name": "run", "arguments": arguments})
    ended = await run_process(
        command.argv,
        cwd=context.workdir,
        env=context.env,
        timeout=_RUN_TIMEOUT,
        cancel=context.cancel,
        on_start=lambda child: context.emit("process", child._asdict()),
        sandbox=context.sandbox,
    )
    if ended.ending not in ("completed", "failed"):
        raise ended.error()
    if ended.code != command.exit:
        raise AgentError(
            f"the scripted command {' '.join(command.argv)!r} should exit with {command.exit}: {ended.reason}",
            text=ended.stdout,
            hint="Correct the script, or say `{argv: [...], exit: N}` where a failure is expected.",
        )
    return ToolCall("run", arguments, ended.stdout + ended.stderr)
