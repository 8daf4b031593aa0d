"""Read a workflow from YAML, and collect all problems with their positions.

The forms below define the keys of a workflow and their values. `lint.py` then checks the workflow as a whole, as far as
it could be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from rolecall.errors import InvalidValue, NotFound, UsageError
from rolecall.settings import form, yaml12
from rolecall.settings.form import (
    UNREADABLE,
    At,
    Choice,
    Converted,
    Either,
    Field,
    Flag,
    Form,
    ListOf,
    MapOf,
    Number,
    Reading,
    Record,
    Section,
    Text,
    Unreadable,
    did_you_mean,
)
from rolecall.settings.yaml12 import Marks, Position, Problem, YamlNode
from rolecall.store import canonical, schema
from rolecall.store.canonical import JsonObject, Schema
from rolecall.workflow import command, lint
from rolecall.workflow.model import (
    ANY_STATUS,
    END,
    START,
    START_STATUS,
    Condition,
    Edge,
    Group,
    Join,
    Limits,
    Merge,
    OnCrash,
    OnFailure,
    OnLimit,
    Recall,
    Resume,
    Sandbox,
    StoredRole,
    StoredWorkflow,
    Workdir,
    split_address,
)
from rolecall.workflow.places import is_index, name_of

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

# First words that are certainly not verbs. Any other word is accepted.
_NOT_VERBS = frozenset(
    {"a", "an", "the", "my", "our", "new", "bug", "pr", "workflow", "pipeline", "automatic"}
)
_VERBS_IN_ING = frozenset({"bring", "string", "spring", "swing", "fling", "cling", "sling", "sting", "wring"})


class Definition(NamedTuple):
    """The result of reading a text. `workflow` is None if the problems include an error."""

    workflow: StoredWorkflow | None
    problems: tuple[Problem, ...]
    marks: Marks | None = None
    """The positions of all parts in the text."""


# -- the forms --


class _JsonForm(Form[JsonObject]):
    """A mapping that can be stored unchanged."""

    def read(self, value: Any, at: At) -> JsonObject | Unreadable:
        if not isinstance(value, dict):
            return at.expect("a mapping", value)
        try:
            canonical.encode(value)
        except InvalidValue as error:
            return at.report(f"{at} cannot be stored: {error.message}", error.hint)
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


class _OutputSchema(_JsonForm):
    """The JSON Schema of a role's output."""

    def read(self, value: Any, at: At) -> JsonObject | Unreadable:
        if not isinstance(value, dict):
            return at.expect("a JSON Schema written out as a mapping", value)
        problems = schema.problems_of(value)
        for problem in problems:
            hint, keywords = "", sorted(schema.KEYWORDS)
            if name := problem.unknown_keyword:
                hint = did_you_mean(name, keywords) or did_you_mean(name, keywords, what="Keywords")
            message = f"the schema {at} is not accepted: {problem.message}"
            At(at.reading, (*at.path, *problem.path)).report(message, hint, key=bool(hint))
        if problems:
            return UNREADABLE
        types = value.get("type", "object")
        if "object" not in ([types] if isinstance(types, str) else types):
            (at / "type").report("the schema of a role must be of the type object")
        return super().read(value, at)


def _require_value(form: Form[Any], description: str, **options: Any) -> Field:
    """Create a key that must have a value if it is written."""
    return Field(form, nullable=False, description=description, **options)


