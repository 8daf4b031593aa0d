"""The commands of `rolecall cas` that check, clean, export and import the store. They have a module of their own
because they import more than a command that reads a node."""

from __future__ import annotations

from argparse import Namespace
from functools import partial

from rolecall.api import Rolecall
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.arguments import parse_duration
from rolecall.cli.output import STORE, count_progress, plural
from rolecall.errors import Damaged
from rolecall.settings.stores import open_store
from rolecall.store import bundle, verify
from rolecall.store.collect import collect
from rolecall.threads import kept_files

_KEEP_GOING = flag("--keep-going", "copy the intact nodes if some are damaged (exit code 4)")


@verb("cas reindex", "rebuild all data derived from the nodes", "rolecall cas reindex", STORE)
def reindex(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store, count_progress("reindexed") as progress:
        done = verify.reindex(store, progress=progress)
    text = f"{done.nodes} nodes of {done.types} types; {done.corrected} entries corrected"
    return CommandResult({"status": "reindexed", **done._asdict()}, text)


@verb(
    "cas verify",
    "check nodes against their ids, types and references, and the files that steps recorded",
    "rolecall cas verify\nrolecall cas verify --no-files",
    argument("nodes", "ID", "only these nodes (default: everything)", nargs="*"),
    flag("--no-files", "leave the recorded files unchecked"),
    STORE,
)
def verify_store(options: Namespace) -> CommandResult:
    problems: list[verify.Fault] = []
    count = 0
    with open_store(options.store, create=False) as store, count_progress("verified") as progress:
        for done in verify.verify(store, [store.resolve(node) for node in options.nodes]):
            count += done.nodes
            problems += done.problems
            progress(count)
        if not options.nodes and not options.no_files:
            try:
                problems += kept_files.verify(store)
            except Damaged:
                if not problems:  # otherwise the damage has been reported already
                    raise
    verdict = plural(len(problems), "problem") if problems else "ok"
    shown = {"status": verdict, "nodes": count, "problems": [problem._asdict() for problem in problems]}
    lines = [f"{problem.kind:10} {problem.node} {problem.text}" for problem in problems]
    is_damaged = any(problem.kind in verify.DAMAGE for problem in problems)
    code = 4 if is_damaged else 1 if problems else 0
    return CommandResult(shown, [*lines, f"{count} nodes: {verdict}"], code)


@verb(
    "cas gc",
    "find nodes that nothing refers to and files that no step names, and remove them on request",
    "rolecall cas gc\nrolecall cas gc --delete",
    flag("--delete", "remove them; otherwise nothing is changed"),
    argument(
        "--grace",
        "TIME",
        "keep what was stored within this time, e.g. 90s, 30m, 1h (default), 2d",
        type=parse_duration,
        default=3_600_000,
    ),
    flag("--force", "remove even if something in use refers to a missing node"),
    STORE,
)
def gc(options: Namespace) -> CommandResult:
    with Rolecall(options.store, create=False) as rolecall:
        done = collect(rolecall.store, delete=options.delete, grace_ms=options.grace, force=options.force)
        copies = rolecall.remove_copies(grace_ms=options.grace) if options.delete else []
        files = kept_files.collect(rolecall.store, delete=options.delete, grace_ms=options.grace)
    shown = {
        **done._asdict(),
        "deleted": options.delete,
        "dangling": [visit._asdict() for visit in done.dangling],
        "sample": list(done.sample),
        "copies": len(copies),
        "trees": files.removed,
        "freed": files.freed,
        "problems": list(files.problems),
    }
    lines = [f"{done.total} nodes: {done.reachable} in use, {done.young} too young to judge"]
    lines += [
        f"{visit.referrer or 'a ref'} refers to {visit.id}, which is not stored" for visit in done.dangling
    ]
    if options.delete:
        lines.append(f"{done.collected} removed")
        lines += [f"{len(copies)} copies of Python workflows removed"] if copies else []
        if files.removed or files.freed:
            lines.append(f"{plural(files.removed, 'tree')} of files removed; {files.freed:,} bytes freed")
        lines += [f"No files were removed from {problem}" for problem in files.problems]
    else:
        example = f", for example {' '.join(done.sample[:4])}" if done.sample else ""
        lines.append(f"{done.collected} can be removed{example}")
        if files.removed:
            lines.append(f"{plural(files.removed, 'tree')} of files can be removed: no step names them")
        if done.collected or files.removed:
            lines.append("Nothing was changed. `rolecall cas gc --delete` removes them.")
    return CommandResult(shown, lines)


@verb(
    "cas export",
    "write everything, or a part, to a bundle or a folder",
    "rolecall cas export backup.tgz\nrolecall cas export part.tar 25FJ",
    argument("path", "PATH", "a new file (.tgz compresses), or a folder (ends in /)"),
    argument("nodes", "ID", "only nodes reachable from these", nargs="*"),
    flag("--no-files", "without the files that steps recorded"),
    _KEEP_GOING,
    STORE,
)
def export(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store, count_progress("exported") as progress:
        nodes = [store.resolve(node) for node in options.nodes]
        copied = bundle.export_to(
            store,
            options.path,
            nodes,
            keep_going=options.keep_going,
            progress=progress,
            add_files=None if options.no_files else partial(kept_files.add_to_bundle, store),
        )
    return _reply_copied(copied, f"exported to {options.path}")


@verb(
    "cas import",
    "import a bundle or a folder",
    "rolecall cas import backup.tgz\nrolecall cas import ~/.uncaged/workflow",
    argument("path", "PATH", "a bundle, or a folder in the files layout"),
    flag("--repair", "replace nodes that are damaged here but intact in the source"),
    flag("--no-files", "without the files that steps recorded"),
    _KEEP_GOING,
    STORE,
)
def import_bundle(options: Namespace) -> CommandResult:
    with open_store(options.store) as store, count_progress("imported") as progress:
        copied = bundle.import_from(
            store,
            options.path,
            repair=options.repair,
            keep_going=options.keep_going,
            progress=progress,
            take_files=None if options.no_files else partial(kept_files.take_from_bundle, store),
        )
    return _reply_copied(copied, f"imported from {options.path}")


def _reply_copied(copied: bundle.Copied, what: str) -> CommandResult:
    problems = [problem._asdict() for problem in copied.problems]
    lines = [f"{copied.nodes} nodes, {copied.refs} refs and {copied.events} events {what}"]
    lines += [f"kept unchanged here: {name}" for name in copied.kept]
    lines += [f"{problem['kind']}: {problem['node']} {problem['text']}" for problem in problems]
    is_damaged = any(problem["kind"] in ("damaged", "container", "missing") for problem in problems)
    shown = copied._asdict() | {"problems": problems, "kept": list(copied.kept)}
    return CommandResult(shown, lines, code=4 if is_damaged else 0)
