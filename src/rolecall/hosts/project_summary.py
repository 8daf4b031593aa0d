"""Where a project stands, in a few words for the model: plan, tasks, what is known, who is at work. Read from disk.

Sized in tokens and cut to a budget, the most important first. A file that cannot be read is told of in its place, so
that nobody takes "no tasks" for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rolecall.errors import RolecallError
from rolecall.hosts.hook_context import Kit
from rolecall.hosts.sessions import Session
from rolecall.nexus import knowledge_files, overview, tools, tracker

Task: TypeAlias = Mapping[str, Any]

SHORT, LONG = 400, 1_500
"""Tokens: beside a message of the user, and when all that was said before is gone."""
_MOST_IDS = 20
_MOST_RESUMABLE = 10
_LONGEST_TITLE = 80
_LONGEST_DECISION = 160
_LONGEST_PROBLEM = 400


def tokens(text: str) -> int:
    """About how many tokens a text is: four bytes each, which is too many for prose and about right for the rest."""
    return -(-len(text.encode(errors="replace")) // 4)


def fitted(lines: Iterable[str], budget: int) -> str:
    """As many of the lines as fit; what is left out is said."""
    kept: list[str] = []
    left, all_lines = budget * 4 - 40, list(lines)
    for line in all_lines:
        size = len(line.encode(errors="replace")) + 1
        if size > left:
            break
        kept.append(line)
        left -= size
    missing = len(all_lines) - len(kept)
    if missing:
        kept.append(f"(and {missing} lines more: nx_plan_status, nx_task_list)")
    return "\n".join(kept)


class Standing:
    """Plan and tasks as they are on disk now."""

    def __init__(self, project: str) -> None:
        self.plan, self.plan_problem = _read(overview.plan_status, project)
        found, self.tasks_problem = _read(overview.task_list, project)
        self.goal: str = found.get("goal", "")
        self.tasks: list[Task] = found.get("tasks", [])
        self.summary: Mapping[str, Any] = found.get("summary", {})

    @property
    def has_plan(self) -> bool:
        return bool(self.plan.get("active")) or bool(self.plan_problem)

    @property
    def has_tasks(self) -> bool:
        return "total" in self.summary or bool(self.tasks_problem)

    @property
    def unfinished(self) -> int:
        return sum(task["status"] != "completed" for task in self.tasks)

    def pending_issues(self) -> list[dict[str, Any]]:
        return [issue for issue in self.plan.get("issues", ()) if issue["status"] == "pending"]

    @property
    def ready_ids(self) -> set[float]:
        return set(self.summary.get("ready", ()))

    def ready(self) -> list[Task]:
        ids = self.ready_ids
        return [task for task in self.tasks if task["id"] in ids]


def checked_tasks(project: str) -> tuple[list[Task], str]:
    """The tasks as a tool has them that is about to change one, or why it cannot."""
    found, problem = _read(tools.task_list, project)
    return found.get("tasks", []), problem


def _read(tool: Any, project: str) -> tuple[Mapping[str, Any], str]:
    try:
        return tool(project), ""
    except RolecallError as exc:
        return {}, exc.message[:_LONGEST_PROBLEM]


# -- beside a message --


def short(project: str, kit: Kit, now: Standing) -> str:
    """Plan, tasks and knowledge in a few lines; empty where there is none of them."""
    lines = [*filter(None, [kit.problem]), *_plan_lines(now), *_task_lines(now), *_unverified_lines(now, kit)]
    known = knowledge_files.counted(knowledge_files.counts(project))
    if known:
        lines.append(f"Knowledge in .nexus/: {known}.")
    return fitted(["Where the project stands:", *lines], SHORT) if lines else ""


def _plan_lines(now: Standing) -> list[str]:
    if now.plan_problem:
        return [f"The plan cannot be read: {now.plan_problem}"]
    if not now.plan.get("active"):
        return []
    summary, pending = now.plan["summary"], now.pending_issues()
    open_issues = "; ".join(f"{issue['id']} {_short(issue['title'], 50)}" for issue in pending[:3])
    more = f" and {len(pending) - 3} more" if len(pending) > 3 else ""
    left = f" Pending: {open_issues}{more}." if pending else " Every issue is decided."
    return [f"Plan {_short(now.plan['topic'])!r}: {summary['decided']} of {summary['total']} decided.{left}"]


def _task_lines(now: Standing) -> list[str]:
    if now.tasks_problem:
        return [f"The tasks cannot be read: {now.tasks_problem}"]
    if not now.has_tasks:
        return []
    goal = f" {_short(now.goal)!r}" if now.goal else ""
    counts = (
        f"{now.summary['completed']} of {now.summary['total']} completed, {now.summary['pending']} pending"
    )
    working = f", {now.summary['blocked']} in progress" if now.summary["blocked"] else ""
    return [f"Tasks{goal}: {counts}{working}. Ready: {_ids(now.summary['ready'])}."]


def _unverified_lines(now: Standing, kit: Kit) -> list[str]:
    found = [task["id"] for task in unverified(now.tasks, kit) if task["status"] == "completed"]
    if not found:
        return []
    return [f"Completed with acceptance criteria that no task verifies: {_ids(found)}."]


def unverified(tasks: Sequence[Task], kit: Kit) -> list[Task]:
    """Tasks with acceptance criteria on which no task of an agent depends that checks the work of others."""
    checking = [task for task in tasks if _checks(task, kit)]
    checked = {dep for task in checking for dep in task["deps"]} | {task["id"] for task in checking}
    return [task for task in tasks if task.get("acceptance", "").strip() and task["id"] not in checked]


def _checks(task: Task, kit: Kit) -> bool:
    rules = kit.agents.get(task.get("owner", ""))
    return rules is not None and rules.category == "check"


# -- after a compaction, and at the start --


def long(project: str, session: Session, kit: Kit, budget: int = LONG) -> str:
    """Everything a model has to know that has forgotten all: skill, plan, tasks, agents, knowledge."""
    now = Standing(project)
    lines = [
        *_skill_lines(session),
        *_plan_lines(now),
        *_task_lines(now),
        *agent_lines(project, session, kit),
        *_unverified_lines(now, kit),
        *_next_tasks(now),
        *knowledge_lines(project, most=30),
        *_issue_lines(now),
    ]
    return fitted(["Where the project stands, read anew from disk:", *lines], budget) if lines else ""


def _skill_lines(session: Session) -> list[str]:
    if not session.skill:
        return []
    return [f"Active skill: {session.skill}{f', mode {session.mode}' if session.mode else ''}."]


def _issue_lines(now: Standing) -> list[str]:
    lines = []
    for issue in now.plan.get("issues", ()):
        decision = f": {_short(issue['decision'], _LONGEST_DECISION)}" if issue.get("decision") else ""
        lines.append(f"- issue {issue['id']} ({issue['status']}) {_short(issue['title'])}{decision}")
    return lines


def _next_tasks(now: Standing) -> list[str]:
    working = [task for task in now.tasks if task["status"] == "in_progress"]
    lines = [f"- task {task['id']} (in progress{_owner(task)}) {_short(task['title'])}" for task in working]
    return lines + [
        f"- task {task['id']} (ready{_owner(task)}) {_short(task['title'])}" for task in now.ready()
    ]


def _owner(task: Task) -> str:
    return f", {task['owner']}" if task.get("owner") else ""


def agent_lines(project: str, session: Session, kit: Kit) -> list[str]:
    """The running agents, with those of other sessions marked, and the latest ended ones that can be resumed."""
    resumable: list[str] = []
    try:
        entries = tracker.entries(project, harness=kit.harness)
    except RolecallError as exc:
        return [f"The list of agents cannot be read: {exc.message[:_LONGEST_PROBLEM]}"]
    lines = []
    for entry in entries:
        tier = kit.agents[name].tier if (name := entry.get("agent_name", "")) in kit.agents else ""
        if entry.get("status") == "completed" and tier in ("bounded", "persistent"):
            about = ", ".join(entry.get("files_touched", ())[:3])
            resumable.append(
                f"- can be resumed: {name} {entry.get('agent_id', '')} ({tier}{f'; {about}' if about else ''})"
            )
        if entry.get("status") == "running":
            task = session.agents.get(entry.get("agent_id", ""), "").partition(" ")[0]
            work = f", task {task}" if task else ""
            whose = "" if entry.get("agent_id") in session.agents else ", of another session"
            lines.append(
                f"- running: {entry.get('agent_name', 'an agent')} {entry.get('agent_id', '')}{work}{whose}"
            )
    return [*lines, *reversed(resumable[-_MOST_RESUMABLE:])]


def knowledge_lines(project: str, most: int) -> list[str]:
    listed = knowledge_files.as_text(project, most).splitlines()
    return ["Knowledge of the project, to be read where it bears on the work:", *listed] if listed else []


# -- words --


def number(id: float) -> str:
    """An id as people write it: 3, not 3.0."""
    return str(int(id)) if id == int(id) else str(id)


def _ids(found: Sequence[float]) -> str:
    shown = ", ".join(map(number, found[:_MOST_IDS]))
    return f"{shown} and {len(found) - _MOST_IDS} more" if len(found) > _MOST_IDS else shown or "none"


def _short(text: str, longest: int = _LONGEST_TITLE) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
