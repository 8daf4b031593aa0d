"""Choose the agent of each role from the workflow, the configuration and the thread's own options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rolecall.agents import ADAPTERS, WITH_ARGUMENT, add_tools, make, parse_argument, resolve
from rolecall.agents.confinement import find_allowed_layers
from rolecall.agents.presence import check_present
from rolecall.errors import RolecallError, UsageError
from rolecall.settings import config
from rolecall.settings.form import did_you_mean
from rolecall.settings.models import builtin_options
from rolecall.settings.settings import (
    OUTSIDE,
    Settings,
    agent_for,
    get_agent_spec,
    has_effects,
    tier_model,
    unknown_agent,
)
from rolecall.store.canonical import JsonObject
from rolecall.threads.sandboxing import check_role
from rolecall.threads.setup import HUMAN, Cast
from rolecall.workflow.model import StoredRole, StoredWorkflow, sandbox_of
from rolecall.workflow.playbook import Playbook, players

if TYPE_CHECKING:
    from rolecall.agents.sandbox import Layers

_UNBOUND = ("env", "mcp")
"""Options that may contain secrets. They are not stored with a thread, but read from the configuration at each step."""


def cast(
    settings: Settings,
    book: Playbook,
    role: str,
    *,
    override: str | None = None,
    environment: Mapping[str, str] | None = None,
    tiers: Mapping[str, str] | None = None,
    names_role: bool = True,
    layers: Callable[[], Layers] | None = None,
) -> Cast:
    """Return the agent that plays a role. Raise an error if the agent is unknown or cannot enforce the role's
    restrictions, so that nothing runs in that case; with `names_role`, the error names the role. `tiers` maps roles to
    model tiers. `layers` returns the sandbox layers that this machine can enforce; if not given, they are detected."""
    made = _make(settings, book, role, override, environment, (tiers or {}).get(role, ""))
    if book.workflow.roles[role].may_start_threads and hasattr(made.agent, "mcp"):
        made = made._replace(agent=add_tools(made.agent, environment or config.environment()))
    if made.name != HUMAN:
        layers = layers or partial(find_allowed_layers, environment)
        check_role(made.name, made.agent, book.workflow, role, layers=layers, names_role=names_role)
    return made


def cast_stand_in(
    settings: Settings, book: Playbook, role: str, *, environment: Mapping[str, str] | None = None
) -> Cast:
    """Return the agent that the workflow names as the stand-in for the role's agent."""
    named = {"name": book.workflow.roles[role].stand_in}
    return cast(settings, book._replace(bound={role: named}), role, environment=environment)


def cast_alone(settings: Settings, name: str, *, environment: Mapping[str, str] | None = None) -> Cast:
    """Return the agent for an alias or a spec, for a role without restrictions."""
    book = Playbook(StoredWorkflow("try", roles={"try": StoredRole()}))
    return cast(settings, book, "try", override=name, environment=environment)


def _make(
    settings: Settings,
    book: Playbook,
    role: str,
    override: str | None,
    environment: Mapping[str, str] | None,
    tier: str,
) -> Cast:
    named, bound = book.workflow.roles[role].agent, book.bound.get(role)
    if named == HUMAN:  # the workflow asks for a person, so no agent may answer
        return Cast(HUMAN, _refuse_asking)
    if override is None and bound is None and role in book.agents:
        agent = book.agents[role]
        name = getattr(agent, "name", getattr(agent, "__name__", "python"))
        return Cast(name, agent, getattr(agent, "effects", "") == OUTSIDE)
    if bound is None:
        name = agent_for(settings, workflow=book.workflow.name, role=role, named=named, override=override)
        spec, options = get_agent_spec(settings, name)
    elif "spec" not in bound:
        name = bound["name"]
        spec, options = get_agent_spec(settings, name)
    else:
        name, spec = bound["name"], bound["spec"]
        entry = (settings.get("agents") or {}).get(name)
        unbound = {key: entry[key] for key in _UNBOUND if key in entry} if isinstance(entry, dict) else {}
        options = {**unbound, **bound.get("options", {})}

    kind, _, argument = spec.partition(":")
    if kind == HUMAN:
        return Cast(HUMAN, _refuse_asking)
    if kind not in ADAPTERS:
        raise unknown_agent(settings, name, (*ADAPTERS, HUMAN))
    model = tier_model(settings, (name, kind), tier) if tier else ""
    if model and (kind == "acp" or kind not in WITH_ARGUMENT):
        options = {"model": model, **options}  # the agent's own entry and spec take precedence
    if kind == "builtin":
        written = {**options, **parse_argument("builtin", argument)}
        given = builtin_options(settings, environment or config.environment(), written)
        return Cast(name, make("builtin", given), has_effects(settings, name))
    made = resolve(spec, options)
    return Cast(name, made, has_effects(settings, name) or getattr(made, "effects", "") == OUTSIDE)


