"""`rolecall workflow`: put, show, check, draw and compare workflows."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.cli import Reply, argument, flag, verb
from rolecall.cli.hints import word, word_problem
from rolecall.cli.output import STORE, colored, colored_diff, format_of, plural, say, table
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.settings import config
from rolecall.settings.yaml12 import Problem
from rolecall.store.ids import Node
from rolecall.threads import workspace
from rolecall.workflow import registry, yaml
from rolecall.workflow.model import Workflow
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.registry import Checked, Entry

if TYPE_CHECKING:
    from rolecall.store.store import Store

LOCAL = "(local)"
"""Shown instead of an id for a workflow that is a file of the project."""

_PICTURES = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid"}
_WORKFLOW = argument("workflow", "WORKFLOW", "an id, a path, or a name here or in the registry")


class Chosen(NamedTuple):
    """The workflow that an argument names."""

    workflow: Workflow
    node: Node
    path: str | None


class Finder:
    """Finds workflows in the current folder and, if there is one, in the store."""

    def __init__(self, options: Namespace) -> None:
        self._address = options.store

    @cached_property
    def store(self) -> Store | None:
        return workspace.store_if_any(self._address)

    def __enter__(self) -> Finder:
        return self

    def __exit__(self, *_: object) -> None:
        if "store" in self.__dict__ and self.store is not None:
            self.store.close()

    def find(self, text: str) -> registry.Found:
        name = _as_path(text)
        # Opening a store takes longer than checking a file.
        return registry.find(None if registry.is_path(name) else self.store, name, folder=os.getcwd())

    def choose(self, text: str) -> Chosen:
        found = self.find(text)
        if found.path is None:
            return self.load(str(found.node))
        playbook = registry.load_file(found.path)
        node = registry.stored_form(playbook)
        if self.store is not None and self.store.has(node.id):
            node = node._replace(created=self.store.get(node.id).created)
        return Chosen(playbook.workflow, node, found.path)

    def load(self, node: str) -> Chosen:
        if self.store is None:
            raise NotFound(f"there is no workflow {node}")
        return Chosen(registry.read_node(self.store, node)[0], registry.workflow_node(self.store, node), None)

    def playbook(self, text: str) -> Playbook:
        """Load the workflow that `text` names, with its Python functions."""
        found = self.find(text)
        if found.path is not None:
            return registry.load_file(found.path)
        if self.store is None:
            raise NotFound(f"there is no workflow {text!r}")
        return registry.load_node(self.store, str(found.node))


def _as_path(text: str) -> str:
    """Add `./` to the plain name of a file in this folder, whatever its suffix."""
    return f"./{text}" if "/" not in text and "." in text and os.path.isfile(text) else text


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


# -- put, show, list --


@verb(
    "workflow put",
    "check a workflow and make it the current version of its name",
    "rolecall workflow put workflows/solve-issue.yaml",
    argument("file", "FILE", "a workflow in YAML or Python, or its folder"),
    STORE,
)
def put(options: Namespace) -> Reply | int:
    path = str(registry.find(None, _as_path(options.file), folder=os.getcwd()).path)
    checked = registry.check_file(path)
    for problem in checked.problems:
        say(str(word_problem(problem)), sys.stderr)
    if checked.playbook is None:
        count = sum(problem.severity == "error" for problem in checked.problems)
        text = f"{path} has {plural(count, 'problem')}; nothing was stored"
        say(f"{colored('rolecall:', 'red')} {text}", sys.stderr)
        return 2
    with workspace.open_store(options.store) as store:
        node = registry.register(store, checked.playbook)
    name = checked.playbook.workflow.name
    return Reply({"name": name, "hash": node}, f"{name} {node}")


@verb(
    "workflow show",
    "print a workflow",
    "rolecall workflow show solve-issue\nrolecall workflow show solve-issue --yaml > solve-issue.yaml",
    _WORKFLOW,
    flag("--yaml", "print YAML that can be edited and put again"),
    STORE,
)
def show_workflow(options: Namespace) -> Reply | None:
    from rolecall.workflow.document import to_document, to_yaml  # not needed for listing, like those below

    with Finder(options) as finder:
        workflow, node, path = finder.choose(options.workflow)
    if options.yaml:
        if workflow.python is not None:
            raise UsageError(
                f"{workflow.name} is written in Python, so it has no YAML",
                hint=f"It is defined in {workflow.python}.",
            )
        print(to_yaml(workflow), end="")
        return None
    shown = {
        "hash": node.id,
        "name": workflow.name,
        "type": node.type,
        # JSON shows it as stored; other formats are for people and show the schemas in full.
        "payload": node.payload if format_of(options) == "json" else to_document(workflow),
        "timestamp": node.created or None,
        "origin": "local" if path else "global",
        "path": path,
    }
    where = f"file {path}" if path else f"put {_time(node.created)}"
    return Reply(shown, lambda: f"# {node.id}, {where}\n{to_yaml(workflow)}".rstrip())


@verb(
    "workflow list", "list the workflows of the project and of the registry", "rolecall workflow list", STORE
)
def list_workflows(options: Namespace) -> Reply | None:
    rows = []
    with Finder(options) as finder:
        store = finder.store
        for entry in registry.listed(store, folder=os.getcwd()):
            rows.append(
                {
                    "name": entry.name,
                    "hash": entry.node or LOCAL,
                    "origin": entry.origin,
                    "path": entry.path,
                    "description": _description(store, entry),
                    "versions": len(store.history(registry.ref_name(entry.name))) if store else 0,
                }
            )
    if not rows and format_of(options) == "text":
        say("There are no workflows here. `rolecall workflow put FILE` adds one.", sys.stderr)
        return None
    headings = ("name", "hash", "origin", "versions", "description")
    return Reply(rows, lambda: table([[row[key] for key in headings] for row in rows], headings))


def _description(store: Store | None, entry: Entry) -> str | None:
    """Return a workflow's description or its error; None for Python, because a listing runs no code."""
    try:
        if entry.path is None:
            found = registry.workflow_node(store, entry.node).payload if store and entry.node else {}
            return str(found.get("description", ""))
        if entry.path.endswith(".py"):
            return None
        workflow = yaml.load_file(entry.path).workflow
        return workflow.description if workflow else "(does not validate)"
    except RolecallError as error:
        return f"({error.message})"


