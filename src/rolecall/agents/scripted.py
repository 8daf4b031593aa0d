"""An agent that answers from a file: for demos, tests and trying a workflow out without a model.

The file (YAML or JSON) lists for each role what it does on its first visit, its second, and so on:

    roles:
      developer:
        - edit: {src/calc.py: {old: "a - b", new: "a + b"}}    # or path: whole new content
          run: [[python3, -m, unittest]]                       # or {argv: [...], exit: 1}
          output: {status: done}                               # or answer: the whole text
          body: Fixed the sign.
        - hang: true
    after_last: error                                          # or repeat

Besides these an entry may have `session`, `usage`, `emit` (a list of {kind, ...}), `fail` ({ending,
reason}), `hang` (wait until cancelled) and `again`: a list of entries for when the same visit is asked
once more, a correction or a retry. Which entry is due follows from the context alone, because each
step may run in another process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rolecall.agents import process
from rolecall.agents.protocol import (
    ANSWERED,
    ENDINGS,
    EVENT_KINDS,
    Agent,
    Context,
    Ending,
    Reply,
    ToolCall,
    Turn,
    Usage,
    failure,
)
from rolecall.errors import AgentError, NotFound, UsageError
from rolecall.settings import yaml12

_RUN_TIMEOUT = 600.0
_MAX_SCRIPT = 64 * 1024 * 1024
_PLAIN_WORD = re.compile(r"\$?[A-Za-z_]+(?:[ -][A-Za-z_]+)*")


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    exit: int = 0


@dataclass(frozen=True)
class Entry:
    """What one visit does, in this order: emit, edit, run, hang, fail or answer."""

    answer: str = ""
    edit: Mapping[str, str | Mapping[str, str]] | None = None
    run: tuple[Command, ...] = ()
    session: str | None = None
    usage: Usage | None = None
    emit: tuple[Mapping[str, Any], ...] = ()
    hang: bool = False
    ending: Ending = "completed"
    reason: str = ""
    again: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Script:
    path: Path
    roles: Mapping[str, tuple[Entry, ...]]
    is_repeating: bool = False


def scripted(path: Path) -> Agent:
    """An agent that answers from the file at `path`, which is read and checked now."""
    script = load(path)

    async def play(prompt: str, context: Context) -> Reply:  # noqa: ARG001 -- a script has its own mind
        return await _perform(_due(script, context), context)

    return play


def from_argument(argument: str) -> Agent:
    if not argument:
        raise UsageError("a scripted agent needs a file", hint="Write it as `scripted:path/to/script.yaml`.")
    return scripted(Path(argument))


# -- which entry is due --


def _due(script: Script, context: Context) -> Entry:
    entries = script.roles.get(context.role)
    if not entries:
        raise AgentError(
            f"the script {str(script.path)!r} has nothing for role {context.role!r}",
            ending="failed",
            hint=f"It knows: {', '.join(sorted(script.roles)) or 'no role'}.",
        )
    last = len(entries) - 1
    visit = _visits(context, at_most=last if script.is_repeating else last + 1)
    if visit > last:
        raise AgentError(
            f"the script {str(script.path)!r} has only {len(entries)} entries for role {context.role!r}",
            ending="failed",
            hint="Add an entry, or say `after_last: repeat`.",
        )
    tries = (entries[visit], *entries[visit].again)
    return tries[min(context.attempt, len(tries) - 1)]


def _visits(context: Context, *, at_most: int) -> int:
    # Newest first and no further than the script goes, so that a long thread is not read to its start.
    earlier = (step for step in reversed(context.steps) if step.role == context.role)
    return sum(1 for _ in islice(earlier, at_most))


# -- doing it --


async def _perform(entry: Entry, context: Context) -> Reply:
    if entry.session is not None:
        context.emit("session", {"session": entry.session})
    for event in entry.emit:
        context.emit(event["kind"], {key: value for key, value in event.items() if key != "kind"})
    calls = [_edited(context, path, change) for path, change in (entry.edit or {}).items()]
    for wanted in entry.run:
        calls.append(await _ran(context, wanted))
    reply = Reply(
        entry.answer,
        session=entry.session,
        usage=entry.usage,
        turns=(Turn("assistant", entry.answer, tuple(calls)),),
        files=tuple(entry.edit or ()),
        ending=entry.ending,
        reason=entry.reason,
    )
    if entry.usage is not None:
        context.emit("usage", asdict(entry.usage))
    if entry.hang:
        await context.cancel.wait()
        raise failure(replace(reply, ending="interrupted", reason="the scripted agent was cancelled"))
    if entry.ending not in ANSWERED:
        raise failure(reply)
    return reply


def _edited(context: Context, path: str, change: str | Mapping[str, str]) -> ToolCall:
    target = _confined(context.workdir, path)
    content = change if isinstance(change, str) else _replaced(target, path, change)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8")
    context.emit("tool_call", {"name": "edit", "arguments": {"path": path}})
    return ToolCall("edit", {"path": path}, f"{len(content)} characters written")


def _confined(workdir: Path, path: str) -> Path:
    root = workdir.resolve()
    target = (root / path).resolve()
    if not target.is_relative_to(root) or target == root:
        raise AgentError(
            f"the scripted edit of {path!r} lies outside the work folder {str(root)!r}",
            ending="failed",
            hint="Name a file inside the work folder; symbolic links are followed before this is checked.",
        )
    return target


def _replaced(target: Path, path: str, change: Mapping[str, str]) -> str:
    text = target.read_text(encoding="utf-8") if target.is_file() else ""
    count = text.count(change["old"])
    if count != 1:
        raise AgentError(
            f"the scripted edit of {path!r} finds its old text {count} times, not once: {change['old']!r}",
            ending="failed",
            hint="Give more of the surrounding text, or the whole new content.",
        )
    return text.replace(change["old"], change["new"])


async def _ran(context: Context, wanted: Command) -> ToolCall:
    arguments = {"argv": list(wanted.argv)}
    context.emit("tool_call", {"name": "run", "arguments": arguments})
    ended = await process.run(
        wanted.argv,
        cwd=context.workdir,
        env=context.env,
        timeout=_RUN_TIMEOUT,
        cancel=context.cancel,
        on_start=lambda child: context.emit("process", {"pid": child.pid, "run": child.run}),
    )
    if ended.ending not in ("completed", "failed"):
        raise ended.error()
    if ended.code != wanted.exit:
        raise AgentError(
            f"the scripted command {' '.join(wanted.argv)!r} was to exit with {wanted.exit}: {ended.reason}",
            ending="failed",
            text=ended.stdout,
            hint="Correct the script, or say `{argv: [...], exit: N}` where a failure is expected.",
        )
    return ToolCall("run", arguments, ended.stdout + ended.stderr)


# -- reading the file --

_ENTRY_KEYS = {"answer", "output", "body", "edit", "run", "session", "usage", "emit", "hang", "fail", "again"}
_SCRIPT_KEYS = {"roles", "after_last"}


def load(path: Path) -> Script:
    """Read a script; every key it does not know is an error."""
    content = _read(path)
    where = str(path)
    _check_keys(content, _SCRIPT_KEYS, where=where)
    after_last = content.get("after_last", "error")
    if after_last not in ("error", "repeat"):
        raise UsageError(f"{where}: after_last is {after_last!r}", hint="It is `error` or `repeat`.")
    roles = _typed(content.get("roles", {}), dict, where=f"{where}: roles")
    return Script(
        path,
        {str(role): tuple(_entries(listed, where=f"{where}: {role}")) for role, listed in roles.items()},
        is_repeating=after_last == "repeat",
    )


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f"the script {str(path)!r} cannot be read: {error}", hint="Name a YAML or JSON file."
        ) from error
    if path.suffix != ".json":
        return yaml12.load(text, source=str(path), max_bytes=_MAX_SCRIPT)
    # YAML reads most JSON, but not the pairs of escapes that JSON writes for characters such as emoji.
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON: {error}") from error


def _entries(listed: Any, *, where: str) -> Iterator[Entry]:
    for number, item in enumerate(_typed(listed, list, where=where), start=1):
        yield _entry(item, where=f"{where}, entry {number}")


def _entry(item: Any, *, where: str) -> Entry:
    _check_keys(item, _ENTRY_KEYS, where=where)
    if "answer" in item and ("output" in item or "body" in item):
        raise UsageError(
            f"{where}: has both an answer and output or body", hint="`answer` is the whole text."
        )
    fail = item.get("fail", {})
    _check_keys(fail, {"ending", "reason"}, where=f"{where}: fail")
    return Entry(
        answer=_answer(item),
        edit=_edit(item.get("edit", {}), where=f"{where}: edit"),
        run=tuple(
            _command(run, where=f"{where}: run") for run in _typed(item.get("run", []), list, where=where)
        ),
        session=item.get("session"),
        usage=_usage(item["usage"], where=f"{where}: usage") if "usage" in item else None,
        emit=tuple(_event(event, where=f"{where}: emit") for event in item.get("emit", [])),
        hang=_typed(item.get("hang", False), bool, where=f"{where}: hang"),
        ending=_one_of(fail.get("ending", "failed"), ENDINGS, where=f"{where}: fail")
        if fail
        else "completed",
        reason=fail.get("reason", "the script says so") if fail else "",
        again=tuple(_entries(item.get("again", []), where=f"{where}: again")),
    )


def _answer(item: Mapping[str, Any]) -> str:
    if "output" not in item:
        return str(item.get("answer", item.get("body", "")))
    return f"---\n{_frontmatter(item['output'])}---\n{item.get('body', '')}"


def _frontmatter(output: Mapping[str, Any]) -> str:
    """YAML that means the same under any version of YAML: only plain words go unquoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = None if _PLAIN_WORD.fullmatch(text) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    return yaml.dump(output, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)


