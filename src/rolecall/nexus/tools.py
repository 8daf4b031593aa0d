"""The eleven tools: plan, decide, add and close tasks, look back. Each tool is a function over a project folder.

Parameters, replies, effects and error texts are those of the contract at 0.10.0, and a reply has no other fields.
Readers take no lock and leave no trace; writers take the project's only lock. External arguments come through
`dispatch`, which checks their types.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

from rolecall.errors import Damaged, Hint, StorageError, UsageError
from rolecall.nexus import overview, project_paths
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.tool_error import NotThere, WrongCall
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.nexus import artifact, history, state
    from rolecall.nexus.reply import (
        ClosedCycle,
        FoundCycles,
        IssueChange,
        IssueTitle,
        PastCycle,
        PlanIssue,
        PlanReply,
        ProjectContext,
        ProjectTask,
        RecordedDecision,
        StartedPlan,
        TaskListReply,
        TaskReply,
        WrittenArtifact,
    )
    from rolecall.nexus.state import Issue, Plan, Task
else:

    class _Lazy(Module):
        """A module that is imported when it is first used. The program's own verbs import this module, but few of them
        read a project's state, and importing the library for the state takes longer than many commands run."""

        def __getattr__(self, name: str) -> Any:
            if name != "_module":
                return super().__getattr__(name)
            costly, threading = "typing_extensions", sys.modules.get("threading")
            # If typing_extensions is installed, msgspec imports it instead of `typing`, which takes a fifth of a
            # command's time. Therefore typing_extensions is hidden, unless other threads are running, because one of
            # them could be importing it.
            is_hidden = costly not in sys.modules and not (threading and threading.active_count() > 1)
            if is_hidden:
                sys.modules[costly] = None
            try:
                return super().__getattr__(name)
            finally:
                if is_hidden:
                    del sys.modules[costly]

    artifact, history, state = (_Lazy(f"rolecall.nexus.{name}") for name in ("artifact", "history", "state"))

ACTIONS = ("add", "remove", "edit", "reopen")
DEFAULT_LAST = 10
A_NUMBER = "a finite number below 1e300"


def is_number(value: object) -> bool:
    """Return whether a value is a number that can be an id. JSON can contain numbers that Python reads as infinite."""
    return type(value) in (int, float) and -1e300 < value < 1e300  # type: ignore[operator]


# -- plan --


def plan_start(project: Folder, *, topic: str, issues: Sequence[str], research_summary: str) -> StartedPlan:
    """Start a plan, and move a plan that is still active to the history."""
    plan = _convert(
        state.Plan,
        id=1,
        topic=topic,
        issues=[
            {"id": number, "title": title, "status": "pending"}
            for number, title in enumerate(_as_list("issues", issues), 1)
        ],
        research_summary=research_summary,
        created_at=project_paths.now(),
    )
    with history.writing(project):
        sources = {project_paths.PLAN: state.digest_of(project, project_paths.PLAN)}
        previous = state.load_plan(project)
        if previous:
            past = history.archive(project, previous, [], sources=sources)[1]
        else:
            past = history.load(project)
        plan.id = past.highest_plan + 1
        state.save_plan(project, plan)
        history.remove_note(project)
    return {
        "created": True,
        "plan_id": plan.id,
        "topic": topic,
        "issueCount": len(plan.issues),
        "previousArchived": previous is not None,
    }


def plan_status(project: Folder) -> PlanReply:
    """Return the active plan with all its issues."""
    plan = state.load_plan(project)
    return overview.describe_plan(state.to_builtins(plan)) if plan else {"active": False}


