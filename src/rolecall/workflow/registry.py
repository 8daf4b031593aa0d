"""Workflows in the store: storing them, finding them by name, path or id, and loading them.

A workflow is a node. The ref `workflow/<name>` points to the current version of the workflow, and the history of the
ref contains the older versions. A name is looked up first as an id, then as a path, in the project's folders, in the
registry and in the gallery.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Conflict, Hint, NotFound, UsageError
from rolecall.settings.form import did_you_mean
from rolecall.settings.repository import root_around
from rolecall.settings.yaml12 import Marks, Problem, refusal
from rolecall.store import canonical
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import META, Node, is_node_id, node_id
from rolecall.store.lazy import Module
from rolecall.workflow import gallery
from rolecall.workflow.model import SCHEMAS, StoredWorkflow, from_payload, schema_ids_of, to_payload, type_of
from rolecall.workflow.places import ENDINGS, FOLDERS, LOCK, PACKS, name_of, places_around
from rolecall.workflow.playbook import Playbook

if TYPE_CHECKING:  # a workflow file is checked without a store
    from rolecall.store.store import Draft, Store
    from rolecall.workflow import pack, python, yaml
else:
    pack = Module("rolecall.workflow.pack")  # imports a YAML reader, and most projects have no packs
    # A stored workflow runs without the parser and the checks.
    python = Module("rolecall.workflow.python")
    yaml = Module("rolecall.workflow.yaml")

_ATTEMPTS = 20
_LIST_HINT = Hint("See the workflows that are known here", "list_workflows")


class Found(NamedTuple):
    """The place where a workflow was found: a stored node, or a file that is not stored yet."""

    node: str | None
    path: str | None


class WorkflowEntry(NamedTuple):
    name: str
    node: str | None
    path: str | None
    origin: str


class Version(NamedTuple):
    """One entry in the history of a name."""

    node: str
    at: int
    """When this version became the current version, in milliseconds."""
    version: str
    is_current: bool


class Checked(NamedTuple):
    """The playbook of a file, and the file's errors and warnings. The playbook is None if there is an error."""

    playbook: Playbook | None
    problems: tuple[Problem, ...]
    marks: Marks | None = None
    """The positions of all parts in a YAML file."""
    agents: tuple[Problem, ...] | None = None
    """The roles that no agent here can play, or None if this was not checked."""


def ref_name(name: str) -> str:
    return f"workflow/{name}"


# -- storing --


def add_workflow(draft: Draft, playbook: Playbook) -> str:
    """Add a workflow and the schemas of its roles to a draft, and return the workflow's id."""
    ids = {name: draft.put_schema(dict(role.schema)) for name, role in playbook.workflow.roles.items()}
    payload = to_payload(playbook.workflow, ids)
    return draft.put_as(type_of(payload), payload)


def keep(store: Store, playbook: Playbook) -> str:
    """Store a workflow without its name, and return its id. A workflow of the gallery is stored in this way, because
    its name means the file of the installed version."""
    draft = store.draft()
    node = add_workflow(draft, playbook)
    draft.commit()
    return node


def register(store: Store, playbook: Playbook) -> str:
    """Store a workflow as the current version of its name, and return its id. Retry if another process stores a version
    at the same time."""
    name = ref_name(playbook.workflow.name)
    for attempt in range(_ATTEMPTS):
        draft = store.draft()
        node = add_workflow(draft, playbook)
        ref = store.ref(name)
        if ref is None or ref.target != node:
            draft.move(name, ref, node, {"version": playbook.workflow.version})
        try:
            draft.commit(durable=True)
            break
        except Conflict:
            if attempt == _ATTEMPTS - 1:
                raise
    return node


def compute_node(playbook: Playbook) -> Node:
    """Return the node that a workflow would be stored as, without storing it."""
    roles = playbook.workflow.roles
    ids = {name: node_id(META, canonical.encode(dict(role.schema))) for name, role in roles.items()}
    payload = to_payload(playbook.workflow, ids)
    type_id = node_id(META, canonical.encode(type_of(payload)))
    return Node(node_id(type_id, canonical.encode(payload)), type_id, payload, 0)


# -- finding --


