"""`rolecall cas`: commands for the content-addressed store."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from functools import partial
from typing import Any

from rolecall.cli import Reply, argument, flag, verb
from rolecall.cli.output import (
    STORE,
    Progress,
    between,
    format_of,
    parse_json,
    plural,
    read_file,
    read_input,
    show,
    table,
    warn,
)
from rolecall.errors import Damaged, NotFound, UsageError
from rolecall.settings.stores import open_store
from rolecall.store.store import BUILTIN, META, Dangling, Store

_ALIASES = {f"@ocas/{name}": type_id for name, type_id in BUILTIN.items()}
_ALIASES |= {"@ocas/schema": META, "@ocas/bool": BUILTIN["boolean"]}

_NODE = argument("node", "ID", "an id, or an unambiguous beginning of one")
_KEEP_GOING = flag("--keep-going", "take the intact nodes when some are damaged (exit code 4)")


def _open(options: Namespace) -> Store:
    return open_store(options.store, create=False)


def _type_id(store: Store, text: str) -> str:
    return _ALIASES.get(text) or BUILTIN.get(text) or store.resolve(text)


def _read_data(argument: str) -> Any:
    """Parse JSON given as an argument, as `-` or `@FILE`, or by the plain name of a file or a pipe."""
    is_file = os.path.exists(argument) and not os.path.isdir(argument)
    is_marked = argument == "-" or argument.startswith("@")
    return parse_json(read_file(argument) if is_file and not is_marked else read_input(argument))


# -- nodes --


@verb(
    "cas get",
    "print a node",
    "rolecall cas get 95ST8MZ0QTKP9\nrolecall cas get 95ST --timestamp",
    _NODE,
    flag("--timestamp", "also print when it was first put"),
    STORE,
)
def get(options: Namespace) -> Reply:
    with _open(options) as store:
        node = store.get(store.resolve(options.node))
    shown = {"type": node.type, "payload": node.payload}
    return Reply({**shown, "timestamp": node.created} if options.timestamp else shown)


@verb(
    "cas put",
    "store a JSON payload under a type",
    "rolecall cas put @ocas/object '{\"a\": 1}'",
    argument("type", "TYPE", "the id of a schema, or @ocas/string and the like"),
    argument("data", "DATA", "JSON, or a file of it; - reads standard input"),
    STORE,
)
def put(options: Namespace) -> Reply:
    payload = _read_data(options.data)
    with open_store(options.store) as store:
        node = store.put(_type_id(store, options.type), payload, durable=True)
    return Reply({"hash": node}, node)


@verb(
    "cas put-text",
    "store a text",
    "rolecall cas put-text hello\ngit diff | rolecall cas put-text -",
    argument("text", "TEXT", "the text; @FILE reads a file, - standard input"),
    STORE,
)
def put_text(options: Namespace) -> Reply:
    text = read_input(options.text)
    with open_store(options.store) as store:
        node = store.put_text(text, durable=True)
    return Reply({"hash": node}, node)


@verb(
    "cas has",
    "tell whether a node is stored (exit code 1: no)",
    "rolecall cas has 95ST8MZ0QTKP9",
    _NODE,
    STORE,
)
def has(options: Namespace) -> Reply:
    try:
        with _open(options) as store:
            exists = store.has(store.resolve(options.node))
    except NotFound:
        exists = False
    return Reply({"exists": exists}, "yes" if exists else "no", code=0 if exists else 1)


@verb("cas refs", "list the ids a node refers to", "rolecall cas refs 25FJMAAD4ZDV5", _NODE, STORE)
def list_refs(options: Namespace) -> Reply:
    with _open(options) as store:
        refs = list(store.refs_of(store.resolve(options.node)))
    return Reply({"refs": refs}, "\n".join(refs))


@verb(
    "cas walk",
    "list everything reachable from a node",
    "rolecall cas walk 25FJMAAD4ZDV5 --types",
    _NODE,
    flag("--types", "follow each node's type as well"),
    argument("--max", "N", "stop after N nodes", type=between(1)),
    STORE,
)
def walk(options: Namespace) -> None:
    found: list[str] = []
    dangling: list[dict[str, str]] = []
    damage: Damaged | None = None
    with _open(options) as store:
        root = store.resolve(options.node)
        store.get(root)  # a missing node is an error, not a reply
        try:
            for visit in store.walk(root, follow_types=options.types, limit=options.max):
                if isinstance(visit, Dangling):
                    dangling.append({"hash": visit.id, "referrer": visit.referrer})
                else:
                    found.append(visit)
        except Damaged as error:
            damage = error  # reported after the reply
    show(options, {"hashes": found, **({"dangling": dangling} if dangling else {})}, "\n".join(found))
    if format_of(options) == "text":
        for one in dangling:
            warn(f"{one['referrer']} refers to {one['hash']}, which is not stored")
    if damage:
        raise damage


# -- the store --


@verb("cas reindex", "rebuild everything derived from the nodes", "rolecall cas reindex", STORE)
def reindex(options: Namespace) -> Reply:
    from rolecall.store.verify import reindex  # like the imports below, not needed for reading

    progress = Progress("reindexed")
    with _open(options) as store:
        done = reindex(store, progress=progress)
    progress.clear()
    text = f"{done.nodes} nodes of {done.types} types; {done.corrected} entries corrected"
    return Reply({"status": "reindexed", **done._asdict()}, text)


@verb(
    "cas verify",
    "check nodes against their ids, types and references, and the files that steps recorded",
    "rolecall cas verify\nrolecall cas verify --no-files",
    argument("nodes", "ID", "only these nodes (default: everything)", nargs="*"),
    flag("--no-files", "leave the recorded files unchecked"),
    STORE,
)
def verify(options: Namespace) -> Reply:
    from rolecall.store.verify import DAMAGE, Fault, verify
    from rolecall.threads import kept_files

    problems: list[Fault] = []
    count, progress = 0, Progress("verified")
    with _open(options) as store:
        for done in verify(store, [store.resolve(node) for node in options.nodes]):
            count += done.nodes
            problems += done.problems
            progress(count)
        if not options.nodes and not options.no_files:
            try:
                problems += kept_files.verify(store)
            except Damaged:
                if not problems:  # otherwise it is named already
                    raise
    progress.clear()
    verdict = plural(len(problems), "problem") if problems else "ok"
    shown = {"status": verdict, "nodes": count, "problems": [problem._asdict() for problem in problems]}
    lines = [f"{problem.kind:10} {problem.node} {problem.text}" for problem in problems]
    is_damaged = any(problem.kind in DAMAGE for problem in problems)
    code = 4 if is_damaged else 1 if problems else 0
    return Reply(shown, "\n".join([*lines, f"{count} nodes: {verdict}"]), code)


def _duration(text: str) -> int:
    """Parse a duration (90s, 30m, 1h, 2d, or 0) into milliseconds."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    if text == "0":
        return 0
    if text[-1:] not in units or not text[:-1].isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 1h, 2d or 0")
    return int(text[:-1]) * units[text[-1]]