async def _refuse_asking(_prompt: str, _context: Any) -> str:
    raise UsageError("a role played by a person is not asked by the engine")


def assign(book: Playbook, agents: Mapping[str, str], folder: str) -> Playbook:
    """Return the playbook with `agents` bound to single roles. These bindings take precedence over an agent that plays
    every role."""
    for role in agents:
        if role not in book.workflow.roles:
            raise UsageError(
                f"{book.workflow.name} has no role {role!r} to give an agent",
                hint=did_you_mean(role, book.workflow.roles),
            )
        own = book.workflow.roles[role].agent or ""
        if role in book.functions or own == HUMAN or own.startswith("run:"):
            what = "a person" if own == HUMAN else "a command" if own else "code"
            raise UsageError(f"{role} is played by {what}, never by an agent", hint="Leave it out.")
    named = {role: {"name": agent_from(folder, agent)} for role, agent in agents.items()}
    return book._replace(bound={**book.bound, **named})


def find_unusable(book: Playbook, override: str | None) -> list[tuple[str, RolecallError]]:
    """Return the roles without a usable agent, each with the error that explains why."""
    settings, found = config.load(), list[tuple[str, RolecallError]]()
    for role, played in players(book):
        if role in book.functions:
            sandbox = sandbox_of(played.workflow, role)
            if sandbox is not None and not sandbox.is_off and not sandbox.best_effort:
                error = UsageError(
                    f"the sandbox of the role {role!r} has no effect, because its function runs in Rolecall's own "
                    "process",
                    hint="Give the role the line `sandbox: off`, or let an agent or a command play it.",
                )
                found.append((role, error))
            continue
        try:
            made = cast(settings, played, role, override=override)
            check_present(made.agent, env=config.environment())
            if played.workflow.roles[role].stand_in and override is None:  # a stand-in need not be installed
                cast_stand_in(settings, played, role)
        except RolecallError as problem:
            found.append((role, problem))
    return found


def refuse_miscast(book: Playbook, override: str | None) -> None:
    """Raise an error if any role has no usable agent, before other roles incur costs."""
    for _, error in find_unusable(book, override):
        raise error


def agent_from(folder: str, agent: str) -> str:
    """Make the script path in the name of a scripted agent absolute, because the thread may run in another folder."""
    check_name(agent)
    kind, _, file = agent.partition(":")
    return f"scripted:{os.path.abspath(os.path.join(folder, file))}" if kind == "scripted" and file else agent


def check_name(agent: str) -> None:
    if not isinstance(agent, str):
        raise UsageError(
            f"an agent must be given as a name, such as 'claude' or 'claude:opus', not as {agent!r}",
            hint="A `Role` of a `Workflow` takes an adapter or a function.",
        )


def binder(
    override: str | None = None, agents: Mapping[str, JsonObject] | None = None
) -> Callable[[Playbook], dict[str, Any]]:
    """Return a function that binds agents to the roles of a new thread, by name and with their current definitions in
    the configuration. A role without a bound agent takes an agent from the configuration at its turn. The agents that a
    group lists have the keys `ROLE#1`, `ROLE#2` and so on. `agents` are those that `assign` gave to single roles."""

    def bind(book: Playbook) -> dict[str, Any]:
        settings, mask, bound = config.load(), config.mask(), dict[str, Any]()
        places: list[tuple[str, str, str | None]] = []
        for role, part in book.workflow.roles.items():
            if part.group is None or not (part.group.agents or part.group.roles):
                places.append((role, role, part.agent))
            else:  # members take the group's agents in turn; a team has the agents of its roles
                listed = enumerate(part.group.agents, 1)
                places += ((f"{role}#{number}", role, agent) for number, agent in listed)
        for place, role, agent in places:
            chosen = agents[role]["name"] if agents and role in agents else override
            is_of_code = role in book.functions or (chosen is None and role in book.agents)
            if is_of_code or agent == HUMAN:
                continue
            try:
                name = agent_for(
                    settings, workflow=book.workflow.name, role=role, named=agent, override=chosen
                )
                spec, options = get_agent_spec(settings, name)
            except UsageError:
                if chosen is not None:
                    raise
                continue
            kept = {key: value for key, value in options.items() if key not in _UNBOUND}
            definition = {"spec": spec} | ({"options": kept} if kept else {})
            is_safe = mask.value(definition) == definition
            bound[place] = {"name": mask.text(name)} | (definition if is_safe else {})
        return bound

    return bind