def find(store: Store | None, text: str, *, folder: str) -> Found:
    """Find the workflow that `text` names, or raise `NotFound`. NAME@VERSION names a stored version of a name. Without
    a store, only files are found, including those of the gallery."""
    if not text:
        raise UsageError("a workflow needs a name, a path or an id")
    if store is not None and is_node_id(text) and store.has(text):
        return Found(text, None)
    if is_path(text):
        return Found(None, find_file(text, folder=folder))
    name, at, version = text.rpartition("@")
    if at:
        return Found(find_version(store, name, version), None)
    for path in project_files(folder):
        if name_of(path) == text:
            return Found(None, path)
    ref = store.ref(ref_name(text)) if store is not None and _is_name(text) else None
    if ref is not None:
        return Found(ref.target, None)
    if bundled := gallery.path_of(text):
        return Found(None, bundled)
    if store is not None and text == text.upper() and not is_node_id(text):
        # The text may be the beginning of an id: ids are in upper case, and names are in lower case.
        try:
            return Found(store.resolve(text), None)
        except NotFound:
            pass
        except UsageError as exc:
            if "several" in exc.message:
                raise
    names = [entry.name for entry in list_entries(store, folder=folder)]
    known = did_you_mean(text, [*names, *gallery.names()], what="Known")
    before = f"{known} A file is named by its path, such as ./{text}.yaml."
    hint = Hint("See those that come with Rolecall", "list_gallery", before=before)
    raise NotFound(f"there is no workflow {text!r}", hint=hint)


def is_path(text: str) -> bool:
    return "/" in text or text.endswith(ENDINGS)


def find_file(path: str, *, folder: str) -> str:
    """Find the workflow file at a path, or the index file of the folder at that path."""
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(path)))
    for candidate in (path, *(os.path.join(path, "index" + ending) for ending in ENDINGS)):
        if os.path.isfile(candidate):
            return candidate
    raise NotFound(f"there is no workflow file {path}", hint=_LIST_HINT)


def project_files(folder: str) -> Iterator[str]:
    """Yield the workflow files of the project, those in the nearest folder first, up to the root of the repository.
    Outside a repository, only the folder itself is searched, because the folders above it do not belong to the
    project."""
    folder = os.path.abspath(folder)
    root = root_around(folder) or folder
    while True:
        for parent in FOLDERS:
            place = os.path.join(folder, parent)
            # Names that begin with `.` or `_`, such as `__init__.py` and temporary files of editors, are not workflows.
            names = os.listdir(place) if os.path.isdir(place) else []
            names = sorted(name for name in names if not name.startswith((".", "_")))
            if parent == PACKS and LOCK in names:
                names.remove(LOCK)
            files = [name for ending in ENDINGS for name in names if name.endswith(ending)]
            files += [os.path.join(name, "index" + ending) for name in names for ending in ENDINGS]
            paths = (os.path.join(place, file) for file in files)
            yield from (path for path in paths if os.path.isfile(path))
        if folder == root:
            return
        folder = os.path.dirname(folder)


def files_by_name(folder: str) -> dict[str, str]:
    """Return the workflow file for each name in the project. A file nearer to `folder` hides a file farther away."""
    paths: dict[str, str] = {}
    for path in project_files(folder):
        paths.setdefault(name_of(path), path)
    return paths


def list_entries(store: Store | None, *, folder: str) -> list[WorkflowEntry]:
    """Return all workflows of the project and of the registry that can be started here, the project's own first."""
    entries = {name: WorkflowEntry(name, None, path, "local") for name, path in files_by_name(folder).items()}
    for ref in store.refs("workflow/") if store else ():
        name = ref.name.partition("/")[2]
        entries.setdefault(name, WorkflowEntry(name, ref.target, None, "global"))
    return list(entries.values())


def gallery_entries(hidden: Collection[str] = ()) -> list[WorkflowEntry]:
    """Return the workflows that come with Rolecall, except those whose names are taken."""
    names = (name for name in gallery.names() if name not in hidden)
    return [WorkflowEntry(name, None, gallery.path_of(name), "gallery") for name in names]


def history(store: Store, name: str) -> list[Version]:
    """Return the versions of a name, newest first."""
    versions = list[Version]()
    for move in reversed(store.history(ref_name(name)) if _is_name(name) else []):
        version = str(workflow_node(store, move.target).payload.get("version", ""))
        versions.append(Version(move.target, move.at, version, is_current=not versions))
    return versions


def find_version(store: Store | None, name: str, wanted: str, *, current: str = "") -> str:
    """Return the newest version of a name whose version string is `wanted`, or else the newest whose id begins with
    `wanted`. If `current` is given, PREVIOUS means the newest version that differs from it. Raise `NotFound` if there
    is no such version."""
    known = history(store, name) if store is not None else []
    if current and wanted.upper() == "PREVIOUS":
        chosen = [one.node for one in known if one.node != current]
    else:
        chosen = [one.node for one in known if wanted and one.version == wanted]
        chosen += [one.node for one in known if wanted and one.node.startswith(wanted.upper())]
    if not chosen:
        listed = ", ".join(dict.fromkeys(f"{name}@{one.version or one.node}" for one in known[:5]))
        raise NotFound(
            f"the workflow {name!r} has no version {wanted!r}{f' (newest versions: {listed})' if listed else ''}",
            hint=Hint("Put versions under their name, and list them", "workflow_history", workflow=name),
        )
    return chosen[0]