@verb(
    "cas gc",
    "find nodes that nothing refers to and files that no step names, and remove them on request",
    "rolecall cas gc\nrolecall cas gc --delete",
    flag("--delete", "remove them; without it nothing is changed"),
    argument(
        "--grace",
        "TIME",
        "spare what was put since, e.g. 90s, 30m, 1h (default), 2d",
        type=_duration,
        default=3_600_000,
    ),
    flag("--force", "remove even if something in use refers to a missing node"),
    STORE,
)
def gc(options: Namespace) -> Reply:
    from rolecall.api import Rolecall
    from rolecall.store.collect import collect
    from rolecall.threads import kept_files

    with Rolecall(options.store, create=False) as rolecall:
        done = collect(rolecall.store, delete=options.delete, grace_ms=options.grace, force=options.force)
        copies = rolecall.remove_copies(grace_ms=options.grace) if options.delete else []
        files = kept_files.collect(rolecall.store, delete=options.delete, grace_ms=options.grace)
    shown = {
        "total": done.total,
        "reachable": done.reachable,
        "young": done.young,
        "collected": done.collected,
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
    return Reply(shown, "\n".join(lines))


@verb("cas stats", "print figures about the store", "rolecall cas stats", STORE)
def stats(options: Namespace) -> Reply:
    with _open(options) as store:
        size = store.backend.size()
        types = [
            {"hash": type_id, "title": _title(store, type_id), "nodes": nodes}
            for type_id, nodes in size["types"].items()
        ]
    head = (
        f"{size['nodes']:,} nodes with {size['bytes']:,} bytes, {size['refs']:,} refs, "
        f"{size['events']:,} events; {size['disk']:,} bytes on disk"
    )
    rows = [(one["nodes"], one["hash"], one["title"]) for one in types]
    return Reply({**size, "types": types}, f"{head}\n\n{table(rows, ('nodes', 'type', 'title'))}")


@verb(
    "cas export",
    "write everything, or a part, to a bundle or a folder",
    "rolecall cas export backup.tgz\nrolecall cas export part.tar 25FJ",
    argument("path", "PATH", "a new file (.tgz compresses), or a folder (ends in /)"),
    argument("nodes", "ID", "only what is reachable from these", nargs="*"),
    flag("--no-files", "leave out the files that steps recorded"),
    _KEEP_GOING,
    STORE,
)
def export(options: Namespace) -> Reply:
    from rolecall.store.bundle import export_to
    from rolecall.threads import kept_files

    progress = Progress("exported")
    with _open(options) as store:
        nodes = [store.resolve(node) for node in options.nodes]
        copied = export_to(
            store,
            options.path,
            nodes,
            keep_going=options.keep_going,
            progress=progress,
            add_files=None if options.no_files else partial(kept_files.add_to_bundle, store),
        )
    progress.clear()
    return _reply_copied(copied, f"exported to {options.path}")


@verb(
    "cas import",
    "take over a bundle or a folder",
    "rolecall cas import backup.tgz\nrolecall cas import ~/.uncaged/workflow",
    argument("path", "PATH", "a bundle, or a folder in the files layout"),
    flag("--repair", "replace nodes that are damaged here and intact there"),
    flag("--no-files", "leave out the files that steps recorded"),
    _KEEP_GOING,
    STORE,
)
def import_bundle(options: Namespace) -> Reply:
    from rolecall.store.bundle import import_from
    from rolecall.threads import kept_files

    progress = Progress("imported")
    with open_store(options.store) as store:
        copied = import_from(
            store,
            options.path,
            repair=options.repair,
            keep_going=options.keep_going,
            progress=progress,
            take_files=None if options.no_files else partial(kept_files.take_from_bundle, store),
        )
    progress.clear()
    return _reply_copied(copied, f"imported from {options.path}")


def _reply_copied(copied: Any, what: str) -> Reply:
    problems = [problem._asdict() for problem in copied.problems]
    lines = [f"{copied.nodes} nodes, {copied.refs} refs and {copied.events} events {what}"]
    lines += [f"kept as it is here: {name}" for name in copied.kept]
    lines += [f"{problem['kind']}: {problem['node']} {problem['text']}" for problem in problems]
    is_damaged = any(problem["kind"] in ("damaged", "container", "missing") for problem in problems)
    shown = copied._asdict() | {"problems": problems, "kept": list(copied.kept)}
    return Reply(shown, "\n".join(lines), code=4 if is_damaged else 0)


# -- types --


@verb("cas schema list", "list the types", "rolecall cas schema list", STORE)
def list_schemas(options: Namespace) -> Reply:
    with _open(options) as store:
        found = [{"hash": node, "title": _title(store, node)} for node in store.of_type(META)]
    return Reply(found, table([(row["hash"], row["title"]) for row in found], ("type", "title")))


@verb(
    "cas schema get",
    "print a schema",
    "rolecall cas schema get @ocas/string",
    argument("type", "TYPE", "an id or a beginning of one, or @ocas/string and the like"),
    STORE,
)
def get_schema(options: Namespace) -> Reply:
    with _open(options) as store:
        return Reply(store.type(_type_id(store, options.type)).schema)


@verb(
    "cas schema put",
    "register a JSON Schema as a type",
    "rolecall cas schema put person.json\nrolecall cas schema put - < person.json",
    argument("schema", "FILE", "a file of JSON, - for standard input, or the JSON itself"),
    STORE,
)
def put_schema(options: Namespace) -> Reply:
    schema = _read_data(options.schema)
    with open_store(options.store) as store:
        node = store.put_schema(schema, durable=True)
    return Reply({"hash": node}, node)


def _title(store: Store, type_id: str) -> str:
    """Return a schema's title, or else its description or type."""
    try:
        schema = store.type(type_id).schema
    except (NotFound, UsageError):
        return "(not stored)"
    return str(schema.get("title") or schema.get("description") or schema.get("type") or "")