_LIMITS = Record(
    Limits,
    "limits",
    {
        "steps": Field(Number(whole=True, above=0), "Steps."),
        "turns": Field(Number(whole=True, above=0), "Turns of agents."),
        "tokens": Field(Number(whole=True, above=0), "Tokens, in and out."),
        "cost": Field(Number(above=0), "Money, in the currency that the agents report."),
        "minutes": Field(Number(above=0), "Minutes that agents worked."),
    },
)
_WORKDIR = Field(
    Choice(*get_args(Workdir)),
    "Where roles work: in the folder the thread was started in, or in one of its own.",
)
_ON_CRASH = Field(
    Choice(*get_args(OnCrash)),
    "The files with which a role starts again after a crash: as it left them, or as it found them.",
)
_REUSE = Field(Flag(), "Whether a finished step with the same key is taken over instead of asking again.")
_RECALL = Record(
    Recall,
    "knowledge",
    {
        "tokens": Field(
            Number(whole=True, least=100, most=100_000), "The most tokens of all passages (2000)."
        ),
        "path": Field(Text("a pattern as in a .gitignore", least=1), "Only files that match the pattern."),
        "required": Field(
            Flag(), to="is_required", description="Whether the role must not begin without passages (false)."
        ),
    },
)
_PATHS = ListOf(
    Text(
        "a path",
        pattern=r"(?!\$|~(?!/)).*",
        is_line=True,
        hint="Relative to the work folder, absolute, or below your home as ~/…; variables are not replaced.",
    ),
    "a list of paths",
)


def _check_address(text: str) -> str:
    split_address(text)
    return text


_ADDRESSES, _EXAMPLE = "all, none or a list of host:port", "For example [api.example.com:443]."
_SIZE = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,9})?) ?(?:([KMGT])(i?)B)?")
_LEAST_MEMORY, _MOST_MEMORY = 10**6, 2**50


class _Size(Form[int]):
    """A number of bytes, or a text such as 512MB, 1.5 GB or 2GiB."""

    def read(self, value: Any, at: At) -> int | Unreadable:
        found = _SIZE.fullmatch(str(value)) if type(value) in (int, str) else None
        if found is None:
            return at.expect("a size such as 512MB or 2GB, or a number of bytes", value)
        number, prefix, is_binary = found.groups()
        size = int(float(number) * (1024 if is_binary else 1000) ** " KMGT".index(prefix or " "))
        if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
            hint = "A number without a unit is in bytes." if not prefix else ""
            return at.expect("from 1MB to 1000TB", value, hint)
        return size

    def schema(self) -> Schema:
        number = {"type": "integer", "minimum": _LEAST_MEMORY, "maximum": _MOST_MEMORY}
        return {"anyOf": [number, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}]}


class _SandboxForm(Record[Sandbox]):
    """The settings for what a role's processes can reach, or `off`."""

    def read(self, value: Any, at: At) -> Sandbox | Unreadable:
        return Sandbox(is_off=True) if value is False or value == "off" else super().read(value, at)

    def schema(self) -> Schema:
        return {"anyOf": [{"enum": ["off"]}, super().schema()]}


