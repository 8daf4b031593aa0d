"""The parts of a workflow: roles, edges, conditions and limits. They are plain values; nothing here parses text or
performs I/O.

`yaml.py` and `python.py` create workflows and report problems in them; `route.py` follows their edges. The store keeps
a workflow as a node, with each role's schema as a separate node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject, Schema

START = "$START"
END = "$END"
FAIL = "$FAIL"
SUSPEND = "$SUSPEND"

ANY_STATUS = "_"
"""The key of a status mapping that matches any status."""
START_STATUS = "new"
"""The key under which later versions of the predecessor store the edge out of $START."""

STATUS_KEYS = ("$status", "status")
"""The fields of an output that can contain its status, the preferred field first."""
STANDARD_FIELDS = ("status", "next", "confidence", "artifacts", "scope")
"""Fields that an output may contain although its schema does not declare them."""

Resume = Literal["ephemeral", "bounded", "persistent"]
Workdir = Literal["shared", "worktree", "copy"]
"""The folder that a role works in: the folder in which the thread was started, or one of the thread's own folders."""
OnCrash = Literal["keep", "restore"]
"""The files with which a step starts again after its process has died: the files that the process left, or those that
it found."""


class Limits(NamedTuple):
    """The amounts that can be used before the thread is suspended; None means no limit."""

    steps: int | None = None
    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    minutes: float | None = None


class Edge(NamedTuple):
    """An edge out of a role or out of $START."""

    role: str
    """The next role, $END or $FAIL."""
    status: str | None = None
    """The status that the output must have for the edge to be taken; None matches any status."""
    condition: str | None = None
    """The name of the condition under which the edge is taken; None means always."""
    prompt: str = ""
    """A Mustache template for the instruction that the next role is given with its task."""
    location: str | None = None
    """A Mustache template for the work folder of the next role; None means the thread's folder."""


class Condition(NamedTuple):
    """A named expression that decides whether an edge is taken."""

    expression: str
    """A JSONata expression over `start`, `steps` and `steps_count`."""
    description: str = ""


class Recall(NamedTuple):
    """The passages from the repository that a role is given with its task."""

    tokens: int = 2000
    """The maximum number of tokens."""
    path: str | None = None
    """A pattern, as in a .gitignore, that files must match to be used; None means all files."""
    is_required: bool = False
    """Whether the role must not begin without the passages."""


class Sandbox(NamedTuple):
    """What the processes of a role can reach. The kernel enforces these limits."""

    write: tuple[str, ...] | None = None
    """The paths that the processes can write to, in addition to temporary files and the agent's own state. Paths are
    relative to the work folder, absolute, or below `~/`. If None, the processes can write to the work folder or, for a
    role with `read_only` or `no_file_edit`, to nothing."""
    read: tuple[str, ...] | None = None
    """The paths that the processes can read, in addition to the work folder and what programs need to run. If None,
    they can read everything except secret places."""
    network: Literal["all", "none"] | tuple[str, ...] = "all"
    """The addresses that the processes can connect to: all, none, or each `host:port` in a list."""
    env: tuple[str, ...] | None = None
    """The environment variables that the processes get in addition to the basic ones; a name can end with `*`. If None,
    they get all variables except secret ones."""
    memory: int | None = None
    """The maximum number of bytes of memory for each process."""
    processes: int | None = None
    """The maximum number of processes that run at the same time."""
    seconds: float | None = None
    """The maximum duration of each call of the agent."""
    best_effort: bool = False
    """Whether the role may run even if the machine cannot enforce the whole sandbox."""
    is_off: bool = False
    """Whether the role runs without a sandbox, written as `sandbox: off`."""


Join = Literal["all", "any", "first"]
OnFailure = Literal["collect", "stop"]
OnLimit = Literal["suspend", "wait"]
Merge = Literal["none", "queue"]


MOST_MEMBERS = 100_000


