"""Whether a workflow's roles could be played here: each has an agent, and the agent's program is there.

Nothing is started; `doctor.py` asks programs for more. Problems are placed where the definition names the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rolecall.settings.yaml12 import Marks, Node, Path, Place, Problem

if TYPE_CHECKING:
    from rolecall.checks.doctor import Need
    from rolecall.workflow.playbook import Playbook


def nowhere_in(file: str) -> Place:
    """The place of what a definition does not say itself."""
    return Place(file, 0, 0)


def problems(
    book: Playbook,
    file: str,
    *,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    find: Callable[[str], Playbook],
    severity: Literal["error", "warning"] = "warning",
) -> Iterator[Problem]:
    """Roles that no agent here can play, and overrides in the configuration that match no role. `find` finds the
    workflows that play roles. An agent or an option that cannot exist anywhere is always an error."""
    from rolecall.checks.doctor import absence, needs_of
    from rolecall.threads import workspace

    name = book.workflow.name
    needs = needs_of([book], lambda book, role: workspace.cast(settings, book, role, environment=env), find)
    marks: Marks | None = None
    for need in needs:
        trouble = need.trouble or (absence(need.cast.agent, env) if need.cast else None)
        if need.workflow == name and trouble is not None:
            path = _agent_path(settings, name, need)
            marks = marks or (_marks_of(file) if path else None)
            where = marks.at(path, key=True) if marks and path else nowhere_in(file)
            is_own = bool(path) and bool(need.entry.agent)
            kind = "error" if is_own and _cannot_exist(settings, need.entry.agent or "") else severity
            yield Problem(kind, f"{need.role}: {trouble.text}", *where, trouble.fix)
    for role in _overridden(settings, name) - set(book.workflow.roles):
        message = f"agentOverrides.{name}.{role} of the configuration fits no role of this workflow"
        yield Problem("warning", message, *nowhere_in(file), f"Roles: {', '.join(book.workflow.roles)}.")


def _cannot_exist(settings: Mapping[str, Any], agent: str) -> bool:
    """Whether no configuration can define an agent. A name without a colon may be an alias on another machine."""
    from rolecall import agents
    from rolecall.agents.options import typed
    from rolecall.errors import UsageError
    from rolecall.threads.engine import HUMAN

    name, colon, argument = agent.partition(":")
    if not colon or name == HUMAN or agent in (settings.get("agents") or {}):
        return False
    if name not in agents.ADAPTERS or not argument.strip():
        return True
    try:
        if name not in agents.SPOKEN:
            typed(name, agents.written(name, argument))
    except UsageError:
        return True
    return False


def _agent_path(settings: Mapping[str, Any], workflow: str, need: Need) -> Path:
    """Where a definition names the agent of a role; empty when the configuration does."""
    if need.role in _overridden(settings, workflow):
        return ()
    if need.entry.agent:
        return ("roles", need.role, "agent")
    return () if settings.get("defaultAgent") else ("roles", need.role)


def _overridden(settings: Mapping[str, Any], workflow: str) -> set[str]:
    overrides = (settings.get("agentOverrides") or {}).get(workflow)
    return set(overrides) if isinstance(overrides, dict) else set()


def _marks_of(file: str) -> Marks:
    """The positions of the keys of a definition. Included files have positions of their own, so they are not read."""
    from rolecall.settings import yaml12
    from rolecall.workflow import rolefiles
    from rolecall.workflow.yaml import is_index

    unknown = Marks(Node(None, Place(file, 1, 1)))
    if not file.endswith((".yaml", ".yml")):
        return unknown

    def include(path: str, _: str) -> tuple[str, str]:
        return path, "{}"

    with open(file, encoding="utf-8") as stream:
        node = yaml12.read(stream.read(), source=file, include=include).node
    if node is None:
        return unknown
    if is_index(file):
        rolefiles.add(node, file, include)
    return Marks(node)
