"""YAML text -> Workflow, with every problem collected and placed; never just the first.

This module reads the shape: which keys there are, what they hold, which edges they mean. Whether the
workflow makes sense as a whole is judged by `soundness.py`, on whatever could be read. Only `load_file`
touches files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from rolecall.errors import InvalidValue, NotFound, UsageError
from rolecall.settings import yaml12
from rolecall.settings.yaml12 import Marks, Path, Problem
from rolecall.store import canonical, schema
from rolecall.workflow import lint
from rolecall.workflow.lint import did_you_mean
from rolecall.workflow.model import (
    ANY_STATUS,
    END,
    START,
    START_STATUS,
    Condition,
    Edge,
    Limits,
    Recall,
    Resume,
    Role,
    Workdir,
    Workflow,
    is_any_status,
)

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ROLE_NAME = re.compile(r"\w[\w.-]*")
_WORKFLOW_KEYS = ("name", "description", "version", "roles", "graph", "conditions", "limits", "workdir")
_ROLE_TEXTS = ("description", "goal", "procedure", "output")
_SCHEMA_KEYS = ("meta", "frontmatter")
_ROLE_KEYS = (
    *(*_ROLE_TEXTS, "capabilities", *_SCHEMA_KEYS),
    *("agent", "resume", "limits", "extract", "workdir", "knowledge", "may_start_threads"),
)
_EDGE_KEYS = ("role", "prompt", "location")
_LIMIT_KEYS = tuple(field.name for field in fields(Limits))
_COUNTS = ("steps", "turns", "tokens")
"""The limits that are whole numbers."""
_RECALL_KEYS = ("tokens", "path", "required")
_CONDITION_KEYS = ("expression", "description")
_UNREAD = "unread"
"""Stands in for a text that could not be read, so that it is not missed as well."""

# First words that are certainly no verbs; a word that could be one is left alone.
_NO_VERBS = frozenset(
    {"a", "an", "the", "my", "our", "new", "bug", "pr", "workflow", "pipeline", "automatic"}
)
_GERUND = re.compile(r"[a-z]{3,}ing")
_VERBS_IN_ING = frozenset({"bring", "string", "spring", "swing", "fling", "cling", "sling", "sting", "wring"})


@dataclass(frozen=True)
class Definition:
    """What a text defines; `workflow` is None when there is an error among the problems."""

    workflow: Workflow | None
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def checked(self) -> Workflow:
        """The workflow, or `UsageError` with every error on a line of its own."""
        if self.workflow is None:
            lines = "\n".join(f"  {problem}" for problem in self.errors)
            raise UsageError(f"the workflow cannot be used:\n{lines}")
        return self.workflow


def parse(
    text: str,
    *,
    source: str,
    include: yaml12.Include | None = None,
    name: str | None = None,
    add: Callable[[yaml12.Node], list[Problem]] = lambda _: [],
) -> Definition:
    """The workflow a text defines. `name` is the name it must have, when its file decides that; `add` puts in
    what stands in other files."""
    node, problems = yaml12.read(text, source=source, include=include)
    if node is None:
        return Definition(None, tuple(problems))
    problems += add(node)
    reader = _Reader(node.value, Marks(node), problems)
    workflow = reader.workflow(name)
    found = tuple(
        sorted(set(problems), key=lambda one: (one.file != source, *one[2:5], one.severity, one.message))
    )
    has_error = any(problem.severity == "error" for problem in found)
    return Definition(None if has_error else workflow, found)


def judge(
    value: Mapping[str, Any],
    *,
    place: yaml12.Place,
    places: Mapping[str, yaml12.Place],
    functions: Collection[str] = (),
    prompts: Collection[str] = (),
    name: str | None = None,
) -> Definition:
    """The workflow of a value that has the form of the YAML but was made in memory, at `place`, its roles at
    `places`. Without a `graph` a moderator decides where to go, so only the rest is judged; `functions` and
    `prompts` are the roles that Python plays, or tells what to do."""
    problems: list[Problem] = []
    is_moderated = "graph" not in value
    # One way through every role has nothing to be found fault with, so only the rest is.
    steps = [START, *value["roles"], END]
    graph = dict(pairwise(steps)) if is_moderated else value["graph"]
    root, roles = yaml12.Node({**value, "graph": graph}, place), yaml12.Node(value["roles"], place)
    root.add("roles", roles, place)
    for role, where in places.items():
        roles.add(role, yaml12.Node(value["roles"].get(role), where), where)
    reader = _Reader(root.value, Marks(root), problems, functions=functions, prompts=prompts)
    workflow = reader.workflow(name)
    has_error = any(problem.severity == "error" for problem in problems)
    if workflow is not None and is_moderated:
        workflow = replace(workflow, graph={})
    return Definition(None if has_error else workflow, tuple(dict.fromkeys(problems)))


# -- files --


def load_file(path: str | os.PathLike[str]) -> Definition:
    """The workflow a file defines; its name must be the file's, or the folder's for an index.yaml."""
    file = os.fspath(path)
    try:
        text = read_text(file)
    except FileNotFoundError:
        raise NotFound(f"there is no workflow file {file!r}") from None
    except UsageError as exc:
        return Definition(None, (Problem("error", exc.message, file, 1, 1, exc.hint),))
    include, name = _includer(file), _implied_name(file)
    if not is_index(file):
        return parse(text, source=file, include=include, name=name)
    from rolecall.workflow import rolefiles

    return parse(
        text, source=file, include=include, name=name, add=lambda node: rolefiles.add(node, file, include)
    )


def is_index(file: str) -> bool:
    """Whether a file is the workflow of the folder it lies in."""
    return os.path.basename(file).rsplit(".", 1)[0] == "index"


def _implied_name(file: str) -> str:
    folder, base = os.path.split(os.path.abspath(file))
    return os.path.basename(folder) if is_index(file) else base.rsplit(".", 1)[0]


def _includer(workflow_file: str) -> yaml12.Include:
    """Reads included files, none from outside the workflow's folder, wherever links may point."""
    root = os.path.realpath(os.path.dirname(os.path.abspath(workflow_file)))

    def include(path: str, written_in: str) -> tuple[str, str]:
        if os.path.isabs(path) or not path or "\0" in path:
            raise UsageError(f"!include {path!r} must be a path relative to the file it is written in")
        file = os.path.join(os.path.dirname(written_in), path)
        real = os.path.realpath(file)
        if os.path.commonpath([root, real]) != root:
            raise UsageError(f"!include {path!r} leads outside the folder of the workflow")
        try:
            # Named by its real path below the folder, so that a file under two names is one file.
            name = os.path.join(os.path.dirname(workflow_file), os.path.relpath(real, root))
            return name, read_text(real)
        except FileNotFoundError:
            raise UsageError(f"!include {path!r}: there is no such file") from None

    return include


