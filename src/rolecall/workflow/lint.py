"""Find problems in a workflow as a whole before it runs. The code is pure.

The checks take a workflow from any source and report positions as paths into it; `yaml.py` turns these paths into lines
and columns. A problem that is certain to fail or mislead is an error; a problem that might be intended is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from rolecall.errors import UsageError
from rolecall.settings.capabilities import IMPLY_SANDBOX, RESTRICTIONS, must_not_write, restrictions
from rolecall.settings.form import did_you_mean
from rolecall.store.canonical import JsonObject, Schema
from rolecall.store.lazy import Module
from rolecall.workflow import command, condition, group, outcome, template
from rolecall.workflow.model import (
    END,
    FAIL,
    MOST_MEMBERS,
    STANDARD_FIELDS,
    START,
    STATUS_KEYS,
    SUSPEND,
    Edge,
    Group,
    Limits,
    Sandbox,
    StoredRole,
    StoredWorkflow,
    group_payload,
    member_roles,
    member_workdir,
    runs_processes,
    sandbox_of,
)
from rolecall.workflow.outcome import Resolved, Variant

if TYPE_CHECKING:
    import difflib
    import graphlib
else:
    difflib = Module("difflib")
    graphlib = Module("graphlib")

Path = tuple[str | int, ...]

ENDINGS = (END, FAIL)
RESERVED = (START, END, FAIL, SUSPEND)
UNDECLARED_FIELDS = (*STATUS_KEYS, *STANDARD_FIELDS, "reason")
"""Fields that an output may contain although its schema does not declare them."""

_OF_MEMBERS = (
    *("prompt", "procedure", "output", "capabilities", "agent", "resume", "extract", "knowledge"),
    *("may_start_threads", "limits", "reuse", "stand_in", "sandbox"),
)
"""Keys that a team leaves to the roles of its members."""
_MOST_ORDERED = 300
"""The maximum number of roles for which the order of roles is computed. In a larger workflow, any role may have run
before any other."""
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
    """One problem, and the path of the value that has the problem. With `at_key`, the problem is in the key."""

    severity: Literal["error", "warning"]
    path: Path
    message: str
    hint: str = ""
    at_key: bool = False


class Unread(NamedTuple):
    """Parts of a workflow that could not be read. Problems that only follow from their absence are not reported."""

    schemas: Collection[str] = ()
    """Roles whose schema is broken."""
    edges: Collection[str] = ()
    """Sources of edges that could not be read."""
    has_limits: bool = False
    """Whether at least one limit could not be read."""


def check(
    workflow: StoredWorkflow,
    *,
    unread: Unread,
    functions: Collection[str] = (),
    prompts: Collection[str] = (),
) -> list[Finding]:
    """Return all findings. `functions` are the roles played by Python functions, and `prompts` are the roles with a
    Python prompt."""
    lint = _Lint(workflow, unread)
    lint.check_graph()
    lint.check_reach()
    lint.check_order()
    lint.check_schemas(functions)
    lint.check_conditions()
    lint.check_statuses()
    lint.check_templates()
    lint.check_dead_ends()
    lint.check_loops()
    lint.check_roles({*functions, *prompts})
    lint.check_groups(functions)
    lint.check_sandboxes(functions)
    return lint.findings


class _Lint:
    def __init__(self, workflow: StoredWorkflow, unread: Unread) -> None:
        self.findings: list[Finding] = []
        self._workflow = workflow
        self._roles = workflow.roles
        self._unread = unread
        self._outputs = {name: group.output_schema(workflow, name) for name in workflow.roles}
        """The output schema of each role's step. For a group, it is the schema of the members' joined results."""
        self._unusable = set(unread.schemas)
        """Roles whose schema cannot be checked."""
        for name, role in workflow.roles.items():
            if name not in unread.schemas and len(outcome.variants_of(role.schema)) >= outcome.MOST_VARIANTS:
                self._unusable.add(name)
                most = f"more than {outcome.MOST_VARIANTS} variants"
                message = f"the schema has {most}, so statuses and templates are not checked"
                self._warn(("roles", name, "schema"), message)

    def _error(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self.findings.append(Finding("error", path, message, hint, at_key))

    def _warn(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self.findings.append(Finding("warning", path, message, hint, at_key))

    def _edges(self) -> Iterator[tuple[str, int, Edge]]:
        for source, edges in self._workflow.graph.items():
            for index, edge in enumerate(edges):
                yield source, index, edge

    # -- the graph --

    def check_graph(self) -> None:
        graph = self._workflow.graph
        if START not in graph:
            hint = f"Add the first role: `{START}: <role>`."
            self._error(("graph",), f"the graph has no {START}", hint, at_key=True)
        for source in graph:
            place = ("graph", source)
            if source in RESERVED and source != START:
                self._error(place, f"{source} cannot have outgoing edges", "Remove this entry.", at_key=True)
            elif source != START and source not in self._roles:
                hint = did_you_mean(source, self._roles, what="Roles")
                message = f"the graph has edges out of {source!r}, which is not a role"
                self._error(place, message, hint, at_key=True)
        for source, index, edge in self._edges():
            path = ("graph", source, index, "role")
            if edge.role in ENDINGS:
                if source == START:
                    self._error(path, f"{START} leads to {edge.role}, so no role would ever run")
            elif edge.role == SUSPEND:
                hint = f"A role suspends by ending with the status {SUSPEND} and a reason; no edge is needed."
                self._error(path, f"{source} leads to {SUSPEND}, which is not a target", hint)
            elif edge.role == START:
                message = f"{source} leads to {START}, which only begins a thread"
                self._error(path, message, "Name a role instead.")
            elif edge.role not in self._roles:
                hint = did_you_mean(edge.role, [*self._roles, *ENDINGS], what="Targets")
                self._error(path, f"{source} leads to {edge.role!r}, which is not a role", hint)

    def check_reach(self) -> None:
        if self._unread.edges:  # an edge that could not be read might lead to any role
            return
        targets = {edge.role for _, _, edge in self._edges()}
        teams = {name for role in self._roles.values() if role.group for name in role.group.roles}
        reached = _reachable(self._workflow)
        # If $START leads nowhere, report only that, instead of reporting every role as unreachable.
        starts_nowhere = reached.isdisjoint(self._roles)
        for name in (name for name in self._roles if not name.startswith("$")):
            if name in self._workflow.graph:
                if name not in reached and not starts_nowhere:
                    message = f"the role {name!r} cannot be reached from {START}"
                    self._error(("graph", name), message, at_key=True)
            elif name in targets:
                hint = f"Add `{name}: {END}` or another target to the graph."
                self._error(("roles", name), f"the role {name!r} has no outgoing edge", hint, at_key=True)
            elif name not in teams:
                hint = "Lead to it from another role, or remove it."
                message = f"the role {name!r} is defined but not in the graph"
                self._error(("roles", name), message, hint, at_key=True)

    def check_order(self) -> None:
        """Check lists of edges for edges that are never taken. In a list, the first condition that holds decides."""
        for source, edges in self._workflow.graph.items():
            seen: list[str | None] = []
            for index, edge in enumerate(edges):
                if edge.status is not None:
                    break
                path, never = ("graph", source, index), f"edge {index + 1} of {source} is never taken"
                if None in seen:
                    message = f"{never}: edge {seen.index(None) + 1} has no condition"
                    self._error(path, message, "Move the edge without condition to the end.")
                elif edge.condition in seen:
                    self._error((*path, "condition"), f"{never}: {edge.condition!r} stands before it")
                seen.append(edge.condition)
            if seen and None not in seen and source not in self._unread.edges:
                message = f"when no condition holds, the thread is suspended after {source}"
                hint = "End the list with an edge without condition."
                self._warn(("graph", source), message, hint, at_key=True)

    # -- schemas --

    def check_schemas(self, functions: Collection[str]) -> None:
        """Check schemas for requirements that no output can meet, or that the agent cannot know."""
        for name, role in self._roles.items():
            if name in self._unusable:
                continue
            schema = ("roles", name, "schema")
            for unmet in outcome.find_unmet(role.schema):
                # A function returns its output as a value, which can have any fields.
                if unmet.is_closed or name not in functions:
                    report = self._error if unmet.is_top or unmet.is_closed else self._warn
                    message = f"{unmet.name!r} is required but not declared{unmet.where}"
                    hint = did_you_mean(unmet.name, unmet.known, what="Declared")
                    report((*schema, *unmet.path), message, hint)
            for path, names in outcome.find_forbidden(role.schema):
                message = f"this forbids {_quote(names)}, which another part of the schema requires"
                hint = "Declare them beside it, or leave it out."
                self._error((*schema, *path), message, hint, at_key=True)
            for path, message in outcome.find_contradictions(role.schema):
                self._error((*schema, *path), message, at_key=True)

    # -- conditions --

    def check_conditions(self) -> None:
        conditions = self._workflow.conditions
        used: dict[str, list[str]] = {}
        for source, index, edge in self._edges():
            if edge.condition is None:
                continue
            used.setdefault(edge.condition, []).append(source)
            if edge.condition not in conditions:
                hint = did_you_mean(edge.condition, conditions, what="Conditions")
                message = f"the condition {edge.condition!r} is not defined"
                self._error(("graph", source, index, "condition"), message, hint)
        for name, entry in conditions.items():
            if name not in used:
                self._warn(("conditions", name), f"the condition {name!r} is not used", at_key=True)
            path = ("conditions", name, "expression")
            if problem := condition.check(entry.expression):
                self._error(path, f"the condition {name!r} cannot be used: {problem}")
                continue
            for field in condition.output_fields(entry.expression):
                self._check_field(path, field, used.get(name, []))

    def _check_field(self, path: Path, field: condition.OutputField, sources: list[str]) -> None:
        """Report a field that no output can have, because it would silently make the condition false."""
        is_last = field.recent == 1 and bool(sources)
        owners = sources if is_last else list(self._roles)
        if any(owner in self._unusable or owner not in self._roles for owner in owners):
            return
        variants = [variant for owner in owners for variant in outcome.variants_of(self._outputs[owner])]
        known = outcome.names_in(variants)
        if field.name not in known and field.name not in UNDECLARED_FIELDS:
            whose = " or ".join(dict.fromkeys(owners)) if is_last else "any role"
            hint = did_you_mean(field.name, known, what="Fields")
            self._error(path, f"{field.name!r} is not a field of the output of {whose}", hint)

    # -- statuses --

    def check_statuses(self) -> None:
        for source, edges in self._workflow.graph.items():
            routed = {edge.status: index for index, edge in enumerate(edges) if edge.status is not None}
            for status in [status for status in routed if status.startswith("$")]:
                message = f"the status {status!r} is a reserved name"
                hint = "Statuses of your own do not begin with $."
                if status == SUSPEND:
                    message = f"an edge for the status {SUSPEND} is never taken: it suspends the thread"
                    hint = "Remove this edge."
                self._error(("graph", source, routed.pop(status)), message, hint, at_key=True)
            has_status = any(edge.status is not None for edge in edges)
            if has_status and source in self._roles and source not in self._unusable:
                self._check_routing(source, routed)

    def _check_routing(self, source: str, routed: dict[str, int]) -> None:
        output = self._outputs[source]
        statuses = outcome.statuses_of(output)
        schema, wanted = ("roles", source, "schema"), ", ".join(routed)
        example = f'`"$status": {{enum: [{wanted}]}}` among its properties, and in `required`'
        if statuses.not_text:
            message = f"statuses of {source} that are not text: {', '.join(map(repr, statuses.not_text))}"
            self._error((*schema, "properties", statuses.key or ""), message, "Quote them.", at_key=True)
        if len(outcome.variants_of(output)) > 1 and (statuses.key is None or statuses.is_open):
            key = statuses.key or "$status"
            what = f"not every variant of its schema has a constant {key!r}"
            hint = f'Give each variant `"{key}": {{const: <status>}}`; edges: {wanted}.'
            self._error(schema, f"{source} is routed by status, but {what}", hint)
            return
        if statuses.key is None:
            message = f"{source} is routed by status, but its schema has no '$status' or 'status'"
            self._error(schema, message, f"Add {example}.")
            return
        if statuses.is_open:
            message = f"the schema of {source} allows any {statuses.key!r}, so its agent cannot know which ones lead on"
            path = (*schema, "properties", statuses.key)
            self._warn(path, message, f"Write {example}.", at_key=True)
            return

        missing = [status for status in statuses.known if status not in routed and status != SUSPEND]
        if missing and source not in self._unread.edges:
            message = f"{source} can end with {_quote(missing)}, for which the graph has no edge"
            self._error(("graph", source), message, f"It has edges for: {wanted or 'none'}.", at_key=True)
        known = set(statuses.known)
        for status in [status for status in routed if status not in known]:
            hint = did_you_mean(status, statuses.known, what="Statuses")
            message = f"the schema of {source} has no status {status!r}, so this edge is never taken"
            self._error(("graph", source, routed[status]), message, hint, at_key=True)
        if statuses.is_optional:
            key = statuses.key
            message = f"{key!r} is not required by the schema of {source}; without it the thread is suspended"
            self._warn(schema, message, f"Add it: `required: [{key}]`.")

    # -- templates --

    def check_templates(self) -> None:
        # An edge that could not be read might lead anywhere.
        is_ordered = not self._unread.edges and len(self._roles) <= _MOST_ORDERED
        earlier = _Earlier(self._workflow, self._outputs, self._unusable, is_ordered, {})
        for source, index, edge in self._edges():
            for field, text in (("prompt", edge.prompt), ("location", edge.location)):
                if text is None or "{{" not in text:
                    continue
                path = ("graph", source, index, field)
                for flaw in template.problems(text):
                    self._error(path, f"{flaw.message}{_line_in(text, flaw.line)}")
                if source == START or (source in self._roles and source not in self._unusable):
                    self._check_variables(source, edge, path, text, earlier)
        for name, role in self._roles.items():
            if role.group is not None and role.group.check:
                self._check_command(name, ("roles", name, "check"), role.group.check, earlier)
            if command.is_run(role.agent):
                words = command.words_of(str(role.agent))
                self._check_command(name, ("roles", name, "agent"), words, earlier)

    def _check_command(self, name: str, path: Path, words: Sequence[str], earlier: _Earlier) -> None:
        """Check the tags in a role's command along each edge that leads to the role."""
        try:
            found = list(command.tags(words))
        except UsageError as error:
            self._error(path, error.message, error.hint)
            return
        for tag in found:
            giver = self._roles.get(tag.role)
            denied = {"read_only", "no_shell_exec"} & set(giver.capabilities if giver else ())
            if denied and (tag.place == 0 or tag.reader):
                message = f"{tag.role} may not run commands ({denied.pop()}), so it cannot choose the program of {name}"
                self._error(path, message, "Let a role without that restriction name the command.")
            elif tag.reader:
                hint = f"Let {tag.role} name a list of words, and let {tag.word} be the whole command."
                self._warn(path, f"{tag.reader} reads {tag.word} as a program, whatever it contains", hint)
            known = len(self.findings)
            for source, _, edge in self._edges():
                usable = source == START or (source in self._roles and source not in self._unusable)
                if edge.role == name and usable and len(self.findings) == known:
                    self._check_variables(source, edge, path, tag.word, earlier)

    def _check_variables(self, source: str, edge: Edge, path: Path, text: str, earlier: _Earlier) -> None:
        uses = [use for use in template.variables(text) if use.path != (".",)]
        given = () if source == START else outcome.variants_with(self._outputs[source], edge.status)
        named = [use.path[1] for use in uses if use.path[0] == "steps" and use.path[1:]]
        steps = earlier.outputs(source, edge, dict.fromkeys(named))
        always: Variant = (*_ALWAYS, {"properties": {"steps": steps}, "required": ["steps"]})
        scopes = [(always,), given] if given else [(always,)]
        hides_steps = "steps" in outcome.names_in(given)
        whose = f"{source} ends with {edge.status!r}" if edge.status else source
        for use in uses:
            inner, found = _resolve(use, scopes)
            tag, line = "{{" + use.name + "}}", _line_in(text, use.line)
            is_earlier = use.path[0] == "steps" and not hides_steps
            if is_earlier and (problem := self._earlier_problem(use, found, steps)):
                self.findings.append(Finding(problem[0], path, f"{tag} {problem[1]}{line}", problem[2]))
            elif found is None:
                visible = reversed([*scopes, *inner][1:])
                names = [name for scope in visible for name in outcome.names_in(scope)]
                names += [f"start.{field}" for field in condition.START_FIELDS]
                names += ["steps.ROLE", "thread", "steps_count", "body"]
                hint = did_you_mean(use.name, names, what="Available")
                target = self._roles.get(edge.role)
                if use.path[0] in ("item", "number") and target is not None and target.group is not None:
                    hint = f"All members get the edge's prompt; write {tag} into the prompt of {edge.role}."
                if use.path[0] == "steps" and use.path[1:2] and use.path[1] in self._roles:
                    hint = f"The output of {source} has a field 'steps' of its own, which hides the earlier roles."
                self._error(path, f"{tag} has no value after {whose}{line}", hint)
            elif use.kind == "variable" and not found.always and not _is_guarded(use):
                hint = f"Make it required, or write {{{{#{use.name}}}}}…{{{{/{use.name}}}}} around it."
                message = f"{tag} may have no value after {whose}{line}; then the thread is suspended"
                self._warn(path, message, hint)

    def _earlier_problem(
        self, use: template.Use, found: Resolved | None, steps: JsonObject
    ) -> tuple[Literal["error", "warning"], str, str] | None:
        """Return the severity, the message and the hint of the problem with a name such as `steps.planner.files`, or
        None if there is no problem."""
        is_variable = use.kind == "variable"
        if len(use.path) == 1:
            hint = "Name a role and a field: {{steps.ROLE.FIELD}}."
            return ("error", "is not a text", hint) if is_variable else None
        role = use.path[1]
        if role not in self._roles:
            hint = did_you_mean(role, self._roles, what="Roles")
            return "error", f"names {role!r}, which is not a role", hint
        if role not in steps["properties"]:
            hint = "Name a role that runs before this edge."
            return "error", f"has no value: {role} cannot have run by then", hint
        if found is None:
            fields = outcome.names_in(outcome.variants_of(steps["properties"][role]))
            hint = did_you_mean(".".join(use.path[2:]), fields, what="Fields")
            return "error", f"is not a field of the output of {role}", hint
        if role not in steps["required"] and is_variable and not _is_guarded(use):
            message = f"may have no value: {role} may not have run by then; then the thread is suspended"
            return "warning", message, f"Write {{{{#steps.{role}}}}}…{{{{/steps.{role}}}}} around it."
        return None

    # -- loops --

    def check_loops(self) -> None:
        """Report a cycle of roles in which neither the workflow nor a role has limits."""
        if self._workflow.limits != Limits() or self._unread.has_limits:
            return
        unlimited: dict[str, tuple[str, ...]] = {
            name: () for name, role in self._roles.items() if role.limits == Limits()
        }
        order = graphlib.TopologicalSorter(unlimited)
        for source, _, edge in self._edges():
            if source in unlimited and edge.role in unlimited:
                order.add(edge.role, source)
        try:
            order.prepare()
        except graphlib.CycleError as error:
            loop: list[str] = error.args[1]
            way = " -> ".join(loop if len(loop) <= 8 else [*loop[:4], "…", *loop[-3:]])
            message = f"{way} can loop forever: neither the workflow nor these roles have limits"
            self._warn(("graph", loop[0]), message, "Add for instance `limits: {steps: 30}`.", at_key=True)

    def check_dead_ends(self) -> None:
        """Report the first reachable role from which no path leads to an ending."""
        if self._unread.edges:
            return
        sources: dict[str, list[str]] = {}
        for source, _, edge in self._edges():
            sources.setdefault(edge.role, []).append(source)
        ending, waiting = set[str](), list(ENDINGS)
        while waiting:
            name = waiting.pop()
            if name not in ending:
                ending.add(name)
                waiting += sources.get(name, ())
        graph, reached = self._workflow.graph, _reachable(self._workflow)
        dead = [name for name in graph if name in reached and name in self._roles and name not in ending]
        targets = {edge.role for name in dead for edge in graph[name]}
        if dead and targets <= {*graph, *ENDINGS}:  # an unknown target has already been reported
            hint = f"Add an edge to {END} somewhere after it."
            message = f"no way leads from {dead[0]!r} to {END} or {FAIL}"
            self._warn(("graph", dead[0]), message, hint, at_key=True)

    # -- roles --

    def check_roles(self, instructed: Collection[str]) -> None:
        """Check each role. `instructed` are the roles played by a Python function or given a Python prompt."""
        for name, role in self._roles.items():
            path = ("roles", name)
            if name.startswith("$"):
                hint = f"Reserved are {', '.join(RESERVED)} and every name that begins with $."
                self._error(path, f"the role name {name!r} is reserved", hint, at_key=True)
            if command.is_run(role.agent):
                if {key: role.schema[key] for key in role.schema if key != "title"} != command.SCHEMA:
                    message = f"the role {name!r} runs a command, so its schema is known"
                    self._error((*path, "schema"), message, "Remove `schema`.", at_key=True)
                continue
            is_team = role.group is not None and bool(role.group.roles)
            if not (role.prompt.strip() or role.procedure.strip() or name in instructed or is_team):
                missing = "has neither a prompt nor a procedure, so its agent only knows what to deliver"
                hint = "Say in `prompt` who it is and in `procedure` what to do."
                self._warn(path, f"the role {name!r} {missing}", hint, at_key=True)
            if role.may_start_threads and (held := restrictions(role.capabilities)):
                why = f"because it has the restriction {held[0]!r}"
                hint = "Remove the restriction or `may_start_threads`."
                message = f"the role {name!r} may not start threads, {why}"
                self._error((*path, "may_start_threads"), message, hint)
            players = (role.agent, role.stand_in)
            cannot_stand_in = "human" in players or any(map(command.is_run, players)) or len({*players}) < 2
            if role.stand_in and cannot_stand_in:
                message = f"{role.stand_in!r} cannot stand in for {role.agent or 'the agent'!r} in {name!r}"
                hint = "Name another agent; without a stand-in the thread waits until the limit ends."
                self._error(("roles", name, "stand_in"), message, hint)
            if role.reuse and role.agent == "human":
                message = f"the role {name!r} is never reused, because a person plays it"
                self._warn((*path, "reuse"), message, "Remove `reuse`.", at_key=True)
            for number, word in enumerate(role.capabilities):
                # A misspelt restriction would have no effect, but `file-edit` is a skill, not a typo.
                if word in RESTRICTIONS or not _letters(word).startswith(("no", "read")):
                    continue
                meant = {_letters(known): known for known in RESTRICTIONS}
                if near := difflib.get_close_matches(_letters(word), meant, n=1, cutoff=0.85):
                    hint = f"Did you mean {meant[near[0]]!r}? Restrictions: {', '.join(RESTRICTIONS)}."
                    message = f"the capability {word!r} restricts nothing"
                    self._error((*path, "capabilities", number), message, hint)

    # -- sandboxes --

    def check_sandboxes(self, functions: Collection[str]) -> None:
        written: dict[Path, Sandbox | None] = {("sandbox",): self._workflow.sandbox}
        written |= {("roles", name, "sandbox"): role.sandbox for name, role in self._roles.items()}
        for path, box in written.items():
            names = (box.env if box else None) or ()
            for number in [number for number, name in enumerate(names) if name in names[:number]]:
                message = f"the variable {names[number]!r} is named twice"
                self._warn((*path, "env", number), message, "Keep one of them.")
        for name, role in self._roles.items():
            sandbox = sandbox_of(self._workflow, name)
            if sandbox is None or (role.group and role.group.roles):  # a team's roles have sandboxes
                continue
            path = ("sandbox",) if role.sandbox is None else ("roles", name, "sandbox")
            is_function = name in functions
            if not is_function and runs_processes(role):
                held = [word for word in role.capabilities if word in IMPLY_SANDBOX]
                if sandbox.is_off and held:
                    only = f"only its agent's own settings enforce {', '.join(held)}"
                    hint = "Remove `sandbox: off` to let the kernel enforce it."
                    self._warn(path, f"the role {name!r} has no sandbox, so {only}", hint)
                for number, place in enumerate(sandbox.write or ()):
                    if must_not_write(held) and _is_around_work_folder(place):
                        message = (
                            f"the role {name!r} is read_only, but its sandbox lets it write to {place!r}"
                        )
                        own = "" if role.sandbox else f", or give {name!r} a `sandbox` of its own"
                        hint = f"Leave the work folder out of `write`{own}."
                        self._error((*path, "write", number), message, hint)
            elif sandbox.is_off:
                continue
            elif role.sandbox is not None:
                who = "a Python function plays" if is_function else "only people or other workflows play"
                message = f"the role {name!r} has no processes for a sandbox, because {who} it"
                self._warn(path, message, "Remove `sandbox`.", at_key=True)
            elif not sandbox.best_effort and (
                is_function or {*((role.group and role.group.agents) or (role.agent,))} != {"human"}
            ):
                who = "a Python function" if is_function else "another workflow"
                message = (
                    f"the sandbox cannot hold the role {name!r}, which {who} plays, so no thread can start"
                )
                self._warn(path, message, f"Give {name!r} the line `sandbox: off`.", at_key=True)

    # -- groups --

    def check_groups(self, functions: Collection[str]) -> None:
        for name, role in self._roles.items():
            if role.group is None:
                continue
            path, given = ("roles", name), group_payload(role.group)
            kinds = [key for key in ("each", "times", "roles") if key in given]
            if not kinds and name in self._unusable:
                continue
            if not kinds:
                key = next((key for key in given if key != "agents"), "agent" if "agents" in given else "")
                what = repr(key) if key else "keys"
                message = f"the role {name!r} has {what} of a group, but is played by one"
                hint = "Add `each`, `times` or `roles`, which say who plays it."
                self._error((*path, key) if key else path, message, hint, at_key=True)
                continue
            if len(kinds) > 1:
                message = f"the role {name!r} has both {kinds[0]!r} and {kinds[1]!r}"
                self._error((*path, kinds[1]), message, "A group has one of them.", at_key=True)
                continue
            if role.group.roles:
                self._check_team(name, role.group)
            else:
                self._check_item_uses(name, role.group)
            for member in member_roles(self._workflow, name):
                agent = self._roles[member].agent if member in self._roles else None
                if f"workflow:{self._workflow.name}" in (agent, *role.group.agents):
                    message = f"members of {name!r} are played by the workflow that they belong to"
                    self._error(("roles", member, "agent"), message, "It would never end.")
            self._check_options(name, role.group)
            self._check_member_folders(name, role.group, functions)

    def _check_team(self, name: str, group: Group) -> None:
        path = ("roles", name)
        own = {"schema"} if self._roles[name].schema.keys() - {"title"} else set[str]()
        own |= {
            key for key in _OF_MEMBERS if getattr(self._roles[name], key) != StoredRole._field_defaults[key]
        }
        own |= {"agent"} if group.agents else set()
        for key in sorted(own):
            message = f"the team {name!r} has {key!r}, which belongs to the roles of its members"
            self._error((*path, key), message, f"Move it to {', '.join(group.roles)}.", at_key=True)
        for number, member in enumerate(group.roles):
            place = (*path, "roles", number)
            if member == name:
                self._error(place, f"the team {name!r} is its own member")
            elif member not in self._roles or member in RESERVED:
                hint = did_you_mean(member, [one for one in self._roles if one != name], what="Roles")
                self._error(place, f"{member!r} is not a role", hint)
            elif self._roles[member].group is not None:
                hint = "Let the member be played by a workflow that has the group: `agent: workflow:NAME`."
                self._error(place, f"the member {member!r} of {name!r} is a group itself", hint)

    def _check_item_uses(self, name: str, group: Group) -> None:
        """Check `each`, and the names that the prompt and the procedure of the members use."""
        properties: Schema = {"number": {"type": "integer"}, "count": {"type": "integer"}}
        if group.each is not None:
            items = self._check_each(name, group.each) or ((),)
            properties["item"] = {"oneOf": [_drop_branches(one) for one in items]}
        scope: tuple[Variant, ...] = (({"properties": properties, "required": [*properties]},),)
        role = self._roles[name]
        for key, text in (("prompt", role.prompt), ("procedure", role.procedure)):
            path = ("roles", name, key)
            for flaw in template.problems(text):
                self._error(path, f"{flaw.message}{_line_in(text, flaw.line)}")
            for use in [use for use in template.variables(text) if use.path != (".",)]:
                found = _resolve(use, [scope])[1]
                tag, line = "{{" + use.name + "}}", _line_in(text, use.line)
                if found is None:
                    item = outcome.find(scope, ("item",))
                    fields = outcome.names_in(item.variants) if item else []
                    known = [*properties, *(f"item.{field}" for field in fields)]
                    hint = did_you_mean(use.name, known, what="Available")
                    self._error(path, f"{tag} has no value for a member of {name}{line}", hint)
                elif use.kind == "variable" and not found.always and not _is_guarded(use):
                    hint = f"Make it required, or write {{{{#{use.name}}}}}…{{{{/{use.name}}}}} around it."
                    self._warn(path, f"{tag} may have no value for a member of {name}{line}", hint)

    def _check_each(self, name: str, expression: str) -> tuple[Variant, ...]:
        """Check the expression of a list. Return the variants of the list's items as far as they are known."""
        path = ("roles", name, "each")
        if problem := condition.check(expression):
            self._error(path, f"the list of {name!r} cannot be read: {problem}")
            return ()
        # An edge that could not be read might lead here as well.
        edges = [] if self._unread.edges else [entry for entry in self._edges() if entry[2].role == name]
        sources = list(dict.fromkeys(source for source, _, _ in edges))
        fields = condition.output_fields(expression)
        if fields and START in sources:
            message = f"the list of {name!r} comes from a step, but {START} leads to it before there is one"
            self._error(path, message, "Let a role that makes the list go first.")
            return ()
        before = len(self.findings)
        for field in fields:
            self._check_field(path, field, sources)
        way = condition.plain_path(expression) or ()
        if way and way[0] != "steps":
            self._error(
                path, f"{expression!r} is not a list", "Name one in an output: steps[-1].output.FIELD."
            )
        is_checked = len(self.findings) == before and not any(
            source in self._unusable or source not in self._roles for source in sources
        )
        if way[:3] != ("steps", -1, "output") or not sources or not is_checked:
            return ()

        names = [str(part) for part in way[3:]]
        outputs = [
            one
            for source, _, edge in edges
            for one in outcome.variants_with(self._outputs[source], edge.status)
        ]
        found = outcome.find(outputs, names)
        if found is not None and outcome.may_be_list(found.variants):
            return outcome.items_of(found.variants)
        for place in range(1, len(names)):  # after a list, the rest of the path is taken from each item
            listed = outcome.find(outputs, names[:place])
            if listed is not None and outcome.may_be_list(listed.variants):
                items = outcome.items_of(listed.variants)
                one = outcome.find(items, names[place:])
                if one is not None and outcome.may_be_list(one.variants):  # lists of lists become one list
                    return outcome.items_of(one.variants)
                if one is not None or not outcome.names_in(items):
                    return one.variants if one else ()
        if found is not None or names[0] not in UNDECLARED_FIELDS:
            whose = f"the output of {' or '.join(sources)}"
            what = f"a field of {whose}" if found is None else "a list"
            self._error(path, f"{'.'.join(names) or 'output'!r} is not {what}", f"Name a list in {whose}.")
        return ()

    def _check_options(self, name: str, group: Group) -> None:
        path = ("roles", name)
        most = group.times or len(group.roles)
        if isinstance(group.join, int) and most and group.join > most:
            message = f"{name!r} needs {group.join} members that are done, but has only {most}"
            self._error((*path, "join"), message)
        if (group.times or 0) > MOST_MEMBERS:
            self._error((*path, "times"), f"a group has at most {MOST_MEMBERS:,} members")
        folders = {
            member_workdir(self._workflow, name, member) for member in member_roles(self._workflow, name)
        }
        if group.merge == "queue" and folders != {"worktree"}:
            message = f"{name!r} merges its members, but they have no worktrees of their own"
            self._error((*path, "merge"), message, "Add `workdir: worktree`.")
        if self._roles[name].on_crash == "restore" and "shared" in folders:
            message = f"members of {name!r} share a folder, so a crash of one cannot undo the changes there"
            self._error((*path, "on_crash"), message, "Add `workdir: worktree`, or remove `on_crash`.")
        if group.check and group.merge != "queue":
            message = f"the check of {name!r} never runs, because nothing is merged"
            self._error((*path, "check"), message, "Add `merge: queue`.", at_key=True)

    def _check_member_folders(self, name: str, group: Group, functions: Collection[str]) -> None:
        """Report members that could write into the same folder at the same time, unless the workflow explicitly allows
        it."""
        if group.at_once == 1 or group.times == 1 or self._roles[name].workdir == "shared":
            return
        for member in member_roles(self._workflow, name):
            role = self._roles.get(member)
            if role is None or role.workdir == "shared" or member in functions:
                continue
            if member_workdir(self._workflow, name, member) != "shared" or must_not_write(role.capabilities):
                continue
            if {"no_file_edit", "no_shell_exec"} <= set(role.capabilities):
                continue
            # A person decides where to work, and another workflow decides itself in which folders its roles work.
            agents = group.agents or (role.agent or "",)
            if all(agent == "human" or agent.startswith("workflow:") for agent in agents):
                continue
            who = f"{member!r} and other members" if group.roles else "members"
            hint = (
                "Add `workdir: worktree` for a folder each, `capabilities: [read_only]` if they only read, "
                "or `workdir: shared` if this is intended."
            )
            message = f"{who} of {name!r} may write at the same time into one folder"
            self._error(("roles", member), message, hint, at_key=True)


