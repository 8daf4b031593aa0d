"""Choose agents that are ready on this machine for roles whose agent is not named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rolecall.agents.confinement import find_allowed_layers
from rolecall.errors import UsageError
from rolecall.settings.settings import Settings, agent_for
from rolecall.threads.sandboxing import check_role
from rolecall.threads.setup import Cast
from rolecall.workflow.model import START, StoredRole, StoredWorkflow

_JUDGES = re.compile(r"audit|check|critic|judge|referee|review|skeptic|verif")


class AgentChoice(NamedTuple):
    """An agent for a role."""

    agent: str
    is_second: bool = False
    """Whether this is a second agent, which judges the work of the first."""


def open_roles(workflow: StoredWorkflow, settings: Settings) -> list[str]:
    """Return the roles for which neither the workflow nor the configuration names an agent."""
    found = []
    for name, role in workflow.roles.items():
        if role.group and (role.group.agents or role.group.roles):
            continue
        try:
            agent_for(settings, workflow=workflow.name, role=name, named=role.agent, override=None)
        except UsageError:
            found.append(name)
    return found


def choose(
    workflow: StoredWorkflow, roles: Sequence[str], ready: Sequence[Cast], *, default: str = ""
) -> dict[str, AgentChoice]:
    """Choose an agent for each role that an agent can play: the first that is ready or, for a role that judges the
    work of others, a second one, because two models seldom make the same mistake. A role that judges such a judge is
    given the first agent again. `default` is the adapter of the other roles."""
    first = {edge.role for edge in workflow.graph.get(START, ())}
    chosen: dict[str, AgentChoice] = {}
    is_second = False
    for name in roles:
        able = [cast.name for cast in ready if _can_play(cast, workflow, name)]
        others = [agent for agent in able if agent != (default or ready[0].name)]
        is_judge = bool(others and _JUDGES.search(name)) and name not in first
        is_second = is_judge and not is_second
        if able:
            chosen[name] = AgentChoice(others[0], is_second=True) if is_second else AgentChoice(able[0])
    return chosen


def can_be_held_to(agent: Any, restriction: str) -> bool:
    """Return whether an agent, or the kernel on its behalf, can enforce a restriction on this machine."""
    workflow = StoredWorkflow("", roles={"": StoredRole(capabilities=(restriction,))})
    return _can_play(Cast("", agent), workflow, "")


def _can_play(cast: Cast, workflow: StoredWorkflow, role: str) -> bool:
    try:
        check_role(cast.name, cast.agent, workflow, role, layers=find_allowed_layers)
    except UsageError:
        return False
    return True