def _edit(item: Any, *, where: str) -> Mapping[str, str | Mapping[str, str]]:
    for path, change in _typed(item, dict, where=where).items():
        if isinstance(change, str):
            continue
        _check_keys(change, {"old", "new"}, where=f"{where}: {path}")
        if set(change) != {"old", "new"} or not change["old"]:
            raise UsageError(f"{where}: {path} needs both old and new text, or the whole content")
    return dict(item)


def _command(item: Any, *, where: str) -> Command:
    if isinstance(item, dict):
        _check_keys(item, {"argv", "exit"}, where=where)
        return Command(_command(item.get("argv"), where=where).argv, exit=item.get("exit", 0))
    words = _typed(item, list, where=where)
    if not words:
        raise UsageError(f"{where}: a command needs a program")
    return Command(tuple(str(word) for word in words))


def _usage(item: Any, *, where: str) -> Usage:
    _check_keys(item, {field.name for field in fields(Usage)}, where=where)
    return Usage(**item)


def _event(item: Any, *, where: str) -> Mapping[str, Any]:
    _one_of(_typed(item, dict, where=where).get("kind"), EVENT_KINDS, where=where)
    return dict(item)


def _check_keys(item: Any, known: set[str], *, where: str) -> None:
    unknown = [str(key) for key in _typed(item, dict, where=where) if key not in known]
    if unknown:
        raise UsageError(
            f"{where}: unknown {', '.join(unknown)}", hint=f"Known keys: {', '.join(sorted(known))}."
        )


def _typed(item: Any, kind: type, *, where: str) -> Any:
    if not isinstance(item, kind):
        raise UsageError(f"{where}: is {type(item).__name__}, must be {kind.__name__}")
    return item


def _one_of(value: Any, known: Sequence[Any], *, where: str) -> Any:
    if value not in known:
        raise UsageError(f"{where}: {value!r} is not known", hint=f"One of: {', '.join(known)}.")
    return value