def _reachable(workflow: StoredWorkflow, start: str = START, *, without: str | None = None) -> set[str]:
    """Return the roles that can be reached from `start` without passing through `without`. They include `start`, unless
    it is $START."""
    reached = set() if start == START else {start}
    waiting = [start]
    while waiting:
        for edge in workflow.graph.get(waiting.pop(), ()):
            if edge.role not in reached and edge.role != without:
                reached.add(edge.role)
                waiting.append(edge.role)
    return reached


class _Earlier(NamedTuple):
    """The schema of `steps` in a template, which contains the latest output of each role that has already run."""

    workflow: StoredWorkflow
    schemas: Mapping[str, JsonObject]
    """The output schemas of the roles' steps."""
    unusable: Collection[str]
    is_ordered: bool
    """Whether the order of roles is known."""
    reached: dict[tuple[str, str | None], set[str]]
    """The roles that can be reached from another role, cached once they have been found."""

    def outputs(self, source: str, edge: Edge, names: Iterable[str]) -> Schema:
        """Return the schema of `steps` at `edge` out of `source`, for the roles in `names`. Roles that must have run
        before that edge is taken are required."""
        properties: Schema = {}
        for name in (name for name in names if name in self.workflow.roles):
            if variants := self._variants(name, source, edge):
                branches = [_drop_branches(one) for one in variants]
                properties[name] = {} if name in self.unusable else {"oneOf": branches}
        sure = [
            name
            for name in properties
            if name == source or not self.is_ordered or source not in self._reach(START, without=name)
        ]
        return {"type": "object", "properties": properties, "required": sure}

    def _variants(self, name: str, source: str, edge: Edge) -> list[Variant]:
        """Return the possible latest outputs of a role at this edge, or an empty list if the role cannot have run."""
        ways: Sequence[Edge] = [edge] if name == source else self.workflow.graph.get(name, ())
        if self.is_ordered and name != source:
            is_met = name in self._reach(START)
            # If the path returns to the role, the role answers again, and its latest output is a different one.
            ways = [
                way
                for way in ways
                if is_met and way.role != name and source in self._reach(way.role, without=name)
            ]
        statuses = dict.fromkeys(way.status for way in ways)
        return [one for status in statuses for one in outcome.variants_with(self.schemas[name], status)]

    def _reach(self, start: str, without: str | None = None) -> set[str]:
        if (start, without) not in self.reached:
            self.reached[start, without] = _reachable(self.workflow, start, without=without)
        return self.reached[start, without]


