"""Write a workflow as YAML, and compare two workflows. The code is pure.

Reading the written YAML gives the same workflow and therefore the same id. Comments, includes, the order of keys and
the form in which an edge was written are not part of a workflow, so they are not restored. Roles are written in the
order in which a thread can reach them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolecall.store.canonical import JsonObject, Schema
from rolecall.store.lazy import Module
from rolecall.workflow.model import (
    ANY_STATUS,
    START,
    Edge,
    Limits,
    Sandbox,
    StoredRole,
    StoredWorkflow,
    dump_limits,
    group_payload,
    recall_payload,
    sandbox_payload,
)

if TYPE_CHECKING:
    import yaml
else:
    yaml = Module("yaml")

_FIRST_KEYS = ("title", "description", "type", "const", "enum", "$status", "status", "properties", "required")
_OTHER_BREAKS = re.compile("[\\r\\x85\\u2028\\u2029\\ufeff]")
"""Characters that a YAML reader might treat as a line break unless they are escaped."""
_BEGINS_NUMBERS = tuple("-+.0123456789")


class WorkflowChange(NamedTuple):
    """One difference between two workflows."""

    kind: Literal["added", "removed", "changed"]
    what: str
    """One of `workflow`, `role`, `schema`, `edge`, `condition` and `limits`."""
    name: str
    fields: tuple[str, ...] = ()
    """The names of the fields that changed."""

    def __str__(self) -> str:
        fields = f": {', '.join(self.fields)}" if self.fields else ""
        return f"{self.kind} {self.what} {self.name}".rstrip() + fields


def roles_in_order(workflow: StoredWorkflow) -> list[str]:
    """Return the roles in the order in which a thread can reach them, because a stored mapping is unordered."""
    met = {START: None}
    for source in (waiting := [START]):
        found = [edge.role for edge in workflow.graph.get(source, ()) if edge.role not in met]
        met |= dict.fromkeys(found)
        waiting += dict.fromkeys(found)
    return [name for name in (*met, *sorted(workflow.roles.keys() - met.keys())) if name in workflow.roles]


# -- writing --


def to_document(workflow: StoredWorkflow) -> JsonObject:
    """Return the mapping that a workflow's YAML contains."""
    order = roles_in_order(workflow)
    sources = [START, *order, *sorted(workflow.graph.keys() - {START, *order})]
    edges = {source: _edges(workflow.graph[source]) for source in sources if source in workflow.graph}
    conditions = {name: _without_empty(one._asdict()) for name, one in sorted(workflow.conditions.items())}
    found = _without_empty(
        {
            "name": workflow.name,
            "description": workflow.description,
            "version": workflow.version,
            "roles": {name: _role(workflow.roles[name], f"{workflow.name}.{name}") for name in order},
            "conditions": conditions,
            "graph": edges,
            "limits": dump_limits(workflow.limits),
            "workdir": workflow.workdir,
            "on_crash": workflow.on_crash,
            "reuse": workflow.reuse,
        }
    )
    return {**found, **_sandbox(workflow.sandbox)}


def to_yaml(workflow: StoredWorkflow) -> str:
    """Return the workflow as YAML."""
    return dump(to_document(workflow))


def _role(role: StoredRole, title: str) -> JsonObject:
    schema: Schema = _sort_keys(role.schema)
    # Reading the document adds this title again.
    if schema.get("title") == title:
        del schema["title"]
    fields = role._asdict() | {
        "capabilities": list(role.capabilities),
        "schema": None,
        "limits": dump_limits(role.limits),
        "extract": _sort_keys(role.extract),
        "knowledge": role.knowledge and recall_payload(role.knowledge),
        "may_start_threads": role.may_start_threads or None,
        "group": None,
        "sandbox": None,
    }
    if role.group is None:
        return {**_without_empty(fields), **_sandbox(role.sandbox), "schema": schema}
    group = dict(group_payload(role.group))
    fields |= {"agent": group.pop("agents", role.agent)} | group
    fields = {**_without_empty(fields), **_sandbox(role.sandbox)}
    return fields if role.group.roles else {**fields, "schema": schema}


def _sandbox(sandbox: Sandbox | None) -> JsonObject:
    return {} if sandbox is None else {"sandbox": sandbox_payload(sandbox)}  # empty means the defaults


def _sort_keys(value: Any) -> Any:
    """Return a JSON value with its keys in a fixed order, the most important keys first."""
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: (_FIRST_KEYS.index(key) if key in _FIRST_KEYS else 99, key))
        return {key: _sort_keys(value[key]) for key in keys}
    return [_sort_keys(item) for item in value] if isinstance(value, (list, tuple)) else value