SANDBOX = Field(
    _SandboxForm(
        Sandbox,
        "a sandbox",
        {
            "write": _require_value(
                _PATHS, "Where processes may write; the work folder, or nothing for a restricted role."
            ),
            "read": _require_value(
                _PATHS, "What they may read besides the work folder and programs; all but secret places."
            ),
            "network": _require_value(
                Either(
                    _ADDRESSES,
                    {
                        str: Choice("all", "none", wanted=_ADDRESSES, hint=_EXAMPLE),
                        list: ListOf(Converted(Text(), _check_address), _ADDRESSES, least=1, hint=_EXAMPLE),
                    },
                    hint=_EXAMPLE,
                ),
                "Whom they may connect to: all, none, or a list of host:port (all).",
            ),
            "env": _require_value(
                ListOf(Text("the name of a variable, which may end with *", pattern=r"[A-Za-z_]\w*\*?|\*")),
                "The variables that they get besides the basic ones; all but secret ones.",
            ),
            "memory": _require_value(_Size(), "What each process may use, such as 2GB."),
            # Linux can count up to this number of processes.
            "processes": _require_value(
                Number(whole=True, least=1, most=2**22), "How many may run at the same time."
            ),
            "seconds": _require_value(
                Number("a number above 0, at most 1,000,000,000", above=0, most=10**9),
                "How long each call of the agent may take.",
            ),
            "best_effort": _require_value(
                Flag(), "Whether the role may run although the machine cannot enforce all of it (false)."
            ),
        },
        wanted="a mapping or off",
        hint="`sandbox: {}` means the defaults.",
    ),
    nullable=False,
    description="What the processes of a role may reach, enforced by the kernel; `off`: no sandbox.",
)
_SCHEMA_KEYS = ("schema", "meta", "frontmatter")
_AGENT = Text("the name of an agent", least=1, hint="Options of an agent belong in the configuration.")
_TEXTS = ListOf(Text(least=1), least=1)
_JOIN = Either(
    f"{', '.join(get_args(Join))}, or {{at_least: N}}",
    {
        str: Choice(*get_args(Join)),
        dict: Record(
            lambda at_least: at_least,
            "join",
            {
                "at_least": _require_value(
                    Number(whole=True, least=1), "This many members must be done.", required=True
                )
            },
        ),
    },
)
_GROUP_FIELDS: dict[str, Field] = {
    "each": Field(
        Text("an expression, such as steps[-1].output.files", least=1),
        "JSONata that gives a list: one member for each item. Its prompt may use {{item}}.",
    ),
    "times": Field(Number(whole=True, least=1), "How many members work on the same task."),
    "roles": Field(_TEXTS, "The roles of a team, which work at the same time."),
    "at_once": Field(Number(whole=True, least=1), "How many members run at the same time."),
    "join": Field(_JOIN, "How many members must be done for the group to be done."),
    "on_failure": Field(
        Choice(*get_args(OnFailure)), "Whether the other members continue after one has failed."
    ),
    "on_limit": Field(
        Choice(*get_args(OnLimit)), "What happens if the next member needs more than the limits have left."
    ),
    "deadline": Field(Number(above=0), "After how many minutes unfinished members are stopped."),
    "merge": Field(Choice(*get_args(Merge)), "Whether members' worktrees are merged, one by one."),
    "check": Field(_TEXTS, "The command that must succeed after each merge, as a list of words."),
}


def _make_role(**given: Any) -> StoredRole:
    """Create a role, with the keys of a group collected in its `group`."""
    group = {key: given.pop(key) for key in _GROUP_FIELDS if key in given}
    if isinstance(given.get("agent"), tuple):
        group["agents"] = given.pop("agent")
    return StoredRole(**given, group=Group(**group) if group else None)


class _RoleForm(Record[StoredRole]):
    """A role. A role that a team plays needs no schema, and the schema of a role that runs a command is known."""

    def read(self, value: Any, at: At) -> StoredRole | Unreadable:
        if isinstance(value, Mapping) and not value.keys() & set(_SCHEMA_KEYS):
            agent = value.get("agent")
            if value.get("roles") is not None:
                value = {**value, "schema": {}}
            elif isinstance(agent, str) and command.is_run(agent):
                value = {**value, "schema": command.SCHEMA}
        return super().read(value, at)

    def schema(self) -> Schema:
        found = super().schema()
        runs = {
            "required": ["agent"],
            "properties": {"agent": {"type": "string", "pattern": f"^{command.RUN}"}},
        }
        return {**found, "allOf": [{"anyOf": [{"required": ["roles"]}, runs, *found["allOf"]]}]}


