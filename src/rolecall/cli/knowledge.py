"""`rolecall knowledge`: what a repository says about itself, indexed and asked."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import cache
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb
from rolecall.cli.output import LastLine, add_format, has_color, printable, short, show, table
from rolecall.errors import UsageError

if TYPE_CHECKING:
    from rolecall.knowledge.queries import Desk, Found, Status
    from rolecall.knowledge.query import Answer
    from rolecall.knowledge.sync import Report

_LINES = 12
"""Lines of a passage that are shown on a terminal."""


def _now() -> str:
    from rolecall.nexus.project_paths import now

    return now()


@cache
def _tell(line: str) -> None:
    """Print a message on standard error, each only once."""
    print(f"note: {_in_one_line(line)}", file=sys.stderr)


def _in_one_line(text: str) -> str:
    """A path may hold whatever it likes."""
    return printable(text).replace("\n", "\\u000a")


def _root(options: Namespace) -> str:
    from rolecall.knowledge import place

    return place.root_of(options.repo or os.getcwd())


# -- init --


def _init(options: Namespace) -> None:
    from rolecall.knowledge import start
    from rolecall.settings import repository

    here = os.path.realpath(options.repo or os.getcwd())
    if not os.path.isdir(here):
        raise UsageError(f"there is no folder {here!r}", hint="--repo names a repository's folder.")
    root = here if options.repo else repository.root_around(here) or here
    started = start.init(root)
    reply = {"path": started.path, "include": started.include, "gitignore": started.ignored_in}
    show(options, reply, lambda: _started(reply))


def _started(reply: dict[str, Any]) -> str:
    lines = [f"wrote {reply['path']}: {', '.join(reply['include'])}"]
    if reply["gitignore"]:
        lines.append(f"added the index to {reply['gitignore']}")
    return "\n".join([*lines, "Look it over, then: rolecall knowledge sync"])


# -- sync --


def _sync(options: Namespace) -> None:
    from rolecall.knowledge import queries as desk

    root = _root(options)
    bar = _Bar()
    try:
        report, vectors = desk.sync(root, now=_now(), tell=_tell, is_anew=options.rebuild, progress=bar)
    finally:
        bar.clear()
    for note in report.notes:
        _tell(note)
    reply = _synced(report) | {"computed": vectors.computed, "cached": vectors.found}
    show(options, reply, lambda: _synced_text(reply, options.verbose))


def _synced(report: Report) -> dict[str, Any]:
    assert report.state is not None  # noqa: S101 -- a sync that ended has one
    return {
        "repository": report.root,
        "indexed": report.indexed,
        "removed": report.removed,
        "unchanged": report.unchanged,
        "skipped": [{"path": each.path, "reason": each.reason} for each in report.skipped],
        "notes": report.notes,
        "files": report.state.files,
        "passages": report.state.passages,
        "model": report.state.model,
    }


def _synced_text(reply: dict[str, Any], is_verbose: bool) -> str:
    skipped = reply["skipped"]
    lines = [
        f"{_files(len(reply['indexed']))} indexed, {len(reply['removed']):,} removed, "
        f"{reply['unchanged']:,} unchanged, {len(skipped):,} skipped; "
        f"{reply['passages']:,} passages of {_files(reply['files'])} in all"
    ]
    shown = skipped if is_verbose else skipped[:5]
    lines += [_in_one_line(f"skipped {each['path']}: it {each['reason']}") for each in shown]
    if len(shown) < len(skipped):
        lines.append(f"and {len(skipped) - len(shown):,} more; --verbose names them")
    return "\n".join(lines)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


class _Bar(LastLine):
    """How far a sync is."""

    def __call__(self, done: int, total: int) -> None:
        if total:
            filled = 30 * done // total
            self.draw(f"[{'#' * filled}{'.' * (30 - filled)}] {done:,} of {total:,} files")


# -- query --


def _query(options: Namespace) -> int:
    found = _found(options)
    for note in found.notes:
        _tell(note)
    reply = {
        "query": options.text,
        "results": [_result(answer, options.text, is_global=options.everywhere) for answer in found.answers],
        "notes": found.notes,
    }
    _show_answers(options, reply, found.answers)
    if any(answer.is_stale for answer in found.answers):
        sys.stdout.flush()
        _tell("some of these files have changed since they were indexed: `rolecall knowledge sync`")
    return 0 if found.answers else 1


def _found(options: Namespace) -> Found:
    from rolecall.knowledge.globs import problem

    if options.path is not None and (wrong := problem(options.path)):
        raise UsageError(f"the pattern {options.path!r} {wrong}", hint="Patterns are as in a .gitignore.")
    desk = _desk()
    more = {"limit": options.limit, "path": options.path, "by": "words" if options.words else ""}
    if options.everywhere:
        return desk.ask_all(options.text, **more)
    return desk.ask(options.text, _root(options), **more)


def _desk() -> Desk:
    from rolecall.knowledge.queries import Desk
    from rolecall.settings import config
    from rolecall.settings.capabilities import denied

    may_write = "file_modification" not in denied(config.restrictions())
    return Desk(now=_now, tell=_tell, may_write=may_write)


def _result(answer: Answer, question: str, *, is_global: bool) -> dict[str, Any]:
    from rolecall.knowledge.search import marks

    return {
        **({"repository": answer.repository} if is_global else {}),
        "path": answer.path,
        "start": answer.start,
        "end": answer.end,
        "heading" if answer.is_prose else "symbol": " › ".join(answer.trail)
        if answer.is_prose
        else ".".join(answer.trail),
        "score": round(answer.score, 4),
        "stale": answer.is_stale,
        "text": answer.text,
        "marks": marks(answer.text, question),
    }


def _show_answers(options: Namespace, reply: dict[str, Any], answers: list[Answer]) -> None:
    """Answers as text, the words that were asked for marked; the terminal's own way where there is one."""
    from rolecall.cli.output import format_of

    if format_of(options) != "text":
        show(options, reply)
        return
    if not answers:
        print("nothing fits")
    for result in reply["results"]:
        print(_head(result))
        for line in _body(result):
            print(f"    {line}")
        print()


