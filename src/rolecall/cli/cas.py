"""`rolecall cas`: commands for the content-addressed store."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.output import (
    STORE,
    between,
    format_of,
    parse_json,
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

_NODE = argument("node", "ID", "an id, or enough of its first characters")


def _type_id(store: Store, text: str) -> str:
    return _ALIASES.get(text) or BUILTIN.get(text) or store.resolve(text)


def _read_data(argument: str) -> Any:
    """Parse JSON, or read it from where the argument says: `-`, `@FILE`, or the plain name of a file or a pipe."""
    is_file = os.path.exists(argument) and not os.path.isdir(argument)
    is_marked = argument == "-" or argument.startswith("@")
    return parse_json(read_file(argument) if is_file and not is_marked else read_input(argument))


@verb(
    "cas get",
    "print a node",
    "rolecall cas get 95ST8MZ0QTKP9\nrolecall cas get 95ST --timestamp",
    _NODE,
    flag("--timestamp", "also print when it was first put"),
    STORE,
)
def get(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store:
        node = store.get(store.resolve(options.node))
    shown = {"type": node.type, "payload": node.payload}
    return CommandResult({**shown, "timestamp": node.created} if options.timestamp else shown)


@verb(
    "cas put",
    "store a JSON payload under a type",
    "rolecall cas put @ocas/object '{\"a\": 1}'",
    argument("type", "TYPE", "the id of a schema, or @ocas/string and the like"),
    argument("data", "DATA", "JSON, or a JSON file; - reads standard input"),
    STORE,
)
def put(options: Namespace) -> CommandResult:
    payload = _read_data(options.data)
    with open_store(options.store) as store:
        node = store.put(_type_id(store, options.type), payload, durable=True)
    return CommandResult({"hash": node}, node)


@verb(
    "cas put-text",
    "store a text",
    "rolecall cas put-text hello\ngit diff | rolecall cas put-text -",
    argument("text", "TEXT", "the text; @FILE reads a file, - standard input"),
    STORE,
)
def put_text(options: Namespace) -> CommandResult:
    text = read_input(options.text)
    with open_store(options.store) as store:
        node = store.put_text(text, durable=True)
    return CommandResult({"hash": node}, node)


@verb(
    "cas has",
    "check whether a node is stored (exit code 1: no)",
    "rolecall cas has 95ST8MZ0QTKP9",
    _NODE,
    STORE,
)
def has(options: Namespace) -> CommandResult:
    try:
        with open_store(options.store, create=False) as store:
            exists = store.has(store.resolve(options.node))
    except NotFound:
        exists = False
    return CommandResult({"exists": exists}, "yes" if exists else "no", code=0 if exists else 1)


@verb("cas refs", "list the ids a node refers to", "rolecall cas refs 25FJMAAD4ZDV5", _NODE, STORE)
def list_refs(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store:
        refs = list(store.refs_of(store.resolve(options.node)))
    return CommandResult({"refs": refs}, refs)


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
    with open_store(options.store, create=False) as store:
        root = store.resolve(options.node)
        store.get(root)  # a missing node is an error, not a reply
        try:
            for visit in store.walk(root, follow_types=options.types, limit=options.max):
                if isinstance(visit, Dangling):
                    dangling.append({"id": visit.id, "referrer": visit.referrer})
                else:
                    found.append(visit)
        except Damaged as error:
            damage = error  # raised after the reply has been printed
    show(options, {"hashes": found, **({"dangling": dangling} if dangling else {})}, "\n".join(found))
    if format_of(options) == "text":
        for one in dangling:
            warn(f"{one['referrer']} refers to {one['id']}, which is not stored")
    if damage:
        raise damage


@verb("cas stats", "print figures about the store", "rolecall cas stats", STORE)
def stats(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store:
        size = store.backend.size()
        types = [
            {"id": type_id, "title": _title(store, type_id), "nodes": nodes}
            for type_id, nodes in size["types"].items()
        ]
    head = (
        f"{size['nodes']:,} nodes with {size['bytes']:,} bytes, {size['refs']:,} refs, "
        f"{size['events']:,} events; {size['disk']:,} bytes on disk"
    )
    rows = [(one["nodes"], one["id"], one["title"]) for one in types]
    return CommandResult({**size, "types": types}, f"{head}\n\n{table(rows, ('nodes', 'type', 'title'))}")


@verb("cas schema list", "list the types", "rolecall cas schema list", STORE)
def list_schemas(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store:
        found = [{"hash": node, "title": _title(store, node)} for node in store.of_type(META)]
    return CommandResult(found, table([(row["hash"], row["title"]) for row in found], ("type", "title")))


@verb(
    "cas schema get",
    "print a schema",
    "rolecall cas schema get @ocas/string",
    argument("type", "TYPE", "an id, the first characters of an id, or a name such as @ocas/string"),
    STORE,
)
def get_schema(options: Namespace) -> CommandResult:
    with open_store(options.store, create=False) as store:
        return CommandResult(store.type(_type_id(store, options.type)).schema)


@verb(
    "cas schema put",
    "register a JSON Schema as a type",
    "rolecall cas schema put person.json\nrolecall cas schema put - < person.json",
    argument("schema", "FILE", "a JSON file, - for standard input, or the JSON itself"),
    STORE,
)
def put_schema(options: Namespace) -> CommandResult:
    schema = _read_data(options.schema)
    with open_store(options.store) as store:
        node = store.put_schema(schema, durable=True)
    return CommandResult({"hash": node}, node)


def _title(store: Store, type_id: str) -> str:
    try:
        schema = store.type(type_id).schema
    except (NotFound, UsageError):
        return "(not stored)"
    return str(schema.get("title") or schema.get("description") or schema.get("type") or "")