_ROLE = _RoleForm(
    _make_role,
    "a role",
    {
        "description": _require_value(Text(), "One sentence for people."),
        "prompt": _require_value(Text(), "Who the role is and what it wants.", aliases=("goal",)),
        "procedure": _require_value(Text(), "How the role should proceed."),
        "output": _require_value(Text(), "What the answer should contain, in words."),
        "capabilities": _require_value(
            ListOf(Text(), "a list of texts"),
            "Abilities that the role needs, and restrictions such as read_only.",
        ),
        "schema": _require_value(
            _OutputSchema(),
            "The JSON Schema of what the role must deliver.",
            required=True,
            aliases=_SCHEMA_KEYS[1:],
            default={},
            hint="Add `schema:` with a JSON Schema of type object; its fields are what the role must deliver.",
        ),
        "agent": Field(
            Either(
                "the name of an agent",
                {str: _AGENT, list: ListOf(_AGENT, least=1)},
                hint="Options of an agent belong in the configuration.",
            ),
            "The agent that plays the role; members of a group take those of a list in turn.",
        ),
        "stand_in": Field(
            _AGENT, "The agent that plays the role while its own has reached a limit of its provider."
        ),
        "resume": Field(
            Choice(*get_args(Resume)), "How long the agent's session is kept for the role's next turn."
        ),
        "limits": Field(_LIMITS, "What the role may use before its thread is suspended."),
        "extract": Field(_JsonForm(), "Another model that reads its answers: the keys of `extract`."),
        "workdir": _WORKDIR,
        "on_crash": _ON_CRASH,
        "reuse": _REUSE,
        "knowledge": Field(
            Either(
                "true, false or a mapping",
                {bool: Converted(Flag(), lambda is_on: Recall() if is_on else None), dict: _RECALL},
            ),
            "Passages of the repository for the task, put into the prompt.",
        ),
        "may_start_threads": Field(Flag(), "Whether the agent may start and move threads itself."),
        "sandbox": SANDBOX,
        **_GROUP_FIELDS,
    },
)
_CONDITION = Either(
    "an expression, or {description, expression}",
    {
        str: Converted(Text(), Condition),
        dict: Record(
            Condition,
            "a condition",
            {
                "expression": _require_value(
                    Text(), "JSONata over `start`, `steps` and `steps_count`.", required=True, default="true"
                ),
                "description": _require_value(Text(), "One sentence for people."),
            },
        ),
    },
)
_TARGET_FIELDS: dict[str, Field] = {
    "role": _require_value(
        Text(),
        "The role that goes next, or $END or $FAIL.",
        required=True,
        hint="Name the role it leads to, or $END.",
    ),
    "prompt": Field(Text(), "The instruction for the next role: a Mustache template."),
    "location": Field(Text(), "Its work folder: a Mustache template."),
}
_TARGET = Record(
    Edge,
    "an edge",
    {
        **_TARGET_FIELDS,
        "condition": Field(
            form.RefusedKey(
                "a condition only has a meaning in a list of edges",
                "Write the edges of this role as a list of {role, condition, prompt}.",
            )
        ),
    },
    wanted="a role, or {role, prompt}",
)
_LISTED_EDGE = Record(
    Edge,
    "an edge",
    {**_TARGET_FIELDS, "condition": Field(Text(), "The name of a condition; null: always.")},
    wanted="an edge: {role, condition, prompt}",
)


class _Edges(Form[tuple[Edge, ...]]):
    """The edges out of a role: the next role, a mapping from status to the next role, or a list of edges."""

    def read(self, value: Any, at: At) -> tuple[Edge, ...]:
        found: list[tuple[At, Edge | Unreadable]] = []
        source = str(at.path[-1])
        if isinstance(value, str):
            found.append((at, Edge(value)))
        elif isinstance(value, list) and value:
            found += [(at / index, _LISTED_EDGE.read(item, at / index)) for index, item in enumerate(value)]
        elif not isinstance(value, dict) or not value:
            at.expect("a role, a mapping from status to role, or a list of edges", value)
        elif isinstance(value.get("role"), str) and value.keys() <= _TARGET_FIELDS.keys():
            found.append((at, _TARGET.read(value, at)))
        else:
            if source != START and ANY_STATUS in value and len(value) > 1:
                hint = "'_' means any status, so it stands alone; give each status its own edge instead."
                (at / ANY_STATUS).report(f"{source} has '_' beside other statuses", hint, key=True)
            for status, target in value.items():
                if source == START and status not in (ANY_STATUS, START_STATUS):
                    hint = f"Write `{START}: <role>`, or the status '_' or 'new'."
                    (at / status).report(f"{START} has no status {status!r}", hint, key=True)
                edge = Edge(target) if isinstance(target, str) else _TARGET.read(target, at / status)
                if isinstance(edge, Edge) and source != START and status != ANY_STATUS:
                    edge = edge._replace(status=status)
                found.append((at / status, edge))
        edges: list[Edge] = []
        for part, edge in found:
            if isinstance(edge, Edge):
                at.reading.written[(*at.path, len(edges))] = part.path
                edges.append(edge)
        return tuple(edges)

    def schema(self) -> Schema:
        target = {"anyOf": [{"type": "string"}, _TARGET.schema()]}
        by_status = {"type": "object", "minProperties": 1, "additionalProperties": target}
        listed = {"type": "array", "minItems": 1, "items": _LISTED_EDGE.schema()}
        return {"anyOf": [*target["anyOf"], by_status, listed]}