def _drop_branches(variant: Variant) -> Schema:
    """Return a schema that allows only this variant."""
    branching = ("allOf", "anyOf", "oneOf", "if", "then", "else")
    return {"allOf": [{key: part[key] for key in part if key not in branching} for part in variant]}


def _resolve(
    use: template.Use, scopes: Sequence[tuple[Variant, ...]]
) -> tuple[list[tuple[Variant, ...]], Resolved | None]:
    """Return the scopes that the sections around a name add to the outer scopes, and what the name means there."""
    inner: list[tuple[Variant, ...]] = []

    def find(path: tuple[str, ...]) -> Resolved | None:
        for scope in reversed([*scopes, *inner]):
            if outcome.find(scope, path[:1]) is not None:
                return outcome.find(scope, path)
        # An object without declared fields might contain the name, so nothing is reported.
        is_open = any(outcome.find(scope, path[:1], is_nested=True) for scope in inner)
        return Resolved(((),), True) if is_open else None

    for section in use.inside:
        found = find(section)
        inner.append(outcome.items_of(found.variants) if found else ())
    return inner, find(use.path)


def _is_guarded(use: template.Use) -> bool:
    return any(use.path[: len(section)] == section for section in use.inside)


def _line_in(text: str, line: int) -> str:
    return f" (line {line} of the text)" if "\n" in text.strip("\n") else ""


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _is_around_work_folder(path: str) -> bool:
    """Return whether a path is the work folder, is in it, or is known to contain it."""
    if path.startswith("~"):
        return False
    parts = os.path.normpath(path).split("/")
    return not any(parts) or (parts[0] != "" and (parts[0] != ".." or parts[-1] == ".."))


def _letters(word: str) -> str:
    return "".join(filter(str.isalpha, word.casefold()))
