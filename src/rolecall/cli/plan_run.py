"""`rolecall plan run`: let agents carry out the tasks of the cycle.

The command has three exit codes beyond those of every command: 6 if a task failed or can never start, 7 if a task waits
for a person, and 130 if the run was interrupted. Tasks left for the lead do not count as failures.
"""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from rolecall.agents import ADAPTERS, WITH_ARGUMENT
from rolecall.agents.presence import check_present
from rolecall.api import Crew, Project, Rolecall
from rolecall.cli import CommandResult, argument, flag, repeated, verb
from rolecall.cli.arguments import AGENT, at_once
from rolecall.cli.hints import word
from rolecall.cli.output import STORE, between, format_of
from rolecall.cli.plan_view import (
    DEFAULT_AT_ONCE,
    TaskLines,
    describe_rows,
    repeat_command,
    view_outlook,
    with_command,
)
from rolecall.cli.project import PROJECT
from rolecall.cli.thread_play import EventRecords, Stopped, run_attended
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.files import git, merge
from rolecall.nexus import catalog
from rolecall.nexus.filenames import ProjectFiles
from rolecall.plan_run import taskflow
from rolecall.plan_run.assignment import Assigned, assign, refuse
from rolecall.plan_run.board import TaskBoard
from rolecall.plan_run.runner import PlanRunner
from rolecall.settings import config
from rolecall.store.canonical import JsonObject
from rolecall.threads import casting
from rolecall.workflow.playbook import Playbook

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask
    from rolecall.plan_run.assignment import TaskJob
    from rolecall.plan_run.report import Row

FAILED, WAITING, INTERRUPTED = 6, 7, 130


class CastRole(NamedTuple):
    """A role with the agent that plays it, or with the reason why no agent can."""

    book: Playbook
    role: str
    agent: str = ""
    model: str = ""
    """The model of the role's tier."""
    problem: RolecallError | None = None

    def __str__(self) -> str:
        if self.problem:
            return self.problem.message
        return f"{self.agent} ({self.model})" if self.model else self.agent


@verb(
    "plan run",
    "run this cycle's tasks with agents, in parallel up to --at-once",
    "rolecall plan run --dry-run\nrolecall plan run --agent claude --at-once 4\nrolecall plan run --task 3",
    at_once("tasks", DEFAULT_AT_ONCE),
    repeated(
        "--task",
        "ID",
        "only this task; may be repeated. If its thread failed, it begins again in a new one",
        type=between(1),
    ),
    AGENT,
    flag(
        "--worktrees", "do each task in its own git worktree, and merge it into the project when it is done"
    ),
    argument("--check", "COMMAND", "with --worktrees: must succeed after each merge, or the merge is undone"),
    flag("--dry-run", "show who would do what in which order; run nothing"),
    PROJECT,
    STORE,
)
def run(options: Namespace) -> CommandResult:
    project = Project(os.path.realpath(Project(options.project).folder))
    plan = project.plan()
    pending = [issue for issue in plan.get("issues", ()) if issue["status"] != "decided"]
    if pending:
        issues = "".join(f"\n  {issue['id']}  {issue['title']}" for issue in pending)
        raise UsageError(
            f"the plan is not decided yet:{issues}",
            hint="`rolecall plan decide ID TEXT` records a decision, `rolecall plan remove ID` drops an issue.",
        )
    if options.check and not options.worktrees:
        raise UsageError("--check runs after merges, and nothing is merged", hint="Add --worktrees.")
    try:
        check = shlex.split(options.check or "")
    except ValueError as error:
        raise UsageError(f"--check cannot be read: {error}") from error
    if options.worktrees:
        if not git.read_index(project.folder, ".nexus"):
            raise UsageError(
                "the tasks' worktrees would lack .nexus, because it is not in git",
                hint="Commit it: `git add .nexus && git commit`.",
            )
        merge.check_ready(project.folder)
    agents = catalog.load(config.catalog_folder())
    if options.dry_run:
        try:
            found = Rolecall(options.store, create=False)
        except NotFound:  # the first run creates the store
            found = None
        with found or nullcontext():
            board, jobs = _look(options, project, found, agents)
            parts = list(_cast(board, jobs, agents, options.agent))
            missing = [part for part in parts if part.problem]
            advice = _hints(missing) + ([_propose(missing)] if missing and options.agent else [])
            return view_outlook(options, board, {part.role: str(part) for part in parts}, advice)
    with Rolecall(options.store) as rolecall:
        board, jobs = _look(options, project, rolecall, agents)
        _refuse_gaps(_cast(board, jobs, agents, options.agent), options.agent)
        return _run_tasks(options, project, rolecall, board, agents, check)


def _look(
    options: Namespace, project: Project, rolecall: Rolecall | None, agents: catalog.Catalog
) -> tuple[TaskBoard, list[TaskJob]]:
    """Return the state of the tasks, and the tasks to run, without writing anything."""

    def assign_tasks(tasks: Sequence[ProjectTask]) -> Assigned:
        tree = ProjectFiles(project.folder)  # the files are read again each time, because tasks add files
        return assign(tasks, agents, tree=tree)

    board = TaskBoard(project, rolecall, assign_tasks, only=frozenset(options.task) if options.task else None)
    board.look()
    if not board.tasks:
        raise UsageError("there are no tasks", hint="`rolecall task add` adds one.")
    refuse([task for number, task in board.unknown.items() if board.is_asked_for(number)], agents)
    return board, [board.jobs[want.id] for want in board.find_state().wants]


