"""`rolecall workflow`: put, show, check, draw and compare workflows."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.cli import Verb
from rolecall.cli.output import add_format, add_store, colored, colored_diff, format_of, say, show, table
from rolecall.errors import NotFound, RolecallError, UsageError

if TYPE_CHECKING:
    from rolecall.settings.yaml12 import Problem
    from rolecall.store.store import Node, Store
    from rolecall.workflow.model import Workflow
    from rolecall.workflow.playbook import Playbook
    from rolecall.workflow.registry import Checked, Entry

LOCAL = "(local)"
"""What stands for the id of a workflow that is a file of the project."""

_PICTURES = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid"}


class Chosen(NamedTuple):
    """The workflow an argument names."""

    workflow: Workflow
    node: Node
    path: str | None


# -- the verbs --


def _put(options: Namespace) -> int:
    from rolecall.threads.workspace import open_store
    from rolecall.workflow import registry

    path = _file(options.file)
    checked = registry.check_file(path)
    for problem in checked.problems:
        say(str(problem), sys.stderr)
    if checked.playbook is None:
        count = sum(problem.severity == "error" for problem in checked.problems)
        problems = f"{count} problem{'s' if count > 1 else ''}"
        say(f"{colored('rolecall:', 'red')} {path} has {problems}; nothing was stored", sys.stderr)
        return 2
    with open_store(options.store) as store:
        node = registry.register(store, checked.playbook)
    name = checked.playbook.workflow.name
    show(options, {"name": name, "hash": node}, lambda: f"{name} {node}")
    return 0


def _show(options: Namespace) -> None:
    from rolecall.workflow.document import to_yaml

    with _Place(options) as place:
        chosen = place.choose(options.workflow)
    if options.yaml:
        _refuse_python(chosen)
        print(to_yaml(chosen.workflow), end="")
        return
    shown = {
        "hash": chosen.node.id,
        "name": chosen.workflow.name,
        "type": chosen.node.type,
        "payload": _payload(options, chosen),
        "timestamp": chosen.node.created or None,
        "origin": "local" if chosen.path else "global",
        "path": chosen.path,
    }
    show(options, shown, lambda: _show_text(chosen))


def _payload(options: Namespace, chosen: Chosen) -> Any:
    """As stored in JSON; elsewhere, where it is a person who reads, with the schemas written out."""
    if format_of(options) == "json":
        return chosen.node.payload
    from rolecall.workflow.document import to_document

    return to_document(chosen.workflow)


def _show_text(chosen: Chosen) -> str:
    from rolecall.workflow.document import to_yaml

    where = f"file {chosen.path}" if chosen.path else f"put {_time(chosen.node.created)}"
    return f"# {chosen.node.id}, {where}\n{to_yaml(chosen.workflow)}".rstrip()


def _list(options: Namespace) -> None:
    from rolecall.workflow import registry

    with _Place(options) as place:
        entries = registry.listed(place.store, folder=os.getcwd())
        rows = [_listed(place.store, entry) for entry in entries]
    if not rows and format_of(options) == "text":
        say("There are no workflows here. `rolecall workflow put FILE` adds one.", sys.stderr)
        return
    headings = ("name", "hash", "origin", "versions", "description")
    show(options, rows, lambda: table([[row[key] for key in headings] for row in rows], headings))


def _listed(store: Store | None, entry: Entry) -> dict[str, Any]:
    from rolecall.workflow import registry

    versions = len(store.history(registry.ref_name(entry.name))) if store else 0
    shown = {"name": entry.name, "hash": entry.node or LOCAL, "origin": entry.origin, "path": entry.path}
    return {**shown, "description": _description(store, entry), "versions": versions}


def _description(store: Store | None, entry: Entry) -> str | None:
    """None where it cannot be had: a listing runs no Python and stops at no damaged entry."""
    try:
        if entry.path is None:
            from rolecall.workflow.registry import workflow_node

            found = workflow_node(store, entry.node).payload if store and entry.node else {}
        elif entry.path.endswith(".py"):
            return None
        else:
            from rolecall.workflow.yaml import load_file

            workflow = load_file(entry.path).workflow
            return workflow.description if workflow else "(does not validate)"
    except RolecallError as error:
        return f"({error.message})"
    return str(found.get("description", ""))


def _validate(options: Namespace) -> int:
    reports = []
    with _Place(options) as place:
        for text in options.workflows or _all_of_project():
            reports.append(_report(place, text))
    show(options, reports, lambda: "\n".join(line for report in reports for line in _report_lines(report)))
    return 0 if all(report["valid"] for report in reports) else 2


def _all_of_project() -> list[str]:
    from rolecall.workflow import registry

    paths = list(registry.project_files(os.getcwd()))
    if not paths:
        raise UsageError(
            "there is no workflow in this project",
            hint="Name a file, or put one into the folder `workflows`.",
        )
    return paths


def _report(place: _Place, text: str) -> dict[str, Any]:
    from rolecall.settings.yaml12 import Problem
    from rolecall.workflow import registry

    try:
        name = _as_path(text)
        store = (
            None if registry.is_path(name) else place.store
        )  # which takes longer to open than a file to check
        found = registry.find(store, name, folder=os.getcwd())
        if found.path is not None:
            file, checked = found.path, registry.check_file(found.path)
        else:
            file, checked = str(found.node), _check_stored(place.store, str(found.node))
    except RolecallError as error:
        problem = Problem("error", error.message, text, 1, 1, error.hint)
        return {"file": text, "name": None, "hash": None, "valid": False, "problems": [problem._asdict()]}
    problems = [*checked.problems, *_agent_problems(place, file, checked)]
    return {
        "file": file,
        "name": checked.playbook.workflow.name if checked.playbook else None,
        "hash": registry.stored_form(checked.playbook).id if checked.playbook else None,
        "valid": all(problem.severity != "error" for problem in problems),
        "problems": [
            problem._asdict() | {"line": problem.line or None, "column": problem.column or None}
            for problem in problems
        ],
    }


def _check_stored(store: Store | None, node: str) -> Checked:
    """A stored workflow by today's rules; the lines are those of `workflow show --yaml`."""
    from rolecall.workflow import registry, yaml
    from rolecall.workflow.document import to_yaml
    from rolecall.workflow.playbook import Playbook

    if store is None:
        raise NotFound(f"there is no workflow {node}")
    workflow, _ = registry.read_node(store, node)
    if workflow.python is not None:
        return registry.Checked(registry.load_node(store, node), ())
    found = yaml.parse(to_yaml(workflow), source=node)
    return registry.Checked(Playbook(workflow) if found.workflow else None, found.problems, found.marks)


