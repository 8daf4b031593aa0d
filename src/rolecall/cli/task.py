"""`rolecall task`: the tasks of the running cycle, and its end."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from rolecall.cli import Verb
from rolecall.cli.asking import can_ask, say
from rolecall.cli.output import printable, read_input, show, table
from rolecall.cli.project_call import add_project, call, look
from rolecall.errors import UsageError
from rolecall.nexus import overview, task_graph

_MOST_NAMED = 20
_LONG = ("context", "approach", "acceptance", "risk")
"""Fields that may come from a file or from standard input."""


def _add(options: Namespace) -> None:
    if options.dep:
        _check_deps(look(options, "task_list"), options.dep)
    fields = ("title", "goal", "plan_issue", "owner", "owner_agent_id", "owner_reuse_policy")
    arguments = {field: getattr(options, field) for field in fields}
    long = {field: getattr(options, field) for field in _LONG}
    arguments |= {field: value and read_input(value) for field, value in long.items()}
    reply = call(options, "task_add", deps=options.dep, decisions=options.decision, **arguments)
    show(options, reply, lambda: f"task {reply['task']['id']} added")


def _check_deps(reply: Mapping[str, Any], deps: list[int]) -> None:
    """Refuse a task that could never start."""
    if not reply:
        return
    deps_of = {task["id"]: task["deps"] for task in reply.get("tasks", ())}
    if unknown := [dep for dep in deps if dep not in deps_of]:
        known = f"Tasks: {task_graph.ids(deps_of)}." if deps_of else "There are no tasks yet."
        raise UsageError(f"--dep names no task: {task_graph.ids(unknown)}", hint=known)
    new = max(deps_of) + 1  # an earlier task may already depend on this new id
    paths: list[tuple[float, ...]] = [(new, dep) for dep in deps]
    seen: set[float] = set()
    while paths:
        path = paths.pop()
        if path[-1] == new:
            circle = " after ".join(map(str, path))
            raise UsageError(
                f"the tasks would wait for each other: {circle}",
                hint="Leave out the --dep that closes the cycle.",
            )
        if path[-1] not in seen:
            seen.add(path[-1])
            paths += [(*path, dep) for dep in deps_of.get(path[-1], ())]


def _list(options: Namespace) -> None:
    reply = call(options, "task_list")
    show(options, reply, lambda: _list_text(reply))


def _list_text(reply: Mapping[str, Any]) -> str:
    if "tasks" not in reply:
        return "there are no tasks"
    summary = reply["summary"]
    counts = f"{summary['completed']} of {summary['total']} completed, {summary['blocked']} in progress"
    goal = [f"goal: {reply['goal']}"] if reply["goal"] else []
    return "\n".join(
        [*goal, _table(reply["tasks"], summary["ready"]), f"{counts}, {len(summary['ready'])} ready"]
    )


def _table(tasks: list[Mapping[str, Any]], ready_ids: list[float]) -> str:
    can_begin = set(ready_ids)
    rows = [
        (
            task["id"],
            task_graph.status(task, can_begin),
            task.get("owner", ""),
            task_graph.ids(task["deps"]),
            task["title"],
        )
        for task in tasks
    ]
    return table(rows, ("id", "status", "owner", "after", "task"))


def _ready(options: Namespace) -> None:
    reply = call(options, "task_list")
    ids = reply["summary"]["ready"] if "tasks" in reply else []
    can_begin = set(ids)
    found = [task for task in reply.get("tasks", []) if task["id"] in can_begin]
    show(options, {"ready": found}, lambda: _table(found, ids) if found else "no task is ready")


def _graph(options: Namespace) -> None:
    kind = getattr(options, "as")
    drawn = task_graph.DRAWN_AS[kind](call(options, "task_list").get("tasks", []))
    if options.format in (None, "text"):  # a drawing in a pipe is for the program that shows it
        print(printable(drawn))
    else:
        show(options, {"as": kind, "graph": drawn})


def _update(options: Namespace) -> None:
    reply = call(options, "task_update", id=options.id, status=options.status)
    show(options, reply, lambda: f"task {reply['task']['id']} is {reply['task']['status']}")


def _close(options: Namespace) -> None:
    listed = look(options, "task_list")
    tasks = listed.get("tasks", [])
    if listed and not tasks and look(options, "plan_status") == {"active": False}:
        raise UsageError("there is nothing to close: the project has no plan and no tasks")
    unfinished = [task for task in tasks if task["status"] != "completed"]
    if unfinished and not options.yes:
        named = "".join(f"\n  {task['id']} {task['title']}" for task in unfinished[:_MOST_NAMED])
        more = f"\n  and {len(unfinished) - _MOST_NAMED} more" if len(unfinished) > _MOST_NAMED else ""
        what = "1 task is" if len(unfinished) == 1 else f"{len(unfinished)} tasks are"
        text = f"{what} not completed:{named}{more}"
        if can_ask():
            raise UsageError(text, hint="Add --yes to close the cycle with them.")
        say(text)
    reply = call(options, "task_close")
    show(options, reply, lambda: _close_text(reply))


def _close_text(reply: Mapping[str, Any]) -> str:
    archived = reply["archived"]
    decisions, tasks = (
        f"{archived[name]} {name if archived[name] != 1 else name[:-1]}" for name in ("decisions", "tasks")
    )
    plan = f"a plan with {decisions}" if archived["plan"] else "no plan"
    return f"cycle {reply['total_cycles']} is in the history: {plan}, {tasks}"


# -- the table --


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("title", metavar="TITLE", help="what is to be done, in one line")
    parser.add_argument(
        "--context",
        required=True,
        metavar="TEXT",
        help="what whoever does it has to know; @FILE reads a file, - standard input, here and below",
    )
    parser.add_argument(
        "--dep", action="append", type=int, default=[], metavar="ID", help="a task that comes before"
    )
    parser.add_argument("--approach", metavar="TEXT", help="how to go about it")
    parser.add_argument("--acceptance", metavar="TEXT", help="what has to hold when it is done")
    parser.add_argument("--risk", metavar="TEXT", help="what may go wrong")
    parser.add_argument(
        "--plan-issue", type=int, metavar="ID", help="the issue of the plan that it comes from"
    )
    parser.add_argument("--goal", metavar="TEXT", help="what all tasks of the cycle are for")
    parser.add_argument(
        "--decision", action="append", default=[], metavar="TEXT", help="a decision that binds the work"
    )
    parser.add_argument("--owner", metavar="AGENT", help="the agent that does it, or lead")
    parser.add_argument("--owner-agent-id", metavar="ID", help="the id of the instance that does it")
    parser.add_argument(
        "--owner-reuse-policy",
        choices=overview.REUSE_POLICIES,
        help="whether an earlier instance goes on with it",
    )
    add_project(parser)


def _close_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="close the cycle even if tasks are not completed")
    add_project(parser)


def _update_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=int, help="the task")
    parser.add_argument("status", choices=overview.TASK_STATUSES, help="its new status")
    add_project(parser)


def _graph_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--as", choices=list(task_graph.DRAWN_AS), default="text", help="how it is drawn (default: text)"
    )
    add_project(parser)


VERBS = {
    "add": Verb(
        _add,
        "add a task",
        "rolecall task add 'Write the migration' --context @notes.md --dep 1 --owner engineer",
        _add_arguments,
    ),
    "list": Verb(_list, "list the tasks of the running cycle", "rolecall task list", add_project),
    "update": Verb(
        _update, "set the status of a task", "rolecall task update 1 completed", _update_arguments
    ),
    "close": Verb(
        _close,
        "close the cycle: its plan and tasks go into the history",
        "rolecall task close",
        _close_arguments,
    ),
    "ready": Verb(_ready, "list the tasks that can be begun now", "rolecall task ready", add_project),
    "graph": Verb(
        _graph,
        "draw which task comes after which",
        "rolecall task graph\nrolecall task graph --as mermaid",
        _graph_arguments,
    ),
}