def _cast(
    board: TaskBoard, jobs: Sequence[TaskJob], agents: catalog.Catalog, override: str | None
) -> Iterator[CastRole]:
    """Yield each role that might be needed, once, with its agent or the reason why no agent can play it."""
    settings, seen = config.load(), set()
    overrides = (settings.get("agentOverrides") or {}).get(taskflow.NAME) or {}
    for job in jobs:
        book = Playbook(taskflow.make(job.players, agents))
        chosen = override or board.agent_of(job.task)
        for role in taskflow.roles_of(job.players):
            if (role, chosen) in seen:
                continue
            seen.add((role, chosen))
            try:
                if not (chosen or overrides.get(role) or settings.get("defaultAgent")):
                    # The engine's error would suggest editing the role's file, but this role has no file.
                    raise UsageError(
                        "no agent is named",
                        hint="Set one for all (`rolecall config set defaultAgent NAME`), or use --agent.",
                    )
                tier = agents.agent(role).model_tier
                cast = casting.cast(
                    settings, book, role, override=chosen, tiers={role: tier}, names_role=False
                )
                check_present(cast.agent, env=config.environment())
                model = settings.get("modelTiers") and getattr(cast.agent, "model", "")
                yield CastRole(book, role, cast.name, model or "")
            except RolecallError as exc:
                yield CastRole(book, role, problem=exc)


def _refuse_gaps(parts: Iterable[CastRole], override: str | None) -> None:
    """If no agent can play some roles, raise one error for all of them, which names agents that can play them."""
    missing = [part for part in parts if part.problem]
    if not missing:
        return
    reasons: dict[str, list[str]] = {}
    for part in missing:
        reasons.setdefault(str(part), []).append(part.role)
    roles = "; ".join(f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items())
    hints = " ".join(hint if hint.endswith(".") else f"{hint};" for hint in _hints(missing))
    name = f"`rolecall config set agentOverrides.{taskflow.NAME}.{missing[0].role} NAME`"
    if not override:
        raise UsageError(f"no agent can play {roles}", hint=f"{hints} {name} sets one for a role.")
    raise UsageError(
        f"{override} cannot play {roles}",
        hint=f"{hints} {_propose(missing)} Without --agent, {name} sets one for a role, and"
        " `defaultAgent` plays the others.",
    )


def _hints(missing: Sequence[CastRole]) -> list[str]:
    hints = [word(part.problem.hint) for part in missing if part.problem and part.problem.hint]
    return list(dict.fromkeys(hints))


def _propose(missing: Sequence[CastRole]) -> str:
    """Return a sentence that names the configured and installed agents that can play all of these roles."""
    settings, able = config.load(), []
    adapters = (name for name in ADAPTERS if name not in WITH_ARGUMENT)
    for name in dict.fromkeys((*(settings.get("agents") or {}), *adapters)):
        try:
            for part in missing:
                cast = casting.cast(settings, part.book, part.role, override=name)
                check_present(cast.agent, env=config.environment())
        except RolecallError:
            continue
        able.append(name)
    if not able:
        return "No agent on this machine can; `rolecall agents list` shows all agents."
    return f"These agents can: {', '.join(able)}. With `rolecall plan run --agent {able[0]}` one plays every role."


def _run_tasks(
    options: Namespace,
    project: Project,
    rolecall: Rolecall,
    board: TaskBoard,
    agents: catalog.Catalog,
    check: Sequence[str],
) -> CommandResult:
    view = TaskLines(rolecall) if format_of(options) == "text" else EventRecords(options)
    crews: dict[str | None, Crew] = {}
    tiers = {agent.id: agent.model_tier for agent in agents.agents.values()}
    mask = config.mask()

    def crew_of(agent: str | None) -> Crew:
        """Return the crew for the agent with which threads were started. A crew keeps its connections between steps."""
        if agent not in crews:
            crews[agent] = rolecall.crew(agent=agent, tiers=tiers)
        return crews[agent]

    async def play(stopped: Stopped) -> list[Row]:
        def tell(kind: str, task: float | None, body: JsonObject) -> None:
            stopped.watch(kind, mask.value({"task": task, **with_command(options, body)}))

        try:
            return await PlanRunner(
                *(project, rolecall, crew_of, agents, board, stopped.cancel, tell),
                at_once=options.at_once,
                agent=options.agent,
                workdir="worktree" if options.worktrees else None,
                check=check,
            ).run()
        finally:
            for crew in crews.values():
                await crew.close()

    rows, stopped = run_attended(view, play)
    is_stopped = stopped.cancel.is_set()
    statuses = {row.status for row in rows}
    needs_person = bool(statuses & {"waiting", "set_aside"})
    code = WAITING if needs_person else FAILED if statuses & {"failed", "never"} else 0
    note = ""
    if is_stopped or (needs_person and format_of(options) == "text"):
        note = f"{'continue' if is_stopped else 'then'}: {repeat_command(options)}"
    if format_of(options) == "yaml":
        print("---")
    is_done = all(task["status"] == "completed" for task in board.tasks.values())
    tasks = [with_command(options, row.as_json()) for row in rows]
    shown = mask.value({"goal": board.goal, "done": is_done, "tasks": tasks})
    wanted = [row for row in rows if board.is_asked_for(row.task)]
    text = describe_rows(options, board, wanted, mask, rolecall.short_id_length())
    return CommandResult(
        shown, lambda: mask.text("\n".join(text)), INTERRUPTED if is_stopped else code, note=note
    )
