"""Check whether a workflow's roles can be played on this machine: each role needs an agent whose program is installed.

This module starts no program; `doctor.py` does. A problem is placed where the definition names the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

import rolecall.agents as agents
from rolecall.agents.confinement import find_allowed_layers
from rolecall.errors import UsageError
from rolecall.settings.settings import Settings, agent_for
from rolecall.settings.yaml12 import Marks, Position, Problem
from rolecall.store.lazy import Module
from rolecall.workflow.playbook import Playbook, players

if TYPE_CHECKING:
    from rolecall.agents.sandbox import Layers
    from rolecall.checks import doctor
    from rolecall.threads import casting
else:  # these modules import every adapter, which takes much longer than checking a workflow
    casting = Module("rolecall.threads.casting")
    doctor = Module("rolecall.checks.doctor")


def problems(
    book: Playbook,
    file: str,
    *,
    settings: Settings,
    env: Mapping[str, str],
    find: Callable[[str], Playbook],
    marks: Marks | None,
    severity: Literal["error", "warning"] = "warning",
    layers: Callable[[], Layers] = find_allowed_layers,
) -> Iterator[Problem]:
    """Yield a problem for each role that no agent on this machine can play, and for each configured override that
    matches no role. `find` finds the workflows that play roles, `marks` contains the positions in the file, and
    `layers` returns what this machine can enforce. An agent or option that cannot exist anywhere is always an error."""
    name, roles = book.workflow.name, book.workflow.roles
    overrides = (settings.get("agentOverrides") or {}).get(name)
    overridden = set(overrides) if isinstance(overrides, dict) else set()
    nowhere = Position(file, 0, 0)  # the position of problems that are not in the definition itself
    for role, message, hint in _find_unplayable(book, settings, env, find, layers):
        group = roles[role].group
        own = roles[role].agent or ", ".join(group.agents if group else ())
        path = ("roles", role, "agent") if own else ("roles", role)
        if role in overridden or (not own and settings.get("defaultAgent")):
            yield Problem(severity, f"{role}: {message}", *nowhere, hint)
            continue
        where = marks.at(path, key=True) if marks else Position(file, 1, 1)
        named = group.agents if group and group.agents else (own,)
        kind = "error" if own and any(_cannot_exist(settings, agent) for agent in named) else severity
        yield Problem(kind, f"{role}: {message}", *where, hint)
    for role in overridden - set(roles):
        message = f"agentOverrides.{name}.{role} in the configuration matches no role of this workflow"
        yield Problem("warning", message, *nowhere, f"Roles: {', '.join(roles)}.")


def _find_unplayable(
    book: Playbook,
    settings: Settings,
    env: Mapping[str, str],
    find: Callable[[str], Playbook],
    layers: Callable[[], Layers],
) -> Iterator[tuple[str, str, str]]:
    """Yield the roles that cannot be played, each with the reason and a hint."""
    name, missing, is_simple = book.workflow.name, dict[str, UsageError](), True
    for role, played in players(book):
        own = played.workflow.roles[role].agent
        try:
            agent = agent_for(settings, workflow=name, role=role, named=own, override=None)
            is_simple = is_simple and agent == "human" and role not in book.agents
        except UsageError as error:
            if role not in (*book.functions, *book.agents, *book.bound):
                missing[role] = error
    if is_simple:
        yield from ((role, error.message, error.hint) for role, error in missing.items())
        return
    make = partial(casting.cast, settings, environment=env, layers=layers)
    for need in doctor.needs_of([book], make, find):
        trouble = need.trouble or (doctor.explain_absence(need.cast.agent, env) if need.cast else None)
        if need.workflow == name and trouble is not None:
            yield need.role, trouble.text, trouble.fix


def _cannot_exist(settings: Settings, agent: str) -> bool:
    name, colon, argument = agent.partition(":")
    # A name without a colon might be an alias on another machine.
    if not colon or name == "human" or agent in (settings.get("agents") or {}):
        return False
    if name not in agents.ADAPTERS or not argument.strip():
        return True
    try:
        if name not in agents.WITH_ARGUMENT:
            agents.make(name, agents.parse_argument(name, argument))
    except UsageError:
        return True
    return False