def plan_update(
    project: Folder, *, action: str, issue_id: float | None = None, title: str | None = None
) -> IssueChange:
    """Add, remove, rename or reopen an issue of the active plan."""
    check_there(project, project_paths.PLAN)
    with history.writing(project):
        plan = _load_active_plan(project)
        if action not in ACTIONS:
            raise WrongCall("Unknown action", hint=f"There are {', '.join(ACTIONS)}.")
        if action == "add" and not title:
            raise WrongCall("title is required for add")
        if action == "edit" and (issue_id is None or not title):
            raise WrongCall("issue_id and title are required for edit")
        if action in ("remove", "reopen") and issue_id is None:
            raise WrongCall(f"issue_id is required for {action}")

        reply: IssueChange
        if action == "add":
            issue = state.Issue(_next_id(plan.issues), str(title), "pending")
            plan.issues.append(issue)
            reply = {
                "added": True,
                "issue": {"id": issue.id, "title": issue.title, "status": issue.status},
            }
        else:
            issue = _find_issue(plan, issue_id)
            if action == "remove":
                plan.issues.remove(issue)
                reply = {"removed": True, "issue": {"id": issue.id}}
            elif action == "edit":
                issue.title = str(title)
                reply = {"edited": True, "issue": {"id": issue.id, "title": issue.title}}
            else:
                issue.status, issue.decision = "pending", state.UNSET
                reply = {
                    "reopened": True,
                    "issue": {"id": issue.id, "title": issue.title, "status": issue.status},
                }
        state.save_plan(project, plan)
    return reply


def plan_decide(
    project: Folder,
    *,
    issue_id: float,
    decision: str,
    how_agents: Sequence[str] | None = None,
    how_summary: Mapping[str, str] | None = None,
    how_agent_ids: Mapping[str, str] | None = None,
) -> RecordedDecision:
    """Record the decision on an issue of the active plan, and which agents were consulted."""
    check_there(project, project_paths.PLAN)
    given = {
        "decision": decision,
        "how_agents": None if how_agents is None else _as_list("how_agents", how_agents),
        "how_summary": None if how_summary is None else dict(how_summary),
        "how_agent_ids": None if how_agent_ids is None else dict(how_agent_ids),
    }
    given = {key: value for key, value in given.items() if value is not None}
    with history.writing(project):
        plan = _load_active_plan(project)
        issue = _find_issue(plan, issue_id)
        changed = _convert(state.Issue, **{**_plain(issue), "status": "decided", **given})
        plan.issues[plan.issues.index(issue)] = changed
        state.save_plan(project, plan)
    remaining: list[IssueTitle] = [
        {"id": other.id, "title": other.title, "status": other.status}
        for other in plan.issues
        if other.status != "decided"
    ]
    if remaining:
        return {"decided": True, "issue": issue.title, "allComplete": False, "remaining": remaining}
    return {
        "decided": True,
        "issue": issue.title,
        "allComplete": True,
        "message": "Every issue is decided.",
    }


def _load_active_plan(project: Folder) -> Plan:
    plan = state.load_plan(project)
    if plan is None:
        raise _missing(project_paths.PLAN)
    return plan


def _find_issue(plan: Plan, issue_id: float | None) -> Issue:
    for issue in plan.issues:
        if issue.id == issue_id:
            return issue
    raise NotThere(f"Issue {_whole(issue_id)} not found")


def _next_id(entries: Sequence[Issue] | Sequence[Task]) -> int:
    return int(max([entry.id for entry in entries], default=0)) + 1


# -- tasks --


def task_add(
    project: Folder,
    *,
    title: str,
    context: str,
    deps: Sequence[float] = (),
    goal: str | None = None,
    decisions: Sequence[str] = (),
    plan_issue: float | None = None,
    approach: str | None = None,
    acceptance: str | None = None,
    risk: str | None = None,
    owner: str | None = None,
    owner_agent_id: str | None = None,
    owner_reuse_policy: str | None = None,
) -> TaskReply:
    """Add a task to the running cycle; the first task starts the cycle."""
    given = {
        "title": title,
        "context": context,
        "approach": approach,
        "acceptance": acceptance,
        "risk": risk,
        "deps": [_whole(number) for number in _as_list("deps", deps)],
        "plan_issue": _whole(plan_issue),
        "owner": owner,
        "owner_agent_id": owner_agent_id,
        "owner_reuse_policy": owner_reuse_policy,
    }
    given = {field: value for field, value in given.items() if value is not None}
    task = _convert(state.Task, id=1, status="pending", created_at=project_paths.now(), **given)
    binding = _as_list("decisions", decisions)
    _convert(state.TaskFile, goal=goal or "", decisions=binding, tasks=[])
    with history.writing(project):
        file = state.load_tasks(project) or state.TaskFile(goal="", decisions=[], tasks=[])
        task.id = _next_id(file.tasks)
        topic = ""
        with suppress(Damaged):  # the default goal is the plan's topic, if the plan can be read
            plan = None if goal or file.goal else state.load_plan(project)
            topic = plan.topic if plan else ""
        longer = state.replace(
            file,
            goal=goal or file.goal or topic or title,
            decisions=[*file.decisions, *binding],
            tasks=[*file.tasks, task],
        )
        state.save_tasks(project, longer, longer_than=file)
    return {"task": _plain(task)}


