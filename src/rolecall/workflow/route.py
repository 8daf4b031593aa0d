"""Routing from the last step of a thread to the next role or an ending. The code is total and pure.

The result is always a value, whatever the data. If there is no route, the result is a `Stuck` with the reason and the
remedy, so the engine can suspend the thread before anything is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.workflow import template
from rolecall.workflow.model import END, FAIL, STATUS_KEYS, SUSPEND, Edge, StoredWorkflow

if TYPE_CHECKING:
    from rolecall.workflow import condition
else:
    condition = Module("rolecall.workflow.condition")  # most workflows are routed by status alone

_FORK_HINT = "Answer the thread, or correct the workflow and fork the thread here."


@dataclass(frozen=True)
class Next:
    """The thread continues with a role."""

    role: str
    prompt: str
    location: str | None


@dataclass(frozen=True)
class Ended:
    """The thread is complete."""


@dataclass(frozen=True)
class Failed:
    """The workflow has declared the thread failed."""

    reason: str


@dataclass(frozen=True)
class Suspended:
    """The role asked for a person."""

    reason: str


@dataclass(frozen=True)
class Stuck:
    """The thread cannot continue. The reason says why and what to do."""

    reason: str


Route = Next | Ended | Failed | Suspended | Stuck


def status_of(output: Any) -> str | None:
    """Return the status of an output, or None if it has no status."""
    if not isinstance(output, Mapping):
        return None
    return next((output[key] for key in STATUS_KEYS if isinstance(output.get(key), str)), None)


def route(
    workflow: StoredWorkflow,
    *,
    role: str,
    output: Any,
    start: JsonObject,
    steps: Sequence[JsonObject],
    steps_count: int,
    thread: str,
    body: str = "",
    outputs: JsonObject | None = None,
) -> Route:
    """Return the route from `role` (or `$START`) after `output`.

    `steps` are the latest steps, oldest first, each with at least `role` and `output`. `steps_count` is the number of
    all steps. `outputs` maps each role that has run to its latest output, for templates.
    """
    status = status_of(output)
    if status == SUSPEND:
        reason = output.get("reason")
        has_reason = isinstance(reason, str) and bool(reason.strip())
        return Suspended(reason if has_reason else f"{role} gave no reason")
    view = {"start": start, "thread": thread, "steps_count": steps_count, "body": body}
    # `outputs or {}` would need the length of `outputs`, which requires reading the whole chain.
    view["steps"] = {} if outputs is None else outputs
    if isinstance(output, Mapping):
        view |= {str(key): value for key, value in output.items()}
    try:
        edge = _choose(workflow, role, status, start=start, steps=steps, steps_count=steps_count)
        if edge.role == END:
            return Ended()
        way = f"the edge {role} -> {edge.role}"
        prompt = _render(edge.prompt, view, f"the prompt of {way}")
        if edge.role == FAIL:
            return Failed(prompt.strip() or f"{role} led to {FAIL}")
        if edge.role not in workflow.roles:
            message = f"{role!r} leads to {edge.role!r}, which is not a role of {workflow.name!r}."
            raise UsageError(message, hint=_FORK_HINT)
        location = None if edge.location is None else _render(edge.location, view, f"the location of {way}")
        return Next(edge.role, prompt, location)
    except UsageError as exc:
        return Stuck(f"{exc.message} {exc.hint}".rstrip())


def _choose(workflow: StoredWorkflow, role: str, status: str | None, **view: Any) -> Edge:
    edges = workflow.graph.get(role, ())
    if not edges:
        raise UsageError(f"{role!r} has no edge in the workflow {workflow.name!r}.", hint=_FORK_HINT)
    for edge in edges:
        if edge.status not in (None, status):
            continue
        if (name := edge.condition) is None:
            return edge
        if name not in workflow.conditions:
            known = ", ".join(workflow.conditions) or "none"
            raise UsageError(f"the condition {name!r} is not defined (defined: {known}).", hint=_FORK_HINT)
        try:
            if condition.evaluate(workflow.conditions[name].expression, **view):
                return edge
        except UsageError as exc:
            raise UsageError(f"{name}: {exc.message}.", hint=exc.hint or _FORK_HINT) from None
    if statuses := [edge.status for edge in edges if edge.status is not None]:
        given = "no status" if status is None else f"the status {status!r}"
        message = f"{role!r} ended with {given}, for which it has no edge (it has: {', '.join(statuses)})."
    else:
        names = ", ".join(str(edge.condition) for edge in edges)
        missing = "its list has no edge without condition"
        message = f"none of the conditions of {role!r} holds ({names}), and {missing}."
    raise UsageError(message, hint=_FORK_HINT)


def _render(text: str, view: JsonObject, what: str) -> str:
    try:
        rendered = template.render(text, view)
    except UsageError as exc:
        used = {use.path[1] for use in template.variables(text) if use.path[0] == "steps" and use.path[1:]}
        steps = view["steps"]
        idle = [name for name in sorted(used) if isinstance(steps, Mapping) and name not in steps]
        why = f" ({', '.join(idle)} {'has' if len(idle) == 1 else 'have'} not run yet)" if idle else ""
        hint = f"{exc.hint} {_FORK_HINT}".lstrip()
        raise UsageError(f"{what} cannot be written: {exc.message}{why}.", hint=hint) from None
    if text.strip() and not rendered.strip():
        raise UsageError(f"{what} is blank (template: {text.strip()[:200]!r}).", hint=_FORK_HINT)
    return rendered