def _head(result: dict[str, Any]) -> str:
    where = f"{result['path']}:{result['start']}-{result['end']}"
    if "repository" in result:
        where = os.path.join(result["repository"], where)
    name = result.get("symbol") or result.get("heading") or ""
    stale = "  (changed since)" if result["stale"] else ""
    return _in_one_line(f"{where}  {name}".rstrip() + f"  {result['score']:.3f}{stale}")


def _body(result: dict[str, Any]) -> list[str]:
    """The lines of a passage around most of what was asked for."""
    begin, end = ("\033[1m", "\033[0m") if has_color(sys.stdout) else ("«", "»")
    marked: list[str] = []
    at = 0
    for start, stop in result["marks"]:
        marked += [printable(result["text"][at:start]), begin, printable(result["text"][start:stop]), end]
        at = stop
    lines = "".join([*marked, printable(result["text"][at:])]).split("\n")
    if len(lines) <= _LINES:
        return lines
    counts = [line.count(begin) for line in lines]
    first = max(
        range(len(lines) - _LINES + 1), key=lambda number: (sum(counts[number : number + _LINES]), -number)
    )
    before = [f"… {first} lines"] if first else []
    left = len(lines) - first - _LINES
    return [*before, *lines[first : first + _LINES], *([f"… {left} lines"] if left else [])]


# -- looking --