def _is_name(text: str) -> bool:
    return all(character.isalnum() or character in "-_." for character in text)


# -- loading --


def check_file(path: str, *, has_any_name: bool = False) -> Checked:
    """Load a workflow file and return it with all errors and warnings. With `has_any_name`, the name of the workflow
    can differ from that of the file."""
    if path.endswith(".py"):
        try:
            check_trust(path)  # loading the file runs its code
        except UsageError as error:
            return Checked(None, (Problem("error", error.message, path, 1, 1, error.hint),))
        playbook, problems = python.check_python(path, has_any_name=has_any_name)
        return Checked(playbook, tuple(problems))
    definition = yaml.load_file(path, has_any_name=has_any_name)
    workflow = definition.workflow
    playbook = Playbook(workflow) if workflow is not None else None
    return Checked(playbook, definition.problems, definition.marks)


def load_file(
    path: str, *, warn: Callable[[Problem], object] = lambda _: None, has_any_name: bool = False
) -> Playbook:
    """Load a workflow file to start threads of it. Raise a single error with all problems, or `Untrusted` if the file
    comes from a pack and nobody has allowed it. Pass warnings to `warn`. With `has_any_name`, the name of the workflow
    can differ from that of the file."""
    check_trust(path)
    return read_file(path, warn=warn, has_any_name=has_any_name)


def read_file(
    path: str, *, warn: Callable[[Problem], object] = lambda _: None, has_any_name: bool = False
) -> Playbook:
    """Read a workflow file like `load_file`, but only to look at it. A pack need not be allowed for this, unless the
    file is written in Python."""
    if path.endswith(".py"):
        check_trust(path)
    checked = check_file(path, has_any_name=has_any_name)
    if checked.playbook is not None:
        for problem in checked.problems:
            warn(problem)
        return checked.playbook
    raise refusal(path, checked.problems)


def check_trust(path: str) -> None:
    """Raise `Untrusted` if a file belongs to a workflow of a pack that nobody here has allowed."""
    if any(places_around(path)):
        pack.refuse_untrusted(path)


def is_own(path: str) -> bool:
    """Return whether a workflow file is the project's own, and comes neither from the gallery nor from a pack."""
    return not gallery.has_file(path) and pack.find_pinned(path) is None


def workflow_node(store: Store, node: str) -> Node:
    """Return the node of a stored workflow, in Rolecall's form or the predecessor's. Raise `UsageError` if the node is
    something else."""
    found = store.get(node)
    if isinstance(found.payload, dict) and {"name", "roles", "graph"} <= set(found.payload):
        return found
    raise UsageError(f"node {node} is not a workflow", hint=_LIST_HINT)


_live: dict[str, Playbook] = {}
"""The playbooks of workflow objects in this process, by the ids of their nodes."""


def remember(node: str, playbook: Playbook) -> str:
    """Remember the playbook of a stored workflow in this process, so that its functions need not be in a file. Return
    the workflow's id."""
    if playbook.workflow.python is not None:
        _live[node] = playbook
    return node


def load_node(store: Store, node: str) -> Playbook:
    """Load a stored workflow as a playbook. A workflow written in Python is loaded from its file again."""
    if node in _live:
        return _live[node]
    workflow, ids = read_node(store, node)
    if workflow.python is None:
        return Playbook(workflow, schema_ids=ids)
    check_trust(workflow.python.rpartition(":")[0])
    return python.load_python(workflow.python, expected=workflow, schema_ids=ids)


def python_files(store: Store) -> set[str]:
    """Return the addresses of all stored workflows that are written in Python."""
    types = [node_id(META, canonical.encode(schema)) for schema in SCHEMAS]
    payloads = (store.get(node).payload for type_id in types for node in store.of_type(type_id))
    return {payload["python"] for payload in payloads if "python" in payload}


def read_node(store: Store, node: str) -> tuple[StoredWorkflow, dict[str, str]]:
    """Return a stored workflow as a value, and the node of each role's schema."""
    payload: JsonObject = workflow_node(store, node).payload
    ids = schema_ids_of(payload)
    return from_payload(payload, {schema: store.get(schema).payload for schema in ids.values()}), ids