_ROLES = MapOf(
    _ROLE,
    "a mapping from names to roles",
    key=r"\$.*|\w[\w.-]*",
    key_wanted="Letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_'.",
    least=1,
)
_WORKFLOW = Section(
    "a workflow",
    {
        "name": _require_value(
            Text(),
            "Verb first, equal to the file name.",
            required=True,
            default="",
            hint="Add a name such as `name: solve-issue`.",
        ),
        "description": _require_value(Text(), "One sentence for people."),
        "version": _require_value(Text(hint='Quote it: version: "1".'), "A text of your choice."),
        "roles": _require_value(_ROLES, "The roles by name.", required=True, default={}),
        "graph": _require_value(
            MapOf(_Edges()),
            "Where $START and each role lead: to a role, by status, or by a list of edges.",
            required=True,
            default={},
        ),
        "conditions": Field(
            MapOf(_CONDITION), "Expressions by name, for edges; or {expression, description}."
        ),
        "limits": Field(_LIMITS, "What a thread may use before it is suspended."),
        "workdir": _WORKDIR,
        "on_crash": _ON_CRASH,
        "reuse": _REUSE,
        "sandbox": SANDBOX,
    },
)


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a workflow's YAML, for editors."""
    found = form.json_schema(_WORKFLOW, "Rolecall workflow")
    found["properties"]["name"]["pattern"] = f"^{NAME.pattern}$"
    found["properties"]["graph"]["required"] = [START]
    return found


# -- reading --


def parse(
    text: str,
    *,
    source: str,
    include: yaml12.Include | None = None,
    name: str | None = None,
    add: Callable[[YamlNode], list[Problem]] = lambda _: [],
) -> Definition:
    """Read a workflow from a text. `name` is the name that the workflow must have, if its file determines the name.
    `add` adds parts from other files."""
    node, problems = yaml12.read(text, source=source, include=include)
    if node is None:
        return Definition(None, tuple(problems))
    problems += add(node)
    reading = Reading(node, problems)
    workflow = _read(node.value, reading, name)
    found = form.in_order(reading.problems, source)
    has_error = any(problem.severity == "error" for problem in found)
    return Definition(None if has_error else workflow, found, Marks(node))


def judge(
    value: JsonObject,
    *,
    place: Position,
    places: Mapping[str, Position],
    functions: Collection[str] = (),
    prompts: Collection[str] = (),
    name: str | None = None,
) -> Definition:
    """Read a workflow from a value in the form of the YAML, made by code at `place`. `places` maps each role to the
    place of its definition. A value without a `graph` has a moderator that decides the route, so only the rest is
    checked. `functions` are the roles played by Python functions, and `prompts` are the roles with a Python prompt."""
    is_moderated = "graph" not in value
    # The moderator can lead anywhere; in its place, use a graph that leads through every role once.
    steps = [START, *value["roles"], END]
    graph = dict(pairwise(steps)) if is_moderated else value["graph"]
    root, roles = YamlNode({**value, "graph": graph}, place), YamlNode(value["roles"], place)
    root.add("roles", roles, place)
    for role, where in places.items():
        roles.add(role, YamlNode(value["roles"].get(role), where), where)
    reading = Reading(root)
    workflow = _read(
        root.value, reading, name, functions=functions, prompts=prompts, is_moderated=is_moderated
    )
    has_error = any(problem.severity == "error" for problem in reading.problems)
    if workflow is not None and is_moderated:
        workflow = workflow._replace(graph={})
    return Definition(None if has_error else workflow, tuple(dict.fromkeys(reading.problems)))


