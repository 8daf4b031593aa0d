"""The thread of each task (`state/rolecall/runs.json`), and the lock that allows only one `plan run` at a time.

A task is identified by its number and the time when it was added, because the next cycle reuses the number. The threads
record what happened; this file only records which threads they are, and what the task list already reflects.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Conflict
from rolecall.nexus import project_paths, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.store import holder

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

FILE, _LOCK = "runs.json", "run.lock"
_LONGEST_LOCK = 1_000


class TaskRun(NamedTuple):
    thread: str
    is_settled: bool = False
    """Whether the thread is done and the task list says so. A task that is pending after that was reopened."""
    redoes: tuple[float, ...] = ()
    """The tasks that this task has checked and rejected; their work is done again in this task's thread."""
    is_planned: bool = False
    """Whether the thread has yet to be created: the run is recorded first, so every thread has a task."""


def key(task: ProjectTask) -> str:
    """Return a key that is unique to a task, even across cycles."""
    made = task.get("created_at") or state_file.digest(f"{task['title']}\n{task['context']}".encode())
    return f"{task['id']}@{made}"


def load(project: Folder) -> dict[str, TaskRun]:
    path = project_paths.ours(project, FILE)
    data = state_file.read(path)
    if data is None:
        return {}
    try:
        runs = {name: TaskRun(**entry) for name, entry in json.loads(data)["runs"].items()}
        pairs = runs.items()
        return {name: run._replace(thread=str(run.thread), redoes=tuple(run.redoes)) for name, run in pairs}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise state_file.DamagedFile(path, data, f"not a list of runs: {exc!r}") from exc


def save(project: Folder, runs: Mapping[str, TaskRun], keep: Collection[str]) -> None:
    """Write the runs whose keys are in `keep`, and drop the runs of closed cycles."""
    text = json.dumps({"runs": {name: run._asdict() for name, run in runs.items() if name in keep}})
    with state_file.hold_lock(project):
        state_file.replace(project, project_paths.ours(project, FILE), f"{text}\n".encode())


@contextmanager
def run_alone(project: Folder) -> Iterator[None]:
    """Allow only one `plan run` at a time. The kernel holds the lock, so the lock is released when the process ends."""
    with state_file.hold_lock(project):  # this creates the folder
        file = os.open(project_paths.ours(project, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder_words = os.pread(file, _LONGEST_LOCK, 0).decode(errors="replace").partition("\n")[0]
            problem = f"the plan is being run already, by {holder_words or 'another process'}"
            raise Conflict(problem, hint="Wait for that run, or stop it: its threads are kept.") from None
        process = json.dumps(holder.process(os.getpid()))
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} since {project_paths.now()}\n{process}\n".encode())
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def threads_at_work(project: Folder) -> tuple[str, ...]:
    """Return the threads of a running `plan run`, or an empty tuple if none is running."""
    # Trying the lock could block a run that is just starting. A run that was killed leaves its process in the file.
    try:
        with open(project_paths.ours(project, _LOCK), encoding="utf-8", errors="replace") as file:
            _, _, process = file.read(_LONGEST_LOCK).partition("\n")
        is_at_work = holder.is_alive(json.loads(process), now=0)
        return tuple(run.thread for run in load(project).values()) if is_at_work else ()
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, state_file.DamagedFile):
        return ()
