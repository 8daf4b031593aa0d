"""`rolecall task`, `history` and `artifact`: the current cycle's tasks and files, and the closed cycles."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from rolecall.api import Project
from rolecall.cli import CommandResult, argument, flag, repeated, verb
from rolecall.cli.asking import can_ask, confirm
from rolecall.cli.output import between, plural, read_file, read_input, table, tell
from rolecall.cli.project import PROJECT, look
from rolecall.errors import UsageError
from rolecall.nexus import task_graph
from rolecall.nexus.overview import REUSE_POLICIES, TASK_STATUSES

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

_MOST_TASKS = 20
_LONG = ("context", "approach", "acceptance", "risk")
"""Fields whose text can be read from a file or standard input."""


@verb(
    "task add",
    "add a task",
    "rolecall task add 'Write the migration' --context @notes.md --dep 1 --owner engineer",
    argument("title", "TITLE", "what to do, in one line"),
    argument(
        "--context",
        "TEXT",
        "what the agent needs to know; @FILE reads a file, - standard input, here and below",
        required=True,
    ),
    repeated("--dep", "ID", "a task that comes before", type=int),
    argument("--approach", "TEXT", "how to go about it"),
    argument("--acceptance", "TEXT", "the conditions it must meet when it is done"),
    argument("--risk", "TEXT", "what may go wrong"),
    argument("--plan-issue", "ID", "the issue of the plan that it comes from", type=int),
    argument("--goal", "TEXT", "what all tasks of the cycle are for"),
    repeated("--decision", "TEXT", "a decision that binds the work"),
    argument("--owner", "AGENT", "the agent that does it, or lead"),
    argument("--owner-agent-id", "ID", "the id of the instance that does it"),
    argument(
        "--owner-reuse-policy",
        None,
        "whether an earlier instance continues with the task",
        choices=REUSE_POLICIES,
    ),
    PROJECT,
)
def add(options: Namespace) -> CommandResult:
    project = Project(options.project)
    long = {field: getattr(options, field) for field in _LONG}
    reply = project.add_task(
        options.title,
        deps=options.dep,
        plan_issue=options.plan_issue,
        goal=options.goal,
        decisions=options.decision,
        owner=options.owner,
        owner_agent_id=options.owner_agent_id,
        owner_reuse_policy=options.owner_reuse_policy,
        **{field: value and read_input(value) for field, value in long.items()},
    )
    return CommandResult(reply, f"task {reply['task']['id']} added")


@verb("task list", "list the tasks of the current cycle", "rolecall task list", PROJECT)
def list_tasks(options: Namespace) -> CommandResult:
    reply = Project(options.project).tasks()
    if "tasks" not in reply:
        return CommandResult(reply, "there are no tasks")

    def text() -> str:
        summary = reply["summary"]
        counts = f"{summary['completed']} of {summary['total']} completed, {summary['blocked']} in progress"
        goal = [f"goal: {reply['goal']}"] if reply["goal"] else []
        rows = _table(reply["tasks"], summary["ready"])
        return "\n".join([*goal, rows, f"{counts}, {len(summary['ready'])} ready"])

    return CommandResult(reply, text)


def _table(tasks: list[ProjectTask], ready_ids: list[float]) -> str:
    ready = set(ready_ids)
    rows = []
    for task in tasks:
        status, after = task_graph.status(task, ready), task_graph.ids(task["deps"])
        rows.append((task["id"], status, task.get("owner", ""), after, task["title"]))
    return table(rows, ("id", "status", "owner", "after", "task"), folds=True)


@verb("task ready", "list the tasks that can begin now", "rolecall task ready", PROJECT)
def list_ready(options: Namespace) -> CommandResult:
    reply = Project(options.project).tasks()
    ids = reply["summary"]["ready"] if "tasks" in reply else []
    ready = set(ids)
    found = [task for task in reply.get("tasks", []) if task["id"] in ready]
    return CommandResult({"ready": found}, _table(found, ids) if found else "no task is ready")


@verb(
    "task graph",
    "draw which task comes after which",
    "rolecall task graph\nrolecall task graph --as mermaid",
    argument(
        "--as",
        None,
        "how to draw it (default: text)",
        dest="kind",
        choices=list(task_graph.DRAWN_AS),
        default="text",
    ),
    PROJECT,
)
def draw_graph(options: Namespace) -> CommandResult:
    drawn = task_graph.DRAWN_AS[options.kind](Project(options.project).tasks().get("tasks", []))
    return CommandResult({"as": options.kind, "graph": drawn}, drawn)


@verb(
    "task update",
    "set the status of a task",
    "rolecall task update 1 completed",
    argument("id", "ID", "the task", type=int),
    argument("status", None, "its new status", choices=TASK_STATUSES),
    PROJECT,
)
def update(options: Namespace) -> CommandResult:
    reply = Project(options.project).update_task(options.id, options.status)
    return CommandResult(reply, f"task {reply['task']['id']} is {reply['task']['status']}")


@verb(
    "task close",
    "close the cycle: its plan and tasks move to the history",
    "rolecall task close",
    flag("--yes", "do not ask if tasks are not completed"),
    PROJECT,
)
def close(options: Namespace) -> CommandResult | int:
    project = Project(options.project)
    current = look(project.tasks)
    tasks = current.get("tasks", []) if current else []
    if current and not tasks and look(project.plan) == {"active": False}:
        raise UsageError("there is nothing to close: the project has no plan and no tasks")
    unfinished = [task for task in tasks if task["status"] != "completed"]
    if unfinished and not options.yes:
        names = "".join(f"\n  {task['id']} {task['title']}" for task in unfinished[:_MOST_TASKS])
        more = f"\n  and {len(unfinished) - _MOST_TASKS} more" if len(unfinished) > _MOST_TASKS else ""
        what = "1 task is" if len(unfinished) == 1 else f"{len(unfinished)} tasks are"
        tell(f"{what} not completed:{names}{more}")
        if can_ask() and not confirm("Close the cycle with them?", "Add --yes."):
            tell("The cycle stays open.")
            return 1
    reply = project.close_cycle()
    archived = reply["archived"]
    plan = f"a plan with {plural(archived['decisions'], 'decision')}" if archived["plan"] else "no plan"
    tasks_text = plural(archived["tasks"], "task")
    return CommandResult(reply, f"cycle {reply['total_cycles']} is in the history: {plan}, {tasks_text}")


@verb(
    "history search",
    "find closed cycles, the latest last",
    "rolecall history search migration\nrolecall history search --last 3",
    argument(
        "query", "TEXT", "only cycles that contain this text anywhere (default: all)", nargs="?", default=""
    ),
    argument("--last", "N", "at most the latest N (default: 10)", type=between(0), default=10),
    PROJECT,
)
def search_history(options: Namespace) -> CommandResult:
    reply = Project(options.project).history(options.query, last=options.last)
    rows = []
    for cycle in reply["cycles"]:
        about = (cycle.get("topic", ""), len(cycle.get("decisions", ())))
        rows.append((cycle["completed_at"], cycle["branch"], *about, cycle["task_count"]))
    lines = [table(rows, ("closed", "branch", "topic", "decisions", "tasks"))] if rows else []
    return CommandResult(reply, [*lines, f"{reply['showing']} of {reply['total']} cycles"])


@verb(
    "artifact write",
    "write an artifact, replacing one of the same name",
    "rolecall artifact write findings/storage.md notes.md\ngit diff | rolecall artifact write change.diff",
    argument("name", "NAME", "the artifact's name, optionally with folders"),
    argument("file", "FILE", "its text (default: standard input)", nargs="?", default="-"),
    PROJECT,
)
def write_artifact(options: Namespace) -> CommandResult:
    reply = Project(options.project).write_artifact(options.name, read_file(options.file))
    return CommandResult(reply, reply["path"])