def _read(
    value: Any,
    reading: Reading,
    name: str | None,
    *,
    functions: Collection[str] = (),
    prompts: Collection[str] = (),
    is_moderated: bool = False,
) -> StoredWorkflow | None:
    found = _WORKFLOW.read(value, At(reading))
    if isinstance(found, Unreadable):
        return None
    if isinstance(value.get("name"), str):
        _check_name(found["name"], name, At(reading) / "name")
    found["name"] = found["name"] or name or ""
    wrong = reading.wrong
    if is_whole := isinstance(value.get("roles"), dict) and isinstance(value.get("graph"), dict):
        # A role or a condition that cannot be read is not reported as missing elsewhere.
        found["roles"] = {role: found["roles"].get(role, StoredRole()) for role in value["roles"]}
    for condition in value.get("conditions") or () if "conditions" in found else ():
        found["conditions"].setdefault(condition, Condition("true"))
    for role, one in found["roles"].items():
        title = one.schema.get("title", f"{found['name']}.{role}")
        found["roles"][role] = one._replace(schema={**one.schema, "title": title})
    workflow = StoredWorkflow(**found)

    in_roles = [path for path in wrong if path[0:1] == ("roles",) and len(path) > 1]
    in_graph = [path for path in wrong if path[0:1] == ("graph",) and len(path) > 1]
    output_keys = (*_SCHEMA_KEYS, "each", "times", "roles")
    unread = lint.Unread(
        schemas={str(path[1]) for path in in_roles if len(path) == 2 or path[2] in output_keys},
        edges=set(found["graph"]) if is_moderated else {str(path[1]) for path in in_graph},
        has_limits=any("limits" in (path[:1] + path[2:3]) for path in wrong),
    )
    # A role with a problem counts as instructed, perhaps by a prompt that could not be read.
    instructed = {*prompts, *(str(path[1]) for path in in_roles)}
    findings = lint.check(workflow, unread=unread, functions=functions, prompts=instructed)
    for finding in findings:
        # Without roles or a graph, these findings would only be consequences.
        if is_whole or (finding.path[0] == "conditions" and finding.severity == "error"):
            at = At(reading, finding.path)
            at.report(finding.message, finding.hint, key=finding.at_key, severity=finding.severity)
    return workflow


def _check_name(name: str, implied: str | None, at: At) -> None:
    first = name.split("-")[0]
    is_gerund = first.endswith("ing") and len(first) > 5 and first not in _VERBS_IN_ING
    if not NAME.fullmatch(name):
        hint = "Lower-case words joined by hyphens, a verb first: solve-issue."
        at.report(f"the name {name[:80]!r} is not in kebab-case", hint)
    elif first in _NOT_VERBS or is_gerund:
        hint = "Name what it does: solve-issue, review-code."
        at.report(f"the name {name!r} does not begin with a verb", hint, severity="warning")
    if implied is not None and name != implied:
        message = f"the name {name[:80]!r} differs from the file's name, {implied!r}"
        at.report(message, f"Write `name: {implied}`, or rename the file.")


# -- files --


def load_file(path: str | os.PathLike[str], *, has_any_name: bool = False) -> Definition:
    """Read a workflow file. Unless `has_any_name`, the workflow must have the name of the file or, for an index.yaml,
    of its folder."""
    file = os.fspath(path)
    try:
        text = read_text(file)
    except FileNotFoundError:
        raise NotFound(f"there is no workflow file {file!r}") from None
    except UsageError as exc:
        return Definition(None, (Problem("error", exc.message, file, 1, 1, exc.hint),))
    name = None if has_any_name else name_of(os.path.abspath(file))
    include = make_includer(file)

    def add(root: YamlNode) -> list[Problem]:
        return _add_role_files(root, file, include) if is_index(file) else []

    return parse(text, source=file, include=include, name=name, add=add)


