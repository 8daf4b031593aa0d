"""The child of the kill tests: `python hook_child.py FOLDER SCENARIO`.

A scenario is an event in a project that is prepared for it. It is told again and again, each time to a fork that is
killed one system call later than the last, until one lives to its end. After every kill the same event is told once
more, as hosts do, and what lies there then is said on a line: it has to be what one event alone leaves.
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

from hook_stage import (
    OURS,
    PLAN,
    SESSIONS,
    TASKS,
    TRACKER,
    at,
    known_hooks,
    plan,
    read,
    task,
    tasks,
    tell,
    write,
)

from rolecall.hosts.event import (
    ContextCompact,
    Event,
    HostCaller,
    HostToolCall,
    PostToolUse,
    SessionEnd,
    SessionStart,
    SubagentComplete,
    SubagentSpawn,
    UserMessage,
)
from rolecall.nexus import memory_access

ENGINEER, OTHER = HostCaller("engineer", "e1"), HostCaller("writer", "w1")


class Fuse:
    """Counts the calls to the system and kills this process before one of them."""

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

    def lay(self) -> None:
        for name in ("open", "replace", "rename", "link", "unlink", "mkdir", "write", "fsync", "close"):
            setattr(os, name, self.around(getattr(os, name)))
        fcntl.flock = self.around(fcntl.flock)


def was_killed(work: Callable[[], object], step: int) -> bool:
    child = os.fork()
    if child == 0:
        leave = os._exit
        try:
            Fuse(step).lay()
            work()
        finally:
            leave(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


# -- scenarios --


def seed(project: Path) -> None:
    """Two sessions are open, an agent of each is at work, and there is something of everything."""
    plan(project, "Which format?", "Who pays?", i1="JSON.")
    tasks(
        project,
        task(1, owner="engineer", status="in_progress", acceptance="It runs."),
        task(2, owner="writer"),
    )
    write(project, ".nexus/memory/retry-limits.md", "x")
    for event in (
        SessionStart("s1"),
        SubagentSpawn("s1", ENGINEER),
        SessionStart("s2"),
        SubagentSpawn("s2", OTHER),
    ):
        tell(project, event)
    tell(
        project,
        PostToolUse("s1", ENGINEER, HostToolCall("Write", ("file_creation",), (str(project / "a.py"),))),
    )


def reading(project: Path) -> Event:
    note = str(project / ".nexus/memory/retry-limits.md")
    return PostToolUse("s1", ENGINEER, HostToolCall("Read", reads=(note,)))


SCENARIOS: dict[str, Callable[[Path], Event]] = {
    "start of a third": lambda _: SessionStart("s3"),
    "start again": lambda _: SessionStart("s1"),
    "decision": lambda _: UserMessage("s1", "[d] Nobody."),
    "lesson": lambda _: UserMessage("s1", "[m] queue-order: First in, first out."),
    "skill": lambda _: UserMessage("s1", "[run] go"),
    "spawn": lambda _: SubagentSpawn("s1", HostCaller("tester", "t1")),
    "complete": lambda _: SubagentComplete("s1", ENGINEER, "Done."),
    "edit": lambda project: PostToolUse("s2", OTHER, HostToolCall("Write", (), (str(project / "b.py"),))),
    "read": reading,
    "compact": lambda _: ContextCompact("s1"),
    "turn": lambda _: SessionEnd("s1", is_over=False),
    "end": lambda _: SessionEnd("s1"),
}


def left(project: Path) -> dict[str, Any]:
    """What lies there, without what differs from one telling to the next."""
    sessions = read(project, SESSIONS) or {}
    touched = project / OURS / "touched"
    return {
        "plan": read(project, PLAN),
        "tasks": read(project, TASKS),
        "tracker": read(project, TRACKER),
        "sessions": {name: {**fields, "seen": ""} for name, fields in sessions.items()},
        "memory": sorted(path.name for path in (project / ".nexus/memory").iterdir()),
        "is_read": bool(memory_access.read(project)),
        "touched": sorted({path.name: set(path.read_text().split("\n")) for path in touched.glob("*")}),
        "drafts": sorted(path.name for path in (project / OURS).glob("draft")),
        "log": all(json.loads(line) for line in (project / OURS / "tool-log.jsonl").read_text().splitlines()),
        "others": (project / LEFT_ALONE).read_text(),
    }


LEFT_ALONE = ".nexus/state/claude-nexus/agent-tracker.json"


def main(folder: Path, scenario: str) -> None:
    hooks = known_hooks()
    original = folder / "original"
    original.mkdir()
    seed(original)
    write(original, LEFT_ALONE, [{"harness_id": "claude-nexus", "started_at": at()}])
    step = 0
    while True:
        project = folder / "project"
        shutil.copytree(original, project)
        event = SCENARIOS[scenario](project)
        killed = was_killed(lambda: tell(project, event, hooks, at(1)), step)  # noqa: B023 -- called at once
        if killed:
            tell(project, event, hooks, at(1))
        print(json.dumps({"step": step, "killed": killed, "left": left(project)}), flush=True)
        shutil.rmtree(project)
        if step and not killed:
            return
        step += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