def read_text(file: str) -> str:
    """The text of a regular file; anything else, a pipe or a device, would be read for ever."""
    if not os.path.exists(file):
        raise FileNotFoundError(file)
    if not os.path.isfile(file):
        raise UsageError(f"{file!r} is not a file")
    try:
        with open(file, "rb") as stream:
            data = stream.read(yaml12.MAX_BYTES + 1)
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        if exc.start > yaml12.MAX_BYTES - 4:
            raise UsageError(f"{file!r} is larger than {yaml12.MAX_BYTES:,} bytes") from None
        raise UsageError(f"{file!r} is not UTF-8 text (byte {exc.start})") from None
    except OSError as exc:
        raise UsageError(f"{file!r} cannot be read: {exc.strerror}") from exc


# -- the shape --


class _Reader:
    """Reads the values of a definition, noting every problem and going on with what is left."""

    def __init__(
        self,
        value: Any,
        marks: Marks,
        problems: list[Problem],
        *,
        functions: Collection[str] = (),
        prompts: Collection[str] = (),
    ) -> None:
        """`problems` may hold some already, of places where nothing could be read."""
        self._value = value
        self._marks = marks
        self._problems = problems
        self._known = {problem[2:5] for problem in problems}
        self._errors = 0
        self._functions, self._prompts = functions, prompts
        self._broken_schemas: set[str] = set()
        self._lost_edges: set[str] = set()
        self._has_lost_limits = False
        self._edge_paths: dict[tuple[str, int], Path] = {}
        self._schema_keys: dict[str, str] = {}

    def workflow(self, implied_name: str | None) -> Workflow | None:
        top = self._mapping(self._value, (), "the workflow")
        if top is None:
            return None
        self._known_keys(top, (), _WORKFLOW_KEYS, "a workflow")
        name = self._name(top, implied_name)
        workflow = Workflow(
            name=name,
            description=self._text(top, "description"),
            version=self._text(top, "version", hint='Quote it: version: "1".'),
            roles=dict(self._roles(self._section(top, "roles"), name)),
            graph=dict(self._graph(self._section(top, "graph"))),
            conditions=dict(self._conditions(self._section(top, "conditions", required=False))),
            limits=self._limits(top.get("limits"), ("limits",)),
            workdir=self._workdir(top.get("workdir"), ("workdir",)),
        )
        self._judge(workflow)
        return workflow

    def _judge(self, workflow: Workflow) -> None:
        is_whole = all(isinstance(self._value.get(key), dict) for key in ("roles", "graph"))
        unread = lint.Unread(self._broken_schemas, self._lost_edges, self._has_lost_limits)
        for finding in lint.check(workflow, unread=unread, functions=self._functions, prompts=self._prompts):
            # Without roles or without a graph everything else would be missing too.
            if not (is_whole or (finding.path[0] == "conditions" and finding.severity == "error")):
                continue
            path = self._written_path(finding.path)
            self._report(path, finding.message, finding.hint, key=finding.at_key, severity=finding.severity)

    def _written_path(self, path: Path) -> Path:
        """Where the thing at a path of the workflow's value is written."""
        match path:
            case ("graph", str(source), int(index), *rest):
                return (*self._edge_paths[source, index], *rest)
            case ("roles", str(role), "schema", *rest):
                return ("roles", role, self._schema_keys.get(role, "meta"), *rest)
        return path

    # -- problems --

    def _report(
        self,
        path: Path,
        message: str,
        hint: str = "",
        *,
        key: bool = False,
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        self._errors += severity == "error"
        place = self._marks.at(path, key=key)
        if place not in self._known:  # what is wrong there has been said
            self._problems.append(Problem(severity, message, *place, hint))

    def _expect(self, path: Path, wanted: str, value: Any, hint: str = "") -> None:
        self._report(path, f"{_shown(path)} must be {wanted}, not {_kind(value)}", hint)

    def _known_keys(self, value: Mapping[str, Any], path: Path, known: tuple[str, ...], owner: str) -> None:
        for key in value:
            if key not in known:
                hint = did_you_mean(key, known, what="Keys")
                self._report((*path, key), f"{key!r} is not a key of {owner}", hint, key=True)

    # -- plain values --

    def _mapping(self, value: Any, path: Path, what: str = "") -> dict[str, Any] | None:
        if isinstance(value, dict):
            return value
        self._report(path, f"{what or _shown(path)} must be a mapping, not {_kind(value)}")
        return None

    def _section(self, top: dict[str, Any], key: str, *, required: bool = True) -> dict[str, Any]:
        if key not in top:
            if required:
                self._report((), f"{key!r} is missing", f"A workflow has {', '.join(_WORKFLOW_KEYS)}.")
            return {}
        if top[key] is None and not required:
            return {}
        return self._mapping(top[key], (key,)) or {}

    def _text(self, owner: Mapping[str, Any], key: str, path: Path = (), *, hint: str = "") -> str:
        value = owner.get(key)
        if isinstance(value, str):
            return value
        if key not in owner:
            return ""
        self._expect((*path, key), "text", value, hint)
        return _UNREAD

    def _name(self, top: dict[str, Any], implied: str | None) -> str:
        if "name" not in top:
            self._report((), "'name' is missing", f"Add `name: {implied or 'solve-issue'}`.")
            return implied or ""
        name = self._text(top, "name")
        if not isinstance(top["name"], str):
            return implied or ""
        if not NAME.fullmatch(name):
            hint = "Lower-case words joined by hyphens, a verb first: solve-issue."
            self._report(("name",), f"the name {name[:80]!r} is not in kebab-case", hint)
        elif _is_no_verb(name.split("-")[0]):
            hint = "Name what it does: solve-issue, review-code."
            self._report(("name",), f"the name {name!r} does not begin with a verb", hint, severity="warning")
        if implied is not None and name != implied:
            message = f"the name {name[:80]!r} is not that of the file, {implied!r}"
            self._report(("name",), message, f"Write `name: {implied}`, or rename the file.")
        return name

    def _limits(self, value: Any, path: Path) -> Limits:
        if value is None:
            return Limits()
        before = self._errors
        limits = self._mapping(value, path) or {}
        self._known_keys(limits, path, _LIMIT_KEYS, "limits")
        read = {key: self._limit(limits[key], (*path, key)) for key in _LIMIT_KEYS if key in limits}
        self._has_lost_limits |= self._errors > before
        return Limits(**read)

    def _limit(self, value: Any, path: Path) -> Any:
        whole = path[-1] in _COUNTS
        is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if value is None or (is_number and 0 < value < float("inf")):
            return value
        self._expect(path, "a whole number above 0" if whole else "a number above 0", value)
        return None

    # -- roles --

    def _roles(self, roles: dict[str, Any], workflow: str) -> Iterator[tuple[str, Role]]:
        if not roles and "roles" in self._value and self._value["roles"] == {}:
            self._report(("roles",), "the workflow has no roles")
        for name, value in roles.items():
            path = ("roles", name)
            if not name.startswith("$") and not _ROLE_NAME.fullmatch(name):
                hint = "Letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_'."
                self._report(path, f"the role name {name!r} is not accepted", hint, key=True)
            role = self._mapping(value, path)
            if role is None:
                self._broken_schemas.add(name)
                yield name, Role(goal=_UNREAD)
            else:
                yield name, self._role(role, path, f"{workflow}.{name}")

    def _role(self, role: dict[str, Any], path: Path, title: str) -> Role:
        self._known_keys(role, path, _ROLE_KEYS, "a role")
        texts = {key: self._text(role, key, path) for key in _ROLE_TEXTS}
        return Role(
            **texts,
            capabilities=self._capabilities(role.get("capabilities", []), (*path, "capabilities")),
            schema=self._schema(role, path, title),
            agent=self._agent(role.get("agent"), (*path, "agent")),
            resume=self._resume(role.get("resume"), (*path, "resume")),
            limits=self._limits(role.get("limits"), (*path, "limits")),
            extract=self._extract(role.get("extract"), (*path, "extract")),
            workdir=self._workdir(role.get("workdir"), (*path, "workdir")),
            knowledge=self._knowledge(role.get("knowledge"), (*path, "knowledge")),
            may_start_threads=self._flag(role.get("may_start_threads"), (*path, "may_start_threads")),
        )

    def _capabilities(self, value: Any, path: Path) -> tuple[str, ...]:
        if not isinstance(value, list):
            self._expect(path, "a list of texts", value)
            return ()
        for index, item in enumerate(value):
            if not isinstance(item, str):
                self._expect((*path, index), "text", item)
        return tuple(item for item in value if isinstance(item, str))

    def _flag(self, value: Any, path: Path) -> bool:
        if value is None or isinstance(value, bool):
            return bool(value)
        self._expect(path, "true or false", value)
        return False

    def _agent(self, value: Any, path: Path) -> str | None:
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        self._expect(path, "the name of an agent", value, "Options of an agent belong in the configuration.")
        return None

    def _resume(self, value: Any, path: Path) -> Any:
        if value is None or value in get_args(Resume):
            return value
        self._expect(path, f"one of {', '.join(get_args(Resume))}", value)
        return None

    def _workdir(self, value: Any, path: Path) -> Any:
        kinds = get_args(Workdir)
        if value is None or value in kinds:
            return value
        hint = did_you_mean(value, kinds, what="Work folders") if isinstance(value, str) else ""
        self._expect(path, f"one of {', '.join(kinds)}", value, hint)
        return None

    def _knowledge(self, value: Any, path: Path) -> Recall | None:
        if value is None or value is False:
            return None
        section = {} if value is True else self._mapping(value, path) or {}
        self._known_keys(section, path, _RECALL_KEYS, "knowledge")
        tokens, glob = section.get("tokens", Recall.tokens), section.get("path")
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 100 <= tokens <= 100_000:
            self._expect((*path, "tokens"), "a whole number from 100 to 100,000", tokens)
            tokens = Recall.tokens
        if glob is not None and not (isinstance(glob, str) and glob.strip()):
            self._expect((*path, "path"), "a pattern as in a .gitignore", glob)
            glob = None
        return Recall(tokens, glob, self._flag(section.get("required", False), (*path, "required")))

    def _extract(self, value: Any, path: Path) -> dict[str, Any] | None:
        extract = None if value is None else self._mapping(value, path)
        if extract is not None:
            self._canonical(extract, path)
        return extract

    def _canonical(self, value: Any, path: Path) -> None:
        try:
            canonical.encode(value)
        except InvalidValue as exc:
            self._report(path, f"{_shown(path)} cannot be stored: {exc.message}", exc.hint)

    def _schema(self, role: dict[str, Any], path: Path, title: str) -> dict[str, Any]:
        given = [key for key in _SCHEMA_KEYS if key in role]
        name = str(path[-1])
        if not given:
            hint = "Add `meta:` with a JSON Schema of type object; its fields are what the role must deliver."
            self._report(path, f"the role {name!r} has no schema", hint, key=True)
            self._broken_schemas.add(name)
            return {}
        if len(given) > 1:
            message = f"the role {name!r} has its schema twice, under {given[0]} and {given[1]}"
            self._report((*path, given[1]), message, "Keep one of them.", key=True)
        self._schema_keys[name] = given[0]
        value = role[given[0]]
        before = self._errors
        self._check_schema(value, (*path, given[0]))
        if self._errors > before:
            self._broken_schemas.add(name)
        if not isinstance(value, dict):
            return {}
        return value if "title" in value else {**value, "title": title}

    def _check_schema(self, value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            self._expect(path, "a JSON Schema written out as a mapping", value)
            return
        before = self._errors
        for problem in schema.problems_of(value):
            self._schema_problem(value, path, problem)
        if self._errors > before:
            return
        self._canonical(value, path)
        if "object" not in (
            [value["type"]] if isinstance(value.get("type"), str) else value.get("type", ["object"])
        ):
            self._report((*path, "type"), "the schema of a role must be of the type object")

    def _schema_problem(self, value: Any, path: Path, problem: str) -> None:
        place = _pointed(value, problem)
        hint = ""
        if problem.endswith("is not an accepted keyword"):
            hint = _keyword_hint(str(place[-1]) if place else "")
        self._report(
            (*path, *place), f"the schema {_shown(path)} is not accepted: {problem}", hint, key=bool(hint)
        )

    # -- edges --

    def _graph(self, graph: dict[str, Any]) -> Iterator[tuple[str, tuple[Edge, ...]]]:
        for source, value in graph.items():
            edges: list[Edge] = []
            for path, edge in self._edges(source, value, ("graph", source)):
                self._edge_paths[source, len(edges)] = path
                edges.append(edge)
            yield source, tuple(edges)

    def _edges(self, source: str, value: Any, path: Path) -> Iterator[tuple[Path, Edge]]:
        if isinstance(value, str):
            yield path, Edge(value)
        elif isinstance(value, list) and value:
            for index, item in enumerate(value):
                yield from self._full_edge(source, item, (*path, index), in_list=True)
        elif isinstance(value, dict) and isinstance(value.get("role"), str) and set(value) <= set(_EDGE_KEYS):
            yield from self._full_edge(source, value, path)
        elif isinstance(value, dict) and value:
            yield from self._status_edges(source, value, path)
        else:
            wanted = "a role, a mapping from status to role, or a list of edges"
            self._expect(path, wanted, value)
            self._lost_edges.add(source)

    def _status_edges(self, source: str, value: dict[str, Any], path: Path) -> Iterator[tuple[Path, Edge]]:
        if source == START:
            self._start_statuses(value, path)
        elif ANY_STATUS in value and len(value) > 1:
            hint = "'_' means whatever the status, so it stands alone; give each status its own edge instead."
            self._report((*path, ANY_STATUS), f"{source} has '_' beside other statuses", hint, key=True)
        for status, target in value.items():
            here = (*path, status)
            full = () if isinstance(target, str) else self._full_edge(source, target, here)
            for where, edge in [(here, Edge(target))] if isinstance(target, str) else full:
                bound = None if is_any_status(source, status) or source == START else status
                yield where, Edge(edge.role, bound, edge.condition, edge.prompt, edge.location)

    def _start_statuses(self, value: dict[str, Any], path: Path) -> None:
        known = (ANY_STATUS, START_STATUS)
        for status in value:
            if status not in known:
                hint = f"Write `{START}: <role>`, or the status '_' or 'new'."
                self._report((*path, status), f"{START} has no status {status!r}", hint, key=True)

    def _full_edge(
        self, source: str, value: Any, path: Path, *, in_list: bool = False
    ) -> Iterator[tuple[Path, Edge]]:
        if not isinstance(value, dict):
            self._expect(
                path, "an edge: {role, condition, prompt}" if in_list else "a role, or {role, prompt}", value
            )
            self._lost_edges.add(source)
            return
        known = (*_EDGE_KEYS, "condition") if in_list else _EDGE_KEYS
        if "condition" in value and not in_list:
            hint = "Write the edges of this role as a list of {role, condition, prompt}."
            self._report(
                (*path, "condition"), "a condition only has a meaning in a list of edges", hint, key=True
            )
            known = (*known, "condition")
        self._known_keys(value, path, known, "an edge")
        if not isinstance(value.get("role"), str):
            self._lost_edges.add(source)
        if "role" not in value:
            self._report(path, "the edge has no 'role'", "Name the role it leads to, or $END.")
            return
        role = self._text(value, "role", path)
        if isinstance(value["role"], str):
            yield (
                path,
                Edge(
                    role,
                    None,
                    self._nullable(value, "condition", path) if in_list else None,
                    "" if value.get("prompt") is None else self._text(value, "prompt", path),
                    self._nullable(value, "location", path),
                ),
            )

    def _nullable(self, owner: Mapping[str, Any], key: str, path: Path) -> str | None:
        return None if owner.get(key) is None else self._text(owner, key, path)

    # -- conditions --

    def _conditions(self, conditions: dict[str, Any]) -> Iterator[tuple[str, Condition]]:
        for name, value in conditions.items():
            path = ("conditions", name)
            if isinstance(value, str):
                yield name, Condition(value)
                continue
            if not isinstance(value, dict):
                self._expect(path, "an expression, or {description, expression}", value)
                yield name, Condition("true")
                continue
            self._known_keys(value, path, _CONDITION_KEYS, "a condition")
            if "expression" not in value:
                self._report(path, f"the condition {name!r} has no 'expression'", key=True)
            readable = isinstance(value.get("expression"), str)
            expression = self._text(value, "expression", path) if readable or "expression" in value else ""
            yield name, Condition(expression if readable else "true", self._text(value, "description", path))


def _keyword_hint(name: str) -> str:
    """The nearest keyword, or else all forty."""
    hint = did_you_mean(name, sorted(schema.KEYWORDS), what="Keywords")
    return hint.split(" Keywords:")[0] if hint.startswith("Did") else hint


def _is_no_verb(word: str) -> bool:
    return word in _NO_VERBS or (
        bool(_GERUND.fullmatch(word)) and len(word) > 5 and word not in _VERBS_IN_ING
    )


def _shown(path: Path) -> str:
    return ".".join(str(step) for step in path)


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    return repr(value)[:80] if not isinstance(value, (int, float)) else str(value)[:80]


def _pointed(value: Any, problem: str) -> Path:
    """The path a problem text begins with, as far as it exists in `value`; names may contain '/' and spaces."""
    path: list[str | int] = []
    rest = problem
    while rest.startswith("/"):
        keys: list[str | int] = (
            [*value] if isinstance(value, dict) else [*range(len(value))] if isinstance(value, list) else []
        )
        fitting = [key for key in keys if re.match(re.escape(f"/{key}") + r"(?=[/ :…]|$)", rest)]
        if not fitting:
            break
        key = max(fitting, key=lambda one: len(str(one)))
        path.append(key)
        value = value[key]
        rest = rest[1 + len(str(key)) :]
    return tuple(path)


# -- the schema of the text --


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a workflow's YAML, for editors."""
    text = {"type": "string"}
    edge_fields = {
        "role": {**text, "description": "The role that goes next, or $END or $FAIL."},
        "prompt": {
            "type": ["string", "null"],
            "description": "What the next role is told: a Mustache template.",
        },
        "location": {"type": ["string", "null"], "description": "Its work folder: a Mustache template."},
    }
    condition = {"type": ["string", "null"], "description": "The name of a condition; null: always."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rolecall workflow",
        **_object(
            {
                "name": {
                    **text,
                    "pattern": f"^{NAME.pattern}$",
                    "description": "Verb first, equal to the file name.",
                },
                "description": text,
                "version": text,
                "roles": {
                    **_map_of("role"),
                    "minProperties": 1,
                    "propertyNames": {"pattern": r"^\w[\w.-]*$"},
                },
                "graph": {**_map_of("edges"), "required": [START]},
                "conditions": {"anyOf": [_map_of("condition"), {"type": "null"}]},
                "limits": _ref("limits"),
                "workdir": _workdir_schema(),
            },
            ["name", "roles", "graph"],
        ),
        "$defs": {
            "role": _role_schema(),
            "limits": _limits_schema(),
            "target": {"anyOf": [text, _object(edge_fields, ["role"])]},
            "edges": {
                "description": "The next role, a map from status to the next role, or a list of conditional edges.",
                "anyOf": [
                    text,
                    _object(edge_fields, ["role"]),
                    {**_map_of("target"), "minProperties": 1},
                    {
                        "type": "array",
                        "minItems": 1,
                        "items": _object({**edge_fields, "condition": condition}, ["role"]),
                    },
                ],
            },
            "condition": {
                "description": "JSONata over start, steps and steps_count.",
                "anyOf": [text, _object({"expression": text, "description": text}, ["expression"])],
            },
        },
    }


def _role_schema() -> dict[str, Any]:
    text = {"type": "string"}
    output_schema = {"type": "object", "description": "The JSON Schema of what the role must deliver."}
    fields = {
        **dict.fromkeys(_ROLE_TEXTS, text),
        "capabilities": {"type": "array", "items": text},
        **dict.fromkeys(_SCHEMA_KEYS, output_schema),
        "agent": {"type": ["string", "null"], "description": "The agent that plays the role."},
        "resume": {"enum": [*get_args(Resume), None]},
        "limits": _ref("limits"),
        "extract": {"type": ["object", "null"]},
        "workdir": _workdir_schema(),
        "knowledge": {
            "description": "Passages of the repository for the task, put into the prompt.",
            "anyOf": [
                {"type": ["boolean", "null"]},
                _object(
                    {
                        "tokens": {"type": "integer", "minimum": 100, "maximum": 100_000},
                        "path": text,
                        "required": {"type": "boolean"},
                    },
                    [],
                ),
            ],
        },
        "may_start_threads": {
            "type": ["boolean", "null"],
            "description": "Whether the agent may start and move threads itself.",
        },
    }
    return {**_object(fields, []), "oneOf": [{"required": [key]} for key in _SCHEMA_KEYS]}


def _workdir_schema() -> dict[str, Any]:
    where = "Where roles work: in the folder the thread was started in, or in one of its own."
    return {"enum": [*get_args(Workdir), None], "description": where}


def _limits_schema() -> dict[str, Any]:
    kinds = {key: "integer" if key in _COUNTS else "number" for key in _LIMIT_KEYS}
    fields = {key: {"type": [kind, "null"], "exclusiveMinimum": 0} for key, kind in kinds.items()}
    return {**_object(fields, []), "type": ["object", "null"]}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _map_of(name: str) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": _ref(name)}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}
