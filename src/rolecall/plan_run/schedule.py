"""Which tasks can begin now, and why the others cannot. Values; time grows with the number of tasks and dependencies.

Two tasks that write the same file run one after the other, and no more than a given number run at once. A task whose
thread has begun goes before one that has not, and no longer asks for its dependencies. A dependency that does not
exist or leads back to itself is named: a schedule never waits for what cannot come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """A task that is to be done, as far as its time matters."""

    id: float
    deps: tuple[float, ...] = ()
    files: frozenset[str] = frozenset()
    """What it is known to write."""
    is_begun: bool = False


class Clash(NamedTuple):
    file: str
    other: float
    """The task that has the file now."""


class Next(NamedTuple):
    start: tuple[float, ...]
    clashes: Mapping[float, Clash]
    """What could begin as well if it did not write what another one writes."""


def startable(
    wants: Sequence[Want], *, done: Collection[float], running: Mapping[float, frozenset[str]], limit: int
) -> Next:
    """What is to be started while `running` (task -> files) goes on."""
    holders = {file: task for task, files in running.items() for file in files}
    start: list[float] = []
    clashes: dict[float, Clash] = {}
    for want in _in_order(wants):
        if len(running) + len(start) >= limit:
            break
        if want.id in running or not (want.is_begun or _is_met(want, done)):
            continue
        clash = _clash(want, holders)
        if clash:
            clashes[want.id] = clash
            continue
        start.append(want.id)
        holders.update(dict.fromkeys(want.files, want.id))
    return Next(tuple(start), clashes)


def _in_order(wants: Sequence[Want]) -> Iterator[Want]:
    yield from (want for want in wants if want.is_begun)
    yield from (want for want in wants if not want.is_begun)


def _is_met(want: Want, done: Collection[float]) -> bool:
    return all(dep in done for dep in want.deps)


def _clash(want: Want, holders: Mapping[str, float]) -> Clash | None:
    file = min((file for file in want.files if file in holders), default=None)
    return Clash(file, holders[file]) if file is not None else None


# -- why not --


def reasons(
    wants: Sequence[Want],
    *,
    done: Collection[float],
    running: Mapping[float, frozenset[str]],
    limit: int,
    others: Mapping[float, str],
) -> dict[float, str]:
    """Why each task that is neither running nor to be started now has to wait. `others` are tasks that are not for us
    to start, with what there is to say of them (`is Lead's`)."""
    now = startable(wants, done=done, running=running, limit=limit)
    never = hopeless(wants, known={*done, *others})
    waiting = (want for want in wants if want.id not in running and want.id not in now.start)
    return {want.id: never.get(want.id) or _reason(want, done, now, limit, others) for want in waiting}


def _reason(want: Want, done: Collection[float], now: Next, limit: int, others: Mapping[float, str]) -> str:
    missing = [] if want.is_begun else [dep for dep in want.deps if dep not in done]
    if missing:
        return "waits for " + "; for ".join(_together(missing, others))
    if want.id in now.clashes:
        return f"same file {now.clashes[want.id].file} as task {_number(now.clashes[want.id].other)}"
    return f"waits for one of the {limit} that may run at once"


def _together(missing: Sequence[float], others: Mapping[float, str]) -> Iterator[str]:
    """Tasks of which there is something to say each for itself, the rest in one."""
    yield from (f"{_number(dep)}, which {others[dep]}" for dep in missing if dep in others)
    if plain := [_number(dep) for dep in missing if dep not in others]:
        yield ", ".join(plain)


def hopeless(wants: Sequence[Want], *, known: Collection[float]) -> dict[float, str]:
    """The tasks that can never begin, with the reason; `known` are tasks that are done or may be done by others."""
    left = {want.id: want for want in wants}
    followers: dict[float, list[float]] = {}
    open_deps = {}
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
    return _told(left, known) if left else {}


def _told(left: Mapping[float, Want], known: Collection[float]) -> dict[float, str]:
    circles = {task: circle for circle in _circles(left) for task in circle}
    return {task: _why_never(want, left, known, circles) for task, want in left.items()}


def _why_never(
    want: Want, left: Mapping[float, Want], known: Collection[float], circles: Mapping[float, list[float]]
) -> str:
    absent = [dep for dep in want.deps if dep not in left and dep not in known]
    if absent:
        return f"waits for {_number(absent[0])}, which does not exist"
    if want.id in circles:
        circle = circles[want.id]
        at = circle.index(want.id)
        return "waits for itself: " + " -> ".join(map(_number, [*circle[at:], *circle[:at], want.id]))
    stuck = next(dep for dep in want.deps if dep in left)
    return f"waits for {_number(stuck)}, which can never begin"


def _circles(left: Mapping[float, Want]) -> Iterator[list[float]]:
    """Circles of tasks, each found by going from a task to one that it waits for until one comes again."""
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
            yield path[path.index(at) :]


def _number(task: float) -> str:
    return f"{task:g}" if isinstance(task, float) else str(task)


# -- looking ahead --


class Outlook(NamedTuple):
    """How it would go if every task took the same time and none failed."""

    waves: tuple[tuple[float, ...], ...]
    clashes: Mapping[float, Clash]
    """Tasks that had to wait for a file."""
    left: Mapping[float, str]
    """Those that would not be done, with the reason."""


def outlook(
    wants: Sequence[Want], *, done: Collection[float], limit: int, others: Mapping[float, str]
) -> Outlook:
    over, left = set(done), {want.id: want for want in wants}
    waves: list[tuple[float, ...]] = []
    clashes: dict[float, Clash] = {}
    while True:
        now = startable([*left.values()], done=over, running={}, limit=limit)
        if not now.start:
            break
        waves.append(now.start)
        clashes.update(now.clashes)
        over.update(now.start)
        for task in now.start:
            del left[task]
    why = reasons([*left.values()], done=over, running={}, limit=limit, others=others)
    return Outlook(tuple(waves), clashes, why)