# -- validate --


@verb(
    "workflow validate",
    "report everything that is wrong with workflows; nothing is stored",
    "rolecall workflow validate solve-issue.yaml\nrolecall workflow validate",
    argument("workflows", "WORKFLOW", "files or names (default: all of the project)", nargs="*"),
    STORE,
)
def validate(options: Namespace) -> Reply:
    names = options.workflows or list(registry.project_files(os.getcwd()))
    if not names:
        raise UsageError(
            "there is no workflow in this project",
            hint="Name a file, or put one into the folder `workflows`.",
        )
    with Finder(options) as finder:
        reports = [_check(finder, name) for name in names]
    is_valid = all(report["valid"] for report in reports)
    text = "\n".join(line for report in reports for line in _report_lines(report))
    return Reply(reports, text, code=0 if is_valid else 2)


def _check(finder: Finder, text: str) -> dict[str, Any]:
    from rolecall.checks import agents  # imports every adapter, which no other verb needs

    try:
        found = finder.find(text)
        file = found.path or str(found.node)
        checked = registry.check_file(file) if found.path else _check_stored(finder.store, file)
    except RolecallError as error:
        problem = Problem("error", error.message, text, 1, 1, word(error.hint))
        return {"file": text, "name": None, "hash": None, "valid": False, "problems": [problem._asdict()]}
    problems, book = list(checked.problems), checked.playbook
    if book is not None:
        settings, env = config.load(), config.environment()
        problems += agents.problems(
            book, file, settings=settings, env=env, find=finder.playbook, marks=checked.marks
        )
    return {
        "file": file,
        "name": book.workflow.name if book else None,
        "hash": registry.stored_form(book).id if book else None,
        "valid": all(problem.severity != "error" for problem in problems),
        "problems": [
            problem._asdict() | {"line": problem.line or None, "column": problem.column or None}
            for problem in map(word_problem, problems)
        ],
    }


def _check_stored(store: Store | None, node: str) -> Checked:
    """Check a stored workflow by the current rules; lines are those of `workflow show --yaml`."""
    from rolecall.workflow.document import to_yaml

    if store is None:
        raise NotFound(f"there is no workflow {node}")
    workflow, _ = registry.read_node(store, node)
    if workflow.python is not None:
        return Checked(registry.load_node(store, node), ())
    found = yaml.parse(to_yaml(workflow), source=node)
    return Checked(Playbook(workflow) if found.workflow else None, found.problems, found.marks)


def _report_lines(report: dict[str, Any]) -> Iterator[str]:
    problems = [Problem(**problem) for problem in report["problems"]]
    for one in problems:  # a problem outside the definition has no line
        yield str(one) if one.line else str(one).replace(":None:None:", ":", 1)
    counts = {kind: sum(one.severity == kind for one in problems) for kind in ("error", "warning")}
    found = ", ".join(plural(count, kind) for kind, count in counts.items() if count)
    yield f"{report['file']}: {'valid' if report['valid'] else 'not valid'}{f' ({found})' if found else ''}"


# -- graph, schema, history, diff --


