"""Turn a recorded thread into a task."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from rolecall.errors import NotFound, UsageError
from rolecall.evals.tasks import read_tasks
from rolecall.files.tree import Trees
from rolecall.settings import yaml12
from rolecall.store.store import Store
from rolecall.threads import step_files
from rolecall.threads.state import ThreadRef
from rolecall.threads.thread import Chain
from rolecall.workflow.yaml import make_includer, read_text


class Promoted(NamedTuple):
    task: str
    file: str
    """The tasks file that now contains the task."""
    folder: str
    """The folder with the files with which the task begins."""


def find_tasks_file(suite: str) -> str:
    """Return the tasks file that a suite names."""
    try:
        document = yaml12.load(read_text(suite), source=suite, include=make_includer(suite))
    except FileNotFoundError:
        raise NotFound(f"there is no suite {suite!r}") from None
    named = document.get("tasks") if isinstance(document, dict) else None
    if not isinstance(named, str):
        raise UsageError(f"the suite {suite} names no file of tasks", hint="Say `tasks: tasks.jsonl` there.")
    return os.path.join(os.path.dirname(os.path.abspath(suite)), named)


def promote(store: Store, trees: Trees, ref: ThreadRef, file: str, *, name: str, tags: list[str]) -> Promoted:
    """Append a task to a tasks file, with a thread's prompt and first files. The thread's files are copied into a
    folder next to the tasks file, so that the task does not depend on the thread."""
    if os.path.exists(file):
        tasks, problems = read_tasks(file)
        errors = [problem for problem in problems if "there are no tasks" not in problem.message]
        if errors:
            raise UsageError(f"{file} cannot be used:\n  " + "\n  ".join(map(str, errors)))
        if any(task.id == name for task in tasks):
            raise UsageError(f"{file} has a task {name!r}", hint="Give the new one another id.")
    folder = os.path.join(os.path.dirname(os.path.abspath(file)), name)
    if os.path.exists(folder):
        raise UsageError(f"{folder} exists", hint="Move it away, or give the task another id.")
    files = step_files.find_left(store, ref, "start").files
    prompt = Chain(store, ref.head).start.prompt
    trees.check_out(files, folder)
    task = {"id": name, "prompt": prompt, "files": name} | ({"tags": tags} if tags else {})
    with open(file, "a+", encoding="utf-8") as out:
        out.seek(max(0, out.tell() - 1))
        is_broken = out.read() not in ("", "\n")  # the last line has no line break
        out.write(("\n" if is_broken else "") + json.dumps(task, ensure_ascii=False) + "\n")
    return Promoted(name, file, folder)
