"""The recorded files of a store's steps. They are collected and verified together with the nodes that name them, and
can be written to bundles."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rolecall.errors import Damaged
from rolecall.files import tree_keep, tree_pack
from rolecall.files.snapshot import load_tree
from rolecall.files.tree_keep import Collected
from rolecall.store import canonical
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import node_id
from rolecall.store.store import META, Store
from rolecall.store.verify import Fault
from rolecall.threads.compose import trees_of
from rolecall.threads.state import attempt_name, group_name, read_threads
from rolecall.threads.thread import ATTEMPT_SCHEMAS, RECORD_SCHEMAS, TREE_SCHEMA


def collect(store: Store, *, delete: bool, grace_ms: int) -> Collected:
    """Find the trees that no step, attempt or running thread names, and remove them if `delete` is true. Keep trees
    that were recorded within the grace time."""
    before = time.time() - grace_ms / 1000  # by this machine's clock, which also sets the times of files
    return tree_keep.collect(trees_of(store).place, name_trees(store), before=before, delete=delete)


def verify(store: Store) -> list[Fault]:
    """Return a fault for each incomplete tree that a step names. In a store that several machines share, a tree that is
    missing entirely counts as being on another machine."""
    named, place = name_trees(store, skip_damaged=True), trees_of(store).place
    return [
        Fault(named[lost.repository][lost.tree], "files", f"names the tree {lost.tree[:12]}: {lost.text}")
        for lost in tree_keep.find_lost(place, named)
        if not store.is_shared or tree_pack.has_tree(place, lost.repository, lost.tree)
    ]


def add_to_bundle(store: Store, target: Store, folder: str) -> list[Fault]:
    """Write the files named by the steps of a bundle into the bundle's folder. Return a fault for each tree whose files
    are not on this machine."""
    named = name_trees(target, skip_damaged=True)
    return [
        Fault(named[lost.repository][lost.tree], "files", f"without the tree {lost.tree[:12]}: {lost.text}")
        for lost in tree_keep.write_bundle(trees_of(store).place, named, folder)
    ]


def take_from_bundle(store: Store, folder: str) -> None:
    """Import the files of a bundle."""
    tree_keep.read_bundle(trees_of(store).place, folder)


def name_trees(store: Store, *, skip_damaged: bool = False) -> dict[str, dict[str, str]]:
    """Return the trees that steps, attempts and running threads name, by repository. Map each tree to a node or ref
    that names it."""
    named: dict[str, dict[str, str]] = {}
    for name, stored in _stored_trees(store, skip_damaged=skip_damaged):
        try:
            tree = load_tree(stored)
        except Damaged:
            if not skip_damaged:
                raise
            continue
        for snapshot in (tree.found, tree.left) if tree else ():
            named.setdefault(snapshot.repository, {}).setdefault(snapshot.tree, name)
    return named


def _stored_trees(store: Store, *, skip_damaged: bool) -> Iterator[tuple[str, JsonObject | None]]:
    for ref in (*store.refs(attempt_name("")), *store.refs(group_name(""))):
        yield ref.name, ref.state.get("tree")
    # A fork at the start begins with files that only its source thread names, and that it may not have copied yet.
    for one in read_threads(store):
        for folder in one.state.folders.values():
            if folder.files and not folder.is_removed:
                yield one.ref.name, {"found": folder.files.tree, "repository": folder.files.repository}
    with_tree = (
        one for one in (*RECORD_SCHEMAS, *ATTEMPT_SCHEMAS, TREE_SCHEMA) if "tree" in one["properties"]
    )
    for schema in with_tree:
        for node in store.of_type(node_id(META, canonical.encode(schema))):
            try:
                yield node, store.get(node).payload.get("tree")
            except Damaged:
                if not skip_damaged:
                    raise
