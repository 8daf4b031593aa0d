"""Projects and hosts to test hooks with: state as it lies on disk, events in our words, the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolecall.hosts import hook_context, lifecycle
from rolecall.hosts.event import Event, HostAnswer
from rolecall.hosts.hook_context import HookContext

STATE, OURS = ".nexus/state", ".nexus/state/rolecall"
PLAN, TASKS = f"{STATE}/plan.json", f"{STATE}/tasks.json"
TRACKER, SESSIONS, LOG = f"{OURS}/agent-tracker.json", f"{OURS}/sessions.json", f"{OURS}/tool-log.jsonl"
ROLECALL = str(Path(sys.executable).parent / "rolecall")


def at(minute: int = 0) -> str:
    """A time, some minutes after another."""
    return f"2026-01-31T{9 + minute // 60:02d}:{minute % 60:02d}:00.000Z"


def known_hooks() -> HookContext:
    """What hooks know of our own catalogue, by the way the command takes."""
    return hook_context.load("rolecall")


def tell(project: Path, event: Event, hooks: HookContext | None = None, now: str | None = None) -> HostAnswer:
    return lifecycle.handle(str(project), event, known_hooks() if hooks is None else hooks, now or at())


def side_by_side(*works: Callable[[], object]) -> None:
    """Each in a process of its own, all at once; every one of them has to come to its end."""
    children = [_forked(work) for work in works]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


def _forked(work: Callable[[], object]) -> int:
    """Whatever happens, a child ends here: it would go on with the tests else."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def hook(
    project: Path | None,
    event: str,
    payload: Any,
    *options: str,
    host: str = "rolecall",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """The command as a host runs it."""
    where = ["--project", str(project)] if project else []
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return subprocess.run(
        [ROLECALL, "hook", host, event, *where, *options],
        input=data,
        capture_output=True,
        env={**os.environ, **(env or {})},
        cwd=cwd or project,
        timeout=60,
        check=False,
    )


# -- what lies in a project --


def read(project: Path, name: str) -> Any:
    path = project / name
    return json.loads(path.read_bytes()) if path.exists() else None


def lines(project: Path, name: str) -> list[Any]:
    path = project / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(project: Path, name: str, content: Any) -> Path:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def task(number: int, **fields: Any) -> dict[str, Any]:
    base = {"id": number, "title": f"Task {number}", "context": "Why.", "status": "pending", "deps": []}
    return {**base, **fields}


def tasks(project: Path, *found: dict[str, Any], goal: str = "Ship it") -> None:
    write(project, TASKS, {"goal": goal, "decisions": [], "tasks": list(found)})


def plan(project: Path, *titles: str, **decided: str) -> None:
    """A plan with these issues; `decided` by `i` and their number."""
    issues = []
    for number, title in enumerate(titles, 1):
        decision = decided.get(f"i{number}")
        state = {"status": "decided", "decision": decision} if decision else {"status": "pending"}
        issues.append({"id": number, "title": title, **state})
    write(project, PLAN, {"id": 3, "topic": "Storage", "issues": issues, "created_at": at()})
