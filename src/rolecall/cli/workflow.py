"""`rolecall workflow`: put, show, check, draw and compare workflows."""

from __future__ import annotations

import os
from argparse import Namespace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.hints import view_problem, word_problem
from rolecall.cli.output import STORE, color_diff, format_of, paint, plural, table, tell, write_file
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.settings.yaml12 import Problem
from rolecall.store.lazy import Module
from rolecall.workflow import gallery

if TYPE_CHECKING:
    from rolecall.service import project_file
    from rolecall.workflow import document, draw, yaml
else:  # listing workflows needs none of these modules
    document = Module("rolecall.workflow.document")
    draw = Module("rolecall.workflow.draw")
    project_file = Module("rolecall.service.project_file")
    yaml = Module("rolecall.workflow.yaml")

LOCAL = "(local)"
"""The text shown in place of an id for a workflow that is a file of the project."""

_PICTURES = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid"}
_WORKFLOW = argument("workflow", "WORKFLOW", "an id, a path, or a name here or in the registry")


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


@verb(
    "workflow put",
    "check a workflow and make it the current version of its name",
    "rolecall workflow put workflows/solve-issue.yaml",
    argument("file", "FILE", "a workflow in YAML or Python, or its folder"),
    STORE,
)
def put(options: Namespace) -> CommandResult | int:
    with Rolecall(options.store, is_lazy=True) as rolecall:
        path = rolecall.find_file(options.file)
        checked = rolecall.check(path)
        for problem in checked.problems:
            tell(str(word_problem(problem)))
        if checked.playbook is None:
            count = sum(problem.severity == "error" for problem in checked.problems)
            what = f"{path} has {plural(count, 'problem')}; nothing was stored"
            tell(f"{paint('rolecall:', 'red')} {what}")
            return 2
        name, node = checked.playbook.workflow.name, rolecall.put(path)
    return CommandResult({"name": name, "hash": node}, f"{name} {node}")


@verb(
    "workflow show",
    "print a workflow",
    "rolecall workflow show solve-issue\nrolecall workflow show solve-issue --yaml > solve-issue.yaml",
    _WORKFLOW,
    flag("--yaml", "print YAML that can be edited and put again"),
    STORE,
)
def show_workflow(options: Namespace) -> CommandResult | None:
    with reader(options.store) as rolecall:
        workflow, node, path = rolecall.define(options.workflow)
    if options.yaml:
        if workflow.python is not None:
            raise UsageError(
                f"{workflow.name} is written in Python, so it has no YAML",
                hint=f"It is defined in {workflow.python}.",
            )
        print(document.to_yaml(workflow), end="")
        return None
    shown = {
        "hash": node.id,
        "name": workflow.name,
        "type": node.type,
        # JSON shows the payload as it is stored. The other formats are for people and show the schemas in full.
        "payload": node.payload if format_of(options) == "json" else document.to_document(workflow),
        "timestamp": node.created or None,
        "origin": "gallery" if gallery.has_file(path) else "local" if path else "global",
        "path": path,
    }
    where = f"file {path}" if path else f"put {_time(node.created)}"
    return CommandResult(shown, lambda: f"# {node.id}, {where}\n{document.to_yaml(workflow)}".rstrip())


@verb(
    "workflow list", "list the workflows of the project and of the registry", "rolecall workflow list", STORE
)
def list_workflows(options: Namespace) -> CommandResult | None:
    with reader(options.store) as rolecall:
        rows = [
            {
                "name": entry.name,
                "hash": entry.node or LOCAL,
                "origin": entry.origin,
                "path": entry.path,
                "description": rolecall.describe(entry),
                "versions": rolecall.count_versions(entry.name),
            }
            for entry in rolecall.workflow_entries()
        ]
        bundled = len(rolecall.gallery())
    if format_of(options) == "text":
        if not rows:
            tell("There are no workflows here. `rolecall new` lists those that come with Rolecall.")
            return None
        tell(f"{bundled} more come with Rolecall: `rolecall new`")
    headings = ("name", "id", "origin", "versions", "description")
    cells = [(row["name"], row["hash"], row["origin"], row["versions"], row["description"]) for row in rows]
    return CommandResult(rows, lambda: table(cells, headings, folds=True))


