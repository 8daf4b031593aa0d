"""Which thread carries out which task: `state/rolecall/runs.json`; and the lock that keeps runners apart.

A task is known by its number and the time it was added, so that the first task of the next cycle is not taken for
the first of this one. What happened is in the threads; here is only where to look, and what of it was written back to
the task list already.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rolecall.errors import Conflict
from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.store import holder

FILE, _LOCK = "runs.json", "run.lock"
_LONGEST_LOCK = 1_000

Task = Mapping[str, Any]


class Run(NamedTuple):
    thread: str
    is_settled: bool = False
    """The thread is done and the task list says so. A task that is pending again was reopened."""
    redoes: tuple[float, ...] = ()
    """Tasks that this one has checked and found wanting: their work is done again in this thread."""
    is_planned: bool = False
    """The thread is about to be made: written down first, so that none is left that no task knows."""


def key(task: Task) -> str:
    """What tells a task from every other, also from one of another cycle."""
    made = task.get("created_at") or state_file.digest(f"{task['title']}\n{task['context']}".encode())
    return f"{task['id']}@{made}"


def load(project: Folder) -> dict[str, Run]:
    path = project_paths.ours(project, FILE)
    data = state_file.read(path)
    if data is None:
        return {}
    try:
        return {name: _run(entry) for name, entry in json.loads(data)["runs"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise state_file.DamagedFile(
            path, data, f"the list of runs is not what it should be: {exc!r}"
        ) from exc


def _run(entry: Mapping[str, Any]) -> Run:
    return Run(
        str(entry["thread"]),
        bool(entry.get("is_settled")),
        tuple(entry.get("redoes", ())),
        bool(entry.get("is_planned")),
    )


def save(project: Folder, runs: Mapping[str, Run], keep: Collection[str]) -> None:
    """Write down the runs of the tasks in `keep`; those of cycles that are closed go."""
    found = {name: run._asdict() for name, run in runs.items() if name in keep}
    with state_file.locked(project):
        text = json.dumps({"runs": found})
        state_file.replace(project, project_paths.ours(project, FILE), f"{text}\n".encode())


@contextmanager
def alone(project: Folder) -> Iterator[None]:
    """One runner at a time; the lock is the kernel's, so it ends with its holder however that ends."""
    with state_file.locked(project):  # makes the folder
        file = os.open(project_paths.ours(project, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"the plan is being run already, by {_holder(file)}",
                hint="Wait for it, or stop it: its threads are kept.",
            ) from None
        os.ftruncate(file, 0)
        told = (
            f"process {os.getpid()} since {project_paths.now()}\n{json.dumps(holder.process(os.getpid()))}\n"
        )
        os.write(file, told.encode())
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _holder(file: int) -> str:
    return os.pread(file, _LONGEST_LOCK, 0).decode(errors="replace").partition("\n")[0] or "another process"


def threads_at_work(project: Folder) -> tuple[str, ...]:
    """The threads of a runner that is at work; none where there is none. The lock itself is not asked: whoever tried it
    would for a moment keep out a runner that begins just then. A runner that was killed leaves its words there, and
    its number is another process's by and by, so that the process is told by more than that."""
    try:
        with open(project_paths.ours(project, _LOCK), encoding="utf-8", errors="replace") as file:
            _, _, process = file.read(_LONGEST_LOCK).partition("\n")
        is_at_work = holder.is_alive(json.loads(process), now=0)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return ()
    if not is_at_work:
        return ()
    try:
        return tuple(run.thread for run in load(project).values())
    except state_file.DamagedFile:
        return ()
