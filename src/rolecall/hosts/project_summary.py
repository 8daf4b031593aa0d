"""A short summary of a project's state for the model: plan, tasks, knowledge, running agents.

The state is read from disk, and the summary is cut to a number of tokens, with the most important lines first. A file
that cannot be read is reported, so that nobody mistakes it for an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rolecall.errors import RolecallError
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.sessions import HostSession
from rolecall.nexus import knowledge_files, overview, tools, tracker

if TYPE_CHECKING:
    from rolecall.nexus.reply import PlanIssue, PlanReply, ProjectTask, TaskListReply

T = TypeVar("T")

SHORT, LONG = 400, 1_500
"""The number of tokens for a summary beside a user's message, and for one after a compaction."""
_MOST_IDS = 20
_MOST_RESUMABLE = 10
_LONGEST_TITLE = 80
_LONGEST_DECISION = 160
_LONGEST_PROBLEM = 400


def count_tokens(text: str) -> int:
    """Estimate a text's tokens as four bytes each, which overestimates prose and is about right for the rest."""
    return -(-len(text.encode(errors="replace")) // 4)


def fit(lines: Iterable[str], budget: int) -> str:
    """Return the first lines that fit into `budget` tokens, with a note of the number of lines left out."""
    kept: list[str] = []
    left, all_lines = budget * 4 - 40, list(lines)
    for line in all_lines:
        left -= len(line.encode(errors="replace")) + 1
        if left < 0:
            kept.append(f"(and {len(all_lines) - len(kept)} lines more: nx_plan_status, nx_task_list)")
            break
        kept.append(line)
    return "\n".join(kept)


class ProjectState:
    """The plan and tasks as they are on disk now."""

    def __init__(self, project: str) -> None:
        plan, self.plan_problem = _try(overview.plan_status, tools.plan_status, project=project)
        self.plan: PlanReply = plan or {"active": False}
        tasks, self.tasks_problem = _try(overview.task_list, tools.task_list, project=project)
        found: TaskListReply = tasks or {}
        self.goal = found.get("goal", "")
        self.tasks = found.get("tasks", [])
        self.summary = found.get("summary")

    @property
    def has_tasks(self) -> bool:
        return self.summary is not None or bool(self.tasks_problem)

    @property
    def unfinished(self) -> int:
        return sum(task["status"] != "completed" for task in self.tasks)

    def pending_issues(self) -> list[PlanIssue]:
        return [issue for issue in self.plan.get("issues", ()) if issue["status"] == "pending"]

    @property
    def ready_ids(self) -> set[float]:
        return set(self.summary["ready"]) if self.summary else set()


def read_tasks(project: str) -> tuple[list[ProjectTask], str]:
    """Return the tasks as a tool reads them before changing one, or the reason why they cannot be read."""
    found, problem = _try(tools.task_list, project=project)
    return found.get("tasks", []) if found else [], problem


def _try(*readers: Callable[[str], T | None], project: str) -> tuple[T | None, str]:
    """Return the first result of a reader that is not None, or None with the error message of a reader that fails."""
    try:
        return next(found for read in readers if (found := read(project)) is not None), ""
    except RolecallError as exc:
        return None, exc.message[:_LONGEST_PROBLEM]


def summarize(project: str, hooks: HookContext, now: ProjectState) -> str:
    """Return the plan, tasks and knowledge in a few lines for a message; empty if there are none."""
    lines = [
        *filter(None, [hooks.problem]),
        *_plan_lines(now),
        *_task_lines(now),
        *_unverified_lines(now, hooks),
    ]
    if known := knowledge_files.format_counts(knowledge_files.counts(project)):
        lines.append(f"Knowledge in .nexus/: {known}.")
    return fit(["Where the project stands:", *lines], SHORT) if lines else ""


def describe(project: str, session: HostSession, hooks: HookContext, budget: int = LONG) -> str:
    """Return what a model needs after a compaction: skill, plan, tasks, agents and knowledge."""
    now = ProjectState(project)
    lines = []
    if session.skill:
        lines.append(f"Active skill: {session.skill}{f', mode {session.mode}' if session.mode else ''}.")
    lines += [*_plan_lines(now), *_task_lines(now), *_agent_lines(project, session, hooks)]
    lines += _unverified_lines(now, hooks)
    ready = now.ready_ids
    begun = [("in progress", task) for task in now.tasks if task["status"] == "in_progress"]
    for state, task in [*begun, *(("ready", task) for task in now.tasks if task["id"] in ready)]:
        owner = f", {task['owner']}" if task.get("owner") else ""
        lines.append(f"- task {task['id']} ({state}{owner}) {_shorten(task['title'])}")
    lines += knowledge_lines(project, most=30)
    for issue in now.plan.get("issues", ()):
        decision = f": {_shorten(issue['decision'], _LONGEST_DECISION)}" if issue.get("decision") else ""
        lines.append(f"- issue {issue['id']} ({issue['status']}) {_shorten(issue['title'])}{decision}")
    return fit(["Where the project stands, read again from disk:", *lines], budget) if lines else ""


def _plan_lines(now: ProjectState) -> list[str]:
    if now.plan_problem:
        return [f"The plan cannot be read: {now.plan_problem}"]
    if not now.plan["active"]:
        return []
    summary, pending = now.plan["summary"], now.pending_issues()
    open_issues = "; ".join(f"{issue['id']} {_shorten(issue['title'], 50)}" for issue in pending[:3])
    more = f" and {len(pending) - 3} more" if len(pending) > 3 else ""
    left = f" Pending: {open_issues}{more}." if pending else " Every issue is decided."
    topic = _shorten(now.plan["topic"])
    return [f"Plan {topic!r}: {summary['decided']} of {summary['total']} decided.{left}"]


def _task_lines(now: ProjectState) -> list[str]:
    if now.tasks_problem:
        return [f"The tasks cannot be read: {now.tasks_problem}"]
    count = now.summary
    if count is None:
        return []
    goal = f" {_shorten(now.goal)!r}" if now.goal else ""
    counts = f"{count['completed']} of {count['total']} completed, {count['pending']} pending"
    working = f", {count['blocked']} in progress" if count["blocked"] else ""
    return [f"Tasks{goal}: {counts}{working}. Ready: {_join_ids(count['ready'])}."]


def _unverified_lines(now: ProjectState, hooks: HookContext) -> list[str]:
    found = [task["id"] for task in find_unverified(now.tasks, hooks) if task["status"] == "completed"]
    return [f"Completed with acceptance criteria that no task verifies: {_join_ids(found)}."] if found else []


def find_unverified(tasks: Sequence[ProjectTask], hooks: HookContext) -> list[ProjectTask]:
    """Return the tasks with acceptance criteria on which no checking agent's task depends."""
    verified: set[float] = set()
    for task in tasks:
        rules = hooks.agents.get(task.get("owner", ""))
        if rules is not None and rules.category == "check":
            verified.update(task["deps"], [task["id"]])
    return [task for task in tasks if task.get("acceptance", "").strip() and task["id"] not in verified]


def _agent_lines(project: str, session: HostSession, hooks: HookContext) -> list[str]:
    """Return lines for the running agents of all sessions, and for the latest agents that can be resumed."""
    running: list[str] = []
    resumable: list[str] = []
    try:
        entries = tracker.entries(project)
    except RolecallError as exc:
        return [f"The list of agents cannot be read: {exc.message[:_LONGEST_PROBLEM]}"]
    for entry in entries:
        name, id = entry.get("agent_name", ""), entry.get("agent_id", "")
        tier = hooks.agents[name].tier if name in hooks.agents else ""
        if entry.get("status") == "completed" and tier in ("bounded", "persistent"):
            files = ", ".join(entry.get("files_touched", ())[:3])
            resumable.append(f"- can be resumed: {name} {id} ({tier}{f'; {files}' if files else ''})")
        if entry.get("status") == "running":
            task = session.agents.get(id, "").partition(" ")[0]
            work = f", task {task}" if task else ""
            whose = "" if id in session.agents else ", of another session"
            running.append(f"- running: {name or 'an agent'} {id}{work}{whose}")
    return [*running, *reversed(resumable[-_MOST_RESUMABLE:])]


def knowledge_lines(project: str, most: int) -> list[str]:
    lines = knowledge_files.as_text(project, most).splitlines()
    return ["Knowledge of the project; read what bears on your work:", *lines] if lines else []


def format_id(id: float) -> str:
    """Return an id as people write it: 3, not 3.0."""
    return str(int(id)) if id == int(id) else str(id)


def _join_ids(found: Sequence[float]) -> str:
    shown = ", ".join(map(format_id, found[:_MOST_IDS]))
    return f"{shown} and {len(found) - _MOST_IDS} more" if len(found) > _MOST_IDS else shown or "none"


def _shorten(text: str, longest: int = _LONGEST_TITLE) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
