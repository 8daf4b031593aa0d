"""Everything that is wrong with a workflow as a whole and can be known before it runs. Pure.

It judges the value, however it came about, and names places by their path in it; `definition.py` turns
paths into lines and columns. What is certain to fail or to mislead is an error; what may be meant is a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from rolecall.settings.capabilities import RESTRICTIONS, restrictions
from rolecall.settings.form import did_you_mean
from rolecall.workflow import condition, outcome, reply, template
from rolecall.workflow.model import END, FAIL, START, SUSPEND, Edge, Limits, Role, Workflow
from rolecall.workflow.outcome import Found, Variant

Path = tuple[str | int, ...]

ENDINGS = (END, FAIL)
RESERVED = (START, END, FAIL, SUSPEND)
UNDECLARED_FIELDS = (*reply.STATUS_FIELDS, *reply.STANDARD_FIELDS, "reason")
"""Fields an output may have although its schema does not name them."""

_TEXT = {"type": "string"}
_ALWAYS: Variant = (
    {
        "properties": {
            "start": {
                "type": "object",
                "properties": dict.fromkeys(condition.START_FIELDS, _TEXT),
                "required": list(condition.START_FIELDS),
            },
            "thread": _TEXT,
            "steps_count": {"type": "integer"},
            "body": _TEXT,
        },
        "required": ["start", "thread", "steps_count", "body"],
    },
)


class Finding(NamedTuple):
    """One thing wrong, and the path of the value it is wrong with; `at_key` means the name rather than the value."""

    severity: Literal["error", "warning"]
    path: Path
    message: str
    hint: str = ""
    at_key: bool = False


class Unread(NamedTuple):
    """What a workflow leaves out because it could not be read; what would follow from that is not found."""

    schemas: Collection[str] = ()
    """Roles whose schema is broken."""
    edges: Collection[str] = ()
    """Sources some of whose edges are missing here."""
    has_limits: bool = False
    """Some limit is missing here."""


def check(
    workflow: Workflow,
    *,
    unread: Unread,
    functions: Collection[str] = (),
    prompts: Collection[str] = (),
) -> list[Finding]:
    """Every finding. `functions` are roles that Python plays itself, `prompts` those it tells what to do."""
    known = {name: role for name, role in workflow.roles.items() if name not in unread.schemas}
    vast = [name for name, role in known.items() if _is_vast(role)]
    unusable = {*unread.schemas, *vast}
    return [
        *(Finding("warning", ("roles", name, "schema"), _VAST) for name in vast),
        *_graph_findings(workflow, unread),
        *_order_findings(workflow, unread),
        *_schema_findings(workflow, unusable, functions),
        *_condition_findings(workflow, unusable),
        *_status_findings(workflow, unusable, unread),
        *_template_findings(workflow, unusable, unread),
        *_loop_findings(workflow, unread),
        *_role_findings(workflow, told={*functions, *prompts}),
        *_restriction_findings(workflow),
    ]


_VAST = (
    f"the schema has more than {outcome.MOST_VARIANTS} variants, so statuses and templates are not checked"
)


def _is_vast(role: Role) -> bool:
    return len(outcome.variants_of(role.schema)) >= outcome.MOST_VARIANTS


# -- the graph --


def _edges(workflow: Workflow) -> Iterator[tuple[str, int, Edge]]:
    for source, edges in workflow.graph.items():
        for index, edge in enumerate(edges):
            yield source, index, edge


def _graph_findings(workflow: Workflow, unread: Unread) -> Iterator[Finding]:
    if START not in workflow.graph:
        yield Finding(
            "error", ("graph",), f"the graph has no {START}", f"Add the first role: `{START}: <role>`.", True
        )
    for source in workflow.graph:
        yield from _source_findings(workflow, source)
    for source, index, edge in _edges(workflow):
        yield from _target_findings(workflow, source, (("graph", source, index, "role")), edge)
    if not unread.edges:  # one that could not be read may lead to any role
        yield from _reach_findings(workflow)


def _source_findings(workflow: Workflow, source: str) -> Iterator[Finding]:
    if source in RESERVED and source != START:
        yield Finding(
            "error", ("graph", source), f"{source} has no edges out of it", "Remove this entry.", True
        )
        return
    if source == START or source in workflow.roles:
        return
    hint = did_you_mean(source, workflow.roles, what="Roles")
    yield Finding(
        "error", ("graph", source), f"the graph has edges out of {source!r}, which is not a role", hint, True
    )


def _target_findings(workflow: Workflow, source: str, path: Path, edge: Edge) -> Iterator[Finding]:
    if edge.role in ENDINGS:
        if source == START:
            yield Finding("error", path, f"{START} leads to {edge.role}, so no role would ever run")
    elif edge.role == SUSPEND:
        hint = f"A role suspends by ending with the status {SUSPEND} and a reason; no edge is needed."
        yield Finding("error", path, f"{source} leads to {SUSPEND}, which is no target", hint)
    elif edge.role == START:
        yield Finding(
            "error", path, f"{source} leads to {START}, which only begins a thread", "Name a role instead."
        )
    elif edge.role not in workflow.roles:
        hint = did_you_mean(edge.role, [*workflow.roles, *ENDINGS], what="Targets")
        yield Finding("error", path, f"{source} leads to {edge.role!r}, which is not a role", hint)


def _reach_findings(workflow: Workflow) -> Iterator[Finding]:
    targets = {edge.role for _, _, edge in _edges(workflow)}
    reached = _reachable(workflow)
    for name in workflow.roles:
        if name.startswith("$"):
            continue
        if name in workflow.graph:
            # When $START leads nowhere, that is the finding, not the roles behind it.
            if name not in reached and not reached.isdisjoint(workflow.roles):
                yield Finding(
                    "error", ("graph", name), f"the role {name!r} cannot be reached from {START}", "", True
                )
        elif name in targets:
            hint = f"Add `{name}: {END}` or another target to the graph."
            yield Finding("error", ("roles", name), f"the role {name!r} has no edge out of it", hint, True)
        else:
            hint = "Lead to it from another role, or remove it."
            yield Finding(
                "error", ("roles", name), f"the role {name!r} is defined but not in the graph", hint, True
            )


def _reachable(workflow: Workflow, start: str = START, *, without: str | None = None) -> set[str]:
    """The roles reachable from `start` without passing `without`, and `start` itself unless it is $START."""
    reached = set() if start == START else {start}
    waiting = [start]
    while waiting:
        for edge in workflow.graph.get(waiting.pop(), ()):
            if edge.role not in reached and edge.role != without:
                reached.add(edge.role)
                waiting.append(edge.role)
    return reached


def _order_findings(workflow: Workflow, unread: Unread) -> Iterator[Finding]:
    for source, edges in workflow.graph.items():
        seen: list[str | None] = []
        for index, edge in enumerate(edges):
            if edge.status is not None:
                break
            if None in seen:
                message = f"edge {index + 1} of {source} is never taken: edge {seen.index(None) + 1} has no condition"
                yield Finding(
                    "error", ("graph", source, index), message, "Move the edge without condition to the end."
                )
            elif edge.condition in seen:
                message = f"edge {index + 1} of {source} is never taken: {edge.condition!r} stands before it"
                yield Finding("error", ("graph", source, index, "condition"), message)
            seen.append(edge.condition)
        if seen and None not in seen and source not in unread.edges:
            message = f"when no condition holds, the thread is suspended after {source}"
            hint = "End the list with an edge without condition."
            yield Finding("warning", ("graph", source), message, hint, True)


# -- schemas --


def _schema_findings(
    workflow: Workflow, unusable: Collection[str], functions: Collection[str]
) -> Iterator[Finding]:
    """What a schema asks for that no output can meet, or that nobody is told of."""
    for name, role in workflow.roles.items():
        if name in unusable:
            continue
        schema = ("roles", name, "schema")
        for unmet in outcome.unmet(role.schema):
            # A function gives its output as a value, with whatever fields it likes.
            if unmet.is_closed or name not in functions:
                yield _unmet_finding(schema, unmet)
        for path, names in outcome.forbidden(role.schema):
            message = f"this forbids {_listed(names)}, which another part of the schema requires"
            yield Finding(
                "error", (*schema, *path), message, "Declare them beside it, or leave it out.", True
            )
        for path, message in outcome.contradictions(role.schema):
            yield Finding("error", (*schema, *path), message, "", True)


def _unmet_finding(schema: Path, unmet: outcome.Unmet) -> Finding:
    is_certain = unmet.is_top or unmet.is_closed
    return Finding(
        "error" if is_certain else "warning",
        (*schema, *unmet.path),
        f"{unmet.name!r} is required but not declared{unmet.where}",
        did_you_mean(unmet.name, unmet.known, what="Declared"),
    )


# -- conditions --


def _condition_findings(workflow: Workflow, unusable: Collection[str]) -> Iterator[Finding]:
    used: dict[str, list[str]] = {}
    for source, index, edge in _edges(workflow):
        if edge.condition is None:
            continue
        used.setdefault(edge.condition, []).append(source)
        if edge.condition not in workflow.conditions:
            hint = did_you_mean(edge.condition, workflow.conditions, what="Conditions")
            message = f"the condition {edge.condition!r} is not defined"
            yield Finding("error", ("graph", source, index, "condition"), message, hint)
    for name, entry in workflow.conditions.items():
        if name not in used:
            yield Finding("warning", ("conditions", name), f"the condition {name!r} is not used", "", True)
        path = ("conditions", name, "expression")
        if problem := condition.check(entry.expression):
            yield Finding("error", path, f"the condition {name!r} cannot be used: {problem}")
            continue
        for field in condition.output_fields(entry.expression):
            yield from _field_findings(workflow, path, field, used.get(name, []), unusable)


def _field_findings(
    workflow: Workflow, path: Path, field: condition.Field, sources: list[str], unusable: Collection[str]
) -> Iterator[Finding]:
    """A field that no output can have makes a condition false for ever, without a word."""
    owners = sources if field.recent == 1 and sources else list(workflow.roles)
    if START in owners or any(owner in unusable or owner not in workflow.roles for owner in owners):
        return
    known = [
        name
        for owner in owners
        for name in outcome.names_in(outcome.variants_of(workflow.roles[owner].schema))
    ]
    if field.name in known or field.name in UNDECLARED_FIELDS:
        return
    hint = did_you_mean(field.name, known, what="Fields")
    whose = " or ".join(dict.fromkeys(owners)) if field.recent == 1 and sources else "any role"
    yield Finding("error", path, f"{field.name!r} is not a field of the output of {whose}", hint)


# -- statuses --


def _status_findings(workflow: Workflow, unusable: Collection[str], unread: Unread) -> Iterator[Finding]:
    for source, edges in workflow.graph.items():
        routed = {edge.status: index for index, edge in enumerate(edges) if edge.status is not None}
        if not routed:
            continue
        for status in [status for status in routed if status.startswith("$")]:
            index = routed.pop(status)
            yield Finding("error", ("graph", source, index), *_reserved_status(status), True)
        role = workflow.roles.get(source)
        if role is not None and source not in unusable:
            yield from _routing_findings(source, role, routed, has_all=source not in unread.edges)


def _reserved_status(status: str) -> tuple[str, str]:
    if status == SUSPEND:
        return f"an edge for the status {SUSPEND} is never taken: it suspends the thread", "Remove this edge."
    return f"the status {status!r} is a reserved name", "Statuses of your own do not begin with $."


def _routing_findings(source: str, role: Role, routed: dict[str, int], *, has_all: bool) -> Iterator[Finding]:
    statuses = outcome.statuses_of(role.schema)
    schema = ("roles", source, "schema")
    wanted = ", ".join(routed)
    example = f'`"$status": {{enum: [{wanted}]}}` among its properties, and in `required`'
    many = len(outcome.variants_of(role.schema)) > 1
    if many and (statuses.key is None or statuses.is_open):
        key = statuses.key or "$status"
        message = f"{source} is routed by status, but not every variant of its schema has a constant {key!r}"
        yield Finding(
            "error", schema, message, f'Give each variant `"{key}": {{const: <status>}}`; edges: {wanted}.'
        )
    elif statuses.key is None:
        message = f"{source} is routed by status, but its schema has no '$status' or 'status'"
        yield Finding("error", schema, message, f"Add {example}.")
    elif statuses.is_open:
        message = (
            f"the schema of {source} allows any {statuses.key!r}, so its agent is not told which ones lead on"
        )
        yield Finding("warning", (*schema, "properties", statuses.key), message, f"Write {example}.", True)
    if statuses.not_text:
        message = f"statuses of {source} that are not text: {', '.join(map(repr, statuses.not_text))}"
        yield Finding("error", (*schema, "properties", statuses.key or ""), message, "Quote them.", True)
    if statuses.key is None or statuses.is_open:
        return
    yield from _coverage_findings(source, statuses, routed, has_all=has_all)
    if statuses.is_optional:
        message = (
            f"{statuses.key!r} is not required by the schema of {source}; without it the thread is suspended"
        )
        yield Finding("warning", schema, message, f"Add it: `required: [{statuses.key}]`.")


def _coverage_findings(
    source: str, statuses: outcome.Statuses, routed: dict[str, int], *, has_all: bool
) -> Iterator[Finding]:
    missing = [status for status in statuses.known if status not in routed and status != SUSPEND]
    if missing and has_all:
        message = f"{source} can end with {_listed(missing)}, for which the graph has no edge"
        yield Finding(
            "error", ("graph", source), message, f"It has edges for: {', '.join(routed) or 'none'}.", True
        )
    known = set(statuses.known)
    for status, index in routed.items():
        if status not in known:
            hint = did_you_mean(status, statuses.known, what="Statuses")
            message = f"the schema of {source} has no status {status!r}, so this edge is never taken"
            yield Finding("error", ("graph", source, index), message, hint, True)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


# -- templates --


def _template_findings(workflow: Workflow, unusable: Collection[str], unread: Unread) -> Iterator[Finding]:
    order = _Earlier(workflow, unusable, has_all=not unread.edges)
    for source, index, edge in _edges(workflow):
        for field, text in (("prompt", edge.prompt), ("location", edge.location)):
            if text is None or "{{" not in text:
                continue
            path = ("graph", source, index, field)
            for flaw in template.problems(text):
                yield Finding("error", path, f"{flaw.message}{_line_in(text, flaw.line)}")
            known = source == START or (source in workflow.roles and source not in unusable)
            if known:
                yield from _variable_findings(workflow, source, edge, path, text, order)


def _line_in(text: str, line: int) -> str:
    return f" (line {line} of the text)" if "\n" in text.strip("\n") else ""


def _variable_findings(
    workflow: Workflow, source: str, edge: Edge, path: Path, text: str, order: _Earlier
) -> Iterator[Finding]:
    given = () if source == START else outcome.variants_with(workflow.roles[source].schema, edge.status)
    named = [use.path[1] for use in template.variables(text) if use.path[0] == "steps" and use.path[1:]]
    earlier = order.outputs(source, edge, dict.fromkeys(named))
    always: Variant = (*_ALWAYS, {"properties": {"steps": earlier}, "required": ["steps"]})
    scopes = [(always,), given] if given else [(always,)]
    whose = START if source == START else f"{source} ends with {edge.status!r}" if edge.status else source
    for use in template.variables(text):
        if use.path == (".",):
            continue
        inner = _section_scopes(use.inside, scopes)
        found = _resolved(use.path, scopes, inner)
        tag, line = "{{" + use.name + "}}", _line_in(text, use.line)
        is_earlier = use.path[0] == "steps" and "steps" not in outcome.names_in(given)
        if is_earlier and (problem := _earlier_problem(workflow, use, found, earlier)):
            yield Finding(problem[0], path, f"{tag} {problem[1]}{line}", problem[2])
        elif found is None:
            hint = did_you_mean(use.name, _names([*scopes, *inner]), what="Available")
            if use.path[0] == "steps" and use.path[1:2] and use.path[1] in workflow.roles:
                hint = (
                    f"The output of {source} has a field 'steps' of its own, which hides the earlier roles."
                )
            yield Finding("error", path, f"{tag} has no value after {whose}{line}", hint)
        elif use.kind == "variable" and not found.always and not _is_guarded(use):
            hint = f"Make it required, or write {{{{#{use.name}}}}}…{{{{/{use.name}}}}} around it."
            message = f"{tag} may have no value after {whose}{line}; then the thread is suspended"
            yield Finding("warning", path, message, hint)


_MOST_ORDERED = 300
"""In a workflow with more roles than this, any role counts as run before any other."""


class _Earlier:
    """What `steps` holds in a template: the latest output of each role that has run by then."""

    def __init__(self, workflow: Workflow, unusable: Collection[str], *, has_all: bool) -> None:
        """Whether all edges could be read; an unreadable edge may lead anywhere."""
        self._workflow = workflow
        self._unusable = unusable
        self._is_ordered = has_all and len(workflow.roles) <= _MOST_ORDERED
        self._reached: dict[tuple[str, str | None], set[str]] = {}

    def outputs(self, source: str, edge: Edge, names: Iterable[str]) -> dict[str, Any]:
        """The schema of `steps` at `edge` out of `source`, for the roles in `names`. Roles that must have run by then
        are required."""
        found = {name: self._variants(name, source, edge) for name in names if name in self._workflow.roles}
        properties = {
            name: {} if name in self._unusable else {"oneOf": [_unbranched(one) for one in variants]}
            for name, variants in found.items()
            if variants
        }
        sure = [name for name in properties if name == source or self._has_run(name, source)]
        return {"type": "object", "properties": properties, "required": sure}

    def _variants(self, name: str, source: str, edge: Edge) -> list[Variant]:
        """The possible latest outputs of a role that lead here. Empty if the role cannot have run."""
        ways: Sequence[Edge] = [edge] if name == source else self._workflow.graph.get(name, ())
        if self._is_ordered and name != source:
            is_met = name in self._reach(START)
            ways = [way for way in ways if is_met and source in self._reach(way.role)]
        statuses = dict.fromkeys(way.status for way in ways)
        schema = self._workflow.roles[name].schema
        return [one for status in statuses for one in outcome.variants_with(schema, status)]

    def _has_run(self, name: str, source: str) -> bool:
        return not self._is_ordered or source not in self._reach(START, without=name)

    def _reach(self, start: str, without: str | None = None) -> set[str]:
        if (start, without) not in self._reached:
            self._reached[start, without] = _reachable(self._workflow, start, without=without)
        return self._reached[start, without]


def _unbranched(variant: Variant) -> dict[str, Any]:
    """A schema with only this variant."""
    branching = ("allOf", "anyOf", "oneOf", "if", "then", "else")
    return {"allOf": [{key: part[key] for key in part if key not in branching} for part in variant]}


def _earlier_problem(
    workflow: Workflow, use: template.Use, found: Found | None, earlier: Mapping[str, Any]
) -> tuple[Literal["error", "warning"], str, str] | None:
    """The problem with a name such as `steps.planner.files`: severity, message and hint."""
    if len(use.path) == 1:
        return (
            ("error", "is not a text", "Name a role and a field: {{steps.ROLE.FIELD}}.")
            if use.kind == "variable"
            else None
        )
    role = use.path[1]
    if role not in workflow.roles:
        return (
            "error",
            f"names {role!r}, which is not a role",
            did_you_mean(role, workflow.roles, what="Roles"),
        )
    if role not in earlier["properties"]:
        return (
            "error",
            f"has no value: {role} cannot have run by then",
            "Name a role that runs before this edge.",
        )
    if found is None:
        fields = outcome.names_in(outcome.variants_of(earlier["properties"][role]))
        hint = did_you_mean(".".join(use.path[2:]), fields, what="Fields")
        return "error", f"is not a field of the output of {role}", hint
    if role not in earlier["required"] and use.kind == "variable" and not _is_guarded(use):
        around = f"{{{{#steps.{role}}}}}…{{{{/steps.{role}}}}}"
        message = f"may have no value: {role} may not have run by then; then the thread is suspended"
        return "warning", message, f"Write {around} around it."
    return None


def _section_scopes(
    inside: Sequence[tuple[str, ...]], scopes: Sequence[tuple[Variant, ...]]
) -> list[tuple[Variant, ...]]:
    """What the sections around a name put in front of the outer fields."""
    inner: list[tuple[Variant, ...]] = []
    for section in inside:
        found = _resolved(section, scopes, inner)
        inner.append(outcome.items_of(found.variants) if found else ())
    return inner


def _resolved(
    path: tuple[str, ...], scopes: Sequence[tuple[Variant, ...]], inner: Sequence[tuple[Variant, ...]]
) -> Found | None:
    for scope in reversed([*scopes, *inner]):
        if outcome.find(scope, path[:1]) is not None:
            return outcome.find(scope, path)
    # A section over an object that declares nothing may hold the name; then nothing is said against it.
    is_open = any(outcome.find(scope, path[:1], is_nested=True) for scope in inner)
    return Found(((),), True) if is_open else None


def _names(scopes: Sequence[tuple[Variant, ...]]) -> list[str]:
    names = [name for scope in reversed(scopes[1:]) for name in outcome.names_in(scope)]
    return [
        *names,
        *(f"start.{field}" for field in condition.START_FIELDS),
        "steps.ROLE",
        "thread",
        "steps_count",
        "body",
    ]


def _is_guarded(use: template.Use) -> bool:
    return any(use.path[: len(section)] == section for section in use.inside)


# -- loops --


def _loop_findings(workflow: Workflow, unread: Unread) -> Iterator[Finding]:
    endless = [] if unread.edges else _roles_without_ending(workflow)
    for name in endless:
        message = f"no way leads from {name!r} to {END} or {FAIL}"
        yield Finding("warning", ("graph", name), message, f"Add an edge to {END} somewhere after it.", True)
    if workflow.limits != Limits() or unread.has_limits:
        return
    free = [name for name, role in workflow.roles.items() if role.limits == Limits()]
    loop = _loop(workflow, free)
    if loop:
        shown = loop if len(loop) <= 8 else [*loop[:4], "…", *loop[-3:]]
        message = (
            f"{' -> '.join(shown)} can go round for ever: neither the workflow nor these roles have limits"
        )
        yield Finding("warning", ("graph", loop[0]), message, "Add for instance `limits: {steps: 30}`.", True)


def _roles_without_ending(workflow: Workflow) -> list[str]:
    sources: dict[str, list[str]] = {}
    for source, _, edge in _edges(workflow):
        sources.setdefault(edge.role, []).append(source)
    ending: set[str] = set()
    left: list[str] = list(ENDINGS)
    while left:
        name = left.pop()
        if name not in ending:
            ending.add(name)
            left += sources.get(name, ())
    reached = _reachable(workflow)
    dead = [
        name for name in workflow.graph if name in reached and name in workflow.roles and name not in ending
    ]
    # A role that leads to something unknown has its own finding already.
    known = {*workflow.graph, *ENDINGS}
    return [] if any(edge.role not in known for name in dead for edge in workflow.graph[name]) else dead[:1]


def _loop(workflow: Workflow, names: Sequence[str]) -> list[str]:
    """One cycle among these roles, its first role repeated at the end; empty when there is none."""
    allowed = set(names)
    finished: set[str] = set()
    for first in names:
        trail, on_trail = [first], {first}
        branches = [iter(_targets(workflow, first, allowed))]
        while trail and first not in finished:
            following = next(branches[-1], None)
            if following is None:
                on_trail.remove(trail[-1])
                finished.add(trail.pop())
                branches.pop()
            elif following in on_trail:
                return [*trail[trail.index(following) :], following]
            elif following not in finished:
                trail.append(following)
                on_trail.add(following)
                branches.append(iter(_targets(workflow, following, allowed)))
    return []


def _targets(workflow: Workflow, name: str, allowed: Collection[str]) -> list[str]:
    return [edge.role for edge in workflow.graph.get(name, ()) if edge.role in allowed]


# -- roles --


def _restriction_findings(workflow: Workflow) -> Iterator[Finding]:
    """Restrictions that contradict a role's permissions, and misspelt restrictions, which would have no effect."""
    meant = {_letters(word): word for word in RESTRICTIONS}
    for name, role in workflow.roles.items():
        if role.may_start_threads and (held := restrictions(role.capabilities)):
            yield Finding(
                "error",
                ("roles", name, "may_start_threads"),
                f"the role {name!r} has the restriction {held[0]!r}, and a restricted role may not start threads",
                "Remove the restriction or `may_start_threads`.",
            )
        for number, word in enumerate(role.capabilities):
            near = get_close_matches(_letters(word), meant, n=1, cutoff=0.85)
            is_denial = _letters(word).startswith(("no", "read"))  # `file-edit` is a skill, and no slip
            if near and is_denial and word not in RESTRICTIONS:
                yield Finding(
                    "error",
                    ("roles", name, "capabilities", number),
                    f"the capability {word!r} restricts nothing",
                    f"Did you mean {meant[near[0]]!r}? Restrictions: {', '.join(RESTRICTIONS)}.",
                )


def _letters(word: str) -> str:
    return "".join(filter(str.isalpha, word.casefold()))


def _role_findings(workflow: Workflow, *, told: Collection[str]) -> Iterator[Finding]:
    for name, role in workflow.roles.items():
        if name.startswith("$"):
            hint = f"Reserved are {', '.join(RESERVED)} and every name that begins with $."
            yield Finding("error", ("roles", name), f"the role name {name!r} is reserved", hint, True)
        if not (role.prompt.strip() or role.procedure.strip() or name in told):
            message = f"the role {name!r} has neither a prompt nor a procedure, so its agent only knows what to deliver"
            yield Finding(
                "warning",
                ("roles", name),
                message,
                "Say in `prompt` who it is and in `procedure` what to do.",
                True,
            )