def task_list(project: Folder) -> TaskListReply:
    """Return the tasks of the running cycle, and which of them can be started."""
    file = state.load_tasks(project)
    if file is None:
        return {"exists": False}
    return {"goal": file.goal, "tasks": _plain(file.tasks), "summary": overview.summarize(file.tasks)}


def task_list_json(project: Folder) -> bytes:
    """Return the reply of `task_list` as JSON, which takes a fraction of the time."""
    file = state.load_tasks(project)
    if file is None:
        return to_json({"exists": False})
    goal, summary = to_json(file.goal), to_json(overview.summarize(file.tasks))
    tasks = state.encode_tasks(project, file)
    return b"".join([b'{"goal":', goal, b',"tasks":[', *tasks, b'],"summary":', summary, b"}"])


def to_json(reply: object) -> bytes:
    return state.encode(reply)


def task_update(project: Folder, *, id: float, status: str) -> TaskReply:
    """Set the status of a task; every transition is allowed."""
    if status not in overview.TASK_STATUSES:
        raise WrongCall(f"status is {status!r}, not one of {', '.join(overview.TASK_STATUSES)}")
    check_there(project, project_paths.TASKS)
    with history.writing(project):
        task = _set_status(project, id, status)
    return {"task": _plain(task)}


def update_as_read(project: Folder, read: ProjectTask, status: str) -> bool:
    """Set the status of a task if the task is still as the caller read it. Return whether the status was set."""
    with history.writing(project):
        try:
            _set_status(project, read["id"], status, expected=read)
        except NotThere:
            return False
    return True


def _set_status(project: Folder, id: float, status: str, *, expected: ProjectTask | None = None) -> Task:
    file = state.load_tasks(project)
    if file is None:
        raise _missing(project_paths.TASKS)
    number = next((number for number, task in enumerate(file.tasks) if task.id == id), None)
    if number is None:
        raise NotThere(f"Task id {_whole(id)} not found")
    task = file.tasks[number]
    if expected is not None and _plain(task) != expected:
        raise NotThere(f"Task id {_whole(id)} was changed")
    changed = state.replace(task, status=status)
    tasks = [*file.tasks[:number], changed, *file.tasks[number + 1 :]]
    state.save_tasks(project, state.replace(file, tasks=tasks))
    return changed


def task_close(project: Folder) -> ClosedCycle:
    """Close the cycle: move the plan and the tasks to the history, finished or not, so that a new cycle can begin."""
    with history.writing(project):
        # The digests are taken before the values are read, so that a file that another program changes in between is
        # not removed as if it were archived.
        names = (project_paths.PLAN, project_paths.TASKS)
        sources = {name: digest for name in names if (digest := state.digest_of(project, name))}
        plan, file = state.load_plan(project), state.load_tasks(project)
        tasks = file.tasks if file else []
        cycle, past = history.archive(project, plan, tasks, sources=sources)
        history.remove_sources(project, list(sources))
    decisions = len(plan.decided) if plan else 0
    topics = [plan.topic if plan else "", file.goal if file else ""]
    return {
        "closed": True,
        "cycle": cycle.completed_at,
        "branch": cycle.branch,
        "archived": {"plan": plan is not None, "decisions": decisions, "tasks": len(tasks)},
        "deleted": list(sources),
        "total_cycles": len(past.cycles),
        "memoryHint": {
            "taskCount": len(tasks),
            "decisionCount": decisions,
            "cycleTopics": [topic for topic in topics if topic],
        },
    }