class Group(NamedTuple):
    """The settings of a role that many members play at once. Exactly one of `each`, `times` and `roles` is given."""

    each: str | None = None
    """A JSONata expression, as in `Condition`, that gives a list. One member works on each item of the list."""
    times: int | None = None
    """The number of members that work on the same task."""
    roles: tuple[str, ...] = ()
    """The roles of a team. One member plays each role, so members do different work on the same task."""
    agents: tuple[str, ...] = ()
    """The agents that members take in turn; if empty, all members have the role's agent."""
    at_once: int = 8
    """The maximum number of members that run at the same time."""
    join: Join | int = "all"
    """The members that must be done for the group to be done: all, any, the first, or at least a given number."""
    on_failure: OnFailure = "collect"
    """Whether the other members continue after one member has failed."""
    on_limit: OnLimit = "suspend"
    """What the group does if its next member needs more than what is left of the thread's limits."""
    deadline: float | None = None
    """The number of minutes after which unfinished members are stopped; None means never."""
    merge: Merge = "none"
    """Whether members' worktrees are merged into the thread's folder, one by one, in the order in which members
    finish."""
    check: tuple[str, ...] = ()
    """The command that must succeed after each merge."""

    @property
    def kind(self) -> Literal["each", "times", "team"]:
        return "each" if self.each is not None else "times" if self.times is not None else "team"


class StoredRole(NamedTuple):
    """A part in a workflow: what its agent is asked to do, and the schema of its output."""

    description: str = ""
    prompt: str = ""
    capabilities: tuple[str, ...] = ()
    procedure: str = ""
    output: str = ""
    schema: Mapping[str, Any] = {}
    agent: str | None = None
    """The agent that plays the role; None means the configured agent."""
    resume: Resume | None = None
    limits: Limits = Limits()
    extract: JsonObject | None = None
    """Settings that override the configured extract model for this role."""
    workdir: Workdir | None = None
    """The folder that the role works in; None means the workflow's setting."""
    knowledge: Recall | None = None
    """The passages from the repository that the prompt includes; None means no passages."""
    may_start_threads: bool = False
    """Whether the role's agent may start and run threads with Rolecall's own commands."""
    group: Group | None = None
    """The settings of a group that plays the role; None means that a single agent does. With a group, the other fields
    describe one member."""
    on_crash: OnCrash | None = None
    """The files with which the role starts again after a crash; None means the workflow's setting."""
    reuse: bool | None = None
    """Whether a finished step with the same key is taken over instead of asking the agent; None means the workflow's
    setting."""
    stand_in: str | None = None
    """The agent that plays the role while the role's own agent has reached a usage limit of its provider. If None, the
    thread waits instead."""
    sandbox: Sandbox | None = None
    """What the role's processes can reach; None means the workflow's setting."""


class StoredWorkflow(NamedTuple):
    """Roles, and the edges between them."""

    name: str
    description: str = ""
    version: str = ""
    roles: Mapping[str, StoredRole] = {}
    graph: Mapping[str, tuple[Edge, ...]] = {}
    """The edges out of $START and out of each role, in order; the first edge that matches is taken."""
    conditions: Mapping[str, Condition] = {}
    limits: Limits = Limits()
    python: str | None = None
    """The place where a workflow in Python is defined, as "module:name"."""
    workdir: Workdir | None = None
    """The default for roles without a `workdir` of their own; None means `shared`."""
    on_crash: OnCrash | None = None
    """The default for roles without an `on_crash` of their own; None means `keep`."""
    reuse: bool | None = None
    """The default for roles without a `reuse` of their own; None leaves the choice to the thread."""
    sandbox: Sandbox | None = None
    """The default for roles without a `sandbox` of their own; if None, their restrictions decide."""


def is_any_status(source: str, status: str) -> bool:
    """Return whether this key of a status mapping matches any status."""
    return status == ANY_STATUS or (source == START and status == START_STATUS)


def workdir_of(workflow: StoredWorkflow, role: str) -> Workdir:
    own = workflow.roles[role].workdir if role in workflow.roles else None
    return own or workflow.workdir or "shared"