def _agent_problems(place: _Place, file: str, checked: Checked) -> Iterator[Problem]:
    """Problems with the agents of roles, and overrides that match no role."""
    from rolecall.checks import agents
    from rolecall.settings import config

    if checked.playbook is not None:
        settings, env = config.load(), config.environment()
        yield from agents.problems(
            checked.playbook, file, settings=settings, env=env, find=place.play, marks=checked.marks
        )


def _report_lines(report: dict[str, Any]) -> Iterator[str]:
    from rolecall.settings.yaml12 import Problem

    problems = [Problem(**problem) for problem in report["problems"]]
    for one in problems:  # what stands in no definition has no line
        yield str(one) if one.line else str(one).replace(":None:None:", ":", 1)
    counts = {kind: sum(one.severity == kind for one in problems) for kind in ("error", "warning")}
    found = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count)
    yield f"{report['file']}: {'valid' if report['valid'] else 'not valid'}{f' ({found})' if found else ''}"


def _graph(options: Namespace) -> None:
    from rolecall.workflow import draw

    with _Place(options) as place:
        workflow = place.choose(options.workflow).workflow
    if not workflow.graph:
        raise UsageError(
            f"{workflow.name} has no graph to draw: its moderator is a Python function",
            hint="`rolecall thread steps THREAD` shows the way a thread took.",
        )
    ending = os.path.splitext(options.output or "")[1]
    kind = options.picture or _PICTURES.get(ending, "text")
    drawn = {"text": draw.to_text, "svg": draw.to_svg, "mermaid": draw.to_mermaid}[kind](workflow)
    if not options.output:
        show(options, {"as": kind, "graph": drawn}, lambda: drawn.rstrip("\n"))
        return
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(drawn)
    if format_of(options) == "text":
        print(f"{options.output} written", file=sys.stderr)
    else:
        show(options, {"as": kind, "file": options.output})


