"""Check whether a workflow's roles can be played here: each needs an agent whose program is installed.

No program is started; `doctor.py` does that. Problems are placed where the definition names the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rolecall.errors import UsageError
from rolecall.settings.settings import agent_for
from rolecall.settings.yaml12 import Marks, Path, Place, Problem

if TYPE_CHECKING:
    from rolecall.workflow.playbook import Playbook


def nowhere_in(file: str) -> Place:
    """A place without a line, for problems that the definition itself does not contain."""
    return Place(file, 0, 0)


def problems(
    book: Playbook,
    file: str,
    *,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    find: Callable[[str], Playbook],
    marks: Marks | None,
    severity: Literal["error", "warning"] = "warning",
) -> Iterator[Problem]:
    """Report roles that no agent here can play, and configured overrides that match no role. `find` finds the workflows
    that play roles, `marks` has the positions in the file. An agent or an option that cannot exist anywhere is always
    an error."""
    name = book.workflow.name
    for role, message, hint in _troubles(book, settings, env, find):
        own = book.workflow.roles[role].agent
        path = _agent_path(settings, name, role, own)
        where = nowhere_in(file)
        if path:
            where = marks.at(path, key=True) if marks else Place(file, 1, 1)
        kind = "error" if path and own and _cannot_exist(settings, own) else severity
        yield Problem(kind, f"{role}: {message}", *where, hint)
    for role in _overridden(settings, name) - set(book.workflow.roles):
        message = f"agentOverrides.{name}.{role} of the configuration fits no role of this workflow"
        yield Problem("warning", message, *nowhere_in(file), f"Roles: {', '.join(book.workflow.roles)}.")


def _troubles(
    book: Playbook, settings: Mapping[str, Any], env: Mapping[str, str], find: Callable[[str], Playbook]
) -> Iterator[tuple[str, str, str]]:
    """Roles that cannot be played, each with the reason and a hint."""
    name, missing = book.workflow.name, dict[str, UsageError]()
    others = False
    for role, entry in book.workflow.roles.items():
        try:
            agent = agent_for(settings, workflow=name, role=role, named=entry.agent, override=None)
            others = others or agent != "human" or role in book.agents
        except UsageError as error:
            if role not in (*book.functions, *book.agents, *book.bound):
                missing[role] = error
    if not others:  # the rest takes much longer to import than a workflow takes to check
        yield from ((role, error.message, error.hint) for role, error in missing.items())
        return
    from rolecall.checks.doctor import absence, needs_of
    from rolecall.threads import workspace

    needs = needs_of([book], lambda book, role: workspace.cast(settings, book, role, environment=env), find)
    for need in needs:
        trouble = need.trouble or (absence(need.cast.agent, env) if need.cast else None)
        if need.workflow == name and trouble is not None:
            yield need.role, trouble.text, trouble.fix


def _cannot_exist(settings: Mapping[str, Any], agent: str) -> bool:
    """Whether no configuration could define this agent. A name without a colon may be an alias on another machine."""
    from rolecall import agents
    from rolecall.agents.options import typed
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


def _agent_path(settings: Mapping[str, Any], workflow: str, role: str, own: str | None) -> Path:
    """The path of a role's agent in the definition; empty if the configuration names the agent."""
    if role in _overridden(settings, workflow):
        return ()
    if own:
        return ("roles", role, "agent")
    return () if settings.get("defaultAgent") else ("roles", role)


def _overridden(settings: Mapping[str, Any], workflow: str) -> set[str]:
    overrides = (settings.get("agentOverrides") or {}).get(workflow)
    return set(overrides) if isinstance(overrides, dict) else set()
