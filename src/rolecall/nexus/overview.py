"""Reads the plan and tasks quickly for hooks, without msgspec, whose import takes longer than everything else.

Ordinary files are read directly. For any other file, the caller uses `tools`, which checks every field and reports
problems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder

if TYPE_CHECKING:
    from rolecall.nexus.reply import PlanIssue, PlanReply, ProjectTask, TaskListReply, TaskSummary
    from rolecall.nexus.state import Task

T = TypeVar("T")

ISSUE_STATUSES = ("pending", "decided")
TASK_STATUSES = ("pending", "in_progress", "completed")
REUSE_POLICIES = ("fresh", "resume_if_same_artifact", "resume")


class PlanProgress(NamedTuple):
    """The fields that determine whether a task can be started."""

    id: float
    status: str
    deps: Sequence[float]


HasProgress: TypeAlias = "PlanProgress | Task"


def progress_of(task: ProjectTask) -> PlanProgress:
    return PlanProgress(task["id"], task["status"], task["deps"])


def summarize(tasks: Sequence[HasProgress]) -> TaskSummary:
    """Count the tasks by status, and list the ids of those that can be started."""
    statuses = [task.status for task in tasks]
    return {
        "total": len(tasks),
        "completed": statuses.count("completed"),
        "pending": statuses.count("pending"),
        "blocked": statuses.count("in_progress"),  # the contract calls tasks in progress `blocked`
        "ready": ready_ids(tasks),
    }


def ready_ids(tasks: Sequence[HasProgress]) -> list[float]:
    """Return the ids of the pending tasks whose dependencies all exist and are completed."""
    done = {task.id for task in tasks if task.status == "completed"}
    return [
        task.id
        for task in tasks
        if task.status == "pending" and (not task.deps or done.issuperset(task.deps))
    ]


def describe_plan(plan: Any) -> PlanReply:
    """Return the reply of `plan_status` for a plan, which is unchecked JSON."""
    issues: list[PlanIssue] = list(plan["issues"])
    statuses = [_plain_status(issue, ISSUE_STATUSES) for issue in issues]
    decided = statuses.count("decided")
    reply: PlanReply = {
        "active": True,
        "plan_id": plan["id"],
        "topic": str(plan["topic"]),
        "issues": issues,
    }
    if "research_summary" in plan:
        reply["research_summary"] = plan["research_summary"]
    reply["summary"] = {"total": len(statuses), "pending": len(statuses) - decided, "decided": decided}
    return reply


def plan_status(project: Folder) -> PlanReply | None:
    """Return the reply of `tools.plan_status`, or None if the tool itself must be called."""
    nothing: PlanReply = {"active": False}
    return _read(project, project_paths.PLAN, describe_plan, nothing)


def task_list(project: Folder) -> TaskListReply | None:
    """Return the reply of `tools.task_list`, or None if the tool itself must be called."""

    def reply(file: Any) -> TaskListReply:
        tasks: list[ProjectTask] = list(file["tasks"])
        for task in tasks:
            _plain_status(task, TASK_STATUSES)
        summary = summarize([progress_of(task) for task in tasks])
        return {"goal": str(file["goal"]), "tasks": tasks, "summary": summary}

    nothing: TaskListReply = {"exists": False}
    return _read(project, project_paths.TASKS, reply, nothing)


def _plain_status(entry: PlanIssue | ProjectTask, statuses: Sequence[str]) -> str:
    if type(entry["title"]) is not str or entry["status"] not in statuses:
        raise ValueError("odd")
    return entry["status"]


def _read(project: Folder, name: str, reply: Callable[[Any], T], missing: T) -> T | None:
    data = state_file.read(project_paths.state(project, name))
    if data is None:
        return missing
    try:
        return reply(json.loads(data))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