def on_crash_of(workflow: StoredWorkflow, role: str) -> OnCrash:
    return workflow.roles[role].on_crash or workflow.on_crash or "keep"


def reuse_of(workflow: StoredWorkflow, role: str, chosen: bool | None = None) -> bool | None:
    """Return whether the steps of a role are reused, or None if nothing decides this. `chosen` is the choice made when
    the thread was started or run. It does not override a workflow that forbids reuse."""
    own = workflow.roles[role].reuse
    said = workflow.reuse if own is None else own
    return said if chosen is None or said is False else chosen


def sandbox_of(workflow: StoredWorkflow, role: str) -> Sandbox | None:
    """Return the sandbox of a role, or None if the workflow does not define one. A role's own sandbox replaces the
    whole sandbox of the workflow."""
    own = workflow.roles[role].sandbox
    return workflow.sandbox if own is None else own


def runs_processes(role: StoredRole) -> bool:
    """Return whether the role has processes of its own. It has none if only people, other workflows or a team play
    it."""
    group = role.group or Group()
    agents = [*(group.agents or (role.agent,)), role.stand_in or "human"]
    return not group.roles and any(
        (one or "").partition(":")[0] not in ("human", "workflow") for one in agents
    )


_HOST_AND_PORT = r"(\[[0-9A-Fa-f:.]+\]|(?:\*\.)?\w(?:[\w.-]*\w)?):([0-9]{1,5})"


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an entry in a sandbox's `network`. In such an entry, an IPv6 address is in
    brackets."""
    found = re.fullmatch(_HOST_AND_PORT, address, re.ASCII)
    if found is None or not 0 < int(found[2]) < 65536:
        wrong = "has no port" if re.fullmatch(r"[\w.-]+", address) else "is not a host and a port"
        wrong = "has a port that is not from 1 to 65535" if found else wrong
        raise UsageError(f"{address[:80]!r} {wrong}", hint="Write host:port, such as example.com:443.")
    return found[1].strip("[]"), int(found[2])


def member_roles(workflow: StoredWorkflow, role: str) -> tuple[str, ...]:
    """Return the roles that the members of a group play: the roles of a team, or the group's own role."""
    group = workflow.roles[role].group
    return group.roles if group is not None and group.roles else (role,)


def member_workdir(workflow: StoredWorkflow, role: str, member: str) -> Workdir:
    """Return the kind of folder in which a member of the group `role` works if it plays the role `member`."""
    own = workflow.roles[member].workdir if member in workflow.roles else None
    return own or workdir_of(workflow, role)


def nested_workflows(workflow: StoredWorkflow, roles: Iterable[str] | None = None) -> list[str]:
    """Return the names of the workflows that play roles of this workflow as `workflow:NAME`. If `roles` is given,
    consider only these roles."""
    played = [role for name, role in workflow.roles.items() if roles is None or name in roles]
    agents = [
        agent
        for role in played
        for agent in (role.agent, role.stand_in, *(role.group.agents if role.group else ()))
    ]
    return [one.partition(":")[2].strip() for one in agents if one and one.startswith("workflow:")]


def own_folders(workflow: StoredWorkflow) -> list[Workdir]:
    """Return the kinds of folders of its own that a thread of this workflow needs. Roles with the same kind share a
    folder. Members of groups have folders of their own."""
    teams = {name for role in workflow.roles.values() if role.group for name in role.group.roles}
    called = {edge.role for edges in workflow.graph.values() for edge in edges}
    only_members = teams - called if workflow.graph else set()  # without a graph, any role can be called
    wanted = {
        workdir_of(workflow, name)
        for name, role in workflow.roles.items()
        if role.group is None and name not in only_members
    }
    return [kind for kind in get_args(Workdir) if kind in wanted and kind != "shared"]


# -- the stored form --

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "exclusiveMinimum": 0}
_AMOUNT = {"type": "number", "exclusiveMinimum": 0}
_LISTED = {"type": "array", "items": _TEXT}
_TEXTS = {**_LISTED, "minItems": 1}