@verb(
    "workflow validate",
    "report all problems of workflows; nothing is stored",
    "rolecall workflow validate solve-issue.yaml\nrolecall workflow validate",
    argument("workflows", "WORKFLOW", "files or names (default: all of the project)", nargs="*"),
    STORE,
)
def validate(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        names = options.workflows or rolecall.workflow_files()
        if not names:
            raise UsageError(
                "this project has no workflow", hint="Name a file, or put one into the folder `workflows`."
            )
        reports = [_check(rolecall, name) for name in names]
    lines = []
    for report in reports:
        problems = report.problems
        lines += [str(problem) for problem in problems]
        counts = {kind: sum(one.severity == kind for one in problems) for kind in ("error", "warning")}
        found = ", ".join(plural(count, kind) for kind, count in counts.items() if count)
        verdict = "valid" if report.valid else "not valid"
        lines.append(f"{report.file}: {verdict}{f' ({found})' if found else ''}")
    shown = [{**one._asdict(), "problems": [*map(view_problem, one.problems)]} for one in reports]
    return CommandResult(shown, lines, code=0 if all(report.valid for report in reports) else 2)


class _Report(NamedTuple):
    """What is known about a workflow, with the field names of the reply."""

    file: str
    name: str | None
    id: str | None
    valid: bool
    problems: list[Problem]


def _check(rolecall: Rolecall, text: str) -> _Report:
    try:
        found = rolecall.find_workflow(text)
        file = found.path or str(found.node)
        checked = rolecall.check(file)
    except RolecallError as error:
        problem = Problem("error", error.message, text, 1, 1, error.hint)
        return _Report(text, None, None, False, [word_problem(problem)])
    problems, book = list(checked.problems), checked.playbook
    if checked.agents is not None:
        problems += checked.agents
    elif book is not None:
        problems += rolecall.check_agents(book, file, marks=checked.marks)
    name, node = (book.workflow.name, rolecall.id_of(book)) if book else (None, None)
    is_valid = all(problem.severity != "error" for problem in problems)
    return _Report(file, name, node, is_valid, [word_problem(problem) for problem in problems])


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
def draw_graph(options: Namespace) -> CommandResult | None:
    with reader(options.store) as rolecall:
        workflow = rolecall.define(options.workflow).workflow
    if not workflow.graph:
        raise UsageError(
            f"{workflow.name} has no graph to draw: its moderator is a Python function",
            hint="`rolecall thread steps THREAD` shows the way a thread took.",
        )
    ending = os.path.splitext(options.output or "")[1]
    kind = options.picture or _PICTURES.get(ending, "text")
    drawn = {"text": draw.to_text, "svg": draw.to_svg, "mermaid": draw.to_mermaid}[kind](workflow)
    if not options.output:
        return CommandResult({"as": kind, "graph": drawn}, drawn.rstrip("\n"))
    write_file(options.output, drawn.encode())
    if format_of(options) != "text":
        return CommandResult({"as": kind, "file": options.output})
    tell(f"{options.output} written")
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
def print_schema(options: Namespace) -> CommandResult:
    return CommandResult(project_file.json_schema() if options.of == "project" else yaml.json_schema())


@verb(
    "workflow history",
    "list the versions of a workflow, newest first",
    "rolecall workflow history solve-issue",
    argument("name", "NAME", "the name of a workflow that has been put"),
    STORE,
)
def list_versions(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        versions = rolecall.versions(options.name)
    if not versions:
        raise NotFound(
            f"no workflow {options.name!r} has been put",
            hint="`rolecall workflow list` shows all names; `workflow put FILE` adds a version.",
        )
    rows = [
        {"id": one.node, "timestamp": one.at, "version": one.version, "current": one.is_current}
        for one in versions
    ]
    cells = [(_time(one.at), one.node, one.version, "current" if one.is_current else "") for one in versions]
    return CommandResult(rows, table(cells, ("put", "id", "version", "")))


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
def compare(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        first = rolecall.define(options.first)
        versions = rolecall.versions(first.workflow.name) if options.second is None else []
        others = [version.node for version in versions if version.node != first.node.id]
        if options.second is not None:
            before, after = first, rolecall.define(options.second)
        elif first.path is not None and versions:
            before, after = rolecall.define(versions[0].node), first
        elif not others:
            raise NotFound(
                f"{first.workflow.name!r} has no other version to compare with",
                hint="Name two workflows, or put this one first.",
            )
        elif versions[0].node != first.node.id:  # compare an earlier version with the current one
            before, after = first, rolecall.define(versions[0].node)
        else:
            before, after = rolecall.define(others[0]), first
    found = document.changes(before.workflow, after.workflow)
    older, newer = (one.path or f"{one.workflow.name} {one.node.id}" for one in (before, after))
    text = document.diff(before.workflow, after.workflow, names=(older, newer))
    sides = [{"name": one.workflow.name, "id": one.node.id, "path": one.path} for one in (before, after)]
    shown = {
        "from": sides[0],
        "to": sides[1],
        "same": before.node.id == after.node.id,
        "changes": [{**change._asdict(), "fields": list(change.fields)} for change in found],
        "diff": text,
    }
    summary = "\n".join(map(str, found)) or "the same"
    return CommandResult(shown, f"{summary}\n\n{color_diff(text)}".rstrip())
