"""`rolecall knowledge`: index a repository and search it."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from functools import cache
from typing import TYPE_CHECKING, Any

from rolecall.api import Knowledge
from rolecall.cli import CommandResult, argument, either, flag, verb
from rolecall.cli.output import LastLine, between, has_color, paint, plural, printable, short, table, tell
from rolecall.errors import UsageError, explain_missing
from rolecall.knowledge.search import find_marks
from rolecall.settings import config, repository
from rolecall.settings.capabilities import denied_classes
from rolecall.settings.server_options import add_server_options
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.knowledge import serve as server
    from rolecall.service import http
else:
    http = Module("rolecall.service.http")
    server = Module("rolecall.knowledge.serve")

_MOST_LINES = 12
"""How many lines of a passage are shown on a terminal."""
_REPO = argument("--repo", "PATH", "the repository (default: the one around this folder)")
_SCOPE = either(_REPO, flag("-g --global", "all repositories that were indexed", dest="everywhere"))


@cache  # so that a repeated message is printed only once
def _note(line: str) -> None:
    tell(f"note: {_in_one_line(line)}")


def _in_one_line(text: str) -> str:
    return printable(text).replace("\n", "\\u000a")


def _knowledge(options: Namespace, *, may_write: bool = True) -> Knowledge:
    return Knowledge(options.repo or os.curdir, tell=_note, may_write=may_write)


@verb("knowledge init", "write a knowledge.yaml for a repository", "rolecall knowledge init", _REPO)
def init(options: Namespace) -> CommandResult:
    made = Knowledge(options.repo or repository.root_around(os.getcwd()) or os.curdir).init()
    lines = [f"wrote {made.path}: {', '.join(made.include)}"]
    if made.ignored_in:
        lines.append(f"added the index to {made.ignored_in}")
    reply = {"path": made.path, "include": made.include, "gitignore": made.ignored_in}
    return CommandResult(reply, [*lines, "Look it over, then: rolecall knowledge sync"])


@verb(
    "knowledge sync",
    "index what has changed",
    "rolecall knowledge sync\nrolecall knowledge sync --repo ~/work/other --rebuild",
    flag("--rebuild", "index everything again, even unchanged files"),
    flag("-v --verbose", "name every file that is skipped"),
    _REPO,
)
def sync(options: Namespace) -> CommandResult:
    bar = LastLine()

    def draw(done: int, total: int) -> None:
        filled = 30 * done // total
        bar.draw(f"[{'#' * filled:.<30}] {done:,} of {total:,} files")

    try:
        report = _knowledge(options).sync(rebuild=options.rebuild, progress=draw)
    finally:
        bar.clear()
    for note in report.notes:
        _note(note)
    skipped = [{"path": each.path, "reason": each.reason} for each in report.skipped]
    lines = [
        f"{plural(len(report.indexed), 'file')} indexed, {len(report.removed):,} removed, "
        f"{report.unchanged:,} unchanged, {len(skipped):,} skipped; "
        f"{report.state.passages:,} passages of {plural(report.state.files, 'file')} in all"
    ]
    named = skipped if options.verbose else skipped[:5]
    lines += [_in_one_line(f"skipped {each['path']}: it {each['reason']}") for each in named]
    if len(named) < len(skipped):
        lines.append(f"and {len(skipped) - len(named):,} more; --verbose names them")
    reply = {
        "repository": report.root,
        "indexed": report.indexed,
        "removed": report.removed,
        "unchanged": report.unchanged,
        "skipped": skipped,
        "notes": report.notes,
        "files": report.state.files,
        "passages": report.state.passages,
        "model": report.state.model,
        "computed": report.computed,
        "cached": report.cached,
    }
    return CommandResult(reply, lines)


@verb(
    "knowledge query",
    "search a repository, or all of them; exit code 1: nothing was found",
    "rolecall knowledge query 'how are retries limited'\n"
    "rolecall knowledge query parse_config --path 'src/' --json\n"
    "rolecall knowledge query -g 'connection refused' --max 3",
    argument("text", "QUESTION", "words, a name from the code, or a message that was printed"),
    argument("--max", "N", "how many passages (default: 10)", type=between(1, 1000), default=10),
    argument("--path", "GLOB", "only files that match, as in a .gitignore: 'docs/', '*.py'"),
    flag("--words", "search by words alone, without the model"),
    _SCOPE,
)
def query(options: Namespace) -> CommandResult:
    may_write = "file_modification" not in denied_classes(config.restrictions())
    found = _knowledge(options, may_write=may_write).query(
        options.text,
        max=options.max,
        path=options.path,
        by_words=options.words,
        everywhere=options.everywhere,
    )
    for note in found.notes:
        _note(note)
    results: list[dict[str, Any]] = []
    lines = [] if found.answers else ["nothing was found"]
    for answer in found.answers:
        result = {
            **({"repository": answer.repository} if options.everywhere else {}),
            "path": answer.path,
            "start": answer.start,
            "end": answer.end,
            "heading" if answer.is_prose else "symbol": answer.heading,
            "score": round(answer.score, 4),
            "stale": answer.is_stale,
            "text": answer.text,
            "marks": find_marks(answer.text, options.text),
        }
        results.append(result)
        root = answer.repository if options.everywhere else ""
        place = os.path.join(root, f"{answer.path}:{answer.start}-{answer.end}")
        stale = "  (changed since)" if answer.is_stale else ""
        lines.append(_in_one_line(f"{place}  {answer.heading}".rstrip() + f"  {answer.score:.3f}{stale}"))
        lines += [*(f"    {line}" for line in _excerpt(result)), ""]
    note = ""
    if any(answer.is_stale for answer in found.answers):
        note = "note: some of these files have changed since they were indexed: `rolecall knowledge sync`"
    reply = {"query": options.text, "results": results, "notes": found.notes}
    return CommandResult(reply, lines, code=0 if found.answers else 1, note=note)


def _excerpt(result: dict[str, Any]) -> list[str]:
    """Return the lines of a passage that contain the most words of the question, with these words marked."""
    begin, end = paint("|", "bold").split("|") if has_color(sys.stdout) else ("«", "»")
    marked: list[str] = []
    at = 0
    for first, stop in result["marks"]:
        marked += [printable(result["text"][at:first]), begin, printable(result["text"][first:stop]), end]
        at = stop
    lines = "".join([*marked, printable(result["text"][at:])]).split("\n")
    if len(lines) <= _MOST_LINES:
        return lines
    counts = [line.count(begin) for line in lines]
    starts = range(len(lines) - _MOST_LINES + 1)
    top = max(starts, key=lambda number: (sum(counts[number : number + _MOST_LINES]), -number))
    left = len(lines) - top - _MOST_LINES
    before, after = [f"… {top} lines"] if top else [], [f"… {left} lines"] if left else []
    return [*before, *lines[top : top + _MOST_LINES], *after]


@verb(
    "knowledge status",
    "show what is indexed, and what has changed since",
    "rolecall knowledge status\nrolecall knowledge status -g",
    _SCOPE,
)
def show_status(options: Namespace) -> CommandResult:
    if options.everywhere:
        known = Knowledge.repositories().items()
        rows = [{"repository": root, "indexed": is_indexed} for root, is_indexed in known]
        lines = [f"{root}{'' if is_indexed else '  (its index is gone)'}" for root, is_indexed in known]
        text = [_in_one_line(line) for line in lines] or ["no repository has been indexed yet"]
        return CommandResult({"repositories": rows}, text)
    status = _knowledge(options).status()
    reply = {
        "repository": status.root,
        "files": status.state.files,
        "passages": status.state.passages,
        "model": status.state.model,
        "configuredModel": status.configured_model,
        "dimensions": status.state.dimensions,
        "synced": status.state.synced,
        "bytes": status.bytes,
        "cacheBytes": status.cache_bytes,
        "changed": list(status.changed),
        "gone": list(status.gone),
        "skipped": [{"path": path, "reason": reason} for path, reason in status.skipped],
        "ignoredByGit": status.is_ignored,
    }
    state, waiting = status.state, [*status.changed, *status.gone]
    size = f"{status.bytes / 1e6:,.1f} MB"
    lines = [
        status.root,
        f"  {state.passages:,} passages of {plural(state.files, 'file')}, {size}, synced {state.synced}",
        f"  model {state.model}; vectors kept for all repositories: {status.cache_bytes / 1e6:,.1f} MB",
    ]
    if status.configured_model != state.model:
        lines.append(
            f"  the settings name {status.configured_model}: `rolecall knowledge sync` embeds everything again"
        )
    if waiting:
        named = short(", ".join(waiting[:5]), 80)
        lines.append(f"  not as indexed: {plural(len(waiting), 'file')} ({named}): `rolecall knowledge sync`")
    else:
        lines.append("  every file is as indexed")
    if status.skipped:
        path, reason = status.skipped[0]
        example = _in_one_line(f"{path}: it {reason}")
        lines.append(f"  left out: {plural(len(status.skipped), 'file')}, for example {example}")
    if not status.is_ignored:
        lines.append("  git does not ignore the index: add `knowledge.db*` to .gitignore")
    return CommandResult(reply, lines)


@verb(
    "knowledge show",
    "show the passages that a file was cut into",
    "rolecall knowledge show\nrolecall knowledge show src/app.py:40",
    argument("file", "FILE[:LINE]", "a file, or the passage at a line of it", nargs="?"),
    _REPO,
)
def show_passages(options: Namespace) -> CommandResult:
    knowledge = _knowledge(options)
    if options.file is None:
        counts = knowledge.files().items()
        files = [{"path": path, "passages": count} for path, count in counts]
        return CommandResult({"files": files}, table(list(counts), ("file", "passages")))
    before, colon, after = options.file.rpartition(":")
    path, line = (before, int(after)) if colon and after.isdecimal() else (options.file, None)
    found = knowledge.passages(path, line=line)
    if not found:
        where = f"line {line} of {path}" if line else path
        raise UsageError(f"nothing of {where} is indexed", hint="`rolecall knowledge show` lists what is.")
    rows = [
        {"start": each.start, "end": each.end, "trail": list(each.trail), "text": each.text} for each in found
    ]
    cells = [(f"{each.start}-{each.end}", " › ".join(each.trail)) for each in found]
    if line is None:
        text = table(cells, ("lines", "what"))
    else:
        blocks = [f"{lines}  {trail}\n{each.text}" for (lines, trail), each in zip(cells, found, strict=True)]
        text = "\n\n".join(blocks)
    return CommandResult({"path": found[0].path, "passages": rows}, text)


@verb(
    "knowledge forget",
    "delete a repository's index",
    "rolecall knowledge forget\nrolecall knowledge forget --cache",
    flag("--cache", "drop the vectors kept for all repositories instead"),
    _REPO,
)
def forget(options: Namespace) -> CommandResult:
    if options.cache:
        freed = Knowledge.drop_vectors()
        text = f"{freed / 1e6:,.1f} MB of vectors were deleted; the next sync computes them again"
        return CommandResult({"freed": freed}, text)
    knowledge = Knowledge(options.repo or Knowledge().root)
    was_there = knowledge.forget()
    text = f"the index of {knowledge.folder} was deleted; {'knowledge.yaml stays' if was_there else 'there was none'}"
    return CommandResult({"repository": knowledge.folder, "removed": was_there}, text)


@verb(
    "knowledge serve",
    "serve the vectors of a model over HTTP, computing each text once",
    "rolecall knowledge serve --port 8766\n"
    "rolecall knowledge serve --model openai/text-embedding-3-small --host 0.0.0.0 --token-env TOKEN",
    argument(
        "--model",
        "NAME",
        "embedded, or PROVIDER/NAME with a provider of the configuration (default: embedded)",
        default="embedded",
    ),
    add_server_options,
    has_reply=False,
)
def serve(options: Namespace) -> None:
    with explain_missing("knowledge", "the server"):
        path = server.PATH
    http.serve(
        lambda: Knowledge(tell=_note).model_server(options.model),
        options,
        path=path,
        extra="knowledge",
        tell=lambda address: print(address, flush=True),
    )
