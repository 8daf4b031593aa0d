"""The children of the fault tests.

    python project_child.py add PROJECT NAME COUNT      add tasks, say each title and id once it is acknowledged
    python project_child.py close PROJECT               close cycles until standard input ends
    python project_child.py start PROJECT NAME COUNT    begin plans, say each id
    python project_child.py hold PROJECT                take the lock, say so, and wait for standard input to end
    python project_child.py kills FOLDER SCENARIO       die at every step of a scenario in turn, say what is left

A scenario is played again and again, each time by a fork that is killed one step later, until one lives to
its end. After every kill the same work is done once more by a process that knows nothing of the dead one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from project_stage import HISTORY, PLAN, TASKS, cycle, plan, read, task, tasks_file, write

from rolecall.errors import RolecallError
from rolecall.nexus import dispatch, state, state_file, tools
from rolecall.nexus.reply import StartedPlan, TaskReply


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def begin(project: Path, topic: str) -> StartedPlan:
    return dispatch.call(project, tools.plan_start, {"topic": topic, "issues": ["A"], "research_summary": ""})


def add(project: Path, title: str) -> TaskReply:
    return dispatch.call(project, tools.task_add, {"title": title, "context": "C"})


def add_many(project: Path, name: str, count: str) -> None:
    for number in range(int(count)):
        title = f"{name}-{number}"
        say(title, add(project, title)["task"]["id"])


def close_until_told(project: Path) -> None:
    os.set_blocking(0, False)
    while True:
        say(dispatch.call(project, tools.task_close)["archived"]["tasks"])
        try:
            if os.read(0, 1) == b"":
                return
        except BlockingIOError:
            continue


def start_many(project: Path, name: str, count: str) -> None:
    for number in range(int(count)):
        say(f"{name}-{number}", begin(project, f"{name}-{number}")["plan_id"])


def hold(project: Path) -> None:
    with state_file.hold_lock(project):
        say("held")
        sys.stdin.read()


# -- dying at every step --


class Fuse:
    """Counts the calls to the system and kills this process before one of them: after the last was as good."""

    def __init__(self, last: int) -> None:
        self._left = last

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def burning(*args: Any, **options: Any) -> Any:
            self.burn()
            return call(*args, **options)

        return burning

    def around_write(self, call: Callable[..., int]) -> Callable[..., int]:
        """A write that may be cut off in its middle."""

        def burning(file: int, data: bytes) -> int:
            self.burn()
            half = call(file, bytes(data)[: len(data) // 2]) if len(data) > 1 else 0
            self.burn()
            return half + call(file, bytes(data)[half:])

        return burning

    def lay(self) -> None:
        for name in ("open", "replace", "fsync", "unlink", "mkdir"):
            setattr(os, name, self.around(getattr(os, name)))
        os.write = self.around_write(os.write)
        fcntl.flock = self.around(fcntl.flock)


def is_acknowledged(work: Callable[[], object], step: int) -> bool | None:
    """Let a fork do the work and die at a step; None when it came to its end before that."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 9
        try:
            tell, leave = os.write, os._exit
            fuse = Fuse(step)
            fuse.lay()
            work()
            fuse.burn()
            tell(writer, b"x")
            status = 0
        finally:
            leave(status)
    os.close(writer)
    said = os.read(reader, 1)
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return None if status == 0 else said == b"x"


BIG = 12
LONG = "x" * 10_000
"""So many entries with such a text in each make a file that is remembered."""


def seed(project: Path, *, is_big: bool) -> None:
    """A plan and tasks with cycles before them, as other harnesses leave them."""
    count, text = (BIG, LONG) if is_big else (2, "")
    cycles = [cycle(number, tasks=[task(1, title="old", risk=text)]) for number in range(1, count + 1)]
    write(project, HISTORY, {"cycles": cycles}, indent=None)
    write(project, PLAN, plan(count + 1, "A"))
    write(project, TASKS, tasks_file(*seeded_tasks(count, text)), indent=None)


def seeded_tasks(count: int, text: str) -> list[dict[str, Any]]:
    return [task(number, risk=text) for number in range(1, count + 1)]


def after_close(project: Path) -> None:
    """Whoever comes next decides an issue, if there still is a plan, and closes."""
    try:
        dispatch.call(project, tools.plan_decide, {"issue_id": 1, "decision": "So."})
    except RolecallError as error:
        assert error.message == "No active plan session", error
    add(project, "after")
    dispatch.call(project, tools.task_close)


SCENARIOS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "add": (lambda project: add(project, "killed"), lambda project: add(project, "after")),
    "update": (
        lambda project: dispatch.call(project, tools.task_update, {"id": 2, "status": "completed"}),
        lambda project: add(project, "after"),
    ),
    "decide": (
        lambda project: dispatch.call(project, tools.plan_decide, {"issue_id": 1, "decision": "So."}),
        lambda project: dispatch.call(project, tools.plan_update, {"action": "add", "title": "after"}),
    ),
    "start": (lambda project: begin(project, "killed"), lambda project: begin(project, "after")),
    "close": (lambda project: dispatch.call(project, tools.task_close), after_close),
    "close again": (
        lambda project: dispatch.call(project, tools.task_close),
        lambda project: dispatch.call(project, tools.task_close),
    ),
    "start, then close": (
        lambda project: begin(project, "killed"),
        lambda project: dispatch.call(project, tools.task_close),
    ),
    "artifact": (
        lambda project: dispatch.call(project, tools.artifact_write, {"filename": "a/b.md", "content": "new" * 99}),
        lambda project: None,
    ),
}  # fmt: skip


def shortened(project: Path, name: str) -> Any:
    text = json.dumps(read(project, name))
    return json.loads(text.replace(LONG, "long"))


def left(project: Path) -> dict[str, Any]:
    """What is in the project, in few words."""
    artifact = project / ".nexus/state/artifacts/a/b.md"
    return {
        "plan": shortened(project, PLAN),
        "tasks": shortened(project, TASKS),
        "cycles": (shortened(project, HISTORY) or {}).get("cycles", []),
        "artifact": artifact.read_text() if artifact.exists() else None,
        "files": sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()),
    }


def kill_everywhere(folder: Path, scenario: str, size: str) -> None:
    work, next_work = SCENARIOS[scenario]
    step = 0
    while True:
        step += 1
        project = folder / str(step)
        project.mkdir()
        if size != "empty":
            seed(project, is_big=size == "big")
        acknowledged = is_acknowledged(lambda project=project: work(project), step)  # type: ignore[misc]
        if acknowledged is None:
            return
        state._known.clear()
        found = left(project)
        next_work(project)
        say(json.dumps({"step": step, "acknowledged": acknowledged, "left": found, "then": left(project)}))
        shutil.rmtree(project)


def main(task_name: str, folder: str, *args: str) -> None:
    tasks: dict[str, Callable[..., None]] = {
        "add": add_many,
        "close": close_until_told,
        "start": start_many,
        "hold": hold,
        "kills": kill_everywhere,
    }
    tasks[task_name](Path(folder), *args)


if __name__ == "__main__":
    main(*sys.argv[1:])
