"""The dependencies of tasks as pictures: waves of tasks that can run at the same time, Mermaid, and Graphviz.

The contract's tool does not check the dependencies of a new task, so a picture must also show tasks that will never be
ready: those that depend on themselves through other tasks, or on a task that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rolecall.errors import UsageError
from rolecall.nexus.overview import progress_of, ready_ids

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

_SCREEN = 50
"""The maximum number of tasks for which completed waves are shown in full."""
_MOST_RUNS = 8


def status(task: ProjectTask, can_begin: Collection[float]) -> str:
    """Return the status of a task for people, who see a pending task as ready or waiting."""
    if task["status"] != "pending":
        return task["status"]
    return "ready" if task["id"] in can_begin else "waiting"


def ids(numbers: Iterable[float]) -> str:
    """Return ids in a short form for a line of text: a run of ids is written as 3-7, and a long list is cut."""
    runs: list[list[float]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    shown = ", ".join(words[:_MOST_RUNS])
    left = sum(map(len, runs[_MOST_RUNS:]))
    return f"{shown} and {left} more" if left else shown


def to_text(tasks: Sequence[ProjectTask]) -> str:
    can_begin = set(ready_ids([progress_of(task) for task in tasks]))
    width = max((len(str(task["id"])) for task in tasks), default=0)

    def is_left_out(wave: tuple[str, Sequence[ProjectTask]]) -> bool:
        return len(tasks) > _SCREEN and all(task["status"] == "completed" for task in wave[1])

    lines: list[str] = []
    for is_done, group in groupby(_waves(tasks), is_left_out):
        waves = list(group)
        if is_done:
            first, last = waves[0][0], waves[-1][0]
            which = first if first == last else f"{first} to {last}"
            lines.append(f"{which}: {sum(len(wave) for _, wave in waves)} tasks, all completed")
            continue
        for heading, wave in waves:
            lines.append(heading)
            for task in wave:
                after = f"  <- {ids(task['deps'])}" if task["deps"] else ""
                words = f"{status(task, can_begin):<{len('in_progress')}}  {_one_line(task['title'])}{after}"
                lines.append(f"  {task['id']!s:>{width}}  {words}")
    return "\n".join(lines) or "there are no tasks"


def _waves(tasks: Sequence[ProjectTask]) -> Iterator[tuple[str, list[ProjectTask]]]:
    """Yield the tasks in waves to be done one after another, each with a heading, and last those that never can be."""
    waits_for = {number: set(task["deps"]) for number, task in enumerate(tasks)}
    followers: dict[float, list[int]] = {}
    for number, deps in waits_for.items():
        for dep in deps:
            followers.setdefault(dep, []).append(number)
    wave = [number for number, deps in waits_for.items() if not deps]
    count = 0
    while wave:
        count += 1
        yield f"{count}.", [tasks[number] for number in wave]
        met = {tasks[number]["id"] for number in wave if waits_for.pop(number) is not None}
        touched = {number for done in met for number in followers.get(done, ()) if number in waits_for}
        for number in touched:
            waits_for[number] -= met
        wave = sorted(number for number in touched if not waits_for[number])
    if waits_for:
        never = [tasks[number] for number in waits_for]
        yield "never: they wait for one another, or for a task that does not exist", never


def to_mermaid(tasks: Sequence[ProjectTask]) -> str:
    lines = ["graph TD"]
    for task in tasks:
        title = _one_line(task["title"]).replace("#", "#35;").replace('"', "#quot;")
        lines.append(f'  t{task["id"]}["{task["id"]}: {title}"]')
    lines += [f"  t{before} --> t{task['id']}" for task in tasks for before in task["deps"]]
    return "\n".join(lines)


def to_dot(tasks: Sequence[ProjectTask]) -> str:
    lines = ["digraph tasks {"]
    for task in tasks:
        title = _one_line(task["title"]).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  "{task["id"]}" [label="{task["id"]}: {title}"];')
    lines += [f'  "{before}" -> "{task["id"]}";' for task in tasks for before in task["deps"]]
    return "\n".join([*lines, "}"])


DRAWN_AS: Mapping[str, Callable[[Sequence[ProjectTask]], str]]
DRAWN_AS = {"text": to_text, "mermaid": to_mermaid, "dot": to_dot}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def check_deps(tasks: Iterable[ProjectTask], deps: Sequence[float]) -> None:
    """Raise an error for a new task that could never start, because of a missing or circular dependency."""
    deps_of = {task["id"]: task["deps"] for task in tasks}
    if unknown := [dep for dep in deps if dep not in deps_of]:
        known = f"Tasks: {ids(deps_of)}." if deps_of else "There are no tasks yet."
        raise UsageError(f"no task has the id {ids(unknown)}", hint=known)
    new = max(deps_of) + 1  # an earlier task can already depend on this new id
    paths: list[tuple[float, ...]] = [(new, dep) for dep in deps]
    seen: set[float] = set()
    while paths:
        path = paths.pop()
        if path[-1] == new:
            circle = " after ".join(map(str, path))
            hint = "Leave out the dependency that closes the cycle."
            raise UsageError(f"the tasks would wait for each other: {circle}", hint=hint)
        if path[-1] not in seen:
            seen.add(path[-1])
            paths += [(*path, dep) for dep in deps_of.get(path[-1], ())]