def _edges(edges: tuple[Edge, ...]) -> Any:
    """Return edges in the shortest form: a role, a mapping from status to target, or a list."""
    if len(edges) == 1 and edges[0] == Edge(edges[0].role):
        return edges[0].role
    has_conditions = any(edge.condition is not None for edge in edges)
    if has_conditions or (len(edges) > 1 and any(edge.status is None for edge in edges)):
        return [_without_empty(edge._replace(status=None)._asdict()) for edge in edges]
    targets = {}
    for edge in edges:
        fields = _without_empty({"role": edge.role, "prompt": edge.prompt, "location": edge.location})
        targets[edge.status or ANY_STATUS] = edge.role if list(fields) == ["role"] else fields
    return targets


def _without_empty(fields: JsonObject) -> JsonObject:
    return {key: value for key, value in fields.items() if value not in (None, "", {}, [], ())}


def dump(value: Any) -> str:
    """Write a value as YAML 1.2, with texts of several lines as blocks."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
            super().increase_indent(flow, False)

    def text(dumper: Any, value: str) -> Any:
        style = '"' if _OTHER_BREAKS.search(value) else "|" if "\n" in value else None
        # PyYAML quotes for YAML 1.1, but YAML 1.2 reads more texts as numbers, such as 0o14 and 1e3.
        if style is None and value[:1] in _BEGINS_NUMBERS and " " not in value:
            style = "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style=style)

    Dumper.add_representer(str, text)
    Dumper.add_multi_representer(str, text)  # a text of a subclass of str, such as a status or a hint
    dumped: str = yaml.dump(value, Dumper=Dumper, allow_unicode=True, sort_keys=False, width=100)
    return dumped


# -- comparing --


def diff(before: StoredWorkflow, after: StoredWorkflow, *, names: tuple[str, str]) -> str:
    """Return a unified diff of the two documents, which is empty if the workflows are the same."""
    old, new = (to_yaml(one).splitlines(keepends=True) for one in (before, after))
    return "".join(unified_diff(old, new, *names))


def changes(before: StoredWorkflow, after: StoredWorkflow) -> list[WorkflowChange]:
    """Return the differences between two workflows in roles, schemas, edges, conditions and limits."""
    both = (before, after)
    heads = [one._replace(roles={}, graph={}, conditions={}, limits=Limits()) for one in both]
    roles = [{name: role._replace(schema={}) for name, role in one.roles.items()} for one in both]
    schemas = [
        WorkflowChange("changed", "schema", name)
        for name in sorted(before.roles.keys() & after.roles.keys())
        if before.roles[name].schema != after.roles[name].schema
    ]
    return [
        *_field_changes("workflow", "", *heads),
        *_field_changes("limits", "", before.limits, after.limits),
        *_entry_changes("role", *roles),
        *schemas,
        *_entry_changes("edge", _named_edges(before), _named_edges(after)),
        *_entry_changes("condition", before.conditions, after.conditions),
    ]


class _PlacedEdge(NamedTuple):
    """An edge and its position, if the position affects routing."""

    role: str
    status: str | None
    condition: str | None
    prompt: str
    location: str | None
    position: int | None


def _named_edges(workflow: StoredWorkflow) -> dict[str, _PlacedEdge]:
    """Return the edges by source and by status or condition. In a list, the position of an edge counts as well."""
    found: dict[str, _PlacedEdge] = {}
    for source, edges in workflow.graph.items():
        for index, edge in enumerate(edges):
            way = " and ".join(filter(None, (edge.status, edge.condition)))
            position = None if edge.status is not None else index
            found[f"{source} ({way})" if way else source] = _PlacedEdge(*edge, position)
    return found


def _entry_changes(
    what: str, before: Mapping[str, NamedTuple], after: Mapping[str, NamedTuple]
) -> Iterator[WorkflowChange]:
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            yield WorkflowChange("removed", what, name)
        elif name not in before:
            yield WorkflowChange("added", what, name)
        else:
            yield from _field_changes(what, name, before[name], after[name])


def _field_changes(what: str, name: str, before: NamedTuple, after: NamedTuple) -> Iterator[WorkflowChange]:
    if fields := tuple(key for key in before._fields if getattr(before, key) != getattr(after, key)):
        yield WorkflowChange("changed", what, name, fields)
