"""`rolecall plan run`: the tasks of the cycle carried out by agents, as many at once as may be.

Exit codes beyond those of every command: 6 a task failed or can never begin, 7 one waits for a person, 130
interrupted. Tasks of Lead that are left are no failure.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.cli.hints import word
from rolecall.cli.output import add_store, format_of
from rolecall.cli.plan_view import DEFAULT_LIMIT, Lines, Records, again, show_outlook, show_rows, typed
from rolecall.cli.project_call import add_project, project_of
from rolecall.cli.thread_arguments import agent_option, at_least_one
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.plan_run import taskflow
from rolecall.settings import config
from rolecall.threads import thread, workspace
from rolecall.workflow.playbook import Playbook

if TYPE_CHECKING:
    from rolecall.nexus.catalog import Catalog
    from rolecall.plan_run.assignment import Job
    from rolecall.plan_run.board import Board
    from rolecall.plan_run.report import Row
    from rolecall.store.store import Store
    from rolecall.threads.engine import Engine


class Part(NamedTuple):
    """A role and the agent that plays it, or why nobody can."""

    book: Playbook
    role: str
    agent: str = ""
    model: str = ""
    """By the tier of the role."""
    problem: RolecallError | None = None

    @property
    def shown(self) -> str:
        if self.problem:
            return self.problem.message
        return f"{self.agent} ({self.model})" if self.model else self.agent


FAILED, WAITING, INTERRUPTED = 6, 7, 130


def run_plan(options: Namespace) -> int:
    project = os.path.realpath(project_of(options))
    _check_decided(project)
    from rolecall.nexus import catalog

    agents = catalog.load(config.catalog_folder())
    if options.dry_run:
        return _look_ahead(options, project, agents)
    with workspace.open_store(options.store) as store:
        board, jobs = _taken_stock(options, project, store, agents)
        _refuse_gaps(_cast(board, jobs, agents, options.agent), options.agent)
        return _carry_out(options, project, store, board, agents)


def _refuse_gaps(parts: Iterable[Part], override: str | None) -> None:
    """One error for all roles that cannot be played, with the agents that can play them."""
    missing = [part for part in parts if part.problem]
    if not missing:
        return
    reasons: dict[str, list[str]] = {}
    hints = dict.fromkeys(word(part.problem.hint) for part in missing if part.problem)
    for part in missing:
        reasons.setdefault(part.problem.message if part.problem else "", []).append(part.role)
    listed = "; ".join(f"{', '.join(dict.fromkeys(roles))}: {reason}" for reason, roles in reasons.items())
    name = f"`rolecall config set agentOverrides.{taskflow.NAME}.{missing[0].role} NAME`"
    if not override:
        raise UsageError(
            f"no agent can play {listed}", hint=f"{' '.join(filter(None, hints))} {name} sets one for a role."
        )
    raise UsageError(
        f"{override} cannot play {listed}",
        hint=f"{' '.join(filter(None, hints))} {_proposal(missing)} Without --agent, {name} sets one for a role, and"
        " `defaultAgent` plays the others.",
    )


def _proposal(missing: Sequence[Part]) -> str:
    """The hint with agents that can play these roles."""
    able = _able(missing)
    if not able:
        return "No agent on this machine can; `rolecall agents list` shows all agents."
    return f"These agents can: {', '.join(able)}. With `rolecall plan run --agent {able[0]}` one plays every role."


def _able(missing: Sequence[Part]) -> list[str]:
    """The configured agents, and those installed here, that can play all of these roles."""
    from rolecall.agents import ADAPTERS, SPOKEN
    from rolecall.agents.presence import check_present

    settings, found = config.load(), []
    for name in dict.fromkeys(
        (*(settings.get("agents") or {}), *(one for one in ADAPTERS if one not in SPOKEN))
    ):
        try:
            for part in missing:
                cast = workspace.cast(settings, part.book, part.role, override=name)
                check_present(cast.agent, env=config.environment())
        except RolecallError:
            continue
        found.append(name)
    return found


def _look_ahead(options: Namespace, project: str, agents: Catalog) -> int:
    try:
        store = workspace.open_store(options.store, create=False)
    except NotFound:  # it is made by the first run
        store = None
    with store or nullcontext():
        board, jobs = _taken_stock(options, project, store, agents)
        parts = {part.role: part for part in _cast(board, jobs, agents, options.agent)}
        missing = [part for part in parts.values() if part.problem]
        hints = dict.fromkeys(word(part.problem.hint) for part in missing if part.problem)
        if missing and options.agent:
            hints[_proposal(missing)] = None
        show_outlook(options, board, {role: part.shown for role, part in parts.items()}, hints)
    return 0


def _taken_stock(
    options: Namespace, project: str, store: Store | None, agents: Catalog
) -> tuple[Board, list[Job]]:
    """How things stand, and what is to be run; nothing is written."""
    from rolecall.plan_run.assignment import refuse

    board = _board(options, project, store, agents)
    board.look()
    if not board.tasks:
        raise UsageError("there are no tasks", hint="`rolecall task add` adds one.")
    refuse([task for number, task in board.unknown.items() if board.is_asked_for(number)], agents)
    return board, [board.jobs[want.id] for want in board.standing().wants]


def _check_decided(project: str) -> None:
    """What is not decided yet is not carried out."""
    from rolecall.nexus import dispatch

    plan = dispatch.call(project, "plan_status")
    pending = [issue for issue in plan.get("issues", ()) if issue["status"] != "decided"]
    if pending:
        listed = "".join(f"\n  {issue['id']}  {issue['title']}" for issue in pending)
        raise UsageError(
            f"the plan is not decided yet:{listed}",
            hint="`rolecall plan decide ID TEXT` records a decision, `rolecall plan remove ID` drops an issue.",
        )


def _board(options: Namespace, project: str, store: Store | None, agents: Catalog) -> Board:
    from rolecall.plan_run.assignment import Assigned, assign
    from rolecall.plan_run.board import Board
    from rolecall.plan_run.filenames import Tree

    def assigned(tasks: Sequence[Mapping[str, Any]]) -> Assigned:
        return assign(tasks, agents, tree=Tree(project))  # looked at anew: files come with the work

    return Board(
        project,
        store,
        assigned,
        only=frozenset(options.task) if options.task else None,
    )


def _cast(board: Board, jobs: Sequence[Job], agents: Catalog, override: str | None) -> Iterator[Part]:
    """The agent for each role that may be needed, or why it cannot be had; each once."""
    from rolecall.agents.presence import check_present

    settings, seen = config.load(), set()
    for job in jobs:
        book = Playbook(taskflow.make(job.players, agents))
        chosen = override or board.agent_of(job.task)
        for role in taskflow.roles_of(job.players):
            if (role, chosen) in seen:
                continue
            seen.add((role, chosen))
            try:
                _check_named(settings, role, chosen)
                tier = agents.agent(role).model_tier
                cast = workspace.cast(settings, book, role, override=chosen, tiers={role: tier})
                check_present(cast.agent, env=config.environment())
                named = settings.get("modelTiers") and getattr(cast.agent, "model", "")
                yield Part(book, role, cast.name, named or "")
            except RolecallError as exc:
                yield Part(book, role, problem=exc)


def _check_named(settings: Mapping[str, Any], role: str, chosen: str | None) -> None:
    """The same as the engine would find, but the role is none whose file could be edited."""
    overrides = settings.get("agentOverrides") or {}
    if not (chosen or (overrides.get(taskflow.NAME) or {}).get(role) or settings.get("defaultAgent")):
        raise UsageError(
            "no agent is named",
            hint="Set one for all (`rolecall config set defaultAgent NAME`), or use --agent.",
        )


# -- running --


def _carry_out(options: Namespace, project: str, store: Store, board: Board, agents: Catalog) -> int:
    import asyncio

    from rolecall.cli.thread_live import attended
    from rolecall.plan_run.runner import Runner

    view = Lines(store) if format_of(options) == "text" else Records(options)
    engines: dict[str | None, Engine] = {}
    tiers = {agent.id: agent.model_tier for agent in agents.agents.values()}

    def engine_of(agent: str | None) -> Engine:
        """One for each agent that threads were begun with: they keep connections from step to step."""
        if agent not in engines:
            engines[agent] = workspace.engine(store, agent=agent, tiers=tiers, shares_process=True)
        return engines[agent]

    mask = workspace.mask()

    async def scene() -> tuple[list[Row], bool]:
        async with attended(view) as stopped:

            def tell(kind: str, task: float | None, body: Mapping[str, Any]) -> None:
                stopped.watch(kind, mask.value({"task": task, **typed(options, body)}))

            try:
                rows = await Runner(
                    project, engine_of, agents, board, stopped.cancel, tell, options.limit, options.agent
                ).run()
            finally:
                for engine in engines.values():
                    await engine.close()
        if stopped.error is not None:
            raise stopped.error
        return rows, stopped.cancel.is_set()

    rows, is_stopped = asyncio.run(scene())
    show_rows(options, board, rows, mask, id_length=thread.short_id_length(store))
    return _ended(options, rows, is_stopped=is_stopped)


def _ended(options: Namespace, rows: Sequence[Row], *, is_stopped: bool) -> int:
    """The exit code; what to type next is said where a person has to, or has stopped it."""
    statuses = {row.status for row in rows}
    is_for_a_person = "waiting" in statuses
    if is_stopped or (is_for_a_person and format_of(options) == "text"):
        sys.stdout.flush()
        print(f"{'continue' if is_stopped else 'then'}: {again(options)}", file=sys.stderr)
    if is_stopped:
        return INTERRUPTED
    return WAITING if is_for_a_person else FAILED if statuses & {"failed", "never"} else 0


# -- arguments --


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=at_least_one,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"how many tasks run at once (default: {DEFAULT_LIMIT})",
    )
    parser.add_argument(
        "--task",
        type=at_least_one,
        action="append",
        default=[],
        metavar="ID",
        help="only this task; may be repeated. One whose thread has failed is begun anew",
    )
    agent_option(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show who would do what in which order; nothing is run or written",
    )
    add_project(parser)
    add_store(parser)
