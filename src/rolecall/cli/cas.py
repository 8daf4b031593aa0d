"""`rolecall cas`: the verbs of the content-addressed store."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from typing import Any

from rolecall.cli import Verb
from rolecall.cli.output import (
    Progress,
    add_format,
    add_store,
    parse_json,
    read_file,
    read_input,
    show,
    show_lines,
    table,
)
from rolecall.errors import Damaged, NotFound, UsageError
from rolecall.settings.stores import open_store
from rolecall.store.store import BUILTIN, META, Dangling, Store

_ALIASES = {f"@ocas/{name}": type_id for name, type_id in BUILTIN.items()}
_ALIASES |= {"@ocas/schema": META, "@ocas/bool": BUILTIN["boolean"]}


# -- the verbs --


def _get(options: Namespace) -> None:
    with _reading(options) as store:
        node = store.get(store.resolve(options.node))
    shown = {"type": node.type, "payload": node.payload}
    if options.timestamp:
        shown["timestamp"] = node.created
    show(options, shown)


def _put(options: Namespace) -> None:
    payload = parse_json(_data(options.data))
    with open_store(options.store) as store:
        node = store.put(_type_id(store, options.type), payload, durable=True)
    show(options, {"hash": node}, lambda: node)


def _put_text(options: Namespace) -> None:
    text = read_input(options.text)
    with open_store(options.store) as store:
        node = store.put_text(text, durable=True)
    show(options, {"hash": node}, lambda: node)


def _has(options: Namespace) -> int:
    try:
        with _reading(options) as store:
            exists = store.has(store.resolve(options.node))
    except NotFound:
        exists = False
    show(options, {"exists": exists}, lambda: "yes" if exists else "no")
    return 0 if exists else 1


def _refs(options: Namespace) -> None:
    with _reading(options) as store:
        refs = list(store.refs_of(store.resolve(options.node)))
    show(options, {"refs": refs}, lambda: "\n".join(refs))


def _walk(options: Namespace) -> None:
    dangling: list[dict[str, str]] = []
    damage: list[Damaged] = []

    def nodes(store: Store) -> Iterator[str]:
        visits = store.walk(store.resolve(options.node), follow_types=options.types, limit=options.limit)
        try:
            for visit in visits:
                if isinstance(visit, Dangling):
                    dangling.append({"hash": visit.id, "referrer": visit.referrer})
                else:
                    yield visit
        except Damaged as exc:
            damage.append(exc)  # told when the reply has its end

    with _reading(options) as store:
        # The first node decides between an answer and an error, so it is asked for before any output.
        store.get(store.resolve(options.node))
        show_lines(options, "hashes", nodes(store), lambda: {"dangling": dangling} if dangling else {})
    if damage:
        raise damage[0]


def _reindex(options: Namespace) -> None:
    from rolecall.store.reindex import reindex

    with _reading(options) as store:
        done = reindex(store, progress=(progress := Progress("reindexed")))
    progress.clear()
    show(
        options,
        {"status": "reindexed", **done._asdict()},
        lambda: f"{done.nodes} nodes of {done.types} types; {done.corrected} entries corrected",
    )


def _verify(options: Namespace) -> int:
    from rolecall.store.verify import DAMAGE, Problem, verify

    problems: list[Problem] = []
    count = 0
    progress = Progress("verified")
    with _reading(options) as store:
        for done in verify(store, [store.resolve(node) for node in options.nodes]):
            count += done.nodes
            problems += done.problems
            progress(count)
    progress.clear()
    show(
        options,
        {
            "status": _verdict(problems),
            "nodes": count,
            "problems": [problem._asdict() for problem in problems],
        },
        lambda: "\n".join(
            [*(f"{p.kind:10} {p.node} {p.text}" for p in problems), f"{count} nodes: {_verdict(problems)}"]
        ),
    )
    if any(problem.kind in DAMAGE for problem in problems):
        return 4
    return 1 if problems else 0


def _verdict(problems: list[Any]) -> str:
    return "ok" if not problems else f"{len(problems)} problem{'s' if problems[1:] else ''}"


def _gc(options: Namespace) -> None:
    from rolecall.store.collect import collect

    with _reading(options) as store:
        done = collect(store, delete=options.delete, grace_ms=options.grace, force=options.force)
        copies = _without_copies(options, store) if options.delete else []
    shown = {
        "total": done.total,
        "reachable": done.reachable,
        "young": done.young,
        "collected": done.collected,
        "deleted": options.delete,
        "dangling": [visit._asdict() for visit in done.dangling],
        "sample": list(done.sample),
        "copies": len(copies),
    }
    show(options, shown, lambda: _gc_text(shown))


def _without_copies(options: Namespace, store: Store) -> list[str]:
    """Remove the copies of Python workflows that no thread of the store was started with."""
    from rolecall.settings import config
    from rolecall.workflow import registry, versions

    before = (store.now() - options.grace) / 1000
    return versions.clean(config.versions_folder(options.store), registry.python_files(store), before=before)


def _gc_text(shown: dict[str, Any]) -> str:
    lines = [f"{shown['total']} nodes: {shown['reachable']} in use, {shown['young']} too young to judge"]
    lines += [
        f"{visit['referrer'] or 'a ref'} refers to {visit['id']}, which is not stored"
        for visit in shown["dangling"]
    ]
    if shown["deleted"]:
        lines.append(f"{shown['collected']} removed")
        lines += [f"{shown['copies']} copies of Python workflows removed"] if shown["copies"] else []
        return "\n".join(lines)
    lines.append(
        f"{shown['collected']} can be removed"
        + (", for example " + " ".join(shown["sample"][:4]) if shown["sample"] else "")
    )
    if shown["collected"]:
        lines.append("Nothing was changed. `rolecall cas gc --delete` removes them.")
    return "\n".join(lines)


def _stats(options: Namespace) -> None:
    with _reading(options) as store:
        size = store.backend.size()
        titles = {type_id: _title(store, type_id) for type_id in size["types"]}
    size["types"] = [{"hash": t, "title": titles[t], "nodes": n} for t, n in size["types"].items()]
    show(options, size, lambda: _stats_text(size))


def _stats_text(size: dict[str, Any]) -> str:
    head = (
        f"{size['nodes']:,} nodes with {size['bytes']:,} bytes, {size['refs']:,} refs, "
        f"{size['events']:,} events; {size['disk']:,} bytes on disk"
    )
    return (
        head
        + "\n\n"
        + table([(t["nodes"], t["hash"], t["title"]) for t in size["types"]], ("nodes", "type", "title"))
    )


def _export(options: Namespace) -> int:
    from rolecall.store.bundle import export_to

    progress = Progress("exported")
    with _reading(options) as store:
        nodes = [store.resolve(node) for node in options.nodes]
        copied = export_to(store, options.path, nodes, keep_going=options.keep_going, progress=progress)
    progress.clear()
    return _show_copied(options, copied, "exported to " + options.path)


def _import(options: Namespace) -> int:
    from rolecall.store.bundle import import_from

    progress = Progress("imported")
    with open_store(options.store) as store:
        copied = import_from(
            store, options.path, repair=options.repair, keep_going=options.keep_going, progress=progress
        )
    progress.clear()
    return _show_copied(options, copied, "imported from " + options.path)


def _show_copied(options: Namespace, copied: Any, what: str) -> int:
    shown = copied._asdict() | {
        "problems": [problem._asdict() for problem in copied.problems],
        "kept": list(copied.kept),
    }
    lines = [f"{copied.nodes} nodes, {copied.refs} refs and {copied.events} events {what}"]
    lines += [f"kept as it is here: {name}" for name in copied.kept]
    lines += [f"{problem.kind}: {problem.node} {problem.text}" for problem in copied.problems]
    show(options, shown, lambda: "\n".join(lines))
    return 4 if any(problem.kind in ("damaged", "container", "missing") for problem in copied.problems) else 0


def _schema_list(options: Namespace) -> None:
    with _reading(options) as store:
        found = [{"hash": node, "title": _title(store, node)} for node in store.of_type(META)]
    show(options, found, lambda: table([(row["hash"], row["title"]) for row in found], ("type", "title")))


def _schema_get(options: Namespace) -> None:
    with _reading(options) as store:
        schema = store.type(_type_id(store, options.type)).schema
    show(options, schema)


def _schema_put(options: Namespace) -> None:
    schema = parse_json(_data(options.schema))
    with open_store(options.store) as store:
        node = store.put_schema(schema, durable=True)
    show(options, {"hash": node}, lambda: node)


# -- arguments --


def _reading(options: Namespace) -> Store:
    return open_store(options.store, create=False)


def _type_id(store: Store, text: str) -> str:
    return _ALIASES.get(text) or BUILTIN.get(text) or store.resolve(text)


def _data(argument: str) -> str:
    """JSON itself, `-`, `@FILE`, or the bare name of a file or a pipe."""
    is_file = os.path.exists(argument) and not os.path.isdir(argument)
    if argument != "-" and not argument.startswith("@") and is_file:
        return read_file(argument)
    return read_input(argument)


def _title(store: Store, type_id: str) -> str:
    """A schema's title, or what it is by type."""
    try:
        schema = store.type(type_id).schema
    except (NotFound, UsageError):
        return "(not stored)"
    return str(schema.get("title") or schema.get("description") or schema.get("type") or "")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _duration(text: str) -> int:
    """Milliseconds of 90s, 30m, 1h, 2d, or 0."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    if text == "0":
        return 0
    if text[-1:] not in units or not text[:-1].isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 1h, 2d or 0")
    return int(text[:-1]) * units[text[-1]]


# -- the table --


def _common(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


def _one_node(parser: ArgumentParser) -> None:
    parser.add_argument("node", metavar="ID", help="an id, or an unambiguous beginning of one")
    _common(parser)


def _get_arguments(parser: ArgumentParser) -> None:
    _one_node(parser)
    parser.add_argument("--timestamp", action="store_true", help="also print when it was first put")


def _put_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("type", metavar="TYPE", help="the id of a schema, or @ocas/string and the like")
    parser.add_argument("data", metavar="DATA", help="JSON, or a file of it; - reads standard input")
    _common(parser)


def _put_text_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the text; @FILE reads a file, - standard input")
    _common(parser)


def _walk_arguments(parser: ArgumentParser) -> None:
    _one_node(parser)
    parser.add_argument("--types", action="store_true", help="follow each node's type as well")
    parser.add_argument("--limit", type=_positive, metavar="N", help="stop after N nodes")


def _verify_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("nodes", metavar="ID", nargs="*", help="only these nodes (default: everything)")
    _common(parser)


def _gc_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--delete", action="store_true", help="remove them; without it nothing is changed")
    parser.add_argument(
        "--grace",
        type=_duration,
        default=3_600_000,
        metavar="TIME",
        help="spare what was put since, e.g. 90s, 30m, 1h (default), 2d",
    )
    parser.add_argument(
        "--force", action="store_true", help="remove although something in use refers to what is not stored"
    )
    _common(parser)


def _export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a new file (.tgz compresses), or a folder (ends in /)")
    parser.add_argument("nodes", metavar="ID", nargs="*", help="only what is reachable from these")
    _add_keep_going(parser)
    _common(parser)


def _add_keep_going(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--keep-going", action="store_true", help="take the intact nodes when some are damaged (exit code 4)"
    )


def _import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a bundle, or a folder in the files layout")
    parser.add_argument(
        "--repair", action="store_true", help="replace nodes that are damaged here and intact there"
    )
    _add_keep_going(parser)
    _common(parser)


def _schema_get_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "type", metavar="TYPE", help="an id or a beginning of one, or @ocas/string and the like"
    )
    _common(parser)


def _schema_put_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "schema", metavar="FILE", help="a file of JSON, - for standard input, or the JSON itself"
    )
    _common(parser)


VERBS = {
    "get": Verb(
        _get,
        "print a node",
        "rolecall cas get 95ST8MZ0QTKP9\nrolecall cas get 95ST --timestamp",
        _get_arguments,
    ),
    "put": Verb(
        _put,
        "store a JSON payload under a type",
        "rolecall cas put @ocas/object '{\"a\": 1}'",
        _put_arguments,
    ),
    "put-text": Verb(
        _put_text,
        "store a text",
        "rolecall cas put-text hello\ngit diff | rolecall cas put-text -",
        _put_text_arguments,
    ),
    "has": Verb(
        _has, "tell whether a node is stored (exit code 1: no)", "rolecall cas has 95ST8MZ0QTKP9", _one_node
    ),
    "refs": Verb(_refs, "list the ids a node refers to", "rolecall cas refs 25FJMAAD4ZDV5", _one_node),
    "walk": Verb(
        _walk,
        "list everything reachable from a node",
        "rolecall cas walk 25FJMAAD4ZDV5 --types",
        _walk_arguments,
    ),
    "reindex": Verb(_reindex, "rebuild everything derived from the nodes", "rolecall cas reindex", _common),
    "verify": Verb(
        _verify,
        "check nodes against their ids, types and references",
        "rolecall cas verify",
        _verify_arguments,
    ),
    "gc": Verb(
        _gc,
        "find nodes that nothing refers to, and remove them on request",
        "rolecall cas gc\nrolecall cas gc --delete",
        _gc_arguments,
    ),
    "stats": Verb(_stats, "print figures about the store", "rolecall cas stats", _common),
    "export": Verb(
        _export,
        "write everything, or a part, to a bundle or a folder",
        "rolecall cas export backup.tgz\nrolecall cas export part.tar 25FJ",
        _export_arguments,
    ),
    "import": Verb(
        _import,
        "take over a bundle or a folder",
        "rolecall cas import backup.tgz\nrolecall cas import ~/.uncaged/workflow",
        _import_arguments,
    ),
    "schema list": Verb(_schema_list, "list the types", "rolecall cas schema list", _common),
    "schema get": Verb(
        _schema_get, "print a schema", "rolecall cas schema get @ocas/string", _schema_get_arguments
    ),
    "schema put": Verb(
        _schema_put,
        "register a JSON Schema as a type",
        "rolecall cas schema put person.json\nrolecall cas schema put - < person.json",
        _schema_put_arguments,
    ),
}