def record_schema(properties: Schema, required: Collection[str] = ()) -> Schema:
    """Return the schema of an object with these fields and no others."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def _one_of(words: object) -> Schema:
    return {"type": "string", "enum": list(get_args(words))}


_LIMITS = record_schema(
    {
        **dict.fromkeys(("steps", "turns", "tokens"), _COUNT),
        **dict.fromkeys(("cost", "minutes"), _AMOUNT),
    }
)
_ROLE = record_schema(
    {
        **dict.fromkeys(("description", "goal", "procedure", "output", "agent"), _TEXT),
        "capabilities": _LISTED,
        "meta": {"type": "string", "format": "ocas_ref"},
        "resume": _one_of(Resume),
        "limits": _LIMITS,
        "extract": {"type": "object"},
    },
    ("description", "goal", "capabilities", "procedure", "output", "meta"),
)
_EDGE_FIELDS = {
    **dict.fromkeys(("role", "prompt"), _TEXT),
    **dict.fromkeys(("status", "condition", "location"), _TEXT_OR_NULL),
}
_EDGE = record_schema(_EDGE_FIELDS, Edge._fields)
_CONDITION = record_schema(dict.fromkeys(Condition._fields, _TEXT), Condition._fields)

WORKFLOW_SCHEMA: Schema = {
    "title": "rolecall.workflow",
    **record_schema(
        {
            **dict.fromkeys(("name", "description", "version", "python"), _TEXT),
            "roles": {"type": "object", "additionalProperties": _ROLE},
            "graph": {"type": "object", "additionalProperties": {"type": "array", "items": _EDGE}},
            "conditions": {"type": "object", "additionalProperties": _CONDITION},
            "limits": _LIMITS,
        },
        ("name", "description", "roles", "graph", "conditions"),
    ),
}
"""The type of a stored workflow. Empty fields are left out, so adding a field later changes no id."""

_GROUP = record_schema(
    {
        "each": _TEXT,
        **dict.fromkeys(("times", "at_once"), _COUNT),
        **dict.fromkeys(("roles", "agents", "check"), _TEXTS),
        "join": {"oneOf": [_one_of(Join), record_schema({"at_least": _COUNT}, ["at_least"])]},
        "on_failure": _one_of(OnFailure),
        "on_limit": _one_of(OnLimit),
        "deadline": _AMOUNT,
        "merge": _one_of(Merge),
    }
)
_SANDBOX = record_schema(
    {
        **dict.fromkeys(("write", "read", "env"), _LISTED),
        "network": {"oneOf": [{"const": "none"}, _TEXTS]},
        **dict.fromkeys(("memory", "processes"), _COUNT),
        "seconds": _AMOUNT,
        "best_effort": {"const": True},
    }
)
_ADDED: dict[str, Schema] = {
    "workdir": _one_of(Workdir),
    "knowledge": record_schema({"tokens": _COUNT, "path": _TEXT, "required": {"const": True}}, ["tokens"]),
    "may_start_threads": {"const": True},
    "group": _GROUP,
    "on_crash": _one_of(OnCrash),
    "reuse": {"type": "boolean"},
    "stand_in": _TEXT,
    "sandbox": {"oneOf": [{"const": "off"}, _SANDBOX]},
}
"""The fields of a role that were added to the type, in the order in which they were added."""
_OF_WORKFLOW = ("workdir", "on_crash", "reuse", "sandbox")
"""The added fields that a workflow has, as well as its roles."""


def _extend(schema: Schema, key: str) -> Schema:
    """Return a workflow type with another field for the roles and, if workflows have that field too, for the
    workflow."""
    properties = schema["properties"]
    role = properties["roles"]["additionalProperties"]
    role = {**role, "properties": {**role["properties"], key: _ADDED[key]}}
    more = {key: _ADDED[key]} if key in _OF_WORKFLOW else {}
    roles = {"type": "object", "additionalProperties": role}
    return {**schema, "properties": {**properties, "roles": roles, **more}}


SCHEMAS = tuple(accumulate(_ADDED, _extend, initial=WORKFLOW_SCHEMA))
"""All types of a stored workflow, oldest first."""


def type_of(payload: JsonObject) -> Schema:
    """Return the type of a stored form. A node's id also depends on the type, so a workflow is stored with the oldest
    type that has all its fields."""
    used = {*payload, *(key for role in payload["roles"].values() for key in role)}
    return SCHEMAS[max((number for number, key in enumerate(_ADDED, 1) if key in used), default=0)]


_AS_STORED = ("agent", "resume", "extract", "workdir", "on_crash", "reuse", "stand_in")
"""The fields of a role that are stored under their own names, if they are given."""


def to_payload(workflow: StoredWorkflow, schema_ids: Mapping[str, str]) -> JsonObject:
    """Return the stored form of a workflow. `schema_ids` maps each role to the node of its schema."""
    optional = {
        "limits": dump_limits(workflow.limits) or None,
        "version": workflow.version or None,
        "python": workflow.python,
        **{key: getattr(workflow, key) for key in _OF_WORKFLOW},
        "sandbox": workflow.sandbox and sandbox_payload(workflow.sandbox),
    }
    return {
        "name": workflow.name,
        "description": workflow.description,
        "roles": {name: _role_payload(role, schema_ids[name]) for name, role in workflow.roles.items()},
        "graph": {name: [edge._asdict() for edge in edges] for name, edges in workflow.graph.items()},
        "conditions": {name: condition._asdict() for name, condition in workflow.conditions.items()},
        **{key: value for key, value in optional.items() if value is not None},
    }


def _role_payload(role: StoredRole, schema_id: str) -> JsonObject:
    optional = {
        **{key: getattr(role, key) for key in _AS_STORED},
        "limits": dump_limits(role.limits) or None,
        "knowledge": role.knowledge and recall_payload(role.knowledge),
        "may_start_threads": role.may_start_threads or None,
        "group": role.group and group_payload(role.group),
        "sandbox": role.sandbox and sandbox_payload(role.sandbox),
    }
    return {
        "description": role.description,
        "goal": role.prompt,
        "capabilities": list(role.capabilities),
        "procedure": role.procedure,
        "output": role.output,
        "meta": schema_id,
        **{key: value for key, value in optional.items() if value is not None},
    }


def recall_payload(recall: Recall) -> JsonObject:
    payload = {"tokens": recall.tokens, "path": recall.path, "required": recall.is_required or None}
    return {key: value for key, value in payload.items() if value is not None}


def sandbox_payload(sandbox: Sandbox) -> JsonObject | Literal["off"]:
    """Return the fields of a sandbox that differ from their defaults."""
    return "off" if sandbox.is_off else _changed_fields(sandbox)


def _changed_fields(part: Sandbox | Group) -> dict[str, Any]:
    changed = {key: value for key, value in part._asdict().items() if value != part._field_defaults[key]}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in changed.items()}


def describe_sandbox(sandbox: Sandbox, restrictions: Collection[str] | None = None) -> str:
    """Describe a sandbox in words, such as `no network, at most 40 processes`. With the restrictions of the sandbox's
    role, also describe what they add, and where the role can write by default."""
    if sandbox.is_off:
        return "off"
    words: list[str] = []
    if sandbox.write is None and restrictions is not None:
        is_held = not {"read_only", "no_file_edit"}.isdisjoint(restrictions)
        words.append("writes nothing" if is_held else "writes only to its work folder")
    elif sandbox.write is not None:
        words.append(f"writes only to {', '.join(sandbox.write)}" if sandbox.write else "writes nothing")
    if sandbox.read is not None:
        words.append(f"reads only {', '.join(('its work folder', *sandbox.read))}")
    if "no_shell_exec" in (restrictions or ()):
        words.append("no commands")
    if sandbox.network != "all":
        is_none = sandbox.network == "none"
        words.append("no network" if is_none else f"connects only to {', '.join(sandbox.network)}")
    if sandbox.env is not None:
        words.append(f"gets only {', '.join(('basic variables', *sandbox.env))}")
    if sandbox.memory is not None:
        words.append(f"{sandbox.memory / 1e6:,.0f} MB for each process")
    if sandbox.processes is not None:
        words.append(f"at most {sandbox.processes:,} processes")
    if sandbox.seconds is not None:
        words.append(f"{sandbox.seconds:g} s for each call")
    if sandbox.best_effort:
        words.append("as far as the machine can enforce it")
    return ", ".join(words) or "the defaults"


def read_sandbox(payload: JsonObject | Literal["off"]) -> Sandbox:
    if isinstance(payload, str):
        return Sandbox(is_off=True)
    fields: JsonObject = {key: tuple(one) if isinstance(one, list) else one for key, one in payload.items()}
    return Sandbox(**fields)


def group_payload(group: Group) -> JsonObject:
    """Return the fields of a group that differ from their defaults."""
    join = {"join": {"at_least": group.join}} if isinstance(group.join, int) else {}
    return _changed_fields(group) | join


def read_group(payload: JsonObject) -> Group:
    lists = {key: tuple(payload[key]) for key in ("roles", "agents", "check") if key in payload}
    join = payload.get("join", "all")
    return Group(**{**payload, **lists, "join": join["at_least"] if isinstance(join, Mapping) else join})


def dump_limits(limits: Limits) -> dict[str, int | float]:
    """Return the limits that are set, by name."""
    return {key: value for key, value in limits._asdict().items() if value is not None}


def schema_ids_of(payload: JsonObject) -> dict[str, str]:
    """Return the node of each role's schema in a stored workflow, in Rolecall's form or the predecessor's."""
    return {name: role.get("meta") or role["frontmatter"] for name, role in payload["roles"].items()}