# -- looking back --


def history_search(project: Folder, *, query: str = "", last_n: float = DEFAULT_LAST) -> FoundCycles:
    """Return summaries of the most recent cycles that contain the query."""
    if not is_number(last_n):
        raise WrongCall(f"last_n must be {A_NUMBER}")
    if last_n < 0 or last_n != int(last_n):
        raise WrongCall(f"last_n is {last_n}, not a whole number of 0 or more")
    past = history.load(project)
    found = past.search(query)
    cycles: list[PastCycle] = []
    for number in found[max(0, len(found) - int(last_n)) :]:
        cycle = past.cycle(number)
        at, branch, count = cycle.completed_at, cycle.branch, len(cycle.tasks)
        if cycle.plan is None:
            cycles.append({"completed_at": at, "branch": branch, "task_count": count})
            continue
        cycles.append(
            {
                "completed_at": at,
                "branch": branch,
                "topic": cycle.plan.topic,
                "decisions": [
                    {"title": issue.title, "decision": issue.decision or ""} for issue in cycle.plan.decided
                ],
                "task_count": count,
            }
        )
    return {"total": len(found), "showing": len(cycles), "cycles": cycles}


def context(project: Folder) -> ProjectContext:
    """Return a short summary of the project. As the contract requires, unreadable parts are left out."""
    branch = project_paths.branch(project)
    try:
        file = state.load_tasks(project)
    except (Damaged, StorageError, UsageError):
        return {"branch": branch, "activeMode": "team", "decisions": []}
    if file is None:
        return {"branch": branch, "activeMode": None, "decisions": []}
    summary = overview.summarize(file.tasks)
    return {
        "branch": branch,
        "activeMode": "team",
        "goal": file.goal,
        "tasksSummary": {
            "total": summary["total"],
            "completed": summary["completed"],
            "pending": summary["pending"],
        },
        "decisions": list(file.decisions),
    }


def artifact_write(project: Folder, *, filename: str, content: str) -> WrittenArtifact:
    """Write an artifact of the running cycle, replacing an existing artifact with the same name."""
    return {"success": True, "path": artifact.write_artifact(project, filename, content)}


# -- arguments --


def check_there(project: Folder, name: str) -> None:
    """Raise an error if a state file is missing. Call this before taking the lock, which would create folders."""
    if not os.path.exists(project_paths.state(project, name)):
        raise _missing(name)


def _missing(name: str) -> NotThere:
    if name == project_paths.PLAN:
        return NotThere("No active plan session", hint=Hint("Start one", "start_plan"))
    return NotThere("tasks.json not found", hint=Hint("Add a task", "add_task"))


_PLACE = re.compile(r" - at `\$\.?(.*)`$")


def _convert(type: type[state.T], **fields: object) -> state.T:
    """Build a value from arguments. Raise an error for arguments that would make the file unreadable."""
    try:
        return state.convert(fields, type)
    except ValueError as exc:
        reason = _PLACE.sub("", str(exc))
        place = _PLACE.search(str(exc))
        name = place[1] if place else "the call"
        raise WrongCall(f"{name} is empty" if "length >= 1" in reason else f"{name}: {reason}") from exc


def _as_list(name: str, given: Sequence[state.T]) -> list[state.T]:
    if isinstance(given, str) or not isinstance(given, Sequence):  # a string would be split into its letters
        raise WrongCall(f"{name} is not a list")
    return list(given)


@overload
def _plain(value: Issue) -> PlanIssue: ...
@overload
def _plain(value: Task) -> ProjectTask: ...
@overload
def _plain(value: list[Task]) -> list[ProjectTask]: ...
def _plain(value: Any) -> Any:
    """Convert structs to dictionaries and lists."""
    return state.to_builtins(value)


def _whole(number: float | None) -> float | None:
    """Return 2.0 as 2, which is the same number in JSON."""
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
        return int(number)
    return number
