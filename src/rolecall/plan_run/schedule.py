"""Decides which tasks can begin now, and why the others cannot, in roughly linear time.

Two tasks that write the same file run one after the other, and the number of tasks that run at the same time is
limited. A task whose thread has begun takes precedence over a task whose thread has not, and no longer waits for its
dependencies. A missing or circular dependency is reported instead of being waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """A task to be done, reduced to what scheduling needs."""

    id: float
    deps: tuple[float, ...] = ()
    files: frozenset[str] = frozenset()
    """The files that the task is known to write."""
    is_begun: bool = False


class Clash(NamedTuple):
    file: str
    other: float


class NextTasks(NamedTuple):
    start: tuple[float, ...]
    clashes: Mapping[float, Clash]
    """The tasks that could start now if they did not write a file that another task writes."""


def choose_startable(
    wants: Sequence[Want], *, done: Collection[float], running: Mapping[float, frozenset[str]], at_once: int
) -> NextTasks:
    """Choose the tasks to start alongside those in `running`, which maps each running task to its files."""
    holders = {file: task for task, files in running.items() for file in files}
    start: list[float] = []
    clashes: dict[float, Clash] = {}
    for want in sorted(wants, key=lambda want: not want.is_begun):
        if len(running) + len(start) >= at_once:
            break
        if want.id in running or not (want.is_begun or all(dep in done for dep in want.deps)):
            continue
        shared = [file for file in want.files if file in holders]
        if shared:
            clashes[want.id] = Clash(min(shared), holders[min(shared)])
            continue
        start.append(want.id)
        holders.update(dict.fromkeys(want.files, want.id))
    return NextTasks(tuple(start), clashes)


# -- reasons for waiting --


def reasons(
    wants: Sequence[Want],
    *,
    done: Collection[float],
    running: Mapping[float, frozenset[str]],
    at_once: int,
    others: Mapping[float, str],
) -> dict[float, str]:
    """Explain why each task that is neither running nor startable has to wait.

    `others` maps the tasks that are not ours to start to a phrase about each, such as `is Lead's`.
    """
    now = choose_startable(wants, done=done, running=running, at_once=at_once)
    never = explain_hopeless(wants, known={*done, *others})
    found = {}
    for want in wants:
        if want.id in running or want.id in now.start:
            continue
        if want.id in never:
            found[want.id] = never[want.id]
            continue
        missing = [] if want.is_begun else [dep for dep in want.deps if dep not in done]
        if missing:
            parts = [f"{_number(dep)}, which {others[dep]}" for dep in missing if dep in others]
            plain = ", ".join(_number(dep) for dep in missing if dep not in others)
            found[want.id] = "waits for " + "; for ".join([*parts, *([plain] if plain else [])])
        elif clash := now.clashes.get(want.id):
            found[want.id] = f"same file {clash.file} as task {_number(clash.other)}"
        else:
            found[want.id] = f"waits for one of the {at_once} that may run at once"
    return found


def explain_hopeless(wants: Sequence[Want], *, known: Collection[float]) -> dict[float, str]:
    """Return why tasks can never begin. `known` are the tasks that are done, or that others could do."""
    left = {want.id: want for want in wants}
    followers: dict[float, list[float]] = {}
    open_deps: dict[float, int] = {}
    for want in wants:
        deps = () if want.is_begun else tuple(dep for dep in dict.fromkeys(want.deps) if dep not in known)
        open_deps[want.id] = len(deps)
        for dep in deps:
            followers.setdefault(dep, []).append(want.id)
    free = [task for task, count in open_deps.items() if not count]
    while free:
        done = free.pop()
        del left[done]
        for follower in followers.get(done, ()):
            open_deps[follower] -= 1
            if not open_deps[follower]:
                free.append(follower)

    circles = _find_circles(left)
    found = {}
    for task, want in left.items():
        absent = [dep for dep in want.deps if dep not in left and dep not in known]
        if absent:
            found[task] = f"waits for {_number(absent[0])}, which does not exist"
        elif circle := circles.get(task):
            at = circle.index(task)
            way = " -> ".join(map(_number, [*circle[at:], *circle[:at], task]))
            found[task] = f"waits for itself: {way}"
        else:
            stuck = next(dep for dep in want.deps if dep in left)
            found[task] = f"waits for {_number(stuck)}, which can never begin"
    return found


def _find_circles(left: Mapping[float, Want]) -> dict[float, list[float]]:
    """Return, for each task in a circle, that circle, found by following every task's first open dependency."""
    found: dict[float, list[float]] = {}
    seen: set[float] = set()
    for first in left:
        way: dict[float, None] = {}
        at: float | None = first
        while at is not None and at not in seen:
            seen.add(at)
            way[at] = None
            at = next((dep for dep in left[at].deps if dep in left), None)
        if at in way:
            path = list(way)
            circle = path[path.index(at) :]
            found |= dict.fromkeys(circle, circle)
    return found


def _number(task: float) -> str:
    return f"{task:g}" if isinstance(task, float) else str(task)


# -- looking ahead --


class Prospects(NamedTuple):
    """What would happen if every task took the same time and none failed."""

    waves: tuple[tuple[float, ...], ...]
    clashes: Mapping[float, Clash]
    """The tasks that would have to wait for a file."""
    left: Mapping[float, str]
    """The tasks that would not be done, with the reason for each."""


def outlook(
    wants: Sequence[Want], *, done: Collection[float], at_once: int, others: Mapping[float, str]
) -> Prospects:
    finished, left = set(done), {want.id: want for want in wants}
    waves: list[tuple[float, ...]] = []
    clashes: dict[float, Clash] = {}
    while (now := choose_startable([*left.values()], done=finished, running={}, at_once=at_once)).start:
        waves.append(now.start)
        clashes.update(now.clashes)
        finished.update(now.start)
        for task in now.start:
            del left[task]
    why = reasons([*left.values()], done=finished, running={}, at_once=at_once, others=others)
    return Prospects(tuple(waves), clashes, why)