def _status(options: Namespace) -> None:
    from rolecall.knowledge import place
    from rolecall.knowledge import queries as desk
    from rolecall.settings import config

    if options.everywhere:
        rows = [
            {"repository": root, "indexed": os.path.exists(place.index_of(root))}
            for root in place.list_remembered(config.home())
        ]
        text = "\n".join(
            _in_one_line(f"{row['repository']}{'' if row['indexed'] else '  (its index is gone)'}")
            for row in rows
        )
        show(options, {"repositories": rows}, lambda: text or "no repository has been indexed yet")
        return
    status = desk.status(_root(options))
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
    show(options, reply, lambda: _status_text(status))


def _status_text(status: Status) -> str:
    state, waiting = status.state, [*status.changed, *status.gone]
    lines = [
        status.root,
        f"  {state.passages:,} passages of {_files(state.files)}, {status.bytes / 1e6:,.1f} MB, synced {state.synced}",
        f"  model {state.model}; vectors kept for all repositories: {status.cache_bytes / 1e6:,.1f} MB",
    ]
    if status.configured_model != state.model:
        lines.append(
            f"  the settings name {status.configured_model}: `rolecall knowledge sync` embeds everything anew"
        )
    if waiting:
        named = short(", ".join(waiting[:5]), 80)
        lines.append(f"  not as indexed: {_files(len(waiting))} ({named}): `rolecall knowledge sync`")
    else:
        lines.append("  every file is as indexed")
    if status.skipped:
        path, reason = status.skipped[0]
        example = _in_one_line(f"{path}: it {reason}")
        lines.append(f"  left out: {_files(len(status.skipped))}, for example {example}")
    if not status.is_ignored:
        lines.append("  git does not ignore the index: add `knowledge.db*` to .gitignore")
    return "\n".join(lines)


def _show(options: Namespace) -> None:
    from rolecall.knowledge import place
    from rolecall.knowledge.index import Reader

    root = _root(options)
    reader = Reader(place.index_of(root))
    if options.file is None:
        files = [{"path": path, "passages": count} for path, count in reader.counts().items()]
        show(
            options,
            {"files": files},
            lambda: table([(row["path"], row["passages"]) for row in files], ("file", "passages")),
        )
        return
    path, line = _place(options.file, root)
    found = [each for each in reader.of_file(path) if line is None or each.start <= line <= each.end]
    if not found:
        where = f"line {line} of {path}" if line else path
        raise UsageError(f"nothing of {where} is indexed", hint="`rolecall knowledge show` lists what is.")
    rows = [
        {"start": each.start, "end": each.end, "trail": list(each.trail), "text": each.text} for each in found
    ]
    show(options, {"path": path, "passages": rows}, lambda: _shown(rows, with_text=line is not None))


def _shown(rows: list[dict[str, Any]], *, with_text: bool) -> str:
    if with_text:
        return "\n\n".join(
            f"{row['start']}-{row['end']}  {' › '.join(row['trail'])}\n{row['text']}" for row in rows
        )
    return table(
        [(f"{row['start']}-{row['end']}", " › ".join(row["trail"])) for row in rows], ("lines", "what")
    )


def _place(text: str, root: str) -> tuple[str, int | None]:
    """A file by its path from the root, and a line of it. What is given is a path from here or, as answers have it,
    from the root."""
    path, colon, line = text.rpartition(":")
    given, number = (path, int(line)) if colon and line.isdecimal() else (text, None)
    from_here = os.path.relpath(os.path.realpath(given), root)
    return (from_here if os.path.lexists(given) and not from_here.startswith("..") else given), number


def _forget(options: Namespace) -> None:
    from rolecall.knowledge import cache, index, place
    from rolecall.knowledge import queries as desk
    from rolecall.settings import config

    if options.cache:
        folder = place.cache_folder(config.home())
        freed = cache.size(folder)
        index.remove(os.path.join(folder, cache.FILE))
        show(
            options,
            {"freed": freed},
            lambda: f"{freed / 1e6:,.1f} MB of vectors are gone; a sync computes them again",
        )
        return
    root = os.path.realpath(options.repo) if options.repo else _root(options)
    was_there = desk.forget(root)
    text = f"the index of {root} is gone; {'knowledge.yaml stays' if was_there else 'there was none'}"
    show(options, {"repository": root, "removed": was_there}, lambda: text)


