"""Who has a part in each task: its owner, who checks it, which files it is about. Values, made before anything runs.

A task without an owner is an engineer's, and says so. Tasks of an owner that nobody knows are named, all at once.
Tasks of Lead are left to Lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.nexus.catalog import STAND_INS, Agent, Catalog
from rolecall.plan_run import filenames, pairing
from rolecall.plan_run.taskflow import Players
from rolecall.settings.form import did_you_mean

Task = Mapping[str, Any]

LEAD = "lead"
ASSUMED = "engineer"
"""Who does what nobody was named for."""


class Job(NamedTuple):
    """A task of an agent, and who else has a part in it."""

    task: Task
    players: Players
    pairing: str
    """Why somebody checks it, or nobody."""
    files: frozenset[str] = frozenset()
    """What it writes, as far as its text tells; nothing where its owner writes no files."""
    named: frozenset[str] = frozenset()
    """The files that its text names, whether its owner writes or reads them."""
    works: tuple[float, ...] = ()
    """Where it is a check: the tasks that it checks."""
    work_files: frozenset[str] = frozenset()
    """What those write: needed when they have to be done again."""
    is_assumed: bool = False
    """Nobody was named for it."""

    @property
    def id(self) -> float:
        number: float = self.task["id"]
        return number


class Assigned(NamedTuple):
    jobs: dict[float, Job]
    """By the task's id."""
    unknown: tuple[Task, ...]
    """Those whose owner nobody knows."""


def assign(tasks: Sequence[Task], catalog: Catalog, *, tree: filenames.Tree) -> Assigned:
    """A job for every task that is not completed and not Lead's, as far as its owner is known."""
    by_id = {task["id"]: task for task in tasks}
    wanted = [task for task in tasks if task["status"] != "completed" and not is_leads(task)]
    open_tasks = [task for task in wanted if _is_known(task, catalog)]
    checks = _checks(open_tasks, catalog)

    def files(of: Iterable[Task]) -> frozenset[str]:
        return filenames.named_by((task for task in of if writes(_owner(task, catalog))), tree)

    def job(task: Task) -> Job:
        agent = _owner(task, catalog)
        is_assumed = not task.get("owner")
        if agent.category != "check":
            pair = pairing.pair(task, owner=agent.id, checks=checks.get(task["id"], ()))
            players = Players((agent.id,), pair.checker)
            named = filenames.named_by([task], tree)
            return Job(task, players, pair.reason, files([task]), named, is_assumed=is_assumed)
        works = [by_id[dep] for dep in task["deps"] if dep in by_id and _is_work(by_id[dep], catalog)]
        doers = tuple(dict.fromkeys(_owner(work, catalog).id for work in works))
        works_ids = tuple(work["id"] for work in works)
        told = f"it is the check of {', '.join(map(str, works_ids))}" if works else "it is a check itself"
        return Job(
            task, Players(doers, agent.id, is_check=True), told, works=works_ids, work_files=files(works)
        )

    unknown = tuple(task for task in wanted if not _is_known(task, catalog))
    return Assigned({task["id"]: job(task) for task in open_tasks}, unknown)


def is_leads(task: Task) -> bool:
    return bool(task.get("owner") == LEAD)


def _owner(task: Task, catalog: Catalog) -> Agent:
    return catalog.agent(task.get("owner") or ASSUMED)


def writes(agent: Agent) -> bool:
    """Whether an agent of the catalogue may change files."""
    return not {"no_file_edit", "read_only"}.intersection(agent.capabilities)


def _is_work(task: Task, catalog: Catalog) -> bool:
    """Whether an agent of ours did the task, so that it can be asked to do it again."""
    owner = task.get("owner") or ASSUMED
    return owner in catalog.agents and catalog.agents[owner].category == "do"


def _checks(tasks: Sequence[Task], catalog: Catalog) -> dict[float, list[float]]:
    """For each task those that check it."""
    found: dict[float, list[float]] = {}
    for task in tasks:
        if _owner(task, catalog).category == "check":
            for dep in task["deps"]:
                found.setdefault(dep, []).append(task["id"])
    return found


def _is_known(task: Task, catalog: Catalog) -> bool:
    owner = task.get("owner") or ASSUMED
    return owner in catalog.agents or STAND_INS.get(owner) in catalog.agents


def refuse(unknown: Sequence[Task], catalog: Catalog) -> None:
    """An error for tasks of owners that nobody knows, if there are any."""
    if unknown:
        listed = ", ".join(f"{task['id']} ({task['owner']!r})" for task in unknown[:10])
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise UsageError(
            f"nobody is known who could do these tasks: {listed}{more}",
            hint=did_you_mean(str(unknown[0]["owner"]), [*catalog.agents, LEAD], what="Owners"),
        )
