"""Workflows in the store: putting them, finding them by name, path or id, loading them to be played.

A workflow is a node; `workflow/<name>` points at its current version and keeps the older ones in its
history. A name is looked for as an id, as a path, in the project's folders, then in the registry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import NotFound, UsageError
from rolecall.ids import is_node_id
from rolecall.store.store import Draft, Store

if TYPE_CHECKING:
    from rolecall.playbook import Playbook

FOLDERS = (".workflows", "workflows")
ENDINGS = (".yaml", ".yml", ".py")


class Found(NamedTuple):
    """Where a workflow was found: a stored node, or a file that is yet to be put."""

    node: str | None
    path: str | None


class Entry(NamedTuple):
    name: str
    node: str | None
    path: str | None
    origin: str


def ref_name(name: str) -> str:
    return f"workflow/{name}"


# -- putting --


def add_workflow(draft: Draft, playbook: Playbook) -> str:
    """Add a workflow and its roles' schemas to a draft; its id."""
    from rolecall.workflow import WORKFLOW_SCHEMA, to_payload

    ids = {name: draft.put_schema(dict(role.schema)) for name, role in playbook.workflow.roles.items()}
    return draft.put_as(WORKFLOW_SCHEMA, to_payload(playbook.workflow, ids))


def register(store: Store, playbook: Playbook) -> str:
    """Put a workflow and make it the current version of its name."""
    draft = store.draft()
    node = add_workflow(draft, playbook)
    ref = store.ref(ref_name(playbook.workflow.name))
    if ref is None or ref.target != node:
        draft.move(ref_name(playbook.workflow.name), ref, node, {"version": playbook.workflow.version})
    draft.commit(durable=True)
    return node


# -- finding --


def find(store: Store, text: str, *, folder: str) -> Found:
    """The workflow that `text` names; `NotFound` says where was looked."""
    if not text:
        raise UsageError("a workflow needs a name, a path or an id")
    if is_node_id(text) and store.has(text):
        return Found(text, None)
    if "/" in text or text.endswith(ENDINGS):
        return Found(None, _file(os.path.join(folder, os.path.expanduser(text))))
    for path in project_files(folder):
        if _name_of(path) == text:
            return Found(None, path)
    ref = store.ref(ref_name(text)) if _is_name(text) else None
    if ref is not None:
        return Found(ref.target, None)
    raise _unknown(store, text, folder)


def _file(path: str) -> str:
    for candidate in (
        path,
        os.path.join(path, "index.yaml"),
        os.path.join(path, "index.yml"),
        os.path.join(path, "index.py"),
    ):
        if os.path.isfile(candidate):
            return os.path.realpath(candidate)
    raise NotFound(
        f"there is no workflow file {path}",
        hint="`rolecall workflow list` shows the workflows that are known here.",
    )


def project_files(folder: str) -> Iterator[str]:
    """Workflow files of the project: nearest folder first, up to the repository's root."""
    folder = os.path.abspath(folder)
    while True:
        for name in FOLDERS:
            yield from _files_in(os.path.join(folder, name))
        parent = os.path.dirname(folder)
        if os.path.exists(os.path.join(folder, ".git")) or parent == folder:
            return
        folder = parent


def _files_in(folder: str) -> Iterator[str]:
    if not os.path.isdir(folder):
        return
    names = sorted(os.listdir(folder))
    for ending in ENDINGS:
        for name in names:
            if name.endswith(ending) and os.path.isfile(os.path.join(folder, name)):
                yield os.path.join(folder, name)
    for name in names:
        for ending in ENDINGS:
            index = os.path.join(folder, name, "index" + ending)
            if os.path.isfile(index):
                yield index


def _name_of(path: str) -> str:
    stem = os.path.splitext(os.path.basename(path))[0]
    return os.path.basename(os.path.dirname(path)) if stem == "index" else stem


def listed(store: Store | None, *, folder: str) -> list[Entry]:
    """Every workflow that can be named here, the project's own first; a nearer one hides a farther one."""
    entries: dict[str, Entry] = {}
    for path in project_files(folder):
        entries.setdefault(_name_of(path), Entry(_name_of(path), None, path, "local"))
    for ref in store.refs("workflow/") if store else ():
        name = ref.name.partition("/")[2]
        entries.setdefault(name, Entry(name, ref.target, None, "global"))
    return list(entries.values())


def _is_name(text: str) -> bool:
    return all(character.isalnum() or character in "-_." for character in text)


def _unknown(store: Store, text: str, folder: str) -> NotFound:
    from difflib import get_close_matches

    names = [entry.name for entry in listed(store, folder=folder)]
    close = get_close_matches(text, names, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    known = f"Known here: {', '.join(names)}." if names else "None is known here yet."
    return NotFound(
        f"there is no workflow {text!r}", hint=f"{guess}{known} A file is named by its path: ./{text}.yaml"
    )


# -- loading --


def load_file(path: str) -> Playbook:
    """A workflow file as a playbook; every problem of it in one error."""
    from rolecall.playbook import Playbook

    if path.endswith(".py"):
        from rolecall.authoring import load_python

        return load_python(path)
    from rolecall.definition import load_file as load_yaml

    definition = load_yaml(path)
    errors = [problem for problem in definition.problems if problem.severity == "error"]
    if errors or definition.workflow is None:
        listed = "".join(f"\n  {problem}" for problem in errors)
        raise UsageError(f"{path} has {len(errors)} problem{'s' if errors[1:] else ''}:{listed}")
    return Playbook(definition.workflow)


def load_node(store: Store, node: str) -> Playbook:
    """A stored workflow as a playbook; one written in Python is loaded from its file again."""
    from rolecall.playbook import Playbook
    from rolecall.workflow import from_payload, schema_ids_of

    payload: dict[str, Any] = store.get(node).payload
    ids = schema_ids_of(payload)
    workflow = from_payload(payload, {schema: store.get(schema).payload for schema in ids.values()})
    if workflow.python is None:
        return Playbook(workflow, schema_ids=ids)
    from rolecall.authoring import load_python

    return load_python(workflow.python, expected=workflow, schema_ids=ids)
