"""Decides who takes part in each task before anything runs: its owner, its checker, and the files that the task
concerns.

A task without an owner is given to an engineer, and the report says so. All tasks with unknown owners are reported
together. Lead's tasks are left to Lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import UsageError
from rolecall.nexus import filenames
from rolecall.nexus.catalog import STAND_INS, Catalog, CatalogAgent
from rolecall.plan_run import pairing
from rolecall.plan_run.taskflow import Players
from rolecall.settings.form import did_you_mean

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

LEAD = "lead"
ASSUMED = "engineer"


class TaskJob(NamedTuple):
    """A task for an agent, and the other roles that take part in it."""

    task: ProjectTask
    players: Players
    pairing: str
    """Why the task is checked, or why it is not checked."""
    files: frozenset[str] = frozenset()
    """The files that the task writes, as far as its text says; empty if its owner does not write files."""
    named: frozenset[str] = frozenset()
    """The files that the task's text names, whether its owner writes or only reads them."""
    works: tuple[float, ...] = ()
    """The tasks that this task checks; empty if it is not a check."""
    work_files: frozenset[str] = frozenset()
    """The files that the checked tasks write, in case those tasks must be done again."""
    is_assumed: bool = False
    """Whether the owner is assumed, because the task names none."""

    @property
    def id(self) -> float:
        return self.task["id"]


class Assigned(NamedTuple):
    jobs: dict[float, TaskJob]
    """The job of each task, by the task's id."""
    unknown: tuple[ProjectTask, ...]


def assign(tasks: Sequence[ProjectTask], catalog: Catalog, *, tree: filenames.ProjectFiles) -> Assigned:
    """Create a job for every task with a known owner, except completed tasks and Lead's."""
    by_id = {task["id"]: task for task in tasks}
    wanted = [task for task in tasks if task["status"] != "completed" and not is_leads(task)]
    owners = {task["id"]: task.get("owner") or ASSUMED for task in tasks}
    known = [
        task
        for task in wanted
        if owners[task["id"]] in catalog.agents or STAND_INS.get(owners[task["id"]]) in catalog.agents
    ]
    # A check can ask for a task to be done again only if an agent of the category `do` did it.
    do = {name for name, agent in catalog.agents.items() if agent.category == "do"}
    checks: dict[float, list[float]] = {}
    for task in known:
        if _owner(task, catalog).category == "check":
            for dep in task["deps"]:
                checks.setdefault(dep, []).append(task["id"])

    def files(of: Iterable[ProjectTask]) -> frozenset[str]:
        return filenames.find_names_in_tasks((task for task in of if writes(_owner(task, catalog))), tree)

    jobs: dict[float, TaskJob] = {}
    for task in known:
        agent = _owner(task, catalog)
        if agent.category != "check":
            pair = pairing.pair(task, owner=agent.id, checks=checks.get(task["id"], ()))
            jobs[task["id"]] = TaskJob(
                task,
                Players((agent.id,), pair.checker),
                pair.reason,
                files([task]),
                filenames.find_names_in_tasks([task], tree),
                is_assumed=not task.get("owner"),
            )
        else:
            works = [by_id[dep] for dep in task["deps"] if owners.get(dep) in do]
            ids = tuple(work["id"] for work in works)
            doers = tuple(dict.fromkeys(_owner(work, catalog).id for work in works))
            reason = f"it is the check of {', '.join(map(str, ids))}" if works else "it is a check itself"
            players = Players(doers, agent.id, is_check=True)
            jobs[task["id"]] = TaskJob(task, players, reason, works=ids, work_files=files(works))
    return Assigned(jobs, tuple(task for task in wanted if task["id"] not in jobs))


def is_leads(task: ProjectTask) -> bool:
    return task.get("owner") == LEAD


def _owner(task: ProjectTask, catalog: Catalog) -> CatalogAgent:
    return catalog.agent(task.get("owner") or ASSUMED)


def writes(agent: CatalogAgent) -> bool:
    """Return whether a catalogue agent is allowed to change files."""
    return not {"no_file_edit", "read_only"}.intersection(agent.capabilities)


def refuse(unknown: Sequence[ProjectTask], catalog: Catalog) -> None:
    """Raise an error if any tasks have unknown owners."""
    if unknown:
        listed = ", ".join(f"{task['id']} ({task['owner']!r})" for task in unknown[:10])
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise UsageError(
            f"these tasks have an owner that is not in the catalogue: {listed}{more}",
            hint=did_you_mean(unknown[0]["owner"], [*catalog.agents, LEAD], what="Owners"),
        )
