"""Builds the text that gives an agent its task: TASK, CONTEXT, APPROACH, ACCEPTANCE and related sections.

Empty sections are left out. The task is quoted in full, because the agent knows nothing else about it. The results of
other tasks are shortened, and the thread with the full result is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask


LONGEST_RESULT = 600
"""The maximum length of another task's result: what was done, and where to read the rest."""
MOST_RESULTS = 30


class TaskResult(NamedTuple):
    """The result of another task on which the agent's task depends."""

    task: ProjectTask
    summary: str = ""
    agent: str = ""
    thread: str = ""


def brief(
    task: ProjectTask,
    *,
    results: Sequence[TaskResult] = (),
    decisions: Iterable[str] = (),
    works: Sequence[ProjectTask] = (),
    knowledge: str = "",
    first: str = "",
) -> str:
    """Build the text of a task for its owner. `works` are the tasks to check, `knowledge` is the list of the project's
    rule and lesson files, and `first` says what has to be done before anything else."""
    binding = [f"- {_one_line(decision)}" for decision in decisions]
    done = []
    for result in results[:MOST_RESULTS]:
        by = f", by {result.agent}" if result.agent else ""
        summary = _one_line(result.summary)
        if len(summary) > LONGEST_RESULT:
            summary = summary[: LONGEST_RESULT - 1] + "…"
        whole = f" (all of it: `rolecall thread read {result.thread}`)" if result.thread else ""
        title = _one_line(result.task["title"])
        done.append(f"- Task {result.task['id']} ({title}){by}{f': {summary}' if summary else ''}{whole}")
    if len(results) > MOST_RESULTS:
        done.append(f"- and {len(results) - MOST_RESULTS} more: `rolecall task list`")
    context = [
        task["context"],
        f"Risk: {task['risk'].strip()}" if task.get("risk", "").strip() else "",
        "\n".join(["Decisions that bind the work:", *binding]) if binding else "",
        "\n".join(["Results of the tasks before this one:", *done]) if done else "",
    ]

    sections = [f"TASK: {_one_line(task['title'])}", f"FIRST: {first}" if first else ""]
    sections.append(_section("CONTEXT", "\n\n".join(part.strip() for part in context if part.strip())))
    sections.append(_section("APPROACH", task.get("approach")))
    sections.append(_section("ACCEPTANCE", task.get("acceptance")))
    for work in works:
        parts = [
            _one_line(work["title"]),
            _section("Context", work["context"]),
            _section("Approach", work.get("approach")),
            _section("Acceptance", work.get("acceptance")),
        ]
        sections.append(_section(f"WORK TO CHECK: task {work['id']}", "\n\n".join(filter(None, parts))))
    if knowledge:
        rules = "Those in rules/ bind you; read the others as far as they bear on the task."
        sections.append(_section("KNOWLEDGE", f"Files of the project. {rules}\n{knowledge}"))
    return "\n\n".join(filter(None, sections))


def _section(name: str, text: str | None) -> str:
    return f"{name}:\n{text.strip()}" if text and text.strip() else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


_IN_A_SHELL: Mapping[str, str] = {
    "nx_history_search": "rolecall history search TEXT",
    "nx_artifact_write": "rolecall artifact write NAME FILE",
    "nx_task_list": "rolecall task list",
    "nx_plan_status": "rolecall plan status",
}


def notes(tool_name: str = "") -> str:
    """Explain the tool names in an agent's body to an agent that has a shell. `tool_name` is the host's pattern for the
    names of our server's tools (`mcp__rolecall__{}`); it is empty if unknown."""
    commands = "\n".join(f"- `{tool}`: `{command}`" for tool, command in _IN_A_SHELL.items())
    here = tool_name.format("nx_task_list")
    server = f"Where the project's server is connected, they are tools: `{here}`, and so on."
    first = "Names that begin with `nx_` are the project's tools. In a shell:"
    return "\n".join([first, commands, *([server] if tool_name else [])])