@verb(
    "workflow graph",
    "draw a workflow",
    "rolecall workflow graph solve-issue\nrolecall workflow graph solve-issue -o solve-issue.svg",
    _WORKFLOW,
    argument(
        "--as",
        None,
        "default: by the ending of the file, else text",
        dest="picture",
        choices=("text", "svg", "mermaid"),
    ),
    argument("-o --output", "FILE", "write it to a file: .svg, .mmd, .txt"),
    STORE,
)
def draw_graph(options: Namespace) -> Reply | None:
    from rolecall.workflow import draw

    with Finder(options) as finder:
        workflow = finder.choose(options.workflow).workflow
    if not workflow.graph:
        raise UsageError(
            f"{workflow.name} has no graph to draw: its moderator is a Python function",
            hint="`rolecall thread steps THREAD` shows the way a thread took.",
        )
    ending = os.path.splitext(options.output or "")[1]
    kind = options.picture or _PICTURES.get(ending, "text")
    drawn = {"text": draw.to_text, "svg": draw.to_svg, "mermaid": draw.to_mermaid}[kind](workflow)
    if not options.output:
        return Reply({"as": kind, "graph": drawn}, drawn.rstrip("\n"))
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(drawn)
    if format_of(options) != "text":
        return Reply({"as": kind, "file": options.output})
    print(f"{options.output} written", file=sys.stderr)
    return None


@verb(
    "workflow schema",
    "print the JSON Schema of a workflow's YAML, or of rolecall.yaml, for editors",
    "rolecall workflow schema > .schemas/workflow.schema.json\n"
    "rolecall workflow schema project > .schemas/project.schema.json",
    argument(
        "of",
        None,
        "which file (default: a workflow)",
        choices=("workflow", "project"),
        nargs="?",
        default="workflow",
    ),
)
def print_schema(options: Namespace) -> Reply:
    from rolecall.service import project_file

    return Reply(project_file.json_schema() if options.of == "project" else yaml.json_schema())


@verb(
    "workflow history",
    "list the versions of a workflow, newest first",
    "rolecall workflow history solve-issue",
    argument("name", "NAME", "the name of a workflow that has been put"),
    STORE,
)
def list_versions(options: Namespace) -> Reply:
    with Finder(options) as finder:
        versions = registry.history(finder.store, options.name) if finder.store else []
    if not versions:
        raise NotFound(
            f"no workflow {options.name!r} has been put",
            hint="`rolecall workflow list` shows what there is; `workflow put FILE` adds a version.",
        )
    rows = [
        {"hash": one.node, "timestamp": one.at, "version": one.version, "current": one.is_current}
        for one in versions
    ]
    cells = [(_time(one.at), one.node, one.version, "current" if one.is_current else "") for one in versions]
    return Reply(rows, table(cells, ("put", "hash", "version", "")))


@verb(
    "workflow diff",
    "show how two versions of a workflow differ",
    "rolecall workflow diff solve-issue.yaml\nrolecall workflow diff 3J5PZ3D1X8Q2M solve-issue",
    argument("first", "A", "an id, a path or a name"),
    argument(
        "second",
        "B",
        "what to compare it with (default: a file with the version that was put, else the version before)",
        nargs="?",
    ),
    STORE,
)
def compare(options: Namespace) -> Reply:
    from rolecall.workflow.document import changes, diff

    with Finder(options) as finder:
        before, after = _choose_two(finder, options)
    found = changes(before.workflow, after.workflow)
    names = tuple(one.path or f"{one.workflow.name} {one.node.id}" for one in (before, after))
    text = diff(before.workflow, after.workflow, names=(names[0], names[1]))
    sides = [{"name": one.workflow.name, "hash": one.node.id, "path": one.path} for one in (before, after)]
    shown = {
        "from": sides[0],
        "to": sides[1],
        "same": before.node.id == after.node.id,
        "changes": [{**change._asdict(), "fields": list(change.fields)} for change in found],
        "diff": text,
    }
    summary = "\n".join(map(str, found)) or "the same"
    return Reply(shown, f"{summary}\n\n{colored_diff(text)}".rstrip())


def _choose_two(finder: Finder, options: Namespace) -> tuple[Chosen, Chosen]:
    """Return the two workflows to compare, the older first: both by name, or one and the registered version."""
    first = finder.choose(options.first)
    if options.second is not None:
        return first, finder.choose(options.second)
    name = first.workflow.name
    versions = registry.history(finder.store, name) if finder.store else []
    if first.path is not None and versions:
        return finder.load(versions[0].node), first
    others = [version.node for version in versions if version.node != first.node.id]
    if not others:
        raise NotFound(
            f"there is no other version of {name!r} to compare with",
            hint="Name two workflows, or put this one first.",
        )
    if versions[0].node != first.node.id:
        return first, finder.load(versions[0].node)
    return finder.load(others[0]), first