# -- roles in separate files --


def _add_role_files(root: YamlNode, workflow_file: str, include: yaml12.Include) -> list[Problem]:
    """Add the roles in `roles/<role>.md`, next to an index.yaml, to a workflow. Return the problems in these files."""
    folder = os.path.join(os.path.dirname(workflow_file), "roles")
    if not isinstance(root.value, dict) or not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if name.endswith(".md") and not name.startswith("."))
    if names and root.value.get("roles") is None:
        place = Position(workflow_file, 1, 1)
        root.value["roles"] = {}
        root.add("roles", YamlNode(root.value["roles"], place), place)
    if not names or not isinstance(root.value["roles"], dict):
        return []
    problems: list[Problem] = []
    roles = root.parts["roles"]
    for name in names:
        file, role = os.path.join(folder, name), name.removesuffix(".md")
        if role in roles.value:
            message = f"the role {role!r} is also defined in {file}"
            problems.append(Problem("error", message, *roles.key_places[role], "Keep one of them."))
        elif node := _read_role_file(file, include, problems):
            roles.add(role, node, node.place)
            roles.value[role] = node.value
    return problems


def _read_role_file(file: str, include: yaml12.Include, problems: list[Problem]) -> YamlNode | None:
    """Read a role from a file. The frontmatter contains the keys of the role, and the text below it is the role's
    prompt."""
    place = Position(file, 1, 1)
    try:
        lines = read_text(file).removeprefix("\ufeff").splitlines(keepends=True)
        front, line = [], 0
        if lines and lines[0].rstrip() == "---":
            rules = [number for number, text in enumerate(lines[1:], 1) if text.rstrip() == "---"]
            if not rules:
                raise UsageError("the frontmatter is never closed by a line '---'")
            # An empty line replaces the first `---`, so that line numbers match those of the file.
            front, line = ["\n", *lines[1 : rules[0]]], rules[0] + 1
    except (UsageError, FileNotFoundError) as error:
        problems.append(Problem("error", str(error), *place))
        return None
    node, found = yaml12.read("".join(front), source=file, include=include)
    problems += found
    if node is None:
        return None
    if node.value is None:
        node = YamlNode({}, place)
    if not isinstance(node.value, dict):
        problems.append(Problem("error", "the frontmatter of a role must be a mapping", *place))
        return None
    prompt = "".join(lines[line:]).strip()
    if given := node.value.keys() & {"prompt", "goal"}:
        hint = "The text below the frontmatter is the prompt; leave the key out."
        where = node.key_places[given.pop()]
        problems.append(Problem("error", "the text of a role's file is its prompt", *where, hint))
    elif prompt:
        where = Position(file, line + 1, 1)
        node.value["prompt"] = prompt
        node.add("prompt", YamlNode(prompt, where), where)
    return node


# -- reading files --


def make_includer(file: str) -> yaml12.Include:
    """Return a function that reads the files that `file` includes. The function refuses files outside the folder of
    `file`, even if a link leads to them."""
    root = os.path.realpath(os.path.dirname(os.path.abspath(file)))

    def include(path: str, written_in: str) -> tuple[str, str]:
        if os.path.isabs(path) or not path or "\0" in path:
            raise UsageError(f"!include {path!r} must be a path relative to the file it is written in")
        real = os.path.realpath(os.path.join(os.path.dirname(written_in), path))
        if os.path.commonpath([root, real]) != root:
            raise UsageError(f"!include {path!r} leads outside the folder of the file")
        try:
            # The name is the real path below the folder, so that a file with two names counts as one file.
            name = os.path.join(os.path.dirname(file), os.path.relpath(real, root))
            return name, read_text(real)
        except FileNotFoundError:
            raise UsageError(f"!include {path!r}: the file does not exist") from None

    return include


def read_text(file: str) -> str:
    """Read a regular text file. Anything else is refused, because reading a pipe or a device might never end."""
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
