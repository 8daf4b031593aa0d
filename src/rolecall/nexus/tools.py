"""The eleven tools: plan, decide, task, close, look back. Each is a function over a project folder.

Parameters, replies, effects and the texts of errors are those of the contract at 0.10.0, and a reply has no
other fields. Readers take no lock and leave no trace; writers take the one lock of the project. Arguments
from outside come through `dispatch`, which checks their kinds; what the files may hold is checked here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rolecall.errors import Damaged, Hint, StorageError, UsageError
from rolecall.nexus import history as archive
from rolecall.nexus import longlist, project_paths, shape, state_file
from rolecall.nexus.longlist import Change, Kind, LongList
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.tool_error import NotThere, WrongCall

Reply = dict[str, Any]

ACTIONS = ("add", "remove", "edit", "reopen")
DEFAULT_LAST = 10

T = TypeVar("T")


# -- plan --


def plan_start(project: Folder, *, topic: str, issues: Sequence[str], research_summary: str) -> Reply:
    """Begin a plan; one that is active goes into the history."""
    issues = _listed("issues", issues)
    plan = {
        "id": 1,
        "topic": topic,
        "issues": [_new_issue(number, title) for number, title in enumerate(issues, 1)],
        "research_summary": research_summary,
        "created_at": project_paths.now(),
    }
    _fit(shape.PLAN(plan))
    with archive.writing(project):
        previous = _read_plan(project)
        history = archive.load(project)
        highest = history.layout.highest
        if previous:
            old, data = previous
            highest = archive.add(project, history, old, [], sources={project_paths.PLAN: data})[1].highest
        plan["id"] = highest + 1
        _write_plan(project, plan)
        archive.forget_note(project)
    return {
        "created": True,
        "plan_id": plan["id"],
        "topic": topic,
        "issueCount": len(issues),
        "previousArchived": previous is not None,
    }


def plan_status(project: Folder) -> Reply:
    """The active plan with all its issues."""
    found = _read_plan(project)
    if found is None:
        return {"active": False}
    plan, _ = found
    decided = len(_decided(plan))
    reply = {"active": True, "plan_id": plan["id"], "topic": plan["topic"], "issues": plan["issues"]}
    if "research_summary" in plan:
        reply["research_summary"] = plan["research_summary"]
    total = len(plan["issues"])
    return {**reply, "summary": {"total": total, "pending": total - decided, "decided": decided}}


def plan_update(
    project: Folder, *, action: str, issue_id: float | None = None, title: str | None = None
) -> Reply:
    """Add, remove, rename or reopen an issue of the active plan."""
    check_there(project, project_paths.PLAN)
    with archive.writing(project):
        plan = _active_plan(project)
        _check_action(action, issue_id, title)
        issue = _new_issue(_next_id(plan["issues"]), title) if action == "add" else _issue(plan, issue_id)
        if action == "add":
            plan["issues"].append(issue)
        elif action == "remove":
            plan["issues"].remove(issue)
        elif action == "edit":
            issue["title"] = title
        else:
            issue["status"] = "pending"
            issue.pop("decision", None)
        _fit(shape.PLAN(plan))
        _write_plan(project, plan)
    flag, fields = _UPDATED[action]
    return {flag: True, "issue": {field: issue[field] for field in fields}}


_UPDATED = {
    "add": ("added", ("id", "title", "status")),
    "remove": ("removed", ("id",)),
    "edit": ("edited", ("id", "title")),
    "reopen": ("reopened", ("id", "title", "status")),
}


def _check_action(action: str, issue_id: float | None, title: str | None) -> None:
    if action not in ACTIONS:
        raise WrongCall("Unknown action", hint=f"There are {', '.join(ACTIONS)}.")
    if action == "add" and not title:
        raise WrongCall("title is required for add")
    if action == "edit" and (issue_id is None or not title):
        raise WrongCall("issue_id and title are required for edit")
    if action in ("remove", "reopen") and issue_id is None:
        raise WrongCall(f"issue_id is required for {action}")


def plan_decide(
    project: Folder,
    *,
    issue_id: float,
    decision: str,
    how_agents: Sequence[str] | None = None,
    how_summary: Mapping[str, str] | None = None,
    how_agent_ids: Mapping[str, str] | None = None,
) -> Reply:
    """Record the decision on an issue of the active plan, and who was asked on the way."""
    check_there(project, project_paths.PLAN)
    how = {"how_agents": how_agents, "how_summary": how_summary, "how_agent_ids": how_agent_ids}
    with archive.writing(project):
        plan = _active_plan(project)
        issue = _issue(plan, issue_id)
        issue |= {"status": "decided", "decision": decision}
        issue |= {key: _plain(key, value) for key, value in how.items() if value is not None}
        _fit(shape.PLAN(plan))
        _write_plan(project, plan)
    remaining = [issue for issue in plan["issues"] if issue["status"] != "decided"]
    reply = {"decided": True, "issue": issue["title"], "allComplete": not remaining}
    if not remaining:
        return {**reply, "message": "Every issue is decided."}
    return {
        **reply,
        "remaining": [{key: left[key] for key in ("id", "title", "status")} for left in remaining],
    }


def _read_plan(project: Folder) -> tuple[dict[str, Any], bytes] | None:
    """The active plan and the bytes it was read from."""
    path = project_paths.state(project, project_paths.PLAN)
    data = state_file.read(path)
    if data is None:
        return None
    try:
        plan = longlist.parse(data)
        problem = shape.PLAN(plan)
    except (ValueError, RecursionError) as exc:
        problem = f" is not JSON: {exc}"
    if problem:
        raise state_file.DamagedFile(path, data, f"the plan{problem}")
    return plan, data


def _active_plan(project: Folder) -> dict[str, Any]:
    found = _read_plan(project)
    if found is None:
        raise _missing(project_paths.PLAN)
    return found[0]


def _write_plan(project: Folder, plan: Mapping[str, Any]) -> None:
    state_file.replace(
        project, project_paths.state(project, project_paths.PLAN), longlist.json_bytes(plan) + b"\n"
    )


def _new_issue(number: int, title: str | None) -> dict[str, Any]:
    return {"id": number, "title": title, "status": "pending"}


def _issue(plan: Mapping[str, Any], issue_id: float | None) -> dict[str, Any]:
    for issue in plan["issues"]:
        if issue["id"] == issue_id:
            found: dict[str, Any] = issue
            return found
    raise NotThere(f"Issue {_whole(issue_id)} not found")


def _decided(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [issue for issue in plan["issues"] if issue["status"] == "decided"]


def _next_id(numbered: Sequence[Mapping[str, Any]]) -> int:
    return int(max((entry["id"] for entry in numbered), default=0)) + 1


# -- tasks --


def _task_id(task: Mapping[str, Any]) -> float:
    number: float = task["id"]
    return number


class Standing(NamedTuple):
    """A task as far as it matters for what can be done next."""

    id: float
    status: str
    deps: tuple[float, ...]


def standing(task: Mapping[str, Any]) -> Standing:
    return Standing(task["id"], task["status"], tuple(task["deps"]))


TASKS = Kind("tasks", "tasks", shape.TASKS_HEAD, shape.TASK, _task_id, standing)


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
) -> Reply:
    """Add a task to the running cycle, which begins with its first task."""
    task = {
        "id": 1,
        "title": title,
        "context": context,
        "approach": approach,
        "acceptance": acceptance,
        "risk": risk,
        "status": "pending",
        "deps": [_whole(number) for number in _listed("deps", deps)],
        "plan_issue": _whole(plan_issue),
        "owner": owner,
        "owner_agent_id": owner_agent_id,
        "owner_reuse_policy": owner_reuse_policy,
        "created_at": project_paths.now(),
    }
    task = {field: value for field, value in task.items() if value is not None}
    decisions = _listed("decisions", decisions)
    _fit(shape.TASK(task))
    with archive.writing(project):
        file = _load_tasks(project) or longlist.empty(TASKS, {"goal": "", "decisions": []})
        task["id"] = file.layout.highest + 1
        file = _with_head(file, goal or file.layout.head["goal"] or _topic(project) or title, decisions)
        _save_tasks(project, longlist.appended(file, TASKS, task))
    return {"task": task}


def _topic(project: Folder) -> str:
    """The topic of the active plan, which is the goal of its tasks; empty if there is no readable plan."""
    try:
        found = _read_plan(project)
    except Damaged:
        return ""
    return str(found[0]["topic"]) if found else ""


def _with_head(file: LongList, goal: str, decisions: Sequence[str]) -> LongList:
    head = dict(file.layout.head)
    if goal == head["goal"] and not decisions:
        return file
    head["goal"] = goal
    head["decisions"] = [*head["decisions"], *decisions]
    _fit(shape.TASKS_HEAD(head))
    return longlist.with_head(file, TASKS, head)


def task_list(project: Folder) -> Reply:
    """The tasks of the running cycle, and which of them can be begun."""
    file = _load_tasks(project)
    if file is None:
        return {"exists": False}
    tasks = file.entries()
    summary = summary_of([standing(task) for task in tasks])
    return {"goal": file.layout.head["goal"], "tasks": tasks, "summary": summary}


def task_list_json(project: Folder) -> bytes:
    """The same reply as JSON. Thousands of tasks are not written anew: they stand in the file already."""
    file = _load_tasks(project)
    if file is None:
        return longlist.json_bytes({"exists": False})
    goal = longlist.json_bytes(file.layout.head["goal"])
    summary = longlist.json_bytes(summary_of(file.briefs(TASKS)))
    return b"".join((b'{"goal":', goal, b',"tasks":', file.list_json(), b',"summary":', summary, b"}"))


def summary_of(tasks: Sequence[Standing]) -> dict[str, Any]:
    """How many tasks stand how, and which of them can be begun."""
    statuses = [task.status for task in tasks]
    return {
        "total": len(tasks),
        "completed": statuses.count("completed"),
        "pending": statuses.count("pending"),
        "blocked": statuses.count("in_progress"),  # the contract's name for what is being worked on
        "ready": ready(tasks),
    }


def ready(tasks: Sequence[Standing]) -> list[float]:
    """The pending tasks whose dependencies are all completed; one that does not exist is not."""
    done = {task.id for task in tasks if task.status == "completed"}
    return [task.id for task in tasks if task.status == "pending" and done.issuperset(task.deps)]


def task_update(project: Folder, *, id: float, status: str) -> Reply:
    """Set the status of a task; every change of it is allowed."""
    if status not in shape.TASK_STATUSES:
        raise WrongCall(f"status is {status!r}, not one of {', '.join(shape.TASK_STATUSES)}")
    check_there(project, project_paths.TASKS)
    with archive.writing(project):
        file = _existing_tasks(project)
        number, task = _find_task(file, id)
        return {"task": _with_status(project, file, number, task, status)}


def update_as_read(project: Folder, read: Mapping[str, Any], status: str) -> bool:
    """Set the status of a task if it still is as it was read, for whoever decided on what it read; is it?"""
    with archive.writing(project):
        try:
            file = _existing_tasks(project)
            number, task = _find_task(file, read["id"])
        except NotThere:
            return False
        if task != read:
            return False
        _with_status(project, file, number, task, status)
        return True


def _with_status(
    project: Folder, file: LongList, number: int, task: dict[str, Any], status: str
) -> dict[str, Any]:
    task["status"] = status
    _save_tasks(project, longlist.replaced(file, TASKS, number, task))
    return task


def task_close(project: Folder) -> Reply:
    """Close the cycle: plan and tasks go into the history, finished or not, and a new cycle can begin."""
    with archive.writing(project):
        plan, data = _read_plan(project) or (None, b"")
        file = _load_tasks(project)
        tasks = file.entries() if file else []
        sources = {project_paths.PLAN: data} if plan else {}
        sources |= {project_paths.TASKS: file.data} if file else {}
        cycle, layout = archive.add(project, archive.load(project), plan, tasks, sources=sources)
        archive.remove_sources(project, list(sources))
    decisions = len(_decided(plan)) if plan else 0
    topics = [plan["topic"] if plan else "", file.layout.head["goal"] if file else ""]
    return {
        "closed": True,
        "cycle": cycle["completed_at"],
        "branch": cycle["branch"],
        "archived": {"plan": plan is not None, "decisions": decisions, "tasks": len(tasks)},
        "deleted": list(sources),
        "total_cycles": len(layout.starts),
        "memoryHint": {
            "taskCount": len(tasks),
            "decisionCount": decisions,
            "cycleTopics": [topic for topic in topics if topic],
        },
    }


def _load_tasks(project: Folder) -> LongList | None:
    return longlist.load(project, project_paths.state(project, project_paths.TASKS), TASKS)


def _existing_tasks(project: Folder) -> LongList:
    file = _load_tasks(project)
    if file is None:
        raise _missing(project_paths.TASKS)
    return file


def _save_tasks(project: Folder, change: Change) -> None:
    longlist.save(project, project_paths.state(project, project_paths.TASKS), TASKS, change)


def _find_task(file: LongList, number: float) -> tuple[int, dict[str, Any]]:
    """A task and its place in the file."""
    if file.layout.is_in_order:
        if number in range(1, file.count + 1):
            place_in_file = int(number) - 1
            return place_in_file, file.entry(place_in_file)
    else:
        for place_in_file, task in enumerate(file.entries()):
            if task["id"] == number:
                return place_in_file, task
    raise NotThere(f"Task id {_whole(number)} not found")


# -- looking back --


def history_search(project: Folder, *, query: str = "", last_n: float = DEFAULT_LAST) -> Reply:
    """The most recent cycles that have the query anywhere in them, in short."""
    if not shape.is_number(last_n):
        raise WrongCall(f"last_n must be {shape.A_NUMBER}")
    if last_n < 0 or last_n != int(last_n):
        raise WrongCall(f"last_n is {last_n}, not a whole number of 0 or more")
    history = archive.load(project)
    found = archive.search(history, query)
    shown = found[max(0, len(found) - int(last_n)) :]
    cycles = [_in_short(history.entry(number)) for number in shown]
    return {"total": len(found), "showing": len(cycles), "cycles": cycles}


def _in_short(cycle: Mapping[str, Any]) -> dict[str, Any]:
    short = {"completed_at": cycle["completed_at"], "branch": cycle["branch"]}
    if plan := cycle["plan"]:
        decisions = [
            {"title": issue["title"], "decision": issue.get("decision", "")} for issue in _decided(plan)
        ]
        short |= {"topic": plan["topic"], "decisions": decisions}
    return {**short, "task_count": len(cycle["tasks"])}


def context(project: Folder) -> Reply:
    """Where the project stands, in a few words; what cannot be read is left out, as the contract has it."""
    reply: Reply = {"branch": project_paths.branch(project), "activeMode": None, "decisions": []}
    try:
        file = _load_tasks(project)
    except (Damaged, StorageError, UsageError):
        return {**reply, "activeMode": "team"}
    if file is None:
        return reply
    summary = summary_of(file.briefs(TASKS))
    return {
        "branch": reply["branch"],
        "activeMode": "team",
        "goal": file.layout.head["goal"],
        "tasksSummary": {key: summary[key] for key in ("total", "completed", "pending")},
        "decisions": file.layout.head["decisions"],
    }


# -- artifacts --


def artifact_write(project: Folder, *, filename: str, content: str) -> Reply:
    """Write a file among the artifacts of the running cycle, over one of the same name."""
    from rolecall.nexus.artifact import write_artifact  # no hook needs it, and all of them are in a hurry

    return {"success": True, "path": write_artifact(project, filename, content)}


# -- what is refused --


def check_there(project: Folder, name: str) -> None:
    """Refuse before the lock is taken, which would leave folders in a project that has none."""
    if not os.path.exists(project_paths.state(project, name)):
        raise _missing(name)


def _missing(name: str) -> NotThere:
    if name == project_paths.PLAN:
        return NotThere("No active plan session", hint=Hint("Start one", "start_plan"))
    return NotThere("tasks.json not found", hint=Hint("Add a task", "add_task"))


def _fit(problem: str) -> None:
    """Refuse arguments that would make a file nobody could read."""
    if problem:
        raise WrongCall(problem.lstrip(" ."))


def _listed(name: str, given: Sequence[T]) -> list[T]:
    if isinstance(given, str) or not isinstance(given, Sequence):  # a text would come apart into its letters
        raise WrongCall(f"{name} is not a list")
    return list(given)


def _plain(name: str, given: Sequence[str] | Mapping[str, str]) -> list[str] | dict[str, str]:
    return dict(given) if isinstance(given, Mapping) else _listed(name, given)


def _whole(number: Any) -> Any:
    """JSON does not tell 2 from 2.0, and ids are written as the first."""
    is_whole = isinstance(number, float) and number.is_integer() and abs(number) < 2**53
    return int(number) if is_whole else number