def _schema(options: Namespace) -> None:
    from rolecall.service import project_file
    from rolecall.workflow import yaml

    show(options, project_file.json_schema() if options.of == "project" else yaml.json_schema())


def _history(options: Namespace) -> None:
    from rolecall.workflow import registry

    with _Place(options) as place:
        versions = registry.history(place.store, options.name) if place.store else []
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
    show(options, rows, lambda: table(cells, ("put", "hash", "version", "")))


def _diff(options: Namespace) -> None:
    from rolecall.workflow.document import changes, diff

    with _Place(options) as place:
        before, after = _sides(place, options)
    found = changes(before.workflow, after.workflow)
    text = diff(before.workflow, after.workflow, names=(_shown(before), _shown(after)))
    shown = {
        "from": {"name": before.workflow.name, "hash": before.node.id, "path": before.path},
        "to": {"name": after.workflow.name, "hash": after.node.id, "path": after.path},
        "same": before.node.id == after.node.id,
        "changes": [{**change._asdict(), "fields": list(change.fields)} for change in found],
        "diff": text,
    }
    summary = "\n".join(map(str, found)) or "the same"
    show(options, shown, lambda: f"{summary}\n\n{colored_diff(text)}".rstrip())


def _sides(place: _Place, options: Namespace) -> tuple[Chosen, Chosen]:
    """What is compared, the older first: two that are named, or one with what is registered."""
    first = place.choose(options.first)
    if options.second is not None:
        return first, place.choose(options.second)
    from rolecall.workflow import registry

    name = first.workflow.name
    versions = registry.history(place.store, name) if place.store else []
    if first.path is not None and versions:
        return place.load(versions[0].node), first
    others = [version.node for version in versions if version.node != first.node.id]
    if not others:
        raise NotFound(
            f"there is no other version of {name!r} to compare with",
            hint="Name two workflows, or put this one first.",
        )
    if versions[0].node != first.node.id:
        return first, place.load(versions[0].node)
    return place.load(others[0]), first


# -- what an argument names --


class _Place:
    """The folder and, when there is one, the store in which workflows are looked for."""

    def __init__(self, options: Namespace) -> None:
        self._address = options.store

    @cached_property
    def store(self) -> Store | None:
        from rolecall.threads.workspace import store_if_any

        return store_if_any(self._address)

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, *_: object) -> None:
        if "store" in self.__dict__ and self.store is not None:
            self.store.close()

    def choose(self, text: str) -> Chosen:
        from rolecall.workflow import registry

        found = registry.find(self.store, _as_path(text), folder=os.getcwd())
        if found.node is not None:
            return self.load(found.node)
        path = str(found.path)
        playbook = registry.load_file(path)
        node = registry.stored_form(playbook)
        if self.store is not None and self.store.has(node.id):
            node = node._replace(created=self.store.get(node.id).created)
        return Chosen(playbook.workflow, node, path)

    def play(self, text: str) -> Playbook:
        """The workflow that `text` names, with its live parts."""
        from rolecall.workflow import registry

        found = registry.find(self.store, _as_path(text), folder=os.getcwd())
        if found.path is not None:
            return registry.load_file(found.path)
        if self.store is None:
            raise NotFound(f"there is no workflow {text!r}")
        return registry.load_node(self.store, str(found.node))

    def load(self, node: str) -> Chosen:
        from rolecall.workflow import registry

        if self.store is None:
            raise NotFound(f"there is no workflow {node}")
        return Chosen(registry.read_node(self.store, node)[0], registry.workflow_node(self.store, node), None)