def from_payload(payload: JsonObject, schemas: Mapping[str, JsonObject]) -> StoredWorkflow:
    """Return the workflow with this stored form. `schemas` maps the ids of nodes to the roles' schemas.

    The predecessor's form is accepted as well. In that form, schemas are under `frontmatter`, and edges are a mapping
    from status to target.
    """
    ids = schema_ids_of(payload)
    graph: dict[str, tuple[Edge, ...]] = {}
    for source, edges in payload["graph"].items():
        if isinstance(edges, list):
            graph[source] = tuple(Edge(**edge) for edge in edges)
            continue
        graph[source] = tuple(
            Edge(
                role=target["role"],
                status=None if is_any_status(source, status) else status,
                prompt=target.get("prompt") or "",
                location=target.get("location"),
            )
            for status, target in edges.items()
        )
    return StoredWorkflow(
        name=payload["name"],
        description=payload["description"],
        version=str(payload.get("version", "")),
        roles={name: _read_role(role, schemas[ids[name]]) for name, role in payload["roles"].items()},
        graph=graph,
        conditions={name: Condition(**entry) for name, entry in (payload.get("conditions") or {}).items()},
        limits=Limits(**(payload.get("limits") or {})),
        python=payload.get("python"),
        **{key: payload[key] for key in _OF_WORKFLOW if key in payload and key != "sandbox"},
        sandbox=read_sandbox(payload["sandbox"]) if "sandbox" in payload else None,
    )


def _read_role(payload: JsonObject, schema: JsonObject) -> StoredRole:
    recall = payload.get("knowledge")
    return StoredRole(
        description=payload["description"],
        prompt=payload["goal"],
        capabilities=tuple(payload["capabilities"]),
        procedure=payload["procedure"],
        output=payload["output"],
        schema=schema,
        limits=Limits(**(payload.get("limits") or {})),
        knowledge=recall and Recall(recall["tokens"], recall.get("path"), recall.get("required", False)),
        may_start_threads=payload.get("may_start_threads", False),
        group=read_group(payload["group"]) if "group" in payload else None,
        sandbox=read_sandbox(payload["sandbox"]) if "sandbox" in payload else None,
        **{key: payload[key] for key in _AS_STORED if key in payload},
    )