# -- serve --


def _serve(options: Namespace) -> None:
    from rolecall.knowledge import queries as desk
    from rolecall.knowledge import serve
    from rolecall.service import http

    vectors = desk.shared_model(options.model, _tell)
    http.serve(
        lambda: serve.Service(vectors, options.model),
        options,
        path=serve.PATH,
        extra="knowledge",
        tell=lambda address: print(address, flush=True),
    )


# -- the table --


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to 1000")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _add_repository(parser: ArgumentParser) -> None:
    parser.add_argument("--repo", metavar="PATH", help="the repository (default: the one around this folder)")
    add_format(parser)


def _sync_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--rebuild", action="store_true", help="index everything anew, whether it changed or not"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="name every file that is skipped")
    _add_repository(parser)


def _add_scope(parser: ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--repo", metavar="PATH", help="the repository (default: the one around this folder)")
    where.add_argument(
        "-g", "--global", dest="everywhere", action="store_true", help="all repositories that were indexed"
    )
    add_format(parser)


def _query_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "text", metavar="QUESTION", help="words, a name from the code, or a message that was printed"
    )
    parser.add_argument(
        "--limit", type=_limit, default=10, metavar="N", help="how many passages (default: 10)"
    )
    parser.add_argument(
        "--path", metavar="GLOB", help="only files that match, as in a .gitignore: 'docs/', '*.py'"
    )
    parser.add_argument("--words", action="store_true", help="ask by words alone, without the model")
    _add_scope(parser)


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE[:LINE]", help="a file, or the passage at a line of it"
    )
    _add_repository(parser)


def _forget_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--cache", action="store_true", help="drop the vectors kept for all repositories instead"
    )
    _add_repository(parser)


def _serve_arguments(parser: ArgumentParser) -> None:
    model = "embedded, or PROVIDER/NAME with a provider of the configuration (default: embedded)"
    parser.add_argument("--model", default="embedded", metavar="NAME", help=model)
    parser.add_argument("--host", metavar="ADDRESS", help="listen here (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, metavar="N", help="listen on this port (default: a free one)")
    parser.add_argument(
        "--token-env", metavar="NAME", help="the variable that holds the token clients must give"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name clients may call this machine by",
    )


VERBS = {
    "init": Verb(
        _init, "write a knowledge.yaml for a repository", "rolecall knowledge init", _add_repository
    ),
    "sync": Verb(
        _sync,
        "index what has changed",
        "rolecall knowledge sync\nrolecall knowledge sync --repo ~/work/other --rebuild",
        _sync_arguments,
    ),
    "query": Verb(
        _query,
        "ask a repository, or all of them; ends with 1 when nothing fits",
        "rolecall knowledge query 'how are retries limited'\n"
        "rolecall knowledge query parse_config --path 'src/' --json\n"
        "rolecall knowledge query -g 'connection refused' --limit 3",
        _query_arguments,
    ),
    "status": Verb(
        _status,
        "what is indexed, and what has changed since",
        "rolecall knowledge status\nrolecall knowledge status -g",
        _add_scope,
    ),
    "show": Verb(
        _show,
        "the passages that a file was cut into",
        "rolecall knowledge show\nrolecall knowledge show src/app.py:40",
        _show_arguments,
    ),
    "forget": Verb(
        _forget,
        "take a repository's index away",
        "rolecall knowledge forget\nrolecall knowledge forget --cache",
        _forget_arguments,
    ),
    "serve": Verb(
        _serve,
        "give the vectors of a model to others, each text computed once",
        "rolecall knowledge serve --port 8766\n"
        "rolecall knowledge serve --model openai/text-embedding-3-small --host 0.0.0.0 --token-env TOKEN",
        _serve_arguments,
    ),
}