def _file(text: str) -> str:
    """The file to be put: a path, or the name of a workflow of the project."""
    from rolecall.workflow import registry

    path = registry.find(None, _as_path(text), folder=os.getcwd()).path
    return str(path)


def _as_path(text: str) -> str:
    """A file that lies here is meant by its bare name too, whatever its ending."""
    return f"./{text}" if "/" not in text and "." in text and os.path.isfile(text) else text


def _refuse_python(chosen: Chosen) -> None:
    if chosen.workflow.python is not None:
        raise UsageError(
            f"{chosen.workflow.name} is written in Python, so it has no YAML",
            hint=f"It is defined in {chosen.workflow.python}.",
        )


def _shown(chosen: Chosen) -> str:
    return chosen.path or f"{chosen.workflow.name} {chosen.node.id}"


def _time(milliseconds: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


# -- the table --


def _common(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


def _put_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a workflow in YAML or Python, or its folder")
    _common(parser)


def _workflow_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "workflow", metavar="WORKFLOW", help="an id, a path, or a name here or in the registry"
    )


def _show_arguments(parser: ArgumentParser) -> None:
    _workflow_argument(parser)
    parser.add_argument("--yaml", action="store_true", help="print YAML that can be edited and put again")
    _common(parser)


def _validate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "workflows", metavar="WORKFLOW", nargs="*", help="files or names (default: all of the project)"
    )
    _common(parser)


def _graph_arguments(parser: ArgumentParser) -> None:
    _workflow_argument(parser)
    parser.add_argument(
        "--as",
        dest="picture",
        choices=("text", "svg", "mermaid"),
        help="default: by the ending of the file, else text",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write it to a file: .svg, .mmd, .txt")
    _common(parser)


def _schema_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "of",
        choices=("workflow", "project"),
        nargs="?",
        default="workflow",
        help="which file (default: a workflow)",
    )
    add_format(parser)


def _history_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of a workflow that has been put")
    _common(parser)


def _diff_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="an id, a path or a name")
    parser.add_argument(
        "second",
        metavar="B",
        nargs="?",
        help="what to compare it with (default: a file with the version that was put, else the version before)",
    )
    _common(parser)


VERBS = {
    "put": Verb(
        _put,
        "check a workflow and make it the current version of its name",
        "rolecall workflow put workflows/solve-issue.yaml",
        _put_arguments,
    ),
    "show": Verb(
        _show,
        "print a workflow",
        "rolecall workflow show solve-issue\nrolecall workflow show solve-issue --yaml > solve-issue.yaml",
        _show_arguments,
    ),
    "list": Verb(
        _list, "list the workflows of the project and of the registry", "rolecall workflow list", _common
    ),
    "validate": Verb(
        _validate,
        "report everything that is wrong with workflows; nothing is stored",
        "rolecall workflow validate solve-issue.yaml\nrolecall workflow validate",
        _validate_arguments,
    ),
    "graph": Verb(
        _graph,
        "draw a workflow",
        "rolecall workflow graph solve-issue\nrolecall workflow graph solve-issue -o solve-issue.svg",
        _graph_arguments,
    ),
    "schema": Verb(
        _schema,
        "print the JSON Schema of a workflow's YAML, or of rolecall.yaml, for editors",
        "rolecall workflow schema > .schemas/workflow.schema.json\n"
        "rolecall workflow schema project > .schemas/project.schema.json",
        _schema_arguments,
    ),
    "history": Verb(
        _history,
        "list the versions of a workflow, newest first",
        "rolecall workflow history solve-issue",
        _history_arguments,
    ),
    "diff": Verb(
        _diff,
        "show how two versions of a workflow differ",
        "rolecall workflow diff solve-issue.yaml\nrolecall workflow diff 3J5PZ3D1X8Q2M solve-issue",
        _diff_arguments,
    ),
}
